"""From declarations to a graph: run the forward once on tensors that have no values."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar, overload

import numpy as np

from tgdsl.errors import DeclarationError, ShapeError, TraceError
from tgdsl.ir import AnyTensor, Graph, Tensor, current_graph, operand_error, tracing, user_site
from tgdsl.ops import capture as capture

from .forward import Forward
from .inputs import bind_inputs
from .module import is_module
from .tree import bind

M = TypeVar("M")
B = TypeVar("B")
P = ParamSpec("P")
S = TypeVar("S", bound=np.generic)
R = TypeVar("R")


@overload
def trace(model: Callable[[], Any], /) -> Graph: ...
@overload
def trace(model: M, forward: Forward[M, B, P, S], /, *, dims: Mapping[str, int] | None = None) -> Graph: ...
def trace(model: Any, forward: Any = None, /, *, dims: Mapping[str, int] | None = None) -> Graph:
    """The graph of a forward on a model, or of a bare function.

    Args:
        model: A model, or a function without parameters that declares its own leaves.
        forward: A `@forward` for the model.
        dims: Sizes of the named dims.

    Returns:
        A graph whose outputs are what was returned.

    Raises:
        TraceError: If a trace is running already, or something else than tensors is returned.
        DimError: If a dim is unknown or unbound.
    """
    graph = Graph()
    with tracing(graph):
        if forward is None:
            out, where, name = model(), None, getattr(model, "__qualname__", "the function")
        else:
            if not is_module(model):
                raise DeclarationError(f"trace: model is a {type(model).__name__}, not an instance of a @module class")
            bound = bind(model, graph)
            out = forward.fn(bound, bind_inputs(forward.inputs, dims or {}, graph))
            where, name = forward.where, forward.__name__
    graph.outputs = _outputs(graph, out, name, where)
    return graph


def _outputs(graph: Graph, out: Any, name: str, where: object) -> list[AnyTensor[Any]]:
    tensors = list(out) if isinstance(out, (list, tuple)) else [out]
    for t in tensors:
        if not isinstance(t, AnyTensor):
            raise TraceError(
                f"trace: {name} returned {type(t).__name__}, expected a tensor",
                hint="is a return statement missing?" if t is None else None,
                site=where,
            )
        if t.graph is not graph:
            raise TraceError(f"trace: {name} returned {t!r}, which does not belong to this trace", site=where)
    return tensors


def trace_into(graph: Graph, fn: Callable[[], R]) -> R:
    """Run `fn` with `graph` current, captures disabled; for custom passes over a traced graph."""
    with _closed(graph), tracing(graph):
        return fn()


@contextmanager
def _closed(graph: Graph) -> Generator[None]:
    before, graph.captures_open = graph.captures_open, False
    try:
        yield
    finally:
        graph.captures_open = before


def update(state: Tensor, value: Tensor) -> None:
    """Name the next value of a persistent tensor, which takes effect when the step is done.

    Args:
        state: A tensor declared with `state(...)`.
        value: A tensor of the same shape; no gradient flows through it into the state.

    Raises:
        TraceError: If `state` is none, or was updated before.
        ShapeError: If the shapes differ.
    """
    graph = current_graph("update")
    node = state.node
    if node.op.name != "state":
        raise operand_error(ShapeError, "update: the target was not declared with state(...)", target=state)
    name = node.attrs["name"]
    if name in graph.updates:
        raise TraceError(f"update: {name!r} is updated twice", site=user_site())
    if value.shape != state.shape or value.dtype != state.dtype:
        raise operand_error(ShapeError, "update: the next value has another type", state=state, value=value)
    graph.updates[name] = value
