"""A graph as text: one line per node, in the order in which it was built.

%0 = input x: f32[B=4, 1]
%1 = parameter l1.w: f32[1, 64]
%2 = matmul(%0, %1): f32[B=4, 64]  sine.py:17
return %2
"""

from __future__ import annotations

from collections.abc import Iterable

from .graph import Graph, Node
from .lowering import Leaf

WORDS = {"param": "parameter", "input": "input", "state": "state", "scalar": "scalar"}


def show(graph: Graph, roots: Iterable[Node] | None = None, *, sites: bool = True) -> str:
    """The nodes that the roots need, numbered anew.

    Args:
        graph: Any graph.
        roots: What is shown; the graph's own roots when omitted.
        sites: Whether to append where each op was called.
    """
    wanted = list(graph.roots() if roots is None else roots)
    numbers: dict[int, int] = {}
    lines: list[str] = []
    for node in graph.reachable(wanted):
        numbers[node.id] = len(numbers)
        lines.append(f"%{numbers[node.id]} = {_call(node, numbers)}: {node.type}{_site(graph, node) if sites else ''}")
    for name, t in graph.captures.items():
        if t.node.id in numbers:
            lines.append(f"capture {name} = %{numbers[t.node.id]}")
    for name, t in graph.updates.items():
        if t.node.id in numbers:
            lines.append(f"update {name} = %{numbers[t.node.id]}")
    lines.append("return " + ", ".join(f"%{numbers[n.id]}" for n in wanted))
    return "\n".join(lines)


def _call(node: Node, numbers: dict[int, int]) -> str:
    if isinstance(node.op.lower, Leaf):
        return f"{WORDS[node.op.name]} {node.name}"
    operands = [f"%{numbers[x.id]}" for x in node.inputs]
    attributes = [f"{k}={v!r}" for k, v in node.attrs.items()]
    return f"{node.op.name}({', '.join([*operands, *attributes])})"


def _site(graph: Graph, node: Node) -> str:
    found = graph.sites(node)
    return f"  {found[0].short}" if found and not isinstance(node.op.lower, Leaf) else ""
