"""A model as a tree of slots by dotted path, and its binding to a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tgdsl.errors import DeclarationError, TraceError
from tgdsl.ir import Graph, TensorType
from tgdsl.ops.leaves import declare

from . import init
from .module import HIDDEN, PATH, clone, is_module
from .slots import Param, Slot, State, Tied


def _fields(x: Any) -> Iterator[tuple[str, Any]]:
    if is_module(x):
        yield from ((k, v) for k, v in x.__dict__.items() if k not in HIDDEN)
    elif isinstance(x, dict):
        yield from ((str(k), v) for k, v in x.items())
    elif isinstance(x, (list, tuple)):
        yield from ((str(i), v) for i, v in enumerate(x))


def slots(model: object) -> dict[str, Slot]:
    """Every slot by path in the order of declaration; one object under two names is refused."""
    found: dict[str, Slot] = {}
    seen: dict[int, str] = {}
    open_: list[int] = []

    def walk(x: Any, path: str) -> None:
        if not (isinstance(x, Slot) or is_module(x)):
            for k, v in _fields(x):
                walk(v, f"{path}.{k}" if path else k)
            return
        if id(x) in open_:
            raise DeclarationError(f"{path}: the model contains itself")
        if id(x) in seen:
            raise DeclarationError(
                f"{seen[id(x)] or 'the model'!r} and {path!r} are one object, but a parameter's identity is its path",
                hint="construct it twice for two sets of parameters, or declare tied(...) to share one on purpose",
            )
        seen[id(x)] = path
        if isinstance(x, Slot):
            found[path] = x
            return
        open_.append(id(x))
        for k, v in _fields(x):
            walk(v, f"{path}.{k}" if path else k)
        open_.pop()

    walk(model, "")
    return found


def parameters(model: object) -> dict[str, Param]:
    """Every parameter of a model by dotted path, in the order of declaration."""
    return {path: s for path, s in slots(model).items() if isinstance(s, Param)}


def states(model: object) -> dict[str, State]:
    """Every persistent tensor of a model by dotted path."""
    return {path: s for path, s in slots(model).items() if isinstance(s, State)}


def initial_values(model: object, seed: int) -> dict[str, init.F32Array]:
    """The first values of every parameter; each has a random stream of its own."""
    return {
        path: init.values(p.initial, p.shape, init.stream(seed, path), p.fan_in)
        for path, p in parameters(model).items()
    }


def initial_state(model: object) -> dict[str, init.F32Array]:
    """The first values of every persistent tensor."""
    return {path: init.values(s.initial, s.shape, init.stream(0, path)) for path, s in states(model).items()}


def bind(model: Any, graph: Graph) -> Any:
    """A copy of the model with tensors of the trace in its slots."""
    known: dict[str, Any] = {}
    found = slots(model)
    for path, slot in found.items():
        if isinstance(slot, Tied):
            continue
        known[path] = declare(graph, "param" if isinstance(slot, Param) else "state", path, TensorType(slot.shape))
    for path, slot in found.items():
        if isinstance(slot, Tied):
            if slot.path not in known:
                names = ", ".join(known) or "none"
                raise TraceError(f"{path}: tied({slot.path!r}) names no parameter; the model has: {names}")
            known[path] = known[slot.path]
    return _rebuilt(model, "", lambda path: known[path])


def _rebuilt(x: Any, path: str, tensor: Callable[[str], Any]) -> Any:
    prefix = f"{path}." if path else ""
    if isinstance(x, Slot):
        return tensor(path)
    if is_module(x):
        fields = {k: _rebuilt(v, prefix + k, tensor) if k not in HIDDEN else v for k, v in x.__dict__.items()}
        return clone(x, {**fields, PATH: path})
    if isinstance(x, dict):
        return {k: _rebuilt(v, f"{prefix}{k}", tensor) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return type(x)(_rebuilt(v, f"{prefix}{i}", tensor) for i, v in enumerate(x))
    return x
