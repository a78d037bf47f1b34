"""Values published under a name: read with the results of a call that asks for them."""

from __future__ import annotations

from typing import Any, TypeVar

from tgdsl.errors import TraceError
from tgdsl.ir import AnyTensor, current_graph, is_tracing, user_site

from .arguments import shown, tensors

A = TypeVar("A", bound=AnyTensor[Any])


def capture(name: str, x: A) -> A:
    """Publish a value under a name; it can be read with the results of `with_captures`.

    Plain `step` and `run` do not compute it, so a capture in the source costs nothing.

    Args:
        name: A name that is new in this trace.
        x: Any tensor.

    Returns:
        `x` itself.

    Raises:
        TraceError: If the name is empty or was captured before.
    """
    given: object = name
    if not isinstance(given, str) or not given:
        raise TraceError(f"capture: the name must be a string that is not empty, got {shown(given)}", site=user_site())
    tensors("capture", x=x)
    if not is_tracing():
        return x
    graph = current_graph("capture")
    if not graph.captures_open:
        return x
    if name in graph.captures:
        raise TraceError(f"capture: {name!r} is captured twice", site=user_site())
    if x.graph is not graph:
        raise TraceError(f"capture: {x!r} does not belong to this trace", site=user_site())
    graph.captures[name] = x
    return x
