"""Roots and powers. Small exponents are written out, so that derivatives at 0 are exact."""

from __future__ import annotations

import numpy as np

from tgdsl.ir import (
    Cotangents,
    Draw,
    Pointwise,
    Sample,
    Scalar,
    Tensor,
    TensorType,
    op,
    provides,
)

from . import samplers
from .arguments import number
from .creation import full
from .rules import floating


@op(
    ref=np.sqrt,
    lower=Pointwise("sqrt({x})", cost=4),
    sample=samplers.unary(0.1, 3.0),
    hard=(1e-12, 1e12),
    analytic=True,
)
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
    e = number("power", "the exponent", exponent, x=x)
    if e == 0.0:
        return full(shape=x.shape, value=1.0, dtype="f32")
    if e == 1.0:
        return x
    return square(x) if e == 2.0 else _power(x, exponent=e)
