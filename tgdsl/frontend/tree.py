"""A model as a tree of slots by dotted path, and its binding to a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tgdsl.errors import DeclarationError
from tgdsl.ir import Graph, TensorType
from tgdsl.ops.leaves import Kind, declare

from . import init
from .body import HIDDEN, PATH, clone, is_module, rebuild
from .slots import Declared, Param, Slot, State, Tied


def _parts(x: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The named parts of a module or container, with their paths."""
    prefix = f"{path}." if path else ""
    if is_module(x):
        yield from ((prefix + k, v) for k, v in x.__dict__.items() if k not in HIDDEN)
    elif isinstance(x, dict):
        for k, v in x.items():
            if not isinstance(k, (str, int)) or "." in str(k):
                raise DeclarationError(f"{path}: the key {k!r} cannot be part of a dotted path")
            yield f"{prefix}{k}", v
    elif isinstance(x, (list, tuple)):
        yield from ((f"{prefix}{i}", v) for i, v in enumerate(x))
    else:
        _refuse_hidden(x, path)


def _refuse_hidden(x: Any, path: str) -> None:
    """A slot where no path leads would never be trained."""
    inside = x if isinstance(x, (set, frozenset)) else getattr(x, "__dict__", {})
    values = inside.values() if isinstance(inside, dict) else inside
    if any(isinstance(v, (Slot, Declared)) or is_module(v) for v in values):
        raise DeclarationError(
            f"{path}: parameters inside of a {type(x).__name__} have no path",
            hint="use a tuple or dict, or make it a @module",
        )


def slots(model: object) -> dict[str, Slot]:
    """Every slot by path in the order of declaration; one object under two names is refused."""
    found: dict[str, Slot] = {}
    seen: dict[int, str] = {}
    around: set[int] = set()

    def enter(x: Any, path: str) -> None:
        if id(x) in around:
            raise DeclarationError(f"{path}: the model contains itself")
        if isinstance(x, Slot) or is_module(x):
            first = seen.setdefault(id(x), path)
            if first != path:
                raise DeclarationError(
                    f"{first!r} and {path!r} are one object, but a parameter's identity is its path",
                    hint="construct it twice for two sets of parameters, "
                    'or share one parameter on purpose with tied("path")',
                )
        if isinstance(x, Slot):
            if path in found:
                raise DeclarationError(f"two parameters have the path {path!r}")
            found[path] = x
            return
        around.add(id(x))
        for inner, part in _parts(x, path):
            enter(part, inner)
        around.discard(id(x))

    enter(model, "")
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


def initial_state(model: object, seed: int = 0) -> dict[str, init.F32Array]:
    """The first values of every persistent tensor."""
    return {path: init.values(s.initial, s.shape, init.stream(seed, path)) for path, s in states(model).items()}


def bind(model: Any, graph: Graph) -> Any:
    """A copy of the model with tensors of the trace in its slots."""
    found = slots(model)
    own: dict[str, Any] = {}
    for path, slot in found.items():
        if not isinstance(slot, Tied):
            kind: Kind = "param" if isinstance(slot, Param) else "state"
            own[path] = declare(graph, kind, path, TensorType(slot.shape))
    tied = {path: s.path for path, s in found.items() if isinstance(s, Tied)}
    shared = {path: own[owner_of(path, target, own)] for path, target in tied.items()}
    return _bound(model, "", {**own, **shared}.__getitem__)


def owner_of(path: str, target: str, own: dict[str, Any]) -> str:
    """The path that a tied slot means: seen from its module, else from the modules around it."""
    around = path.split(".")[:-1]
    for depth in range(len(around), -1, -1):
        candidate = ".".join((*around[:depth], target))
        if candidate in own:
            return candidate
    names = ", ".join(own) or "none"
    raise DeclarationError(f"{path}: tied({target!r}) names no parameter; the model has: {names}")


def _bound(x: Any, path: str, tensor: Callable[[str], Any]) -> Any:
    if isinstance(x, Slot):
        return tensor(path)
    if is_module(x):
        fields = {inner: _bound(part, inner, tensor) for inner, part in _parts(x, path)}
        names = {k.rpartition(".")[2]: v for k, v in fields.items()}
        return clone(x, {**x.__dict__, **names, PATH: path})
    if isinstance(x, dict):
        parts = (_bound(part, inner, tensor) for inner, part in _parts(x, path))
        return dict(zip(x, parts, strict=True))
    if isinstance(x, (list, tuple)):
        return rebuild(x, (_bound(part, inner, tensor) for inner, part in _parts(x, path)))
    return x
