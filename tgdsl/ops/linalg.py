"""Matrix products."""

from __future__ import annotations

import numpy as np

from tgdsl.errors import DTypeError, ShapeError
from tgdsl.ir import Contraction, Cotangents, Draw, Sample, Tensor, TensorType, op, operand_error

from .movement import permute, reshape


def _sample(draw: Draw) -> Sample:
    m, k, n = draw.size("m"), draw.size("k"), draw.size("n")
    batch = draw.choice("batch", ((), (2,), (2, 3)))
    return Sample.of(draw.array("a", (*batch, m, k)), draw.array("b", (*batch, k, n)))


def _mT(x: Tensor) -> Tensor:
    return permute(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


@op(name="matmul", ref=np.matmul, lower=Contraction(), sample=_sample, analytic=True)
def _matmul(a: Tensor, b: Tensor) -> TensorType:
    """Batched matrix product; equal ranks and equal batch axes."""
    if a.ndim != b.ndim or a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2]:
        raise operand_error(ShapeError, "matmul: not conformable", left=a, right=b)
    return TensorType((*a.shape[:-1], b.shape[-1]))


@_matmul.vjp
def _(ct: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Cotangents:
    return ct @ _mT(b), _mT(a) @ ct
