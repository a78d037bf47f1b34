"""Cutting and padding axes: each is the adjoint of another, and all are index maps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from tgdsl.errors import ShapeError
from tgdsl.ir import (
    AnyTensor,
    Array,
    Cotangents,
    Draw,
    Sample,
    Shape,
    Source,
    Tensor,
    TensorType,
    View,
    op,
    operand_error,
)
from tgdsl.ir.index import Index

from .arguments import element, integer, is_integer, shown, tensors
from .rules import normalize_axis, sizes

A = TypeVar("A", bound=AnyTensor[Any])
Ix = tuple[Index, ...]


def _pad_map(ix: Ix, operand: Shape, *, low: Shape, high: Shape, value: float) -> Source:
    inside = tuple((i, lo, lo + int(n)) for i, lo, n in zip(ix, low, operand, strict=True))
    return Source(tuple(i - lo for i, lo in zip(ix, low, strict=True)), inside, value)


def _pad_ref(x: Array, low: Shape, high: Shape, value: float) -> Array:
    return np.pad(x, list(zip(low, high, strict=True)), constant_values=np.asarray(value).astype(x.dtype))


def _pad_sample(draw: Draw) -> Sample:
    shape = draw.shape("shape", 1, 2)
    low = tuple(draw.choice("low", (0, 2)) for _ in shape)
    return Sample.of(draw.array("x", shape), low=low, high=tuple(1 for _ in shape), value=0.5)


@op(name="pad", ref=_pad_ref, lower=View(_pad_map), sample=_pad_sample, analytic=True)
def _pad(x: AnyTensor[Any], *, low: Shape, high: Shape, value: float) -> TensorType:
    """`x` with a border of one value."""
    return TensorType(tuple(int(n) + a + b for n, a, b in zip(x.shape, low, high, strict=True)), x.dtype)


@_pad.vjp
def _(ct: Tensor, y: Tensor, x: Tensor, *, low: Shape, high: Shape, value: float) -> Cotangents:
    return (slice_axes(ct, low, x.shape),)


def pad(x: A, widths: Sequence[tuple[int, int]], value: float = 0.0) -> A:
    """`x` with a border.

    Args:
        x: Any tensor.
        widths: For each axis, how much before and how much after.
        value: What the border holds: a number that the dtype of `x` holds, but not NaN.

    Shape:
        Each axis grows by its two widths.

    Dtype:
        Any, kept.

    Gradient:
        The inner part of `ct`.

    Raises:
        ShapeError: If a width is missing, negative or not an integer, or the value does not fit the dtype.

    Source:
        NumPy, `pad` with mode "constant".

    Example:
        >>> compute(lambda x: pad(x, [(1, 0)]), [1.0, 2.0])
        array([0., 1., 2.])
    """
    tensors("pad", operand=x)
    given: list[Any] = [tuple(pair) if isinstance(pair, Iterable) else () for pair in _listed(widths)]
    fits = all(len(pair) == 2 and all(is_integer(n) and n >= 0 for n in pair) for pair in given)
    if len(given) != x.ndim or not fits:
        raise operand_error(ShapeError, f"pad: {shown(widths)} does not give two widths for each axis", operand=x)
    filled = element("pad", "the value", value, x.dtype, operand=x)
    low, high = tuple(int(a) for a, _ in given), tuple(int(b) for _, b in given)
    sizes("pad", [n + a + b for n, a, b in zip(x.shape, low, high, strict=True)])
    return cast("A", _pad(x, low=low, high=high, value=filled)) if any(low + high) else x


def _listed(widths: object) -> list[Any]:
    return list(widths) if isinstance(widths, Iterable) and not isinstance(widths, AnyTensor) else []


def _slice_map(ix: Ix, operand: Shape, *, starts: Shape, sizes: Shape, steps: Shape) -> Source:
    return Source(tuple(i * step + start for i, start, step in zip(ix, starts, steps, strict=True)))


def _slice_ref(x: Array, starts: Shape, sizes: Shape, steps: Shape) -> Array:
    cuts = []
    for start, size, step in zip(starts, sizes, steps, strict=True):
        stop = start + size * step
        cuts.append(slice(start, stop if stop >= 0 else None, step))
    return x[tuple(cuts)]


def _slice_sample(draw: Draw) -> Sample:
    n = draw.size("n", 3, 5)
    step = draw.choice("step", (1, 2, -1))
    start, size = {1: (1, n - 1), 2: (0, (n + 1) // 2), -1: (n - 1, n)}[step]
    return Sample.of(draw.array("x", (n, 2)), starts=(start, 0), sizes=(size, 2), steps=(step, 1))


@op(name="slice", ref=_slice_ref, lower=View(_slice_map), sample=_slice_sample, analytic=True)
def _slice(x: AnyTensor[Any], *, starts: Shape, sizes: Shape, steps: Shape) -> TensorType:
    """Every `step`-th element of each axis from `start`, `size` of them."""
    return TensorType(sizes, x.dtype)


@_slice.vjp
def _(ct: Tensor, y: Tensor, x: Tensor, *, starts: Shape, sizes: Shape, steps: Shape) -> Cotangents:
    return (_unslice(ct, starts=starts, shape=tuple(int(n) for n in x.shape), steps=steps),)


def _unslice_map(ix: Ix, operand: Shape, *, starts: Shape, shape: Shape, steps: Shape) -> Source:
    out: list[Index] = []
    inside: list[tuple[Index, int, int]] = []
    for i, start, n, step in zip(ix, starts, operand, steps, strict=True):
        away = (i - start) * (1 if step > 0 else -1)
        stride = abs(step)
        shift = -(-max(0, -away.lo) // stride) * stride  # divisions need a non-negative operand
        out.append((away + shift) // stride - shift // stride)
        inside.append((away, 0, (int(n) - 1) * stride + 1))
        if stride > 1:
            inside.append(((away + shift) % stride, 0, 1))
    return Source(tuple(out), tuple(inside), 0.0)


def _unslice_ref(x: Array, starts: Shape, shape: Shape, steps: Shape) -> Array:
    out = np.zeros(shape, x.dtype)
    cuts = []
    for start, size, step in zip(starts, x.shape, steps, strict=True):
        stop = start + size * step
        cuts.append(slice(start, stop if stop >= 0 else None, step))
    out[tuple(cuts)] = x
    return out


def _unslice_sample(draw: Draw) -> Sample:
    step = draw.choice("step", (1, 2, -1, -2))
    size = draw.size("size", 1, 3)
    start = 1 if step > 0 else 7
    return Sample.of(draw.array("x", (size, 2)), starts=(start, 0), shape=(9, 2), steps=(step, 1))


@op(name="unslice", ref=_unslice_ref, lower=View(_unslice_map), sample=_unslice_sample, analytic=True)
def _unslice(x: AnyTensor[Any], *, starts: Shape, shape: Shape, steps: Shape) -> TensorType:
    """Zeros of `shape` with `x` written where a slice would read: the adjoint of slice."""
    return TensorType(shape, x.dtype)


@_unslice.vjp
def _(ct: Tensor, y: Tensor, x: Tensor, *, starts: Shape, shape: Shape, steps: Shape) -> Cotangents:
    return (_slice(ct, starts=starts, sizes=tuple(int(n) for n in x.shape), steps=steps),)


def slice_axes(x: A, starts: Sequence[int], sizes: Sequence[int], steps: Sequence[int] | None = None) -> A:
    """Cut every axis: `size` elements from `start`, every `step`-th (a step may be negative)."""
    lead, count = tuple(int(s) for s in starts), tuple(sizes)
    jumps = tuple(1 for _ in count) if steps is None else tuple(steps)
    if count == x.shape and all(s == 1 for s in jumps):
        return x
    return cast("A", _slice(x, starts=lead, sizes=count, steps=jumps))


def narrow(x: A, axis: int, start: int, length: int) -> A:
    """`length` elements of one axis from `start`.

    Args:
        x: A tensor of rank 1 or more.
        axis: The axis; negative counts from the end.
        start: The first element, not negative.
        length: How many, at least 1.

    Shape:
        `x.shape` with `length` at `axis`.

    Dtype:
        Any, kept.

    Gradient:
        `ct` in its place, zeros elsewhere.

    Raises:
        ShapeError: If the range leaves the axis.

    Source:
        `torch.narrow`.

    Example:
        >>> compute(lambda x: narrow(x, 0, 1, 2), [1.0, 2.0, 3.0])
        array([2., 3.])
    """
    a = normalize_axis("narrow", axis, x)
    start, length = integer("narrow", "start", start, operand=x), integer("narrow", "length", length, operand=x)
    if start < 0 or length < 1 or start + length > x.shape[a]:
        end = start + length
        raise operand_error(
            ShapeError, f"narrow: [{start}, {end}) is not a range of axis {a} of size {int(x.shape[a])}", operand=x
        )
    starts = [start if i == a else 0 for i in range(x.ndim)]
    return slice_axes(x, starts, [length if i == a and length != n else n for i, n in enumerate(x.shape)])


def slice_last_range(x: A, start: int, end: int) -> A:
    """`x[..., start:end]`, the range checked."""
    tensors("slice_last_range", operand=x)
    what = "slice_last_range"
    return narrow(x, -1, integer(what, "start", start, operand=x), integer(what, "end", end, operand=x) - start)


def flip(x: A, axis: int) -> A:
    """One axis in reverse order.

    Args:
        x: Any tensor.
        axis: The axis.

    Shape:
        That of `x`.

    Dtype:
        Any, kept.

    Gradient:
        `ct` reversed.

    Source:
        Array API standard, `flip`.

    Example:
        >>> compute(lambda x: flip(x, 0), [1.0, 2.0])
        array([2., 1.])
    """
    a = normalize_axis("flip", axis, x)
    starts = [int(n) - 1 if i == a else 0 for i, n in enumerate(x.shape)]
    steps = [-1 if i == a else 1 for i in range(x.ndim)]
    return slice_axes(x, starts, x.shape, steps)
