"""Hypothesis strategies read off the typed declarations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tgdsl import frontend
from tgdsl.errors import DimError

B = TypeVar("B")

EDGES = (0.0, -0.0, 1.0, -1.0, 0.5, 2.0)
"""Values at which functions tend to change; mixed into every array of floats."""


def batches(cls: type[B], /, **dims: int | st.SearchStrategy[int]) -> st.SearchStrategy[B]:
    """Values of an `@inputs` class: named dims agree, `below=` holds, floats stay in [-2, 2].

    Args:
        cls: The class.
        dims: For a named dim its size, or a strategy of sizes; 1 to 4 when omitted.

    Raises:
        DimError: If the class has no such dim.

    Example:
        >>> @given(batches(Batch, B=st.integers(1, 5)))
        ... def test_loss(batch: Batch) -> None: ...
    """
    known = frontend.dims_of(cls)
    for name in dims:
        if name not in known:
            raise DimError(f"{cls.__name__} has no dim {name!r}; its dims are: {', '.join(known) or 'none'}")
    return _batches(cls, dims)


@st.composite
def _batches(draw: st.DrawFn, cls: type[B], dims: Mapping[str, int | st.SearchStrategy[int]]) -> B:
    sizes: dict[str, int] = {}
    for name in frontend.dims_of(cls):
        size = dims.get(name, st.integers(1, 4))
        sizes[name] = size if isinstance(size, int) else draw(size, label=name)
    arrays: dict[str, Any] = {}
    for name, spec in frontend.specs(cls).items():
        shape = tuple(sizes[d] if isinstance(d, str) else d for d in spec.dims)
        arrays[name] = draw(_array(spec.dtype, shape, spec.below), label=name)
    return cls(**arrays)


def _array(dtype: str, shape: tuple[int, ...], below: int | None) -> st.SearchStrategy[Any]:
    if dtype == "i32":
        return hnp.arrays(np.int32, shape, elements=st.integers(0, (below or 8) - 1))
    floats = st.floats(-2, 2, width=32, allow_subnormal=False)
    return hnp.arrays(np.float32, shape, elements=st.one_of(floats, st.sampled_from(EDGES)))
