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
    for node in reversed(order):
        ct = cotangents.get(node.id)
        if ct is not None and node.id in needed:
            _spread(graph, node, ct, needed, cotangents)
    return [cotangents[t.node.id] if t.node.id in cotangents else _zeros(t) for t in wrt]


def _between(order: Sequence[Node], wanted: set[int]) -> set[int]:
    needed: set[int] = set()
    for node in order:
        if node.dtype == "f32" and (node.id in wanted or any(n.id in needed for n in node.inputs)):
            needed.add(node.id)
    return needed


def _spread(graph: Graph, node: Node, ct: Tensor, needed: set[int], cotangents: dict[int, Tensor]) -> None:
    if not any(n.id in needed for n in node.inputs):
        return
    sites = graph.sites(node)
    before, graph.current_site = graph.current_site, sites[0] if sites else graph.current_site
    try:
        inputs = tuple(graph.tensor(n) for n in node.inputs)
        parts = node.op.cotangents(ct, graph.tensor(node), inputs, node.attrs)
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
