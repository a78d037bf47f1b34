"""The NumPy calls of one node, bound to their arrays.

An op whose reference is a ufunc needs nothing here. The rest of this file is about what
NumPy does slowly: `where` mispredicts branches, `maximum` with a scalar is not
vectorised, and reductions of short rows pay per row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tgdsl.ir import Node

Array: TypeAlias = NDArray[Any]
Call: TypeAlias = Callable[[], object]
Scratch: TypeAlias = Callable[[tuple[int, ...], Any], Array]
Emitter: TypeAlias = Callable[[Node, Sequence[Array], Array, Scratch], list[Call]]

SHORT_ROW = 48
"""Rows below this length are folded as columns of a transposed copy."""

EMITTERS: dict[str, Emitter] = {}
IN_PLACE: set[str] = {"where", "relu", "square", "power", "rsqrt", "sigmoid"}
"""Ops with an emitter that reads no operand after it has begun to write the result."""


def emit(
    node: Node, inputs: Sequence[Array], out: Array, key: Array, scratch: Scratch
) -> list[Call]:
    """The calls that compute `node` from `inputs` into `out`."""
    emitter = EMITTERS.get(node.op.name)
    if emitter is not None:
        return emitter(node, inputs, out, scratch)
    if _is_ufunc(node):
        return [partial(node.op.ref, *inputs, out=out)]
    attributes = dict(node.attrs)
    if node.op.stochastic:
        return [_stochastic(node.op.ref, inputs, attributes, out, key)]
    return [_general(node.op.ref, inputs, attributes, out)]


def elementwise(node: Node) -> bool:
    """Whether its result may overwrite an operand of the same type."""
    return node.op.name in IN_PLACE or (node.op.name not in EMITTERS and _is_ufunc(node))


def _is_ufunc(node: Node) -> bool:
    # An attribute would be taken for an option of the ufunc.
    ref = node.op.ref
    return (
        isinstance(ref, np.ufunc)
        and not node.attrs
        and ref.nin == len(node.inputs)
        and ref.signature is None
    )


def _reduce(fold: np.ufunc, x: Array, axes: int | tuple[int, ...], out: Array) -> Call:
    reduce: Any = fold.reduce
    return partial(reduce, x, axes, None, out)


def _general(
    ref: Callable[..., Any], inputs: Sequence[Array], attributes: dict[str, Any], out: Array
) -> Call:
    def call() -> None:
        np.copyto(out, ref(*inputs, **attributes), casting="unsafe")

    return call


def _stochastic(
    ref: Callable[..., Any],
    inputs: Sequence[Array],
    attributes: dict[str, Any],
    out: Array,
    key: Array,
) -> Call:
    def call() -> None:
        pair = (int(key[0]) & 0xFFFFFFFF, int(key[1]) & 0xFFFFFFFF)
        np.copyto(out, ref(*inputs, **attributes, key=pair), casting="unsafe")

    return call


def _emits(*names: str) -> Callable[[Emitter], Emitter]:
    def register(emitter: Emitter) -> Emitter:
        for name in names:
            EMITTERS[name] = emitter
        return emitter

    return register


@_emits("relu")
def _relu(node: Node, inputs: Sequence[Array], out: Array, scratch: Scratch) -> list[Call]:
    return [partial(np.maximum, inputs[0], np.zeros(out.shape, out.dtype), out=out)]


@_emits("square")
def _square(node: Node, inputs: Sequence[Array], out: Array, scratch: Scratch) -> list[Call]:
    return [partial(np.multiply, inputs[0], inputs[0], out=out)]


@_emits("power")
def _power(node: Node, inputs: Sequence[Array], out: Array, scratch: Scratch) -> list[Call]:
    exponent = float(node.attrs["exponent"])
    if exponent == 2.0:
        return [partial(np.multiply, inputs[0], inputs[0], out=out)]
    return [partial(np.power, inputs[0], np.float32(exponent), out=out)]


@_emits("where")
def _where(node: Node, inputs: Sequence[Array], out: Array, scratch: Scratch) -> list[Call]:
    """Select by bits: `b ^ ((a ^ b) & mask)`, exact for every value and free of branches."""
    condition, a, b = inputs
    if out.dtype.itemsize != 4 or condition.size < out.size // 4 or out.size < 256:
        return [_general(np.where, inputs, {}, out)]
    mask = scratch(condition.shape, np.int32)
    to, a, b = out.view(np.int32), _bits(a), _bits(b)
    calls: list[Call] = [
        partial(np.copyto, mask, condition.view(np.int8)),
        partial(np.negative, mask, mask),
    ]
    if b.size == 1 and not b.any() and node.inputs[2].op.name == "full":
        return [*calls, partial(np.bitwise_and, a, mask, to)]
    mixed = scratch(out.shape, np.int32)
    return [
        *calls,
        partial(np.bitwise_xor, a, b, mixed),
        partial(np.bitwise_and, mixed, mask, mixed),
        partial(np.bitwise_xor, mixed, b, to),
    ]


def _bits(x: Array) -> Array:
    return x.view(np.int32)


@_emits("mean")
def _mean(node: Node, inputs: Sequence[Array], out: Array, scratch: Scratch) -> list[Call]:
    terms = np.float32(inputs[0].size / max(1, out.size))
    return [*_sum(node, inputs, out, scratch), partial(np.divide, out, terms, out)]


@_emits("rsqrt")
def _rsqrt(node: Node, inputs: Sequence[Array], out: Array, scratch: Scratch) -> list[Call]:
    return [partial(np.sqrt, inputs[0], out=out), partial(np.divide, np.float32(1.0), out, out=out)]


@_emits("sigmoid")
def _sigmoid(node: Node, inputs: Sequence[Array], out: Array, scratch: Scratch) -> list[Call]:
    half = np.float32(0.5)
    return [
        partial(np.multiply, inputs[0], half, out=out),
        partial(np.tanh, out, out=out),
        partial(np.multiply, out, half, out=out),
        partial(np.add, out, half, out=out),
    ]


@_emits("sum")
def _sum(node: Node, inputs: Sequence[Array], out: Array, scratch: Scratch) -> list[Call]:
    x, axes = inputs[0], tuple(node.attrs["axes"])
    if x.dtype == np.float32 and x.flags.c_contiguous and x.ndim >= 2 and out.flags.c_contiguous:
        # A product with ones is BLAS, several times faster than a fold of short rows.
        last = axes == tuple(range(x.ndim - len(axes), x.ndim))
        first = axes == tuple(range(len(axes)))
        n = int(np.prod([x.shape[a] for a in axes]))
        if last and not first and n <= 4096:
            return [partial(np.dot, x.reshape(-1, n), np.ones(n, np.float32), out.reshape(-1))]
        if first and not last and n <= 4096:
            return [partial(np.dot, np.ones(n, np.float32), x.reshape(n, -1), out.reshape(-1))]
    return [_reduce(np.add, x, axes, out)]


@_emits("max", "min", "reduce_max", "reduce_min")
def _extreme(node: Node, inputs: Sequence[Array], out: Array, scratch: Scratch) -> list[Call]:
    x = inputs[0]
    fold = np.maximum if "max" in node.op.name else np.minimum
    if "axes" not in node.attrs:
        return [partial(fold, *inputs, out=out)]
    axes = tuple(node.attrs["axes"])
    if axes == (x.ndim - 1,) and x.shape[-1] < SHORT_ROW and x.ndim >= 2:
        columns = scratch((x.shape[-1], *x.shape[:-1]), x.dtype)
        return [
            partial(np.copyto, columns, np.moveaxis(x, -1, 0)),
            _reduce(fold, columns, 0, out),
        ]
    return [_reduce(fold, x, axes, out)]


@_emits("matmul")
def _matmul(node: Node, inputs: Sequence[Array], out: Array, scratch: Scratch) -> list[Call]:
    calls: list[Call] = []
    a, b = (_for_blas(x, calls, scratch) for x in inputs)
    if a.ndim == 2 and b.ndim == 2 and out.flags.c_contiguous:
        return [*calls, partial(np.dot, a, b, out)]
    if a.ndim > 2 and b.ndim == 2 and a.flags.c_contiguous and out.flags.c_contiguous:
        return [
            *calls,
            partial(np.dot, a.reshape(-1, a.shape[-1]), b, out.reshape(-1, b.shape[-1])),
        ]
    return [*calls, partial(np.matmul, a, b, out)]


def _for_blas(x: Array, calls: list[Call], scratch: Scratch) -> Array:
    # Without a unit stride in one of the last two axes NumPy leaves BLAS for a plain loop.
    rows, columns = x.strides[-2:] if x.ndim >= 2 else (x.itemsize, x.itemsize)
    if x.itemsize in (rows, columns) and min(rows, columns) > 0:
        return x
    copy = scratch(x.shape, x.dtype)
    calls.append(partial(np.copyto, copy, x))
    return copy
