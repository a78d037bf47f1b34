"""Ops that act on each element."""

from __future__ import annotations

from typing import Any

import numpy as np

from tgdsl.dtypes import DType
from tgdsl.ir import AnyTensor, Cotangents, Draw, Pointwise, Sample, Shape, Tensor, TensorType, op

from . import samplers
from .rules import binary, floating, unbroadcast


@op(
    ref=lambda shape, value, dtype: np.full(shape, value, {"f32": np.float64, "i32": np.int32, "bool": np.bool_}[dtype]),
    lower=Pointwise("{value}", cost=0),
    sample=lambda draw: Sample.of(shape=draw.shape("shape"), value=1.5, dtype="f32"),
)
def full(*, shape: Shape, value: float, dtype: DType = "f32") -> TensorType:
    """A tensor filled with one value."""
    return TensorType(shape, dtype)


full.no_vjp("a constant")


@op(ref=np.add, lower=Pointwise("{a} + {b}"), sample=samplers.binary(), analytic=True)
def add(a: Tensor | float, b: Tensor | float) -> TensorType:
    """Sum of two tensors."""
    return binary("add", a, b)  # type: ignore[arg-type]


@add.vjp
def _(ct: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Cotangents:
    return unbroadcast(ct, a), unbroadcast(ct, b)


@op(ref=np.subtract, lower=Pointwise("{a} - {b}"), sample=samplers.binary(), analytic=True)
def sub(a: Tensor | float, b: Tensor | float) -> TensorType:
    """Difference of two tensors."""
    return binary("sub", a, b)  # type: ignore[arg-type]


@sub.vjp
def _(ct: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Cotangents:
    return unbroadcast(ct, a), unbroadcast(-ct, b)


@op(ref=np.multiply, lower=Pointwise("{a} * {b}"), sample=samplers.binary(), analytic=True)
def mul(a: Tensor | float, b: Tensor | float) -> TensorType:
    """Product of two tensors."""
    return binary("mul", a, b)  # type: ignore[arg-type]


@mul.vjp
def _(ct: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Cotangents:
    return unbroadcast(ct * b, a), unbroadcast(ct * a, b)


@op(ref=np.true_divide, lower=Pointwise("{a} / {b}", cost=4), sample=samplers.binary(away_b=(0.0,)), analytic=True)
def div(a: Tensor | float, b: Tensor | float) -> TensorType:
    """Quotient of two tensors."""
    return binary("div", a, b)  # type: ignore[arg-type]


@div.vjp
def _(ct: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Cotangents:
    return unbroadcast(ct / b, a), unbroadcast(-ct * y / b, b)


@op(ref=np.negative, lower=Pointwise("-{x}"), sample=samplers.unary(), analytic=True)
def neg(x: Tensor) -> TensorType:
    """Each element with its sign changed."""
    return floating("neg", x)


@neg.vjp
def _(ct: Tensor, y: Tensor, x: Tensor) -> Cotangents:
    return (-ct,)


@op(ref=np.exp, lower=Pointwise("exp({x})", cost=8), sample=samplers.unary(), analytic=True)
def exp(x: Tensor) -> TensorType:
    """Exponential of each element."""
    return floating("exp", x)


@exp.vjp
def _(ct: Tensor, y: Tensor, x: Tensor) -> Cotangents:
    return (ct * y,)
