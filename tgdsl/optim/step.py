"""One training step as two graphs, and where parameters lie in their arenas.

The loss graph computes the results and every gradient; the update graph is the
optimizer, one element-wise rule over flat arenas whatever the number of parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs

from tgdsl.ir import AnyTensor, Graph, Shape, Tensor

BLOCK: Final = 64
"""Elements (256 bytes): each slice of an arena starts at a multiple, so it can be bound alone."""


@attrs.frozen
class Segment:
    """A parameter's place in its arena, in elements."""

    offset: int
    shape: Shape

    @property
    def size(self) -> int:
        """The number of elements, without padding."""
        n = 1
        for d in self.shape:
            n *= int(d)
        return n


@attrs.frozen
class ArenaLayout:
    """Where each name lies in a flat arena; padding between segments is zero."""

    segments: Mapping[str, Segment]
    size: int

    @classmethod
    def of(cls, shapes: Iterable[tuple[str, Shape]]) -> ArenaLayout:
        """Lay out the shapes in order."""
        segments: dict[str, Segment] = {}
        offset = 0
        for name, shape in shapes:
            segments[name] = Segment(offset, tuple(int(d) for d in shape))
            offset += -(-segments[name].size // BLOCK) * BLOCK
        return cls(segments, offset)


EMPTY: Final = ArenaLayout({}, 0)


@attrs.frozen
class StepGraphs:
    """What a backend compiles.

    Attributes:
        graph: The traced forward, with gradients appended when it is trained.
        results: What a step returns: `loss` or `output`, and `capture:NAME`.
        params: The trainable parameters, in the arena `params`; leaves of kind `param`.
        frozen: The others, in the arena `frozen`; also leaves of kind `param`.
        state: Persistent tensors of modules, in the arena `state`; leaves of kind `state`,
            next values in `graph.updates`.
        grads: The gradient of each trainable parameter, to be written to the arena `grads`
            at the same offsets as `params`; empty for inference.
        update: The optimizer. Leaves of kind `state` are arenas as `[size / 64, 64]`
            (`params`, `grads`, moments) or tables per block `[size / 64, 1]`; `updates`
            replaces arenas in place. None when nothing is trained.
    """

    graph: Graph
    results: Mapping[str, AnyTensor[Any]]
    params: ArenaLayout = EMPTY
    frozen: ArenaLayout = EMPTY
    state: ArenaLayout = EMPTY
    grads: Mapping[str, Tensor] = attrs.field(factory=dict)
    update: Graph | None = None
