"""Convolution, NCHW: single contractions whose operands read through window views.

The convolution and both of its gradients are ops of one family, each the gradient of
another, so higher orders come free.
"""

from __future__ import annotations

import math

import numpy as np

from tgdsl.errors import ShapeError
from tgdsl.ir import (
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
)

from .linalg import matmul
from .movement import permute, reshape
from .windows import Ix, Pair, back, out_size, pair, require_images, spread_ref, window_sample, windows, windows_ref


def _columns(x: Tensor, kernel: Pair, stride: Pair, padding: Pair) -> Tensor:
    """`[C * kh * kw, B * Ho * Wo]`: the windows as the columns of a matrix."""
    cols = permute(windows(x, kernel=kernel, stride=stride, padding=padding, value=0.0), (1, 2, 3, 0, 4, 5))
    return reshape(cols, (math.prod(cols.shape[:3]), math.prod(cols.shape[3:])))


def _conv_parts(x: Tensor, w: Tensor, *, stride: Pair, padding: Pair) -> Tensor:
    co, _, kh, kw = (int(n) for n in w.shape)
    sizes = [out_size(int(n), k, s, p) for n, k, s, p in zip(x.shape[2:], (kh, kw), stride, padding, strict=True)]
    flat = matmul(reshape(w, (co, -1)), _columns(x, (kh, kw), stride, padding))
    return permute(reshape(flat, (co, x.shape[0], *sizes)), (1, 0, 2, 3))


def _matrix(cols: Array) -> Array:
    """NumPy's columns, laid out for one BLAS product."""
    return np.ascontiguousarray(cols.transpose(1, 2, 3, 0, 4, 5)).reshape(math.prod(cols.shape[1:4]), -1)


def _conv_ref(x: Array, w: Array, stride: Pair, padding: Pair) -> Array:
    cols = windows_ref(x, w.shape[2:], stride, padding, 0.0)
    flat = w.reshape(w.shape[0], -1) @ _matrix(cols)
    return flat.reshape(w.shape[0], x.shape[0], *cols.shape[4:]).transpose(1, 0, 2, 3)


def _conv_sample(draw: Draw) -> Sample:
    a = window_sample(draw)
    w = draw.array("w", (2, 2, *a["kernel"]))
    return Sample.of(draw.array("x", (2, 2, 5, 4)), w, stride=a["stride"], padding=a["padding"])


@op(name="conv2d", ref=_conv_ref, lower=Decompose(_conv_parts), sample=_conv_sample, analytic=True)
def _conv2d(x: Tensor, w: Tensor, *, stride: Pair, padding: Pair) -> TensorType:
    """Cross-correlation of images with kernels."""
    kernel = (int(w.shape[2]), int(w.shape[3]))
    sizes = (out_size(int(n), k, s, p) for n, k, s, p in zip(x.shape[2:], kernel, stride, padding, strict=True))
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
    oh, rows = back(h + padding[0] - i, stride[0], int(operand[2]))
    ow, columns = back(w + padding[1] - j, stride[1], int(operand[3]))
    return Source((b, c, oh, ow), (*rows, *columns), 0.0)


def _back_ref(x: Array, kernel: Pair, stride: Pair, padding: Pair, size: Pair) -> Array:
    each = np.broadcast_to(x[:, :, None, None], (*x.shape[:2], *kernel, *x.shape[2:]))
    return spread_ref(each, stride, padding, size).transpose(0, 1, 4, 5, 2, 3)


def _back_sample(draw: Draw) -> Sample:
    a = window_sample(draw)
    (s, t), (p, q) = a["stride"], a["padding"]
    x = draw.array("x", (2, 1, out_size(5, 2, s, p), out_size(4, 3, t, q)))
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
    a = window_sample(draw)
    (s, t), (p, q) = a["stride"], a["padding"]
    ct = draw.array("ct", (2, 2, out_size(5, 2, s, p), out_size(4, 3, t, q)))
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
    cols = windows_ref(x, kernel, stride, padding, 0.0)[..., : ct.shape[2], : ct.shape[3]]
    flat = ct.transpose(1, 0, 2, 3).reshape(ct.shape[1], -1) @ _matrix(cols).T
    return flat.reshape(ct.shape[1], x.shape[1], *kernel)


def _weight_sample(draw: Draw) -> Sample:
    a = window_sample(draw)
    (s, t), (p, q) = a["stride"], a["padding"]
    ct = draw.array("ct", (2, 2, out_size(5, 2, s, p), out_size(4, 3, t, q)))
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
    require_images("conv2d", x, w)
    strides, paddings = pair("conv2d", "stride", stride, 1), pair("conv2d", "padding", padding, 0)
    if x.shape[1] != w.shape[1]:
        raise operand_error(ShapeError, "conv2d: input channels differ", input=x, weight=w)
    for n, k, s, p in zip(x.shape[2:], w.shape[2:], strides, paddings, strict=True):
        if out_size(int(n), int(k), s, p) < 1:
            raise operand_error(ShapeError, "conv2d: the kernel is larger than the padded image", input=x, weight=w)
    return _conv2d(x, w, stride=strides, padding=paddings)
