"""Convolution and pooling, NCHW: contractions and folds over window views.

A window is an index map with a guard, so nothing is unrolled in memory: the convolution and
both of its gradients are single contractions whose operands read through the map. The three
are ops of one family, each the gradient of another, so higher orders come free.
"""

from __future__ import annotations

import math
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

from .compare import cast, equal, where
from .linalg import matmul
from .movement import expand_dims, permute, reshape
from .reduce import max as max_
from .reduce import mean
from .reduce import sum as sum_

Pair = tuple[int, int]
Ix = tuple[Index, ...]


def pair(what: str, name: str, value: int | Pair, least: int) -> Pair:
    """An int or a pair as a pair of ints of at least `least`."""
    both = (value, value) if isinstance(value, int) else tuple(value)
    if len(both) != 2 or any(isinstance(v, bool) or not isinstance(v, int) or v < least for v in both):
        raise ShapeError(f"{what}: {name} must be an int or a pair of ints of at least {least}, got {value!r}", site=user_site())
    return both[0], both[1]


def _out_size(n: int, kernel: int, stride: int, padding: int) -> int:
    return (n + 2 * padding - kernel) // stride + 1


# -- windows -----------------------------------------------------------------


def _windows_map(ix: Ix, operand: Shape, *, kernel: Pair, stride: Pair, padding: Pair, value: float) -> Source:
    b, c, i, j, oh, ow = ix
    h, w = oh * stride[0] + i - padding[0], ow * stride[1] + j - padding[1]
    return Source((b, c, h, w), ((h, 0, int(operand[2])), (w, 0, int(operand[3]))), value)


def _padded(x: Array, padding: Pair, value: float) -> Array:
    (p, q) = padding
    return np.pad(x, ((0, 0), (0, 0), (p, p), (q, q)), constant_values=value) if p or q else x


def _windows_ref(x: Array, kernel: Pair, stride: Pair, padding: Pair, value: float) -> Array:
    view = np.lib.stride_tricks.sliding_window_view(_padded(x, padding, value), kernel, axis=(2, 3))
    return view[:, :, :: stride[0], :: stride[1]].transpose(0, 1, 4, 5, 2, 3)


def _window_sample(draw: Draw) -> dict[str, Any]:
    stride = draw.choice("stride", (1, 2))
    padding = draw.choice("padding", (0, 1))
    return {"kernel": (2, 3), "stride": (stride, stride), "padding": (padding, padding)}


@op(
    name="windows",
    ref=_windows_ref,
    lower=View(_windows_map),
    sample=lambda draw: Sample.of(draw.array("x", (2, 1, 5, 4)), **_window_sample(draw), value=0.0),
    analytic=True,
)
def _windows(x: Tensor, *, kernel: Pair, stride: Pair, padding: Pair, value: float) -> TensorType:
    """`[B, C, H, W] -> [B, C, kh, kw, Ho, Wo]`: every window of an image."""
    sizes = (_out_size(int(n), k, s, p) for n, k, s, p in zip(x.shape[2:], kernel, stride, padding, strict=True))
    return TensorType((*x.shape[:2], *kernel, *sizes), x.dtype)


@_windows.vjp
def _(ct: Tensor, y: Tensor, x: Tensor, *, kernel: Pair, stride: Pair, padding: Pair, value: float) -> Cotangents:
    size = (int(x.shape[2]), int(x.shape[3]))
    return (_overlap(ct, stride=stride, padding=padding, size=size),)


def _back(at: Index, stride: int, size: int) -> tuple[Index, list[tuple[Index, int, int]]]:
    """`at / stride` where that is a whole position in `[0, size)`."""
    shift = -(-max(0, -at.lo) // stride) * stride  # divisions need a non-negative operand
    inside = [(at, 0, (size - 1) * stride + 1)]
    if stride > 1:
        inside.append(((at + shift) % stride, 0, 1))
    return (at + shift) // stride - shift // stride, inside


def _spread_map(ix: Ix, operand: Shape, *, stride: Pair, padding: Pair, size: Pair) -> Source:
    b, c, h, w, i, j = ix
    oh, rows = _back(h + padding[0] - i, stride[0], int(operand[4]))
    ow, columns = _back(w + padding[1] - j, stride[1], int(operand[5]))
    return Source((b, c, i, j, oh, ow), (*rows, *columns), 0.0)


def _spread_ref(x: Array, stride: Pair, padding: Pair, size: Pair) -> Array:
    b, c, kh, kw, ho, wo = x.shape
    (h, w), (p, q), (s, t) = size, padding, stride
    out = np.zeros((b, c, h + 2 * p + s, w + 2 * q + t, kh, kw), x.dtype)
    for i in range(kh):
        for j in range(kw):
            out[:, :, i : i + ho * s : s, j : j + wo * t : t, i, j] = x[:, :, i, j]
    return out[:, :, p : p + h, q : q + w]


def _overlap_sample(draw: Draw) -> Sample:
    a = _window_sample(draw)
    (s, t), (p, q) = a["stride"], a["padding"]
    x = draw.array("x", (2, 1, 2, 3, _out_size(5, 2, s, p), _out_size(4, 3, t, q)))
    return Sample.of(x, stride=a["stride"], padding=a["padding"], size=(5, 4))


@op(name="windows_spread", ref=_spread_ref, lower=View(_spread_map), sample=_overlap_sample, analytic=True)
def _spread(x: Tensor, *, stride: Pair, padding: Pair, size: Pair) -> TensorType:
    """`[B, C, kh, kw, Ho, Wo] -> [B, C, H, W, kh, kw]`: for each pixel, the windows that hold it."""
    return TensorType((*x.shape[:2], *size, *x.shape[2:4]), x.dtype)


_spread.no_vjp("a part of window_sum, which has the gradient")


@op(
    name="window_sum",
    ref=lambda x, stride, padding, size: np.sum(_spread_ref(x, stride, padding, size), axis=(4, 5)),
    lower=Decompose(lambda x, stride, padding, size: sum_(_spread(x, stride=stride, padding=padding, size=size), (4, 5))),
    sample=_overlap_sample,
    analytic=True,
)
def _overlap(x: Tensor, *, stride: Pair, padding: Pair, size: Pair) -> TensorType:
    """Windows added up where they overlap: the adjoint of windows."""
    return TensorType((*x.shape[:2], *size), x.dtype)


@_overlap.vjp
def _(ct: Tensor, y: Tensor, x: Tensor, *, stride: Pair, padding: Pair, size: Pair) -> Cotangents:
    kernel = (int(x.shape[2]), int(x.shape[3]))
    return (_windows(ct, kernel=kernel, stride=stride, padding=padding, value=0.0),)


# -- convolution -------------------------------------------------------------


def _columns(x: Tensor, kernel: Pair, stride: Pair, padding: Pair) -> Tensor:
    """`[C * kh * kw, B * Ho * Wo]`: the windows as the columns of a matrix."""
    cols = permute(_windows(x, kernel=kernel, stride=stride, padding=padding, value=0.0), (1, 2, 3, 0, 4, 5))
    return reshape(cols, (math.prod(cols.shape[:3]), math.prod(cols.shape[3:])))


def _conv_parts(x: Tensor, w: Tensor, *, stride: Pair, padding: Pair) -> Tensor:
    co, _, kh, kw = (int(n) for n in w.shape)
    sizes = [_out_size(int(n), k, s, p) for n, k, s, p in zip(x.shape[2:], (kh, kw), stride, padding, strict=True)]
    flat = matmul(reshape(w, (co, -1)), _columns(x, (kh, kw), stride, padding))
    return permute(reshape(flat, (co, x.shape[0], *sizes)), (1, 0, 2, 3))


def _matrix(cols: Array) -> Array:
    """NumPy's columns, laid out for one BLAS product."""
    return np.ascontiguousarray(cols.transpose(1, 2, 3, 0, 4, 5)).reshape(math.prod(cols.shape[1:4]), -1)


def _conv_ref(x: Array, w: Array, stride: Pair, padding: Pair) -> Array:
    cols = _windows_ref(x, w.shape[2:], stride, padding, 0.0)
    flat = w.reshape(w.shape[0], -1) @ _matrix(cols)
    return flat.reshape(w.shape[0], x.shape[0], *cols.shape[4:]).transpose(1, 0, 2, 3)


def _conv_sample(draw: Draw) -> Sample:
    a = _window_sample(draw)
    w = draw.array("w", (2, 2, *a["kernel"]))
    return Sample.of(draw.array("x", (2, 2, 5, 4)), w, stride=a["stride"], padding=a["padding"])


@op(name="conv2d", ref=_conv_ref, lower=Decompose(_conv_parts), sample=_conv_sample, analytic=True)
def _conv2d(x: Tensor, w: Tensor, *, stride: Pair, padding: Pair) -> TensorType:
    """Cross-correlation of images with kernels."""
    sizes = (_out_size(int(n), int(k), s, p) for n, k, s, p in zip(x.shape[2:], w.shape[2:], stride, padding, strict=True))
    return TensorType((x.shape[0], w.shape[0], *sizes))


@_conv2d.vjp
def _(ct: Tensor, y: Tensor, x: Tensor, w: Tensor, *, stride: Pair, padding: Pair) -> Cotangents:
    size, kernel = (int(x.shape[2]), int(x.shape[3])), (int(w.shape[2]), int(w.shape[3]))
    return (
        _conv2d_input(ct, w, stride=stride, padding=padding, size=size),
        _conv2d_weight(x, ct, stride=stride, padding=padding, kernel=kernel),
    )


def _back_map(ix: Ix, operand: Shape, *, kernel: Pair, stride: Pair, padding: Pair, size: Pair) -> Source:
    b, c, i, j, h, w = ix
    oh, rows = _back(h + padding[0] - i, stride[0], int(operand[2]))
    ow, columns = _back(w + padding[1] - j, stride[1], int(operand[3]))
    return Source((b, c, oh, ow), (*rows, *columns), 0.0)


def _back_ref(x: Array, kernel: Pair, stride: Pair, padding: Pair, size: Pair) -> Array:
    each = np.broadcast_to(x[:, :, None, None], (*x.shape[:2], *kernel, *x.shape[2:]))
    return _spread_ref(each, stride, padding, size).transpose(0, 1, 4, 5, 2, 3)


def _back_sample(draw: Draw) -> Sample:
    a = _window_sample(draw)
    (s, t), (p, q) = a["stride"], a["padding"]
    x = draw.array("x", (2, 1, _out_size(5, 2, s, p), _out_size(4, 3, t, q)))
    return Sample.of(x, **a, size=(5, 4))


@op(name="windows_back", ref=_back_ref, lower=View(_back_map), sample=_back_sample, analytic=True)
def _windows_back(x: Tensor, *, kernel: Pair, stride: Pair, padding: Pair, size: Pair) -> TensorType:
    """`[B, C, Ho, Wo] -> [B, C, kh, kw, H, W]`: for each pixel and tap, the result it went to."""
    return TensorType((*x.shape[:2], *kernel, *size), x.dtype)


_windows_back.no_vjp("a part of conv2d_input, which has the gradient")


def _input_parts(ct: Tensor, w: Tensor, *, stride: Pair, padding: Pair, size: Pair) -> Tensor:
    co, ci, kh, kw = (int(n) for n in w.shape)
    cols = _windows_back(ct, kernel=(kh, kw), stride=stride, padding=padding, size=size)
    flat = matmul(
        reshape(permute(w, (1, 0, 2, 3)), (ci, -1)),
        reshape(permute(cols, (1, 2, 3, 0, 4, 5)), (co * kh * kw, -1)),
    )
    return permute(reshape(flat, (ci, ct.shape[0], *size)), (1, 0, 2, 3))


def _input_ref(ct: Array, w: Array, stride: Pair, padding: Pair, size: Pair) -> Array:
    (s, t), (p, q), (h, v) = stride, padding, size
    co, ci, kh, kw = w.shape
    b, _, ho, wo = ct.shape
    flat = w.reshape(co, -1).T @ ct.transpose(1, 0, 2, 3).reshape(co, -1)
    cols = flat.reshape(ci, kh, kw, b, ho, wo)
    out = np.zeros((ci, b, h + 2 * p + s, v + 2 * q + t), cols.dtype)
    for i in range(kh):
        for j in range(kw):
            out[:, :, i : i + ho * s : s, j : j + wo * t : t] += cols[:, i, j]
    return out[:, :, p : p + h, q : q + v].transpose(1, 0, 2, 3)


def _input_sample(draw: Draw) -> Sample:
    a = _window_sample(draw)
    (s, t), (p, q) = a["stride"], a["padding"]
    ct = draw.array("ct", (2, 2, _out_size(5, 2, s, p), _out_size(4, 3, t, q)))
    return Sample.of(ct, draw.array("w", (2, 2, 2, 3)), stride=a["stride"], padding=a["padding"], size=(5, 4))


@op(name="conv2d_input", ref=_input_ref, lower=Decompose(_input_parts), sample=_input_sample, analytic=True)
def _conv2d_input(ct: Tensor, w: Tensor, *, stride: Pair, padding: Pair, size: Pair) -> TensorType:
    """What each pixel contributes to `ct`: the transposed convolution."""
    return TensorType((ct.shape[0], w.shape[1], *size))


@_conv2d_input.vjp
def _(g: Tensor, y: Tensor, ct: Tensor, w: Tensor, *, stride: Pair, padding: Pair, size: Pair) -> Cotangents:
    kernel = (int(w.shape[2]), int(w.shape[3]))
    return (
        _conv2d(g, w, stride=stride, padding=padding),
        _conv2d_weight(g, ct, stride=stride, padding=padding, kernel=kernel),
    )


def _weight_parts(x: Tensor, ct: Tensor, *, stride: Pair, padding: Pair, kernel: Pair) -> Tensor:
    co = int(ct.shape[1])
    rows = reshape(permute(ct, (1, 0, 2, 3)), (co, -1))
    flat = matmul(rows, permute(_columns(x, kernel, stride, padding), (1, 0)))
    return reshape(flat, (co, x.shape[1], *kernel))


def _weight_ref(x: Array, ct: Array, stride: Pair, padding: Pair, kernel: Pair) -> Array:
    cols = _windows_ref(x, kernel, stride, padding, 0.0)[..., : ct.shape[2], : ct.shape[3]]
    flat = ct.transpose(1, 0, 2, 3).reshape(ct.shape[1], -1) @ _matrix(cols).T
    return flat.reshape(ct.shape[1], x.shape[1], *kernel)


def _weight_sample(draw: Draw) -> Sample:
    a = _window_sample(draw)
    (s, t), (p, q) = a["stride"], a["padding"]
    ct = draw.array("ct", (2, 2, _out_size(5, 2, s, p), _out_size(4, 3, t, q)))
    return Sample.of(draw.array("x", (2, 2, 5, 4)), ct, stride=a["stride"], padding=a["padding"], kernel=(2, 3))


@op(name="conv2d_weight", ref=_weight_ref, lower=Decompose(_weight_parts), sample=_weight_sample, analytic=True)
def _conv2d_weight(x: Tensor, ct: Tensor, *, stride: Pair, padding: Pair, kernel: Pair) -> TensorType:
    """What each tap contributes to `ct`: one product over all images and positions."""
    return TensorType((ct.shape[1], x.shape[1], *kernel))


@_conv2d_weight.vjp
def _(g: Tensor, y: Tensor, x: Tensor, ct: Tensor, *, stride: Pair, padding: Pair, kernel: Pair) -> Cotangents:
    size = (int(x.shape[2]), int(x.shape[3]))
    return (
        _conv2d_input(ct, g, stride=stride, padding=padding, size=size),
        _conv2d(x, g, stride=stride, padding=padding),
    )


def _images(what: str, *xs: AnyTensor[Any]) -> None:
    for x in xs:
        if x.dtype != "f32":
            raise operand_error(DTypeError, f"{what}: expected f32", operand=x)
        if x.ndim != 4:
            raise operand_error(ShapeError, f"{what}: needs rank 4", operand=x)


def conv2d(x: Tensor, w: Tensor, *, stride: int | Pair = 1, padding: int | Pair = 0) -> Tensor:
    """Cross-correlation of images with kernels, as deep learning calls convolution.

    Args:
        x: `[B, Ci, H, W]`.
        w: `[Co, Ci, kh, kw]`.
        stride: Step of the window, an int or `(vertical, horizontal)`.
        padding: Zeros around the image, likewise.

    Shape:
        `[B, Co, Ho, Wo]` with `Ho = (H + 2 * padding - kh) // stride + 1`.

    Dtype:
        f32.

    Gradient:
        To `x` the transposed convolution of `ct`, to `w` one product over all positions.

    Raises:
        ShapeError: If ranks or channels do not fit, or no window fits.

    Source:
        Dumoulin & Visin 2016; `torch.nn.functional.conv2d`.

    Example:
        >>> compute(conv2d, [[[[1.0, 2.0], [3.0, 4.0]]]], [[[[1.0, 1.0]]]])
        array([[[[3.],
                 [7.]]]])
    """
    _images("conv2d", x, w)
    strides, paddings = pair("conv2d", "stride", stride, 1), pair("conv2d", "padding", padding, 0)
    if x.shape[1] != w.shape[1]:
        raise operand_error(ShapeError, "conv2d: input channels differ", input=x, weight=w)
    for n, k, s, p in zip(x.shape[2:], w.shape[2:], strides, paddings, strict=True):
        if _out_size(int(n), int(k), s, p) < 1:
            raise operand_error(ShapeError, "conv2d: the kernel is larger than the padded image", input=x, weight=w)
    return _conv2d(x, w, stride=strides, padding=paddings)


# -- pooling -----------------------------------------------------------------


def _pool_parts(x: Tensor, *, kernel: Pair, stride: Pair, padding: Pair) -> Tensor:
    return max_(_windows(x, kernel=kernel, stride=stride, padding=padding, value=-math.inf), (2, 3))


def _pool_ref(x: Array, kernel: Pair, stride: Pair, padding: Pair) -> Array:
    out: Array = np.max(_windows_ref(x, kernel, stride, padding, -np.inf), axis=(2, 3))
    return out


def _pool_sample(draw: Draw) -> Sample:
    a = _window_sample(draw)
    return Sample.of(draw.distinct("x", (2, 1, 5, 4)), **a)


@op(name="max_pool2d", ref=_pool_ref, lower=Decompose(_pool_parts), sample=_pool_sample)
def _max_pool2d(x: Tensor, *, kernel: Pair, stride: Pair, padding: Pair) -> TensorType:
    """The largest element of every window."""
    sizes = (_out_size(int(n), k, s, p) for n, k, s, p in zip(x.shape[2:], kernel, stride, padding, strict=True))
    return TensorType((*x.shape[:2], *sizes))


@_max_pool2d.vjp
def _(ct: Tensor, y: Tensor, x: Tensor, *, kernel: Pair, stride: Pair, padding: Pair) -> Cotangents:
    seen = _windows(x, kernel=kernel, stride=stride, padding=padding, value=-math.inf)
    hit = equal(seen, expand_dims(expand_dims(y, 2), 2))
    share = ct / sum_(cast(hit, "f32"), (2, 3))
    size = (int(x.shape[2]), int(x.shape[3]))
    each = where(hit, expand_dims(expand_dims(share, 2), 2), 0.0)
    return (_overlap(each, stride=stride, padding=padding, size=size),)


def max_pool2d(
    x: Tensor, kernel: int | Pair, *, stride: int | Pair | None = None, padding: int | Pair = 0
) -> Tensor:
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
    return mean(_windows(x, kernel=size, stride=step, padding=border, value=0.0), (2, 3))


def _pool_arguments(
    what: str, x: Tensor, kernel: int | Pair, stride: int | Pair | None, padding: int | Pair
) -> tuple[Pair, Pair, Pair]:
    _images(what, x)
    size, border = pair(what, "kernel", kernel, 1), pair(what, "padding", padding, 0)
    step = size if stride is None else pair(what, "stride", stride, 1)
    if any(2 * p > k for p, k in zip(border, size, strict=True)):
        raise operand_error(ShapeError, f"{what}: padding {border} is more than half of the kernel {size}", operand=x)
    if any(_out_size(int(n), k, s, p) < 1 for n, k, s, p in zip(x.shape[2:], size, step, border, strict=True)):
        raise operand_error(ShapeError, f"{what}: the window {size} is larger than the padded image", operand=x)
    return size, step, border
