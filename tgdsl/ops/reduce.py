"""Ops that fold axes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tgdsl.ir import Cotangents, Draw, Reduction, Sample, Tensor, TensorType, op

from .movement import broadcast_to, reshape
from .rules import normalize_axes


def kept(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    """`shape` with the folded axes kept as 1."""
    return tuple(1 if i in axes else n for i, n in enumerate(shape))


def _axes_sample(draw: Draw) -> Sample:
    shape = draw.shape("shape", 1, 3)
    axes = draw.choice("axes", tuple({(0,), (len(shape) - 1,), tuple(range(len(shape)))}))
    return Sample.of(draw.array("x", shape), axes=axes)


@op(
    name="sum",
    ref=lambda x, axes: np.sum(x, axis=axes),
    lower=Reduction("sum"),
    sample=_axes_sample,
    analytic=True,
)
def _sum(x: Tensor, *, axes: tuple[int, ...]) -> TensorType:
    """Sum over `axes`."""
    return TensorType(tuple(n for i, n in enumerate(x.shape) if i not in axes), x.dtype)


@_sum.vjp
def _(ct: Tensor, y: Tensor, x: Tensor, *, axes: tuple[int, ...]) -> Cotangents:
    return (broadcast_to(reshape(ct, kept(x.shape, axes)), x.shape),)


def sum(x: Tensor, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Tensor:  # noqa: A001
    """Sum over one, several or all axes."""
    axes = normalize_axes("sum", axis, x)
    y = _sum(x, axes=axes) if axes else x
    return reshape(y, kept(x.shape, axes)) if keepdims else y
