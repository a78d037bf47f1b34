"""Activations and other functions of one element.

Kinks: at 0 the subgradient of `relu` and `abs` is 0. No finite input gives NaN.
"""

from __future__ import annotations

import numpy as np

from tgdsl.ir import Cotangents, Pointwise, Tensor, TensorType, op

from . import samplers
from .compare import greater, where
from .rules import floating


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
