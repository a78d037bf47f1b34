"""Matrix products."""

from __future__ import annotations

from typing import Any

import numpy as np

from tgdsl.errors import DTypeError, ShapeError
from tgdsl.ir import (
    AnyTensor,
    Contraction,
    Cotangents,
    Draw,
    Sample,
    Tensor,
    TensorType,
    op,
    operand_error,
    provides,
)

from .arguments import tensors
from .movement import matrix_transpose, reshape


def _sample(draw: Draw) -> Sample:
    m, k, n = draw.size("m"), draw.size("k"), draw.size("n")
    batch = draw.choice("batch", ((), (2,), (2, 3)))
    return Sample.of(draw.array("a", (*batch, m, k)), draw.array("b", (*batch, k, n)))


@op(name="matmul", ref=np.matmul, lower=Contraction(), sample=_sample, analytic=True)
def _matmul(a: Tensor, b: Tensor) -> TensorType:
    """Matrix product per batch element; equal ranks and batch axes."""
    return TensorType((*a.shape[:-1], b.shape[-1]))


@_matmul.vjp
def _(ct: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Cotangents:
    return _matmul(ct, matrix_transpose(b)), _matmul(matrix_transpose(a), ct)


def _check(what: str, a: AnyTensor[Any], b: AnyTensor[Any]) -> None:
    tensors(what, left=a, right=b)
    for x in (a, b):
        if x.dtype != "f32":
            raise operand_error(DTypeError, f"{what}: expected f32", left=a, right=b)
    if a.ndim < 2 or b.ndim < 2:
        raise operand_error(ShapeError, f"{what}: both operands need rank >= 2", left=a, right=b)
    if a.shape[-1] != b.shape[-2]:
        turned = a.shape[-1] == b.shape[-1]
        raise operand_error(
            ShapeError,
            f"{what}: inner dims differ ({int(a.shape[-1])} != {int(b.shape[-2])})",
            "the right operand looks transposed; write x @ w.mT" if turned else None,
            left=a,
            right=b,
        )


@provides("matmul")
def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Matrix product; the operator is `a @ b`.

    A right operand of rank 2 is shared by the whole batch, which is then one flat product, and
    so is its gradient. Otherwise ranks and batch axes must be equal; nothing is stretched.

    Args:
        a: `[..., M, K]`.
        b: `[K, N]`, or `[..., K, N]` with the batch axes of `a`.

    Shape:
        `[..., M, N]`.

    Dtype:
        f32.

    Gradient:
        `ct @ b.mT` and `a.mT @ ct`, for a shared `b` as one product over all rows.

    Raises:
        ShapeError: If ranks, batch axes or the contracted axes do not fit.

    Source:
        Array API standard, `matmul`, without broadcasting of batch axes.

    Example:
        >>> compute(matmul, [[1.0, 2.0]], [[3.0], [4.0]])
        array([[11.]])
    """
    _check("matmul", a, b)
    if b.ndim == 2:
        if a.ndim == 2:
            return _matmul(a, b)
        flat = _matmul(reshape(a, (-1, a.shape[-1])), b)
        return reshape(flat, (*a.shape[:-1], b.shape[-1]))
    if a.shape[:-2] != b.shape[:-2]:
        raise operand_error(ShapeError, "matmul: batch dims differ", left=a, right=b)
    return _matmul(a, b)


def matmul_batched(a: Tensor, b: Tensor) -> Tensor:
    """`matmul` of equal ranks and batch axes, the only form with this name."""
    _check("matmul_batched", a, b)
    if a.shape[:-2] != b.shape[:-2]:
        raise operand_error(ShapeError, "matmul_batched: batch dims differ", left=a, right=b)
    return _matmul(a, b)
