"""Pooling, NCHW: folds over window views."""

from __future__ import annotations

import math

import numpy as np

from tgdsl.errors import ShapeError
from tgdsl.ir import Array, Cotangents, Decompose, Draw, Sample, Tensor, TensorType, op, operand_error

from .casting import cast
from .compare import equal, where
from .movement import expand_dims
from .reduce import max as max_
from .reduce import mean
from .reduce import sum as sum_
from .windows import Pair, out_size, pair, require_images, window_sample, window_sum, windows, windows_ref


def _pool_parts(x: Tensor, *, kernel: Pair, stride: Pair, padding: Pair) -> Tensor:
    return max_(windows(x, kernel=kernel, stride=stride, padding=padding, value=-math.inf), (2, 3))


def _pool_ref(x: Array, kernel: Pair, stride: Pair, padding: Pair) -> Array:
    out: Array = np.max(windows_ref(x, kernel, stride, padding, -np.inf), axis=(2, 3))
    return out


def _pool_sample(draw: Draw) -> Sample:
    a = window_sample(draw)
    return Sample.of(draw.distinct("x", (2, 1, 5, 4)), **a)


@op(name="max_pool2d", ref=_pool_ref, lower=Decompose(_pool_parts), sample=_pool_sample)
def _max_pool2d(x: Tensor, *, kernel: Pair, stride: Pair, padding: Pair) -> TensorType:
    """The largest element of every window."""
    sizes = (out_size(int(n), k, s, p) for n, k, s, p in zip(x.shape[2:], kernel, stride, padding, strict=True))
    return TensorType((*x.shape[:2], *sizes))


@_max_pool2d.vjp
def _(ct: Tensor, y: Tensor, x: Tensor, *, kernel: Pair, stride: Pair, padding: Pair) -> Cotangents:
    seen = windows(x, kernel=kernel, stride=stride, padding=padding, value=-math.inf)
    hit = equal(seen, expand_dims(expand_dims(y, 2), 2))
    share = ct / sum_(cast(hit, "f32"), (2, 3))
    size = (int(x.shape[2]), int(x.shape[3]))
    each = where(hit, expand_dims(expand_dims(share, 2), 2), 0.0)
    return (window_sum(each, stride=stride, padding=padding, size=size),)


def max_pool2d(x: Tensor, kernel: int | Pair, *, stride: int | Pair | None = None, padding: int | Pair = 0) -> Tensor:
    """The largest element of every window.

    Args:
        x: `[B, C, H, W]`.
        kernel: Size of the window, an int or `(vertical, horizontal)`.
        stride: Step of the window; the kernel when omitted.
        padding: A border that never wins; at most half of the kernel.

    Shape:
        `[B, C, Ho, Wo]` with `Ho = (H + 2 * padding - kernel) // stride + 1`.

    Dtype:
        f32.

    Gradient:
        `ct` to the largest element, shared equally among ties, added up where windows overlap.

    Raises:
        ShapeError: If the rank is not 4, no window fits, or the padding exceeds half of the kernel.

    Source:
        `torch.nn.functional.max_pool2d`, but for the ties.

    Example:
        >>> compute(lambda x: max_pool2d(x, 2), [[[[1.0, 2.0], [3.0, 4.0]]]])
        array([[[[4.]]]])
    """
    size, step, border = _pool_arguments("max_pool2d", x, kernel, stride, padding)
    return _max_pool2d(x, kernel=size, stride=step, padding=border)


def avg_pool2d(x: Tensor, kernel: int | Pair, *, stride: int | Pair | None = None, padding: int | Pair = 0) -> Tensor:
    """The mean of every window; padding counts as zeros.

    Args:
        x: `[B, C, H, W]`.
        kernel: Size of the window, an int or `(vertical, horizontal)`.
        stride: Step of the window; the kernel when omitted.
        padding: A border of zeros; at most half of the kernel.

    Shape:
        `[B, C, Ho, Wo]` with `Ho = (H + 2 * padding - kernel) // stride + 1`.

    Dtype:
        f32.

    Gradient:
        `ct / (kh * kw)` to each element of a window, added up where windows overlap.

    Raises:
        ShapeError: If the rank is not 4, no window fits, or the padding exceeds half of the kernel.

    Source:
        `torch.nn.functional.avg_pool2d`.

    Example:
        >>> compute(lambda x: avg_pool2d(x, 2), [[[[1.0, 2.0], [3.0, 4.0]]]])
        array([[[[2.5]]]])
    """
    size, step, border = _pool_arguments("avg_pool2d", x, kernel, stride, padding)
    return mean(windows(x, kernel=size, stride=step, padding=border, value=0.0), (2, 3))


def _pool_arguments(
    what: str, x: Tensor, kernel: int | Pair, stride: int | Pair | None, padding: int | Pair
) -> tuple[Pair, Pair, Pair]:
    require_images(what, x)
    size, border = pair(what, "kernel", kernel, 1), pair(what, "padding", padding, 0)
    step = size if stride is None else pair(what, "stride", stride, 1)
    if any(2 * p > k for p, k in zip(border, size, strict=True)):
        raise operand_error(ShapeError, f"{what}: padding {border} is more than half of the kernel {size}", operand=x)
    if any(out_size(int(n), k, s, p) < 1 for n, k, s, p in zip(x.shape[2:], size, step, border, strict=True)):
        raise operand_error(ShapeError, f"{what}: the window {size} is larger than the padded image", operand=x)
    return size, step, border
