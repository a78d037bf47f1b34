"""Checks of a declared forward that raise when they fail."""

from __future__ import annotations

from typing import ParamSpec, TypeVar

import numpy as np

from tgdsl.errors import GradientError
from tgdsl.frontend import Forward
from tgdsl.verify import compare_gradients

M = TypeVar("M")
B = TypeVar("B")
P = ParamSpec("P")


def check_grads(
    forward: Forward[M, B, P, np.float32], model: M, batch: B, *, rtol: float = 1e-6, atol: float = 1e-8, seed: int = 0
) -> None:
    """Compare the gradient of a loss with central differences, for every parameter.

    Args:
        forward: A `@forward` that returns a scalar.
        model: Its model.
        batch: A value of its inputs class.
        rtol: Relative tolerance.
        atol: Absolute tolerance.
        seed: What noise and directions are drawn from.

    Raises:
        GradientError: If a gradient disagrees; names the parameter, the element and both values.
    """
    found = compare_gradients(forward, model, batch, rtol=rtol, atol=atol, seed=seed)
    wrong = [f for f in found if not f.tolerances <= 1.0]
    if wrong:
        shown = "\n".join(f"  {f}" for f in wrong)
        raise GradientError(
            f"check_grads: {forward.__name__}: {len(wrong)} of {len(found)} parameters disagree\n{shown}",
            site=forward.where,
        )
