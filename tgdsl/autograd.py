"""Reverse mode on the graph.

Every rule is written with ops, so the gradient is a graph like any other and can be
differentiated again. Only nodes between a wanted leaf and the loss get cotangents: a
frozen weight or an input costs no gradient work at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tgdsl.errors import GradientError
from tgdsl.ir import REGISTRY, AnyTensor, Graph, Node, Tensor


def gradients(
    graph: Graph, y: AnyTensor[Any], wrt: Sequence[AnyTensor[Any]], seed: Tensor | None = None
) -> list[Tensor]:
    """Cotangents of `wrt` for the cotangent `seed` of `y`; call it inside `tracing(graph)`.

    Args:
        graph: The graph being traced.
        y: The value to differentiate.
        wrt: The values to differentiate with respect to.
        seed: The cotangent of `y`; ones when omitted, which needs a scalar `y`.

    Returns:
        One tensor of the same shape per entry of `wrt`; zeros where `y` does not depend on it.
    """
    if seed is None:
        if y.shape != ():
            raise GradientError(f"gradient of a value of type {y.type}: only a scalar has one")
        start: Tensor = REGISTRY["full"](shape=(), value=1.0, dtype="f32")
    else:
        start = seed
    order = graph.reachable([y.node])
    wanted = {t.node.id for t in wrt}
    needed = _between(order, wanted)
    cotangents: dict[int, Tensor] = {y.node.id: start}
    again = _Again(graph, order)
    for node in reversed(order):
        ct = cotangents.get(node.id)
        if ct is not None and node.id in needed:
            _spread(graph, node, ct, needed, cotangents, again)
    return [cotangents[t.node.id] if t.node.id in cotangents else _zeros(t) for t in wrt]


def _between(order: Sequence[Node], wanted: set[int]) -> set[int]:
    needed: set[int] = set()
    for node in order:
        if node.dtype == "f32" and (node.id in wanted or any(n.id in needed for n in node.inputs)):
            needed.add(node.id)
    return needed


class _Again:
    """What the gradient sees of values that are computed again for it (`ops.checkpoint`).

    A region is replayed when the first cotangent reaches it: every node of it once more, on what comes from
    outside of it, which is looked at only after that cotangent is there.
    """

    def __init__(self, graph: Graph, order: Sequence[Node]) -> None:
        self.graph = graph
        self.members: dict[int, list[Node]] = {}
        for node in order:
            for region in graph.regions_of(node):
                self.members.setdefault(region, []).append(node)
        self.made: dict[int, dict[int, Node]] = {}

    def seen(self, reader: Node, value: Node, ct: Tensor) -> Node:
        """`value` as the gradient of `reader` sees it."""
        regions = self.graph.regions_of(reader)
        return self._in(regions, value, ct) if regions else value

    def _in(self, regions: tuple[int, ...], value: Node, ct: Tensor) -> Node:
        made = self.made.get(regions[-1])
        if made is None:
            made = self.made[regions[-1]] = {}
            for node in self.members[regions[-1]]:
                inputs = tuple(self._inside(regions, made, n, ct) for n in node.inputs)
                made[node.id] = node if inputs == node.inputs else self._copy(node, inputs)
        return self._inside(regions, made, value, ct)

    def _inside(self, regions: tuple[int, ...], made: dict[int, Node], value: Node, ct: Tensor) -> Node:
        if value.id not in made:
            outer = self._in(regions[:-1], value, ct) if len(regions) > 1 else value
            kept = not outer.inputs and outer.op.name not in ("input", "state")
            made[value.id] = outer if kept else self._after(outer, ct.node)
        return made[value.id]

    def _after(self, value: Node, ct: Node) -> Node:
        return self.graph.add(REGISTRY["recompute"], (value, ct), {}, value.type)

    def _copy(self, node: Node, inputs: tuple[Node, ...]) -> Node:
        made = self.graph.add(node.op, inputs, node.attrs, node.type)
        for site in self.graph.sites(node):
            self.graph.note_site(made, site)
        return made


def _spread(
    graph: Graph, node: Node, ct: Tensor, needed: set[int], cotangents: dict[int, Tensor], again: _Again
) -> None:
    if not any(n.id in needed for n in node.inputs):
        return
    sites = graph.sites(node)
    before, graph.current_site = graph.current_site, sites[0] if sites else graph.current_site
    try:
        inputs = tuple(graph.tensor(again.seen(node, n, ct)) for n in node.inputs)
        parts = node.op.cotangents(ct, graph.tensor(again.seen(node, node, ct)), inputs, node.attrs)
        for n, part in zip(node.inputs, parts, strict=True):
            if part is None or n.id not in needed:
                continue
            if part.shape != n.shape:
                raise GradientError(
                    f"{node.op.name}: the cotangent of an operand of type {n.type} has type {part.type}"
                )
            known = cotangents.get(n.id)
            cotangents[n.id] = part if known is None else known + part
    finally:
        graph.current_site = before


def _zeros(t: AnyTensor[Any]) -> Tensor:
    zero: Tensor = REGISTRY["full"](shape=tuple(int(n) for n in t.shape), value=0.0, dtype="f32")
    return zero
