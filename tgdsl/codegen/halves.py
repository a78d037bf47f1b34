"""Which values between kernels are stored as f16 when a program is compiled for half precision.

Arithmetic stays f32 in registers; what is chosen here is only how a value lies in scratch. What an
error of 2^-11 would spoil stays f32: results of reductions and everything of their size that
is made of them (row statistics, log-sum-exp, loss terms), and partial sums of contractions that were split.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from tgdsl.ir import Attention, Contraction, Gather, Graph, Node, Pointwise, Reduction, View
from tgdsl.program import ALIGN
from tgdsl.schedule import Schedule
from tgdsl.schedule.access import bases

TO_HALF = """
fn to_half(x: f32) -> f16 {
  let bits = bitcast<u32>(x);
  let size = bits & 0x7fffffffu;
  let over = size > 0x477fe000u && size < 0x7f800000u;
  return f16(bitcast<f32>(select(bits, (bits & 0x80000000u) | 0x7f800000u, over)));
}
"""
"""The conversion of every store. WGSL leaves open what becomes of a number beyond 65504, and drivers
that round towards zero would make it 65504 in silence; the loss scale must see an infinity."""


def half_nodes(graph: Graph, schedule: Schedule, stored: Iterable[int]) -> set[int]:
    """Of the stored nodes between kernels, the ids of those that are kept as f16."""
    members = {n.id: n for g in schedule.groups for n in g.members}
    nodes = graph.reachable(members.values())
    statistics = _statistics(nodes)
    kept = statistics | _partial_sums(nodes) | _compared(schedule)
    return {i for i in stored if members[i].dtype == "f32" and i not in kept and 4 * members[i].type.size > ALIGN}


def _statistics(nodes: Iterable[Node]) -> set[int]:
    """Reductions, and what is made of them without being larger."""
    width: dict[int, int] = {}
    found: set[int] = set()
    for node in nodes:
        if isinstance(node.op.lower, Reduction) or (
            isinstance(node.op.lower, Attention) and node.op.lower.role == "lse"
        ):
            width[node.id] = node.type.size
        elif isinstance(node.op.lower, (Pointwise, View, Gather)):
            width[node.id] = max((width.get(x.id, 0) for x in node.inputs), default=0)
        if width.get(node.id, 0) >= node.type.size:
            found.add(node.id)
    return found


def _partial_sums(nodes: Iterable[Node]) -> set[int]:
    """Contractions that are read by sums only: the slices of a contraction that was split."""
    readers: dict[int, list[Node]] = {}
    found: set[int] = set()
    for node in nodes:
        for x in node.inputs:
            readers.setdefault(x.id, []).append(node)
        if isinstance(node.op.lower, Contraction):
            found.add(node.id)

    def only_summed(node_id: int) -> bool:
        through = readers.get(node_id, [])
        return bool(through) and all(
            only_summed(n.id) if isinstance(n.op.lower, View) else isinstance(n.op.lower, Reduction) for n in through
        )

    return {i for i in found if only_summed(i)}


def _compared(schedule: Schedule) -> set[int]:
    """What a kernel both stores and takes the largest or smallest of.

    The gradient compares the stored value with the extremum, which was found among unrounded ones.
    """
    is_base = lambda n: n.id in schedule.computed  # noqa: E731
    found: set[int] = set()
    for group in schedule.groups:
        mine: Set[int] = {n.id for n in group.members}
        for node in group.members:
            if isinstance(node.op.lower, Reduction) and node.op.lower.combine in ("max", "min"):
                found |= {b.id for b in bases(node, is_base) if b.id in mine}
    return found
