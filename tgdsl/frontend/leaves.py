"""Leaves that a bare traced function declares for itself, without a model.

`@module` and `@inputs` do this for everybody else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from tgdsl.dtypes import NUMPY, DType
from tgdsl.errors import DTypeError, ShapeError, TraceError
from tgdsl.ir import TensorType, current_graph, user_site
from tgdsl.ops.leaves import declare

from .inputs import is_count


def param_input(name: str, shape: Sequence[int], dtype: DType = "f32") -> Any:
    """Declare a parameter in the trace: bound by upload, persistent, differentiated."""
    return _leaf("param", name, shape, dtype)


def tensor_input(name: str, shape: Sequence[int], dtype: DType = "f32") -> Any:
    """Declare an input of the trace: given at every step or run."""
    return _leaf("input", name, shape, dtype)


def state_input(name: str, shape: Sequence[int], dtype: DType = "f32", init_value: float = 0.0) -> Any:
    """Declare a persistent value that starts as `init_value` everywhere and gets no gradient."""
    made = _leaf("state", name, shape, dtype)
    current_graph("state_input").facts.setdefault("init_value", {})[name] = init_value
    return made


def _leaf(kind: Literal["param", "input", "state"], name: str, shape: Sequence[int], dtype: DType) -> Any:
    graph = current_graph({"input": "tensor_input"}.get(kind, f"{kind}_input"))
    sizes = tuple(shape)
    if not name:
        raise TraceError(f"{kind}: the name is empty", site=user_site())
    if not all(map(is_count, sizes)):
        raise ShapeError(
            f"{kind} {name!r}: a size must be an int of at least 1, got {list(sizes)}",
            site=user_site(),
        )
    if dtype not in NUMPY:
        raise DTypeError(f"{kind} {name!r}: unknown dtype {dtype!r}", site=user_site())
    return declare(graph, kind, name, TensorType(sizes, dtype))
