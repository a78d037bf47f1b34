"""Kernels of contraction groups: a register block per thread, any operands, any epilogue.

Operands are expressions (views, masks, element-wise work), so a transposed or convolved operand
costs no copy; edges are clamped on load and predicated on store, so there is no slow size. How
the products are summed is in `direct` and `tiled`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from tgdsl.ir.index import Index, Var, index, of_atom, unflatten, var
from tgdsl.schedule.access import Ix
from tgdsl.schedule.group import Group

from .emit import Emitter
from .tiling import WIDTH, Sizes, Tiling
from .wgsl import show_index


@attrs.frozen
class Coordinate:
    """A row or column of the result: an index that is always in range, and when it is a real one."""

    index: Index
    real: str | None


class ContractionKernel:
    """What every kind of contraction kernel has: where a thread works, and what becomes of its sums.

    Attributes:
        rows: The rows of a thread; its columns are `columns`.
        shared: Declarations of workgroup memory.
    """

    def __init__(
        self,
        group: Group,
        sizes: Sizes,
        tiling: Tiling,
        emitter: Emitter,
        stores: Mapping[int, list[str]],
        *,
        even: bool = False,
        past: bool = False,
    ) -> None:
        """The text may use the workgroup's number as `group`.

        Args:
            group: What is computed.
            sizes: Its sizes.
            tiling: How a workgroup covers it.
            emitter: Gets the statements.
            stores: Storage keys that each member is written to.
            even: Whether the epilogue can be written for columns `4 * q + i`.
            past: Whether some workgroups lie past the last one.
        """
        self.even, self.past = even, past
        self.group, self.s, self.t, self.emit, self.stores = group, sizes, tiling, emitter, stores
        self.node = group.anchor
        self.shared: list[str] = []
        self._batch: Ix = unflatten(var("b", sizes.b), [int(d) for d in self.node.shape[:-2]])

    def body(self) -> None:
        """Emit everything between the braces of `main`."""
        self._head()
        self.declare_sums()
        self.sum_products()
        self.finish()

    def declare_sums(self) -> None:
        """Emit the variables that products are added to."""
        for i in range(self.t.tm):
            for j in range(self.t.tn):
                self.emit.line(f"var {self.sum_of(i, j)} = 0.0f;")

    def sum_of(self, i: int, j: int) -> str:
        """The sum of a row and column of the thread."""
        return f"acc_{i}_{j}"

    def sum_products(self) -> None:
        """Emit the loop over the contracted axis."""
        raise NotImplementedError

    def _head(self) -> None:
        e, t, s = self.emit, self.t, self.s
        group = "group"
        if self.past:
            # They redo the last one's work and store the same values.
            group = e.name("group_in_range")
            e.line(f"let {group} = min(group, {self.t.workgroups(s) - 1});")
        e.line("let lane_id = i32(lid);")
        across, down = -(-s.n // t.columns), -(-s.m // t.rows)
        e.line(f"let n_tile = {_digit(group, 1, across, t.columns)};")
        e.line(f"let m_tile = {_digit(group, across, down, t.rows)};")
        if s.b > 1:
            e.line(f"let b = {group} / {across * down};")
            e.variable("b", 0)
        e.line(f"let tx = lane_id % {t.tx};")
        e.line(f"let ty = lane_id / {t.tx}{f' % {t.ty}' if t.slices > 1 else ''};")
        self.rows = self._coordinates("m", "ty", t.tm, t.ty, s.m)
        self.columns = self._coordinates("n", "tx", t.tn, t.tx, s.n)

    def _coordinates(self, axis: str, lane: str, count: int, lanes: int, size: int) -> list[Coordinate]:
        """The rows or columns of a thread: runs of four where it takes so many, one run per `lanes` runs."""
        width = min(WIDTH, count)
        if axis == "n" and not self.t.bk and (width < WIDTH or size % WIDTH):
            # Neighbouring threads take neighbouring columns: there are no vectors to load.
            texts = [f"n_tile + {lane}{plus(i * lanes)}" for i in range(count)]
            return [self._coordinate(f"n{i}", text, size, count * lanes) for i, text in enumerate(texts)]
        out: list[Coordinate] = []
        for run in range(count // width):
            at = lane if run == 0 else f"({lane} + {run * lanes})"
            if width == WIDTH and size % WIDTH == 0:
                c = self._coordinate(f"{axis}4_{run}", f"({axis}_tile >> 2u) + {at}", size // 4, count * lanes // 4)
                out += [Coordinate(c.index * WIDTH + i, c.real) for i in range(WIDTH)]
            else:
                texts = [f"{axis}_tile + {at}{f' * {width}' if width > 1 else ''}{plus(i)}" for i in range(width)]
                first = run * width
                out += [self._coordinate(f"{axis}{first + i}", x, size, count * lanes) for i, x in enumerate(texts)]
        return out

    def _coordinate(self, name: str, text: str, size: int, per: int) -> Coordinate:
        e = self.emit
        exact = size % per == 0
        if size == 1 and not exact:
            e.line(f"let {name}_any = {text};")
            return Coordinate(index(0), f"{name}_any < 1")
        if exact:
            e.line(f"let {name} = {text};")
        else:
            e.line(f"let {name}_any = {text};")
            e.line(f"let {name} = min({name}_any, {size - 1});")
        e.variable(name, 0)
        bound = of_atom(Var(name, 0, size - 1)) if size > 1 else index(0)
        return Coordinate(bound, None if exact else f"{name}_any < {size}")

    def a(self, m: Index, k: Index) -> str:
        """The left operand at a row and a term."""
        return self.emit.value(self.node.inputs[0], (*self._batch, m, k))

    def b(self, k: Index, n: Index) -> str:
        """The right operand at a term and a column."""
        return self.emit.value(self.node.inputs[1], (*self._batch, k, n))

    # -- results ------------------------------------------------------------

    def finish(self) -> None:
        """Emit the epilogue: every cell of the thread, runs of columns at a time."""
        width = min(WIDTH, self.t.tn)
        columns = self.columns if self.even else [self._named("n_at", c) for c in self.columns]
        for i, row in enumerate([self._named("m_at", c) for c in self.rows]):
            for first in range(0, self.t.tn, width):
                run = range(first, first + width)
                if len({columns[j].real for j in run}) == 1:
                    self.store_cells(row, [(columns[j], self.sum_of(i, j)) for j in run])
                else:
                    for j in run:
                        self.store_cells(row, [(columns[j], self.sum_of(i, j))])

    def _named(self, name: str, c: Coordinate) -> Coordinate:
        """The coordinate as a variable: members find each other by the index that the schedule gave them."""
        if len(c.index.terms) <= 1 and c.index.offset == 0 and all(k == 1 for _, k in c.index.terms):
            return c
        text = self.emit.let(name, show_index(c.index), 0)
        self.emit.variable(text, 0)
        return Coordinate(of_atom(Var(text, c.index.lo, c.index.hi)), c.real)

    def store_cells(self, row: Coordinate, cells: Sequence[tuple[Coordinate, str]], extra: str = "") -> None:
        """Finish and store cells `(column, sum)` of one row whose columns are real together."""
        e = self.emit
        conditions = [c for c in (row.real, cells[0][0].real, extra) if c]
        e.open()
        owns = [self._own(row, column) for column, _ in cells]
        for own, (_, text) in zip(owns, cells, strict=True):
            e.know(self.node, own[self.node.id], text, len(e.scopes) - 1)
        for node in self.group.members:
            for key in self.stores.get(node.id, ()):
                places = [own[node.id] for own in owns]
                e.store_run(key, node, places, [e.value(node, ix) for ix in places])
        e.close(f"if ({' && '.join(conditions)})" if conditions else "")

    def _own(self, row: Coordinate, column: Coordinate) -> dict[int, Ix]:
        values = {"m": row.index, "n": column.index}
        return {i: tuple(c.substitute(values) for c in ix) for i, ix in self.group.own.items()}


def plus(n: int) -> str:
    """A constant summand, unless it is zero."""
    return f" + {n}" if n else ""


def _digit(number: str, below: int, count: int, step: int) -> str:
    """`number / below % count * step`, without what does nothing."""
    if count == 1:
        return "0"
    return f"{number}{f' / {below}' if below > 1 else ''} % {count} * {step}"
