"""What the body of a `@module` class declares besides arguments: slots of tensors, and children.

A slot is a `Tensor` with a shape and no value, so that models type-check as the code that
runs on them. Declarations are functions of the owner: every instance has slots of its own.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeVar, cast, overload

from tgdsl.errors import DeclarationError
from tgdsl.ir import Shape, Tensor, TensorType, show_shape, user_site

from .arg import Arg as Arg
from .arg import arg as arg
from .init import Init, Normal, Zeros, decays_by_default, misfit

T = TypeVar("T")
M = TypeVar("M")
R = TypeVar("R")
Size = int | Arg[int]
Value = Callable[[Any], Any]
"""Turns a symbol into its value on the owner; leaves everything else as it is."""


class Slot(Tensor):
    """A tensor of a model outside of any trace: it has a shape, but no value."""

    __slots__ = ()

    def _key(self) -> tuple[Any, ...]:
        return (self.shape,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Slot) and type(self) is type(other) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())


class Param(Slot):
    """A parameter.

    Attributes:
        initial: How it starts.
        decay: Whether weight decay applies: True, False, or None for the default.
        trainable: Whether it is trained; otherwise no gradient work is emitted for it.
        fan_in: What `init.Kaiming` divides by; None for the first axis.
    """

    __slots__ = ("decay", "fan_in", "initial", "trainable")

    def __init__(
        self,
        shape: Shape,
        initial: Init,
        *,
        decay: bool | None = None,
        trainable: bool = True,
        fan_in: int | None = None,
    ) -> None:
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
    """A persistent tensor that is not trained; `update` names its next value.

    Attributes:
        initial: How it starts.
    """

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
    """A second name of the parameter at `path`.

    Attributes:
        path: Where it is, counted from the module that declares this slot or from one around it.
    """

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        """Made when a module is constructed."""
        super().__init__(TensorType(()))
        self.path = path

    def _key(self) -> tuple[Any, ...]:
        return (self.path,)

    def __repr__(self) -> str:
        return f"tied({self.path!r})"


class Declared:
    """A slot in a class body, before there is an owner.

    Attributes:
        what: The function that declared it.
        make: The slot for an owner: `make(value, where)`, where `where` is for messages.
    """

    def __init__(self, what: str, make: Callable[[Value, str], Slot | None]) -> None:
        """Made by `param`, `param_if`, `state` and `tied`."""
        self.what, self.make = what, make

    def __repr__(self) -> str:
        return f"<{self.what}>"


def _size(where: str, n: object) -> int:
    try:
        size = operator.index(cast("Any", n))
    except TypeError:
        size = 0
    if isinstance(n, bool) or not hasattr(n, "__index__"):
        raise DeclarationError(f"{where}: a size must be an int, got {n!r}", site=user_site())
    if size < 1:
        raise DeclarationError(f"{where}: a size must be at least 1, got {size}", site=user_site())
    return size


def _parameter(
    dims: tuple[Size, ...],
    initial: Init | Arg[Init] | None,
    fan_in: Size | None,
    *,
    decay: bool | Arg[bool] | None,
    trainable: bool | Arg[bool],
) -> Callable[[Value, str], Param]:
    def make(value: Value, where: str) -> Param:
        shape = tuple(_size(where, value(n)) for n in dims)
        first, fan = value(initial) or Normal(), value(fan_in)
        fan = None if fan is None else _size(f"{where}: fan_in", fan)
        if problem := misfit(first, shape, fan):
            raise DeclarationError(f"{where}: {problem}", site=user_site())
        return Param(shape, first, decay=value(decay), trainable=value(trainable), fan_in=fan)

    return make


def param(
    *dims: Size,
    initial: Init | Arg[Init] | None = None,
    decay: bool | Arg[bool] | None = None,
    trainable: bool | Arg[bool] = True,
    fan_in: Size | None = None,
    init: Literal[False] = False,
) -> Tensor:
    """Declare a parameter.

    Args:
        dims: Its sizes: ints, or arguments of the class; none for a scalar.
        initial: How it starts; `init.Normal()` when omitted.
        decay: Whether weight decay applies; None leaves it to the optimizer's filter, else to
            the initialiser (zeros and ones do not decay).
        trainable: False makes it a constant of training that can still be uploaded.
        fan_in: What `init.Kaiming` divides by; the first axis when omitted, which a
            parameter of more than two axes must not leave open.
        init: Reserved by `dataclass_transform`; the initial value is `initial`.

    Example:
        >>> @module
        ... class Scale:
        ...     size: Arg[int] = arg()
        ...     factor: Tensor = param(size, initial=init.Ones())
        >>> Scale(3).factor
        param[3]
    """
    make = _parameter(dims, initial, fan_in, decay=decay, trainable=trainable)
    return cast("Tensor", Declared("param", make))


def param_if(
    when: bool | Arg[bool],  # noqa: FBT001  (reads as a sentence)
    *dims: Size,
    initial: Init | Arg[Init] | None = None,
    decay: bool | Arg[bool] | None = None,
    trainable: bool | Arg[bool] = True,
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
    make = _parameter(dims, initial, fan_in, decay=decay, trainable=trainable)

    def optional(value: Value, where: str) -> Param | None:
        return make(value, where) if value(when) else None

    return cast("Tensor | None", Declared("param_if", optional))


def state(*dims: Size, initial: Init | Arg[Init] | None = None, init: Literal[False] = False) -> Tensor:
    """Declare a persistent tensor that is not trained: running statistics, counters.

    A training forward names its next value with `update(self.mean, value)`; an inference
    forward reads it. It is saved, loaded and reset with the parameters.

    Args:
        dims: As of `param`.
        initial: How it starts; zeros when omitted.
        init: Reserved.
    """

    def make(value: Value, where: str) -> State:
        shape = tuple(_size(where, value(n)) for n in dims)
        first = value(initial) or Zeros()
        if problem := misfit(first, shape, None):
            raise DeclarationError(f"{where}: {problem}", site=user_site())
        return State(shape, first)

    return cast("Tensor", Declared("state", make))


def tied(path: str, *, init: Literal[False] = False) -> Tensor:
    """Declare a second name for a parameter: one parameter, one gradient, the sum of both uses.

    Args:
        path: The dotted path of the parameter, counted from the module that declares this
            field; where there is none, from the module around that one, and so on.
        init: Reserved.

    Example:
        >>> @module
        ... class Tower:
        ...     first: Linear = Linear(4, 4)
        ...     again: Tensor = tied("first.w")
        >>> list(parameters(Tower()))
        ['first.w', 'first.b']
    """
    return cast("Tensor", Declared("tied", lambda value, where: Tied(path)))


class Repeated:
    """`n` modules of one kind, before there is an owner."""

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

    @overload
    def __get__(self, obj: None, owner: type, /) -> build[M, R]: ...
    @overload
    def __get__(self, obj: M, owner: type, /) -> R: ...
    def __get__(self, obj: Any, owner: type, /) -> Any:
        return self

    if TYPE_CHECKING:

        def __set__(self, obj: NoReturn, value: NoReturn, /) -> None: ...
