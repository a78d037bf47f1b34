"""Symbols: what an argument of a module is inside the class body, where it has no value yet.

`Linear(1, hidden)` and `param(dim, 4 * dim)` record symbols, which are resolved when the
owner is constructed. Whatever needs a value in the class body raises at once: `n == 3`
would otherwise be False for every n.
"""

from __future__ import annotations

import inspect
import operator
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, cast, overload

import attrs

from tgdsl.errors import DeclarationError
from tgdsl.ir import user_site

T = TypeVar("T")


class Arg(Generic[T]):
    """A constructor argument: a symbol in the class body, the value on an instance.

    Attributes:
        default: Its default, `attrs.NOTHING` without one.
        kw_only: Whether it can only be given by name.
        computed: Whether it is an expression of other arguments.
    """

    def __init__(
        self,
        *,
        default: Any = attrs.NOTHING,
        kw_only: bool = False,
        value_of: Callable[[Any], Any] | None = None,
        shown: Callable[[], str] | None = None,
    ) -> None:
        """Made by `arg`, and by arithmetic on symbols."""
        self.default, self.kw_only = default, kw_only
        self.computed = value_of is not None
        self._value_of, self._shown = value_of, shown

    def __set_name__(self, owner: type, name: str) -> None:
        if self.computed:
            if name not in inspect.get_annotations(owner):
                return  # a helper such as `inner = 4 * dim`, no argument
            # The annotated expression is an argument whose default the others determine.
            value_of = self._value_of
            self.default = attrs.Factory(cast("Any", value_of), takes_self=True)
        self._value_of, self._shown = operator.attrgetter(name), lambda: name

    @overload
    def __get__(self, obj: None, owner: type, /) -> Arg[T]: ...
    @overload
    def __get__(self, obj: object, owner: type, /) -> T: ...
    def __get__(self, obj: object | None, owner: type, /) -> Any:
        # Values of arguments lie in the instance dict and never come here.
        helper = obj is not None and self.computed and self.default is attrs.NOTHING
        return self.value(obj) if helper else self

    if TYPE_CHECKING:  # types the constructor parameter; at run time it would shadow the instance

        def __set__(self, obj: object, value: T | Arg[T], /) -> None: ...

    def value(self, owner: object) -> Any:
        """The value on a constructed instance."""
        assert self._value_of is not None, "a symbol outside of a @module class"
        return self._value_of(owner)

    def _with(self, sign: str, fn: Callable[[Any, Any], Any], other: Any, *, swapped: bool = False) -> Arg[int]:
        def value_of(owner: Any) -> Any:
            a, b = self.value(owner), (other.value(owner) if isinstance(other, Arg) else other)
            return fn(b, a) if swapped else fn(a, b)

        def shown() -> str:
            theirs = other.shown if isinstance(other, Arg) else repr(other)
            left, right = (theirs, self.shown) if swapped else (self.shown, theirs)
            return f"({left} {sign} {right})"

        return Arg(value_of=value_of, shown=shown)

    def __add__(self: Arg[int], other: int | Arg[int]) -> Arg[int]:
        return self._with("+", operator.add, other)

    def __radd__(self: Arg[int], other: int) -> Arg[int]:
        return self._with("+", operator.add, other, swapped=True)

    def __sub__(self: Arg[int], other: int | Arg[int]) -> Arg[int]:
        return self._with("-", operator.sub, other)

    def __rsub__(self: Arg[int], other: int) -> Arg[int]:
        return self._with("-", operator.sub, other, swapped=True)

    def __mul__(self: Arg[int], other: int | Arg[int]) -> Arg[int]:
        return self._with("*", operator.mul, other)

    def __rmul__(self: Arg[int], other: int) -> Arg[int]:
        return self._with("*", operator.mul, other, swapped=True)

    def __floordiv__(self: Arg[int], other: int | Arg[int]) -> Arg[int]:
        return self._with("//", operator.floordiv, other)

    @property
    def shown(self) -> str:
        """Its name, or the expression that it is."""
        return self._shown() if self._shown is not None else self._name_in_body()

    def _name_in_body(self) -> str:
        # __set_name__ runs after the class body; until then only the body's own namespace knows.
        frame = sys._getframe(1)
        while frame is not None:
            for key, value in frame.f_locals.items():
                if value is self and not frame.f_globals.get("__name__", "").startswith("tgdsl."):
                    return key
            if frame.f_back is None:
                break
            frame = frame.f_back
        return "?"

    def __bool__(self) -> NoReturn:  # noqa: PLE0304
        self._refuse()

    def _refuse(self, *_: object) -> NoReturn:
        shown = self.shown
        plain = f"self.{shown} is" if shown.isidentifier() else "every argument is"
        raise DeclarationError(
            f"argument {shown!r} has no value inside the class body; it is a symbol there.",
            hint=f"move this choice into a @build method, where {plain} a plain value",
            site=user_site(),
        )

    if not TYPE_CHECKING:  # hidden from the checkers, which then refuse range(n) and n > 3
        __index__ = __int__ = __float__ = __len__ = __iter__ = __getitem__ = __contains__ = _refuse
        __lt__ = __le__ = __gt__ = __ge__ = __neg__ = __mod__ = __truediv__ = __rtruediv__ = _refuse
        __rfloordiv__ = __pow__ = _refuse

        def __eq__(self, other: object) -> bool:
            return self is other or (not isinstance(other, Arg) and self._refuse())

        __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<{self.shown}>"


@overload
def arg(*, kw_only: bool = False) -> Arg[Any]: ...
@overload
def arg(*, default: T, kw_only: bool = False) -> Arg[T]: ...
def arg(*, default: Any = attrs.NOTHING, kw_only: bool = False) -> Arg[Any]:
    """Declare a constructor argument of a `@module` class.

    Args:
        default: Its default; without one the argument is required.
        kw_only: Whether it can only be given by name.

    Example:
        >>> @module
        ... class Net:
        ...     hidden: Arg[int] = arg(default=4)
        ...     first: Linear = Linear(1, hidden)
        >>> Net(hidden=8).first.dout
        8
    """
    return Arg(default=default, kw_only=kw_only)
