"""Ops whose indices are data: gathers, and their adjoints without races.

A scatter-add is written as a masked sum over positions, so that its result does not depend
on the order in which threads run. Indices are proven in range at compile time (from `below=`)
or checked: the reference raises, and a kernel reports.
"""

from __future__ import annotations

from typing import Any, Literal, overload

import numpy as np

from tgdsl.errors import DTypeError, InputError, ShapeError
from tgdsl.ir import (
    AnyTensor,
    Array,
    BoolTensor,
    Cotangents,
    Decompose,
    Draw,
    Gather,
    IntTensor,
    Pointwise,
    Sample,
    Tensor,
    TensorType,
    op,
    operand_error,
)

from .arguments import dtype_name, element, integer, tensors
from .casting import cast
from .compare import equal, greater_equal, where
from .creation import arange
from .movement import expand_dims, reshape
from .reduce import sum as sum_
from .rules import floating, normalize_axis, sizes


def _in_range(what: str, indices: Array, size: int) -> None:
    bad = (indices < 0) | (indices >= size)
    if np.any(bad):
        raise InputError(f"{what}: index {int(indices[bad].flat[0])} is out of range for {size} rows")


def _take_ref(table: Array, indices: Array) -> Array:
    _in_range("take", indices, table.shape[0])
    return table[indices]


def _take_sample(draw: Draw) -> Sample:
    rows = draw.size("rows", 1, 5)
    shape = draw.shape("shape", 0, 2)
    return Sample.of(draw.array("table", (rows, draw.size("d"))), draw.integers("indices", shape, 0, rows - 1))


def _check_indices(what: str, indices: AnyTensor[Any]) -> None:
    tensors(what, indices=indices)
    if indices.dtype != "i32":
        raise operand_error(DTypeError, f"{what}: indices must be i32", indices=indices)


@op(ref=_take_ref, lower=Gather(), sample=_take_sample, analytic=True)
def take(table: Tensor, indices: IntTensor) -> TensorType:
    """Rows of a table, one per index.

    Args:
        table: `[V, ...]`.
        indices: Integers in `[0, V)`.

    Shape:
        `indices.shape + table.shape[1:]`.

    Dtype:
        f32 table, i32 indices, to f32.

    Gradient:
        To the table: each row gets the sum of `ct` over the positions that name it, in a fixed order.

    Raises:
        ShapeError: If the table is a scalar.
        DTypeError: If the indices are not i32.

    Source:
        Array API standard, `take` along axis 0.

    Example:
        >>> compute(take, [[1.0], [2.0]], [1, 0])
        array([[2.],
               [1.]])
    """
    _check_indices("take", indices)
    floating("take", table)
    if table.ndim < 1:
        raise operand_error(ShapeError, "take: the table needs rank >= 1", table=table, indices=indices)
    return TensorType(indices.shape + table.shape[1:], table.dtype)


@take.vjp
def _(ct: Tensor, y: Tensor, table: Tensor, indices: IntTensor) -> Cotangents:
    rows = int(table.shape[0])
    width = max(1, table.size // rows)
    flat = _scatter_rows(reshape(ct, (indices.size, width)), reshape(indices, (indices.size,)), rows=rows)
    return reshape(flat, table.shape), None


def _scatter_ref(x: Array, indices: Array, rows: int) -> Array:
    _in_range("scatter_rows", indices, rows)
    out = np.zeros((rows, x.shape[1]), x.dtype)
    np.add.at(out, indices, x)
    return out


def _scatter_parts(x: Tensor, indices: IntTensor, *, rows: int) -> Tensor:
    n, d = (int(s) for s in x.shape)
    hit = equal(reshape(indices, (n, 1, 1)), reshape(arange(rows), (1, rows, 1)))
    return sum_(where(hit, reshape(x, (n, 1, d)), 0.0), 0)


def _scatter_sample(draw: Draw) -> Sample:
    n, rows = draw.size("n"), draw.size("rows")
    return Sample.of(draw.array("x", (n, draw.size("d"))), draw.integers("indices", (n,), 0, rows - 1), rows=rows)


@op(name="scatter_rows", ref=_scatter_ref, lower=Decompose(_scatter_parts), sample=_scatter_sample, analytic=True)
def _scatter_rows(x: Tensor, indices: IntTensor, *, rows: int) -> TensorType:
    """Rows of `x` added up by index: the adjoint of take."""
    return TensorType((rows, x.shape[1]), x.dtype)


@_scatter_rows.vjp
def _(ct: Tensor, y: Tensor, x: Tensor, indices: IntTensor, *, rows: int) -> Cotangents:
    return take(ct, indices), None


def _bounded_ref(x: Array, below: int) -> Array:
    _in_range("index", x, below)
    return x


@op(
    name="bounded",
    ref=_bounded_ref,
    lower=Pointwise("{x}"),
    sample=lambda draw: Sample.of(draw.integers("x", draw.shape("shape"), 0, 3), below=4),
    returns=IntTensor,
)
def bounded(x: IntTensor, *, below: int) -> TensorType:
    """`x`, whose elements must be in `[0, below)`: proven at compile time, else checked as it runs."""
    return x.type


bounded.no_vjp("indices carry no gradient")


def embedding(table: Tensor, indices: IntTensor) -> Tensor:
    """Vectors of a table by id.

    Args:
        table: `[V, D]`.
        indices: Ids in `[0, V)`; declare the input with `below=V`, so that it is checked on upload.

    Shape:
        `[..., D]`.

    Dtype:
        f32 table, i32 indices, to f32.

    Gradient:
        Row v gets the sum of `ct` over the positions that hold v.

    Raises:
        ShapeError: If the table has not rank 2.
        DTypeError: If the indices are not i32.

    Source:
        `torch.nn.functional.embedding`.

    Example:
        >>> compute(embedding, [[1.0, 2.0], [3.0, 4.0]], [1])
        array([[3., 4.]])
    """
    tensors("embedding", table=table, indices=indices)
    if table.ndim != 2:
        raise operand_error(ShapeError, "embedding: the table needs rank 2", table=table, indices=indices)
    return take(table, indices)


@overload
def one_hot(indices: IntTensor, depth: int) -> Tensor: ...
@overload
def one_hot(indices: IntTensor, depth: int, dtype: Literal["f32"]) -> Tensor: ...
@overload
def one_hot(indices: IntTensor, depth: int, dtype: Literal["i32"]) -> IntTensor: ...
def one_hot(indices: IntTensor, depth: int, dtype: Literal["f32", "i32"] = "f32") -> Tensor | IntTensor:
    """Ones at the given positions of a new last axis.

    Args:
        indices: Integers; one outside of `[0, depth)` gives a row of zeros.
        depth: The size of the new axis, at least 1.
        dtype: `"f32"` or `"i32"`.

    Shape:
        `[..., depth]`.

    Dtype:
        i32 to `dtype`.

    Gradient:
        None; indices carry no gradient.

    Raises:
        ShapeError: If depth is not a positive integer.
        DTypeError: If the indices are not i32, or `dtype` is neither.

    Source:
        `jax.nn.one_hot`.

    Example:
        >>> compute(lambda i: one_hot(i, 3), [1, 5])
        array([[0., 1., 0.],
               [0., 0., 0.]])
    """
    _check_indices("one_hot", indices)
    count = integer("one_hot", "depth", depth, 1, indices=indices)
    dtype_name("one_hot", dtype, "f32", "i32")
    sizes("one_hot", (*indices.shape, count))
    return cast(equal(expand_dims(indices, -1), arange(count)), dtype)


def take_along_axis(x: Tensor, indices: IntTensor, axis: int = -1) -> Tensor:
    """Elements of `x` at `indices` along one axis.

    Args:
        x: An f32 tensor.
        indices: i32 of the same rank, equal in size but for `axis`; one out of range gives 0.
        axis: The axis; negative counts from the end.

    Shape:
        That of `indices`.

    Dtype:
        f32 and i32, to f32.

    Gradient:
        `ct` added up at the positions taken, in a fixed order.

    Raises:
        ShapeError: If ranks or sizes do not fit.

    Source:
        Array API standard, `take_along_axis`.

    Example:
        >>> compute(lambda x, i: take_along_axis(x, i), [[1.0, 2.0, 3.0]], [[2, 0]])
        array([[3., 1.]])
    """
    _check_indices("take_along_axis", indices)
    floating("take_along_axis", x)
    a = normalize_axis("take_along_axis", axis, x)
    others = [s[:a] + s[a + 1 :] for s in (x.shape, indices.shape)]
    if x.ndim != indices.ndim or others[0] != others[1]:
        raise operand_error(ShapeError, f"take_along_axis: shapes differ outside of axis {a}", x=x, indices=indices)
    n = int(x.shape[a])
    position = reshape(arange(n), (1, n, *(1 for _ in range(x.ndim - a - 1))))
    hit = equal(expand_dims(indices, a + 1), position)
    return sum_(where(hit, expand_dims(x, a), 0.0), a + 1)


def where_causal(x: Tensor, fill_value: float) -> Tensor:
    """`x` on and below the diagonal of its last two axes, `fill_value` above.

    Args:
        x: `[..., T, T]`.
        fill_value: A number; infinities are allowed.

    Shape:
        That of `x`.

    Dtype:
        f32.

    Gradient:
        `ct` on and below the diagonal, 0 above.

    Raises:
        ShapeError: If the last two axes differ.

    Source:
        tgdsl; `torch.tril` with a fill.

    Example:
        >>> compute(lambda x: where_causal(x, 0.0), [[1.0, 2.0], [3.0, 4.0]])
        array([[1., 0.],
               [3., 4.]])
    """
    floating("where_causal", x)
    require_square("where_causal", x)
    fill = element("where_causal", "fill_value", fill_value, "f32", x=x)
    return where(causal_mask("where_causal", x), x, fill)


def require_square(what: str, x: AnyTensor[Any]) -> None:
    """Refuse a tensor whose last two axes differ."""
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise operand_error(ShapeError, f"{what}: the last two axes must be equal", x=x)


def causal_mask(what: str, x: Tensor) -> BoolTensor:
    """Whether a row may look at a column: `column <= row`, `[T, T]`."""
    require_square(what, x)
    n = int(x.shape[-1])
    return greater_equal(reshape(arange(n), (n, 1)), arange(n))
