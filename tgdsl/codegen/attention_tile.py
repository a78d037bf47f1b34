"""How workgroups cover an attention, and what they keep in workgroup memory.

A workgroup takes a tile of rows (queries; keys in the gradient of keys and values) of one batch
element and walks over tiles of columns. Its threads stand in a grid of eight along the columns: a thread has
some rows, `WIDTH` columns of each tile of scores, and every eighth vector of the result.
"""

from __future__ import annotations

import math

import attrs

from tgdsl.ir import Attention, Node
from tgdsl.ir.index import unflatten, var
from tgdsl.ir.lowering import Role
from tgdsl.schedule.access import IsBase, Ix, reads_of
from tgdsl.schedule.group import Group

from .quads import side_by_side
from .tiling import THREADS, WIDTH

ACROSS = 8
"""Threads along columns."""

COLUMNS = ACROSS * WIDTH
"""Columns of a tile of scores."""

MOST_WIDE = 128
"""Elements of a query or a value that kernels are made for."""

CHUNK = 32
"""Elements of operands that are staged at a time for scores, at most."""

BUSY_GROUPS = 256
"""Workgroups from which a device counts as busy."""

MOST_SUMS = 64
"""Numbers of the result that a thread may keep in registers."""

MEMORY = 1024 - 64
"""Vectors of workgroup memory: 16 KiB but for what other bodies of a bundle declare."""

WEIGHTS_STRIDE = COLUMNS // WIDTH + 1
"""Vectors per row of staged weights; odd, so that rows lie in different banks."""


@attrs.frozen
class Span:
    """Sizes of an attention, batch axes merged: queries `[b, t, d]`, keys `[b, s, d]`, values `[b, s, e]`."""

    role: Role
    b: int
    t: int
    s: int
    d: int
    e: int

    @property
    def rows(self) -> int:
        """Of what workgroups have tiles."""
        return self.s if self.role == "dkv" else self.t

    @property
    def columns(self) -> int:
        """Over what they walk."""
        return self.t if self.role == "dkv" else self.s

    @property
    def sums(self) -> tuple[int, ...]:
        """Widths of the results that a workgroup adds up."""
        return {"out": (self.e,), "lse": (), "dq": (self.d,), "dkv": (self.e, self.d)}[self.role]


def span_of(group: Group) -> Span:
    """The sizes of an attention group."""
    anchor = next((n for n in group.members if _role(n) == "out"), group.anchor)
    q, k = anchor.inputs[:2]
    *batch, t, d = (int(n) for n in q.shape)
    e = int(anchor.inputs[2].shape[-1]) if len(anchor.inputs) > 2 else 0
    return Span(_role(anchor), math.prod(batch), t, int(k.shape[-2]), d, e)


def _role(node: Node) -> Role:
    lowering = node.op.lower
    assert isinstance(lowering, Attention)
    return lowering.role


@attrs.frozen
class AttentionTile:
    """How a workgroup covers its rows: threads, and rows per thread."""

    threads: int
    tm: int

    @property
    def ty(self) -> int:
        """Threads along rows."""
        return self.threads // ACROSS

    @property
    def rows(self) -> int:
        """Rows of a workgroup."""
        return self.ty * self.tm

    def workgroups(self, s: Span) -> int:
        """How many workgroups cover the attention."""
        return s.b * -(-s.rows // self.rows)

    @property
    def memory(self) -> int:
        """Vectors of workgroup memory that may be used."""
        return MEMORY - max(0, self.threads - THREADS) // 2

    @property
    def partials(self) -> int:
        """Where partial results of threads lie: behind the weights."""
        return self.rows * WEIGHTS_STRIDE

    @property
    def values(self) -> int:
        """Where rows lie that are summed with weights."""
        return self.partials + self.threads

    def value_rows(self, width: int) -> int:
        """How many rows of that width are staged at a time; 0 if they do not fit."""
        return next((n for n in (32, 16, 8) if self.values + n * quads(width) <= self.memory), 0)

    def needed(self, s: Span) -> int:
        """Vectors of workgroup memory."""
        scores = [(self.rows + COLUMNS) * (chunk(w) | 1) for w in (s.d, s.e) if w]
        sums = [self.values + self.value_rows(w) * quads(w) for w in s.sums]
        return max([*scores, *sums, self.values])

    def fits(self, s: Span) -> bool:
        """Whether registers and workgroup memory suffice."""
        sums = sum(self.tm * WIDTH * -(-quads(w) // ACROSS) for w in s.sums)
        return self.needed(s) <= self.memory and all(map(self.value_rows, s.sums)) and sums <= MOST_SUMS


def quads(width: int) -> int:
    """Vectors that cover so many elements."""
    return -(-width // WIDTH)


def chunk(width: int) -> int:
    """Vectors of a row of that width that are staged at a time."""
    pieces = -(-width // CHUNK)
    return -(-quads(width) // pieces)


def choose_attention_tile(s: Span, threads: int | None = None) -> AttentionTile:
    """As many rows per thread as leave the device busy; workgroups of that size if one is given."""
    for tm in (4, 2):
        tile = AttentionTile(threads or THREADS, tm)
        if s.rows > tile.rows // 2 and tile.workgroups(s) >= BUSY_GROUPS and tile.fits(s):
            return tile
    return AttentionTile(threads or THREADS, 1)


def vectors_of_attention(group: Group, computed: set[int]) -> set[int]:
    """Ids of the nodes whose storage a kernel of this attention accesses by vectors."""
    is_base: IsBase = lambda n: n.id in computed  # noqa: E731
    found: set[int] = set()
    for node in group.members:
        for x in node.inputs:
            if _role(node) != "lse" and _is_wide(x, node):
                found |= side_by_side(*(reads_of(x, _stepped(x, i), is_base) for i in (0, 1)))
        if _role(node) != "lse" and all(w % WIDTH == 0 for w in span_of(group).sums):
            found |= side_by_side(*([(node, _stepped(node, i))] for i in (0, 1)))
    return found


def _is_wide(x: Node, node: Node) -> bool:
    return x.type.ndim == node.type.ndim and x.shape[-1] % WIDTH == 0


def _stepped(x: Node, i: int) -> Ix:
    *batch, n, width = (int(d) for d in x.shape)
    lead = unflatten(var("b", math.prod(batch)), batch)
    return (*lead, var("row", n), var("q", width // WIDTH) * WIDTH + i)
