"""What the body of a `@module` class is made of: symbols, and declarations of slots.

In the class body an argument has no value yet, so `Linear(1, hidden)` and `param(dim, dim)`
are recorded and resolved when the owner is constructed.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeVar, cast, overload

import attrs

from tgdsl.errors import DeclarationError
from tgdsl.ir import Shape, Tensor, TensorType, show_shape, user_site

from .init import Init, Normal, Zeros, decays_by_default

T = TypeVar("T")
M = TypeVar("M")
R = TypeVar("R")


class Arg(Generic[T]):
    """A constructor argument: a symbol in the class body, the value on an instance."""

    name: str = "?"

    def __init__(self, shown: str = "", value_of: Callable[[Any], Any] | None = None, default: Any = attrs.NOTHING) -> None:
        """Made by `arg` and by arithmetic on symbols."""
        self._shown, self._value_of, self.default = shown, value_of, default

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = self._shown = name
        self._value_of = operator.attrgetter(name)

    @overload
    def __get__(self, obj: None, owner: type, /) -> Arg[T]: ...
    @overload
    def __get__(self, obj: object, owner: type, /) -> T: ...
    def __get__(self, obj: object | None, owner: type, /) -> Any:
        return self

    if TYPE_CHECKING:  # gives the constructor parameter its type; at run time it would shadow the instance

        def __set__(self, obj: object, value: T | Arg[T], /) -> None: ...

    def value(self, owner: object) -> Any:
        """The value on a constructed instance."""
        assert self._value_of is not None
        return self._value_of(owner)

    def _with(self, sign: str, fn: Callable[[Any, Any], Any], other: Any, *, swapped: bool = False) -> Arg[int]:
        def value_of(owner: Any) -> Any:
            a, b = self.value(owner), (other.value(owner) if isinstance(other, Arg) else other)
            return fn(b, a) if swapped else fn(a, b)

        shown = other._shown if isinstance(other, Arg) else other
        left, right = (shown, self._shown) if swapped else (self._shown, shown)
        return cast("Arg[int]", Arg[Any](f"({left} {sign} {right})", value_of))

    def __add__(self: Arg[int], other: int | Arg[int]) -> Arg[int]:
        return self._with("+", operator.add, other)

    def __radd__(self: Arg[int], other: int) -> Arg[int]:
        return self._with("+", operator.add, other, swapped=True)

    def __sub__(self: Arg[int], other: int | Arg[int]) -> Arg[int]:
        return self._with("-", operator.sub, other)

    def __mul__(self: Arg[int], other: int | Arg[int]) -> Arg[int]:
        return self._with("*", operator.mul, other)

    def __rmul__(self: Arg[int], other: int) -> Arg[int]:
        return self._with("*", operator.mul, other, swapped=True)

    def __floordiv__(self: Arg[int], other: int | Arg[int]) -> Arg[int]:
        return self._with("//", operator.floordiv, other)

    def __bool__(self) -> NoReturn:
        name = self._shown or self._name_in_body()
        raise DeclarationError(
            f"argument {name!r} has no value inside the class body; it is a symbol there.",
            hint=f"move this choice into a @build method, where self.{name} is a plain value",
            site=user_site(),
        )

    def _name_in_body(self) -> str:
        # __set_name__ runs after the class body; until then only the body's own namespace knows.
        frame = sys._getframe(1)
        while frame is not None:
            for key, value in frame.f_locals.items():
                if value is self and key != "self":
                    return key
            if frame.f_back is None:
                break
            frame = frame.f_back
        return "?"

    if not TYPE_CHECKING:  # hidden from the checkers, so that range(n) in a class body is a static error

        def __index__(self) -> NoReturn:
            self.__bool__()

    def __repr__(self) -> str:
        return f"<{self._shown}>"


Size = int | Arg[int]


@overload
def arg() -> Arg[Any]: ...
@overload
def arg(*, default: T) -> Arg[T]: ...
def arg(*, default: Any = attrs.NOTHING) -> Arg[Any]:
    """Declare a constructor argument of a `@module` class.

    Args:
        default: Its default; without one the argument is required.

    Example:
        >>> @module
        ... class Net:
        ...     hidden: Arg[int] = arg(default=4)
        ...     first: Linear = Linear(1, hidden)
        >>> Net(hidden=8).first
        Linear(din=1, dout=8, bias=True)
    """
    return Arg(default=default)


class Slot(Tensor):
    """A tensor of a model outside of any trace: it has a shape, but no value."""

    __slots__ = ()

    def _key(self) -> tuple[Any, ...]:
        return (self.shape,)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._key() == cast("Slot", other)._key()

    def __hash__(self) -> int:
        return hash(self._key())


class Param(Slot):
    """A parameter.

    Attributes:
        initial: How it starts.
        decay: Whether weight decay applies: True, False, or None for the default.
        trainable: Whether it is trained; otherwise no gradient work is emitted for it.
        fan_in: What `init.Kaiming` divides by.
    """

    __slots__ = ("decay", "fan_in", "initial", "trainable")

    def __init__(self, shape: Shape, initial: Init, decay: bool | None, *, trainable: bool = True, fan_in: int | None = None) -> None:
        """Made when a module is constructed."""
        super().__init__(TensorType(shape))
        self.initial, self.decay, self.trainable, self.fan_in = initial, decay, trainable, fan_in

    @property
    def decays(self) -> bool:
        """Whether weight decay applies when no filter says otherwise."""
        return decays_by_default(self.initial) if self.decay is None else self.decay

    def _key(self) -> tuple[Any, ...]:
        return (self.shape, self.initial, self.decay, self.trainable, self.fan_in)

    def __repr__(self) -> str:
        return f"param{show_shape(self.shape)}"


class State(Slot):
    """A persistent tensor that is not trained; `update` names its next value."""

    __slots__ = ("initial",)

    def __init__(self, shape: Shape, initial: Init) -> None:
        """Made when a module is constructed."""
        super().__init__(TensorType(shape))
        self.initial = initial

    def _key(self) -> tuple[Any, ...]:
        return (self.shape, self.initial)

    def __repr__(self) -> str:
        return f"state{show_shape(self.shape)}"


class Tied(Slot):
    """A second name of the parameter at `path`, counted from the root of the model."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        """Made by `tied`."""
        super().__init__(TensorType(()))
        self.path = path

    def _key(self) -> tuple[Any, ...]:
        return (self.path,)

    def __repr__(self) -> str:
        return f"tied({self.path!r})"


class Declared:
    """A slot in a class body; it is made anew for every instance."""

    def __init__(self, make: Callable[[Callable[[Any], Any]], Slot | None]) -> None:
        """`make` gets a function that turns symbols into values."""
        self.make = make


def _sizes(what: str, dims: tuple[Any, ...], value: Callable[[Any], Any]) -> Shape:
    shape = tuple(value(d) for d in dims)
    for n in shape:
        if isinstance(n, bool) or not isinstance(n, int):
            raise DeclarationError(f"{what}: a size must be an int, got {n!r}", site=user_site())
        if n < 1:
            raise DeclarationError(f"{what}: sizes must be at least 1, got {list(shape)}", site=user_site())
    return shape


def param(
    *dims: Size,
    initial: Init | Arg[Init] | None = None,
    decay: bool | None = None,
    trainable: bool = True,
    fan_in: Size | None = None,
    init: Literal[False] = False,
) -> Tensor:
    """Declare a parameter.

    Args:
        dims: Its sizes: ints, or arguments of the class.
        initial: How it starts; `init.Normal()` when omitted.
        decay: Whether weight decay applies; None leaves it to the optimizer's filter, else to
            the initialiser (zeros and ones do not decay).
        trainable: False makes it a constant of training that can still be uploaded.
        fan_in: What `init.Kaiming` divides by.
        init: Reserved by `dataclass_transform`; the initial value is `initial`.

    Example:
        >>> @module
        ... class Scale:
        ...     size: Arg[int] = arg()
        ...     factor: Tensor = param(size, initial=init.Ones())
        >>> Scale(3).factor
        param[3]
    """

    def make(value: Callable[[Any], Any]) -> Param:
        shape = _sizes("param", dims, value)
        return Param(shape, value(initial) or Normal(), decay, trainable=trainable, fan_in=value(fan_in))

    return cast("Tensor", Declared(make))


def param_if(
    when: bool | Arg[bool],
    *dims: Size,
    initial: Init | Arg[Init] | None = None,
    decay: bool | None = None,
    trainable: bool = True,
    fan_in: Size | None = None,
    init: Literal[False] = False,
) -> Tensor | None:
    """Declare a parameter that exists only under a condition; otherwise the field is None.

    Args:
        when: A bool, or an argument of the class.
        dims: As of `param`.
        initial: As of `param`.
        decay: As of `param`.
        trainable: As of `param`.
        fan_in: As of `param`.
        init: Reserved.
    """

    def make(value: Callable[[Any], Any]) -> Param | None:
        if not value(when):
            return None
        shape = _sizes("param_if", dims, value)
        return Param(shape, value(initial) or Normal(), decay, trainable=trainable, fan_in=value(fan_in))

    return cast("Tensor | None", Declared(make))


def state(*dims: Size, initial: Init | Arg[Init] | None = None, init: Literal[False] = False) -> Tensor:
    """Declare a persistent tensor that is not trained: running statistics, counters.

    A training forward names its next value with `update(self.mean, value)`; an inference
    forward reads it. It is saved, loaded and reset with the parameters.

    Args:
        dims: As of `param`.
        initial: How it starts; zeros when omitted.
        init: Reserved.
    """

    def make(value: Callable[[Any], Any]) -> State:
        return State(_sizes("state", dims, value), value(initial) or Zeros())

    return cast("Tensor", Declared(make))


def tied(path: str, *, init: Literal[False] = False) -> Tensor:
    """Declare a second name for a parameter: one parameter, one gradient, the sum of both uses.

    Args:
        path: The dotted path of the parameter from the root of the model, as in `param_names`.
        init: Reserved.
    """
    return cast("Tensor", Declared(lambda value: Tied(path)))


class Repeated:
    """`n` modules of one kind, not yet resolved."""

    def __init__(self, n: Any, child: Any) -> None:
        """Made by `repeat`."""
        self.n, self.child = n, child


def repeat(n: Size, child: T) -> tuple[T, ...]:
    """`n` modules of the same kind, each with parameters of its own.

    Args:
        n: How many: an int, or an argument of the class.
        child: One of them.

    Example:
        >>> @module
        ... class Deep:
        ...     depth: Arg[int] = arg()
        ...     layers: tuple[Linear, ...] = repeat(depth, Linear(4, 4))
        >>> len(Deep(3).layers)
        3
    """
    return cast("tuple[T, ...]", Repeated(n, child))


class build(Generic[M, R]):  # noqa: N801  (a decorator)
    """A field computed from the arguments by ordinary Python, once, when the module is constructed.

    Example:
        >>> @module
        ... class Tower:
        ...     widths: Arg[tuple[int, ...]] = arg(default=(4, 2, 1))
        ...     @build
        ...     def layers(self) -> tuple[Linear, ...]:
        ...         return tuple(Linear(a, b) for a, b in zip(self.widths, self.widths[1:]))
        >>> len(Tower().layers)
        2
    """

    def __init__(self, fn: Callable[[M], R], /) -> None:
        """Decorate a method without parameters."""
        self.fn = fn
        self.name: str = getattr(fn, "__name__", "?")

    @overload
    def __get__(self, obj: None, owner: type, /) -> build[M, R]: ...
    @overload
    def __get__(self, obj: M, owner: type, /) -> R: ...
    def __get__(self, obj: Any, owner: type, /) -> Any:
        return self

    if TYPE_CHECKING:

        def __set__(self, obj: NoReturn, value: NoReturn, /) -> None: ...
