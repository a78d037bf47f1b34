"""Which nodes kernels compute, and which are recomputed inside their consumers.

Folds and contractions are always computed once. An element-wise value is stored (or kept
in a kernel) when several consumers would repeat dear work, when a contraction would
repeat it for every tile, when a broadcast would repeat it along an axis, or when it can be
stored instead of the contraction that it is the only use of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from tgdsl.ir import Attention, Contraction, Gather, Graph, Leaf, Node, Pointwise, Reduction, View

from .access import bases, read_inputs

DEAR = 8
"""Cost of one transcendental function."""

Users: TypeAlias = dict[int, list[tuple[Node, int]]]
"""For each node, its consumers seen through views: `(consumer, elements it looks at)`."""


def computed_nodes(graph: Graph, roots: Sequence[Node], max_bindings: int) -> set[int]:
    """Ids of the nodes that get a place in some kernel, which may bind so many values."""
    nodes = graph.reachable(roots)
    chosen = {n.id for n in nodes if isinstance(n.op.lower, (Reduction, Contraction, Attention))}
    chosen |= {n.id for n in roots}
    users = _consumers(nodes)
    for node in nodes:
        open_ = node.id not in chosen and isinstance(node.op.lower, Pointwise) and node.inputs
        if open_ and _worth_storing(node, users, chosen):
            chosen.add(node.id)
        if isinstance(node.op.lower, Gather) and not isinstance(node.inputs[0].op.lower, Leaf):
            chosen.add(node.inputs[0].id)
        if isinstance(node.op.lower, Attention):
            # Tiles of operands are loaded again and again: as they lie in memory, not computed anew.
            chosen |= {x.id for x in map(_seen, node.inputs) if x.inputs}
    _limit_reads(nodes, chosen, max_bindings - 1)
    return chosen


def _consumers(nodes: Sequence[Node]) -> Users:
    users: Users = {}
    for node in reversed(nodes):
        for x in dict.fromkeys(read_inputs(node)):
            mine = users.setdefault(x.id, [])
            if isinstance(node.op.lower, View):
                mine.extend((user, max(size, node.type.size)) for user, size in users.get(node.id, []))
            else:
                mine.append((node, node.type.size if isinstance(node.op.lower, Pointwise) else x.type.size))
    return users


def _worth_storing(node: Node, users: Users, chosen: set[int]) -> bool:
    mine = users.get(node.id, [])
    cost, loads, bound = _work(node, chosen)
    several = len({user.id for user, _ in mine}) > 1
    contracted = any(isinstance(user.op.lower, Contraction) for user, _ in mine)
    if several and (cost >= DEAR or loads >= 2):
        return True
    if contracted and (cost >= DEAR or loads >= 3 or bound >= 3):
        return True
    if (several or contracted) and bound >= 2 and _ends_contraction(node, users):
        return True
    stretched = max((size for _, size in mine), default=0)
    return cost >= DEAR // 2 and stretched >= 2 * node.type.size


def _ends_contraction(node: Node, users: Users) -> bool:
    """Whether a contraction of this size is used here only, so that this value can be stored in its place."""
    for x in map(_moved, node.inputs):
        if x.type.size != node.type.size or len({user.id for user, _ in users.get(x.id, [])}) > 1:
            continue
        if isinstance(x.op.lower, Contraction) or (isinstance(x.op.lower, Pointwise) and _ends_contraction(x, users)):
            return True
    return False


def _moved(node: Node) -> Node:
    """What `node` shows under views that keep every element."""
    while isinstance(node.op.lower, View) and node.type.size == node.inputs[0].type.size:
        node = node.inputs[0]
    return node


def _seen(node: Node) -> Node:
    """What `node` is a view of."""
    while isinstance(node.op.lower, View):
        node = node.inputs[0]
    return node


def _work(node: Node, chosen: set[int]) -> tuple[int, int, int]:
    """Of recomputing `node` from what is stored: cost and loads per element, and how many values are bound."""
    cost, loads = 0, 0
    bound: set[str] = set()
    seen: set[int] = set()
    stack = [node]
    while stack:
        x = stack.pop()
        if x.id in seen:
            continue
        seen.add(x.id)
        lowering = x.op.lower
        if isinstance(lowering, Leaf) or (x is not node and x.id in chosen):
            loads += x.type.size * 8 >= node.type.size
            bound |= _storage([x])
            continue
        if isinstance(lowering, Pointwise):
            cost += lowering.cost
        if isinstance(lowering, Gather):
            loads += 2  # the second waits for the first
        stack.extend(read_inputs(x))
    return cost, loads, len(bound)


def _limit_reads(nodes: Sequence[Node], chosen: set[int], most: int) -> None:
    """Store parts of an expression that would read more values than a kernel can bind."""
    before = -1
    while len(chosen) != before:  # what is stored for one node is one more value to read for another
        before = len(chosen)
        for node in nodes:
            while node.id in chosen and len(_storage(bases(node, lambda n: n.id in chosen))) > most:
                part = _largest_part(node, chosen, most)
                if part is None:
                    break
                chosen.add(part.id)


def _storage(found: Sequence[Node]) -> set[str]:
    return {"scalars" if n.op.name == "scalar" else str(n.id) for n in found}


def _largest_part(node: Node, chosen: set[int], limit: int) -> Node | None:
    """The inlined part that reads most, but not too much for a kernel of its own."""
    best: Node | None = None
    most = 1
    seen: set[int] = set()
    stack = list(read_inputs(node))
    while stack:
        x = stack.pop()
        if x.id in seen or x.id in chosen or isinstance(x.op.lower, Leaf):
            continue
        seen.add(x.id)
        stack.extend(read_inputs(x))
        reads = len(_storage(bases(x, lambda n: n.id in chosen)))
        if isinstance(x.op.lower, Pointwise) and most < reads <= limit:
            best, most = x, reads
    return best
