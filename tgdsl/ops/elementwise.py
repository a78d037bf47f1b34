"""Arithmetic on each element."""

from __future__ import annotations

from typing import Any

import numpy as np

from tgdsl.errors import DTypeError, ShapeError
from tgdsl.ir import (
    AnyTensor,
    Cotangents,
    Pointwise,
    Scalar,
    Tensor,
    TensorType,
    op,
    operand_error,
)

from . import samplers
from .rules import binary, constant_of, floating, unbroadcast


@op(ref=np.add, lower=Pointwise("{a} + {b}"), sample=samplers.binary(), analytic=True)
def add(a: Tensor | Scalar, b: Tensor | Scalar) -> TensorType:
    """Sum of two tensors, or of a tensor and a number.

    Args:
        a: Left operand.
        b: Right operand.

    Shape:
        Right-aligned NumPy broadcasting.

    Dtype:
        f32 or i32, both alike; i32 wraps around.

    Gradient:
        `ct` to each operand, summed over the axes that broadcasting stretched.

    Source:
        Array API standard, `add`.

    Example:
        >>> compute(add, [1.0, 2.0], [10.0])
        array([11., 12.])
    """
    return binary("add", a, b)


@add.vjp
def _(ct: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Cotangents:
    return unbroadcast(ct, a), unbroadcast(ct, b)


@op(ref=np.subtract, lower=Pointwise("{a} - {b}"), sample=samplers.binary(), analytic=True)
def sub(a: Tensor | Scalar, b: Tensor | Scalar) -> TensorType:
    """Difference of two tensors, or of a tensor and a number.

    Args:
        a: Left operand.
        b: Right operand.

    Shape:
        Right-aligned NumPy broadcasting.

    Dtype:
        f32 or i32, both alike; i32 wraps around.

    Gradient:
        `ct` and `-ct`, summed over the axes that broadcasting stretched.

    Source:
        Array API standard, `subtract`.

    Example:
        >>> compute(sub, [1.0, 2.0], [10.0])
        array([-9., -8.])
    """
    return binary("sub", a, b)


@sub.vjp
def _(ct: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Cotangents:
    return unbroadcast(ct, a), unbroadcast(-ct, b)


@op(ref=np.multiply, lower=Pointwise("{a} * {b}"), sample=samplers.binary(), analytic=True)
def mul(a: Tensor | Scalar, b: Tensor | Scalar) -> TensorType:
    """Product of two tensors, element by element.

    Args:
        a: Left operand.
        b: Right operand.

    Shape:
        Right-aligned NumPy broadcasting.

    Dtype:
        f32 or i32, both alike; i32 wraps around.

    Gradient:
        `ct * b` and `ct * a`, summed over the axes that broadcasting stretched.

    Source:
        Array API standard, `multiply`.

    Example:
        >>> compute(mul, [1.0, 2.0], [10.0])
        array([10., 20.])
    """
    return binary("mul", a, b)


@mul.vjp
def _(ct: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Cotangents:
    return unbroadcast(ct * b, a), unbroadcast(ct * a, b)


@op(
    name="div",
    ref=np.true_divide,
    lower=Pointwise("{a} / {b}", cost=4),
    sample=samplers.binary(away_b=(0.0,)),
    analytic=True,
)
def _div(a: Tensor | Scalar, b: Tensor | Scalar) -> TensorType:
    """Quotient of two f32 tensors."""
    type_ = binary("div", a, b)
    if type_.dtype != "f32":
        raise operand_error(DTypeError, "div: integers are divided with //", left=_t(a), right=_t(b))
    if constant_of(_t(b)) == 0:
        raise operand_error(ShapeError, "div: division by the constant zero", left=_t(a), right=_t(b))
    return type_


def _t(x: Any) -> AnyTensor[Any]:
    # Op.__call__ has turned numbers into tensors before a type rule sees them.
    assert isinstance(x, AnyTensor)
    return x


@_div.vjp
def _(ct: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Cotangents:
    # ct / b is shared, and y / b neither overflows nor underflows where b * b would.
    part = ct / b
    return unbroadcast(part, a), unbroadcast(-(part * y), b)


def div(a: Tensor | Scalar, b: Tensor | Scalar) -> Tensor:
    """Quotient of two tensors, or of a tensor and a number.

    Args:
        a: Numerator.
        b: Denominator.

    Shape:
        Right-aligned NumPy broadcasting.

    Dtype:
        f32. Integers are divided with `//`.

    Gradient:
        `ct / b` and `-ct / b * (a / b)`, summed over the axes that broadcasting stretched.

    Raises:
        ShapeError: If `b` is the number zero.

    Source:
        Array API standard, `divide`.

    Example:
        >>> compute(div, [1.0, 2.0], [4.0])
        array([0.25, 0.5 ])
    """
    return _div(a, b)


@op(ref=np.negative, lower=Pointwise("-{x}"), sample=samplers.unary(), analytic=True)
def neg(x: Tensor) -> TensorType:
    """Each element with its sign changed.

    Args:
        x: Any tensor.

    Shape:
        That of `x`.

    Dtype:
        f32.

    Gradient:
        `-ct`.

    Source:
        Array API standard, `negative`.

    Example:
        >>> compute(neg, [1.0, -2.0])
        array([-1.,  2.])
    """
    return floating("neg", x)


@neg.vjp
def _(ct: Tensor, y: Tensor, x: Tensor) -> Cotangents:
    return (-ct,)


@op(ref=np.exp, lower=Pointwise("exp({x})", cost=8), sample=samplers.unary(), hard=(-100.0, 0.0, 88.0), analytic=True)
def exp(x: Tensor) -> TensorType:
    """Exponential of each element.

    Args:
        x: Any tensor; f32 overflows above 88.7.

    Shape:
        That of `x`.

    Dtype:
        f32.

    Gradient:
        `ct * exp(x)`.

    Source:
        Array API standard, `exp`.

    Example:
        >>> compute(exp, [0.0, 1.0])
        array([1.        , 2.71828183])
    """
    return floating("exp", x)


@exp.vjp
def _(ct: Tensor, y: Tensor, x: Tensor) -> Cotangents:
    return (ct * y,)


@op(
    ref=np.log,
    lower=Pointwise("log({x})", cost=8),
    sample=samplers.unary(0.1, 3.0),
    hard=(1.0, 1e-6, 1e6),
    analytic=True,
)
def log(x: Tensor) -> TensorType:
    """Natural logarithm of each element.

    Args:
        x: Positive numbers.

    Shape:
        That of `x`.

    Dtype:
        f32.

    Gradient:
        `ct / x`.

    Source:
        Array API standard, `log`.

    Example:
        >>> compute(log, [1.0, 2.0])
        array([0.        , 0.69314718])
    """
    return floating("log", x)


@log.vjp
def _(ct: Tensor, y: Tensor, x: Tensor) -> Cotangents:
    return (ct / x,)
