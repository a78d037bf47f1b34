"""What the kernels of attention share: tiles of scores, sums with weights, and where threads work.

A tile of scores is a product of two staged tiles; a tile of the result is a sum of staged rows
with weights that the threads have left in workgroup memory. All barriers are in loops whose bounds are
those of the whole workgroup. Rows and columns past the end are clamped on load; there, weights
are zero and nothing is stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from tgdsl.ir import Node
from tgdsl.ir.index import Index, Var, flatten, index, of_atom, unflatten, var
from tgdsl.schedule.access import Ix
from tgdsl.schedule.group import Group

from .attention_tile import ACROSS, COLUMNS, WEIGHTS_STRIDE, AttentionTile, chunk, quads, span_of
from .emit import Emitter
from .quads import quad_of
from .tiling import WIDTH
from .wgsl import INFINITY, literal

LOG2_E, LN_2 = 1.4426950408889634, 0.6931471805599453
LOWEST = literal(-3.4028234663852886e38, "f32")


@attrs.frozen
class Sums:
    """A tile of the result in registers: vectors `names[row][n]`.

    Attributes:
        node: Where it is stored.
        offset: The first element of its rows in those of `node`.
        width: Elements per row.
        names: Variables.
        places: For each `n`, which vector of a row it is (clamped) and when that exists.
    """

    node: Node
    offset: int
    width: int
    names: list[list[str]]
    places: list[tuple[Index, str | None]]


class AttentionKernel:
    """The frame of an attention kernel: head, walk over tiles of columns, results."""

    def __init__(
        self, group: Group, tile: AttentionTile, emitter: Emitter, stores: Mapping[int, list[str]], *, past: bool
    ) -> None:
        """The text may use the workgroup's number as `group`; if `past`, some lie past the last one."""
        self.group, self.t, self.emit, self.stores, self.past = group, tile, emitter, stores, past
        self.s = span_of(group)
        self.node = group.anchor
        self.causal = bool(self.node.attrs["causal"])
        self.scale = float(self.node.attrs["scale"])
        self.shared = [f"var<workgroup> tiles: array<vec4<f32>, {tile.needed(self.s)}>;"]
        batch = [int(d) for d in self.node.inputs[0].shape[:-2]]
        self.batch: Ix = unflatten(var("b", self.s.b), batch)

    def body(self) -> None:
        """Emit everything between the braces of `main`."""
        self._head()
        self.prepare()
        e = self.emit
        e.open()
        e.variable("col_tile")
        self.step()
        e.close(f"for (var col_tile = {self.first()}; col_tile < {self.end()}; col_tile += {COLUMNS})")
        self.finish()

    def prepare(self) -> None:
        """Emit what comes before the walk."""
        raise NotImplementedError

    def step(self) -> None:
        """Emit what is done with one tile of columns."""
        raise NotImplementedError

    def finish(self) -> None:
        """Emit what comes after the walk."""
        raise NotImplementedError

    def first(self) -> str:
        """The first column of the walk."""
        return "0"

    def end(self) -> str:
        """The column before which the walk ends."""
        return f"min({self.s.columns}, row_tile + {self.t.rows})" if self.causal else str(self.s.columns)

    # -- where a thread works -----------------------------------------------

    def _head(self) -> None:
        e, s = self.emit, self.s
        e.helpers[INFINITY] = None
        group, tiles = "group", -(-s.rows // self.t.rows)
        if self.past:
            # They redo the last one's work and store the same values.
            group = e.name("group_in_range")
            e.line(f"let {group} = min(group, {self.t.workgroups(s) - 1});")
        e.line("let lane_id = i32(lid);")
        e.line(f"let tx = lane_id & {ACROSS - 1};")
        e.line(f"let ty = lane_id >> {ACROSS.bit_length() - 1}u;")
        # Rows that walk far go first, so that none of them is alone in the end.
        number = f"{group} % {tiles}"
        late = self.causal and s.role != "dkv"
        e.line(f"let row_tile = ({f'{tiles - 1} - {number}' if late else number}) * {self.t.rows};")
        if s.b > 1:
            e.line(f"let b = {group} / {tiles};")
            e.variable("b", 0)
        self.row_texts = [f"row_tile + ty + {self.t.ty * i}" for i in range(self.t.tm)]
        self.row_at = [self.place(text, s.rows, "row_at") for text in self.row_texts]

    def place(self, text: str, size: int, hint: str, *, exact: bool = False) -> Index:
        """An index that is in range."""
        if size == 1:
            return index(0)
        name = self.emit.name(hint)
        self.emit.line(f"let {name} = {text};" if exact else f"let {name} = min({text}, {size - 1});")
        self.emit.variable(name)
        return of_atom(Var(name, 0, size - 1))

    def column(self, j: int) -> str:
        """A column of the thread in the present tile; it may lie past the end."""
        return f"col_tile + tx + {ACROSS * j}"

    def seen(self, i: int, j: int) -> str | None:
        """When row `i` and column `j` of the thread see each other; None if they always do."""
        row, column = f"({self.row_texts[i]})", f"({self.column(j)})"
        parts: list[str] = []
        if self.causal:
            parts.append(f"{column} >= {row}" if self.s.role == "dkv" else f"{column} <= {row}")
        if self.s.columns % COLUMNS and not (self.causal and self.s.role != "dkv"):
            parts.append(f"{column} < {self.s.columns}")
        return " && ".join(parts) or None

    def table(self, hint: str, columns: int, value: str | None, depth: int | None = None) -> list[list[str]]:
        """Names of a variable per row and column, declared with a value if one is given."""
        names = [[self.emit.name(f"{hint}_{i}_{j}") for j in range(columns)] for i in range(self.t.tm)]
        if value is not None:
            for name in (n for row in names for n in row):
                self.emit.line(f"var {name} = {value};", depth)
        return names

    # -- loads --------------------------------------------------------------

    def quad(self, node: Node, row: Index, number: str, *, exact: bool) -> str:
        """Four elements of a row of an operand, zeros past its end."""
        e, width = self.emit, int(node.shape[-1])
        if width % WIDTH == 0:
            at = self.place(number, width // WIDTH, "q", exact=exact)
            texts = [e.value(node, (*self.batch, row, at * WIDTH + i)) for i in range(WIDTH)]
            whole = f"vec4<f32>({', '.join(texts)})"
            return whole if exact else f"select(vec4<f32>(), {whole}, {number} < {width // WIDTH})"
        texts = []
        for i in range(WIDTH):
            text = f"({number}) * {WIDTH} + {i}"
            at = self.place(text, width, "at")
            texts.append(f"select(0.0f, {e.value(node, (*self.batch, row, at))}, {text} < {width})")
        return f"vec4<f32>({', '.join(texts)})"

    def stage(self, node: Node, base: int, rows: tuple[str, int, int], columns: tuple[str, int, int]) -> None:
        """Copy a tile of an operand to workgroup memory.

        Args:
            node: The operand.
            base: Where the tile begins.
            rows: The first row, how many, and of how many rows the tiles are that cover the operand.
            columns: The first vector, how many, and how many lie between rows of the tile.
        """
        e, size = self.emit, int(node.shape[-2])
        (first_row, count, per), (first, wide, stride) = rows, columns
        total = count * wide
        for begin in range(0, total, self.t.threads):
            spare = begin + self.t.threads > total
            at, o, q = e.name("at"), e.name("o"), e.name("dq")
            e.line(f"let {at} = lane_id{f' + {begin}' if begin else ''};")
            if spare:
                e.open()
            e.line(f"let {o} = {at} / {wide};")
            e.line(f"let {q} = {at} % {wide};")
            row = self.place(f"{first_row} + {o}", size, "row", exact=size % per == 0)
            exact = quads(int(node.shape[-1])) % wide == 0
            text = self.quad(node, row, f"{first} + {q}" if first else q, exact=exact)
            e.line(f"tiles[{f'{base} + ' if base else ''}{o} * {stride} + {q}] = {text};")
            if spare:
                e.close(f"if ({at} < {total})")

    # -- products -----------------------------------------------------------

    def scores(self, hint: str, left: Node, right: Node) -> list[list[str]]:
        """Emit products of the rows of `left` with the rows of `right` that are the tile's columns."""
        e, t = self.emit, self.t
        width = int(left.shape[-1])
        wide = chunk(width)
        names = self.table(hint, WIDTH, "0.0f")
        several = quads(width) > wide
        if several:
            e.open()
            e.variable("d_tile")
        first = "d_tile" if several else ""
        stride = wide | 1
        self.stage(left, 0, ("row_tile", t.rows, t.rows), (first, wide, stride))
        self.stage(right, t.rows * stride, ("col_tile", COLUMNS, COLUMNS), (first, wide, stride))
        e.line("workgroupBarrier();")
        self._multiply(names, wide, stride)
        e.line("workgroupBarrier();")
        if several:
            e.close(f"for (var d_tile = 0; d_tile < {quads(width)}; d_tile += {wide})")
        return names

    def _multiply(self, names: list[list[str]], wide: int, stride: int) -> None:
        e, t = self.emit, self.t
        e.open()
        rows = [e.name(f"x{i}") for i in range(t.tm)]
        for i, x in enumerate(rows):
            e.line(f"let {x} = tiles[(ty + {t.ty * i}) * {stride} + dd];")
        for j in range(WIDTH):
            y = e.name("y")
            e.line(f"let {y} = tiles[{t.rows * stride} + (tx + {ACROSS * j}) * {stride} + dd];")
            for i, x in enumerate(rows):
                total = names[i][j]
                for c in "xyzw":
                    e.line(f"{total} = fma({x}.{c}, {y}.{c}, {total});")
        e.close(f"for (var dd = 0; dd < {wide}; dd++)")

    def sums(self, hint: str, node: Node, width: int, offset: int = 0) -> Sums:
        """Declare a tile of the result."""
        count = -(-quads(width) // ACROSS)
        places: list[tuple[Index, str | None]] = []
        for n in range(count):
            text = f"tx + {ACROSS * n}" if n else "tx"
            exact = quads(width) % ACROSS == 0
            places.append(
                (self.place(text, quads(width), "eq", exact=exact), None if exact else f"{text} < {quads(width)}")
            )
        return Sums(node, offset, width, self.table(hint, count, "vec4<f32>()"), places)

    def add_rows(self, sums: Sums, weights: list[list[str]], node: Node) -> None:
        """Emit `sums += weights @ (rows of node that are the tile's columns)`."""
        e, t = self.emit, self.t
        for i, row in enumerate(weights):
            place = f"(ty + {t.ty * i}) * {WEIGHTS_STRIDE} + tx"
            e.line(f"tiles[{place}] = vec4<f32>({', '.join(row)});")
        wide, count = quads(sums.width), t.value_rows(sums.width)
        for first in range(0, COLUMNS, count):
            tile = f"col_tile + {first}" if first else "col_tile"
            if first:
                e.line("workgroupBarrier();")
            self.stage(node, t.values, (tile, count, COLUMNS), ("", wide, wide))
            e.line("workgroupBarrier();")
            self._add(sums, wide, range(first // ACROSS, (first + count) // ACROSS))
        e.line("workgroupBarrier();")

    def _add(self, sums: Sums, wide: int, runs: range) -> None:
        e, t = self.emit, self.t
        e.open()
        rows = [e.name(f"w{i}") for i in range(t.tm)]
        for i, w in enumerate(rows):
            e.line(f"let {w} = tiles[(ty + {t.ty * i}) * {WEIGHTS_STRIDE} + u];")
        for j in runs:
            for n, (place, _) in enumerate(sums.places):
                x = e.name("x")
                at = show(place)
                e.line(f"let {x} = tiles[{t.values} + (u + {(j - runs.start) * ACROSS}) * {wide} + {at}];")
                for i, w in enumerate(rows):
                    name = sums.names[i][n]
                    e.line(f"{name} = fma(vec4<f32>({w}.{'xyzw'[j]}), {x}, {name});")
        e.close(f"for (var u = 0; u < {ACROSS}; u++)")

    def across(self, values: Sequence[str], combine: str) -> list[str]:
        """Emit the combination of a value per row over the threads of the row; the memory must be free."""
        e, t = self.emit, self.t
        padded = [*values, *["0.0f"] * (WIDTH - len(values))]
        e.line(f"tiles[{t.partials} + lane_id] = vec4<f32>({', '.join(padded)});")
        e.line("workgroupBarrier();")
        name = e.name("all")
        e.line(f"var {name} = tiles[{t.partials} + ty * {ACROSS}];")
        for k in range(1, ACROSS):
            e.line(f"{name} = {combine.format(a=name, b=f'tiles[{t.partials} + ty * {ACROSS} + {k}]')};")
        return [f"{name}.{'xyzw'[i]}" for i in range(len(values))]

    # -- results ------------------------------------------------------------

    def store(self, sums: Sums, factors: Sequence[str] = ()) -> None:
        """Emit the stores of a tile of the result, rows multiplied by `factors`."""
        for i, row in enumerate(sums.names):
            for name, (place, real) in zip(row, sums.places, strict=True):
                self._store_quad(sums, i, place, real, f"({name} * {factors[i]})" if factors else name)

    def _store_quad(self, sums: Sums, i: int, place: Index, real: str | None, text: str) -> None:
        e, node = self.emit, sums.node
        conditions = [c for c in (self.live(i), real) if c]
        e.open()
        value = e.let("sum", text, len(e.scopes) - 1)
        ixs = [(*self.batch, self.row_at[i], place * WIDTH + (sums.offset + c)) for c in range(WIDTH)]
        for key in self.stores.get(node.id, ()):
            aligned = quad_of(flatten(ixs[0], node.shape)) if sums.width % WIDTH == 0 else None
            if key in e.vectors and aligned is not None and aligned[1] == 0:
                e.store_run(key, node, ixs, [f"{value}.{c}" for c in "xyzw"])
                continue
            for c, ix in enumerate(ixs):
                self._store_one(sums, key, place, c, ix, f"{value}.{'xyzw'[c]}")
        e.close(f"if ({' && '.join(conditions)})" if conditions else "")

    def _store_one(self, sums: Sums, key: str, place: Index, c: int, ix: Ix, text: str) -> None:
        e, inside = self.emit, (place * WIDTH + c).hi < sums.width
        if inside:
            e.store(key, sums.node, ix, text)
            return
        e.open()
        e.store(key, sums.node, ix, text)
        e.close(f"if ({show(place)} * {WIDTH} + {c} < {sums.width})")

    def live(self, i: int) -> str | None:
        """When row `i` of the thread exists."""
        return None if self.s.rows % self.t.rows == 0 else f"{self.row_texts[i]} < {self.s.rows}"


def show(place: Index) -> str:
    """A single variable, or a number."""
    ((atom, _),) = place.terms or ((None, 0),)
    return atom.name if isinstance(atom, Var) else str(place.offset)
