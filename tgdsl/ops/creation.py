"""Constants: tensors made from nothing but numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

import numpy as np

from tgdsl.dtypes import NUMPY, DType
from tgdsl.ir import Array, BoolTensor, IntTensor, Pointwise, Sample, Shape, Tensor, TensorType, op

from .arguments import dtype_name, element, integer
from .rules import sizes


def _full_ref(shape: Shape, value: float, dtype: DType) -> Array:
    return np.full(shape, value, np.float64 if dtype == "f32" else NUMPY[dtype])


@op(
    name="full",
    ref=_full_ref,
    lower=Pointwise("{value}", cost=0),
    sample=lambda draw: Sample.of(shape=draw.shape("shape"), value=1.5, dtype="f32"),
)
def _full(*, shape: Shape, value: float, dtype: DType = "f32") -> TensorType:
    """A tensor filled with one value."""
    return TensorType(shape, dtype)


_full.no_vjp("a constant")


@overload
def full(*, shape: Sequence[int], value: float) -> Tensor: ...
@overload
def full(*, shape: Sequence[int], value: float, dtype: Literal["f32"]) -> Tensor: ...
@overload
def full(*, shape: Sequence[int], value: int, dtype: Literal["i32"]) -> IntTensor: ...
@overload
def full(*, shape: Sequence[int], value: bool, dtype: Literal["bool"]) -> BoolTensor: ...
def full(*, shape: Sequence[int], value: float, dtype: DType = "f32") -> Any:
    """A tensor filled with one value.

    Args:
        shape: The shape.
        value: A number that the dtype holds: finite or infinite for f32, whole for i32, True or False for bool.
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
    dtype_name("full", dtype, "f32", "i32", "bool")
    return _full(shape=sizes("full", shape), value=element("full", "the value", value, dtype), dtype=dtype)


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
        `dtype`. Floats are exact up to 2**24, as every integer in f32.

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
    count = integer("arange", "n", n, 1)
    dtype_name("arange", dtype, "i32", "f32")
    sizes("arange", (count,))
    return _arange_f32(n=count) if dtype == "f32" else _arange(n=count)


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
