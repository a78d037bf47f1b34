"""Kernels of contraction groups: a register block per thread, any operands, any epilogue.

Two templates. *Direct* reads operands straight from memory and splits the contracted
axis over slices of the workgroup: small contractions need many small workgroups, and
software adapters are slow at barriers. *Tiled* stages both operands in workgroup memory for
large ones. Operands are expressions (views, masks, element-wise work), so a transposed or
convolved operand costs no copy; edges are clamped on load and predicated on store, so there
is no slow size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import attrs

from tgdsl.ir import Node
from tgdsl.ir.index import Index, Var, index, of_atom, unflatten, var
from tgdsl.schedule.access import Ix
from tgdsl.schedule.group import Group

from .emit import Emitter


@attrs.frozen
class Sizes:
    """A contraction's sizes, batch axes merged."""

    b: int
    m: int
    n: int
    k: int


@attrs.frozen
class Tiling:
    """How a workgroup covers the result.

    Attributes:
        tm: Rows per thread.
        tn: Columns per thread.
        tx: Threads along columns.
        ty: Threads along rows.
        slices: Slices of the contracted axis inside the workgroup (direct only).
        bk: Terms staged at a time; 0 in the direct template.
    """

    tm: int
    tn: int
    tx: int
    ty: int
    slices: int = 1
    bk: int = 0

    @property
    def threads(self) -> int:
        """Invocations per workgroup."""
        return self.tx * self.ty * self.slices

    @property
    def rows(self) -> int:
        """Rows of the result per workgroup."""
        return self.tm * self.ty

    @property
    def columns(self) -> int:
        """Columns of the result per workgroup."""
        return self.tn * self.tx

    def workgroups(self, s: Sizes) -> int:
        """How many workgroups cover the result."""
        return s.b * -(-s.m // self.rows) * -(-s.n // self.columns)


def sizes_of(node: Node) -> Sizes:
    """The sizes of a contraction node."""
    *batch, m, k = (int(d) for d in node.inputs[0].shape)
    return Sizes(math.prod(batch), m, int(node.shape[-1]), k)


def choose_tiling(s: Sizes, *, software: bool, threads: int | None = None) -> Tiling:
    """A tiling by the size of the problem; see the module docstring."""
    tiling = _natural_tiling(s, software=software)
    if threads is None or tiling.threads == threads:
        return tiling
    if tiling.threads > threads:
        return Tiling(2, 2, 8, 8, threads // 64)
    if software:
        return attrs.evolve(tiling, ty=threads // tiling.tx)
    return attrs.evolve(tiling, slices=threads // (tiling.tx * tiling.ty))


def _natural_tiling(s: Sizes, *, software: bool) -> Tiling:
    if software:
        tn = 4 if s.n >= 4 else s.n
        tm = 4 if s.m >= 4 else s.m
        return Tiling(tm, tn, 8 if s.n > 4 else 1, 8 if s.n > 4 else 64)
    tiles = s.b * -(-s.m // 64) * -(-s.n // 64)
    if tiles >= 96 and s.k >= 32 and s.m >= 32 and s.n >= 32:
        return Tiling(4, 4, 16, 16, bk=16)
    tn = 4 if s.n >= 16 and s.b * s.m * s.n >= 65536 else 2 if s.n >= 16 else 1
    tm = 2 if s.b * s.m * s.n >= 131072 else 1
    tx = min(8, _power(-(-s.n // tn)))
    ty = min(8 if tx >= 8 else 16, _power(-(-s.m // tm)))
    slices = max(1, min(16, 256 // (tx * ty), _power(s.k) // 8))
    return Tiling(tm, tn, tx, ty, slices)


def _power(n: int) -> int:
    """The smallest power of two that is at least `n`."""
    return 1 << max(0, n - 1).bit_length()


class ContractionKernel:
    """Writes the body of one contraction group."""

    def __init__(
        self, group: Group, tiling: Tiling, emitter: Emitter, stores: Mapping[int, list[str]], *, past: bool = False
    ) -> None:
        """The text may use the workgroup's number as `group`; if `past`, some lie past the last one."""
        self.past = past
        self.group, self.t, self.emit, self.stores = group, tiling, emitter, stores
        self.node = group.anchor
        self.s = sizes_of(self.node)
        self.batch = [int(d) for d in self.node.shape[:-2]]
        self.shared: list[str] = []

    @property
    def workgroups(self) -> int:
        """How many workgroups cover the result."""
        return self.s.b * self._tiles(self.s.m, self.t.rows) * self._tiles(self.s.n, self.t.columns)

    @staticmethod
    def _tiles(size: int, per: int) -> int:
        return -(-size // per)

    def body(self) -> None:
        """Emit everything between the braces of `main`."""
        self._head()
        for i in range(self.t.tm):
            for j in range(self.t.tn):
                self.emit.line(f"var acc_{i}_{j} = 0.0f;")
        if self.t.bk:
            self._tiled()
        else:
            self._direct()
        self._epilogue()

    def _head(self) -> None:
        e, t, s = self.emit, self.t, self.s
        group = "group"
        if self.past:
            # They redo the last one's work and store the same values.
            group = e.name("group_in_range")
            e.line(f"let {group} = min(group, {self.workgroups - 1});")
        e.line("let lane_id = i32(lid);")
        across, down = self._tiles(s.n, t.columns), self._tiles(s.m, t.rows)
        e.line(f"let n_tile = {group} % {across} * {t.columns};")
        e.line(f"let m_tile = {group} / {across} % {down} * {t.rows};")
        if s.b > 1:
            e.line(f"let b = {group} / {across * down};")
            e.variable("b", 0)
        e.line(f"let tx = lane_id % {t.tx};")
        e.line(f"let ty = lane_id / {t.tx}{f' % {t.ty}' if t.slices > 1 else ''};")
        self.rows = [self._coordinate(f"m{i}", f"m_tile + ty * {t.tm} + {i}", s.m, t.rows) for i in range(t.tm)]
        self.columns = [self._coordinate(f"n{j}", f"n_tile + tx + {j * t.tx}", s.n, t.columns) for j in range(t.tn)]

    def _coordinate(self, name: str, text: str, size: int, per: int) -> tuple[Index, str | None]:
        """A result coordinate that is always in range, and when it is a real one."""
        exact = size % per == 0
        if size == 1:
            self.emit.line(f"let {name}_any = {text};")
            return index(0), None if per == 1 else f"{name}_any < 1"
        if exact:
            self.emit.line(f"let {name} = {text};")
        else:
            self.emit.line(f"let {name}_any = {text};")
            self.emit.line(f"let {name} = min({name}_any, {size - 1});")
        self.emit.variable(name, 0)
        return of_atom(Var(name, 0, size - 1)), None if exact else f"{name}_any < {size}"

    def _batch(self) -> Ix:
        return unflatten(var("b", self.s.b), self.batch)

    def _a(self, m: Index, k: Index) -> str:
        return self.emit.value(self.node.inputs[0], (*self._batch(), m, k))

    def _b(self, k: Index, n: Index) -> str:
        return self.emit.value(self.node.inputs[1], (*self._batch(), k, n))

    def _direct(self) -> None:
        e, t, s = self.emit, self.t, self.s
        first, step = "0", 1
        if t.slices > 1:
            e.line(f"let slice = lane_id / {t.tx * t.ty};")
            first, step = "slice", t.slices
        k = var("k", s.k)
        e.open()
        e.variable("k")
        left = [self._a(m, k) for m, _ in self.rows]
        right = [self._b(k, n) for n, _ in self.columns]
        for i, x in enumerate(left):
            for j, y in enumerate(right):
                e.line(f"acc_{i}_{j} = fma({x}, {y}, acc_{i}_{j});")
        e.close(f"for (var k = {first}; k < {s.k}; k += {step})")
        if t.slices > 1:
            self._sum_slices()

    def _sum_slices(self) -> None:
        e, t = self.emit, self.t
        per = t.tx * t.ty
        self.shared.append(f"var<workgroup> partial: array<f32, {t.threads * t.tm * t.tn}>;")
        cells = [(i, j) for i in range(t.tm) for j in range(t.tn)]
        for c, (i, j) in enumerate(cells):
            e.line(f"partial[lane_id + {c * t.threads}] = acc_{i}_{j};")
        half = t.slices // 2
        while half:
            e.line("workgroupBarrier();")
            adds = " ".join(
                f"partial[lane_id + {c * t.threads}] += partial[lane_id + {c * t.threads + half * per}];"
                for c in range(len(cells))
            )
            e.line(f"if (slice < {half}) {{ {adds} }}")
            half //= 2
        for c, (i, j) in enumerate(cells):
            e.line(f"acc_{i}_{j} = partial[lane_id + {c * t.threads}];")

    def _tiled(self) -> None:
        e, t, s = self.emit, self.t, self.s
        self.shared.append(f"var<workgroup> tile_a: array<f32, {t.rows * t.bk}>;")
        self.shared.append(f"var<workgroup> tile_b: array<f32, {t.columns * t.bk}>;")
        e.open()
        e.variable("k_tile")
        self._stage("tile_a", t.rows, "m", s.m)
        self._stage("tile_b", t.columns, "n", s.n)
        e.line("workgroupBarrier();")
        e.open()
        for i in range(t.tm):
            e.line(f"let x{i} = tile_a[kk * {t.rows} + ty * {t.tm} + {i}];")
        for j in range(t.tn):
            e.line(f"let y{j} = tile_b[kk * {t.columns} + tx + {j * t.tx}];")
        for i in range(t.tm):
            for j in range(t.tn):
                e.line(f"acc_{i}_{j} = fma(x{i}, y{j}, acc_{i}_{j});")
        e.close(f"for (var kk = 0; kk < {t.bk}; kk++)")
        e.line("workgroupBarrier();")
        e.close(f"for (var k_tile = 0; k_tile < {s.k}; k_tile += {t.bk})")

    def _stage(self, tile: str, per: int, side: str, size: int) -> None:
        """Copy one operand's tile, neighbouring threads along the axis that lies side by side."""
        e, t, s = self.emit, self.t, self.s
        along_k = self._k_is_last(side)
        for pass_ in range(-(-per * t.bk // t.threads)):
            at = e.name(f"{side}_at")
            e.line(f"let {at} = lane_id + {pass_ * t.threads};")
            inner = f"{at} % {t.bk}" if along_k else f"{at} / {per}"
            outer = f"{at} / {t.bk}" if along_k else f"{at} % {per}"
            kk, oo = e.name("kk"), e.name("oo")
            e.line(f"let {kk} = {inner};")
            e.line(f"let {oo} = {outer};")
            k, real = self._in_range(f"k_tile + {kk}", s.k, exact=s.k % t.bk == 0)
            o, _ = self._in_range(f"{side}_tile + {oo}", size, exact=size % per == 0)
            value = self._a(o, k) if side == "m" else self._b(k, o)
            kept = f"select(0.0f, {value}, {real})" if real else value
            e.line(f"{tile}[{kk} * {per} + {oo}] = {kept};")

    def _in_range(self, text: str, size: int, *, exact: bool) -> tuple[Index, str | None]:
        e = self.emit
        if size == 1:
            return index(0), f"{text} < 1"
        name = e.name("i")
        e.line(f"let {name} = {text};" if exact else f"let {name} = min({text}, {size - 1});")
        e.variable(name)
        return of_atom(Var(name, 0, size - 1)), None if exact else f"{text} < {size}"

    def _k_is_last(self, side: str) -> bool:
        """Whether the operand's neighbouring elements lie along the contracted axis."""
        x = self.node.inputs[0 if side == "m" else 1]
        swapped = False
        while x.op.name in ("permute", "reshape"):
            if x.op.name == "permute" and x.attrs["perm"][-1] != len(x.attrs["perm"]) - 1:
                swapped = not swapped
            x = x.inputs[0]
        return (side == "m") != swapped

    def _epilogue(self) -> None:
        cells = [(i, j) for i in range(self.t.tm) for j in range(self.t.tn)]
        for i, j in cells:
            (m, row_real), (n, column_real) = self.rows[i], self.columns[j]
            values = {"m": m, "n": n}
            conditions = [c for c in (row_real, column_real) if c]
            if self.t.slices > 1:
                conditions.append("slice == 0")
            self.emit.open()
            depth = len(self.emit.scopes) - 1
            own = {i_: tuple(c.substitute(values) for c in ix) for i_, ix in self.group.own.items()}
            self.emit.know(self.node, own[self.node.id], f"acc_{i}_{j}", depth)
            for node in self.group.members:
                for key in self.stores.get(node.id, ()):
                    self.emit.store(key, node, own[node.id], self.emit.value(node, own[node.id]))
            self.emit.close(f"if ({' && '.join(conditions)})" if conditions else "")
