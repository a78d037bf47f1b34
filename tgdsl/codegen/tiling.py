"""How workgroups cover the result of a contraction.

Two families. *Direct* tilings read operands straight from memory, four columns to a thread, and
split the contracted axis over slices of the workgroup: small contractions need many small
workgroups, and software adapters are slow at barriers. *Tiled* ones stage both operands in
workgroup memory, each element once: for large contractions, and for operands that are dear to
address, such as the windows of a convolution.
"""

from __future__ import annotations

import math

import attrs

from tgdsl.ir import Contraction, Gather, Leaf, Node, Pointwise
from tgdsl.ir.index import Div, Index, Mod, flatten, unflatten, var
from tgdsl.schedule.access import Ix, broadcast_index, reads_of, view_source

THREADS = 128
"""Invocations of a workgroup; nearly always the same, so that bundled kernels need not adapt to each other."""

BUSY = 32768
"""Threads from which a device counts as busy."""

MOST_SHARED = 16384
"""Bytes of workgroup memory that every adapter has."""

MOST_CANDIDATES = 6
"""Tilings that are worth timing for one problem."""

PROCESSORS = 128
"""Workgroups that a large device runs side by side, each with a processor of its own."""

WIDTH = 4
"""Consecutive elements that a thread takes at a time, so that loads and stores can be vectors."""


@attrs.frozen
class Sizes:
    """A contraction's sizes, batch axes merged.

    Attributes:
        b: The batch.
        m: Rows.
        n: Columns.
        k: Terms.
        dear: Whether an element of an operand takes divisions, bounds or further loads to find.
        turned: Whether neighbouring elements of the right operand lie along the terms.
    """

    b: int
    m: int
    n: int
    k: int
    dear: bool = False
    turned: bool = False


@attrs.frozen
class Tiling:
    """How a workgroup covers the result.

    Attributes:
        tm: Rows per thread.
        tn: Columns per thread.
        tx: Threads along columns.
        ty: Threads along rows.
        slices: Slices of the contracted axis inside the workgroup (direct only).
        bk: Terms staged at a time; 0 in a direct tiling.
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

    @property
    def shared(self) -> int:
        """Bytes of workgroup memory."""
        if self.bk:
            return 4 * (self.rows + self.columns) * self.bk
        return 4 * self.threads * self.tm * self.tn if self.slices > 1 else 0

    def workgroups(self, s: Sizes) -> int:
        """How many workgroups cover the result."""
        return s.b * -(-s.m // self.rows) * -(-s.n // self.columns)


def sizes_of(node: Node, computed: set[int]) -> Sizes:
    """The sizes of a contraction node in a graph whose kernels store `computed`."""
    *batch, m, k = (int(d) for d in node.inputs[0].shape)
    n = int(node.shape[-1])
    lead = unflatten(var("b", math.prod(batch)), batch)
    dear = _is_dear(node.inputs[0], (*lead, var("m", m), var("k", k)), computed)
    dear = dear or _is_dear(node.inputs[1], (*lead, var("k", k), var("n", n)), computed)
    return Sizes(
        math.prod(batch), m, n, k, dear, _is_turned(node.inputs[1], (*lead, var("k", k), var("n", n)), computed)
    )


def _is_turned(node: Node, ix: Ix, computed: set[int]) -> bool:
    flats = [flatten(i, base.shape) for base, i in reads_of(node, ix, lambda n: n.id in computed)]
    return any(c == 1 and atom.variables() == {"k"} for flat in flats for atom, c in flat.terms)


def _is_dear(node: Node, ix: Ix, computed: set[int]) -> bool:
    """Whether finding an element of an operand takes divisions, bounds or other loads."""
    lowering = node.op.lower
    if isinstance(lowering, (Leaf, Contraction)) or node.id in computed:
        return any(_divides(i) for i in ix)
    if isinstance(lowering, Gather):
        return True
    if isinstance(lowering, Pointwise):
        return any(_is_dear(x, broadcast_index(ix, x.shape), computed) for x in node.inputs)
    source = view_source(node, ix)
    if any(e.lo < lo or e.hi >= hi for e, lo, hi in source.inside):
        return True
    return _is_dear(node.inputs[0], source.index, computed)


def _divides(i: Index) -> bool:
    """Whether a loop would divide; by a power of two it only shifts."""
    return any(
        isinstance(atom, (Div, Mod)) and atom.c & (atom.c - 1) and atom.variables() & {"m", "n", "k"}
        for atom, _ in i.terms
    )


def choose_tiling(s: Sizes, *, software: bool, threads: int | None = None) -> Tiling:
    """A tiling by the size of the problem.

    Args:
        s: The problem.
        software: Whether a CPU plays the GPU.
        threads: How many invocations the workgroup has, if that is given.
    """
    if software:
        return _for_software(s, threads or 64)
    tiles = s.b * -(-s.m // 64) * -(-s.n // 64)
    if tiles >= 96 and min(s.m, s.n, s.k) >= 32:
        return _large(s, threads)
    if s.dear and s.k >= 16 and min(s.m, s.n) >= 16:
        return _staged(s, threads or THREADS)
    if s.turned and s.k >= 32 and s.b * -(-s.m // 32) * -(-s.n // 64) >= 64:
        return _staged(s, threads or THREADS)
    return _direct(s, threads or THREADS)


def _for_software(s: Sizes, threads: int) -> Tiling:
    """Without workgroup memory; operands that are dear to find are used more often."""
    if s.dear and s.m >= 8 and s.n >= 8:
        ty = min(8, power(-(-s.m // 8)))
        return Tiling(8, 8, threads // ty, ty)
    tx = 8 if s.n > WIDTH else 1
    return Tiling(min(4, s.m), min(WIDTH, s.n), tx, threads // tx)


def _large(s: Sizes, threads: int | None) -> Tiling:
    """Of the tilings with so many threads, the one that a device should get most out of.

    How fast each is when it fills the device was measured on an H200, in TFLOP/s. While the contracted
    axis is short, a workgroup of 128 threads does as well as a larger one, and suits more bundles.
    """
    if (s.dear or s.k < 256) and threads in (None, THREADS):
        return Tiling(8, 4, 16, 8, bk=16)  # loads weigh more than products: rather many workgroups
    short = s.k <= 512
    rates = {
        Tiling(8, 8, 8, 16, bk=16): 41 if short else 32,
        Tiling(8, 8, 16, 16, bk=16): 41 if short else 45,
        Tiling(8, 4, 16, 8, bk=16): 38,
        Tiling(4, 4, 16, (threads or THREADS) // 16, bk=16): 28,
    }
    fitting = [t for t in rates if threads in (None, t.threads)]
    return max(fitting, key=lambda t: rates[t] * _share_of_use(s, t))


def _share_of_use(s: Sizes, t: Tiling) -> float:
    """How much of a device's work is for the result: not past its edges, nor waiting for the last workgroups."""
    rounds = -(-t.workgroups(s) // PROCESSORS)
    return s.b * s.m * s.n / (rounds * PROCESSORS * t.rows * t.columns)


def _staged(s: Sizes, threads: int) -> Tiling:
    """Sixteen threads along columns; the rows of a thread by how many rows there are."""
    ty = threads // 16
    return Tiling(min(8, max(2, power(-(-s.m // ty)))), 4, 16, ty, bk=16)


def _direct(s: Sizes, threads: int) -> Tiling:
    """As many rows per thread as leave the device busy, with the help of slices."""
    quads = s.b * s.m * -(-s.n // WIDTH)
    most = max(1, min(16, power(s.k) // 8))
    tm, slices = 1, most
    for rows in (4, 2, 1):
        needed = power(-(-BUSY * rows // quads))
        if rows <= s.m and needed <= 2 * most:
            tm, slices = rows, min(needed, most)
            break
    tx = min(4 if s.turned else 8, power(-(-s.n // WIDTH)))
    ty = max(1, min(threads // (slices * tx), power(-(-s.m // tm))))
    return Tiling(tm, min(WIDTH, s.n), tx, ty, threads // (tx * ty))


def candidates(s: Sizes, *, software: bool) -> list[Tiling]:
    """Tilings that are worth timing: the heuristic's choice, then others of as many invocations per workgroup."""
    usual = choose_tiling(s, software=software)
    direct, tiled = _other_direct(s, usual), _other_tiled(s, usual.threads)
    likely = usual.bk or s.dear or s.turned
    others = tiled[:4] + direct[:2] + tiled[4:] if likely else direct[:3] + tiled[:2] + direct[3:]
    fitting = [t for t in others if t.threads == usual.threads and t.shared <= MOST_SHARED]
    return list(dict.fromkeys([usual, *fitting]))[:MOST_CANDIDATES]


def _other_tiled(s: Sizes, threads: int) -> list[Tiling]:
    """Register blocks from large to small where they suit the result; none where tiles would be mostly empty."""
    if min(s.m, s.n) < 8 or s.k < 8:
        return []
    blocks = [Tiling(8, 4, 16, threads // 16, bk=16), Tiling(4, 4, 16, threads // 16, bk=16)]
    blocks.append(Tiling(2, 4, 16, threads // 16, bk=16))
    blocks[1:1] = [Tiling(8, 8, 8, threads // 8, bk=16), Tiling(8, 8, 16, threads // 16, bk=16)]
    blocks.append(Tiling(4, 4, 8, threads // 8, bk=16))
    blocks.append(Tiling(8, 4, 8, threads // 8, bk=16))
    area = s.m * s.n
    return [
        t for t in blocks if t.rows <= 2 * power(s.m) and t.columns <= 2 * power(s.n) and t.rows * t.columns <= 4 * area
    ]


def _other_direct(s: Sizes, usual: Tiling) -> list[Tiling]:
    """More and fewer slices, rows per thread and threads along columns than the heuristic's choice."""
    threads = usual.threads
    base = usual if not usual.bk else _direct(s, threads)
    shapes = [
        (base.tm, base.tx, base.slices),
        (base.tm, base.tx, base.slices * 2),
        (base.tm, base.tx, base.slices // 2),
        (base.tm * 2, base.tx, base.slices),
        (base.tm // 2, base.tx, base.slices),
        (base.tm, base.tx * 2, base.slices),
        (base.tm, base.tx // 2, base.slices),
        (base.tm * 2, base.tx, base.slices * 2),
    ]
    most = max(1, power(s.k) // 4)
    fitting = [
        Tiling(tm, base.tn, tx, threads // (tx * slices), slices)
        for tm, tx, slices in shapes
        if 1 <= tm <= min(4, s.m) and tx >= 1 and 1 <= slices <= most and tx * slices <= threads
    ]
    return list(dict.fromkeys(fitting))


def power(n: int) -> int:
    """The smallest power of two that is at least `n`."""
    return 1 << max(0, n - 1).bit_length()
