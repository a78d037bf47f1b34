"""Ops that fold axes. Every one has the same `axis` and `keepdims`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tgdsl.errors import DTypeError, ShapeError
from tgdsl.ir import (
    AnyTensor,
    Cotangents,
    Decompose,
    Draw,
    Op,
    Reduction,
    Sample,
    Tensor,
    TensorType,
    op,
    operand_error,
)

from .arguments import flag
from .casting import cast
from .compare import equal, where
from .movement import broadcast_to, reshape
from .rules import floating, normalize_axes

Axis = int | Sequence[int] | None


def kept(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    """`shape` with the folded axes kept as 1."""
    return tuple(1 if i in axes else n for i, n in enumerate(shape))


def _folded(what: str, x: AnyTensor[Any], axes: tuple[int, ...]) -> TensorType:
    if x.dtype == "bool":
        raise operand_error(DTypeError, f"{what}: expected numbers, got bool", "cast(x, 'f32')", x=x)
    return TensorType(tuple(n for i, n in enumerate(x.shape) if i not in axes), x.dtype)


def _axes_of(draw: Draw, rank: int) -> tuple[int, ...]:
    options = ((0,), (rank - 1,), tuple(range(rank)))
    axes: tuple[int, ...] = draw.choice("axes", options)
    return axes


def _sum_sample(draw: Draw) -> Sample:
    shape = draw.shape("shape", 1, 3)
    return Sample.of(draw.array("x", shape), axes=_axes_of(draw, len(shape)))


def _distinct_sample(draw: Draw) -> Sample:
    shape = draw.shape("shape", 1, 3)
    return Sample.of(draw.distinct("x", shape), axes=_axes_of(draw, len(shape)))


def _spread(ct: Tensor, x: AnyTensor[Any], axes: tuple[int, ...]) -> Tensor:
    """`ct` of a fold, stretched back to the shape of `x`."""
    return broadcast_to(reshape(ct, kept(x.shape, axes)), x.shape)


def _fold(made: Op[..., Tensor], x: Tensor, axis: Axis, *, keepdims: bool) -> Tensor:
    axes = normalize_axes(made.name, axis, x)
    flag(made.name, "keepdims", keepdims, operand=x)
    if not axes:
        made.infer((x,), {"axes": axes})  # nothing to fold, but the dtype has to fit
        return x
    y = made(x, axes=axes)
    return reshape(y, kept(x.shape, axes)) if keepdims else y


@op(
    name="sum",
    ref=lambda x, axes: np.sum(x, axis=axes, dtype=x.dtype),
    lower=Reduction("sum"),
    sample=_sum_sample,
    analytic=True,
)
def _sum(x: Tensor, *, axes: tuple[int, ...]) -> TensorType:
    """Sum over `axes`."""
    return _folded("sum", x, axes)


@_sum.vjp
def _(ct: Tensor, y: Tensor, x: Tensor, *, axes: tuple[int, ...]) -> Cotangents:
    return (_spread(ct, x, axes),)


def sum(x: Tensor, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """Sum over one, several or all axes.

    Args:
        x: An f32 tensor.
        axis: The axes to fold; None folds all.
        keepdims: Whether folded axes stay as 1.

    Shape:
        Without the folded axes.

    Dtype:
        f32 or i32, kept.

    Gradient:
        `ct` to every element.

    Raises:
        ShapeError: If an axis is out of range or named twice.

    Source:
        Array API standard, `sum`.

    Example:
        >>> compute(lambda x: sum(x, 0), [[1.0, 2.0], [3.0, 4.0]])
        array([4., 6.])
    """
    return _fold(_sum, x, axis, keepdims=keepdims)


def _mean_parts(x: Tensor, *, axes: tuple[int, ...]) -> Tensor:
    return _sum(x, axes=axes) * (1.0 / math.prod(int(x.shape[a]) for a in axes))


@op(
    name="mean",
    ref=lambda x, axes: np.asarray(np.mean(x, axis=axes)),
    lower=Decompose(_mean_parts),
    sample=_sum_sample,
    analytic=True,
)
def _mean(x: Tensor, *, axes: tuple[int, ...]) -> TensorType:
    """Mean over `axes`."""
    floating("mean", x)
    return _folded("mean", x, axes)


@_mean.vjp
def _(ct: Tensor, y: Tensor, x: Tensor, *, axes: tuple[int, ...]) -> Cotangents:
    return (_spread(ct * (1.0 / math.prod(int(x.shape[a]) for a in axes)), x, axes),)


def mean(x: Tensor, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """Mean over one, several or all axes.

    Args:
        x: An f32 tensor.
        axis: The axes to fold; None folds all.
        keepdims: Whether folded axes stay as 1.

    Shape:
        Without the folded axes.

    Dtype:
        f32.

    Gradient:
        `ct / n` to every element, n the number of elements folded.

    Raises:
        ShapeError: If an axis is out of range or named twice.

    Source:
        Array API standard, `mean`.

    Example:
        >>> compute(lambda x: mean(x, 0), [[1.0, 2.0], [3.0, 4.0]])
        array([2., 3.])
    """
    return _fold(_mean, x, axis, keepdims=keepdims)


def _to_ties(ct: Tensor, y: Tensor, x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The cotangent of an extremum: shared equally among the elements that reach it."""
    hit = equal(x, reshape(y, kept(x.shape, axes)))
    share = ct / _sum(cast(hit, "f32"), axes=axes)
    return where(hit, _spread(share, x, axes), 0.0)


@op(name="max", ref=lambda x, axes: np.max(x, axis=axes), lower=Reduction("max"), sample=_distinct_sample)
def _max(x: Tensor, *, axes: tuple[int, ...]) -> TensorType:
    """Largest element over `axes`."""
    return _folded("max", x, axes)


@_max.vjp
def _(ct: Tensor, y: Tensor, x: Tensor, *, axes: tuple[int, ...]) -> Cotangents:
    return (_to_ties(ct, y, x, axes),)


def max(x: Tensor, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """Largest element over one, several or all axes.

    Args:
        x: A tensor of numbers.
        axis: The axes to fold; None folds all.
        keepdims: Whether folded axes stay as 1.

    Shape:
        Without the folded axes.

    Dtype:
        f32 or i32, kept.

    Gradient:
        `ct` to that element; shared equally among ties.

    Raises:
        ShapeError: If an axis is out of range or named twice.

    Source:
        Array API standard, `max`.

    Example:
        >>> compute(lambda x: max(x, 0), [[1.0, 5.0], [3.0, 4.0]])
        array([3., 5.])
    """
    return _fold(_max, x, axis, keepdims=keepdims)


@op(name="min", ref=lambda x, axes: np.min(x, axis=axes), lower=Reduction("min"), sample=_distinct_sample)
def _min(x: Tensor, *, axes: tuple[int, ...]) -> TensorType:
    """Smallest element over `axes`."""
    return _folded("min", x, axes)


@_min.vjp
def _(ct: Tensor, y: Tensor, x: Tensor, *, axes: tuple[int, ...]) -> Cotangents:
    return (_to_ties(ct, y, x, axes),)


def min(x: Tensor, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """Smallest element over one, several or all axes.

    Args:
        x: A tensor of numbers.
        axis: The axes to fold; None folds all.
        keepdims: Whether folded axes stay as 1.

    Shape:
        Without the folded axes.

    Dtype:
        f32 or i32, kept.

    Gradient:
        `ct` to that element; shared equally among ties.

    Raises:
        ShapeError: If an axis is out of range or named twice.

    Source:
        Array API standard, `min`.

    Example:
        >>> compute(lambda x: min(x, 0), [[1.0, 5.0], [3.0, 4.0]])
        array([1., 4.])
    """
    return _fold(_min, x, axis, keepdims=keepdims)


def _prod_sample(draw: Draw) -> Sample:
    shape = draw.shape("shape", 1, 3)
    return Sample.of(draw.array("x", shape, 0.5, 1.5), axes=_axes_of(draw, len(shape)))


@op(
    name="prod",
    ref=lambda x, axes: np.prod(x, axis=axes, dtype=x.dtype),
    lower=Reduction("prod"),
    sample=_prod_sample,
    analytic=True,
)
def _prod(x: Tensor, *, axes: tuple[int, ...]) -> TensorType:
    """Product over `axes`."""
    return _folded("prod", x, axes)


@_prod.vjp
def _(ct: Tensor, y: Tensor, x: Tensor, *, axes: tuple[int, ...]) -> Cotangents:
    # The product of the others: y / x, or with one zero the product of the rest at that zero.
    zero = equal(x, 0.0)
    zeros = reshape(_sum(cast(zero, "f32"), axes=axes), kept(x.shape, axes))
    rest = reshape(_prod(where(zero, 1.0, x), axes=axes), kept(x.shape, axes))
    others = where(zero, where(equal(zeros, 1.0), rest, 0.0), where(equal(zeros, 0.0), rest / where(zero, 1.0, x), 0.0))
    return (_spread(ct, x, axes) * others,)


def prod(x: Tensor, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """Product over one, several or all axes.

    Args:
        x: An f32 tensor.
        axis: The axes to fold; None folds all.
        keepdims: Whether folded axes stay as 1.

    Shape:
        Without the folded axes.

    Dtype:
        f32 or i32, kept.

    Gradient:
        `ct` times the product of the other elements, also where elements are zero.

    Raises:
        ShapeError: If an axis is out of range or named twice.

    Source:
        Array API standard, `prod`.

    Example:
        >>> compute(prod, [2.0, 3.0])
        array(6.)
    """
    return _fold(_prod, x, axis, keepdims=keepdims)


def _last(what: str, x: Tensor) -> None:
    floating(what, x)
    if x.ndim == 0:
        raise operand_error(ShapeError, f"{what}: a scalar has no last axis", x=x)


def mean_last(x: Tensor) -> Tensor:
    """Mean over the last axis, which stays as 1."""
    _last("mean_last", x)
    return mean(x, -1, keepdims=True)


def sum_last(x: Tensor) -> Tensor:
    """Sum over the last axis, which goes."""
    _last("sum_last", x)
    return sum(x, -1)


def sum_all(x: Tensor) -> Tensor:
    """Sum of all elements, a scalar."""
    floating("sum_all", x)
    return sum(x)
