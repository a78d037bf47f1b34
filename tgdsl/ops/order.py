"""Positions of extremes. The first of ties wins, as in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from tgdsl.errors import ShapeError
from tgdsl.ir import (
    Array,
    Decompose,
    Draw,
    IntTensor,
    Sample,
    Tensor,
    TensorType,
    op,
    operand_error,
)

from .arguments import tensors
from .compare import equal, where
from .creation import arange
from .movement import broadcast_to, reshape
from .reduce import _folded, _max, _min, kept
from .rules import normalize_axis


def _first_hit(x: Tensor, best: Tensor, axis: int) -> Any:
    n = int(x.shape[axis])
    position = reshape(arange(n), (n, *(1 for _ in range(x.ndim - axis - 1))))
    hit = equal(x, reshape(best, kept(x.shape, (axis,))))
    # n - 1 stands for "not here", so that the result is proven to be a position of the axis.
    return _min(where(hit, broadcast_to(position, x.shape), n - 1), axes=(axis,))  # type: ignore[arg-type]


def _argmax_parts(x: Tensor, *, axis: int) -> Any:
    return _first_hit(x, _max(x, axes=(axis,)), axis)


def _argmin_parts(x: Tensor, *, axis: int) -> Any:
    return _first_hit(x, _min(x, axes=(axis,)), axis)


def _arg_sample(draw: Draw) -> Sample:
    shape = draw.shape("shape", 1, 3)
    return Sample.of(draw.distinct("x", shape), axis=draw.choice("axis", (0, len(shape) - 1)))


def _arg_ref(fn: Any) -> Any:
    def ref(x: Array, axis: int) -> Array:
        out: Array = np.asarray(fn(x, axis=axis)).astype(np.int32)
        return out

    return ref


@op(name="argmax", ref=_arg_ref(np.argmax), lower=Decompose(_argmax_parts), sample=_arg_sample, returns=IntTensor)
def _argmax(x: Tensor, *, axis: int) -> TensorType:
    """Position of the largest element along `axis`."""
    return TensorType(_folded("argmax", x, (axis,)).shape, "i32")


_argmax.no_vjp("positions carry no gradient")


def argmax(x: Tensor, axis: int = -1) -> IntTensor:
    """Position of the largest element along an axis; the first one of ties.

    Args:
        x: A tensor of numbers of rank 1 or more.
        axis: The axis; negative counts from the end.

    Shape:
        Without the axis.

    Dtype:
        f32 or i32, to i32.

    Gradient:
        None; positions carry no gradient.

    Raises:
        ShapeError: If the axis is out of range or x is a scalar.

    Source:
        Array API standard, `argmax`.

    Example:
        >>> compute(argmax, [[1.0, 5.0, 2.0]])
        array([1], dtype=int32)
    """
    tensors("argmax", x=x)
    if x.ndim == 0:
        raise operand_error(ShapeError, "argmax: a scalar has no axis", x=x)
    return _argmax(x, axis=normalize_axis("argmax", axis, x))


@op(name="argmin", ref=_arg_ref(np.argmin), lower=Decompose(_argmin_parts), sample=_arg_sample, returns=IntTensor)
def _argmin(x: Tensor, *, axis: int) -> TensorType:
    """Position of the smallest element along `axis`."""
    return TensorType(_folded("argmin", x, (axis,)).shape, "i32")


_argmin.no_vjp("positions carry no gradient")


def argmin(x: Tensor, axis: int = -1) -> IntTensor:
    """Position of the smallest element along an axis; the first one of ties.

    Args:
        x: A tensor of numbers of rank 1 or more.
        axis: The axis; negative counts from the end.

    Shape:
        Without the axis.

    Dtype:
        f32 or i32, to i32.

    Gradient:
        None; positions carry no gradient.

    Raises:
        ShapeError: If the axis is out of range or x is a scalar.

    Source:
        Array API standard, `argmin`.

    Example:
        >>> compute(argmin, [[1.0, 5.0, 2.0]])
        array([0], dtype=int32)
    """
    tensors("argmin", x=x)
    if x.ndim == 0:
        raise operand_error(ShapeError, "argmin: a scalar has no axis", x=x)
    return _argmin(x, axis=normalize_axis("argmin", axis, x))
