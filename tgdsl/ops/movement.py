"""Ops that only move elements: index maps, never kernels of their own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar, cast

import numpy as np

from tgdsl.errors import ShapeError
from tgdsl.ir import (
    AnyTensor,
    Cotangents,
    Draw,
    Sample,
    Shape,
    Source,
    Tensor,
    TensorType,
    View,
    op,
    operand_error,
    provides,
    show_shape,
)
from tgdsl.ir.index import Index, index, reindex

from .arguments import integer, tensors
from .rules import integers, normalize_axis, sizes, unbroadcast

A = TypeVar("A", bound=AnyTensor[Any])
Ix = tuple[Index, ...]


def _reshape_sample(draw: Draw) -> Sample:
    shape = draw.shape("shape", 1, 3)
    return Sample.of(draw.array("x", shape), shape=(math.prod(shape),))


def _reshape_map(ix: Ix, operand: Shape, *, shape: Shape) -> Source:
    return Source(reindex(ix, shape, operand))


@op(
    name="reshape",
    ref=lambda x, shape: np.reshape(x, shape),
    lower=View(_reshape_map),
    sample=_reshape_sample,
    analytic=True,
)
def _reshape(x: AnyTensor[Any], *, shape: Shape) -> TensorType:
    """The same elements in another shape."""
    return TensorType(shape, x.dtype)


@_reshape.vjp
def _(ct: Tensor, y: Tensor, x: Tensor, *, shape: Shape) -> Cotangents:
    return (reshape(ct, x.shape),)


def reshape(x: A, shape: Sequence[int]) -> A:
    """The same elements, row-major, in another shape.

    Args:
        x: Any tensor.
        shape: The new shape; one entry may be -1 and is then worked out.

    Returns:
        `x` itself if it has that shape already. No element is moved.

    Shape:
        `shape`.

    Dtype:
        Any, kept.

    Gradient:
        `ct` reshaped back.

    Raises:
        ShapeError: If the sizes differ, an entry is below 1, or two are -1.

    Source:
        Array API standard, `reshape`.

    Example:
        >>> compute(lambda x: reshape(x, (2, -1)), [1.0, 2.0, 3.0, 4.0])
        array([[1., 2.],
               [3., 4.]])
    """
    tensors("reshape", operand=x)
    wanted = integers("reshape", "sizes must be integers", shape)
    if wanted.count(-1) > 1:
        raise operand_error(ShapeError, f"reshape: at most one -1 in {show_shape(wanted)}", operand=x)
    if any(n < 1 and n != -1 for n in wanted):
        raise operand_error(ShapeError, f"reshape: sizes must be at least 1 in {show_shape(wanted)}", operand=x)
    known = math.prod(n for n in wanted if n != -1)
    if -1 in wanted and x.size % known == 0:
        wanted = tuple(x.size // known if n == -1 else n for n in wanted)
    if -1 in wanted or math.prod(wanted) != x.size:
        raise operand_error(
            ShapeError, f"reshape: {x.size} elements do not fit {show_shape(wanted)} ({known} elements)", operand=x
        )
    return x if wanted == x.shape else cast("A", _reshape(x, shape=wanted))


def _broadcast_map(ix: Ix, operand: Shape, *, shape: Shape) -> Source:
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
    """`x` stretched to `shape` by the rules of broadcasting.

    Args:
        x: Any tensor.
        shape: The new shape; its last axes equal those of `x` wherever those are not 1.

    Shape:
        `shape`.

    Dtype:
        Any, kept.

    Gradient:
        `ct` summed over the stretched axes.

    Raises:
        ShapeError: If an axis that is not 1 would have to change.

    Source:
        Array API standard, `broadcast_to`.

    Example:
        >>> compute(lambda x: broadcast_to(x, (2, 2)), [1.0, 2.0])
        array([[1., 2.],
               [1., 2.]])
    """
    tensors("broadcast_to", operand=x)
    wanted = sizes("broadcast_to", shape)
    lead = len(wanted) - x.ndim
    if lead < 0 or any(n not in (1, m) for n, m in zip(x.shape, wanted[lead:], strict=True)):
        raise operand_error(ShapeError, f"broadcast_to: does not broadcast to {show_shape(wanted)}", operand=x)
    return x if wanted == x.shape else cast("A", _broadcast_to(x, shape=wanted))


def _permute_map(ix: Ix, operand: Shape, *, perm: tuple[int, ...]) -> Source:
    out: list[Index] = [index(0)] * len(perm)
    for i, p in enumerate(perm):
        out[p] = ix[i]
    return Source(tuple(out))


@op(
    name="permute",
    ref=lambda x, perm: np.transpose(x, perm),
    lower=View(_permute_map),
    sample=lambda draw: Sample.of(draw.array("x", (draw.size("m"), draw.size("n"), 2)), perm=(2, 0, 1)),
    analytic=True,
)
def _permute(x: AnyTensor[Any], *, perm: tuple[int, ...]) -> TensorType:
    """Axes in another order."""
    return TensorType(tuple(x.shape[p] for p in perm), x.dtype)


@_permute.vjp
def _(ct: Tensor, y: Tensor, x: Tensor, *, perm: tuple[int, ...]) -> Cotangents:
    return (permute(ct, tuple(int(i) for i in np.argsort(perm))),)


def permute(x: A, perm: Sequence[int]) -> A:
    """Axes in another order: `out.shape[i] == x.shape[perm[i]]`.

    Args:
        x: Any tensor.
        perm: Every axis once.

    Shape:
        Permuted.

    Dtype:
        Any, kept.

    Gradient:
        `ct` permuted back.

    Raises:
        ShapeError: If `perm` is not a permutation of the axes.

    Source:
        Array API standard, `permute_dims`; `torch.permute`.

    Example:
        >>> compute(lambda x: permute(x, (1, 0)), [[1.0, 2.0]])
        array([[1.],
               [2.]])
    """
    tensors("permute", operand=x)
    wanted = integers("permute", "axes must be integers", perm)
    if sorted(wanted) != list(range(x.ndim)):
        raise operand_error(ShapeError, f"permute: {wanted} is not a permutation of the axes", operand=x)
    return x if wanted == tuple(range(x.ndim)) else cast("A", _permute(x, perm=wanted))


def transpose(x: A, perm: Sequence[int]) -> A:
    """`permute` under NumPy's name."""
    return permute(x, perm)


def swap_axes(x: A, axis1: int, axis2: int) -> A:
    """Exchange two axes.

    Args:
        x: Any tensor.
        axis1: An axis; negative counts from the end.
        axis2: Another; if it is the same, `x` itself is returned.

    Shape:
        With the two sizes exchanged.

    Dtype:
        Any, kept.

    Gradient:
        `ct` with the axes exchanged back.

    Raises:
        ShapeError: If an axis is out of range.

    Source:
        NumPy, `swapaxes`.

    Example:
        >>> compute(lambda x: swap_axes(x, 0, -1), [[1.0, 2.0]])
        array([[1.],
               [2.]])
    """
    a, b = normalize_axis("swap_axes", axis1, x), normalize_axis("swap_axes", axis2, x)
    perm = list(range(x.ndim))
    perm[a], perm[b] = b, a
    return permute(x, perm)


swapaxes = swap_axes


@provides("matrix_transpose")
def matrix_transpose(x: A) -> A:
    """The last two axes exchanged; as an attribute, `x.mT`.

    Args:
        x: A tensor of rank 2 or more.

    Shape:
        `[..., M, N] -> [..., N, M]`.

    Dtype:
        Any, kept.

    Gradient:
        `ct` exchanged back.

    Raises:
        ShapeError: If the rank is below 2.

    Source:
        Array API standard, `matrix_transpose`.

    Example:
        >>> compute(lambda x: x.mT, [[1.0, 2.0]])
        array([[1.],
               [2.]])
    """
    tensors("matrix_transpose", operand=x)
    if x.ndim < 2:
        raise operand_error(ShapeError, "mT: needs rank 2 or more", operand=x)
    return swap_axes(x, -1, -2)


def expand_dims(x: A, axis: int) -> A:
    """`x` with an axis of size 1 inserted at `axis`.

    Args:
        x: Any tensor.
        axis: Where; negative counts from the end of the result.

    Shape:
        One axis more.

    Dtype:
        Any, kept.

    Gradient:
        `ct` without the axis.

    Source:
        Array API standard, `expand_dims`.

    Example:
        >>> compute(lambda x: expand_dims(x, 0), [1.0, 2.0])
        array([[1., 2.]])
    """
    tensors("expand_dims", operand=x)
    integer("expand_dims", "the axis", axis, operand=x)
    rank = x.ndim + 1
    if not -rank <= axis < rank:
        raise operand_error(ShapeError, f"expand_dims: axis {axis} is out of range for rank {rank}", operand=x)
    a = int(axis) % rank
    return reshape(x, (*x.shape[:a], 1, *x.shape[a:]))


def squeeze(x: A, axis: int) -> A:
    """`x` without an axis of size 1.

    Args:
        x: Any tensor.
        axis: The axis.

    Shape:
        One axis less.

    Dtype:
        Any, kept.

    Gradient:
        `ct` with the axis.

    Raises:
        ShapeError: If the axis is not 1.

    Source:
        Array API standard, `squeeze`.

    Example:
        >>> compute(lambda x: squeeze(x, 0), [[1.0, 2.0]])
        array([1., 2.])
    """
    a = normalize_axis("squeeze", axis, x)
    if x.shape[a] != 1:
        raise operand_error(ShapeError, f"squeeze: axis {a} has size {int(x.shape[a])}, not 1", operand=x)
    return reshape(x, x.shape[:a] + x.shape[a + 1 :])
