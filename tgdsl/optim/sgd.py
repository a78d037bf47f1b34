"""Stochastic gradient descent, with PyTorch's values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from tgdsl.errors import OptionError
from tgdsl.ir import Tensor
from tgdsl.lr import Schedule

from .base import Decay, DecayFilter, check_lr, number, with_l2


def _needs_momentum(self: SGD, attribute: attrs.Attribute[Any], value: object) -> None:
    if value and self.momentum == 0.0:
        raise OptionError("SGD: nesterov needs momentum > 0")


@attrs.frozen
class SGD:
    """Gradient descent with optional momentum.

    Attributes:
        lr: The learning rate, a number or a schedule of `tgdsl.lr`.
        momentum: How much of the last update is kept.
        nesterov: Look ahead by one momentum step.
        weight_decay: Strength of the L2 penalty, added to the gradient.
        decay_filter: Which parameters decay, by name, where their declaration does not say.
        clip_grad_norm: Scale all gradients down so that their joint norm is at most this.
    """

    lr: Schedule = attrs.field(validator=check_lr)
    momentum: float = number(0.0, 0.0, 1.0)
    nesterov: bool = attrs.field(default=False, kw_only=True, validator=_needs_momentum)
    weight_decay: float = number(0.0, 0.0)
    decay_filter: DecayFilter | None = attrs.field(default=None, kw_only=True)
    clip_grad_norm: float | None = number(None, 0.0, open_low=True)
    kind: Literal["sgd"] = attrs.field(default="sgd", init=False, repr=False)

    @property
    def moments(self) -> tuple[str, ...]:
        """The last update, when there is momentum."""
        return ("m",) if self.momentum else ()

    def scalars(self, step: int, lr: float) -> dict[str, float]:
        """The learning rate."""
        return {"lr": lr}

    def rule(
        self,
        p: Tensor,
        g: Tensor,
        moments: Mapping[str, Tensor],
        scalars: Mapping[str, Tensor],
        decay: Decay,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """One step over an arena."""
        g = with_l2(g, p, self.weight_decay, decay)
        if not self.momentum:
            return p - scalars["lr"] * g, {}
        m = self.momentum * moments["m"] + g
        direction = g + self.momentum * m if self.nesterov else m
        return p - scalars["lr"] * direction, {"m": m}
