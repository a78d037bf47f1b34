"""Check a finished graph: every type is what its op's rule says, every operand comes first."""

from __future__ import annotations

from tgdsl.errors import LoweringError

from .graph import Graph, tracing


def verify(graph: Graph) -> None:
    """Run every type rule again.

    Raises:
        LoweringError: If a node's type is not what its rule gives, an operand is younger
            than its node, or a root belongs to another graph.
    """
    for position, node in enumerate(graph.nodes):
        if node.id != position:
            raise LoweringError(f"verify: node {position} has the id {node.id}")
        if any(x.id >= node.id or graph.nodes[x.id] is not x for x in node.inputs):
            raise LoweringError(f"verify: an operand of {node!r} does not come before it")
    for root in graph.roots():
        if graph.nodes[root.id] is not root:
            raise LoweringError(f"verify: the root {root!r} belongs to another graph")
    scratch = Graph()
    with tracing(scratch):
        for node in graph.nodes:
            inputs = tuple(graph.tensor(x) for x in node.inputs)
            wanted = node.op.infer(inputs, node.attrs)
            if (wanted.shape, wanted.dtype) != (node.shape, node.dtype):
                raise LoweringError(f"verify: {node!r} should have type {wanted}")
