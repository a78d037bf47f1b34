"""Contractions straight from memory, the contracted axis cut into slices of the workgroup."""

from __future__ import annotations

from tgdsl.ir.index import Index, Var, index, of_atom, var

from .contract import ContractionKernel, Coordinate, plus
from .tiling import WIDTH


class DirectKernel(ContractionKernel):
    """A contraction whose threads load operands themselves; slices add up in workgroup memory."""

    def sum_products(self) -> None:
        """Emit the loop, four terms at a time where their number allows it."""
        e, t, s = self.emit, self.t, self.s
        first = "0"
        if t.slices > 1:
            e.line(f"let slice = lane_id / {t.tx * t.ty};")
            first = "slice"
        e.open()
        if s.k % WIDTH == 0:
            e.variable("k4")
            k4 = var("k4", s.k // WIDTH)
            for u in range(WIDTH):
                self._products(k4 * WIDTH + u)
            e.close(f"for (var k4 = {first}; k4 < {s.k // WIDTH}; k4 += {t.slices})")
        else:
            e.variable("k")
            self._products(var("k", s.k))
            e.close(f"for (var k = {first}; k < {s.k}; k += {t.slices})")

    def _products(self, k: Index) -> None:
        left = [self.a(row.index, k) for row in self.rows]
        right = [self.b(k, column.index) for column in self.columns]
        for i, x in enumerate(left):
            for j, y in enumerate(right):
                self.emit.line(f"acc_{i}_{j} = fma({x}, {y}, acc_{i}_{j});")

    def finish(self) -> None:
        """Emit the epilogue; with slices, every thread finishes cells of the whole workgroup."""
        if self.t.slices == 1:
            super().finish()
            return
        e, t = self.emit, self.t
        cells = t.rows * t.columns
        self.shared.append(f"var<workgroup> shared_f32: array<f32, {cells * t.slices}>;")
        e.line(f"let mine = slice * {cells} + ty * {t.tm * t.columns};")
        for i in range(t.tm):
            for j in range(t.tn):
                e.line(f"shared_f32[mine{plus(i * t.columns)} + {self._column(j)}] = acc_{i}_{j};")
        e.line("workgroupBarrier();")
        for first in range(0, cells, t.threads):
            self._finish_cell(first, cells)

    def _column(self, j: int) -> str:
        """Where a thread's column lies in the workgroup's block, as `_coordinates` deals them out."""
        t = self.t
        if t.tn == WIDTH and self.s.n % WIDTH == 0:
            return f"tx * {WIDTH}{plus(j)}"
        return f"tx{plus(j * t.tx)}"

    def _finish_cell(self, first: int, cells: int) -> None:
        e, t, s = self.emit, self.t, self.s
        e.open()
        spare = cells % t.threads != 0
        cell = f"lane_id + {first}" if first else "lane_id"
        e.line(f"let cell = {f'min({cell}, {cells - 1})' if spare else cell};")
        e.line(f"let cell_sum = {' + '.join(f'shared_f32[cell{plus(i * cells)}]' for i in range(t.slices))};")
        row = self._of_cell("m", f"m_tile + cell / {t.columns}", s.m, t.rows)
        column = self._of_cell("n", f"n_tile + cell % {t.columns}", s.n, t.columns)
        self.store_cells(row, [(column, "cell_sum")], f"lane_id < {cells - first}" if spare else "")
        e.close("")

    def _of_cell(self, name: str, text: str, size: int, per: int) -> Coordinate:
        e = self.emit
        exact = size % per == 0
        if exact:
            e.line(f"let {name} = {text};")
        else:
            e.line(f"let {name}_any = {text};")
            e.line(f"let {name} = min({name}_any, {size - 1});")
        e.variable(name)
        bound = of_atom(Var(name, 0, size - 1)) if size > 1 else index(0)
        return Coordinate(bound, None if exact else f"{name}_any < {size}")
