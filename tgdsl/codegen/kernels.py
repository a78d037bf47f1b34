"""One bundle to one kernel: its text, its bindings, its grid."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence, Set
from typing import TypeAlias

import attrs

from tgdsl.ir import Graph, Node
from tgdsl.schedule import Bundle, Group, Schedule

from .attention import AttentionKernel
from .attention_forward import ForwardKernel
from .attention_gradient import KeyValueGradient, QueryGradient
from .attention_tile import AttentionTile, choose_attention_tile, span_of, vectors_of_attention
from .contract import ContractionKernel
from .direct import DirectKernel
from .emit import Bound, Emitter
from .fold import MAX_GROUPS, FoldKernel, Tile, choose_tile, evened, grid, vectors_of_fold
from .quads import steps_evenly, vectors_of
from .tiled import TiledKernel
from .tiling import WIDTH, Sizes, Tiling, choose_tiling, sizes_of
from .wgsl import identifier

ProblemKey: TypeAlias = str
"""Names a contraction problem: its sizes for people, and a digest of its kernel's text."""

AnyTile: TypeAlias = Tile | Tiling | AttentionTile


_ATTENTION: dict[str, type[AttentionKernel]] = {
    "out": ForwardKernel,
    "lse": ForwardKernel,
    "dq": QueryGradient,
    "dkv": KeyValueGradient,
}


@attrs.frozen
class Draft:
    """A kernel before its storage keys have places.

    Attributes:
        name: After the op and the place.
        header: Comment lines: the graph lines that the kernel computes.
        text: The WGSL without the header; kernels of equal text are one.
        bound: Bindings in order.
        groups: The grid.
    """

    name: str
    header: str
    text: str
    bound: tuple[Bound, ...]
    groups: tuple[int, int, int]


@attrs.frozen
class Plan:
    """What is the same for every kernel of a graph.

    Attributes:
        graph: For sites.
        schedule: For which nodes kernels compute.
        keys: Storage key of each node that lies in memory.
        names: Names of storage keys for people.
        stores: Storage keys that each member is written to.
        scalars: Position of each scalar in the table.
        unproven: Gets the gathers whose indices may leave their table.
        software: Whether barriers are dear.
        halves: Storage keys that hold f16.
        tilings: Tilings that were found by timing; the heuristic decides about other problems.
    """

    graph: Graph
    schedule: Schedule
    keys: Mapping[int, str]
    names: Mapping[str, str]
    stores: Mapping[int, list[str]]
    scalars: Mapping[str, int]
    unproven: list[Node]
    software: bool
    halves: Set[str] = frozenset()
    tilings: Mapping[ProblemKey, Tiling] = attrs.field(factory=dict)
    _tiles: dict[tuple[int, int | None], AnyTile] = attrs.field(factory=dict, init=False)
    _sizes: dict[int, Sizes] = attrs.field(factory=dict, init=False)
    _problems: dict[int, ProblemKey] = attrs.field(factory=dict, init=False)

    def tile(self, group: Group, threads: int | None = None) -> AnyTile:
        """How a group covers its work, with workgroups of that size if one is given."""
        found = self._tiles.get((group.id, threads))
        if found is None:
            found = self._tiles[group.id, threads] = self._choose(group, threads)
        return found

    def _choose(self, group: Group, threads: int | None) -> AnyTile:
        if group.kind == "attention":
            return choose_attention_tile(span_of(group), threads)
        if group.kind == "contraction":
            usual = choose_tiling(self.sizes(group), software=self.software, threads=threads)
            tuned = self.tilings.get(self.problem(group), usual) if self.tilings else usual
            return tuned if tuned.threads == usual.threads else usual
        return evened(group, choose_tile(group, software=self.software, threads=threads), self.schedule.computed)

    def sizes(self, group: Group) -> Sizes:
        """The sizes of a contraction group."""
        if group.id not in self._sizes:
            self._sizes[group.id] = sizes_of(group.anchor, self.schedule.computed)
        return self._sizes[group.id]

    def problem(self, group: Group) -> ProblemKey:
        """What contraction groups have in common that are fastest with the same tiling: sizes and kernel text."""
        if group.id not in self._problems:
            s = self.sizes(group)
            digest = hashlib.sha256(self.alone(group).text.encode()).hexdigest()[:16]
            self._problems[group.id] = f"{s.b}x{s.m}x{s.n}x{s.k}:{digest}"
        return self._problems[group.id]

    def alone(self, group: Group, tiling: Tiling | None = None) -> Draft:
        """The kernel of a contraction group by itself, in a given or the heuristic's tiling, and without names."""
        plain = attrs.evolve(self, names=dict.fromkeys(self.names, "x"), unproven=[], tilings={})
        if tiling is not None:
            plain._tiles[group.id, None] = tiling
        return draft(plain, Bundle((group,)))


@attrs.frozen
class _Body:
    """The text of one group inside of a kernel."""

    lines: list[str]
    shared: list[str]


def draft(plan: Plan, bundle: Bundle) -> Draft:
    """Write the kernel of `bundle`."""
    groups = bundle.groups
    threads = _common_threads(plan, groups) if len(groups) > 1 else None
    tiles = [plan.tile(g, threads) for g in groups]
    counts = [_workgroups(plan, g, tile) for g, tile in zip(groups, tiles, strict=True)]
    total = sum(counts)
    below = plan.graph.facts.get("below", {})
    vectors = {key for g, t in zip(groups, tiles, strict=True) for key in _vector_keys(plan, g, t)}
    emitter = Emitter(plan.keys, plan.names, set(), plan.scalars, below, plan.unproven, vectors, plan.halves)
    bodies = [
        _body(plan, g, tile, emitter.beside({n.id for n in g.members}), past=total > MAX_GROUPS and i == len(groups))
        for i, (g, tile) in enumerate(zip(groups, tiles, strict=True), 1)
    ]
    bound = tuple(emitter.bound.values())
    lines = _branches(bodies, counts, groups, grid(total)[0] if total > MAX_GROUPS else 0)
    text = _module(emitter, bound, _merged([b.shared for b in bodies]), tiles[0].threads, lines)
    header = "".join(_header(plan.graph, g) for g in groups)
    return Draft(_name(plan.graph, groups), header, text, bound, grid(total))


def _common_threads(plan: Plan, groups: Sequence[Group]) -> int:
    """A size of workgroups for all: what the contractions want, because folds adapt easily."""
    kinds = [g for g in groups if g.kind != "fold"] or groups
    most = max(plan.tile(g).threads for g in kinds)
    return next(n for n in (64, 128, 256) if n >= most or n == 256)


def _vector_keys(plan: Plan, group: Group, tile: AnyTile) -> set[str]:
    """Storage keys that the kernel accesses by vectors of four."""
    computed, stores = plan.schedule.computed, plan.stores
    if isinstance(tile, Tiling):
        found = vectors_of(group, plan.sizes(group), tile, computed, stores)
    elif isinstance(tile, AttentionTile):
        found = vectors_of_attention(group, computed)
    else:
        found = vectors_of_fold(group, tile, computed, stores)
    return {key for i in found for key in plan.stores.get(i, [plan.keys.get(i, "")])}


def _workgroups(plan: Plan, group: Group, tile: AnyTile) -> int:
    if isinstance(tile, Tiling):
        return tile.workgroups(plan.sizes(group))
    if isinstance(tile, AttentionTile):
        return tile.workgroups(span_of(group))
    return -(-group.rows // tile.covered)


def _body(plan: Plan, group: Group, tile: AnyTile, emitter: Emitter, *, past: bool) -> _Body:
    kernel: ContractionKernel | FoldKernel | AttentionKernel
    if isinstance(tile, Tiling):
        kind = TiledKernel if tile.bk else DirectKernel
        sizes = plan.sizes(group)
        even = tile.tn % WIDTH == 0 and steps_evenly(group, "n", sizes.n, lambda n: n.id in plan.schedule.computed)
        kernel = kind(group, sizes, tile, emitter, plan.stores, even=even, past=past)
    elif isinstance(tile, AttentionTile):
        kernel = _ATTENTION[span_of(group).role](group, tile, emitter, plan.stores, past=past)
    else:
        kernel = FoldKernel(group, tile, emitter, plan.stores, plan.schedule.computed, past=past)
    kernel.body()
    return _Body(emitter.scopes[0].lines, kernel.shared)


def _branches(bodies: Sequence[_Body], counts: Sequence[int], groups: Sequence[Group], row: int) -> list[str]:
    """One body as it is; several under conditions on the workgroup's number, which all its threads share."""
    number = f"i32(wg.x + wg.y * {row}u)" if row else "i32(wg.x)"
    if len(bodies) == 1:
        return [f"let group = {number};", *bodies[0].lines]
    lines = [f"let workgroup = {number};"]
    first = 0
    for i, (body, count, group) in enumerate(zip(bodies, counts, groups, strict=True)):
        condition = f"if (workgroup < {first + count}) " if i < len(bodies) - 1 else ""
        lines.append(f"{'} else ' if i else ''}{condition}{{  // {group.members[0].op.name}")
        lines.append(f"  let group = workgroup{f' - {first}' if first else ''};")
        lines += ["  " + text for text in body.lines]
        first += count
    return [*lines, "}"]


_SHARED = re.compile(r"var<workgroup> (\w+): array<(.+), (\d+)>;")


def _merged(declarations: Sequence[Sequence[str]]) -> list[str]:
    """Workgroup memory of bodies of which a workgroup runs only one: arrays of one name are one."""
    found: dict[tuple[str, str], int] = {}
    for text in (d for body in declarations for d in body):
        match = _SHARED.fullmatch(text)
        assert match is not None, text
        name, kind, size = match.groups()
        found[name, kind] = max(found.get((name, kind), 0), int(size))
    return [f"var<workgroup> {name}: array<{kind}, {size}>;" for (name, kind), size in found.items()]


def _module(emitter: Emitter, bound: Sequence[Bound], shared: Sequence[str], threads: int, body: Sequence[str]) -> str:
    lines = ["enable f16;"] if any("f16" in b.dtype for b in bound) else []
    for i, b in enumerate(bound):
        mode = "read_write" if b.written else "read"
        lines.append(f"@group(0) @binding({i}) var<storage, {mode}> {b.name}: array<{b.dtype}>;")
    lines += shared
    lines += [helper.strip() for helper in emitter.helpers]
    lines.append(f"@compute @workgroup_size({threads})")
    lines.append("fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {")
    lines += ["  " + text for text in body]
    lines.append("}")
    return "\n".join(lines) + "\n"


def _name(graph: Graph, groups: Sequence[Group]) -> str:
    """After the largest op of the first body, and how many others stand beside it."""
    group = groups[0]
    main = max(group.members, key=lambda n: n.inputs[0].type.size if n.inputs else 0)
    if group.kind != "fold":
        main = group.anchor
    sites = graph.sites(main)
    more = f"_and_{len(groups) - 1}_more" if len(groups) > 1 else ""
    return identifier((f"{main.op.name}_{sites[0].short}" if sites else main.op.name) + more, set())


def _header(graph: Graph, group: Group) -> str:
    return "".join(f"// {_graph_line(graph, n)}\n" for n in group.members)


def _graph_line(graph: Graph, node: Node) -> str:
    operands = ", ".join(graph.origin(x) if not x.inputs else f"%{x.id}" for x in node.inputs)
    sites = graph.sites(node)
    place = f"  {sites[0].short}" if sites else ""
    return f"%{node.id} = {node.op.name}({operands}): {node.type}{place}"
