"""Constants: tensors made from nothing but numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, overload

import numpy as np

from tgdsl.dtypes import NUMPY, DType
from tgdsl.errors import DTypeError, ShapeError
from tgdsl.ir import Array, IntTensor, Pointwise, Sample, Shape, Tensor, TensorType, op, user_site

from .rules import sizes


def _full_ref(shape: Shape, value: float, dtype: DType) -> Array:
    return np.full(shape, value, np.float64 if dtype == "f32" else NUMPY[dtype])


@op(
    ref=_full_ref,
    lower=Pointwise("{value}", cost=0),
    sample=lambda draw: Sample.of(shape=draw.shape("shape"), value=1.5, dtype="f32"),
)
def full(*, shape: Shape, value: float, dtype: DType = "f32") -> TensorType:
    """A tensor filled with one value.

    Args:
        shape: The shape.
        value: The number.
        dtype: The dtype.

    Shape:
        `shape`.

    Dtype:
        `dtype`.

    Gradient:
        None; a constant.

    Raises:
        ShapeError: If a size is below 1, or the value is NaN or does not fit the dtype.

    Source:
        Array API standard, `full`.

    Example:
        >>> compute(lambda: full(shape=(2,), value=1.5))
        array([1.5, 1.5])
    """
    _check_value(value, dtype)
    if not isinstance(shape, tuple):
        raise ShapeError(f"full: the shape must be a tuple, got {shape!r}", site=user_site())
    return TensorType(sizes("full", shape), dtype)


def _check_value(value: float, dtype: DType) -> None:
    if dtype not in NUMPY:
        raise ShapeError(f"full: unknown dtype {dtype!r}; use 'f32', 'i32' or 'bool'", site=user_site())
    largest = float(np.finfo(np.float32).max) if dtype == "f32" else 2.0**31 - 1.0
    infinite = dtype == "f32" and value in (math.inf, -math.inf)
    if value != value or not (infinite or -largest - (dtype == "i32") <= value <= largest):
        raise ShapeError(f"full: {value!r} is NaN or outside the range of {dtype}", site=user_site())
    if dtype != "f32" and value != int(value):
        raise DTypeError(f"full: {value!r} is not an integer", site=user_site())


full.no_vjp("a constant")


@op(
    name="arange",
    returns=IntTensor,
    ref=lambda n: np.arange(n, dtype=np.int32),
    lower=Pointwise("{index}", cost=1),
    sample=lambda draw: Sample.of(n=draw.size("n")),
)
def _arange(*, n: int) -> TensorType:
    """The integers below `n`."""
    return TensorType((n,), "i32")


_arange.no_vjp("a constant")


@op(
    name="arange_f32",
    ref=lambda n: np.arange(n, dtype=np.float64),
    lower=Pointwise("f32({index})", cost=1),
    sample=lambda draw: Sample.of(n=draw.size("n")),
)
def _arange_f32(*, n: int) -> TensorType:
    """The integers below `n` as floats."""
    return TensorType((n,), "f32")


_arange_f32.no_vjp("a constant")


@overload
def arange(n: int) -> IntTensor: ...
@overload
def arange(n: int, dtype: Literal["i32"]) -> IntTensor: ...
@overload
def arange(n: int, dtype: Literal["f32"]) -> Tensor: ...
def arange(n: int, dtype: Literal["i32", "f32"] = "i32") -> IntTensor | Tensor:
    """The integers from 0 to `n - 1`.

    Args:
        n: How many; at least 1.
        dtype: `"i32"`, or `"f32"` for float arithmetic.

    Shape:
        `[n]`.

    Dtype:
        `dtype`.

    Gradient:
        None; a constant.

    Raises:
        ShapeError: If `n` is not a positive integer or the dtype is neither.

    Source:
        Array API standard, `arange`.

    Example:
        >>> compute(lambda: arange(3))
        array([0, 1, 2], dtype=int32)
    """
    given: object = n
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise ShapeError(f"arange: n must be a positive integer, got {n!r}", site=user_site())
    if dtype not in ("i32", "f32"):
        raise DTypeError(f"arange: dtype must be 'i32' or 'f32', got {dtype!r}", site=user_site())
    return _arange_f32(n=n) if dtype == "f32" else _arange(n=n)


def zeros(shape: Sequence[int]) -> Tensor:
    """A tensor of zeros.

    Args:
        shape: The shape.

    Shape:
        `shape`.

    Dtype:
        f32.

    Gradient:
        None; a constant.

    Raises:
        ShapeError: If a size is below 1.

    Source:
        Array API standard, `zeros`.

    Example:
        >>> compute(lambda: zeros((2,)))
        array([0., 0.])
    """
    return full(shape=sizes("zeros", shape), value=0.0, dtype="f32")


def ones(shape: Sequence[int]) -> Tensor:
    """A tensor of ones.

    Args:
        shape: The shape.

    Shape:
        `shape`.

    Dtype:
        f32.

    Gradient:
        None; a constant.

    Raises:
        ShapeError: If a size is below 1.

    Source:
        Array API standard, `ones`.

    Example:
        >>> compute(lambda: ones((2,)))
        array([1., 1.])
    """
    return full(shape=sizes("ones", shape), value=1.0, dtype="f32")
