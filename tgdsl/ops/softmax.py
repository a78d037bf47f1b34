"""The softmax family, along one axis.

Everything is shifted by the maximum, so that nothing overflows. Decompositions and gradients
share their pieces, so that hash-consing merges what a forward and its gradient both need.
`softmax_or_zeros` alone gives zeros where a slice sees nothing: it is what attention wants,
while a bare softmax of nothing but `-inf` is NaN, as in every other library.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tgdsl.errors import ShapeError
from tgdsl.ir import AnyTensor, Array, Cotangents, Decompose, Draw, Sample, Tensor, TensorType, op, operand_error

from .compare import where
from .elementwise import exp, log
from .extrema import maximum
from .indexing import causal_mask, require_square
from .movement import expand_dims, permute, reshape
from .reduce import max as max_
from .reduce import sum as sum_
from .rules import floating, normalize_axis

LOWEST = -float(np.finfo(np.float32).max)
"""The lowest finite f32: what stands for the maximum of a slice that is all `-inf`."""

HARD = (0.0, 1e4, -1e4)


def float_axis(what: str, x: AnyTensor[Any], axis: int) -> int:
    """A non-negative axis of an f32 tensor."""
    floating(what, x)
    if x.ndim == 0:
        raise operand_error(ShapeError, f"{what}: a scalar has no axis", x=x)
    return normalize_axis(what, axis, x)


def _axis_sample(draw: Draw) -> Sample:
    shape = draw.shape("shape", 1, 3)
    return Sample.of(draw.array("x", shape, -4.0, 4.0), axis=draw.choice("axis", (0, len(shape) - 1)))


def _shifted(x: Tensor, axis: int) -> Tensor:
    return x - max_(x, axis, keepdims=True)


def _softmax_parts(x: Tensor, *, axis: int) -> Tensor:
    e = exp(_shifted(x, axis))
    return e / sum_(e, axis, keepdims=True)


def _softmax_ref(x: Array, axis: int) -> Array:
    e = np.exp(x - np.max(np.real(x), axis=axis, keepdims=True))
    out: Array = e / np.sum(e, axis=axis, keepdims=True)
    return out


@op(
    name="softmax",
    ref=_softmax_ref,
    lower=Decompose(_softmax_parts),
    sample=_axis_sample,
    hard=HARD,
    analytic=True,
)
def _softmax(x: Tensor, *, axis: int) -> TensorType:
    """Softmax along one axis."""
    return floating("softmax", x)


@_softmax.vjp
def _(ct: Tensor, y: Tensor, x: Tensor, *, axis: int) -> Cotangents:
    part = ct * y
    return (part - y * sum_(part, axis, keepdims=True),)


def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """Exponentials along one axis, scaled to sum to 1; shifted, so that nothing overflows.

    Args:
        x: Scores in any real range. A slice that is all `-inf` gives NaN; `attention` does not.
        axis: The axis; negative counts from the end.

    Shape:
        That of `x`.

    Dtype:
        f32.

    Gradient:
        `(ct - sum(ct * y)) * y`.

    Raises:
        ShapeError: If the axis is out of range or x is a scalar.

    Source:
        Blanchard, Higham & Higham 2021, the shifted softmax.

    Example:
        >>> compute(softmax, [1000.0, 1000.0])
        array([0.5, 0.5])
    """
    return _softmax(x, axis=float_axis("softmax", x, axis))


def _log_softmax_parts(x: Tensor, *, axis: int) -> Tensor:
    shifted = _shifted(x, axis)
    return shifted - log(sum_(exp(shifted), axis, keepdims=True))


def _log_softmax_ref(x: Array, axis: int) -> Array:
    shifted = x - np.max(np.real(x), axis=axis, keepdims=True)
    out: Array = shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))
    return out


@op(
    name="log_softmax",
    ref=_log_softmax_ref,
    lower=Decompose(_log_softmax_parts),
    sample=_axis_sample,
    hard=HARD,
    analytic=True,
)
def _log_softmax(x: Tensor, *, axis: int) -> TensorType:
    """Logarithm of softmax along one axis."""
    return floating("log_softmax", x)


@_log_softmax.vjp
def _(ct: Tensor, y: Tensor, x: Tensor, *, axis: int) -> Cotangents:
    return (ct - exp(y) * sum_(ct, axis, keepdims=True),)


def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """Logarithm of softmax along one axis.

    Args:
        x: Scores in any real range.
        axis: The axis; negative counts from the end.

    Shape:
        That of `x`.

    Dtype:
        f32.

    Gradient:
        `ct - softmax(x) * sum(ct)`.

    Raises:
        ShapeError: If the axis is out of range or x is a scalar.

    Source:
        Blanchard, Higham & Higham 2021, the shifted log-sum-exp.

    Example:
        >>> compute(log_softmax, [0.0, 0.0])
        array([-0.69314718, -0.69314718])
    """
    return _log_softmax(x, axis=float_axis("log_softmax", x, axis))


def log_softmax_last(x: Tensor) -> Tensor:
    """`log_softmax` along the last axis."""
    return log_softmax(x, -1)


def _top(x: Tensor, axis: int) -> Tensor:
    """The maximum, but finite in a slice of `-inf`, where subtracting it would give NaN."""
    return maximum(max_(x, axis, keepdims=True), LOWEST)


def _or_zeros_parts(x: Tensor, *, axis: int) -> Tensor:
    e = exp(x - _top(x, axis))
    # The largest element contributes 1, so the sum is below 1 only where nothing is seen.
    return e / maximum(sum_(e, axis, keepdims=True), 1.0)


def _or_zeros_ref(x: Array, axis: int) -> Array:
    e = np.exp(x - np.maximum(np.max(np.real(x), axis=axis, keepdims=True), LOWEST))
    total = np.sum(e, axis=axis, keepdims=True)
    out: Array = e / np.where(total == 0.0, 1.0, total)
    return out


@op(
    name="softmax_or_zeros",
    ref=_or_zeros_ref,
    lower=Decompose(_or_zeros_parts),
    sample=_axis_sample,
    hard=HARD,
    analytic=True,
)
def _softmax_or_zeros(x: Tensor, *, axis: int) -> TensorType:
    """Softmax along one axis, zeros where a slice is all `-inf`."""
    return floating("softmax_or_zeros", x)


@_softmax_or_zeros.vjp
def _(ct: Tensor, y: Tensor, x: Tensor, *, axis: int) -> Cotangents:
    part = ct * y
    return (part - y * sum_(part, axis, keepdims=True),)


def softmax_or_zeros(x: Tensor, axis: int) -> Tensor:
    """Softmax along one axis; a slice that is all `-inf` gives zeros, and gets a zero gradient."""
    return _softmax_or_zeros(x, axis=float_axis("softmax", x, axis))


def _logsumexp_parts(x: Tensor, *, axis: int) -> Tensor:
    top = _top(x, axis)
    total = log(sum_(exp(x - top), axis, keepdims=True)) + top
    return reshape(total, x.shape[:axis] + x.shape[axis + 1 :])


def _logsumexp_ref(x: Array, axis: int) -> Array:
    top = np.maximum(np.max(np.real(x), axis=axis, keepdims=True), LOWEST)
    out: Array = np.log(np.sum(np.exp(x - top), axis=axis)) + np.squeeze(top, axis)
    return out


@op(
    name="logsumexp",
    ref=_logsumexp_ref,
    lower=Decompose(_logsumexp_parts),
    sample=_axis_sample,
    hard=HARD,
    analytic=True,
)
def _logsumexp(x: Tensor, *, axis: int) -> TensorType:
    """Logarithm of the sum of exponentials along one axis."""
    return TensorType(x.shape[:axis] + x.shape[axis + 1 :])


@_logsumexp.vjp
def _(ct: Tensor, y: Tensor, x: Tensor, *, axis: int) -> Cotangents:
    return (expand_dims(ct, axis) * softmax_or_zeros(x, axis),)


def logsumexp(x: Tensor, axis: int = -1) -> Tensor:
    """Logarithm of the sum of exponentials along one axis; shifted, so that nothing overflows.

    Args:
        x: Scores in any real range. A slice that is all `-inf` gives `-inf`, and gets a zero gradient.
        axis: The axis; negative counts from the end.

    Shape:
        Without the axis.

    Dtype:
        f32.

    Gradient:
        `ct * softmax(x)`.

    Raises:
        ShapeError: If the axis is out of range or x is a scalar.

    Source:
        Blanchard, Higham & Higham 2021, the shifted log-sum-exp.

    Example:
        >>> compute(logsumexp, [0.0, 0.0])
        array(0.69314718)
    """
    return _logsumexp(x, axis=float_axis("logsumexp", x, axis))


def _causal_parts(x: Tensor) -> Tensor:
    mask = causal_mask("softmax_causal", x)
    seen = where(mask, x, -math.inf)
    e = exp(seen - max_(seen, -1, keepdims=True))
    return e / sum_(e, -1, keepdims=True)


def _causal_ref(x: Array) -> Array:
    n = x.shape[-1]
    seen = np.where(np.tri(n, dtype=bool), x, -np.inf)
    e = np.where(np.tri(n, dtype=bool), np.exp(seen - np.max(np.real(seen), axis=-1, keepdims=True)), 0.0)
    out: Array = e / np.sum(e, axis=-1, keepdims=True)
    return out


def _square_sample(draw: Draw) -> Sample:
    n = draw.size("n")
    return Sample.of(draw.array("x", (*draw.shape("batch", 0, 1), n, n), -4.0, 4.0))


@op(
    name="softmax_causal",
    ref=_causal_ref,
    lower=Decompose(_causal_parts),
    sample=_square_sample,
    hard=HARD,
)
def _softmax_causal(x: Tensor) -> TensorType:
    """Softmax of each row over the columns up to its own."""
    require_square("softmax_causal", x)
    return floating("softmax_causal", x)


@_softmax_causal.vjp
def _(ct: Tensor, y: Tensor, x: Tensor) -> Cotangents:
    part = ct * y
    return (part - y * sum_(part, -1, keepdims=True),)


def softmax_causal(x: Tensor, axis: int = -1) -> Tensor:
    """Softmax over the last axis in which row q sees columns 0 to q only.

    Args:
        x: `[..., T, T]`. A row that sees nothing but `-inf` gives NaN.
        axis: The axis of the columns; the rows are the last of the others.

    Shape:
        That of `x`.

    Dtype:
        f32.

    Gradient:
        As of softmax; exactly 0 above the diagonal.

    Raises:
        ShapeError: If rows and columns differ in number.

    Source:
        Vaswani et al. 2017, section 3.2.3.

    Example:
        >>> compute(softmax_causal, [[5.0, 1.0], [2.0, 2.0]])
        array([[1. , 0. ],
               [0.5, 0.5]])
    """
    column = float_axis("softmax_causal", x, axis)
    if column == x.ndim - 1:
        return _softmax_causal(x)
    turned = permute(x, (*(i for i in range(x.ndim) if i != column), column))
    back = [i if i < column else i - 1 for i in range(x.ndim)]
    back[column] = x.ndim - 1
    return permute(_softmax_causal(turned), tuple(back))


def softmax_causal_last(x: Tensor) -> Tensor:
    """`softmax_causal` along the last axis."""
    return softmax_causal(x, -1)
