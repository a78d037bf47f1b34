"""Casts: each element as another dtype, the same on both backends wherever a float lies."""

from __future__ import annotations

from typing import Any, Literal, overload

import numpy as np

from tgdsl.dtypes import NUMPY, DType
from tgdsl.ir import AnyTensor, BoolTensor, IntTensor, Op, Pointwise, Sample, Tensor, TensorType, op

from . import samplers
from .arguments import dtype_name, tensors
from .rules import floating


def _cast_ref(x: Any, dtype: DType) -> Any:
    return np.asarray(x).astype(np.float64 if dtype == "f32" else NUMPY[dtype])


def _cast_op(dtype: DType, returns: type[Any]) -> Op[..., Any]:
    def rule(x: AnyTensor[Any]) -> TensorType:
        return TensorType(x.shape, dtype)

    rule.__doc__ = f"Each element as {dtype}."
    made = op(
        name=f"cast_{dtype}",
        ref=lambda x: _cast_ref(x, dtype),
        lower=Pointwise("f32({x})" if dtype == "f32" else "i32({x})" if dtype == "i32" else "bool({x})"),
        sample=lambda draw: Sample.of(draw.integers("x", draw.shape("shape"), -3, 3)),
        returns=returns,
    )(rule)
    made.no_vjp("integers and booleans carry no gradient")
    return made


F32_TO_I32 = """
fn f32_to_i32_of(x: f32) -> i32 {
  // What i32() makes of NaN, and of a value outside of its range, differs between drivers.
  if ((bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u) { return 0; }
  if (x >= 2147483648.0f) { return 2147483647; }
  return i32(max(x, -2147483648.0f));
}
"""


def _f32_to_i32_ref(x: Any) -> Any:
    x = np.asarray(x)
    inside = np.clip(np.where(np.isnan(x), 0.0, x), -(2.0**31), 2.0**31).astype(np.int64)
    return np.minimum(inside, 2**31 - 1).astype(np.int32)


@op(
    name="f32_to_i32",
    ref=_f32_to_i32_ref,
    lower=Pointwise("f32_to_i32_of({x})", helpers=(F32_TO_I32,), cost=3),
    sample=samplers.unary(),
    returns=IntTensor,
    hard=(0.0, -0.0, 0.999, -0.999, 2147483520.0, 2147483648.0, -2147483648.0, 1e30, -1e30),
)
def _f32_to_i32(x: Tensor) -> TensorType:
    """Each float truncated toward zero; the nearest i32 where it is outside of the range, 0 for NaN."""
    floating("f32_to_i32", x)
    return TensorType(x.shape, "i32")


_f32_to_i32.no_vjp("integers carry no gradient")

_CASTS: dict[DType, Op[..., Any]] = {
    "f32": _cast_op("f32", Tensor),
    "i32": _cast_op("i32", IntTensor),
    "bool": _cast_op("bool", BoolTensor),
}


@overload
def cast(x: AnyTensor[Any], dtype: Literal["f32"]) -> Tensor: ...
@overload
def cast(x: AnyTensor[Any], dtype: Literal["i32"]) -> IntTensor: ...
@overload
def cast(x: AnyTensor[Any], dtype: Literal["bool"]) -> BoolTensor: ...
def cast(x: AnyTensor[Any], dtype: DType) -> Any:
    """Each element as another dtype.

    A float becomes an integer by truncation toward zero; one outside of the range of i32, or
    infinite, becomes the nearest i32, and NaN becomes 0. An integer becomes the nearest float.
    True is 1; as a bool, zero is False and all else, NaN too, is True.

    Args:
        x: Any tensor.
        dtype: `"f32"`, `"i32"` or `"bool"`.

    Shape:
        That of `x`.

    Dtype:
        `dtype`.

    Gradient:
        None through integers and booleans; a cast to its own dtype is `x` itself.

    Raises:
        DTypeError: If `dtype` is none of the three.

    Source:
        Array API standard, `astype`; outside of the range of i32, where that leaves the result open, as in
        Rust and LLVM (`fptosi.sat`).

    Example:
        >>> compute(lambda x: cast(x, "i32"), [1.7, -1.7])
        array([ 1, -1], dtype=int32)
    """
    tensors("cast", x=x)
    dtype_name("cast", dtype, "f32", "i32", "bool")
    if x.dtype == dtype:
        return x
    return _f32_to_i32(x) if isinstance(x, Tensor) and dtype == "i32" else _CASTS[dtype](x)
