"""The closed set of ways in which an op reaches WGSL.

An op states facts about itself as plain data; loops, bindings, workgroups and every
string longer than an expression belong to `schedule` and `codegen`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import attrs

from .index import Index
from .types import Shape

Combine: TypeAlias = Literal["sum", "prod", "max", "min"]


@attrs.frozen
class Pointwise:
    """One scalar WGSL expression.

    Attributes:
        wgsl: The expression; `{x}` stands for the operand of that name in the type
            rule, `{name}` for an attribute printed as a literal of the result's dtype,
            `{index}` for the row-major position as i32, `{key}` for the step's random
            key as vec2<u32>.
        helpers: WGSL functions that the expression calls, as source text.
        cost: Roughly how many arithmetic instructions it takes; a transcendental is 8.
            Cheap producers are recomputed in each consumer, dear ones are stored.
    """

    wgsl: str
    helpers: tuple[str, ...] = ()
    cost: int = 1


@attrs.frozen
class Reduction:
    """A fold over the attribute `axes` (a sorted tuple); the folded axes are dropped."""

    combine: Combine


@attrs.frozen
class Source:
    """Where a view reads: an index into its operand, and when that is inside.

    Attributes:
        index: One index per axis of the operand.
        inside: Conditions `lo <= expression < hi`; where one fails the view is `fill`.
        fill: The value outside.
    """

    index: tuple[Index, ...]
    inside: tuple[tuple[Index, int, int], ...] = ()
    fill: float = 0.0


@attrs.frozen
class View:
    """Only moves elements: `map(out_index, operand_shape, **attrs)` says where each comes from."""

    map: Callable[..., Source]


@attrs.frozen
class Gather:
    """`out[i..., rest...] = table[indices[i...], rest...]`: a view whose first index is data."""


@attrs.frozen
class Contraction:
    """`out[..., m, n] = sum_k a[..., m, k] * b[..., k, n]`, batch axes equal."""


@attrs.frozen
class Decompose:
    """A unit for users, the reference and the gradient; kernels are made of its parts.

    Attributes:
        fn: Takes the op's operands and attributes, calls other ops, returns the result.
        fused: The same from ops of lowering `Attention`, for targets that have kernels of these.
    """

    fn: Callable[..., Any]
    fused: Callable[..., Any] | None = None


Role: TypeAlias = Literal["out", "lse", "dq", "dkv"]


@attrs.frozen
class Attention:
    """A part of attention that a kernel computes tile by tile, without storing scores.

    Attributes:
        role: Which; `out` and `lse` of the same queries and keys are one kernel.
        fn: The same from other ops, for targets without such kernels.
    """

    role: Role
    fn: Callable[..., Any]


@attrs.frozen
class Leaf:
    """A value that is bound from outside: a parameter, an input, a state, a scalar."""

    kind: Literal["param", "input", "state", "scalar"]


Lowering: TypeAlias = Pointwise | Reduction | View | Gather | Contraction | Attention | Decompose | Leaf

ViewMap: TypeAlias = Callable[[tuple[Index, ...], Shape], Source]
