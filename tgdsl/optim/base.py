"""What an optimizer is: frozen data with one symbolic, element-wise rule.

The rule sees whole arenas, not parameters, so its cost in kernels does not depend on
the number of parameters. Numbers that change from step to step are computed on the host
in f64 and enter as scalars; everything else is a constant of the rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

import attrs

from tgdsl.errors import OptionError
from tgdsl.ir import Tensor
from tgdsl.lr import Schedule, check_schedule

DecayFilter: TypeAlias = Callable[[str], bool]
Decay: TypeAlias = Tensor | bool
"""Which elements decay: all, none, or a mask of ones and zeros that broadcasts to the arena."""


class Optimizer(Protocol):
    """An update rule; `Adam`, `AdamW` and `SGD` are the ones provided."""

    @property
    def kind(self) -> str:
        """The name in saved files."""
        ...

    @property
    def lr(self) -> Schedule:
        """The learning rate."""
        ...

    @property
    def weight_decay(self) -> float:
        """Zero when nothing decays."""
        ...

    @property
    def decay_filter(self) -> DecayFilter | None:
        """Which parameters decay, for those whose declaration does not say."""
        ...

    @property
    def clip_grad_norm(self) -> float | None:
        """The largest norm of all gradients together."""
        ...

    @property
    def moments(self) -> tuple[str, ...]:
        """The names of the arenas that it keeps from step to step, zero at first."""
        ...

    def scalars(self, step: int, lr: float) -> dict[str, float]:
        """What changes from step to step; `step` counts from 1."""
        ...

    def rule(
        self,
        p: Tensor,
        g: Tensor,
        moments: Mapping[str, Tensor],
        scalars: Mapping[str, Tensor],
        decay: Decay,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """New parameters and moments; must map zeros to zeros, as the padding is zero."""
        ...


def decays(optimizer: Optimizer, name: str, *, declared: bool | None, default: bool) -> bool:
    """Whether a parameter decays: its declaration wins, then the filter, then its initialiser's default."""
    if optimizer.weight_decay == 0.0:
        return False
    if declared is not None:
        return declared
    if optimizer.decay_filter is not None:
        return bool(optimizer.decay_filter(name))
    return default


def shrunk(p: Tensor, rate: Tensor, decay: Decay) -> Tensor:
    """`p * (1 - rate)` where it decays."""
    if decay is False:
        return p
    return p * (1.0 - rate) if decay is True else p * (1.0 - rate * decay)


def with_l2(g: Tensor, p: Tensor, rate: float, decay: Decay) -> Tensor:
    """`g + rate * p` where it decays: weight decay as part of the gradient."""
    if decay is False:
        return g
    return g + rate * p if decay is True else g + (rate * decay) * p


def check_lr(self: object, _: attrs.Attribute[Any], value: object) -> None:
    """Refuse what is no schedule when the optimizer is made."""
    check_schedule(value, f"{type(self).__name__}: lr")


def number(default: float | None, low: float, high: float = math.inf, *, open_low: bool = False) -> Any:
    """A keyword-only field in `[low, high)`, or `(low, high)`; None stays None."""

    def check(self: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value is None and default is None:
            return
        ok = isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value < high
        if not ok or (open_low and value == low):
            left = "(" if open_low else "["
            raise OptionError(f"{type(self).__name__}: {attribute.name} must be in {left}{low}, {high}), got {value!r}")

    return attrs.field(default=default, kw_only=True, validator=check)
