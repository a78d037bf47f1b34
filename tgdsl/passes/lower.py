"""Rewrite a graph into primitives: decompositions are expanded, trivial ops disappear.

The result is a fresh graph, so the traced one stays what the user wrote; call sites
are carried over, and hash-consing merges what a forward and its gradient share.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from tgdsl.ir import Decompose, Graph, Node

from .fold import simplify
from .rebuild import rebuild


def lower(graph: Graph, roots: Sequence[Node], *, keep: Container[str] = ()) -> tuple[Graph, list[Node]]:
    """Expand until only primitives are left.

    Args:
        graph: Any graph.
        roots: The nodes wanted.
        keep: Names of ops that stay as they are.

    Returns:
        A new graph and the nodes that stand for `roots`, in order.
    """
    wanted = list(roots)
    while True:
        graph, wanted = _round(graph, wanted, keep)
        if not any(_expands(n, keep) for n in graph.reachable(wanted)):
            return _round(graph, wanted, keep)


def _expands(node: Node, keep: Container[str]) -> bool:
    return isinstance(node.op.lower, Decompose) and node.op.name not in keep


def _round(old: Graph, roots: Sequence[Node], keep: Container[str]) -> tuple[Graph, list[Node]]:
    return rebuild(old, roots, lambda new, node, inputs: _one(new, node, inputs, keep))


def _one(new: Graph, node: Node, inputs: tuple[Node, ...], keep: Container[str]) -> Node:
    lowering = node.op.lower
    if isinstance(lowering, Decompose) and node.op.name not in keep:
        made: Any = lowering.fn(*(new.tensor(n) for n in inputs), **node.attrs)
        out: Node = made.node
        if out.shape != node.shape or out.dtype != node.dtype:
            msg = f"{node.op.name}: its decomposition has type {out.type}, not {node.type}"
            raise TypeError(msg)
        return out
    return simplify(new, node.op, inputs, node.attrs, node.type)
