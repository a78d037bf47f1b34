"""Windows of images as index maps, and what convolution and pooling share.

A window is an index map with a guard, so nothing is unrolled in memory; its adjoint is a
fold over the windows that hold a pixel, so that no two threads write to one place.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tgdsl.errors import DTypeError, ShapeError
from tgdsl.ir import (
    AnyTensor,
    Array,
    Cotangents,
    Decompose,
    Draw,
    Sample,
    Shape,
    Source,
    Tensor,
    TensorType,
    View,
    op,
    operand_error,
    user_site,
)
from tgdsl.ir.index import Index

from .arguments import is_integer, shown, tensors
from .reduce import sum as sum_

Pair = tuple[int, int]
Ix = tuple[Index, ...]


def pair(what: str, name: str, value: int | Pair, least: int) -> Pair:
    """An int or a pair as a pair of ints of at least `least`."""
    both: tuple[Any, ...] = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    if len(both) != 2 or not all(is_integer(v) and v >= least for v in both):
        wanted = f"an int or a pair of ints of at least {least}"
        raise ShapeError(f"{what}: {name} must be {wanted}, got {shown(value)}", site=user_site())
    return int(both[0]), int(both[1])


def out_size(n: int, kernel: int, stride: int, padding: int) -> int:
    """How many windows fit along one axis."""
    return (n + 2 * padding - kernel) // stride + 1


def require_images(what: str, *xs: AnyTensor[Any]) -> None:
    """Refuse what is not f32 of rank 4."""
    for x in xs:
        tensors(what, operand=x)
        if x.dtype != "f32":
            raise operand_error(DTypeError, f"{what}: expected f32", operand=x)
        if x.ndim != 4:
            raise operand_error(ShapeError, f"{what}: needs rank 4", operand=x)


def _windows_map(ix: Ix, operand: Shape, *, kernel: Pair, stride: Pair, padding: Pair, value: float) -> Source:
    b, c, i, j, oh, ow = ix
    h, w = oh * stride[0] + i - padding[0], ow * stride[1] + j - padding[1]
    return Source((b, c, h, w), ((h, 0, int(operand[2])), (w, 0, int(operand[3]))), value)


def _padded(x: Array, padding: Pair, value: float) -> Array:
    (p, q) = padding
    return np.pad(x, ((0, 0), (0, 0), (p, p), (q, q)), constant_values=value) if p or q else x


def windows_ref(x: Array, kernel: Pair, stride: Pair, padding: Pair, value: float) -> Array:
    """NumPy's windows, a view where there is no padding."""
    view = np.lib.stride_tricks.sliding_window_view(_padded(x, padding, value), kernel, axis=(2, 3))
    return view[:, :, :: stride[0], :: stride[1]].transpose(0, 1, 4, 5, 2, 3)


def window_sample(draw: Draw) -> dict[str, Any]:
    """Attributes of a window that fits an image of 5 by 4."""
    stride = draw.choice("stride", (1, 2))
    padding = draw.choice("padding", (0, 1))
    return {"kernel": (2, 3), "stride": (stride, stride), "padding": (padding, padding)}


@op(
    name="windows",
    ref=windows_ref,
    lower=View(_windows_map),
    sample=lambda draw: Sample.of(draw.array("x", (2, 1, 5, 4)), **window_sample(draw), value=0.0),
    analytic=True,
)
def windows(x: Tensor, *, kernel: Pair, stride: Pair, padding: Pair, value: float) -> TensorType:
    """`[B, C, H, W] -> [B, C, kh, kw, Ho, Wo]`: every window of an image."""
    sizes = (out_size(int(n), k, s, p) for n, k, s, p in zip(x.shape[2:], kernel, stride, padding, strict=True))
    return TensorType((*x.shape[:2], *kernel, *sizes), x.dtype)


@windows.vjp
def _(ct: Tensor, y: Tensor, x: Tensor, *, kernel: Pair, stride: Pair, padding: Pair, value: float) -> Cotangents:
    size = (int(x.shape[2]), int(x.shape[3]))
    return (window_sum(ct, stride=stride, padding=padding, size=size),)


def back(at: Index, stride: int, size: int) -> tuple[Index, list[tuple[Index, int, int]]]:
    """`at / stride` where that is a whole position in `[0, size)`."""
    shift = -(-max(0, -at.lo) // stride) * stride  # divisions need a non-negative operand
    inside = [(at, 0, (size - 1) * stride + 1)]
    if stride > 1:
        inside.append(((at + shift) % stride, 0, 1))
    return (at + shift) // stride - shift // stride, inside


def _spread_map(ix: Ix, operand: Shape, *, stride: Pair, padding: Pair, size: Pair) -> Source:
    b, c, h, w, i, j = ix
    oh, rows = back(h + padding[0] - i, stride[0], int(operand[4]))
    ow, columns = back(w + padding[1] - j, stride[1], int(operand[5]))
    return Source((b, c, i, j, oh, ow), (*rows, *columns), 0.0)


def spread_ref(x: Array, stride: Pair, padding: Pair, size: Pair) -> Array:
    """Each tap moved to the pixel that it read."""
    b, c, kh, kw, ho, wo = x.shape
    (h, w), (p, q), (s, t) = size, padding, stride
    out = np.zeros((b, c, h + 2 * p + s, w + 2 * q + t, kh, kw), x.dtype)
    for i in range(kh):
        for j in range(kw):
            out[:, :, i : i + ho * s : s, j : j + wo * t : t, i, j] = x[:, :, i, j]
    return out[:, :, p : p + h, q : q + w]


def _overlap_sample(draw: Draw) -> Sample:
    a = window_sample(draw)
    (s, t), (p, q) = a["stride"], a["padding"]
    x = draw.array("x", (2, 1, 2, 3, out_size(5, 2, s, p), out_size(4, 3, t, q)))
    return Sample.of(x, stride=a["stride"], padding=a["padding"], size=(5, 4))


@op(name="windows_spread", ref=spread_ref, lower=View(_spread_map), sample=_overlap_sample, analytic=True)
def _spread(x: Tensor, *, stride: Pair, padding: Pair, size: Pair) -> TensorType:
    """`[B, C, kh, kw, Ho, Wo] -> [B, C, H, W, kh, kw]`: for each pixel, the windows that hold it."""
    return TensorType((*x.shape[:2], *size, *x.shape[2:4]), x.dtype)


_spread.no_vjp("a part of window_sum, which has the gradient")


@op(
    name="window_sum",
    ref=lambda x, stride, padding, size: np.sum(spread_ref(x, stride, padding, size), axis=(4, 5)),
    lower=Decompose(lambda x, **window: sum_(_spread(x, **window), (4, 5))),
    sample=_overlap_sample,
    analytic=True,
)
def window_sum(x: Tensor, *, stride: Pair, padding: Pair, size: Pair) -> TensorType:
    """Windows added up where they overlap: the adjoint of windows."""
    return TensorType((*x.shape[:2], *size), x.dtype)


@window_sum.vjp
def _(ct: Tensor, y: Tensor, x: Tensor, *, stride: Pair, padding: Pair, size: Pair) -> Cotangents:
    kernel = (int(x.shape[2]), int(x.shape[3]))
    return (windows(ct, kernel=kernel, stride=stride, padding=padding, value=0.0),)
