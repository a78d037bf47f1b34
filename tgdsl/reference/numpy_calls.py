"""The NumPy calls of one node, bound to their arrays.

An op whose reference is a ufunc needs nothing here. The rest of this file is about what
NumPy does slowly: `where` mispredicts branches, `maximum` with a scalar is not
vectorised, reductions of short rows pay per row, and anything that allocates a large
array pays for its pages again in every step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import attrs
import numpy as np
from numpy.typing import NDArray

from tgdsl.ir import Node

Array: TypeAlias = NDArray[Any]
Call: TypeAlias = Callable[[], object]


@attrs.frozen(eq=False)
class Place:
    """Where a node is computed.

    Attributes:
        node: The node.
        inputs: Its operands.
        out: Where its value goes; contiguous.
        constant: For each operand, whether it never changes.
        scratch: Gives an array that may be overwritten by the next node.
        key: Two numbers that stochastic ops are keyed by.
    """

    node: Node
    inputs: Sequence[Array]
    out: Array
    constant: Sequence[bool]
    scratch: Callable[[tuple[int, ...], Any], Array]
    key: Array

    @property
    def x(self) -> Array:
        """The first operand."""
        return self.inputs[0]


LONG = 1024
"""Terms of a sum beyond which it is done in parts."""

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
        return [partial(node.op.ref, *place.inputs, out=place.out)]
    return [_stochastic(place) if node.op.stochastic else general(place)]


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
    return [partial(np.maximum, place.x, np.zeros(place.out.shape, np.float32), out=place.out)]


@emits("square", in_place=True)
def _square(place: Place) -> list[Call]:
    return [partial(np.multiply, place.x, place.x, out=place.out)]


@emits("power", in_place=True)
def _power(place: Place) -> list[Call]:
    exponent = float(place.node.attrs["exponent"])
    if exponent == 2.0:
        return _square(place)
    return [partial(np.power, place.x, np.float32(exponent), out=place.out)]


@emits("rsqrt", in_place=True)
def _rsqrt(place: Place) -> list[Call]:
    out = place.out
    return [partial(np.sqrt, place.x, out=out), partial(np.divide, np.float32(1.0), out, out=out)]


@emits("sigmoid", in_place=True)
def _sigmoid(place: Place) -> list[Call]:
    half, out = np.float32(0.5), place.out
    return [
        partial(np.multiply, place.x, half, out=out),
        partial(np.tanh, out, out=out),
        partial(np.multiply, out, half, out=out),
        partial(np.add, out, half, out=out),
    ]


@emits("where", in_place=True)
def _where(place: Place) -> list[Call]:
    """Select by bits: `b ^ ((a ^ b) & mask)`, exact for every value and free of branches."""
    condition, a, b = place.inputs
    if place.out.dtype.itemsize != np.dtype(np.int32).itemsize:
        return [general(place)]
    calls: list[Call] = []
    if place.constant[0]:
        mask = np.where(condition, np.int32(-1), np.int32(0))
    else:
        mask = place.scratch(condition.shape, np.int32)
        calls += [
            partial(np.copyto, mask, condition.view(np.int8)),
            partial(np.negative, mask, mask),
        ]
    a, b, to = a.view(np.int32), b.view(np.int32), place.out.view(np.int32)
    if place.constant[2] and not np.asarray(b).any():
        return [*calls, partial(np.bitwise_and, a, mask, to)]
    if place.constant[0] and place.constant[2] and b.size == 1:
        return [
            partial(np.bitwise_and, a, mask, to),
            partial(np.bitwise_or, to, ~mask & b.reshape(-1)[0], to),
        ]
    mixed = place.scratch(place.out.shape, np.int32)
    return [
        *calls,
        partial(np.bitwise_xor, a, b, mixed),
        partial(np.bitwise_and, mixed, mask, mixed),
        partial(np.bitwise_xor, mixed, b, to),
    ]


# Folds


@emits("sum")
def _sum(place: Place) -> list[Call]:
    x, out, axes = place.x, place.out, tuple(place.node.attrs["axes"])
    if x.dtype == np.float32 and x.flags.c_contiguous and x.ndim > len(axes):
        # A product with ones is BLAS, several times faster than a fold of short rows.
        n = int(np.prod([x.shape[a] for a in axes]))
        if axes == tuple(range(x.ndim - len(axes), x.ndim)) and n <= LONG:
            return [partial(np.dot, x.reshape(-1, n), np.ones(n, np.float32), out.reshape(-1))]
        if axes == tuple(range(len(axes))):
            return _column_sums(place, x.reshape(n, -1), out.reshape(-1))
    return _slices(np.add, x, axes, out) or [_reduce(np.add, x, axes, out)]


def _column_sums(place: Place, x: Array, out: Array) -> list[Call]:
    # Summed row after row, a million rows would lose three digits; sums of parts lose none.
    n, width = x.shape
    part = next((r for r in range(LONG, 31, -1) if n % r == 0), n)
    if n <= LONG or part == n:
        return [partial(np.dot, np.ones(n, np.float32), x, out)]
    sums = place.scratch((n // part, width), np.float32)
    first = partial(np.matmul, np.ones(part, np.float32), x.reshape(-1, part, width), sums)
    return [first, *_column_sums(place, sums, out)]


@emits("max", "min")
def _extreme(place: Place) -> list[Call]:
    x, out, axes = place.x, place.out, tuple(place.node.attrs["axes"])
    fold = np.maximum if place.node.op.name == "max" else np.minimum
    if axes != (x.ndim - 1,) or x.ndim < 2 or out.size < 16:
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
    return [*calls, partial(np.matmul, a, b, out)]


def _for_blas(x: Array, calls: list[Call], place: Place) -> Array:
    # Without a unit stride in one of the last two axes NumPy leaves BLAS for a plain loop.
    rows, columns = x.strides[-2:] if x.ndim >= 2 else (x.itemsize, x.itemsize)
    if x.itemsize in (rows, columns) and min(rows, columns) > 0:
        return x
    copy = place.scratch(x.shape, x.dtype)
    calls.append(partial(np.copyto, copy, x))
    return copy
