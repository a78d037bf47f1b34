"""The one place which says what an op definition is, and the registry of all ops."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, ParamSpec, Protocol, TypeAlias, TypeVar, overload

import attrs
import numpy.typing as npt

from tgdsl.errors import GradientError, OpDefinitionError

from .graph import apply
from .lowering import Lowering
from .tensor import AnyTensor, Tensor
from .types import TensorType

P = ParamSpec("P")
T = TypeVar("T", bound=AnyTensor[Any])
Array: TypeAlias = npt.NDArray[Any]
Cotangents: TypeAlias = tuple[Tensor | None, ...]
VjpRule: TypeAlias = Callable[..., Cotangents]


class Draw(Protocol):
    """Source of sample data: Hypothesis in tests, a seeded generator in benchmarks and docs."""

    def size(self, label: str, lo: int = 1, hi: int = 4) -> int:
        """One axis size."""
        ...

    def shape(self, label: str, min_dims: int = 0, max_dims: int = 3) -> tuple[int, ...]:
        """One whole shape."""
        ...

    def array(
        self,
        label: str,
        shape: tuple[int, ...],
        lo: float = -2.0,
        hi: float = 2.0,
        *,
        away: tuple[float, ...] = (),
    ) -> Array:
        """Floats in `[lo, hi]`, at least 1e-2 away from each value of `away` (kinks)."""
        ...

    def distinct(self, label: str, shape: tuple[int, ...]) -> Array:
        """Floats no two of which are closer than 1e-2, for ops with ties."""
        ...

    def integers(self, label: str, shape: tuple[int, ...], lo: int, hi: int) -> Array:
        """Int32 values in `[lo, hi]`."""
        ...

    def booleans(self, label: str, shape: tuple[int, ...]) -> Array:
        """Booleans."""
        ...

    def choice(self, label: str, options: tuple[Any, ...]) -> Any:
        """One of the options."""
        ...


class Sample(NamedTuple):
    """One legal application: the operands as arrays, and the attributes."""

    inputs: tuple[Array, ...]
    attrs: dict[str, Any]

    @classmethod
    def of(cls, *inputs: Array, **attributes: Any) -> Sample:
        """Spell a sample as the call that it stands for."""
        return cls(inputs, attributes)


Sampler: TypeAlias = Callable[[Draw], Sample]


@attrs.define(eq=False, repr=False)
class Op(Generic[P, T]):
    """Everything that tgdsl knows of one operation.

    Calling it type-checks one application and adds a node to the graph being traced.
    Operands are positional, attributes are keyword-only and hashable.

    Attributes:
        name: The name in the registry and in printed graphs.
        rule: The type rule: operands and attributes to the type of the result.
        ref: The meaning, in NumPy; works in f32 and f64, and complex where `analytic`.
        lower: How it reaches WGSL.
        sample: Draws one legal application, away from kinks.
        operands: Names of the tensor parameters of the rule; `()` with `variadic`.
        variadic: Whether the rule takes any number of operands (`*xs`).
        defaults: Attributes with a default value.
        hard: Values which only the comparison of WGSL with the reference uses.
        analytic: Whether `ref` accepts complex arrays (complex-step gradients).
        stochastic: Whether it reads the step's random key; such an op carries a `salt`.
        vjp_rule: `(ct, y, *operands, **attrs)` to one cotangent per operand.
        no_gradient: Why there is no gradient, when that is so.
    """

    name: str
    rule: Callable[..., Any]
    ref: Callable[..., Array]
    lower: Lowering
    sample: Sampler
    operands: tuple[str, ...]
    variadic: bool
    defaults: dict[str, Any]
    hard: tuple[float, ...] = ()
    analytic: bool = False
    stochastic: bool = False
    vjp_rule: VjpRule | None = None
    no_gradient: str | None = None

    def __repr__(self) -> str:
        return f"Op({self.name})"

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        """The docstring of the type rule."""
        return self.rule.__doc__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Type-check one application and add it to the graph being traced."""
        given, named = list[Any](args), dict[str, Any](kwargs)
        # Operands may be given by name; left among the attributes they would not be inputs of the node.
        for name in self.operands[len(given) :]:
            if name not in named:
                break
            given.append(named.pop(name))
        return apply(self, tuple(given), {**self.defaults, **named})  # type: ignore[return-value]

    def infer(self, inputs: tuple[AnyTensor[Any], ...], attributes: dict[str, Any]) -> TensorType:
        """Run the type rule."""
        result = self.rule(*inputs, **attributes)
        if not isinstance(result, TensorType):
            raise OpDefinitionError(f"{self.name}: the type rule returned {result!r}")
        return result

    def vjp(self, rule: VjpRule) -> VjpRule:
        """Attach the reverse rule `(ct, y, *operands, **attrs) -> cotangents`, written with ops."""
        self.vjp_rule = rule
        return rule

    def no_vjp(self, reason: str) -> None:
        """State that no gradient flows, and why."""
        self.no_gradient = reason

    def cotangents(
        self, ct: Tensor, y: AnyTensor[Any], inputs: tuple[AnyTensor[Any], ...], attributes: dict[str, Any]
    ) -> Cotangents:
        """Apply the reverse rule; a missing one is an error, never silence."""
        if self.no_gradient is not None:
            return (None,) * len(inputs)
        if self.vjp_rule is None:
            raise GradientError(f"{self.name}: has no gradient rule")
        out = self.vjp_rule(ct, y, *inputs, **attributes)
        if len(out) != len(inputs):
            raise OpDefinitionError(f"{self.name}: the vjp returned {len(out)} cotangents for {len(inputs)} operands")
        return out


REGISTRY: dict[str, Op[..., Any]] = {}
"""Every op by name."""


@overload
def op(
    *,
    ref: Callable[..., Array],
    lower: Lowering,
    sample: Sampler,
    name: str | None = None,
    hard: tuple[float, ...] = (),
    analytic: bool = False,
    stochastic: bool = False,
) -> Callable[[Callable[P, TensorType]], Op[P, Tensor]]: ...
@overload
def op(
    *,
    ref: Callable[..., Array],
    lower: Lowering,
    sample: Sampler,
    returns: type[T],
    name: str | None = None,
    hard: tuple[float, ...] = (),
    analytic: bool = False,
    stochastic: bool = False,
) -> Callable[[Callable[P, TensorType]], Op[P, T]]: ...
def op(
    *,
    ref: Callable[..., Array],
    lower: Lowering,
    sample: Sampler,
    returns: type[Any] = Tensor,
    name: str | None = None,
    hard: tuple[float, ...] = (),
    analytic: bool = False,
    stochastic: bool = False,
) -> Callable[[Callable[P, TensorType]], Op[P, Any]]:
    """Define an op from its type rule and register it.

    Args:
        ref: Its meaning in NumPy.
        lower: How it reaches WGSL.
        sample: Draws one legal application.
        returns: The static class of the result.
        name: The registry name, when it is not the rule's name without underscores.
        hard: See `Op`.
        analytic: See `Op`.
        stochastic: See `Op`.
    """

    def define(rule: Callable[P, TensorType]) -> Op[P, Any]:
        key = name or rule.__name__.strip("_")
        if key in REGISTRY:
            raise OpDefinitionError(f"op {key!r} is already defined")
        parameters = inspect.signature(rule).parameters.values()
        variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        operands = tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD or p.kind is p.POSITIONAL_ONLY)
        defaults = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is not p.empty}
        new: Op[P, Any] = Op(key, rule, ref, lower, sample, operands, variadic, defaults, hard, analytic, stochastic)
        REGISTRY[key] = new
        return new

    return define
