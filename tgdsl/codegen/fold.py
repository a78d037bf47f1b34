"""Kernels of fold groups: element-wise work and reductions over rows.

One template serves all of them. A workgroup takes `rows` rows with `lanes` threads
each; a thread walks its row in steps of `lanes`, and lanes combine through workgroup
memory. Element-wise kernels are the case of one lane and no walk; column sums put
neighbouring rows on neighbouring threads, so that their loads still coalesce. Each phase is
one walk: it folds every reduction whose operands earlier phases have made known, and
stores the elements known by then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import attrs

from tgdsl.ir import Node, Reduction
from tgdsl.ir.index import Index, index, var
from tgdsl.schedule.access import Ix, reads, reads_of
from tgdsl.schedule.group import Group

from .emit import Emitter
from .quads import steps_evenly, vectors_along
from .tiling import power
from .wgsl import INFINITY

Sums: TypeAlias = dict[int, list[str]]
"""For each reduction's id, the names of its accumulators: one per row of a thread."""

MAX_GROUPS = 65535
"""Workgroups per grid dimension that every adapter allows."""

NEUTRAL: dict[tuple[str, str], str] = {
    ("sum", "f32"): "0.0f",
    ("sum", "i32"): "0",
    ("prod", "f32"): "1.0f",
    ("prod", "i32"): "1",
    ("max", "f32"): "(-inf())",
    ("min", "f32"): "inf()",
    ("max", "i32"): "i32(-2147483648)",
    ("min", "i32"): "2147483647",
}
COMBINE = {"sum": "{a} + {b}", "prod": "{a} * {b}", "max": "max({a}, {b})", "min": "min({a}, {b})"}


MOST_TERMS = 256
"""Terms that one thread adds up in a single running sum."""

BLOCK_TERMS = 64
"""Terms per block of a longer sum."""


@attrs.frozen
class Tile:
    """How a workgroup covers a fold kernel.

    Attributes:
        rows: Rows that are worked on at a time.
        lanes: Threads per row.
        cells: Neighbouring rows per thread, 1 or 4: where rows lie side by side, one load fetches four.
        terms: Neighbouring terms per thread, 1 or 4: where the terms of a row do.
        repeats: How often a workgroup of an element-wise kernel does this.
    """

    rows: int
    lanes: int
    cells: int = 1
    terms: int = 1
    repeats: int = 1

    @property
    def threads(self) -> int:
        """Invocations per workgroup."""
        return self.rows * self.lanes

    @property
    def covered(self) -> int:
        """Rows per workgroup."""
        return self.rows * self.cells * self.repeats


def choose_tile(group: Group, *, software: bool, threads: int | None = None) -> Tile:
    """Few lanes where rows give enough parallelism, many where they do not.

    Args:
        group: A fold group.
        software: Whether barriers are dear.
        threads: How many invocations the workgroup has, if that is given.
    """
    tile = _natural_tile(group, software=software)
    if threads is None or tile.threads == threads:
        return tile
    lanes = min(tile.lanes, threads)
    return attrs.evolve(tile, rows=threads // lanes, lanes=lanes)


def _natural_tile(group: Group, *, software: bool) -> Tile:
    rows, fold = group.rows, group.fold
    if fold == 1:
        return _elementwise(rows, software=software)
    if software:
        # Barriers are dear on a CPU, so a row stays with one thread unless there are hardly any rows.
        return Tile(min(64, power(rows)), 1) if rows >= 8 else Tile(1, min(64, power(fold)))
    if fold <= 8:
        return Tile(128, 1)
    if group.fold_is_last:
        terms = 4 if fold % 4 == 0 and fold >= 32 else 1
        lanes = min(256, max(8, power(fold // terms)))
        if rows >= 4096 and fold > 64 * terms:
            lanes = max(32, lanes // 2)
        return Tile(max(1, min(64 // lanes, rows)), lanes, terms=terms)
    cells = 4 if rows % 4 == 0 and rows >= 1024 else 1
    across = min(32, power(rows // cells)) if rows * 32 >= 65536 else min(16, power(rows // cells))
    return Tile(across, min(256 // across, power(fold)), cells=cells)


def _elementwise(rows: int, *, software: bool) -> Tile:
    threads = 64 if software or rows < 16384 else 256
    cells = 4 if rows % 4 == 0 and rows >= 65536 else 1
    repeats = next(n for n in (4, 2, 1) if n == 1 or rows >= 2048 * threads * cells * n)
    return Tile(threads, 1, cells=cells, repeats=repeats)


def _combine_of(node: Node) -> str:
    """How a reduction combines two terms."""
    lowering = node.op.lower
    assert isinstance(lowering, Reduction)
    return lowering.combine


def grid(count: int) -> tuple[int, int, int]:
    """Workgroups in x and y; beyond the limit of one dimension they fold into y."""
    return (count, 1, 1) if count <= MAX_GROUPS else (MAX_GROUPS, -(-count // MAX_GROUPS), 1)


def phases_of(group: Group, computed: set[int]) -> dict[int, int]:
    """For each member, how many walks must be over before it is known."""
    phase: dict[int, int] = {}
    is_base = lambda n: n.id in computed  # noqa: E731
    for node in group.members:
        fold = isinstance(node.op.lower, Reduction)
        if fold:
            below = reads_of(node.inputs[0], group.operand[node.id], is_base)
        else:
            below = reads(node, group.own[node.id], is_base)
        need = max((phase[b.id] for b, _ in below if b.id in phase), default=0)
        phase[node.id] = need + 1 if fold else need
    return phase


class FoldKernel:
    """Writes the body of one fold group."""

    def __init__(
        self,
        group: Group,
        tile: Tile,
        emitter: Emitter,
        stores: Mapping[int, list[str]],
        computed: set[int],
        *,
        past: bool = False,
    ) -> None:
        """The text may use the workgroup's number as `group`; if `past`, some lie past the last one."""
        self.group, self.tile, self.emit, self.stores = group, tile, emitter, stores
        self.phase = phases_of(group, computed)
        self.shared: list[str] = []
        self.guarded = group.rows % tile.covered != 0 or past

    def body(self) -> None:
        """Emit everything between the braces of `main`."""
        e, tile = self.emit, self.tile
        e.line("let lane_id = i32(lid);")
        self.lane = "0" if tile.lanes == 1 else "lane_id" if tile.rows == 1 else self._split(rows=False)
        if tile.lanes > 1:
            e.line(f"let lane = {self.lane};")
            self.lane = "lane"
        if tile.repeats > 1:
            e.open()
        self._rows()
        for k in range(max(self.phase.values(), default=0) + 1):
            self._walk(k)
        self._store_rows()
        if tile.repeats > 1:
            e.close(f"for (var again = 0; again < {tile.repeats}; again++)")

    def _rows(self) -> None:
        """The rows of a thread, all of them in range, and when they are real."""
        e, tile, rows = self.emit, self.tile, self.group.rows
        across = "lane_id" if tile.lanes == 1 else "0" if tile.rows == 1 else self._split(rows=True)
        self.cells: list[Index] = [index(0)]
        self.live: str | None = None if across == "0" and not self.guarded else f"{across} == 0 && group == 0"
        if rows > 1:
            first = "group" if tile.repeats == 1 else f"(group * {tile.repeats} + again)"
            name, count = ("p", rows) if tile.cells == 1 else ("p4", rows // tile.cells)
            place = f"{first} * {tile.rows} + {across}" if tile.rows > 1 else first
            if self.guarded:
                e.line(f"let {name}_any = {place};")
                place = f"min({name}_any, {count - 1})"
            e.line(f"let {name} = {place};")
            e.variable(name)
            at = var(name, count)
            self.cells = [at] if tile.cells == 1 else [at * tile.cells + i for i in range(tile.cells)]
            self.live = f"{name}_any < {count}" if self.guarded else None
        self.terms: list[Index] = [index(0)]

    def _split(self, *, rows: bool) -> str:
        # Neighbouring threads go to neighbouring memory: along the fold, or along the rows.
        tile = self.tile
        if self.group.fold_is_last:
            return f"(lane_id / {tile.lanes})" if rows else f"(lane_id % {tile.lanes})"
        return f"(lane_id % {tile.rows})" if rows else f"(lane_id / {tile.rows})"

    # -- walks --------------------------------------------------------------

    def _walk(self, k: int) -> None:
        folds = [n for n in self.group.members if isinstance(n.op.lower, Reduction) and self.phase[n.id] == k + 1]
        kept = [
            n for n in self.group.members if self._is_element(n) and self.phase[n.id] == k and self.stores.get(n.id)
        ]
        if not folds and not kept:
            return
        sums = {n.id: [self._accumulator(n) for _ in self.cells] for n in folds}
        if self.group.fold == 1:
            self._visit(folds, kept, sums)
        elif self.group.fold > MOST_TERMS * self.tile.lanes * self.tile.terms and folds:
            self._visit_in_blocks(folds, kept, sums)
        else:
            self._loop(folds, kept, sums, "0", self.group.fold // self.tile.terms)
        self._combine(folds, sums)

    def _loop(self, folds: list[Node], kept: list[Node], sums: Sums, first: str, end: object) -> None:
        """Walk terms, or runs of terms, from `first` to `end`."""
        e, tile = self.emit, self.tile
        name = "r" if tile.terms == 1 else "r4"
        e.open()
        e.variable(name)
        at = var(name, self.group.fold // tile.terms)
        self.terms = [at] if tile.terms == 1 else [at * tile.terms + i for i in range(tile.terms)]
        self._visit(folds, kept, sums)
        self.terms = [index(0)]
        start = self.lane if first == "0" else f"{first} + {self.lane}"
        e.close(f"for (var {name} = {start}; {name} < {end}; {name} += {tile.lanes})")

    def _visit_in_blocks(self, folds: list[Node], kept: list[Node], sums: Sums) -> None:
        """A long walk in two levels: the rounding errors of one long running sum would add up."""
        e, step = self.emit, self.tile.lanes
        count = self.group.fold // self.tile.terms
        e.open()
        e.variable("r_block")
        parts: Sums = {}
        for node in folds:
            parts[node.id] = [e.name(f"part_{node.op.name}") for _ in self.cells]
            for part in parts[node.id]:
                e.line(f"var {part} = {NEUTRAL[_combine_of(node), node.dtype]};")
        self._loop(folds, kept, parts, "r_block", f"min({count}, r_block + {BLOCK_TERMS * step})")
        for node in folds:
            for total, part in zip(sums[node.id], parts[node.id], strict=True):
                e.line(f"{total} = {COMBINE[_combine_of(node)].format(a=total, b=part)};")
        e.close(f"for (var r_block = 0; r_block < {count}; r_block += {BLOCK_TERMS * step})")

    def _accumulator(self, node: Node) -> str:
        name = self.emit.name(f"acc_{node.op.name}")
        neutral = NEUTRAL[_combine_of(node), node.dtype]
        if "inf()" in neutral:
            self.emit.helpers[INFINITY] = None
        self.emit.line(f"var {name} = {neutral};", 0)
        return name

    def _visit(self, folds: list[Node], kept: list[Node], sums: Sums) -> None:
        for r in self.terms:
            for cell, p in enumerate(self.cells):
                for node in folds:
                    term = self.emit.value(node.inputs[0], _at(self.group.operand[node.id], p, r))
                    name = sums[node.id][cell]
                    self.emit.line(f"{name} = {COMBINE[_combine_of(node)].format(a=name, b=term)};")
        for node in kept:
            self._store(node, [_at(self.group.own[node.id], p, r) for p in self.cells for r in self.terms], None)

    # -- rows ---------------------------------------------------------------

    def _combine(self, folds: list[Node], sums: Sums) -> None:
        e = self.emit
        if self.tile.lanes > 1:
            for dtype in dict.fromkeys(n.dtype for n in folds):
                self._tree([(n, name) for n in folds if n.dtype == dtype for name in sums[n.id]], dtype)
        for node in folds:
            for p, name in zip(self.cells, sums[node.id], strict=True):
                ix = _at(self.group.own[node.id], p, index(0))
                e.know(node, ix, e.let(f"{node.op.name}_row", name, 0), 0)

    def _tree(self, sums: Sequence[tuple[Node, str]], dtype: str) -> None:
        """Lanes add up through workgroup memory, all sums of a walk between the same barriers."""
        e, tile = self.emit, self.tile
        name = f"shared_{dtype}"
        if any(d.startswith(f"var<workgroup> {name}:") for d in self.shared):
            e.line("workgroupBarrier();")
        self.shared.append(f"var<workgroup> {name}: array<{dtype}, {tile.threads * len(sums)}>;")
        stride = 1 if self.group.fold_is_last or tile.rows == 1 else tile.rows
        places = [f"lane_id{f' + {i * tile.threads}' if i else ''}" for i in range(len(sums))]
        for place, (_, total) in zip(places, sums, strict=True):
            e.line(f"{name}[{place}] = {total};")
        half = tile.lanes // 2
        while half:
            e.line("workgroupBarrier();")
            steps = [
                COMBINE[_combine_of(node)].format(a=f"{name}[{place}]", b=f"{name}[{place} + {half * stride}]")
                for place, (node, _) in zip(places, sums, strict=True)
            ]
            adds = " ".join(f"{name}[{place}] = {step};" for place, step in zip(places, steps, strict=True))
            e.line(f"if ({self.lane} < {half}) {{ {adds} }}")
            half //= 2
        e.line("workgroupBarrier();")
        for place, (_, total) in zip(places, sums, strict=True):
            e.line(f"{total} = {name}[{place} - {self.lane}{f' * {stride}' if stride > 1 else ''}];")

    def _is_element(self, node: Node) -> bool:
        if isinstance(node.op.lower, Reduction):
            return False
        return self.group.fold == 1 or any("r" in i.variables() for i in self.group.own[node.id])

    def _store(self, node: Node, places: Sequence[Ix], extra: str | None) -> None:
        e = self.emit
        texts = [e.value(node, ix) for ix in places]
        condition = " && ".join(c for c in (self.live, extra) if c)
        if condition:
            e.open()
        for key in self.stores[node.id]:
            e.store_run(key, node, places, texts)
        if condition:
            e.close(f"if ({condition})")

    def _store_rows(self) -> None:
        extra = f"{self.lane} == 0" if self.tile.lanes > 1 else None
        for node in self.group.members:
            if self.stores.get(node.id) and not self._is_element(node):
                self._store(node, [_at(self.group.own[node.id], p, index(0)) for p in self.cells], extra)


def _at(ix: Ix, p: Index, r: Index) -> Ix:
    return tuple(i.substitute({"p": p, "r": r}) for i in ix)


def _stepping(group: Group, tile: Tile) -> tuple[str, int]:
    """The axis along which a thread takes four neighbours, and its size."""
    return ("p", group.rows) if tile.cells > 1 else ("r", group.fold)


def evened(group: Group, tile: Tile, computed: set[int]) -> Tile:
    """The tile, without runs of four if the group cannot be written for them."""
    if tile.cells * tile.terms == 1 or steps_evenly(group, *_stepping(group, tile), lambda n: n.id in computed):
        return tile
    return attrs.evolve(tile, cells=1, terms=1)


def vectors_of_fold(group: Group, tile: Tile, computed: set[int], stored: Mapping[int, object]) -> set[int]:
    """Ids of the nodes whose storage a kernel of this group accesses by vectors of four."""
    if tile.cells * tile.terms == 1:
        return set()
    return vectors_along(group, *_stepping(group, tile), lambda n: n.id in computed, stored)
