"""Kernels of fold groups: element-wise work and reductions over rows.

One template serves all of them. A workgroup takes `rows` rows with `lanes` threads
each; a thread walks its row in steps of `lanes`, and lanes combine through workgroup
memory. Element-wise kernels are the case of one lane and no walk; column sums put
neighbouring rows on neighbouring threads, so that their loads still coalesce. Each phase is
one walk: it folds every reduction whose operands earlier phases have made known, and
stores the elements known by then.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from tgdsl.ir import Node, Reduction
from tgdsl.schedule.access import reads, reads_of
from tgdsl.schedule.group import Group

from .emit import Emitter
from .wgsl import INFINITY

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
    """How a workgroup covers a fold kernel: `rows` rows of `lanes` threads."""

    rows: int
    lanes: int

    @property
    def threads(self) -> int:
        """Invocations per workgroup."""
        return self.rows * self.lanes


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
    return Tile(threads // lanes, lanes)


def _natural_tile(group: Group, *, software: bool) -> Tile:
    rows, fold = group.rows, group.fold
    if fold == 1:
        return Tile(64 if software or rows < 16384 else 256, 1)
    if software:
        # Barriers are dear on a CPU, so a row stays with one thread unless there are hardly any rows.
        return Tile(min(64, _power(rows)), 1) if rows >= 8 else Tile(1, min(64, _power(fold)))
    if fold <= 8:
        return Tile(128, 1)
    if group.fold_is_last:
        lanes = min(256, max(8, _power(fold)))
        if rows >= 4096 and fold > 64:
            lanes = max(32, lanes // 2)
        return Tile(max(1, min(64 // lanes, rows)), lanes)
    across = min(32, _power(rows)) if rows * 32 >= 65536 else min(16, _power(rows))
    return Tile(across, min(256 // across, _power(fold)))


def _combine_of(node: Node) -> str:
    """How a reduction combines two terms."""
    lowering = node.op.lower
    assert isinstance(lowering, Reduction)
    return lowering.combine


def _power(n: int) -> int:
    """The smallest power of two that is at least `n`."""
    return 1 << max(0, n - 1).bit_length()


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
        self.guarded = group.rows % tile.rows != 0 or past

    @property
    def workgroups(self) -> int:
        """How many workgroups cover the rows."""
        return -(-self.group.rows // self.tile.rows)

    def body(self) -> None:
        """Emit everything between the braces of `main`."""
        self._head()
        last = max(self.phase.values(), default=0)
        for k in range(last + 1):
            self._walk(k)
        self._store_rows()

    def _head(self) -> None:
        e, tile, group = self.emit, self.tile, self.group
        e.line("let lane_id = i32(lid);")
        across = "lane_id" if tile.lanes == 1 else "0" if tile.rows == 1 else self._split(rows=True)
        self.lane = "0" if tile.lanes == 1 else "lane_id" if tile.rows == 1 else self._split(rows=False)
        if group.rows > 1:
            e.line(f"let p_any = group * {tile.rows} + {across};")
            clamp = f"min(p_any, {group.rows - 1})" if self.guarded else "p_any"
            e.line(f"let p = {clamp};")
            e.variable("p", 0)
        self.live = f"p_any < {group.rows}" if group.rows > 1 else f"{across} == 0 && group == 0"
        self.always_live = (not self.guarded) if group.rows > 1 else (across == "0" and self.workgroups == 1)
        if tile.lanes > 1:
            e.line(f"let lane = {self.lane};")
            self.lane = "lane"

    def _split(self, *, rows: bool) -> str:
        # Neighbouring threads go to neighbouring memory: along the fold, or along the rows.
        tile = self.tile
        if self.group.fold_is_last:
            return f"(lane_id / {tile.lanes})" if rows else f"(lane_id % {tile.lanes})"
        return f"(lane_id % {tile.rows})" if rows else f"(lane_id / {tile.rows})"

    def _walk(self, k: int) -> None:
        folds = [n for n in self.group.members if isinstance(n.op.lower, Reduction) and self.phase[n.id] == k + 1]
        kept = [
            n for n in self.group.members if self._is_element(n) and self.phase[n.id] == k and self.stores.get(n.id)
        ]
        if not folds and not kept:
            return
        accumulators = {n.id: self._accumulator(n) for n in folds}
        if self.group.fold == 1:
            self._visit(folds, kept, accumulators)
        elif self.group.fold > MOST_TERMS * self.tile.lanes and folds:
            self._visit_in_blocks(folds, kept, accumulators)
        else:
            self.emit.open()
            self.emit.variable("r")
            self._visit(folds, kept, accumulators)
            step = self.tile.lanes
            self.emit.close(f"for (var r = {self.lane}; r < {self.group.fold}; r += {step})")
        for node in folds:
            self._combine(node, accumulators[node.id])

    def _visit_in_blocks(self, folds: list[Node], kept: list[Node], accumulators: Mapping[int, str]) -> None:
        """A long walk in two levels: the rounding errors of one long running sum would add up."""
        e, fold, step = self.emit, self.group.fold, self.tile.lanes
        e.open()
        e.variable("r_block")
        parts: dict[int, str] = {}
        for node in folds:
            parts[node.id] = e.name(f"part_{node.op.name}")
            e.line(f"var {parts[node.id]} = {NEUTRAL[_combine_of(node), node.dtype]};")
        e.open()
        e.variable("r")
        self._visit(folds, kept, parts)
        end = f"min({fold}, r_block + {BLOCK_TERMS * step})"
        e.close(f"for (var r = r_block + {self.lane}; r < {end}; r += {step})")
        for node in folds:
            combined = COMBINE[_combine_of(node)].format(a=accumulators[node.id], b=parts[node.id])
            e.line(f"{accumulators[node.id]} = {combined};")
        e.close(f"for (var r_block = 0; r_block < {fold}; r_block += {BLOCK_TERMS * step})")

    def _accumulator(self, node: Node) -> str:
        name = self.emit.name(f"acc_{node.op.name}")
        neutral = NEUTRAL[_combine_of(node), node.dtype]
        if "inf()" in neutral:
            self.emit.helpers[INFINITY] = None
        self.emit.line(f"var {name} = {neutral};", 0)
        return name

    def _visit(self, folds: list[Node], kept: list[Node], accumulators: Mapping[int, str]) -> None:
        for node in folds:
            term = self.emit.value(node.inputs[0], self.group.operand[node.id])
            combine = COMBINE[_combine_of(node)]
            name = accumulators[node.id]
            self.emit.line(f"{name} = {combine.format(a=name, b=term)};")
        for node in kept:
            self._store(node, "")

    def _combine(self, node: Node, accumulator: str) -> None:
        e, tile = self.emit, self.tile
        if tile.lanes > 1:
            self._tree(node, accumulator)
        e.know(node, self.group.own[node.id], e.let(f"{node.op.name}_row", accumulator, 0), 0)

    def _tree(self, node: Node, accumulator: str) -> None:
        e, tile = self.emit, self.tile
        dtype = node.dtype
        name = f"shared_{dtype}"
        declaration = f"var<workgroup> {name}: array<{dtype}, {tile.threads}>;"
        if declaration in self.shared:
            e.line("workgroupBarrier();")
        else:
            self.shared.append(declaration)
        stride = 1 if self.group.fold_is_last or tile.rows == 1 else tile.rows
        base = "lane_id"
        combine = COMBINE[_combine_of(node)]
        e.line(f"{name}[{base}] = {accumulator};")
        half = tile.lanes // 2
        while half:
            e.line("workgroupBarrier();")
            other = f"{name}[{base} + {half * stride}]"
            step = combine.format(a=f"{name}[{base}]", b=other)
            e.line(f"if ({self.lane} < {half}) {{ {name}[{base}] = {step}; }}")
            half //= 2
        e.line("workgroupBarrier();")
        e.line(f"{accumulator} = {name}[{base} - {self.lane}{f' * {stride}' if stride > 1 else ''}];")

    def _is_element(self, node: Node) -> bool:
        if isinstance(node.op.lower, Reduction):
            return False
        return self.group.fold == 1 or any("r" in i.variables() for i in self.group.own[node.id])

    def _store(self, node: Node, extra: str) -> None:
        e = self.emit
        ix = self.group.own[node.id]
        text = e.value(node, ix)
        condition = " && ".join(c for c in ("" if self.always_live else self.live, extra) if c)
        if condition:
            e.open()
        for key in self.stores[node.id]:
            e.store(key, node, ix, text)
        if condition:
            e.close(f"if ({condition})")

    def _store_rows(self) -> None:
        extra = f"{self.lane} == 0" if self.tile.lanes > 1 else ""
        for node in self.group.members:
            if self.stores.get(node.id) and not self._is_element(node):
                self._store(node, extra)
