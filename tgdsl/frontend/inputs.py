"""`@inputs`: the typed declaration of what a forward reads.

Each field is a descriptor that reads as a tensor and is constructed from an array, so that
the keyword arguments of `step` have names and array dtypes that checkers know.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, overload

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeIs, dataclass_transform

from tgdsl.dtypes import NUMPY, DType
from tgdsl.errors import DeclarationError, DimError, FrozenError, InputError
from tgdsl.ir import AnyTensor, Graph, IntTensor, Sized, Tensor, TensorType, user_site
from tgdsl.ops.leaves import declare

from .body import is_class_variable

X = TypeVar("X", bound=AnyTensor[Any])
V = TypeVar("V")
T = TypeVar("T")
TENSORS, ARRAYS, DIMS = "_tg_tensors", "_tg_arrays", "_tg_dims"


class Input(Generic[X, V]):
    """The declaration of one input: dtype, dims, and for integers their bound."""

    name: str = "?"

    def __init__(self, kind: type[X], dims: tuple[int | str, ...], below: int | None = None) -> None:
        """Made by `f32` and `i32`."""
        self.kind, self.dims, self.below = kind, dims, below
        problem = next((p for p in map(_dim_problem, dims) if p), None)
        if below is not None and not is_count(below):
            problem = f"below must be an int of at least 1, got {below!r}"
        if problem:
            raise DeclarationError(f"{self!r}: {problem}", site=user_site())

    @property
    def dtype(self) -> DType:
        """The dtype."""
        return self.kind.dtype

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, obj: None, owner: type, /) -> Input[X, V]: ...
    @overload
    def __get__(self, obj: object, owner: type, /) -> X: ...
    def __get__(self, obj: object | None, owner: type, /) -> Any:
        return self if obj is None else _tensors(obj)[self.name]

    if TYPE_CHECKING:

        def __set__(self, obj: object, value: V, /) -> None: ...

    def __repr__(self) -> str:
        bound = [] if self.below is None else [f"below={self.below}"]
        return f"{self.kind.dtype}({', '.join([*map(repr, self.dims), *bound])})"


def is_count(n: object) -> bool:
    """Whether `n` is an int of at least 1."""
    return isinstance(n, (int, np.integer)) and not isinstance(n, bool) and int(n) >= 1


def _dim_problem(dim: object) -> str | None:
    if isinstance(dim, str):
        return None if dim.isidentifier() else f"{dim!r} is not a name for a dim"
    if isinstance(dim, bool) or not isinstance(dim, int):
        return f"a dim is an int or a name, got {dim!r}"
    return None if dim >= 1 else f"a size must be at least 1, got {dim}"


F32: TypeAlias = Input[Tensor, NDArray[np.float32]]
I32: TypeAlias = Input[IntTensor, NDArray[np.int32]]


def f32(*dims: int | str) -> F32:
    """Declare an f32 input; a string names a dim."""
    return Input(Tensor, dims)


def i32(*dims: int | str, below: int | None = None) -> I32:
    """Declare an i32 input, and that its values are in `[0, below)`, which is checked."""
    return Input(IntTensor, dims, below)


class HeldTensor(Tensor):
    """An f32 input outside of a trace: its array."""

    __slots__ = ("_array",)

    def __init__(self, array: NDArray[np.float32]) -> None:
        """Hold an array."""
        super().__init__(TensorType(array.shape))
        self._array = array

    def numpy(self) -> NDArray[np.float32]:
        """The array."""
        return self._array


class HeldIntTensor(IntTensor):
    """An i32 input outside of a trace: its array."""

    __slots__ = ("_array",)

    def __init__(self, array: NDArray[np.int32]) -> None:
        """Hold an array."""
        super().__init__(TensorType(array.shape, "i32"))
        self._array = array

    def numpy(self) -> NDArray[np.int32]:
        """The array."""
        return self._array


def is_array(x: object) -> TypeIs[NDArray[Any]]:
    """Whether `x` is a NumPy array."""
    return isinstance(x, np.ndarray)


def is_inputs(cls: object) -> bool:
    """Whether `cls` is an `@inputs` class."""
    return hasattr(cls, "__tg_inputs__")


def specs(cls: Any) -> dict[str, Input[Any, Any]]:
    """The declarations of an `@inputs` class by name."""
    out: dict[str, Input[Any, Any]] = cls.__tg_inputs__
    return out


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(f32, i32))
def inputs(cls: type[T], /) -> type[T]:
    """Declare what a forward reads: a class of `f32` and `i32` fields.

    Example:
        >>> @inputs
        ... class Batch:
        ...     x: F32 = f32("B", 1)
        ...     y: I32 = i32("B", below=10)
        >>> Batch(x=np.zeros((2, 1), np.float32), y=np.array([3, 12], np.int32))
        Traceback (most recent call last):
        tgdsl.errors.InputError: Batch.y: expected i32('B', below=10), got values from 3 to 12
    """
    declared: dict[str, Input[Any, Any]] = dict(getattr(cls, "__tg_inputs__", {}))
    annotations = inspect.get_annotations(cls)
    for field, annotation in annotations.items():
        value = cls.__dict__.get(field)
        if not isinstance(value, Input):
            if is_class_variable(annotation):
                continue
            raise DeclarationError(
                f"@inputs {cls.__name__}: field {field!r} declares no shape.\n"
                f'  write: {field}: F32 = f32("B", ...)   or   {field}: I32 = i32("B", ...)'
            )
        if field.startswith("_"):
            raise DeclarationError(
                f"@inputs {cls.__name__}: field {field!r} begins with an underscore, which is reserved"
            )
        declared[field] = value
    for field, value in cls.__dict__.items():
        if isinstance(value, Input) and field not in annotations:
            raise DeclarationError(
                f"@inputs {cls.__name__}: {field!r} has no annotation, so it is not a field.\n"
                f"  write: {field}: {value.dtype.upper()} = {value!r}"
            )
    if not declared:
        raise DeclarationError(f"@inputs {cls.__name__}: declares no input")
    kind: Any = cls
    kind.__tg_inputs__ = declared
    kind.__init__ = _init
    kind.__repr__ = _show
    kind.__setattr__ = kind.__delattr__ = _refuse
    return cls


def _init(self: Any, **arrays: Any) -> None:
    name, declared = type(self).__name__, specs(type(self))
    for key in arrays:
        if key not in declared:
            raise InputError(f"{name}: unknown input {key!r}; declared: {', '.join(declared)}")
    for key, spec in declared.items():
        if key not in arrays:
            raise InputError(f"{name}: missing input {key!r}, declared as {spec!r}")
    dims: Sizes = {}
    for key, spec in declared.items():
        _check(name, key, spec, arrays[key], dims)
    self.__dict__[ARRAYS] = dict(arrays)
    self.__dict__[DIMS] = {d: n for d, (n, _) in dims.items()}


def _tensors(self: Any) -> dict[str, Any]:
    """The fields as tensors; a step looks only at the arrays, so they are made when somebody asks."""
    found: dict[str, Any] | None = self.__dict__.get(TENSORS)
    if found is None:
        declared = specs(type(self))
        found = {
            k: (HeldTensor if declared[k].dtype == "f32" else HeldIntTensor)(a) for k, a in batch_arrays(self).items()
        }
        self.__dict__[TENSORS] = found
    return found


Sizes: TypeAlias = dict[str, tuple[int, tuple[str, int]]]
"""Per named dim, its size, and the input and axis that say so."""


def _check(name: str, key: str, spec: Input[Any, Any], array: object, dims: Sizes) -> None:
    numpy_dtype = NUMPY[spec.dtype]
    if not is_array(array) or array.dtype != numpy_dtype:
        got = type(array).__name__
        if is_array(array):
            got = f"{array.dtype} array of shape {list(array.shape)}"
        hint = f"np.asarray({key}, dtype=np.{numpy_dtype.__name__})"
        raise _refused(name, key, spec, f", got {got}", hint=hint)
    shape = array.shape
    if len(shape) != len(spec.dims):
        raise _refused(name, key, spec, f" (rank {len(spec.dims)}), got shape {list(shape)}")
    if not array.size:
        raise _refused(name, key, spec, f", got shape {list(shape)}; zero-size axes are not supported")
    for axis, (want, n) in enumerate(zip(spec.dims, shape, strict=True)):
        if isinstance(want, str):
            m, there = dims.setdefault(want, (n, (key, axis)))
            if m != n:
                first, at = there
                raise InputError(f"{name}: dim {want!r} is {m} in {first} axis {at} and {n} in {key} axis {axis}")
        elif want != n:
            raise _refused(name, key, spec, f", got shape {list(shape)}; axis {axis} must be {want}, is {n}")
    if spec.below is not None:
        _check_bound(name, key, spec, array)


def _check_bound(name: str, key: str, spec: Input[Any, Any], array: NDArray[Any]) -> None:
    lo, hi = int(array.min()), int(array.max())
    if lo < 0 or hi >= int(spec.below or 0):
        raise _refused(name, key, spec, f", got values from {lo} to {hi}")


def _refused(name: str, key: str, spec: Input[Any, Any], got: str, hint: str | None = None) -> InputError:
    return InputError(f"{name}.{key}: expected {spec!r}{got}", hint=hint)


def _show(self: Any) -> str:
    shown = (f"{k}={list(a.shape)}" for k, a in self.__dict__.get(ARRAYS, {}).items())
    return f"{type(self).__name__}({', '.join(shown)})"


def _refuse(self: Any, name: str, value: object = None) -> None:
    raise FrozenError(f"{type(self).__name__} is immutable; build a new one")


def batch_arrays(batch: Any) -> dict[str, NDArray[Any]]:
    """The arrays of an `@inputs` value by name."""
    out: dict[str, NDArray[Any]] = batch.__dict__[ARRAYS]
    return out


def batch_dims(batch: Any) -> dict[str, int]:
    """The sizes of the named dims of an `@inputs` value."""
    out: dict[str, int] = batch.__dict__[DIMS]
    return out


def batch_size(batch: Any) -> int:
    """The size of the first axis of the first input; 1 if that is a scalar."""
    first = next(iter(batch_arrays(batch).values()), None)
    return int(first.shape[0]) if first is not None and first.ndim else 1


def dims_of(cls: Any) -> list[str]:
    """The names of the dims of an `@inputs` class, in the order of declaration."""
    return list(dict.fromkeys(d for s in specs(cls).values() for d in s.dims if isinstance(d, str)))


def name_of(cls: Any) -> str:
    """The name of an `@inputs` class."""
    return str(cls.__name__)


def bind_inputs(cls: Any, dims: Mapping[str, int], graph: Graph) -> Any:
    """A value of an `@inputs` class whose fields are tensors of the trace."""
    need = dims_of(cls)
    if extra := [d for d in dims if d not in need]:
        raise DimError(f"{cls.__name__} has no dim {extra[0]!r}; its dims are: {', '.join(need) or 'none'}")
    if missing := [d for d in need if d not in dims]:
        raise DimError(f"{cls.__name__}: dim {missing[0]!r} is not bound; pass dims={{{missing[0]!r}: ...}}")
    for d, n in dims.items():
        if not is_count(n):
            raise DimError(f"{cls.__name__}: dim {d!r} must be an int of at least 1, got {n!r}")
    below = graph.facts.setdefault("below", {})
    tensors: dict[str, Any] = {}
    for key, spec in specs(cls).items():
        shape = tuple(Sized(int(dims[d]), d) if isinstance(d, str) else d for d in spec.dims)
        tensors[key] = declare(graph, "input", key, TensorType(shape, spec.dtype))
        if spec.below is not None:
            below[key] = spec.below
    self = object.__new__(cls)
    self.__dict__[TENSORS] = tensors
    return self
