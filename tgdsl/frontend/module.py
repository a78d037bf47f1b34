"""`@module`: an attrs class whose body is a template over its own arguments.

A model is a value: immutable, equal and hashed by its fields, printed by its arguments. It
holds no numbers, so one model compiles any number of times.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import attrs
from typing_extensions import dataclass_transform

from tgdsl.errors import DeclarationError, FrozenError
from tgdsl.ir import current_graph, is_tracing

from .slots import Arg, Declared, Repeated, Slot, arg, build, param, param_if, state, tied

M = TypeVar("M")
TEMPLATE = "_tg_template"
OVERRIDES = "_tg_overrides"
PATH = "_tg_path"
HIDDEN = frozenset((TEMPLATE, OVERRIDES, PATH))


def is_module(x: object) -> bool:
    """Whether `x` is an instance of a `@module` class."""
    return hasattr(type(x), "__tg_module__")


def symbolic(x: object) -> bool:
    """Whether `x` waits for the arguments of an owner."""
    if isinstance(x, (Arg, Repeated, Declared)):
        return True
    if isinstance(x, (tuple, list)):
        return any(symbolic(i) for i in x)
    return is_module(x) and TEMPLATE in x.__dict__


def resolve(x: Any, owner: object) -> Any:
    """`x` with symbols replaced by the values on `owner`; modules and slots are made anew."""
    if isinstance(x, Arg):
        return x.value(owner)
    if isinstance(x, Declared):
        return x.make(lambda v: resolve(v, owner))
    if isinstance(x, Repeated):
        n = resolve(x.n, owner)
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            raise DeclarationError(f"repeat: the count must be an int of at least 0, got {n!r}")
        return tuple(resolve(x.child, owner) for _ in range(n))
    if isinstance(x, (tuple, list)):
        return type(x)(resolve(i, owner) for i in x)
    if is_module(x):
        if TEMPLATE in x.__dict__:
            args, kwargs = x.__dict__[TEMPLATE]
            return type(x)(*(resolve(a, owner) for a in args), **{k: resolve(v, owner) for k, v in kwargs.items()})
        return clone(x, {k: resolve(v, owner) for k, v in x.__dict__.items()})
    return x


def clone(x: object, values: dict[str, Any]) -> Any:
    """An instance of the class of `x` with these fields, its constructor not run."""
    new = object.__new__(type(x))
    new.__dict__.update(values)
    return new


def _late(name: str, declared: Any) -> Callable[[Any], Any]:
    def make(owner: Any) -> Any:
        overrides: dict[str, Any] = owner.__dict__.get(OVERRIDES, {})
        return overrides[name] if name in overrides else resolve(declared, owner)

    return make


class _Fields:
    """The fields of one class body, sorted by what they are."""

    def __init__(self, cls: type[Any]) -> None:
        base = next((b for b in cls.__mro__[1:] if hasattr(b, "__tg_module__")), None)
        self.name = cls.__name__
        self.attributes: dict[str, Any] = {}
        self.args: list[str] = list(getattr(base, "__tg_args__", ()))
        self.children: list[str] = list(getattr(base, "__tg_children__", ()))
        self.order: list[str] = list(getattr(base, "__tg_order__", ()))
        self.seen: dict[int, str] = {}
        for field in cls.__dict__.get("__annotations__", {}):
            self._add(field, cls.__dict__.get(field, attrs.NOTHING))

    def _add(self, field: str, value: Any) -> None:
        if field.startswith("_"):
            raise DeclarationError(f"@module {self.name}: field {field!r} begins with an underscore, which is reserved")
        if isinstance(value, Arg):
            self.attributes[field] = attrs.field(default=value.default)
            self._positional(self.args, field)
        elif value is attrs.NOTHING:
            self.attributes[field] = attrs.field()
            self._positional(self.args, field)
        elif isinstance(value, (Declared, Slot)):
            self._once(field, value)
            self.attributes[field] = attrs.field(init=False, default=attrs.Factory(_late(field, value), takes_self=True))
        elif is_module(value) or isinstance(value, (Repeated, tuple)):
            # init=False for attrs, so that attrs.evolve(m, arg=...) rebuilds children.
            self._once(field, value)
            self.attributes[field] = attrs.field(init=False, default=attrs.Factory(_late(field, value), takes_self=True))
            self._positional(self.children, field)
        else:
            raise DeclarationError(
                f"@module {self.name}: field {field!r} has the plain default {value!r}, which later lines of the "
                f"class body would read as a constant even when {self.name}({field}=...) overrides it.\n"
                f"  write: {field}: Arg[{type(value).__name__}] = arg(default={value!r})"
            )

    def _positional(self, names: list[str], field: str) -> None:
        if field not in names:
            names.append(field)
        if field not in self.order:
            self.order.append(field)

    def _once(self, field: str, value: object) -> None:
        first = self.seen.setdefault(id(value), field)
        if first != field and not isinstance(value, tuple):
            raise DeclarationError(
                f"@module {self.name}: {first!r} and {field!r} are one object, but a parameter's identity is its path",
                hint=f"write a second declaration, or {field}: Tensor = tied(\"{first}...\") to share on purpose",
            )


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
    fields = _Fields(cls)
    kind: Any = cls
    builds = [v for v in cls.__dict__.values() if isinstance(v, build)]
    kind.__tg_builds__ = (*getattr(cls, "__tg_builds__", ()), *builds)
    kind.__tg_args__, kind.__tg_children__ = tuple(fields.args), tuple(fields.children)
    kind.__tg_order__, kind.__tg_module__ = tuple(fields.order), True
    kind.__attrs_post_init__ = _run_builds
    if "__call__" in cls.__dict__:
        kind.__call__ = _scoped(cls.__dict__["__call__"])
    out: Any = attrs.define(cls, these=fields.attributes, frozen=True, slots=False, repr=False)
    out.__setattr__ = _refuse_assignment
    out.__delattr__ = _refuse_deletion
    out.__repr__ = _show
    out.__init__ = _constructor(out.__init__, fields)
    return out  # type: ignore[no-any-return]


def _run_builds(self: Any) -> None:
    for made in self.__tg_builds__:
        self.__dict__[made.name] = made.fn(self)


def _refuse_assignment(self: Any, name: str, value: Any) -> NoReturn:
    raise FrozenError(f"{type(self).__name__} is immutable; build a new one: attrs.evolve(m, {name}=...)")


def _refuse_deletion(self: Any, name: str) -> NoReturn:
    raise FrozenError(f"{type(self).__name__} is immutable; {name!r} cannot be deleted")


def _show(self: Any) -> str:
    if TEMPLATE in self.__dict__:
        args, kwargs = self.__dict__[TEMPLATE]
        shown = [*map(repr, args), *(f"{k}={v!r}" for k, v in kwargs.items())]
    else:
        names = [*self.__tg_args__, *self.__dict__.get(OVERRIDES, ())]
        shown = [f"{a}={getattr(self, a)!r}" for a in names]
    return f"{type(self).__name__}({', '.join(shown)})"


def _scoped(call: Callable[..., Any]) -> Callable[..., Any]:
    """Calls of a bound module run in the scope of its path, which salts stochastic ops."""

    @functools.wraps(call)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        path = self.__dict__.get(PATH)
        if not path or not is_tracing():
            return call(self, *args, **kwargs)
        with current_graph("call").scope(path):
            return call(self, *args, **kwargs)

    return wrapped


def _constructor(generated: Callable[..., None], fields: _Fields) -> Callable[..., None]:
    """The constructor: templates wait for their owner, children can be given in place of the declared ones."""

    @functools.wraps(generated)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        if any(symbolic(x) for x in (*args, *kwargs.values())):
            self.__dict__[TEMPLATE] = (args, kwargs)
            return
        overrides = {c: kwargs.pop(c) for c in fields.children if c in kwargs}
        if len(args) > len(fields.args) and fields.children:
            named = dict(zip(fields.order, args, strict=False))
            overrides |= {c: named.pop(c) for c in fields.children if c in named}
            args, kwargs = (), named | kwargs
        if overrides:
            self.__dict__[OVERRIDES] = overrides
        generated(self, *args, **kwargs)

    return __init__
