"""Which nodes kernels compute, and which are recomputed inside their consumers.

Folds and contractions are always computed once. An element-wise value is stored (or kept
in a kernel) when several consumers would repeat dear work, when a contraction would
repeat it for every tile, or when a broadcast would repeat it along an axis.
"""

from __future__ import annotations

from collections.abc import Sequence

from tgdsl.ir import Contraction, Gather, Graph, Leaf, Node, Pointwise, Reduction, View

from .access import bases

DEAR = 8
"""Cost of one transcendental function."""


def computed_nodes(graph: Graph, roots: Sequence[Node], max_bindings: int) -> set[int]:
    """Ids of the nodes that get a place in some kernel, which may bind so many values."""
    nodes = graph.reachable(roots)
    chosen = {n.id for n in nodes if isinstance(n.op.lower, (Reduction, Contraction))}
    chosen |= {n.id for n in roots}
    users = _consumers(nodes)
    for node in nodes:
        open_ = node.id not in chosen and isinstance(node.op.lower, Pointwise) and node.inputs
        if open_ and _worth_storing(node, users.get(node.id, []), chosen):
            chosen.add(node.id)
        if isinstance(node.op.lower, Gather) and not isinstance(node.inputs[0].op.lower, Leaf):
            chosen.add(node.inputs[0].id)
    _limit_reads(nodes, chosen, max_bindings - 1)
    return chosen


def _consumers(nodes: Sequence[Node]) -> dict[int, list[tuple[Node, int]]]:
    """For each node, its consumers seen through views: `(consumer, elements it looks at)`."""
    users: dict[int, list[tuple[Node, int]]] = {}
    for node in reversed(nodes):
        for x in dict.fromkeys(node.inputs):
            mine = users.setdefault(x.id, [])
            if isinstance(node.op.lower, View):
                mine.extend((user, max(size, node.type.size)) for user, size in users.get(node.id, []))
            else:
                mine.append((node, node.type.size if isinstance(node.op.lower, Pointwise) else x.type.size))
    return users


def _worth_storing(node: Node, users: Sequence[tuple[Node, int]], chosen: set[int]) -> bool:
    cost, loads = _work(node, chosen)
    distinct = {user.id for user, _ in users}
    if len(distinct) > 1 and (cost >= DEAR or loads >= 2):
        return True
    if any(isinstance(user.op.lower, Contraction) for user, _ in users) and (cost >= DEAR or loads >= 3):
        return True
    stretched = max((size for _, size in users), default=0)
    return cost >= DEAR // 2 and stretched >= 2 * node.type.size


def _work(node: Node, chosen: set[int]) -> tuple[int, int]:
    """Cost and loads per element of recomputing `node` from what is stored."""
    cost, loads = 0, 0
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
            continue
        if isinstance(lowering, Pointwise):
            cost += lowering.cost
        stack.extend(x.inputs)
    return cost, loads


def _limit_reads(nodes: Sequence[Node], chosen: set[int], most: int) -> None:
    """Store parts of an expression that would read more values than a kernel can bind."""
    for node in nodes:
        if node.id not in chosen:
            continue
        while len(_storage(bases(node, lambda n: n.id in chosen))) > most:
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
    stack = list(node.inputs)
    while stack:
        x = stack.pop()
        if x.id in seen or x.id in chosen or isinstance(x.op.lower, Leaf):
            continue
        seen.add(x.id)
        stack.extend(x.inputs)
        reads = len(_storage(bases(x, lambda n: n.id in chosen)))
        if isinstance(x.op.lower, Pointwise) and most < reads <= limit:
            best, most = x, reads
    return best
