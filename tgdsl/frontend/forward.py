"""`@forward`: the declaration of an entry point.

The type of `step(x=..., y=...)` is taken from the constructor of the inputs class, the one
way found to give keyword arguments exact names and dtypes under both checkers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Generic, ParamSpec, TypeVar, get_type_hints, overload

import attrs
import numpy as np

from tgdsl.errors import DeclarationError
from tgdsl.ir import AnyTensor, IntTensor, Tensor

from .inputs import is_inputs

M = TypeVar("M")
M_contra = TypeVar("M_contra", contravariant=True)
B = TypeVar("B")
P = ParamSpec("P")
S = TypeVar("S", bound=np.generic)


@attrs.frozen
class _Where:
    """The line of a function's definition, for messages."""

    fn: Any

    def __str__(self) -> str:
        code = self.fn.__code__
        return f'  File "{code.co_filename}", line {code.co_firstlineno}, in {self.fn.__qualname__}'


class Forward(Generic[M_contra, B, P, S]):
    """A declared forward.

    Its type knows the model, the inputs, how these are constructed, and the scalar of the result.
    """

    def __init__(self, fn: Callable[[M_contra, B], AnyTensor[S]], inputs: Callable[P, B]) -> None:
        """Made by `forward`."""
        self.fn = fn
        self.inputs: Callable[P, B] = inputs
        self.__name__: str = fn.__qualname__
        self.__qualname__, self.__module__ = fn.__qualname__, fn.__module__
        self.__doc__ = fn.__doc__

    @overload
    def __call__(self: Forward[M_contra, B, P, np.float32], model: M_contra, inputs: B, /) -> Tensor: ...
    @overload
    def __call__(self: Forward[M_contra, B, P, np.int32], model: M_contra, inputs: B, /) -> IntTensor: ...
    @overload
    def __call__(self, model: M_contra, inputs: B, /) -> AnyTensor[S]: ...
    def __call__(self, model: M_contra, inputs: B, /) -> Any:
        """Call the function itself; inside of a trace only."""
        return self.fn(model, inputs)

    @property
    def where(self) -> object:
        """The line of its definition; prints as in a traceback."""
        return _Where(self.fn)

    def __reduce__(self) -> str:
        # Pickled by import path: a run's description travels to other processes.
        return self.__qualname__

    def __repr__(self) -> str:
        return f"<forward {self.__name__}({getattr(self.inputs, '__name__', '?')})>"


def forward(*, inputs: Callable[P, B]) -> Callable[[Callable[[M, B], AnyTensor[S]]], Forward[M, B, P, S]]:
    """Declare an entry point: a function of a model and one value of an `@inputs` class.

    Args:
        inputs: The `@inputs` class.

    Raises:
        DeclarationError: If the function does not take exactly these two, as far as its
            annotations tell.
    """

    def decorate(fn: Callable[[M, B], AnyTensor[S]]) -> Forward[M, B, P, S]:
        _check(fn, inputs)
        return Forward(fn, inputs)

    return decorate


def _check(fn: Any, cls: Any) -> None:
    name, where = fn.__qualname__, _Where(fn)
    if not is_inputs(cls):
        raise DeclarationError(f"@forward {name}: inputs={cls!r} is not an @inputs class", site=where)
    found = list(inspect.signature(fn).parameters.values())
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if len(found) != 2 or any(p.kind not in positional for p in found):
        names = ", ".join(map(str, (p.replace(annotation=p.empty) for p in found)))
        raise DeclarationError(
            f"@forward {name}: expected two parameters (model, inputs), found {len(found)} ({names}).",
            hint=f"read the inputs from one value: def {name}(m: ..., b: {cls.__name__}) -> Tensor",
            site=where,
        )
    model, batch = (_annotated(fn, p) for p in found)
    if batch not in (None, Any) and not isinstance(batch, TypeVar) and batch is not cls:
        shown = getattr(batch, "__name__", batch)
        raise DeclarationError(
            f"@forward {name}: parameter {found[1].name!r} is annotated {shown} but inputs={cls.__name__}",
            site=where,
        )
    if inspect.isclass(model) and not _may_be_module(model):
        raise DeclarationError(
            f"@forward {name}: parameter {found[0].name!r} is annotated {model.__name__}, which is not a @module class",
            site=where,
        )


def _annotated(fn: Any, parameter: inspect.Parameter) -> Any:
    """The annotation of a parameter; None where it cannot be known here."""
    if parameter.annotation is parameter.empty:
        return None
    holder = SimpleNamespace(__annotations__={"it": parameter.annotation})
    try:
        return get_type_hints(holder, globalns=fn.__globals__)["it"]
    except (NameError, AttributeError):  # only under TYPE_CHECKING, or local to a function
        return None


def _may_be_module(cls: type[Any]) -> bool:
    loose = cls in (Any, object) or getattr(cls, "_is_protocol", False)
    return loose or hasattr(cls, "__tg_module__")
