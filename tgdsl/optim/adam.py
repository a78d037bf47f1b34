"""Adam and AdamW, with PyTorch's values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import attrs

from tgdsl.ir import Tensor
from tgdsl.lr import Schedule
from tgdsl.ops import sqrt

from .base import Decay, DecayFilter, check_lr, number, shrunk, with_l2

_SMALLEST_EPS = 1e-30
# An eps of zero would turn the zero padding between parameters into 0/0.


def adam_scalars(step: int, lr: float, b1: float, b2: float, *, eps_after: bool) -> dict[str, float]:
    """The bias corrections, in f64."""
    root = math.sqrt(1.0 - b2**step)
    size = lr / (1.0 - b1**step)
    if eps_after:
        return {"step_size": size, "inverse_root": 1.0 / root}
    return {"step_size": size * root}


def adam_rule(
    p: Tensor,
    g: Tensor,
    moments: Mapping[str, Tensor],
    scalars: Mapping[str, Tensor],
    *,
    b1: float,
    b2: float,
    eps: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """One step of Adam; without the scalar `inverse_root`, eps is added before the bias correction."""
    m = b1 * moments["m"] + (1.0 - b1) * g
    v = b2 * moments["v"] + (1.0 - b2) * g * g
    root = sqrt(v) * scalars["inverse_root"] if "inverse_root" in scalars else sqrt(v)
    return p - scalars["step_size"] * (m / (root + eps)), {"m": m, "v": v}


@attrs.frozen
class Adam:
    """Adam as in PyTorch: `weight_decay` is added to the gradient (see `AdamW` for the other way).

    Attributes:
        lr: The learning rate, a number or a schedule of `tgdsl.lr`.
        b1: Decay of the running mean of gradients.
        b2: Decay of the running mean of their squares.
        eps: Added to the root of the second moment.
        weight_decay: Strength of the L2 penalty.
        decay_filter: Which parameters decay, by name, where their declaration does not say.
        clip_grad_norm: Scale all gradients down so that their joint norm is at most this.
        eps_after_correction: Add `eps` after the bias correction, as PyTorch does;
            tensorgrad adds it before, which makes it larger in early steps.
    """

    lr: Schedule = attrs.field(validator=check_lr)
    b1: float = number(0.9, 0.0, 1.0)
    b2: float = number(0.999, 0.0, 1.0)
    eps: float = number(1e-8, _SMALLEST_EPS)
    weight_decay: float = number(0.0, 0.0)
    decay_filter: DecayFilter | None = attrs.field(default=None, kw_only=True)
    clip_grad_norm: float | None = number(None, 0.0, open_low=True)
    eps_after_correction: bool = attrs.field(default=True, kw_only=True, repr=False)
    kind: Literal["adam"] = attrs.field(default="adam", init=False, repr=False)

    @property
    def moments(self) -> tuple[str, ...]:
        """The running means of the gradients and of their squares."""
        return ("m", "v")

    def scalars(self, step: int, lr: float) -> dict[str, float]:
        """The step size and the bias correction."""
        return adam_scalars(step, lr, self.b1, self.b2, eps_after=self.eps_after_correction)

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
        return adam_rule(p, g, moments, scalars, b1=self.b1, b2=self.b2, eps=self.eps)


@attrs.frozen
class AdamW:
    """Adam with decoupled weight decay, as PyTorch's AdamW; attributes as in `Adam`.

    Parameters that start as zeros or ones (biases, gains) do not decay unless they are
    declared with `decay=True`; PyTorch decays every parameter it is given.
    """

    lr: Schedule = attrs.field(validator=check_lr)
    b1: float = number(0.9, 0.0, 1.0)
    b2: float = number(0.999, 0.0, 1.0)
    eps: float = number(1e-8, _SMALLEST_EPS)
    weight_decay: float = number(0.01, 0.0)
    decay_filter: DecayFilter | None = attrs.field(default=None, kw_only=True)
    clip_grad_norm: float | None = number(None, 0.0, open_low=True)
    eps_after_correction: bool = attrs.field(default=True, kw_only=True, repr=False)
    kind: Literal["adamw"] = attrs.field(default="adamw", init=False, repr=False)

    @property
    def moments(self) -> tuple[str, ...]:
        """The running means of the gradients and of their squares."""
        return ("m", "v")

    def scalars(self, step: int, lr: float) -> dict[str, float]:
        """The step size, the bias correction, and by how much parameters shrink."""
        out = adam_scalars(step, lr, self.b1, self.b2, eps_after=self.eps_after_correction)
        return {**out, "decay_rate": lr * self.weight_decay}

    def rule(
        self,
        p: Tensor,
        g: Tensor,
        moments: Mapping[str, Tensor],
        scalars: Mapping[str, Tensor],
        decay: Decay,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """One step over an arena."""
        p = shrunk(p, scalars["decay_rate"], decay)
        return adam_rule(p, g, moments, scalars, b1=self.b1, b2=self.b2, eps=self.eps)
