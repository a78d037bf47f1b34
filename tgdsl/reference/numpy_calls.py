"""The NumPy calls of one node, bound to their arrays.

An op whose reference is a ufunc needs nothing here. The rest of this file is about what
NumPy does slowly: `where` mispredicts branches, `maximum` with a scalar is not
vectorised, reductions of short rows pay per row, and anything that allocates a large
array pays for its pages again in every step.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import attrs
import numpy as np

from tgdsl.ir import Node

from .numpy_pool import Array, flattened, in_order, memory_order

Call: TypeAlias = Callable[[], object]


@attrs.frozen(eq=False)
class Place:
    """Where a node is computed.

    Attributes:
        node: The node.
        inputs: Its operands.
        out: Where its value goes: without gaps, its axes in memory in any order.
        constant: For each operand, whether it never changes.
        scratch: Gives an array that may be overwritten by the next node.
        key: Two numbers that stochastic ops are keyed by.
        made: Arrays that never change, shared by all calls of a program.
    """

    node: Node
    inputs: Sequence[Array]
    out: Array
    constant: Sequence[bool]
    scratch: Callable[[tuple[int, ...], Any], Array]
    key: Array
    made: dict[Hashable, Array] = attrs.field(factory=dict)

    @property
    def x(self) -> Array:
        """The first operand."""
        return self.inputs[0]

    def like(self, array: Array, dtype: Any = np.float32) -> Array:
        """Scratch that lies in memory as `array` does, so that a call sees one long row of both."""
        order = memory_order(array)
        return in_order(self.scratch(tuple(array.shape[a] for a in order), dtype), order)

    def once(self, key: Hashable, make: Callable[[], Array]) -> Array:
        """An array that never changes, made by the first who asks for it."""
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]

    def filled(self, array: Array, value: float) -> Array:
        """An array of one value that lies in memory as `array` does."""
        return self.once((value, array.shape, array.strides), lambda: np.full_like(array, value))


LONG: Final = 1024
"""Terms of a sum beyond which it is done in parts."""

SMALL: Final = 256
"""Rows and columns up to which BLAS multiplies by a transposed matrix at half its speed."""

Emitter: TypeAlias = Callable[[Place], list[Call]]
EMITTERS: dict[str, Emitter] = {}
IN_PLACE: set[str] = set()
"""Ops with an emitter that reads no operand after it has begun to write the result."""


def emits(*names: str, in_place: bool = False) -> Callable[[Emitter], Emitter]:
    """Register how ops are computed."""

    def register(emitter: Emitter) -> Emitter:
        for name in names:
            EMITTERS[name] = emitter
            if in_place:
                IN_PLACE.add(name)
        return emitter

    return register


def emit(place: Place) -> list[Call]:
    """The calls that compute a node."""
    node = place.node
    emitter = EMITTERS.get(node.op.name)
    if emitter is not None:
        return emitter(place)
    if _is_ufunc(node):
        return [bound(node.op.ref, *place.inputs, out=place.out)]
    return [_stochastic(place) if node.op.stochastic else general(place)]


def bound(ufunc: Any, *operands: Any, out: Array) -> Call:
    """A call of a ufunc that NumPy has little to parse of: 0.7 microseconds instead of 1.3."""
    arrays = [np.asarray(x, out.dtype) if isinstance(x, float) else x for x in operands]
    if ufunc in (np.maximum, np.minimum):  # the only two that refuse a third positional operand
        return partial(ufunc, *arrays, out=out)
    return partial(ufunc, *arrays, out)


def elementwise(node: Node) -> bool:
    """Whether its result may overwrite an operand of the same type."""
    return node.op.name in IN_PLACE or (node.op.name not in EMITTERS and _is_ufunc(node))


def _is_ufunc(node: Node) -> bool:
    # An attribute would be taken for an option of the ufunc.
    ref: Any = node.op.ref
    same = isinstance(ref, np.ufunc) and ref.nin == len(node.inputs)
    return same and not node.attrs and ref.signature is None


def general(place: Place) -> Call:
    """Whatever the reference does, copied to where it is wanted."""
    ref, inputs, out = place.node.op.ref, place.inputs, place.out
    attributes = dict(place.node.attrs)

    def call() -> None:
        np.copyto(out, ref(*inputs, **attributes), casting="unsafe")

    return call


def _stochastic(place: Place) -> Call:
    ref, inputs, out, key = place.node.op.ref, place.inputs, place.out, place.key
    attributes = dict(place.node.attrs)

    def call() -> None:
        pair = (int(key[0]) & 0xFFFFFFFF, int(key[1]) & 0xFFFFFFFF)
        np.copyto(out, ref(*inputs, **attributes, key=pair), casting="unsafe")

    return call


# Element by element


@emits("relu", in_place=True)
def _relu(place: Place) -> list[Call]:
    return [bound(np.maximum, place.x, place.filled(place.out, 0.0), out=place.out)]


@emits("square", in_place=True)
def _square(place: Place) -> list[Call]:
    return [bound(np.multiply, place.x, place.x, out=place.out)]


@emits("power", in_place=True)
def _power(place: Place) -> list[Call]:
    exponent = float(place.node.attrs["exponent"])
    if exponent == 2.0:
        return _square(place)
    return [bound(np.power, place.x, exponent, out=place.out)]


@emits("rsqrt", in_place=True)
def _rsqrt(place: Place) -> list[Call]:
    out = place.out
    return [bound(np.sqrt, place.x, out=out), bound(np.divide, 1.0, out, out=out)]


@emits("sigmoid", in_place=True)
def _sigmoid(place: Place) -> list[Call]:
    out = place.out
    return [
        bound(np.multiply, place.x, 0.5, out=out),
        bound(np.tanh, out, out=out),
        bound(np.multiply, out, 0.5, out=out),
        bound(np.add, out, 0.5, out=out),
    ]


@emits("where", in_place=True)
def _where(place: Place) -> list[Call]:
    """Select by bits: `b ^ ((a ^ b) & mask)`, exact for every value and free of branches."""
    _, a, b = place.inputs
    if place.out.dtype.itemsize != np.dtype(np.int32).itemsize:
        return [general(place)]
    calls, mask = _mask(place)
    a, b, to = a.view(np.int32), b.view(np.int32), place.out.view(np.int32)
    if place.constant[2] and not np.asarray(b).any():
        return [*calls, bound(np.bitwise_and, a, mask, out=to)]
    if place.constant[0] and place.constant[2] and b.size == 1:
        rest = ~mask & b.reshape(-1)[0]
        return [bound(np.bitwise_and, a, mask, out=to), bound(np.bitwise_or, to, rest, out=to)]
    mixed = place.like(place.out, np.int32)
    return [
        *calls,
        bound(np.bitwise_xor, a, b, out=mixed),
        bound(np.bitwise_and, mixed, mask, out=mixed),
        bound(np.bitwise_xor, mixed, b, out=to),
    ]


def _mask(place: Place) -> tuple[list[Call], Array]:
    """All bits where the condition holds, and the calls that make them if it can change."""
    condition = place.inputs[0]
    if place.constant[0]:
        key = ("mask", condition.__array_interface__["data"][0], condition.shape, condition.strides)
        return [], place.once(key, lambda: np.where(condition, np.int32(-1), np.int32(0)))
    mask = place.like(condition, np.int32)
    return [partial(np.copyto, mask, condition.view(np.int8)), bound(np.negative, mask, out=mask)], mask


# Folds


@emits("sum")
def _sum(place: Place) -> list[Call]:
    x, out, axes = place.x, place.out, tuple(place.node.attrs["axes"])
    order = memory_order(x)
    folded, left = [a in axes for a in order], [a for a in order if a not in axes]
    seen = out.transpose([sorted(left).index(a) for a in left])
    if x.dtype == np.float32 and flattened(x) is not None and seen.flags.c_contiguous and left:
        # A product with ones is BLAS, several times faster than a fold of short rows.
        n = int(np.prod([x.shape[a] for a in axes]))
        flat = x.transpose(order)
        if not any(folded[: -len(axes)]):
            return _row_sums(place, flat.reshape(-1, n), seen.reshape(-1))
        if all(folded[: len(axes)]):
            return _column_sums(place, flat.reshape(n, -1), seen.reshape(-1))
    return _slices(np.add, x, axes, out) or [_reduce(np.add, x, axes, out)]


def _part(n: int) -> int:
    """Terms that are summed at a time.

    Summed term after term, a million would lose three digits; sums of parts lose none.
    """
    return n if n <= LONG else next((r for r in range(LONG, 31, -1) if n % r == 0), n)


def _ones(place: Place, n: int) -> Array:
    return place.once(("ones", n), lambda: np.ones(n, np.float32))


def _row_sums(place: Place, x: Array, out: Array) -> list[Call]:
    rows, n = x.shape
    part = _part(n)
    if part == n:
        return [partial(np.dot, x, _ones(place, n), out)]
    sums = place.scratch((rows, n // part), np.float32)
    first = partial(np.dot, x.reshape(-1, part), _ones(place, part), sums.reshape(-1))
    return [first, *_row_sums(place, sums, out)]


def _column_sums(place: Place, x: Array, out: Array) -> list[Call]:
    n, width = x.shape
    part = _part(n)
    if part == n:
        return [partial(np.dot, _ones(place, n), x, out)]
    sums = place.scratch((n // part, width), np.float32)
    first = partial(np.matmul, _ones(place, part), x.reshape(-1, part, width), sums)
    return [first, *_column_sums(place, sums, out)]


@emits("max", "min")
def _extreme(place: Place) -> list[Call]:
    x, out, axes = place.x, place.out, tuple(place.node.attrs["axes"])
    fold = np.maximum if place.node.op.name == "max" else np.minimum
    if axes != (x.ndim - 1,) or x.ndim < 2 or out.size < 16 or not x.flags.c_contiguous:
        return _slices(fold, x, axes, out) or [_reduce(fold, x, axes, out)]
    calls: list[Call] = []
    while x.shape[-1] > 16 and x.shape[-1] % 2 == 0:
        half = x.shape[-1] // 2
        halved = place.scratch((*x.shape[:-1], half), x.dtype)
        calls.append(partial(fold, x[..., :half], x[..., half:], out=halved))
        x = halved
    columns = place.scratch((x.shape[-1], *x.shape[:-1]), x.dtype)
    calls.append(partial(np.copyto, columns, np.moveaxis(x, -1, 0)))
    return [*calls, _reduce(fold, columns, 0, out)]


def _reduce(fold: np.ufunc, x: Array, axes: int | tuple[int, ...], out: Array) -> Call:
    reduce: Any = fold.reduce
    return partial(reduce, x, axes, None, out)


def _slices(fold: np.ufunc, x: Array, axes: tuple[int, ...], out: Array) -> list[Call]:
    """One call per element of small folded axes that lie before others, as in a window."""
    terms = int(np.prod([x.shape[a] for a in axes]))
    if not 2 <= terms <= 16 or x.ndim - 1 in axes or x.ndim == len(axes) or out.size < 64:
        return []
    rest = [a for a in range(x.ndim) if a not in axes]
    parts = x.transpose(*axes, *rest)
    index = list(np.ndindex(*parts.shape[: len(axes)]))
    calls: list[Call] = [partial(fold, parts[index[0]], parts[index[1]], out=out)]
    return calls + [partial(fold, out, parts[i], out=out) for i in index[2:]]


# Products


@emits("matmul")
def _matmul(place: Place) -> list[Call]:
    calls: list[Call] = []
    a, b = (_for_blas(x, calls, place) for x in place.inputs)
    out = place.out
    if a.ndim == 2 and b.ndim == 2:
        return [*calls, partial(np.dot, a, b, out)]
    if b.strides[-2] == b.itemsize and max(out.shape[-2:]) <= SMALL:
        b = _copied(b, calls, place)
    return [*calls, partial(np.matmul, a, b, out)]


def _for_blas(x: Array, calls: list[Call], place: Place) -> Array:
    # Without a unit stride in one of the last two axes NumPy leaves BLAS for a plain loop.
    rows, columns = x.strides[-2:] if x.ndim >= 2 else (x.itemsize, x.itemsize)
    if x.itemsize in (rows, columns) and min(rows, columns) > 0:
        return x
    return _copied(x, calls, place)


def _copied(x: Array, calls: list[Call], place: Place) -> Array:
    copy = place.scratch(x.shape, x.dtype)
    calls.append(partial(np.copyto, copy, x))
    return copy
