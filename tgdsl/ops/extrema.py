"""The larger and the smaller of two. Equal operands share the cotangent equally."""

from __future__ import annotations

import numpy as np

from tgdsl.ir import BoolTensor, Cotangents, Pointwise, Scalar, Tensor, TensorType, op

from . import samplers
from .compare import greater, less, where
from .rules import binary, unbroadcast


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
