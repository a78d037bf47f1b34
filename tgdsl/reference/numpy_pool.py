"""Buffers that are used again once their last reader has run."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@attrs.define(eq=False)
class Pool:
    """Free buffers by dtype; the smallest that is large enough is taken, of equals the last given.

    What was given last is what the cache still holds.
    """

    free: dict[Any, list[Array]] = attrs.field(factory=dict)
    allocated: int = 0

    def take(self, shape: tuple[int, ...], dtype: Any) -> tuple[Array, Array]:
        """A buffer, and an array of the shape at its start."""
        size = int(np.prod(shape))
        fitting = [b for b in self.free.get(dtype, ()) if size <= b.size <= 2 * size]
        if fitting:
            buffer = min(reversed(fitting), key=lambda b: b.size)
            self.free[dtype] = [b for b in self.free[dtype] if b is not buffer]
        else:
            buffer = np.zeros(size, dtype)
            self.allocated += buffer.nbytes
        return buffer, buffer[:size].reshape(shape)

    def give(self, buffer: Array) -> None:
        """Take a buffer back."""
        self.free.setdefault(buffer.dtype.type, []).append(buffer)


@attrs.define(eq=False)
class Storage:
    """Memory behind one or several arrays, and how many reads of it are still to come.

    Attributes:
        buffer: What goes back to the pool; None for memory of somebody else.
        pool: Where it came from.
        pending: Reads to come.
    """

    buffer: Array | None = None
    pool: Pool | None = None
    pending: int = 0


def in_order(array: Array, order: tuple[int, ...]) -> Array:
    """An array whose axes lie in memory in `order`, seen with its axes in their own order.

    Args:
        array: `shape[order[0]], shape[order[1]], ...`, contiguous.
        order: The axes from the outermost to the innermost.
    """
    return array.transpose([order.index(a) for a in range(len(order))])


def memory_order(array: Array) -> tuple[int, ...]:
    """The axes of an array from the outermost to the innermost in memory."""
    return tuple(sorted(range(array.ndim), key=lambda a: -abs(array.strides[a])))


def flattened(array: Array) -> Array | None:
    """All elements in the order of memory, as a view; None where they have gaps."""
    seen = array.transpose(memory_order(array))
    return seen.reshape(-1) if seen.flags.c_contiguous else None
