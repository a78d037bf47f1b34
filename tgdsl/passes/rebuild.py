"""The frame of every pass: a fresh graph, node by node, with call sites and leaves carried over."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tgdsl.ir import Graph, Node, tracing


def rebuild(
    old: Graph, roots: Sequence[Node], one: Callable[[Graph, Node, tuple[Node, ...]], Node]
) -> tuple[Graph, list[Node]]:
    """Rebuild what `roots` need.

    Args:
        old: Any graph; it stays as it is.
        roots: The nodes wanted.
        one: Gets the new graph, a node of the old one and its new operands; returns the node that replaces it.

    Returns:
        The new graph and the nodes that stand for `roots`, in order.
    """
    new = Graph(facts=old.facts)
    known: dict[int, Node] = {}
    with tracing(new):
        for node in old.reachable(roots):
            sites = old.sites(node)
            new.current_site = sites[0] if sites else None
            with new.within(old.regions_of(node)):
                known[node.id] = one(new, node, tuple(known[n.id] for n in node.inputs))
            for site in sites:
                new.note_site(known[node.id], site)
    new.current_site = None
    new.leaves = {key: known[n.id] for key, n in old.leaves.items() if n.id in known}
    return new, [known[n.id] for n in roots]
