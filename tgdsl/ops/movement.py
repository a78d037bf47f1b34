"""Ops that only move elements: index maps, never kernels of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, cast

import numpy as np

from tgdsl.errors import ShapeError
from tgdsl.ir import AnyTensor, Cotangents, Draw, Sample, Shape, Source, Tensor, TensorType, View, op, operand_error
from tgdsl.ir.index import Index, index, reindex

from .rules import unbroadcast

A = TypeVar("A", bound=AnyTensor[Any])


def _reshape_sample(draw: Draw) -> Sample:
    shape = draw.shape("shape", 1, 3)
    return Sample.of(draw.array("x", shape), shape=(shape[0] * int(np.prod(shape[1:])),))


def _reshape_map(ix: tuple[Index, ...], operand: Shape, *, shape: Shape) -> Source:
    return Source(reindex(ix, shape, operand))


@op(name="reshape", ref=lambda x, shape: np.reshape(x, shape), lower=View(_reshape_map), sample=_reshape_sample, analytic=True)
def _reshape(x: AnyTensor[Any], *, shape: Shape) -> TensorType:
    """The same elements in another shape."""
    return TensorType(shape, x.dtype)


@_reshape.vjp
def _(ct: Tensor, y: Tensor, x: Tensor, *, shape: Shape) -> Cotangents:
    return (reshape(ct, x.shape),)


def reshape(x: A, shape: Sequence[int]) -> A:
    """The same elements, row-major, in another shape; one entry may be -1."""
    wanted = tuple(shape)
    if wanted == x.shape:
        return x
    return cast("A", _reshape(x, shape=wanted))


def _broadcast_map(ix: tuple[Index, ...], operand: Shape, *, shape: Shape) -> Source:
    lead = len(shape) - len(operand)
    return Source(tuple(index(0) if n == 1 else ix[lead + i] for i, n in enumerate(operand)))


@op(
    name="broadcast_to",
    ref=lambda x, shape: np.broadcast_to(x, shape),
    lower=View(_broadcast_map),
    sample=lambda draw: Sample.of(draw.array("x", (1, 3)), shape=(draw.size("n"), 2, 3)),
    analytic=True,
)
def _broadcast_to(x: AnyTensor[Any], *, shape: Shape) -> TensorType:
    """`x` repeated to `shape`."""
    return TensorType(shape, x.dtype)


@_broadcast_to.vjp
def _(ct: Tensor, y: Tensor, x: Tensor, *, shape: Shape) -> Cotangents:
    return (unbroadcast(ct, x),)


def broadcast_to(x: A, shape: Sequence[int]) -> A:
    """`x` stretched to `shape` by the rules of broadcasting."""
    wanted = tuple(shape)
    return x if wanted == x.shape else cast("A", _broadcast_to(x, shape=wanted))


def _permute_map(ix: tuple[Index, ...], operand: Shape, *, perm: tuple[int, ...]) -> Source:
    out: list[Index] = [index(0)] * len(perm)
    for i, p in enumerate(perm):
        out[p] = ix[i]
    return Source(tuple(out))


@op(
    name="permute",
    ref=lambda x, perm: np.transpose(x, perm),
    lower=View(_permute_map),
    sample=lambda draw: Sample.of(draw.array("x", (draw.size("m"), draw.size("n"))), perm=(1, 0)),
    analytic=True,
)
def _permute(x: AnyTensor[Any], *, perm: tuple[int, ...]) -> TensorType:
    """Axes in another order."""
    return TensorType(tuple(x.shape[p] for p in perm), x.dtype)


@_permute.vjp
def _(ct: Tensor, y: Tensor, x: Tensor, *, perm: tuple[int, ...]) -> Cotangents:
    return (permute(ct, tuple(int(i) for i in np.argsort(perm))),)


def permute(x: A, perm: Sequence[int]) -> A:
    """Axes in another order: `out.shape[i] == x.shape[perm[i]]`."""
    wanted = tuple(perm)
    if sorted(wanted) != list(range(x.ndim)):
        raise operand_error(ShapeError, f"permute: {wanted} is not a permutation of the axes", operand=x)
    return x if wanted == tuple(range(x.ndim)) else cast("A", _permute(x, perm=wanted))
