"""Reading the body of a `@module` class: which name is an argument, a slot, a child.

Everything that would be misunderstood in silence is refused here, when the class is made: a
plain default, a declaration without annotation, one object under two names.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import attrs

from tgdsl.errors import DeclarationError

from .arg import Arg
from .slots import Declared, Repeated, Slot, build

TEMPLATE = "_tg_template"
OVERRIDES = "_tg_overrides"
PATH = "_tg_path"
HIDDEN = frozenset((TEMPLATE, OVERRIDES, PATH))
"""Entries of an instance that are no fields."""


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


def clone(x: object, values: dict[str, Any]) -> Any:
    """An instance of the class of `x` with these fields, its constructor not run."""
    new = object.__new__(type(x))
    new.__dict__.update(values)
    return new


def rebuild(x: Any, parts: Iterator[Any]) -> Any:
    """A tuple, list or named tuple of the class of `x` from other elements."""
    return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)


def resolve(x: Any, owner: object, where: str, *, fresh: bool = True) -> Any:
    """`x` with symbols replaced by the values on `owner`.

    Args:
        x: A declaration, or anything that contains some.
        owner: A constructed module.
        where: The field, for messages.
        fresh: Make finished modules anew: one in a class body belongs to every instance.
    """
    if isinstance(x, Arg):
        return x.value(owner)
    if isinstance(x, Declared):
        return x.make(lambda v: resolve(v, owner, where), where)
    if isinstance(x, Repeated):
        n = resolve(x.n, owner, where)
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            raise DeclarationError(f"{where}: repeat needs an int of at least 0, got {n!r}")
        return tuple(resolve(x.child, owner, where) for _ in range(n))
    if isinstance(x, (tuple, list)):
        return rebuild(x, (resolve(i, owner, where, fresh=fresh) for i in x))
    if isinstance(x, dict):
        return {k: resolve(v, owner, where, fresh=fresh) for k, v in x.items()}
    if is_module(x):
        return _module(x, owner, where, fresh=fresh)
    return x


def _module(x: Any, owner: object, where: str, *, fresh: bool) -> Any:
    if TEMPLATE in x.__dict__:
        args, kwargs = x.__dict__[TEMPLATE]
        named = {k: resolve(v, owner, where) for k, v in kwargs.items()}
        return type(x)(*(resolve(a, owner, where) for a in args), **named)
    return _anew(x) if fresh else x


def _anew(x: Any) -> Any:
    if isinstance(x, Slot):
        return copy.copy(x)
    if is_module(x):
        return clone(x, {k: _anew(v) for k, v in x.__dict__.items()})
    if isinstance(x, (tuple, list)):
        return rebuild(x, (_anew(i) for i in x))
    return {k: _anew(v) for k, v in x.items()} if isinstance(x, dict) else x


def _late(name: str, declared: Any) -> Callable[[Any], Any]:
    def make(owner: Any) -> Any:
        overrides = owner.__dict__[OVERRIDES]
        where = f"{type(owner).__name__}.{name}"
        return overrides[name] if name in overrides else resolve(declared, owner, where)

    return make


class Body:
    """The fields of a class, sorted by what they are.

    Attributes:
        attributes: What attrs is given: arguments, then late factories for all else.
        args: The names of arguments.
        children: The names of child modules, which the constructor takes too.
        order: The names that the constructor takes by position.
        builds: The `@build` methods, those of base classes first.
    """

    def __init__(self, cls: type[Any]) -> None:
        """Read a class body; refuses what would be misunderstood."""
        base: Body | None = getattr(cls, "__tg_module__", None)
        self.name = cls.__name__
        self.attributes: dict[str, Any] = {}
        if base is None:
            # A field of attrs, so that attrs.evolve keeps children that were given; the first,
            # because the factories of later fields read it.
            self.attributes[OVERRIDES] = attrs.field(factory=dict, eq=False, repr=False, kw_only=True, alias=OVERRIDES)
        self.args: list[str] = list(base.args) if base else []
        self.children: list[str] = list(base.children) if base else []
        self.order: list[str] = list(base.order) if base else []
        self.builds: dict[str, build[Any, Any]] = dict(base.builds) if base else {}
        self._seen: dict[int, str] = {}
        annotations = inspect.get_annotations(cls)
        fields = {k: a for k, a in annotations.items() if not is_class_variable(a)}
        for key, value in cls.__dict__.items():
            if isinstance(value, build):
                self.builds[key] = value
            elif key not in annotations:
                self._unannotated(key, value)
        for key in fields:
            self._add(key, cls.__dict__.get(key, attrs.NOTHING))

    def _unannotated(self, key: str, value: object) -> None:
        if key in ("__init__", "__new__", "__post_init__", "__attrs_post_init__", "__setattr__"):
            raise DeclarationError(
                f"@module {self.name} defines {key}, which @module writes",
                hint="compute fields from arguments in @build methods",
            )
        argument = isinstance(value, Arg) and not value.computed
        if argument or isinstance(value, (Declared, Repeated)) or is_module(value):
            kind = {Arg: "Arg[...]", Declared: "Tensor", Repeated: "tuple[..., ...]"}
            shown = kind.get(type(value), type(value).__name__)
            raise DeclarationError(
                f"@module {self.name}: {key!r} has no annotation, so it is not a field.\n  write: {key}: {shown} = ..."
            )

    def _add(self, key: str, value: Any) -> None:
        if key.startswith("_"):
            raise DeclarationError(f"@module {self.name}: field {key!r} begins with an underscore, which is reserved")
        self._once(key, value)
        if isinstance(value, Arg):
            self.attributes[key] = attrs.field(default=value.default, kw_only=value.kw_only)
            self._constructed(self.args, key, positional=not value.kw_only)
        elif value is attrs.NOTHING:
            self.attributes[key] = attrs.field()
            self._constructed(self.args, key)
        elif isinstance(value, (Declared, Repeated, tuple)) or is_module(value):
            # init=False for attrs, so that attrs.evolve(m, arg=...) makes them anew.
            late = attrs.Factory(_late(key, value), takes_self=True)
            self.attributes[key] = attrs.field(init=False, default=late)
            if not isinstance(value, Declared):
                self._constructed(self.children, key)
        else:
            raise DeclarationError(
                f"@module {self.name}: field {key!r} has the plain default {value!r}, which later "
                "lines of the class body would read as a constant even when "
                f"{self.name}({key}=...) overrides it.\n"
                f"  write: {key}: Arg[{type(value).__name__}] = arg(default={value!r})"
            )

    def _constructed(self, names: list[str], key: str, *, positional: bool = True) -> None:
        if key not in names:
            names.append(key)
        if positional and key not in self.order:
            self.order.append(key)

    def _once(self, key: str, value: object) -> None:
        if isinstance(value, (tuple, list)):
            for i, part in enumerate(value):
                self._once(f"{key}.{i}", part)
            return
        if not (isinstance(value, (Arg, Declared, Repeated, Slot)) or is_module(value)):
            return
        first = self._seen.setdefault(id(value), key)
        if first == key:
            return
        raise DeclarationError(
            f"@module {self.name}: {first!r} and {key!r} are one object, but a parameter's identity is its path",
            hint=None
            if isinstance(value, Arg)
            else 'write the declaration twice, or share one parameter on purpose with tied("path")',
        )


def is_class_variable(annotation: object) -> bool:
    """Whether an annotation says that the name is no field."""
    text = annotation if isinstance(annotation, str) else repr(annotation)
    return text.split("[")[0].rsplit(".")[-1] == "ClassVar"
