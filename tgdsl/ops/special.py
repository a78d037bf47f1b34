"""Functions that lose digits when written naively: the error function, and log(1 + x)."""

from __future__ import annotations

import numpy as np

from tgdsl.ir import Array, Cotangents, Pointwise, Tensor, TensorType, op

from . import samplers
from .elementwise import exp
from .power import square
from .rules import floating

INVERSE_SQRT_PI = 1.1283791670955126
"""2 / sqrt(pi), the slope of erf at 0."""


def _erf_ref(x: Array) -> Array:
    # The series for small x, the continued fraction for large: both to double precision.
    x = np.asarray(x)
    real = np.real(x)
    small = np.clip(real, -2.0, 2.0)
    term = total = small * INVERSE_SQRT_PI
    for n in range(1, 60):
        term = -term * small * small / n
        total = total + term / (2 * n + 1)
    big = np.maximum(np.abs(real), 1.9)
    tail = np.zeros_like(big)
    for n in range(120, 0, -1):
        tail = (n / 2.0) / (big + tail)
    far = 1.0 - np.exp(-big * big) / ((big + tail) * np.sqrt(np.pi))
    value: Array = np.where(np.abs(real) <= 2.0, total, np.sign(real) * far)
    return value.astype(real.dtype) if x.dtype.kind == "f" else value


LOG1P = """
fn log1p_of(x: f32) -> f32 {
  let u = 1.0f + x;
  // The error of rounding 1 + x cancels in the quotient.
  return select(log(u) * x / (u - 1.0f), x, u == 1.0f);
}
"""

ERF = """
fn erf_of(x: f32) -> f32 {
  let a = abs(x);
  let s = a * a;
  // Maclaurin series below 1, Abramowitz & Stegun 7.1.28-style minimax of exp(-a*a) above.
  var near = 1.1283791670955126f + s * (-0.37612638903183752f + s * (0.11283791670955126f
    + s * (-0.026866170645131252f + s * (0.0052239776254421878f + s * (-0.00085483270234508528f
    + s * (0.00012055332981789664f + s * (-0.000014925650358406250f + s * 0.0000016462114365889245f)))))));
  let t = 1.0f / (1.0f + 0.5f * a);
  let p = -1.26551223f + t * (1.00002368f + t * (0.37409196f + t * (0.09678418f + t * (-0.18628806f
    + t * (0.27886807f + t * (-1.13520398f + t * (1.48851587f + t * (-0.82215223f + t * 0.17087277f))))))));
  let far = 1.0f - t * exp(-s + p);
  return select(sign(x) * far, x * near, a < 1.0f);
}
"""


@op(
    ref=_erf_ref,
    lower=Pointwise("erf_of({x})", helpers=(ERF,), cost=24),
    sample=samplers.unary(-3.0, 3.0),
    hard=(0.0, 0.999, 1.001, 6.0, -6.0, 1e4),
    analytic=False,
)
def erf(x: Tensor) -> TensorType:
    """Error function of each element.

    Args:
        x: Any tensor.

    Shape:
        That of `x`.

    Dtype:
        f32.

    Gradient:
        `ct * 2 / sqrt(pi) * exp(-x ** 2)`.

    Source:
        Abramowitz & Stegun 7.1.1; in WGSL the series 7.1.5 below 1 and Press et al., `erfcc`, above.

    Example:
        >>> compute(erf, [0.0, 1.0])
        array([0.        , 0.84270079])
    """
    return floating("erf", x)


@erf.vjp
def _(ct: Tensor, y: Tensor, x: Tensor) -> Cotangents:
    return (ct * (INVERSE_SQRT_PI * exp(-square(x))),)


@op(
    ref=np.log1p,
    lower=Pointwise("log1p_of({x})", helpers=(LOG1P,), cost=16),
    sample=samplers.unary(-0.5, 2.0),
    hard=(1e-8, -1e-8, 1e-3, 1e6),
    analytic=True,
)
def log1p(x: Tensor) -> TensorType:
    """Logarithm of one plus each element, exact for small elements.

    Args:
        x: Numbers above -1.

    Shape:
        That of `x`.

    Dtype:
        f32.

    Gradient:
        `ct / (1 + x)`.

    Source:
        Array API standard, `log1p`; Goldberg 1991, theorem 4.

    Example:
        >>> compute(log1p, [0.0, 1.0])
        array([0.        , 0.69314718])
    """
    return floating("log1p", x)


@log1p.vjp
def _(ct: Tensor, y: Tensor, x: Tensor) -> Cotangents:
    return (ct / (1.0 + x),)
