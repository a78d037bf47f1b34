"""Activations and other functions of one element, and the larger and smaller of two.

Kinks: at 0 the subgradient of `relu` and `abs` is 0; equal operands of `maximum` and
`minimum` share the cotangent equally. No finite input gives NaN.
"""

from __future__ import annotations

import numpy as np

from tgdsl.ir import Array, BoolTensor, Cotangents, Pointwise, Scalar, Tensor, TensorType, op

from . import samplers
from .compare import greater, less, where
from .elementwise import exp, square
from .rules import binary, floating, unbroadcast

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
    ref=lambda x: np.maximum(x, 0.0),
    lower=Pointwise("max({x}, 0.0f)", cost=1),
    sample=samplers.unary(away=(0.0,)),
    hard=(0.0, -0.0, 1e30, -1e30),
    analytic=False,
)
def relu(x: Tensor) -> TensorType:
    """The larger of each element and zero.

    Args:
        x: Any tensor.

    Shape:
        That of `x`.

    Dtype:
        f32.

    Gradient:
        `ct` where `x > 0`, else 0; 0 at `x = 0`.

    Source:
        Fukushima 1969; `torch.relu`.

    Example:
        >>> compute(relu, [-1.0, 2.0])
        array([0., 2.])
    """
    return floating("relu", x)


@relu.vjp
def _(ct: Tensor, y: Tensor, x: Tensor) -> Cotangents:
    return (where(greater(x, 0.0), ct, 0.0),)


@op(
    ref=np.tanh,
    lower=Pointwise("tanh(clamp({x}, -15.0f, 15.0f))", cost=8),
    sample=samplers.unary(-4.0, 4.0),
    hard=(0.0, 44.0, -89.0, 1e4, -1e4),
    analytic=True,
)
def tanh(x: Tensor) -> TensorType:
    """Hyperbolic tangent of each element.

    Args:
        x: Any tensor. WGSL may overflow inside for large arguments, so they are clamped where f32 already gives 1.

    Shape:
        That of `x`.

    Dtype:
        f32.

    Gradient:
        `ct * (1 - tanh(x) ** 2)`.

    Source:
        Array API standard, `tanh`.

    Example:
        >>> compute(tanh, [0.0, 1.0])
        array([0.        , 0.76159416])
    """
    return floating("tanh", x)


@tanh.vjp
def _(ct: Tensor, y: Tensor, x: Tensor) -> Cotangents:
    return (ct * (1.0 - y * y),)


@op(
    ref=lambda x: 0.5 + 0.5 * np.tanh(0.5 * x),
    lower=Pointwise("(1.0f / (1.0f + exp(-clamp({x}, -80.0f, 80.0f))))", cost=10),
    sample=samplers.unary(-6.0, 6.0),
    hard=(0.0, 88.0, -88.0, 1e4, -1e4),
    analytic=True,
)
def sigmoid(x: Tensor) -> TensorType:
    """Logistic function of each element.

    Args:
        x: Any tensor; the exponent is clamped so that nothing overflows.

    Shape:
        That of `x`.

    Dtype:
        f32.

    Gradient:
        `ct * sigmoid(x) * (1 - sigmoid(x))`.

    Source:
        `torch.sigmoid`.

    Example:
        >>> compute(sigmoid, [0.0, 2.0])
        array([0.5       , 0.88079708])
    """
    return floating("sigmoid", x)


@sigmoid.vjp
def _(ct: Tensor, y: Tensor, x: Tensor) -> Cotangents:
    return (ct * (y * (1.0 - y)),)


@op(
    ref=np.abs,
    lower=Pointwise("abs({x})", cost=1),
    sample=samplers.unary(away=(0.0,)),
    hard=(0.0, -0.0, 1e30),
    analytic=False,
)
def abs(x: Tensor) -> TensorType:
    """Absolute value of each element.

    Args:
        x: Any tensor.

    Shape:
        That of `x`.

    Dtype:
        f32.

    Gradient:
        `ct * sign(x)`; 0 at `x = 0`.

    Source:
        Array API standard, `abs`.

    Example:
        >>> compute(abs, [-1.5, 2.0])
        array([1.5, 2. ])
    """
    return floating("abs", x)


@abs.vjp
def _(ct: Tensor, y: Tensor, x: Tensor) -> Cotangents:
    return (ct * sign(x),)


@op(
    ref=np.sign,
    lower=Pointwise("sign({x})", cost=1),
    sample=samplers.unary(away=(0.0,)),
    hard=(0.0, -0.0),
    analytic=False,
)
def sign(x: Tensor) -> TensorType:
    """-1, 0 or 1 by the sign of each element.

    Args:
        x: Any tensor.

    Shape:
        That of `x`.

    Dtype:
        f32.

    Gradient:
        Zero everywhere.

    Source:
        Array API standard, `sign`.

    Example:
        >>> compute(sign, [-1.5, 0.0, 2.0])
        array([-1.,  0.,  1.])
    """
    return floating("sign", x)


@sign.vjp
def _(ct: Tensor, y: Tensor, x: Tensor) -> Cotangents:
    return (None,)


@op(
    ref=np.floor,
    lower=Pointwise("floor({x})", cost=1),
    sample=samplers.unary(away=(-2.0, -1.0, 0.0, 1.0, 2.0)),
    hard=(0.0, 1.0, -1.0),
    analytic=False,
)
def floor(x: Tensor) -> TensorType:
    """The largest integer not above each element.

    Args:
        x: Any tensor.

    Shape:
        That of `x`.

    Dtype:
        f32.

    Gradient:
        Zero everywhere.

    Source:
        Array API standard, `floor`.

    Example:
        >>> compute(floor, [-1.5, 2.5])
        array([-2.,  2.])
    """
    return floating("floor", x)


@floor.vjp
def _(ct: Tensor, y: Tensor, x: Tensor) -> Cotangents:
    return (None,)


@op(
    ref=np.sin,
    lower=Pointwise("sin({x})", cost=8),
    sample=samplers.unary(),
    analytic=True,
)
def sin(x: Tensor) -> TensorType:
    """Sine of each element.

    Args:
        x: Radians.

    Shape:
        That of `x`.

    Dtype:
        f32.

    Gradient:
        `ct * cos(x)`.

    Source:
        Array API standard, `sin`.

    Example:
        >>> compute(sin, [0.0, 1.0])
        array([0.        , 0.84147098])
    """
    return floating("sin", x)


@sin.vjp
def _(ct: Tensor, y: Tensor, x: Tensor) -> Cotangents:
    return (ct * cos(x),)


@op(
    ref=np.cos,
    lower=Pointwise("cos({x})", cost=8),
    sample=samplers.unary(),
    analytic=True,
)
def cos(x: Tensor) -> TensorType:
    """Cosine of each element.

    Args:
        x: Radians.

    Shape:
        That of `x`.

    Dtype:
        f32.

    Gradient:
        `-ct * sin(x)`.

    Source:
        Array API standard, `cos`.

    Example:
        >>> compute(cos, [0.0, 1.0])
        array([1.        , 0.54030231])
    """
    return floating("cos", x)


@cos.vjp
def _(ct: Tensor, y: Tensor, x: Tensor) -> Cotangents:
    return (-(ct * sin(x)),)


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


@op(
    ref=np.maximum,
    lower=Pointwise("max({a}, {b})"),
    sample=samplers.apart(),
    hard=(0.0, 1.0),
)
def maximum(a: Tensor | Scalar, b: Tensor | Scalar) -> TensorType:
    """The larger of two tensors, element by element.

    Args:
        a: Left operand.
        b: Right operand.

    Shape:
        Right-aligned NumPy broadcasting.

    Dtype:
        f32 or i32, both alike.

    Gradient:
        `ct` to the larger operand; half of it to each where they are equal.

    Source:
        Array API standard, `maximum`.

    Example:
        >>> compute(maximum, [1.0, 5.0], [3.0, 2.0])
        array([3., 5.])
    """
    return binary("maximum", a, b)


@maximum.vjp
def _(ct: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Cotangents:
    return _shared(ct, greater(a, b), less(a, b), a, b)


def _shared(ct: Tensor, a_wins: BoolTensor, b_wins: BoolTensor, a: Tensor, b: Tensor) -> Cotangents:
    """Everything to the operand that wins, half to each of equals."""
    to_a = where(a_wins, ct, where(b_wins, 0.0, 0.5 * ct))
    return unbroadcast(to_a, a), unbroadcast(ct - to_a, b)


@op(
    ref=np.minimum,
    lower=Pointwise("min({a}, {b})"),
    sample=samplers.apart(),
    hard=(0.0, 1.0),
)
def minimum(a: Tensor | Scalar, b: Tensor | Scalar) -> TensorType:
    """The smaller of two tensors, element by element.

    Args:
        a: Left operand.
        b: Right operand.

    Shape:
        Right-aligned NumPy broadcasting.

    Dtype:
        f32 or i32, both alike.

    Gradient:
        `ct` to the smaller operand; half of it to each where they are equal.

    Source:
        Array API standard, `minimum`.

    Example:
        >>> compute(minimum, [1.0, 5.0], [3.0, 2.0])
        array([1., 2.])
    """
    return binary("minimum", a, b)


@minimum.vjp
def _(ct: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Cotangents:
    return _shared(ct, less(a, b), greater(a, b), a, b)
