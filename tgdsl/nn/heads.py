"""Reading attention weights per head."""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray


class _Captures(Protocol):
    def per_head(self, name: str) -> list[NDArray[Any]]: ...


def unsplit_heads(captures: _Captures, name: str) -> list[NDArray[Any]]:
    """The capture `[..., heads, m, n]` as one matrix per head; tensorgrad's name of `per_head`.

    Args:
        captures: The captures of a result.
        name: One of them; axes before the heads must have size 1.
    """
    return captures.per_head(name)
