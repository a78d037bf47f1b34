"""Vectors of four: which bindings of a contraction kernel are arrays of `vec4`.

A thread takes four consecutive elements of an axis. Where these lie side by side and
aligned in memory, one load of 16 bytes fetches them all. Whether they do is seen from
the symbolic index: with the coordinate written as `4 * q + i`, every coefficient but that of `i`
must be a multiple of four.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tgdsl.ir import Node
from tgdsl.ir.index import Index, flatten, index, of_atom, unflatten, var
from tgdsl.schedule.access import IsBase, Ix, reads, reads_of
from tgdsl.schedule.group import Group

from .tiling import WIDTH, Sizes, Tiling

Accesses = Iterable[tuple[Node, Ix]]


def quad_of(flat: Index) -> tuple[Index, int] | None:
    """The vector that a position lies in, and the component; None if that depends on a variable."""
    if any(c % WIDTH for _, c in flat.terms):
        return None
    component = flat.offset % WIDTH
    out = index((flat.offset - component) // WIDTH)
    for atom, c in flat.terms:
        out = out + of_atom(atom) * (c // WIDTH)
    return out, component


def vectors_of(group: Group, s: Sizes, t: Tiling, computed: set[int], stored: Mapping[int, object]) -> set[int]:
    """Ids of the nodes whose storage a kernel of this contraction accesses by vectors."""
    is_base: IsBase = lambda n: n.id in computed  # noqa: E731
    batch = unflatten(var("b", s.b), [int(d) for d in group.anchor.shape[:-2]])
    m, n, k = ("m", s.m), ("n", s.n), ("k", s.k)
    stepping = {"m": bool(t.bk) or t.tm % WIDTH == 0, "n": bool(t.bk) or t.tn % WIDTH == 0, "k": True}
    found: set[int] = set()
    for operand, axes in zip(group.anchor.inputs, ((m, k), (k, n)), strict=True):
        for axis, size in axes:
            if stepping[axis] and size % WIDTH == 0:
                at = [(*batch, *(_stepped(x, i) if a == axis else var(a, x) for a, x in axes)) for i in (0, 1)]
                found |= side_by_side(*(reads_of(operand, ix, is_base) for ix in at))
    if t.slices == 1 and stepping["n"] and steps_evenly(group, s.n, is_base):
        found |= side_by_side(*(_results(group, {"n": _stepped(s.n, i)}, stored, is_base) for i in (0, 1)))
    return found


def steps_evenly(group: Group, size: int, is_base: IsBase) -> bool:
    """Whether the epilogue of a contraction can be written for columns `4 * q + i`.

    Views in between may divide the column; what they make of it need not simplify to the
    same expression then, and a member would not be recognised as the value that was just computed.
    """
    if size % WIDTH:
        return False
    for i in range(WIDTH):
        values = {"n": _stepped(size, i)}
        own = {id_: tuple(c.substitute(values) for c in ix) for id_, ix in group.own.items()}
        for node in group.members:
            if node is not group.anchor and any(
                own.get(base.id, ix) != ix for base, ix in reads(node, own[node.id], is_base)
            ):
                return False
    return True


def _stepped(size: int, i: int) -> Index:
    return var("q", size // WIDTH) * WIDTH + i


def _results(group: Group, values: dict[str, Index], stored: Mapping[int, object], is_base: IsBase) -> Accesses:
    """What the epilogue reads and stores."""
    for node in group.members:
        ix = tuple(i.substitute(values) for i in group.own[node.id])
        if node is not group.anchor:
            yield from reads(node, ix, is_base)
        if node.id in stored:
            yield node, ix


def side_by_side(here: Accesses, beside: Accesses) -> set[int]:
    """Ids of the nodes read at `here`, those of which the next element lies beside, in the same vector."""
    there: dict[int, list[Index]] = {}
    for node, ix in beside:
        there.setdefault(node.id, []).append(flatten(ix, node.shape))
    return {
        node.id
        for node, flat in _vectorizable(here)
        if quad_of(flat) is not None and any((t - flat).constant == 1 for t in there.get(node.id, ()))
    }


def _vectorizable(accesses: Accesses) -> Iterator[tuple[Node, Index]]:
    for node, ix in accesses:
        if node.dtype == "f32" and node.op.name != "scalar" and node.type.size % WIDTH == 0:
            yield node, flatten(ix, node.shape)
