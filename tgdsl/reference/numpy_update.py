"""The optimizer on NumPy: an element-wise rule over arenas, which is computed slab by slab."""

from __future__ import annotations

from collections.abc import Mapping

from tgdsl.ir import Graph, Node
from tgdsl.ops.leaves import leaves

from .numpy_compile import Calls, compile_calls
from .numpy_pool import Array


def compile_update(graph: Graph, arenas: Mapping[str, Array], scalars: Mapping[str, Array]) -> Calls:
    """Bind the calls of an update graph to its arenas, shaped as its leaves."""
    states = leaves(graph, "state")
    updates = [(t.node, arenas[n], states[n]) for n, t in graph.updates.items()]

    def leaf(node: Node) -> Array:
        return (scalars if node.op.name == "scalar" else arenas)[node.attrs["name"]]

    return compile_calls([], leaf, (), updates)
