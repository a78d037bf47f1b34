"""Rewrite a graph into primitives: decompositions are expanded, trivial ops disappear.

The result is a fresh graph, so the traced one stays what the user wrote; call sites
are carried over, and hash-consing merges what a forward and its gradient share.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

import attrs

from tgdsl.ir import Attention, Decompose, Graph, Node

from .fold import simplify
from .rebuild import rebuild


def lower(
    graph: Graph, roots: Sequence[Node], *, keep: Container[str] = (), fused: Callable[[Node], bool] = lambda _: False
) -> tuple[Graph, list[Node]]:
    """Expand until only primitives are left.

    Args:
        graph: Any graph.
        roots: The nodes wanted.
        keep: Names of ops that stay as they are.
        fused: Whether the target has kernels for this part of an attention, which then stays a unit.

    Returns:
        A new graph and the nodes that stand for `roots`, in order.
    """
    wanted = list(roots)
    expansion = _Expansion(keep, fused)
    while True:
        graph, wanted = rebuild(graph, wanted, expansion.one)
        if not any(expansion.of(n) for n in graph.reachable(wanted)):
            return rebuild(graph, wanted, expansion.one)


@attrs.frozen
class _Expansion:
    keep: Container[str]
    fused: Callable[[Node], bool]

    def of(self, node: Node) -> Callable[..., Any] | None:
        """What makes a node from other ops; None if it stays."""
        lowering = node.op.lower
        if isinstance(lowering, Attention):
            return None if self.fused(node) else lowering.fn
        if not isinstance(lowering, Decompose) or node.op.name in self.keep:
            return None
        return lowering.fused if lowering.fused is not None and self.fused(node) else lowering.fn

    def one(self, new: Graph, node: Node, inputs: tuple[Node, ...]) -> Node:
        """The node of the new graph that stands for `node`."""
        parts = self.of(node)
        if parts is None:
            return simplify(new, node.op, inputs, node.attrs, node.type)
        made: Any = parts(*(new.tensor(n) for n in inputs), **node.attrs)
        out: Node = made.node
        if out.shape != node.shape or out.dtype != node.dtype:
            msg = f"{node.op.name}: its decomposition has type {out.type}, not {node.type}"
            raise TypeError(msg)
        return out
