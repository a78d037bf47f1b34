"""Contractions over tiles of both operands in workgroup memory, each element staged once."""

from __future__ import annotations

from tgdsl.ir.index import Index, Var, index, of_atom

from .contract import ContractionKernel
from .tiling import WIDTH


class TiledKernel(ContractionKernel):
    """A contraction whose workgroup stages `bk` terms at a time."""

    def sum_products(self) -> None:
        """Emit the loop over tiles: stage, wait, multiply, wait."""
        e, t, s = self.emit, self.t, self.s
        self.second = t.rows * t.bk // WIDTH
        self.shared.append(f"var<workgroup> tiles: array<vec4<f32>, {self.second + t.columns * t.bk // WIDTH}>;")
        e.open()
        e.variable("k_tile")
        self._stage("m", 0, t.rows, s.m)
        self._stage("n", self.second, t.columns, s.n)
        e.line("workgroupBarrier();")
        self._multiply()
        e.line("workgroupBarrier();")
        e.close(f"for (var k_tile = 0; k_tile < {s.k}; k_tile += {t.bk})")

    def _multiply(self) -> None:
        e, t = self.emit, self.t
        e.open()
        for run in range(t.tm // WIDTH):
            e.line(f"let x{run} = tiles[kk * {t.rows // WIDTH} + ty + {run * t.ty}];")
        for run in range(t.tn // WIDTH):
            e.line(f"let y{run} = tiles[{self.second} + kk * {t.columns // WIDTH} + tx + {run * t.tx}];")
        for i in range(t.tm):
            for j in range(t.tn):
                x, y = (f"{v}{n // WIDTH}.{'xyzw'[n % WIDTH]}" for v, n in (("x", i), ("y", j)))
                e.line(f"acc_{i}_{j} = fma({x}, {y}, acc_{i}_{j});")
        e.close(f"for (var kk = 0; kk < {t.bk}; kk++)")

    def _stage(self, side: str, base: int, per: int, size: int) -> None:
        """Copy one operand's tile, four elements to a thread, along the axis that lies side by side."""
        e, t, s = self.emit, self.t, self.s
        along_k = self._k_is_last(side)
        quads = per * t.bk // WIDTH
        whole = (s.k if along_k else size) % WIDTH == 0
        for first in range(0, quads, t.threads):
            at = e.name(f"{side}_at")
            e.line(f"let {at} = lane_id + {first};")
            spare = first + t.threads > quads
            if spare:
                e.open()
            if along_k:
                self._stage_along_k(side, base, per, size, at, whole=whole)
            else:
                self._stage_along_side(side, base, per, size, at, whole=whole)
            if spare:
                e.close(f"if ({at} < {quads})")

    def _stage_along_k(self, side: str, base: int, per: int, size: int, at: str, *, whole: bool) -> None:
        e, t = self.emit, self.t
        kq, o = e.name("kq"), e.name("o")
        e.line(f"let {kq} = {at} % {t.bk // WIDTH};")
        e.line(f"let {o} = {at} / {t.bk // WIDTH};")
        place, _ = self._in_range(f"{side}_tile + {o}", size, exact=size % per == 0)
        for u, (k, real) in enumerate(self._run("k_tile", kq, self.s.k, t.bk, whole=whole)):
            text = self._kept(side, place, k, real)
            row = f"{base} + ({kq} * {WIDTH} + {u}) * {per // WIDTH}"
            e.line(f"tiles[{row} + ({o} >> 2u)][{o} & 3] = {text};")

    def _stage_along_side(self, side: str, base: int, per: int, size: int, at: str, *, whole: bool) -> None:
        e, t = self.emit, self.t
        kk, oq = e.name("kk"), e.name("oq")
        e.line(f"let {kk} = {at} / {per // WIDTH};")
        e.line(f"let {oq} = {at} % {per // WIDTH};")
        k, real = self._in_range(f"k_tile + {kk}", self.s.k, exact=self.s.k % t.bk == 0)
        run = self._run(f"{side}_tile", oq, size, per, whole=whole)
        texts = [self._kept(side, place, k, real) for place, _ in run]
        e.line(f"tiles[{base} + {kk} * {per // WIDTH} + {oq}] = vec4<f32>({', '.join(texts)});")

    def _kept(self, side: str, place: Index, k: Index, real: str | None) -> str:
        """An operand's element; zero past the end of the contracted axis."""
        value = self.a(place, k) if side == "m" else self.b(k, place)
        return f"select(0.0f, {value}, {real})" if real else value

    def _run(self, tile: str, quad: str, size: int, per: int, *, whole: bool) -> list[tuple[Index, str | None]]:
        """Four neighbouring coordinates in range, and whether they are real."""
        if whole:
            q, real = self._in_range(f"({tile} >> 2u) + {quad}", size // WIDTH, exact=size % per == 0)
            return [(q * WIDTH + u, real) for u in range(WIDTH)]
        exact = size % per == 0
        return [self._in_range(f"{tile} + {quad} * {WIDTH} + {u}", size, exact=exact) for u in range(WIDTH)]

    def _in_range(self, text: str, size: int, *, exact: bool) -> tuple[Index, str | None]:
        e = self.emit
        if size == 1:
            return index(0), None if exact else f"{text} < 1"
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
