"""Arithmetic on each element."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tgdsl.errors import DTypeError, ShapeError
from tgdsl.ir import (
    AnyTensor,
    Cotangents,
    Draw,
    Pointwise,
    Sample,
    Scalar,
    Tensor,
    TensorType,
    op,
    operand_error,
    provides,
    user_site,
)

from . import samplers
from .creation import full
from .rules import binary, floating, unbroadcast



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
    if _t(b).node.op.name == "full" and _t(b).node.attrs["value"] == 0:
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


@op(ref=np.log, lower=Pointwise("log({x})", cost=8), sample=samplers.unary(0.1, 3.0), hard=(1.0, 1e-6, 1e6), analytic=True)
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


@op(ref=np.sqrt, lower=Pointwise("sqrt({x})", cost=4), sample=samplers.unary(0.1, 3.0), hard=(1e-12, 1e12), analytic=True)
def sqrt(x: Tensor) -> TensorType:
    """Square root of each element.

    Args:
        x: Non-negative numbers.

    Shape:
        That of `x`.

    Dtype:
        f32.

    Gradient:
        `ct / (2 * sqrt(x))`; infinite at 0, as the derivative is.

    Source:
        Array API standard, `sqrt`.

    Example:
        >>> compute(sqrt, [4.0, 9.0])
        array([2., 3.])
    """
    return floating("sqrt", x)


@sqrt.vjp
def _(ct: Tensor, y: Tensor, x: Tensor) -> Cotangents:
    return (0.5 * ct / y,)


@op(
    ref=lambda x: 1.0 / np.sqrt(x),
    lower=Pointwise("inverseSqrt({x})", cost=4),
    sample=samplers.unary(0.1, 3.0),
    hard=(1e-12, 1e12),
    analytic=True,
)
def rsqrt(x: Tensor) -> TensorType:
    """Reciprocal square root of each element.

    Args:
        x: Positive numbers.

    Shape:
        That of `x`.

    Dtype:
        f32.

    Gradient:
        `-ct * rsqrt(x) ** 3 / 2`.

    Source:
        tgdsl; `1 / sqrt(x)`.

    Example:
        >>> compute(rsqrt, [4.0])
        array([0.5])
    """
    return floating("rsqrt", x)


@rsqrt.vjp
def _(ct: Tensor, y: Tensor, x: Tensor) -> Cotangents:
    return (-0.5 * ct * (y * y * y),)


@op(ref=np.square, lower=Pointwise("{x} * {x}"), sample=samplers.unary(), hard=(0.0, 1e12), analytic=True)
def square(x: Tensor) -> TensorType:
    """Each element times itself.

    Args:
        x: Any tensor.

    Shape:
        That of `x`.

    Dtype:
        f32.

    Gradient:
        `2 * ct * x`.

    Source:
        Array API standard, `square`.

    Example:
        >>> compute(square, [3.0, -2.0])
        array([9., 4.])
    """
    return floating("square", x)


@square.vjp
def _(ct: Tensor, y: Tensor, x: Tensor) -> Cotangents:
    return (2.0 * ct * x,)


def _power_sample(draw: Draw) -> Sample:
    exponent = draw.choice("exponent", (2.0, 3.0, 0.5, -1.0, 1.0, 0.0))
    return Sample.of(draw.array("x", draw.shape("shape"), 0.2, 2.0), exponent=exponent)


POWER = """
fn power_of(x: f32, e: f32) -> f32 {
  // pow() of a negative base is undefined in WGSL; an integer exponent has an answer.
  let whole = e == floor(e);
  let odd = whole && (e - 2.0f * floor(e * 0.5f)) == 1.0f;
  if (e == 0.0f) { return 1.0f; }
  let size = pow(abs(x), e);
  return select(size, -size, odd && x < 0.0f);
}
"""


@op(
    name="power",
    ref=lambda x, exponent: np.power(x, exponent),
    lower=Pointwise("power_of({x}, {exponent})", helpers=(POWER,), cost=16),
    sample=_power_sample,
    analytic=True,
)
def _power(x: Tensor, *, exponent: float) -> TensorType:
    """Each element to a constant power."""
    return floating("power", x)


@_power.vjp
def _(ct: Tensor, y: Tensor, x: Tensor, *, exponent: float) -> Cotangents:
    # With the exponents 0, 1 and 2 written out, x**2 has the second derivative 2 at x = 0 too.
    if exponent == 0.0:
        return (None,)
    return (ct * (exponent * power(x, exponent - 1.0)),)


@provides("power")
def power(x: Tensor, exponent: Scalar) -> Tensor:
    """Each element to a constant power; the operator is `x ** exponent`.

    Args:
        x: Any tensor; negative elements need an integer exponent.
        exponent: A number.

    Shape:
        That of `x`.

    Dtype:
        f32.

    Gradient:
        `ct * exponent * x ** (exponent - 1)`; exact at 0 for the exponents 0, 1, 2.

    Source:
        Array API standard, `pow`.

    Example:
        >>> compute(lambda x: x**3, [2.0, -1.0])
        array([ 8., -1.])
    """
    floating("power", x)
    e = float(exponent)
    if not math.isfinite(e):
        raise ShapeError(f"power: the exponent must be finite, got {exponent!r}", site=user_site())
    if e == 0.0:
        return full(shape=x.shape, value=1.0, dtype="f32")
    if e == 1.0:
        return x
    return square(x) if e == 2.0 else _power(x, exponent=e)
