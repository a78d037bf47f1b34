"""The optimizer on NumPy: an element-wise rule over arenas, a few rows at a time.

A dozen passes over an arena of megabytes would each go to memory; done for one slice of
rows after the other, all but the first find their operands in cache. Sums over the whole
arena (the norm that gradients are clipped by) come first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tgdsl.ir import Graph, Node, Pointwise
from tgdsl.ops.leaves import leaves

from .numpy_calls import Array
from .numpy_compile import Calls, Pool, compile_calls

ROWS: Final = 512
"""Rows of 64 elements per slice: 128 KB per array."""


def compile_update(graph: Graph, arenas: Mapping[str, Array], scalars: Mapping[str, Array]) -> Calls:
    """Bind the calls of an update graph to its arenas, shaped as its leaves."""
    states = leaves(graph, "state")
    rows = int(states["params"].shape[0])
    sliced = {n.id: n for n in graph.reachable() if n.type.ndim == 2 and n.shape[0] == rows}
    whole = _whole(graph, sliced)
    if rows <= ROWS or not all(_row_wise(n) for n in sliced.values()):
        return _compile(graph, arenas, scalars, list(graph.updates))
    early = [n for n, t in graph.updates.items() if t.node.id not in sliced]
    first = _compile(graph, arenas, scalars, early, results=whole)
    out = Calls(first.calls, first.copies, first.arrays, first.nbytes, first.allocated)
    given = {n.id: first.arrays[n.id] for n in whole}
    late = [n for n in graph.updates if n not in early]
    pool = Pool()
    for start in range(0, rows, ROWS):
        part = {n: a[start : start + ROWS] if a.shape[0] == rows else a for n, a in arenas.items()}
        count = min(ROWS, rows - start)
        made = _compile(graph, part, scalars, late, given=given, rows=(rows, count), pool=pool)
        out.calls += [*made.calls, *made.copies]
        out.nbytes += made.nbytes
    out.allocated += pool.allocated
    return out


def _whole(graph: Graph, sliced: Mapping[int, Node]) -> list[Node]:
    """What a slice reads that is not a slice itself."""
    read = {i.id: i for n in sliced.values() for i in n.inputs if i.id not in sliced}
    return list(read.values())


def _row_wise(node: Node) -> bool:
    return node.op.name == "state" or (isinstance(node.op.lower, Pointwise) and bool(node.inputs))


def _compile(
    graph: Graph,
    arenas: Mapping[str, Array],
    scalars: Mapping[str, Array],
    names: list[str],
    *,
    results: list[Node] | None = None,
    given: Mapping[int, Array] | None = None,
    rows: tuple[int, int] | None = None,
    pool: Pool | None = None,
) -> Calls:
    states = leaves(graph, "state")
    updates = [(graph.updates[n].node, arenas[n], states[n]) for n in names]

    def leaf(node: Node) -> Array:
        return (scalars if node.op.name == "scalar" else arenas)[node.attrs["name"]]

    return compile_calls(results or [], leaf, (), updates, given=given or {}, rows=rows, pool=pool)
