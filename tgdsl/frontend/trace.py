"""From declarations to a graph: run the forward once on tensors that have no values."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, ParamSpec, TypeVar, overload

import attrs
import numpy as np

from tgdsl.errors import DeclarationError, TraceError
from tgdsl.ir import AnyTensor, Graph, Tensor, tracing
from tgdsl.ops.leaves import leaves

from .forward import Forward
from .inputs import bind_inputs
from .module import is_module
from .tree import bind

M = TypeVar("M")
B = TypeVar("B")
P = ParamSpec("P")
S = TypeVar("S", bound=np.generic)
R = TypeVar("R")


@attrs.frozen
class Traced:
    """A traced forward.

    Attributes:
        graph: The graph; its only output is `output`.
        output: What the forward returned.
        params: Every parameter of the model by path, in the order of declaration.
        states: Every persistent tensor of the model by path.
        inputs: Every input by name.
    """

    graph: Graph
    output: AnyTensor[Any]
    params: dict[str, Tensor]
    states: dict[str, Tensor]
    inputs: dict[str, AnyTensor[Any]]


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

    Example:
        >>> graph = trace(MLP(hidden=8), loss, dims={"B": 4})
        >>> graph.outputs[0].shape
        ()
    """
    if forward is not None:
        return trace_forward(model, forward, dims or {}).graph
    if is_module(model) or not callable(model):
        raise DeclarationError(
            f"trace: expected a function without parameters, got {model!r}",
            hint="with a model, name the forward: trace(model, forward, dims=...)",
        )
    graph = Graph()
    with tracing(graph):
        out = model()
    name, where = getattr(model, "__qualname__", repr(model)), _definition(model)
    outputs: list[Any] = list(out) if isinstance(out, (list, tuple)) else [out]
    if not outputs:
        raise TraceError(f"trace: {name} returned no tensor", site=where)
    for t in outputs:
        _check_output(graph, t, name, where)
    graph.outputs = outputs
    return graph


def trace_forward(model: M, forward: Forward[M, B, P, S], dims: Mapping[str, int]) -> Traced:
    """Trace a forward on a model with every named dim bound.

    Raises:
        DeclarationError: If the model is no `@module`, or shares a parameter under two names.
        DimError: If a dim is unknown or unbound.
        TraceError: If the forward does not return one tensor of this trace.
    """
    if not is_module(model):
        raise DeclarationError(f"trace: model is a {type(model).__name__}, not an instance of a @module class")
    if not isinstance(forward, Forward):
        raise DeclarationError(f"trace: expected a @forward function, got {forward!r}")
    graph = Graph()
    with tracing(graph):
        bound = bind(model, graph)
        out = forward.fn(bound, bind_inputs(forward.inputs, dims, graph))
    _check_output(graph, out, forward.__name__, forward.where)
    graph.outputs = [out]
    params, states = _tensors(graph, "param"), _tensors(graph, "state")
    return Traced(graph, out, params, states, _tensors(graph, "input"))


def _tensors(graph: Graph, kind: Literal["param", "state", "input"]) -> dict[str, Any]:
    return {name: graph.tensor(node) for name, node in leaves(graph, kind).items()}


def _definition(fn: object) -> str | None:
    code = getattr(fn, "__code__", None)
    if code is None:
        return None
    return f'  File "{code.co_filename}", line {code.co_firstlineno}, in {code.co_qualname}'


def _check_output(graph: Graph, out: object, name: str, where: object) -> None:
    if not isinstance(out, AnyTensor):
        hint = {"NoneType": "is a return statement missing?"}.get(type(out).__name__)
        if isinstance(out, (list, tuple)):
            hint = "publish further values with capture(name, t)"
        shown = "None" if out is None else f"a {type(out).__name__}"
        raise TraceError(f"{name} returned {shown}, expected a tensor", hint=hint, site=where)
    if out.graph is not graph:
        raise TraceError(
            f"{name} returned {out!r}, which does not belong to this trace",
            hint="compute it from the model and the inputs that the forward receives",
            site=where,
        )


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
