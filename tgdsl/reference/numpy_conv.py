"""Convolution and its two gradients on NumPy: columns of a few rows of the result at a time.

Inside, images are `[C, H, W, B]`. A tap of all windows is then one stretch of memory per row
and channel, a product with the kernel needs no transposition before or after it, and the
columns of a few rows of the result stay in cache until the product has read them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import attrs
import numpy as np

from .numpy_calls import Call, Place, bound, emits
from .numpy_pool import Array

COLUMNS: Final = 1 << 17
"""Elements of a matrix of columns: 512 KB."""

Pair = tuple[int, int]


@attrs.frozen
class _Shape:
    """Sizes that the three ops share; `k` is the number of taps of all channels."""

    batch: int
    channels: int
    image: Pair
    kernel: Pair
    out: Pair
    stride: Pair
    padding: Pair

    @property
    def k(self) -> int:
        return self.channels * self.kernel[0] * self.kernel[1]

    @property
    def padded(self) -> tuple[int, int, int, int]:
        (h, w), (p, q) = self.image, self.padding
        return (self.channels, h + 2 * p, w + 2 * q, self.batch)

    def strips(self) -> Iterator[Pair]:
        """Rows of the result whose columns fit: `(first, how many)`."""
        rows = max(1, COLUMNS // (self.k * self.out[1] * self.batch))
        for y in range(0, self.out[0], rows):
            yield y, min(rows, self.out[0] - y)

    def taps(self, padded: Array, y: int, rows: int) -> Array:
        """`[C, kh, kw, rows, Wo, B]`: what the windows of some rows of the result see."""
        c, h, w, b = padded.strides
        (s, t), (kh, kw) = self.stride, self.kernel
        shape = (self.channels, kh, kw, rows, self.out[1], self.batch)
        start = padded[:, y * s :]
        return np.lib.stride_tricks.as_strided(start, shape, (c, h, w, s * h, t * w, b))


def _shape(place: Place, x: Any, weight: Any, out: Any) -> _Shape:
    a = place.node.attrs
    return _Shape(x[0], x[1], (x[2], x[3]), (weight[2], weight[3]), (out[2], out[3]), a["stride"], a["padding"])


def _batch_last(array: Array, place: Place, calls: list[Call]) -> Array:
    """`[B, C, H, W]` as `[C, H, W, B]` without gaps, copied if it lies otherwise."""
    seen = array.transpose(1, 2, 3, 0)
    if seen.flags.c_contiguous:
        return seen
    copy = place.scratch(seen.shape, np.float32)
    calls.append(partial(np.copyto, copy, seen))
    return copy


def _bordered(x: Array, sizes: _Shape, place: Place, calls: list[Call]) -> Array:
    """The image as `[C, H, W, B]` with its border of zeros."""
    (p, q), (h, w) = sizes.padding, sizes.image
    if not p and not q:
        return _batch_last(x, place, calls)
    padded = place.scratch(sizes.padded, np.float32)
    inside = padded[:, p : p + h, q : q + w]
    calls += [partial(padded.fill, 0.0), partial(np.copyto, inside, x.transpose(1, 2, 3, 0))]
    return padded


def _matrix(weight: Array, place: Place, calls: list[Call]) -> Array:
    """The kernels as the rows of a matrix."""
    if not weight.flags.c_contiguous:
        copy = place.scratch(weight.shape, np.float32)
        calls.append(partial(np.copyto, copy, weight))
        weight = copy
    return weight.reshape(weight.shape[0], -1)


@emits("conv2d")
def _conv2d(place: Place) -> list[Call]:
    x, weight = place.inputs
    sizes = _shape(place, x.shape, weight.shape, place.out.shape)
    calls: list[Call] = []
    kernel, padded = _matrix(weight, place, calls), _bordered(x, sizes, place, calls)
    out = place.out.transpose(1, 2, 3, 0)
    whole = out if out.flags.c_contiguous else place.scratch(out.shape, np.float32)
    flat, row = whole.reshape(len(kernel), -1), sizes.out[1] * sizes.batch
    columns = place.scratch((COLUMNS + sizes.k * row,), np.float32)
    for y, rows in sizes.strips():
        taps = sizes.taps(padded, y, rows)
        part = columns[: taps.size].reshape(taps.shape)
        product = flat[:, y * row : (y + rows) * row]
        calls += [
            partial(np.copyto, part, taps),
            partial(np.matmul, kernel, part.reshape(sizes.k, -1), product),
        ]
    return calls if whole is out else [*calls, partial(np.copyto, out, whole)]


@emits("conv2d_weight")
def _conv2d_weight(place: Place) -> list[Call]:
    """The products of columns and cotangents, added up strip by strip.

    Their transposed result, one row per tap, takes BLAS a third less time.
    """
    x, ct = place.inputs
    sizes = _shape(place, x.shape, place.out.shape, ct.shape)
    calls: list[Call] = []
    padded, rows_of = _bordered(x, sizes, place, calls), _batch_last(ct, place, calls)
    flat, row = rows_of.reshape(ct.shape[1], -1), sizes.out[1] * sizes.batch
    columns = place.scratch((COLUMNS + sizes.k * row,), np.float32)
    total, part = (place.scratch((sizes.k, ct.shape[1]), np.float32) for _ in range(2))
    for y, rows in sizes.strips():
        taps = sizes.taps(padded, y, rows)
        seen = columns[: taps.size].reshape(taps.shape)
        cotangents = flat[:, y * row : (y + rows) * row]
        calls += [
            partial(np.copyto, seen, taps),
            partial(np.matmul, seen.reshape(sizes.k, -1), cotangents.T, part if y else total),
        ]
        if y:
            calls.append(bound(np.add, total, part, out=total))
    seen = total.T.reshape(place.out.shape)
    return [*calls, partial(np.copyto, place.out, seen)]


@emits("conv2d_input")
def _conv2d_input(place: Place) -> list[Call]:
    """The transposed convolution: one product gives every tap, which are then added up."""
    ct, weight = place.inputs
    sizes = _shape(place, place.out.shape, weight.shape, ct.shape)
    calls: list[Call] = []
    kernel, rows_of = _matrix(weight, place, calls), _batch_last(ct, place, calls)
    flat, row = rows_of.reshape(len(kernel), -1), sizes.out[1] * sizes.batch
    out = place.out.transpose(1, 2, 3, 0)
    (p, q), (h, w) = sizes.padding, sizes.image
    whole = out if not p and not q else place.scratch(sizes.padded, np.float32)
    columns = place.scratch((COLUMNS + sizes.k * row,), np.float32)
    calls.append(partial(whole.fill, 0.0))
    for y, rows in sizes.strips():
        part = columns[: sizes.k * rows * row]
        cotangents = flat[:, y * row : (y + rows) * row]
        calls.append(partial(np.matmul, kernel.T, cotangents, part.reshape(sizes.k, -1)))
        calls += _added(sizes, part, whole, y, rows)
    return calls if whole is out else [*calls, partial(np.copyto, out, whole[:, p : p + h, q : q + w])]


def _added(sizes: _Shape, part: Array, whole: Array, y: int, rows: int) -> Iterator[Call]:
    (s, t), (kh, kw) = sizes.stride, sizes.kernel
    taps = part.reshape(sizes.channels, kh, kw, rows, sizes.out[1], sizes.batch)
    for i, j in np.ndindex(kh, kw):
        first, last = y * s + i, (y + rows - 1) * s + i
        to = whole[:, first : last + 1 : s, j : j + (sizes.out[1] - 1) * t + 1 : t]
        yield bound(np.add, to, taps[:, i, j], out=to)
