"""Dynamic loss scaling: gradients small enough to vanish in f16 are computed larger, as much as they allow.

The rule is that of PyTorch's `torch.amp.GradScaler` (https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling,
after Micikevicius et al., "Mixed Precision Training", arXiv:1710.03740, section 3.2): the loss is
multiplied by a scale, the update divides the gradients by it; a step whose gradients are
not finite is skipped and halves the scale, and 2000 good steps in a row double it. The scale
is state of the device, so steps that are queued already obey the verdict of those before.

Unlike PyTorch's, the scale stays within bounds: below 1 it would no longer protect anything.
"""

from __future__ import annotations

from typing import Final

import attrs
import numpy as np
from numpy.typing import NDArray

from tgdsl.ir import BoolTensor, Graph, Tensor, TensorType
from tgdsl.ops import logical_and, logical_not, maximum, minimum, where
from tgdsl.ops.leaves import declare

from .step import BLOCK

SCALE: Final = "loss-scale"
"""The arena of one block that holds the scale of the next step. No path of a user's state has a hyphen."""

GOOD_STEPS: Final = "good-steps"
"""The arena of one block that counts the steps since the scale last changed."""

UNSCALE: Final = "unscale"
"""The arena of one block by which the gradients of the last step are multiplied to undo its scale."""

INITIAL: Final = 65536.0
FACTOR: Final = 2.0
INTERVAL: Final = 2000
SMALLEST: Final = 1.0
LARGEST: Final = 2.0**40


@attrs.frozen
class Scaling:
    """The loss scale in an update graph; every tensor holds one number, repeated over a block."""

    scale: Tensor
    good_steps: Tensor

    @classmethod
    def declared(cls, graph: Graph) -> Scaling:
        """Add the leaves to an update graph."""
        scale, good_steps, _ = (declare(graph, "state", name, _block()) for name in (SCALE, GOOD_STEPS, UNSCALE))
        return cls(scale, good_steps)

    def updates(self, finite: BoolTensor) -> dict[str, Tensor]:
        """The next values, given whether the gradients were finite."""
        # Arenas are replaced in place, so whoever reads one comes before what replaces it.
        unscale = 1.0 / self.scale
        grows = self.good_steps >= INTERVAL - 1.0
        grown = where(grows, minimum(self.scale * FACTOR, LARGEST), self.scale)
        scale = where(finite, grown, maximum(self.scale / FACTOR, SMALLEST))
        count = where(grows, 0.0, self.good_steps + 1.0)
        return {UNSCALE: unscale, SCALE: scale, GOOD_STEPS: where(finite, count, 0.0)}

    def hopeless(self, finite: BoolTensor) -> BoolTensor:
        """Whether a step was not finite though a smaller scale is not to be had."""
        return logical_and(logical_not(finite), self.scale <= SMALLEST)


def loss_scale(graph: Graph) -> Tensor:
    """The scale as a number in a loss graph, whose gradients begin with it."""
    leaf: Tensor = declare(graph, "state", SCALE, _block())
    return leaf[0, 0]


def initial_scaling(scale: float = INITIAL, good_steps: int = 0) -> dict[str, NDArray[np.float32]]:
    """What the arenas hold before the first step."""
    numbers = {SCALE: scale, GOOD_STEPS: float(good_steps), UNSCALE: 1.0 / scale}
    return {name: np.full(BLOCK, number, np.float32) for name, number in numbers.items()}


def _block() -> TensorType:
    return TensorType((1, BLOCK))
