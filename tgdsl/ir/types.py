"""What is known of a tensor before it exists: its shape and dtype."""

from __future__ import annotations

import math
from typing import TypeAlias

import attrs

from tgdsl.dtypes import DType

Shape: TypeAlias = tuple[int, ...]


class Sized(int):
    """An int that remembers the named dim it is the size of; it equals the plain int."""

    dim: str

    def __new__(cls, size: int, dim: str) -> Sized:
        """Make `size` remember `dim`."""
        self = super().__new__(cls, size)
        self.dim = dim
        return self

    def __getnewargs__(self) -> tuple[int, str]:  # type: ignore[override]
        return int(self), self.dim


def show_shape(shape: Shape) -> str:
    """`[B=4, 64]`."""
    parts = (f"{d.dim}={int(d)}" if isinstance(d, Sized) else str(d) for d in shape)
    return "[" + ", ".join(parts) + "]"


@attrs.frozen
class TensorType:
    """Shape and dtype; prints as `f32[B=4, 64]`."""

    shape: Shape
    dtype: DType = "f32"

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def __str__(self) -> str:
        return self.dtype + show_shape(self.shape)
