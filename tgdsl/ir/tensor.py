"""The tensors that a forward function works on: symbolic, typed by dtype.

A tensor *is* one value of the graph. Operators look their op up in the registry by
name, so that this package needs no import of `tgdsl.ops` and gradient rules can be
written with operators.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import EllipsisType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NoReturn, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from tgdsl.dtypes import DType
from tgdsl.errors import TraceError

from .site import user_site
from .types import Shape, TensorType

if TYPE_CHECKING:
    from .graph import Graph, Node

S = TypeVar("S", bound=np.generic, covariant=True)
Scalar: TypeAlias = int | float
Item: TypeAlias = int | slice | EllipsisType | None
Key: TypeAlias = Item | tuple[Item, ...]


def _call(name: str, *args: Any, **attributes: Any) -> Any:
    from .op import REGISTRY

    return REGISTRY[name](*args, **attributes)


def _infix(name: str, a: object, b: object) -> Any:
    # NotImplemented lets Python try the other operand and then name both types. An array gets an error of
    # ours instead: NumPy's would be about concatenation.
    known = (AnyTensor, int, float, np.integer, np.floating, np.ndarray)
    if not isinstance(a, known) or not isinstance(b, known):
        return NotImplemented
    return _call(name, a, b)


class AnyTensor(Generic[S]):
    """A symbolic array: shape and dtype are known, the values are not."""

    dtype: ClassVar[DType]
    __array_ufunc__ = None  # NumPy defers to our reflected operators
    __slots__ = ("_graph", "_node", "_type")

    def __init__(self, type_: TensorType, graph: Graph | None = None, node: Node | None = None) -> None:
        """Make a handle; tensors come from ops, users do not call this."""
        self._type = type_
        self._graph = graph
        self._node = node

    @property
    def type(self) -> TensorType:
        """Shape and dtype."""
        return self._type

    @property
    def shape(self) -> Shape:
        """The static shape; a named dim prints as `B=4` and equals 4."""
        return self._type.shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._type.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self._type.shape)

    @property
    def graph(self) -> Graph | None:
        """The graph that this value belongs to; None for a slot outside of any trace."""
        return self._graph

    @property
    def node(self) -> Node:
        """The node that computes this value."""
        if self._node is None:
            raise TraceError(
                f"{self!r} does not belong to this trace.",
                hint="use the model and the inputs that the forward receives, not values from outside",
                site=user_site(),
            )
        return self._node

    @property
    def id(self) -> int:
        """The position of its node in the graph."""
        return self.node.id

    def numpy(self) -> NDArray[S]:
        """The values; only inputs held outside of a trace have any."""
        raise TraceError(
            "a traced tensor has no values",
            hint="mark it with capture(name, t) and read it from the step's result",
            site=user_site(),
        )

    if not TYPE_CHECKING:  # to the checkers a tensor must not look like what NumPy takes

        def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
            # Without it NumPy makes an array of objects by indexing, and goes on.
            raise TraceError(
                f"{self!r} cannot become a NumPy array: it has no values while it is traced",
                hint="use the ops of tgdsl.ops; read values from the result of step or run",
                site=user_site(),
            )

    def __bool__(self) -> NoReturn:
        raise TraceError(
            "a tensor has no truth value while it is traced; use where(cond, a, b) instead of if / and / or",
            site=user_site(),
        )

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a scalar tensor")
        return int(self.shape[0])

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._type}>"

    def __float__(self) -> NoReturn:
        self._no_value("float")

    def __int__(self) -> NoReturn:
        self._no_value("int")

    def _no_value(self, what: str) -> NoReturn:
        raise TraceError(
            f"{what}() of a tensor: it has no value while it is traced",
            hint="keep it a tensor; read values from the result of step or run",
            site=user_site(),
        )


class Tensor(AnyTensor[np.float32]):
    """An f32 tensor: activations, parameters, gradients."""

    dtype: ClassVar[DType] = "f32"
    __slots__ = ()

    def __add__(self, other: Tensor | Scalar, /) -> Tensor:
        return cast("Tensor", _infix("add", self, other))

    def __radd__(self, other: Scalar, /) -> Tensor:
        return cast("Tensor", _infix("add", other, self))

    def __sub__(self, other: Tensor | Scalar, /) -> Tensor:
        return cast("Tensor", _infix("sub", self, other))

    def __rsub__(self, other: Scalar, /) -> Tensor:
        return cast("Tensor", _infix("sub", other, self))

    def __mul__(self, other: Tensor | Scalar, /) -> Tensor:
        return cast("Tensor", _infix("mul", self, other))

    def __rmul__(self, other: Scalar, /) -> Tensor:
        return cast("Tensor", _infix("mul", other, self))

    def __truediv__(self, other: Tensor | Scalar, /) -> Tensor:
        return cast("Tensor", _infix("div", self, other))

    def __rtruediv__(self, other: Scalar, /) -> Tensor:
        return cast("Tensor", _infix("div", other, self))

    def __pow__(self, exponent: Scalar, /) -> Tensor:
        return cast("Tensor", _method("power", self, exponent))

    def __neg__(self) -> Tensor:
        return cast("Tensor", _call("neg", self))

    def __abs__(self) -> Tensor:
        return cast("Tensor", _call("abs", self))

    def __matmul__(self, other: Tensor, /) -> Tensor:
        known: object = other
        if not isinstance(known, (AnyTensor, np.ndarray)):
            return NotImplemented
        return cast("Tensor", _method("matmul", self, other))

    if not TYPE_CHECKING:  # an array is refused with a hint, and to the checkers it never fits

        def __rmatmul__(self, other: object, /) -> Tensor:
            return _method("matmul", other, self) if isinstance(other, np.ndarray) else NotImplemented

    def __lt__(self, other: Tensor | Scalar, /) -> BoolTensor:
        return cast("BoolTensor", _infix("less", self, other))

    def __gt__(self, other: Tensor | Scalar, /) -> BoolTensor:
        return cast("BoolTensor", _infix("greater", self, other))

    def __le__(self, other: Tensor | Scalar, /) -> BoolTensor:
        return cast("BoolTensor", _infix("less_equal", self, other))

    def __ge__(self, other: Tensor | Scalar, /) -> BoolTensor:
        return cast("BoolTensor", _infix("greater_equal", self, other))

    def __getitem__(self, key: Key, /) -> Tensor:
        return cast("Tensor", _getitem(self, key))

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    @property
    def mT(self) -> Tensor:  # noqa: N802  (the array API's spelling)
        """The last two axes swapped."""
        return cast("Tensor", _transposed(self))


class IntTensor(AnyTensor[np.int32]):
    """An i32 tensor: token ids, labels, argmax results."""

    dtype: ClassVar[DType] = "i32"
    __slots__ = ()

    def __add__(self, other: IntTensor | int, /) -> IntTensor:
        return cast("IntTensor", _infix("add", self, other))

    def __radd__(self, other: int, /) -> IntTensor:
        return cast("IntTensor", _infix("add", other, self))

    def __sub__(self, other: IntTensor | int, /) -> IntTensor:
        return cast("IntTensor", _infix("sub", self, other))

    def __rsub__(self, other: int, /) -> IntTensor:
        return cast("IntTensor", _infix("sub", other, self))

    def __mul__(self, other: IntTensor | int, /) -> IntTensor:
        return cast("IntTensor", _infix("mul", self, other))

    def __rmul__(self, other: int, /) -> IntTensor:
        return cast("IntTensor", _infix("mul", other, self))

    def __floordiv__(self, other: IntTensor | int, /) -> IntTensor:
        return cast("IntTensor", _infix("floor_divide", self, other))

    def __mod__(self, other: IntTensor | int, /) -> IntTensor:
        return cast("IntTensor", _infix("remainder", self, other))

    def __neg__(self) -> IntTensor:
        return cast("IntTensor", _infix("sub", 0, self))

    def __lt__(self, other: IntTensor | int, /) -> BoolTensor:
        return cast("BoolTensor", _infix("less", self, other))

    def __gt__(self, other: IntTensor | int, /) -> BoolTensor:
        return cast("BoolTensor", _infix("greater", self, other))

    def __le__(self, other: IntTensor | int, /) -> BoolTensor:
        return cast("BoolTensor", _infix("less_equal", self, other))

    def __ge__(self, other: IntTensor | int, /) -> BoolTensor:
        return cast("BoolTensor", _infix("greater_equal", self, other))

    def __getitem__(self, key: Key, /) -> IntTensor:
        return cast("IntTensor", _getitem(self, key))

    def __iter__(self) -> Iterator[IntTensor]:
        return (self[i] for i in range(len(self)))

    @property
    def mT(self) -> IntTensor:  # noqa: N802
        """The last two axes swapped."""
        return cast("IntTensor", _transposed(self))


class BoolTensor(AnyTensor[np.bool_]):
    """A bool tensor: the result of a comparison."""

    dtype: ClassVar[DType] = "bool"
    __slots__ = ()

    def __and__(self, other: BoolTensor, /) -> BoolTensor:
        return cast("BoolTensor", _infix("logical_and", self, other))

    def __or__(self, other: BoolTensor, /) -> BoolTensor:
        return cast("BoolTensor", _infix("logical_or", self, other))

    def __invert__(self) -> BoolTensor:
        return cast("BoolTensor", _call("logical_not", self))

    def __getitem__(self, key: Key, /) -> BoolTensor:
        return cast("BoolTensor", _getitem(self, key))

    @property
    def mT(self) -> BoolTensor:  # noqa: N802
        """The last two axes swapped."""
        return cast("BoolTensor", _transposed(self))


CLASSES: dict[DType, type[AnyTensor[Any]]] = {"f32": Tensor, "i32": IntTensor, "bool": BoolTensor}
"""The tensor class of each dtype."""


def _method(name: str, *args: Any) -> Any:
    from .registry import method

    return method(name)(*args)


def _getitem(x: AnyTensor[Any], key: Key) -> Any:
    return _method("getitem", x, key)


def _transposed(x: AnyTensor[Any]) -> Any:
    return _method("matrix_transpose", x)
