"""`@module`: an attrs class whose body is a template over its own arguments.

A model is a value: immutable, equal and hashed by its fields, printed by its arguments. It
holds no numbers, so one model compiles any number of times.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import attrs
from typing_extensions import dataclass_transform

from tgdsl.errors import DeclarationError, FrozenError
from tgdsl.ir import current_graph, is_tracing

from .arg import arg
from .body import OVERRIDES, PATH, TEMPLATE, Body, resolve, symbolic
from .body import is_module as is_module
from .slots import param, param_if, state, tied

M = TypeVar("M")


@dataclass_transform(frozen_default=True, field_specifiers=(arg, param, param_if, state, tied))
def module(cls: type[M], /) -> type[M]:
    """Declare a model: a class whose body names arguments, parameters and children.

    Example:
        >>> @module
        ... class MLP:
        ...     hidden: Arg[int] = arg(default=64)
        ...     first: Linear = Linear(1, hidden)
        ...     last: Linear = Linear(hidden, 1)
        >>> MLP(hidden=8)
        MLP(hidden=8)
        >>> list(parameters(MLP()))
        ['first.w', 'first.b', 'last.w', 'last.b']
    """
    body = Body(cls)
    kind: Any = cls
    kind.__tg_module__ = body
    kind.__attrs_post_init__ = _run_builds
    if call := _unscoped_call(cls):
        kind.__call__ = _scoped(call)
    out: Any = attrs.define(cls, these=body.attributes, frozen=True, slots=False, repr=False)
    out.__setattr__ = _refuse_assignment
    out.__delattr__ = _refuse_deletion
    if cls.__repr__ is object.__repr__:
        out.__repr__ = _show
    out.__init__ = _constructor(out, out.__init__, body)
    return out  # type: ignore[no-any-return]


def _run_builds(self: Any) -> None:
    for name, made in type(self).__tg_module__.builds.items():
        where = f"{type(self).__name__}.{name}"
        self.__dict__[name] = resolve(made.fn(self), self, where, fresh=False)


def _refuse_assignment(self: Any, name: str, value: object) -> NoReturn:
    kind = type(self).__name__
    raise FrozenError(f"{kind} is immutable; build a new one: attrs.evolve(m, {name}=...)")


def _refuse_deletion(self: Any, name: str) -> NoReturn:
    raise FrozenError(f"{type(self).__name__} is immutable; {name!r} cannot be deleted")


def _show(self: Any) -> str:
    if TEMPLATE in self.__dict__:
        args, kwargs = self.__dict__[TEMPLATE]
        shown = [*map(repr, args), *(f"{k}={v!r}" for k, v in kwargs.items())]
    else:
        names = [*type(self).__tg_module__.args, *self.__dict__.get(OVERRIDES, ())]
        shown = [f"{a}={getattr(self, a)!r}" for a in names]
    return f"{type(self).__name__}({', '.join(shown)})"


def _unscoped_call(cls: type[Any]) -> Callable[..., Any] | None:
    """The `__call__` of instances, also one from a plain base class; None if it has a scope."""
    found = next((k.__dict__["__call__"] for k in cls.__mro__ if "__call__" in k.__dict__), None)
    return None if found is None or hasattr(found, "__tg_scoped__") else found


def _scoped(call: Callable[..., Any]) -> Callable[..., Any]:
    """Calls of a bound module run in the scope of its path, which salts stochastic ops."""

    @functools.wraps(call)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        path = self.__dict__.get(PATH)
        if not path or not is_tracing():
            return call(self, *args, **kwargs)
        with current_graph("call").scope(path):
            return call(self, *args, **kwargs)

    wrapped.__tg_scoped__ = True  # type: ignore[attr-defined]
    return wrapped


def _constructor(cls: type[Any], generated: Callable[..., None], body: Body) -> Callable[..., None]:
    """The constructor: a template waits for its owner, and children may be given by name."""

    @functools.wraps(generated)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        if type(self) is not cls and inspect.get_annotations(type(self)):
            raise DeclarationError(f"{type(self).__name__} declares fields without @module")
        if any(symbolic(x) for x in (*args, *kwargs.values())):
            self.__dict__[TEMPLATE] = (args, kwargs)
            return
        named = _by_name(body, args, kwargs)
        overrides = {c: named.pop(c) for c in body.children if c in named}
        generated(self, **{**named, OVERRIDES: {**kwargs.get(OVERRIDES, {}), **overrides}})

    return __init__


def _by_name(body: Body, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    if len(args) > len(body.order):
        most = len(body.order)
        raise TypeError(f"{body.name}() takes {most} positional arguments, {len(args)} were given")
    named = dict(zip(body.order, args, strict=False))
    if twice := named.keys() & kwargs.keys():
        raise TypeError(f"{body.name}() got multiple values for argument {min(twice)!r}")
    return {**named, **kwargs}
