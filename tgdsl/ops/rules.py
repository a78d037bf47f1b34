"""Type and gradient rules that families of ops share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from tgdsl.errors import DTypeError, ShapeError
from tgdsl.ir import REGISTRY, AnyTensor, Shape, Sized, Tensor, TensorType, operand_error, show_shape, user_site

from .arguments import is_integer, shown, tensors


def floating(what: str, x: AnyTensor[Any]) -> TensorType:
    """The type of an op that keeps shape and takes f32 only."""
    tensors(what, x=x)
    if x.dtype != "f32":
        raise operand_error(DTypeError, f"{what}: expected f32", x=x)
    return x.type


def same_dtype(what: str, a: AnyTensor[Any], b: AnyTensor[Any], *, numeric: bool = True) -> None:
    """Refuse operands of different dtypes (checked before shapes), and bool where numbers are meant."""
    if a.dtype != b.dtype:
        raise operand_error(DTypeError, f"{what}: dtypes differ ({a.dtype} and {b.dtype})", left=a, right=b)
    if numeric and a.dtype == "bool":
        raise operand_error(
            DTypeError,
            f"{what}: expected numbers, got bool",
            "use where(cond, a, b) or cast(x, 'f32')",
            left=a,
            right=b,
        )


def broadcast_shape(what: str, a: AnyTensor[Any], b: AnyTensor[Any]) -> Shape:
    """Right-aligned NumPy broadcasting, keeping the names of dims."""
    rank = max(a.ndim, b.ndim)
    sa, sb = (1,) * (rank - a.ndim) + a.shape, (1,) * (rank - b.ndim) + b.shape
    out: list[int] = []
    for i, (x, y) in enumerate(zip(sa, sb, strict=True)):
        if x == y:
            out.append(x if isinstance(x, Sized) else y)
        elif 1 in (x, y):
            out.append(y if x == 1 else x)
        else:
            raise operand_error(
                ShapeError,
                f"{what}: shapes do not broadcast at axis {i - rank} ({int(x)} against {int(y)})",
                left=a,
                right=b,
            )
    return tuple(out)


def binary(what: str, a: object, b: object) -> TensorType:
    """Equal numeric dtypes, broadcast shapes."""
    # Op.__call__ has turned numbers into tensors before a type rule sees them.
    assert isinstance(a, AnyTensor)
    assert isinstance(b, AnyTensor)
    same_dtype(what, a, b)
    return TensorType(broadcast_shape(what, a, b), a.dtype)


def comparison(what: str, a: object, b: object) -> TensorType:
    """Equal numeric dtypes, broadcast shapes, bool result."""
    return TensorType(binary(what, a, b).shape, "bool")


def unbroadcast(ct: Tensor, x: AnyTensor[Any]) -> Tensor:
    """Sum `ct` over every axis that broadcasting added to or stretched in `x`."""
    if ct.shape == x.shape:
        return ct
    lead = ct.ndim - x.ndim
    axes = tuple(i for i in range(ct.ndim) if i < lead or (x.shape[i - lead] == 1 and ct.shape[i] != 1))
    summed = REGISTRY["sum"](ct, axes=axes) if axes else ct
    return summed if summed.shape == x.shape else REGISTRY["reshape"](summed, shape=x.shape)


def constant_of(x: AnyTensor[Any]) -> float | None:
    """The number of which every element of `x` is known to be, looked up through views and casts."""
    node = x.node
    while node.op.name in ("reshape", "broadcast_to", "permute", "slice", "cast_f32", "cast_i32", "f32_to_i32"):
        (node,) = node.inputs
    value: float | None = node.attrs["value"] if node.op.name == "full" else None
    return value


MOST_ELEMENTS = 2**31 - 1
"""Kernels count elements in i32."""


def integers(what: str, wanted: str, values: object) -> tuple[int, ...]:
    """A sequence of integers as a tuple; sizes keep the names of their dims. `wanted` is what a message says."""
    given: tuple[Any, ...] | None = None
    if isinstance(values, Iterable) and not isinstance(values, (str, AnyTensor)):
        given = tuple(values)
    if given is None or not all(is_integer(n) for n in given):
        raise ShapeError(f"{what}: {wanted}, got {shown(values)}", site=user_site())
    return tuple(n if isinstance(n, Sized) else int(n) for n in given)


def sizes(what: str, shape: Sequence[int]) -> Shape:
    """`shape` as a tuple, each size an int of at least 1."""
    given = integers(what, "sizes must be integers of at least 1", shape)
    if any(n < 1 for n in given):
        raise ShapeError(f"{what}: sizes must be integers of at least 1, got {shown(shape)}", site=user_site())
    if math.prod(given) > MOST_ELEMENTS:
        raise ShapeError(f"{what}: {show_shape(given)} has more than 2**31 - 1 elements", site=user_site())
    return given


def normalize_axis(what: str, axis: int, x: AnyTensor[Any]) -> int:
    """A non-negative axis of `x`."""
    tensors(what, operand=x)
    if not is_integer(axis):
        raise operand_error(ShapeError, f"{what}: an axis must be an integer, got {shown(axis)}", operand=x)
    if not -x.ndim <= axis < x.ndim:
        raise operand_error(ShapeError, f"{what}: axis {axis} is out of range for rank {x.ndim}", operand=x)
    return int(axis) % x.ndim


def normalize_axes(what: str, axis: int | Sequence[int] | None, x: AnyTensor[Any]) -> tuple[int, ...]:
    """Sorted, non-negative, distinct axes; None means all."""
    tensors(what, operand=x)
    if axis is None:
        return tuple(range(x.ndim))
    given = tuple(axis) if isinstance(axis, Sequence) else (axis,)
    axes = tuple(sorted(normalize_axis(what, a, x) for a in given))
    if len(set(axes)) != len(axes):
        raise operand_error(ShapeError, f"{what}: axis {tuple(given)} names an axis twice", operand=x)
    return axes
