"""Partition a graph of primitives into kernels.

Nodes are placed in topological order: into a kernel that computes something they read,
else into one of the same iteration that reads the same values, else into one of their own. A
placement is legal when the kernels stay acyclic and within the binding limit. The limit
is first counted optimistically (values used only inside a kernel are not stored, and
later nodes are not placed yet); where it turns out wrong the last joint is forbidden and
the partition made again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs

from tgdsl.errors import LoweringError
from tgdsl.ir import Attention, Contraction, Graph, Leaf, Node, Reduction

from .access import bases
from .classify import computed_nodes
from .group import Group, are_partners, place, start, widen


@attrs.frozen
class Schedule:
    """Kernels in an order in which they may run.

    Attributes:
        groups: The kernels.
        stored: Ids of computed nodes whose values leave their kernel.
        computed: Ids of all computed nodes.
        home: For each computed node id, its group.
        used: For each group's id, what it binds.
    """

    groups: list[Group]
    stored: set[int]
    computed: set[int]
    home: Mapping[int, Group]
    used: Mapping[int, frozenset[str]]


def partition(
    graph: Graph, roots: Sequence[Node], *, max_bindings: int, ties: Mapping[int, int] | None = None
) -> Schedule:
    """Make kernels that compute `roots`.

    Args:
        graph: A graph of primitives.
        roots: Nodes whose values must be stored.
        max_bindings: The most storage buffers that a kernel may bind.
        ties: For a root that replaces a leaf in place, the leaf's id: whoever reads the
            leaf must run before the root is stored.
    """
    roots = [r for r in dict.fromkeys(roots) if not isinstance(r.op.lower, Leaf)]
    computed = computed_nodes(graph, roots, max_bindings)
    forbidden: set[tuple[int, int]] = set()
    for _ in range(400):
        maker = _Partition(graph, roots, computed, max_bindings, ties or {}, forbidden)
        schedule = maker.run()
        excess = maker.excess(schedule)
        if excess is None:
            return schedule
        forbidden.add(excess)
    raise LoweringError("partition: no schedule within the binding limit was found")


class _Partition:
    def __init__(
        self,
        graph: Graph,
        roots: Sequence[Node],
        computed: set[int],
        max_bindings: int,
        ties: Mapping[int, int],
        forbidden: set[tuple[int, int]],
    ) -> None:
        self.nodes = [n for n in graph.reachable(roots) if n.id in computed]
        self.roots = {n.id for n in roots}
        self.computed = computed
        self.max_bindings = max_bindings
        self.ties = ties
        self.forbidden = forbidden
        self.groups: dict[int, Group] = {}
        self.home: dict[int, int] = {}
        self.after: dict[int, set[int]] = {}
        self.reads = {n.id: bases(n, self.is_base) for n in self.nodes}
        self.waits = {n.id: bases(n, self.is_base, lambda x: x.inputs) for n in self.nodes}
        self.readers: dict[int, list[Node]] = {}
        for n in self.nodes:
            for base in self.reads[n.id]:
                self.readers.setdefault(base.id, []).append(n)

    def is_base(self, node: Node) -> bool:
        return node.id in self.computed

    def run(self) -> Schedule:
        for node in self.nodes:
            self._place(node)
        stored = {n.id for n in self.nodes if self._is_stored(n)}
        home = {i: self.groups[g] for i, g in self.home.items()}
        used = {g.id: self._used(g, final=True) for g in self.groups.values()}
        return Schedule(self._ordered(), stored, self.computed, home, used)

    def _place(self, node: Node) -> None:
        needed = self._needed(node)
        for group_id in self._promising(node):
            if (node.id, group_id) in self.forbidden or not self._acyclic(group_id, needed):
                continue
            group = self._joined(self.groups[group_id], node)
            if group is not None and len(self._used(group)) <= self.max_bindings:
                self.groups[group_id] = group
                self._link(group_id, needed - {group_id})
                self.home[node.id] = group_id
                return
        # A group is named after the node that starts it, so that `forbidden` keeps its meaning.
        self.groups[node.id] = start(node.id, node)
        self.home[node.id] = node.id
        self._link(node.id, needed)

    def _needed(self, node: Node) -> set[int]:
        needed = {self.home[b.id] for b in self.waits[node.id] if b.id in self.home}
        tied = self.ties.get(node.id)
        if tied is not None:
            needed |= {self.home[n.id] for n in self.readers.get(tied, []) if n.id in self.home}
        return needed

    def _promising(self, node: Node) -> list[int]:
        """Groups worth trying: those it reads from, newest first, then those that read the same."""
        own = self.reads[node.id]
        vertical = sorted({self.home[b.id] for b in own if b.id in self.home}, reverse=True)
        if isinstance(node.op.lower, Contraction):
            return []
        if isinstance(node.op.lower, Attention):
            return [g.id for g in self.groups.values() if are_partners(g.anchor, node)]
        found = dict.fromkeys(vertical)
        for base in own:
            for other in self.readers.get(base.id, []):
                if other.id in self.home and base.type.size * 4 >= node.type.size:
                    found.setdefault(self.home[other.id])
        return list(found)

    def _joined(self, group: Group, node: Node) -> Group | None:
        placed = place(group, node, self.is_base)
        if placed is None:
            return widen(group, node, self.is_base) if isinstance(node.op.lower, Reduction) else None
        new = attrs.evolve(group, members=[*group.members, node], own={**group.own, node.id: placed[0]})
        if placed[1] is not None:
            new.operand = {**group.operand, node.id: placed[1]}
        return new

    def _acyclic(self, group_id: int, needed: set[int]) -> bool:
        """Whether no group that the node needs has to run after the group it would join."""
        return all(g == group_id or group_id not in self.groups[g].before for g in needed)

    def _link(self, group_id: int, needed: set[int]) -> None:
        new = set(needed)
        for g in needed:
            new |= self.groups[g].before
        new.discard(group_id)
        for other in self.groups.values():
            if other.id == group_id or group_id in other.before:
                other.before = other.before | new

    def _is_stored(self, node: Node) -> bool:
        home = self.home.get(node.id)
        return node.id in self.roots or any(self.home.get(n.id) != home for n in self.readers.get(node.id, []))

    def _used(self, group: Group, *, final: bool = False) -> frozenset[str]:
        mine = {n.id for n in group.members}
        used: set[str] = set()
        for n in group.members:
            for base in self.reads[n.id]:
                if base.id not in mine:
                    used.add("scalars" if base.op.name == "scalar" else f"%{base.id}")
            if self._surely_stored(n, mine, final=final):
                tied = self.ties.get(n.id)
                used.add(f"%{n.id}" if tied is None else f"%{tied}")
        return frozenset(used)

    def _surely_stored(self, node: Node, mine: set[int], *, final: bool) -> bool:
        if node.id in self.roots:
            return True
        for reader in self.readers.get(node.id, []):
            if reader.id in mine:
                continue
            if final or reader.id in self.home or isinstance(reader.op.lower, (Attention, Contraction)):
                return True
        return False

    def excess(self, schedule: Schedule) -> tuple[int, int] | None:
        """The last joint of a group that binds too much after all, or None."""
        for group in schedule.groups:
            if len(schedule.used[group.id]) <= self.max_bindings:
                continue
            if len(group.members) == 1:
                raise LoweringError(f"{group.members[0].op.name}: reads more values than a kernel can bind")
            return group.members[-1].id, group.id
        return None

    def _ordered(self) -> list[Group]:
        out: list[Group] = []
        done: set[int] = set()
        rank: Callable[[Group], int] = lambda g: g.members[0].id  # noqa: E731
        waiting = sorted(self.groups.values(), key=rank)
        while waiting:
            ready = next((g for g in waiting if g.before <= done), None)
            if ready is None:
                raise LoweringError("partition: the kernels form a cycle")
            waiting.remove(ready)
            done.add(ready.id)
            out.append(ready)
        return out
