"""A group: the nodes that one kernel computes, and the index of each in kernel variables.

There are three kinds of iteration. A *fold* kernel runs rows `p` and, inside a row, a fold
variable `r`; element-wise kernels are the case without `r`. A *contraction* kernel runs
results `(b, m, n)`. An *attention* kernel is by itself: it computes one part, or the two
parts of a forward. A node may join a group when every value of the group that it reads
is read at the very index at which the group computes it; then nothing has to be stored
for it, and the order inside a thread or row suffices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import attrs

from tgdsl.ir import Attention, Contraction, Node, Pointwise, Reduction, View
from tgdsl.ir.index import Index, flatten, reindex, unflatten, var

from .access import IsBase, Ix, reads, reads_of

Pattern = tuple[tuple[int, bool], ...]
"""Merged axes of a fold kernel: `(size, whether it is folded)`, in memory order."""


def pattern_of(node: Node) -> Pattern:
    """The iteration of a node: its own elements, or for a reduction those of its operand."""
    if isinstance(node.op.lower, Reduction):
        shape, folded = node.inputs[0].shape, set(node.attrs["axes"])
    else:
        shape, folded = node.shape, set()
    merged: list[tuple[int, bool]] = []
    for axis, n in enumerate(shape):
        size = int(n)
        if size == 1:
            continue
        if merged and merged[-1][1] == (axis in folded):
            merged[-1] = (merged[-1][0] * size, merged[-1][1])
        else:
            merged.append((size, axis in folded))
    return tuple(merged)


@attrs.define(eq=False)
class Group:
    """One kernel in the making.

    Attributes:
        id: Number in the order of creation.
        kind: Which iteration.
        pattern: The iteration of a fold kernel.
        members: The nodes it computes, in topological order.
        own: For each member id, the index at which it is computed, in kernel variables.
        operand: For each reduction's id, the index at which its operand is read.
        before: Ids of the groups that must run earlier.
    """

    id: int
    kind: Literal["fold", "contraction", "attention"]
    pattern: Pattern
    members: list[Node] = attrs.field(factory=list)
    own: dict[int, Ix] = attrs.field(factory=dict)
    operand: dict[int, Ix] = attrs.field(factory=dict)
    before: set[int] = attrs.field(factory=set)

    @property
    def rows(self) -> int:
        """How many results the iteration has."""
        return math.prod(n for n, folded in self.pattern if not folded)

    @property
    def fold(self) -> int:
        """How many terms each row folds; 1 in an element-wise kernel."""
        return math.prod(n for n, folded in self.pattern if folded)

    @property
    def anchor(self) -> Node:
        """The contraction of a contraction kernel; the first part of an attention."""
        return self.members[0]

    @property
    def fold_is_last(self) -> bool:
        """Whether neighbouring terms of a row lie side by side."""
        return bool(self.pattern) and self.pattern[-1][1]

    def coordinates(self) -> tuple[Index, ...]:
        """One index per merged axis, from the variables `p` and `r`."""
        rows = [n for n, folded in self.pattern if not folded]
        terms = [n for n, folded in self.pattern if folded]
        p = iter(unflatten(var("p", math.prod(rows)), rows))
        r = iter(unflatten(var("r", math.prod(terms)), terms))
        return tuple(next(r) if folded else next(p) for _, folded in self.pattern)

    def element_index(self, shape: tuple[int, ...]) -> Ix:
        """The index into `shape` of the element that the iteration is at."""
        return reindex(self.coordinates(), [n for n, _ in self.pattern], [int(n) for n in shape])

    def row_index(self, shape: tuple[int, ...]) -> Ix:
        """The index into `shape` of the result that the iteration is at."""
        kept = [(c, n) for c, (n, folded) in zip(self.coordinates(), self.pattern, strict=True) if not folded]
        return reindex([c for c, _ in kept], [n for _, n in kept], [int(n) for n in shape])


def contraction_index(node: Node) -> Ix:
    """The index of a contraction's result in the variables `b`, `m`, `n`."""
    *batch, m, n = (int(d) for d in node.shape)
    return (*unflatten(var("b", math.prod(batch)), batch), var("m", m), var("n", n))


def are_partners(a: Node, b: Node) -> bool:
    """Whether these are the result and the log-sum-exp of the same attention."""
    if not isinstance(a.op.lower, Attention) or not isinstance(b.op.lower, Attention):
        return False
    same = a.inputs[:2] == b.inputs[:2] and a.attrs == b.attrs
    return same and {a.op.lower.role, b.op.lower.role} == {"out", "lse"}


def _whole(node: Node) -> Ix:
    return tuple(var(f"axis{i}", int(n)) for i, n in enumerate(node.shape))


def start(id_: int, node: Node) -> Group:
    """A new group for `node` alone."""
    if isinstance(node.op.lower, Attention):
        group = Group(id_, "attention", ())
        group.own[node.id] = _whole(node)
    elif isinstance(node.op.lower, Contraction):
        group = Group(id_, "contraction", ())
        group.own[node.id] = contraction_index(node)
    else:
        group = Group(id_, "fold", pattern_of(node))
        if isinstance(node.op.lower, Reduction):
            group.operand[node.id] = group.element_index(node.inputs[0].shape)
            group.own[node.id] = group.row_index(node.shape)
        else:
            group.own[node.id] = group.element_index(node.shape)
    group.members.append(node)
    return group


def place(group: Group, node: Node, is_base: IsBase) -> tuple[Ix, Ix | None] | None:
    """The index at which `group` can compute `node` (and read its operand), or None."""
    if group.kind == "attention" or isinstance(node.op.lower, Attention):
        return (_whole(node), None) if all(are_partners(m, node) for m in group.members) else None
    if isinstance(node.op.lower, Contraction):
        return None
    if isinstance(node.op.lower, Reduction):
        return _place_reduction(group, node, is_base)
    for ix in _candidates(group, node, is_base):
        if _agrees(group, reads(node, ix, is_base)):
            return ix, None
    return None


def _place_reduction(group: Group, node: Node, is_base: IsBase) -> tuple[Ix, Ix] | None:
    if group.kind != "fold" or pattern_of(node) != group.pattern or group.fold == 1:
        return None
    x = node.inputs[0]
    operand = group.element_index(x.shape)
    if not _agrees(group, reads_of(x, operand, is_base)):
        return None
    return group.row_index(node.shape), operand


def _agrees(group: Group, accesses: Iterator[tuple[Node, Ix]]) -> bool:
    return all(group.own.get(base.id, ix) == ix for base, ix in accesses)


def _candidates(group: Group, node: Node, is_base: IsBase) -> Iterator[Ix]:
    if group.kind == "fold":
        if node.type.size == group.rows * group.fold:
            yield group.element_index(node.shape)
        if node.type.size == group.rows and group.fold > 1:
            yield group.row_index(node.shape)
    for x in node.inputs:
        for ix in _pushed(group, x, is_base):
            if x.shape == node.shape and not isinstance(node.op.lower, View):
                yield ix
            elif isinstance(node.op.lower, View):
                up = _through_view(node, ix)
                if up is not None:
                    yield up


def _pushed(group: Group, node: Node, is_base: IsBase) -> Iterator[Ix]:
    """Indices of `node` at which one of the group's members below it is at its own index."""
    if node.id in group.own:
        yield group.own[node.id]
        return
    if is_base(node):
        return
    for x in node.inputs:
        for ix in _pushed(group, x, is_base):
            if isinstance(node.op.lower, View):
                up = _through_view(node, ix)
                if up is not None:
                    yield up
            elif isinstance(node.op.lower, Pointwise) and x.shape == node.shape:
                yield ix


def _through_view(view: Node, ix: Ix) -> Ix | None:
    """The index of a reshape or permutation at which it shows its operand's element `ix`."""
    if view.op.name == "reshape":
        return reindex(ix, [int(n) for n in view.inputs[0].shape], [int(n) for n in view.shape])
    if view.op.name == "permute":
        return tuple(ix[p] for p in view.attrs["perm"])
    return None


def widen(group: Group, node: Node, is_base: IsBase) -> Group | None:
    """`group`, an element-wise kernel, iterating as the reduction `node` does, which then joins."""
    pattern = pattern_of(node)
    if group.kind != "fold" or group.fold != 1 or math.prod(n for n, _ in pattern) != group.rows:
        return None
    wide = Group(group.id, "fold", pattern, list(group.members), before=group.before)
    flat = flatten(wide.coordinates(), [n for n, _ in pattern])
    wide.own = {i: tuple(c.substitute({"p": flat}) for c in ix) for i, ix in group.own.items()}
    wide.operand = {i: tuple(c.substitute({"p": flat}) for c in ix) for i, ix in group.operand.items()}
    placed = place(wide, node, is_base)
    if placed is None:
        return None
    wide.own[node.id] = placed[0]
    if placed[1] is not None:
        wide.operand[node.id] = placed[1]
    wide.members.append(node)
    return wide
