"""Contractions over tiles of both operands in workgroup memory, each element staged once.

A tile lies with its rows along the contracted axis, four neighbours of the result's axis to a vector,
so a thread multiplies what few vector loads bring. Operands whose neighbours lie along the contracted
axis are turned on the way; their vectors are shuffled within groups of eight, so that the threads
that turn them write to different banks. While a tile is multiplied, the next one is on its way from
memory into registers, unless its elements are dear to find: their text would stand there twice.
"""

from __future__ import annotations

import attrs

from tgdsl.ir import Node
from tgdsl.ir.index import Index, Var, flatten, index, of_atom, var
from tgdsl.schedule.access import Ix, reads_of

from .contract import ContractionKernel, plus
from .tiling import WIDTH
from .wgsl import vector

BANKS = 8
"""Vectors of four that workgroup memory reads or writes in one go."""


@attrs.frozen
class Quad:
    """Four neighbouring elements of an operand that a thread stages.

    Attributes:
        name: Of the register that holds them.
        at: Which of the tile's quads it is, as text; it may lie past the last one.
        inside: When it does not, unless it never does.
        k: Its first term within the tile, or the quad of terms where the operand is turned.
        places: Its rows or columns; one where the operand is turned.
    """

    name: str
    at: str
    inside: str | None
    k: str
    places: tuple[Index, ...]


@attrs.frozen
class Side:
    """One operand's tile.

    Attributes:
        axis: `m` or `n`.
        base: Its first vector in workgroup memory.
        row: Vectors per term.
        turned: Whether neighbouring elements in memory lie along the contracted axis.
        quads: What a thread stages of it.
    """

    axis: str
    base: int
    row: int
    turned: bool
    quads: tuple[Quad, ...]


class TiledKernel(ContractionKernel):
    """A contraction whose workgroup stages `bk` terms at a time."""

    def declare_sums(self) -> None:
        """Emit the sums: a vector for every row and run of columns."""
        for i in range(self.t.tm):
            for run in range(self.t.tn // WIDTH):
                self.emit.line(f"var acc_{i}_{run} = vec4<f32>();")

    def sum_of(self, i: int, j: int) -> str:
        """The sum of a row and column of the thread."""
        return f"acc_{i}_{j // WIDTH}.{'xyzw'[j % WIDTH]}"

    def sum_products(self) -> None:
        """Emit the loop over tiles: stage, wait, multiply, wait."""
        e, t, s = self.emit, self.t, self.s
        first = t.rows * t.bk // WIDTH
        self.shared.append(f"var<workgroup> tiles: array<vec4<f32>, {first + t.columns * t.bk // WIDTH}>;")
        self.sides = [self._side("m", 0, t.rows, s.m), self._side("n", first, t.columns, s.n)]
        if not s.dear:
            self._fetch("", "var ")
        e.open()
        e.variable("k_tile")
        if s.dear:
            self._fetch("k_tile", "let ")
        self._put()
        e.line("workgroupBarrier();")
        if not s.dear and s.k > t.bk:
            e.open()
            e.line(f"let k_next = k_tile + {t.bk};")
            self._fetch("k_next", "")
            e.close(f"if (k_tile + {t.bk} < {s.k})")
        self._multiply()
        e.line("workgroupBarrier();")
        e.close(f"for (var k_tile = 0; k_tile < {s.k}; k_tile += {t.bk})")

    # -- staging ------------------------------------------------------------

    def _side(self, axis: str, base: int, per: int, size: int) -> Side:
        """Which quads of an operand's tile a thread stages: neighbours in memory go to neighbouring threads."""
        e, t = self.emit, self.t
        row, turned = per // WIDTH, self._is_turned(axis)
        count = per * t.bk // WIDTH
        quads: list[Quad] = []
        for first in range(0, count, t.threads):
            at = f"lane_id{plus(first)}"
            spare = first + t.threads > count
            if spare or first:
                at = e.let(f"{axis}_at", f"min({at}, {count - 1})" if spare else at, 0)
            k = e.let(f"{axis}_k", f"{at} % {t.bk // WIDTH}" if turned else f"{at} / {row}", 0)
            other = f"{at} / {t.bk // WIDTH}" if turned else f"{at} % {row}"
            places = [self._in_range(f"{axis}_tile + {other}", size, per)[0]] if turned else []
            if not turned:
                places = [place for place, _ in self._run(f"{axis}_tile", other, size, per)]
            inside = f"lane_id{plus(first)} < {count}" if spare else None
            quads.append(Quad(e.name(f"{axis}_next"), at, inside, k, tuple(places)))
        return Side(axis, base, row, turned, tuple(quads))

    def _fetch(self, tile: str, declare: str) -> None:
        """Load the thread's quads of the tile at a term into registers; zeros past the last term."""
        s, t = self.s, self.t
        for side in self.sides:
            for q in side.quads:
                if side.turned:
                    texts = [self._kept(side, q.places[0], k, real) for k, real in self._run(tile, q.k, s.k, t.bk)]
                else:
                    k, real = self._in_range(f"{tile} + {q.k}" if tile else q.k, s.k, t.bk)
                    texts = [self._kept(side, place, k, real) for place in q.places]
                self.emit.line(f"{declare}{q.name} = {vector(texts)};")

    def _put(self) -> None:
        """Copy the registers to workgroup memory."""
        e = self.emit
        for side in self.sides:
            for q in side.quads:
                if q.inside:
                    e.open()
                if side.turned:
                    part = e.name("part")
                    place = e.name("place")
                    e.line(f"let {part} = {q.at} / {self.t.bk // WIDTH};")
                    shuffled = f"(({part} >> 2u) ^ {self._shuffle(side, q.k)})"
                    e.line(f"let {place} = {q.k} * {WIDTH * side.row} + {shuffled}{plus(side.base)};")
                    for u, component in enumerate("xyzw"):
                        e.line(f"tiles[{place}{plus(u * side.row)}][{part} & 3] = {q.name}.{component};")
                else:
                    e.line(f"tiles[{q.at}{plus(side.base)}] = {q.name};")
                if q.inside:
                    e.close(f"if ({q.inside})")

    def _shuffle(self, side: Side, k: str) -> str:
        """What the vectors of a turned operand are shuffled by, depending on the quad of terms."""
        step, mask = self._shuffling(side)
        scaled = f"({k} * {step})" if step > 1 else k
        return scaled if mask == BANKS - 1 else f"({scaled} & {mask})"

    def _shuffling(self, side: Side) -> tuple[int, int]:
        return max(1, BANKS * WIDTH // self.t.bk), min(BANKS, side.row) - 1

    def _kept(self, side: Side, place: Index, k: Index, real: str | None) -> str:
        """An operand's element; zero past the end of the contracted axis."""
        value = self.a(place, k) if side.axis == "m" else self.b(k, place)
        return f"select(0.0f, {value}, {real})" if real else value

    def _run(self, tile: str, quad: str, size: int, per: int) -> list[tuple[Index, str | None]]:
        """Four neighbouring coordinates in range, and whether they are real."""
        if size % WIDTH == 0:
            text = f"({tile} >> 2u) + {quad}" if tile else quad
            q, real = self._in_range(text, size // WIDTH, per // WIDTH)
            return [(q * WIDTH + u, real) for u in range(WIDTH)]
        first = f"{tile} + {quad} * {WIDTH}" if tile else f"{quad} * {WIDTH}"
        return [self._in_range(f"{first}{plus(u)}", size, per) for u in range(WIDTH)]

    def _in_range(self, text: str, size: int, per: int) -> tuple[Index, str | None]:
        """A coordinate in steps of which `per` make a tile: clamped, and when it is a real one."""
        e = self.emit
        exact = size % per == 0
        if size == 1:
            return index(0), None if exact else f"{text} < 1"
        name = e.name("i")
        e.line(f"let {name} = {text};" if exact else f"let {name} = min({text}, {size - 1});")
        e.variable(name)
        return of_atom(Var(name, 0, size - 1)), None if exact else f"{text} < {size}"

    def _is_turned(self, axis: str) -> bool:
        """Whether an operand's neighbouring elements lie along the contracted axis."""
        k, other = var("k", self.s.k), var(axis, self.s.m if axis == "m" else self.s.n)
        ix: Ix = (*self._batch, other, k) if axis == "m" else (*self._batch, k, other)
        operand = self.node.inputs[0 if axis == "m" else 1]
        beside: set[str] = set()
        for base, at in reads_of(operand, ix, lambda n: n.id in self.emit.keys):
            beside |= {v for atom, c in flatten(at, base.shape).terms if c == 1 for v in atom.variables()}
        if ("k" in beside) != (axis in beside):
            return "k" in beside
        return self._is_swapped(operand) != (axis == "m")

    @staticmethod
    def _is_swapped(x: Node) -> bool:
        swapped = False
        while x.op.name in ("permute", "reshape"):
            if x.op.name == "permute" and x.attrs["perm"][-1] != len(x.attrs["perm"]) - 1:
                swapped = not swapped
            x = x.inputs[0]
        return swapped

    # -- products -----------------------------------------------------------

    def _multiply(self) -> None:
        """Every term of the tile, written out: drivers overlap its loads with the products of the term before."""
        for kk in range(self.t.bk):
            self._multiply_term(kk)

    def _multiply_term(self, kk: int) -> None:
        e, t = self.emit, self.t
        left, right = self.sides
        e.open()
        if t.tm < WIDTH:
            e.line(f"let x0 = {self._tile_vector(left, kk, f'((ty * {t.tm}) >> 2u)', 0)};")
        for run in range(t.tm // WIDTH):
            e.line(f"let x{run} = {self._tile_vector(left, kk, 'ty', run * t.ty)};")
        for run in range(t.tn // WIDTH):
            e.line(f"let y{run} = {self._tile_vector(right, kk, 'tx', run * t.tx)};")
        for i in range(t.tm):
            x = f"x{i // WIDTH}.{'xyzw'[i % WIDTH]}" if t.tm >= WIDTH else f"x0[((ty * {t.tm}) & 3){plus(i)}]"
            for run in range(t.tn // WIDTH):
                e.line(f"acc_{i}_{run} = fma(vec4<f32>({x}), y{run}, acc_{i}_{run});")
        e.close("")

    def _tile_vector(self, side: Side, kk: int, lane: str, more: int) -> str:
        """The vector that a thread needs of a tile for one term."""
        step, mask = self._shuffling(side)
        shuffle = kk // WIDTH * step & mask if side.turned else 0
        if shuffle and more % BANKS:
            return f"tiles[(({lane} + {more}) ^ {shuffle}){plus(side.base + kk * side.row)}]"
        return f"tiles[{f'({lane} ^ {shuffle})' if shuffle else lane}{plus(side.base + kk * side.row + more)}]"
