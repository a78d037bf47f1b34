"""Functions that users call as one and kernels compute from parts: activations and layer norm.

Each has a reference and a gradient of its own, written with care for large arguments, and a
decomposition into primitives. Decomposition and gradient share their pieces, so that
hash-consing merges what both need.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from tgdsl.errors import DTypeError, ShapeError
from tgdsl.ir import Array, Cotangents, Decompose, Draw, Sample, Tensor, TensorType, op, operand_error, user_site

from . import samplers
from .activations import abs as abs_
from .activations import sigmoid, tanh
from .arguments import number, tensors
from .compare import greater, where
from .elementwise import exp
from .extrema import maximum, minimum
from .power import rsqrt, square
from .reduce import mean
from .rules import floating
from .softmax import float_axis
from .special import _erf_ref, erf, log1p

GELU_TANH = math.sqrt(2.0 / math.pi)


def _normal_cdf(x: Tensor) -> Tensor:
    return 0.5 * (1.0 + erf(x * (1.0 / math.sqrt(2.0))))


@op(
    name="gelu",
    ref=lambda x: 0.5 * x * (1.0 + _erf_ref(x / math.sqrt(2.0))),
    lower=Decompose(lambda x: x * _normal_cdf(x)),
    sample=samplers.unary(-4.0, 4.0),
    hard=(0.0, -13.24, 100.0, -100.0, 1e13, -1e13),
)
def _gelu(x: Tensor) -> TensorType:
    """Exact GELU."""
    return floating("gelu", x)


@_gelu.vjp
def _(ct: Tensor, y: Tensor, x: Tensor) -> Cotangents:
    # Where x * x overflows the density is exactly 0, so no finite x gives NaN.
    density = exp(square(x) * -0.5) * (1.0 / math.sqrt(2.0 * math.pi))
    return (ct * (_normal_cdf(x) + x * density),)


def _gelu_tanh_inner(x: Tensor) -> Tensor:
    # Past |x| = 20 the tanh is 1 in f32; without the clamp x**3 would overflow.
    z = _clamped(x)
    return tanh(GELU_TANH * (z + 0.044715 * (z * z * z)))


def _clamped(x: Tensor) -> Tensor:
    return maximum(minimum(x, 20.0), -20.0)


def _gelu_tanh_ref(x: Array) -> Array:
    z = np.clip(x, -20.0, 20.0)
    out: Array = 0.5 * x * (1.0 + np.tanh(GELU_TANH * (z + 0.044715 * z**3)))
    return out


@op(
    name="gelu_tanh",
    ref=_gelu_tanh_ref,
    lower=Decompose(lambda x: 0.5 * x * (1.0 + _gelu_tanh_inner(x))),
    sample=samplers.unary(-4.0, 4.0),
    hard=(0.0, -13.24, 100.0, -100.0, 1e13, -1e13),
)
def _gelu_tanh(x: Tensor) -> TensorType:
    """GELU by the tanh formula."""
    return floating("gelu", x)


@_gelu_tanh.vjp
def _(ct: Tensor, y: Tensor, x: Tensor) -> Cotangents:
    t = _gelu_tanh_inner(x)
    z = _clamped(x)
    slope = GELU_TANH * (1.0 + 0.134145 * (z * z))
    return (ct * (0.5 * (1.0 + t) + 0.5 * z * (1.0 - t * t) * slope),)


def gelu(x: Tensor, approximate: Literal["none", "tanh"] = "none") -> Tensor:
    """Gaussian error linear unit, `x * Phi(x)`.

    Args:
        x: Any tensor.
        approximate: `"none"` for the exact function, `"tanh"` for the formula with tanh.

    Shape:
        That of `x`.

    Dtype:
        f32.

    Gradient:
        `ct * (Phi(x) + x * phi(x))`; of the formula itself with `"tanh"`.

    Raises:
        ShapeError: If `approximate` is neither.

    Source:
        Hendrycks & Gimpel 2016, section 2; `torch.nn.functional.gelu`.

    Example:
        >>> compute(gelu, [0.0, 1.0])
        array([0.        , 0.84134475])
    """
    floating("gelu", x)
    if approximate == "none":
        return _gelu(x)
    if approximate == "tanh":
        return _gelu_tanh(x)
    raise ShapeError(f"gelu: approximate must be 'none' or 'tanh', got {approximate!r}", site=user_site())


@op(
    name="silu",
    ref=lambda x: x * (0.5 + 0.5 * np.tanh(0.5 * x)),
    lower=Decompose(lambda x: x * sigmoid(x)),
    sample=samplers.unary(-4.0, 4.0),
    hard=(0.0, 100.0, -100.0, 1e4),
    analytic=True,
)
def silu(x: Tensor) -> TensorType:
    """Sigmoid linear unit, `x * sigmoid(x)`.

    Args:
        x: Any tensor.

    Shape:
        That of `x`.

    Dtype:
        f32.

    Gradient:
        `ct * (s + x * s * (1 - s))` with `s = sigmoid(x)`.

    Source:
        Hendrycks & Gimpel 2016; `torch.nn.functional.silu`.

    Example:
        >>> compute(silu, [0.0, 1.0])
        array([0.        , 0.73105858])
    """
    return floating("silu", x)


@silu.vjp
def _(ct: Tensor, y: Tensor, x: Tensor) -> Cotangents:
    s = sigmoid(x)
    return (ct * (s + y * (1.0 - s)),)


@op(
    name="softplus",
    ref=lambda x: np.logaddexp(x, 0.0),
    lower=Decompose(lambda x: maximum(x, 0.0) + log1p(exp(-abs_(x)))),
    sample=samplers.unary(-4.0, 4.0),
    hard=(0.0, 88.0, -88.0, 1e4, -1e4),
)
def softplus(x: Tensor) -> TensorType:
    """`log(1 + exp(x))` without overflow.

    Args:
        x: Any tensor.

    Shape:
        That of `x`.

    Dtype:
        f32.

    Gradient:
        `ct * sigmoid(x)`.

    Source:
        `torch.nn.functional.softplus`.

    Example:
        >>> compute(softplus, [0.0, 100.0])
        array([  0.69314718, 100.        ])
    """
    return floating("softplus", x)


@softplus.vjp
def _(ct: Tensor, y: Tensor, x: Tensor) -> Cotangents:
    return (ct * sigmoid(x),)


def leaky_relu(x: Tensor, alpha: float = 0.01) -> Tensor:
    """`x` where positive, else `alpha * x`.

    Args:
        x: Any tensor.
        alpha: The slope below 0; any number.

    Shape:
        That of `x`.

    Dtype:
        f32.

    Gradient:
        `ct` where `x > 0`, else `alpha * ct`.

    Source:
        Maas et al. 2013.

    Example:
        >>> compute(leaky_relu, [-1.0, 2.0])
        array([-0.01,  2.  ])
    """
    floating("leaky_relu", x)
    slope = number("leaky_relu", "alpha", alpha, x=x)
    return where(greater(x, 0.0), x, slope * x)


# -- normalisation -----------------------------------------------------------


def _normal_pieces(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The normalised rows and the reciprocal deviation."""
    centred = x - mean(x, -1, keepdims=True)
    inverse = rsqrt(mean(square(centred), -1, keepdims=True) + eps)
    return centred * inverse, inverse


def _layer_norm_ref(x: Array, eps: float) -> Array:
    centred = x - np.mean(x, axis=-1, keepdims=True)
    out: Array = centred / np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + eps)
    return out


def _norm_sample(draw: Draw) -> Sample:
    return Sample.of(draw.array("x", (*draw.shape("batch", 0, 2), draw.size("d", 2, 5))), eps=1e-3)


@op(
    name="normalize",
    ref=_layer_norm_ref,
    lower=Decompose(lambda x, eps: _normal_pieces(x, eps)[0]),
    sample=_norm_sample,
    hard=(0.0, 1.0),
    analytic=True,
)
def _normalize(x: Tensor, *, eps: float) -> TensorType:
    """Rows shifted to mean 0 and scaled to variance 1."""
    return floating("layer_norm", x)


@_normalize.vjp
def _(ct: Tensor, y: Tensor, x: Tensor, *, eps: float) -> Cotangents:
    _, inverse = _normal_pieces(x, eps)
    inner = ct - mean(ct, -1, keepdims=True) - y * mean(ct * y, -1, keepdims=True)
    return (inner * inverse,)


def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float = 1e-5) -> Tensor:
    """Rows of the last axis shifted to mean 0, scaled to variance 1, then scaled and shifted as learned.

    Args:
        x: `[..., D]`.
        weight: `[D]`, or None for ones.
        bias: `[D]`, or None for zeros.
        eps: Added to the (biased) variance; not negative.

    Shape:
        That of `x`.

    Dtype:
        f32.

    Gradient:
        To `x`: `(g - mean(g) - y * mean(g * y)) / sqrt(var + eps)` with `g = ct * weight`; to weight and
        bias the sums over rows.

    Raises:
        ShapeError: If x is a scalar, weight or bias do not fit, or eps is negative or not finite.

    Source:
        Ba, Kiros & Hinton 2016, equation 4.

    Example:
        >>> compute(lambda x: layer_norm(x, eps=0.0), [1.0, 3.0])
        array([-1.,  1.])
    """
    float_axis("layer_norm", x, -1)
    small = number("layer_norm", "eps", eps, least=0.0, x=x)
    for given in (weight, bias):
        if given is None:
            continue
        tensors("layer_norm", given=given)
        if given.dtype != "f32":
            raise operand_error(DTypeError, "layer_norm: weight and bias must be f32", x=x, given=given)
        if given.shape != x.shape[-1:]:
            raise operand_error(
                ShapeError, "layer_norm: weight and bias need the shape of the last axis", x=x, given=given
            )
    y = _normalize(x, eps=small)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias
