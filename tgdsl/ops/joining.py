"""Putting tensors side by side, and taking them apart: concat, stack, split, indexing."""

from __future__ import annotations

from collections.abc import Sequence
from types import EllipsisType
from typing import Any, TypeVar, cast

import numpy as np

from tgdsl.errors import DTypeError, ShapeError
from tgdsl.ir import (
    AnyTensor,
    Array,
    Cotangents,
    Decompose,
    Draw,
    Key,
    Sample,
    Tensor,
    TensorType,
    op,
    operand_error,
    provides,
    user_site,
)

from .arguments import integer, is_integer, sequence, tensors
from .compare import less, where
from .creation import arange
from .movement import expand_dims, reshape
from .rules import integers, normalize_axis
from .slicing import narrow, pad, slice_axes

A = TypeVar("A", bound=AnyTensor[Any])


def _join(a: AnyTensor[Any], b: AnyTensor[Any], axis: int) -> Any:
    """Two tensors along `axis`: each padded to the whole, then selected, exact for every dtype."""
    n, m = int(a.shape[axis]), int(b.shape[axis])
    none = [(0, 0)] * a.ndim
    left = pad(a, [*none[:axis], (0, m), *none[axis + 1 :]])
    right = pad(b, [*none[:axis], (n, 0), *none[axis + 1 :]])
    position = reshape(arange(n + m), (n + m, *(1 for _ in range(a.ndim - axis - 1))))
    return where(less(position, n), left, right)  # type: ignore[call-overload]


def _concat_parts(*xs: AnyTensor[Any], axis: int) -> Any:
    # A balanced tree: with many operands each level fits the binding limit of one kernel.
    if len(xs) == 1:
        return xs[0]
    half = len(xs) // 2
    return _join(_concat_parts(*xs[:half], axis=axis), _concat_parts(*xs[half:], axis=axis), axis)


def _concat_ref(*xs: Array, axis: int) -> Array:
    return np.concatenate(xs, axis)


def _concat_sample(draw: Draw) -> Sample:
    n = draw.size("n")
    return Sample.of(*(draw.array(f"x{i}", (2, draw.size(f"m{i}"), n)) for i in range(3)), axis=1)


@op(name="concat", ref=_concat_ref, lower=Decompose(_concat_parts), sample=_concat_sample, analytic=True)
def _concat(*xs: AnyTensor[Any], axis: int) -> TensorType:
    """Tensors side by side along `axis`."""
    first = xs[0]
    for x in xs[1:]:
        if x.dtype != first.dtype:
            raise operand_error(
                DTypeError, f"concat: dtypes differ ({first.dtype} and {x.dtype})", first=first, other=x
            )
        if x.ndim != first.ndim or any(
            n != m for i, (n, m) in enumerate(zip(first.shape, x.shape, strict=True)) if i != axis
        ):
            raise operand_error(ShapeError, f"concat: shapes differ outside of axis {axis}", first=first, other=x)
    total = sum(int(x.shape[axis]) for x in xs)
    return TensorType((*first.shape[:axis], total, *first.shape[axis + 1 :]), first.dtype)


@_concat.vjp
def _(ct: Tensor, y: Tensor, *xs: Tensor, axis: int) -> Cotangents:
    out: list[Tensor | None] = []
    start = 0
    for x in xs:
        n = int(x.shape[axis])
        out.append(narrow(ct, axis, start, n) if x.dtype == "f32" else None)
        start += n
    return tuple(out)


def concat(xs: Sequence[A], axis: int = 0) -> A:
    """Tensors side by side along an axis.

    Args:
        xs: One or more tensors of equal dtype, equal but for `axis`.
        axis: The axis; negative counts from the end.

    Shape:
        The sizes of `axis` add up.

    Dtype:
        Any, all alike.

    Gradient:
        Each operand's slice of `ct`.

    Raises:
        ShapeError: If shapes or dtypes differ, or there is nothing to join.

    Source:
        Array API standard, `concat`.

    Example:
        >>> compute(lambda x, y: concat([x, y]), [1.0], [2.0, 3.0])
        array([1., 2., 3.])
    """
    parts = sequence("concat", xs)
    if not parts:
        raise ShapeError("concat: there is nothing to join", site=user_site())
    a = normalize_axis("concat", axis, parts[0])
    return cast("A", parts[0] if len(parts) == 1 else _concat(*parts, axis=a))


concatenate = concat


def stack(xs: Sequence[A], axis: int = 0) -> A:
    """Tensors of one shape along a new axis.

    Args:
        xs: One or more tensors of equal shape and dtype.
        axis: Where the new axis stands in the result; negative counts from the end.

    Shape:
        A new axis of size `len(xs)`.

    Dtype:
        Any, all alike.

    Gradient:
        Each operand's part of `ct`.

    Raises:
        ShapeError: If shapes or dtypes differ, or there is nothing to stack.

    Source:
        Array API standard, `stack`.

    Example:
        >>> compute(lambda x, y: stack([x, y]), [1.0], [2.0])
        array([[1.],
               [2.]])
    """
    parts = sequence("stack", xs)
    if not parts:
        raise ShapeError("stack: there is nothing to stack", site=user_site())
    first = parts[0]
    for x in parts[1:]:
        if x.dtype != first.dtype:
            raise operand_error(DTypeError, f"stack: dtypes differ ({first.dtype} and {x.dtype})", first=first, other=x)
        if x.shape != first.shape:
            raise operand_error(ShapeError, "stack: shapes differ", first=first, other=x)
    rank = first.ndim + 1
    if not -rank <= integer("stack", "the axis", axis, first=first) < rank:
        raise operand_error(ShapeError, f"stack: axis {axis} is out of range for rank {rank}", first=first)
    return cast("A", concat([expand_dims(x, axis) for x in parts], axis))


def split(x: A, sizes: int | Sequence[int], axis: int = -1) -> list[A]:
    """Cut an axis into pieces.

    Args:
        x: A tensor.
        sizes: The sizes of the pieces, or one size for all of them.
        axis: The axis; negative counts from the end.

    Returns:
        The pieces in order.

    Shape:
        Each piece has its size at `axis`.

    Dtype:
        Any, kept.

    Gradient:
        The pieces' cotangents side by side.

    Raises:
        ShapeError: If the sizes do not add up to the axis.

    Source:
        `torch.split`.

    Example:
        >>> compute(lambda x: split(x, [1, 2])[1], [1.0, 2.0, 3.0])
        array([2., 3.])
    """
    a = normalize_axis("split", axis, x)
    n = int(x.shape[a])
    pieces = _pieces(n, sizes)
    if any(s < 1 for s in pieces) or sum(pieces) != n:
        raise operand_error(ShapeError, f"split: {list(pieces)} does not cut an axis of size {n}", operand=x)
    out: list[A] = []
    start = 0
    for size in pieces:
        out.append(narrow(x, a, start, size))
        start += size
    return out


def _pieces(n: int, sizes: int | Sequence[int]) -> tuple[int, ...]:
    """The sizes of the pieces of an axis of size `n`."""
    if not is_integer(sizes):
        return integers("split", "sizes must be integers", sizes)
    size = cast("int", sizes)
    return (size,) * (n // size) + ((n % size,) if n % size else ()) if size > 0 else (0,)


@provides("getitem")
def getitem(x: A, key: Key) -> A:
    """Basic indexing, as in `x[1:, None, ..., ::-1]`: integers, slices, None and an ellipsis.

    Args:
        x: A tensor.
        key: What stands in the brackets.

    Shape:
        As in NumPy; an integer drops its axis, None adds one.

    Dtype:
        Any, kept.

    Gradient:
        `ct` in its place, zeros elsewhere.

    Raises:
        ShapeError: If an index is out of range, a slice is empty, or there are too many.

    Source:
        Array API standard, single- and multi-axis indexing.

    Example:
        >>> compute(lambda x: x[1:, None], [1.0, 2.0, 3.0])
        array([[2.],
               [3.]])
    """
    tensors("index", operand=x)
    items = _spread_ellipsis(x, key if isinstance(key, tuple) else (key,))
    starts: list[int] = []
    sizes: list[int] = []
    steps: list[int] = []
    shape: list[int] = []
    for item in items:
        if item is None:
            shape.append(1)
            continue
        axis = len(starts)
        n = x.shape[axis]
        if isinstance(item, slice):
            _check_slice(x, item)
            start, stop, step = item.indices(n)
            count = len(range(start, stop, step))
            if count == 0:
                raise operand_error(ShapeError, f"index: the slice of axis {axis} of size {int(n)} is empty", operand=x)
            size = n if count == n else count
            shape.append(size)
        else:
            start, size, step = _position(x, axis, item), 1, 1
        starts.append(start)
        sizes.append(size)
        steps.append(step)
    return reshape(slice_axes(x, starts, sizes, steps), shape)


def _check_slice(x: AnyTensor[Any], item: slice) -> None:
    given = [v for v in (item.start, item.stop, item.step) if v is not None]
    if not all(is_integer(v) for v in given):
        raise operand_error(DTypeError, "index: the bounds and the step of a slice must be integers", operand=x)
    if item.step == 0:
        raise operand_error(ShapeError, "index: the step of a slice must not be 0", operand=x)


def _position(x: AnyTensor[Any], axis: int, item: object) -> int:
    n = int(x.shape[axis])
    if not is_integer(item):
        raise operand_error(
            DTypeError, f"index: expected an integer, a slice, None or ..., got {type(item).__name__}", operand=x
        )
    at = int(cast("int", item))
    if not -n <= at < n:
        raise operand_error(ShapeError, f"index: index {at} is out of range for axis {axis} of size {n}", operand=x)
    return at % n


def _spread_ellipsis(x: AnyTensor[Any], items: tuple[Any, ...]) -> list[Any]:
    used = sum(1 for i in items if i is not None and not isinstance(i, EllipsisType))
    if used > x.ndim:
        raise operand_error(ShapeError, f"index: too many indices ({used}) for rank {x.ndim}", operand=x)
    dots = [i for i, item in enumerate(items) if isinstance(item, EllipsisType)]
    if len(dots) > 1:
        raise operand_error(ShapeError, "index: at most one ellipsis", operand=x)
    at = dots[0] if dots else len(items)
    rest = [slice(None)] * (x.ndim - used)
    return [*items[:at], *rest, *items[at + 1 :]]
