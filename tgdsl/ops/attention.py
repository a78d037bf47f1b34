"""Attention, and the two reshapes around it."""

from __future__ import annotations

import math

from tgdsl.errors import DTypeError, ShapeError
from tgdsl.ir import Tensor, operand_error

from .arguments import flag, integer, number, tensors
from .attention_parts import attention_op
from .movement import reshape, swap_axes
from .rules import floating


def split_heads(x: Tensor, heads: int) -> Tensor:
    """The last axis cut into heads, which go before the time axis.

    Args:
        x: `[..., T, D]`.
        heads: How many; divides D.

    Shape:
        `[..., T, D] -> [..., heads, T, D / heads]`.

    Dtype:
        f32.

    Gradient:
        `merge_heads(ct)`.

    Raises:
        ShapeError: If the rank is below 2 or heads does not divide D.

    Source:
        Vaswani et al. 2017, section 3.2.2.

    Example:
        >>> compute(lambda x: split_heads(x, 2), [[1.0, 2.0]])
        array([[[1.]],
        <BLANKLINE>
               [[2.]]])
    """
    floating("split_heads", x)
    if x.ndim < 2:
        raise operand_error(ShapeError, "split_heads: needs rank 2 or more", operand=x)
    *batch, t, d = x.shape
    heads = integer("split_heads", "heads", heads, operand=x)
    if heads < 1 or d % heads:
        raise operand_error(ShapeError, f"split_heads: last dim {int(d)} is not a multiple of {heads} heads", operand=x)
    return swap_axes(reshape(x, (*batch, t, heads, d // heads)), -3, -2)


def merge_heads(x: Tensor) -> Tensor:
    """Heads put side by side again: the inverse of `split_heads`.

    Args:
        x: `[..., heads, T, D]`.

    Shape:
        `[..., heads, T, D] -> [..., T, heads * D]`.

    Dtype:
        f32.

    Gradient:
        `split_heads(ct)`.

    Raises:
        ShapeError: If the rank is below 3.

    Source:
        Vaswani et al. 2017, section 3.2.2.

    Example:
        >>> compute(merge_heads, [[[1.0]], [[2.0]]])
        array([[1., 2.]])
    """
    floating("merge_heads", x)
    if x.ndim < 3:
        raise operand_error(ShapeError, "merge_heads: needs rank 3 or more", operand=x)
    *batch, h, t, d = x.shape
    return reshape(swap_axes(x, -3, -2), (*batch, t, h * d))


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, scale: float | None = None) -> Tensor:
    """Scaled dot-product attention.

    Scores are never stored: kernels go over them tile by tile, and gradients compute them again.
    A row whose scores are all `-inf` sees nothing: its result is 0, and no gradient flows to its scores.

    Args:
        q: Queries `[..., T, D]`.
        k: Keys `[..., S, D]`.
        v: Values `[..., S, E]`.
        causal: Whether position t sees positions 0 to t only; then S must equal T.
        scale: What scores are multiplied by; `1 / sqrt(D)` when omitted.

    Shape:
        `[..., T, E]`.

    Dtype:
        f32.

    Gradient:
        Of `softmax(q @ k.mT * scale) @ v`.

    Raises:
        ShapeError: If the shapes do not fit.

    Source:
        Vaswani et al. 2017, equation 1; Dao 2023 (FlashAttention-2) for the kernels.

    Example:
        >>> compute(lambda q, k, v: attention(q, k, v, causal=True), [[1.0]], [[1.0]], [[7.0]])
        array([[7.]])
    """
    tensors("attention", q=q, k=k, v=v)
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dtype != "f32":
            raise operand_error(DTypeError, f"attention: {name} must be f32", q=q, k=k, v=v)
        if x.ndim < 2:
            raise operand_error(ShapeError, f"attention: {name} needs rank 2 or more", q=q, k=k, v=v)
    if q.shape[-1] != k.shape[-1]:
        raise operand_error(ShapeError, "attention: q and k differ in the last axis", q=q, k=k, v=v)
    if k.shape[-2] != v.shape[-2]:
        raise operand_error(ShapeError, "attention: k and v differ in the number of positions", q=q, k=k, v=v)
    if not q.shape[:-2] == k.shape[:-2] == v.shape[:-2]:
        raise operand_error(
            ShapeError,
            "attention: q, k and v differ in the axes before the last two",
            "nothing is stretched; use broadcast_to",
            q=q,
            k=k,
            v=v,
        )
    if flag("attention", "causal", causal, q=q, k=k, v=v) and q.shape[-2] != k.shape[-2]:
        raise operand_error(ShapeError, "attention: causal needs as many queries as keys", q=q, k=k, v=v)
    factor = 1.0 / math.sqrt(int(q.shape[-1]))
    if scale is not None:
        factor = number("attention", "scale", scale, q=q, k=k, v=v)
    return attention_op(q, k, v, causal=causal, scale=float(factor))
