"""The graph of an optimizer: its rule over arenas, the clip norm, and the finite check."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs
import numpy as np
from numpy.typing import NDArray

from tgdsl.ir import BoolTensor, Graph, Tensor, TensorType, tracing
from tgdsl.ops import is_finite, logical_and, logical_not, sqrt, where
from tgdsl.ops import sum as sum_
from tgdsl.ops.leaves import declare

from .base import Decay, Optimizer
from .scaling import Scaling, initial_scaling
from .step import BLOCK, ArenaLayout

HEALTH: Final = "health"
"""The arena of one block that holds the number of the first step that was not finite, or 0."""


@attrs.frozen
class Update:
    """An optimizer made for one layout.

    Attributes:
        graph: As `StepGraphs.update`.
        tables: One number per block, to be written once to the arenas of these names.
        restarts: What the arenas of these names hold whenever training starts anew.
        moments: Arenas as large as `params`, zero at first.
        scalars: The names of the scalars that it reads.
    """

    graph: Graph
    tables: Mapping[str, NDArray[np.float32]]
    moments: tuple[str, ...]
    scalars: tuple[str, ...]
    restarts: Mapping[str, NDArray[np.float32]] = attrs.field(factory=dict)


def build_update(
    optimizer: Optimizer,
    layout: ArenaLayout,
    decay: Mapping[str, bool],
    *,
    check_finite: bool = False,
    scaled: bool = False,
) -> Update:
    """The update of every parameter of `layout`.

    Args:
        optimizer: Its rule is traced once, over whole arenas.
        layout: Where the parameters lie.
        decay: Per parameter, whether it decays.
        check_finite: Keep everything as it is from the first step whose gradients are not finite,
            at any loss scale if they are scaled.
        scaled: The gradients are those of the loss times a scale, see `scaling`.
    """
    graph = Graph()
    blocks = layout.size // BLOCK
    arena = TensorType((blocks, BLOCK))
    with tracing(graph):
        p: Tensor = declare(graph, "state", "params", arena)
        g: Tensor = declare(graph, "state", "grads", arena)
        moments: dict[str, Tensor] = {m: declare(graph, "state", m, arena) for m in optimizer.moments}
        mask, tables = _decay(graph, layout, decay)
        names = list(optimizer.scalars(1, 0.0))
        scalars: dict[str, Tensor] = {n: declare(graph, "scalar", n, TensorType(())) for n in names}
        scaling = Scaling.declared(graph) if scaled else None
        if scaling is not None:
            g = g / scaling.scale
        guarded = check_finite or scaled
        squares = sum_(g * g) if optimizer.clip_grad_norm is not None or guarded else None
        if scaled and squares is not None:
            # The rule must wait for the verdict, or moments that may not be kept would be stored meanwhile.
            g = where(is_finite(squares), g, 0.0)
        if optimizer.clip_grad_norm is not None and squares is not None:
            g = g * clip_scale(squares, optimizer.clip_grad_norm)
        new_p, new_moments = optimizer.rule(p, g, moments, scalars, mask)
        updates = {"params": new_p, **new_moments}
        if guarded and squares is not None:
            old = {"params": p, **moments}
            updates = _guarded(graph, is_finite(squares), old, updates, scaling, check_finite=check_finite)
        names += ["step"] if check_finite else []
        graph.updates.update(updates)
    return Update(graph, tables, optimizer.moments, tuple(names), initial_scaling() if scaled else {})


def clip_scale(squares: Tensor, limit: float) -> Tensor:
    """By what gradients with this sum of squares are multiplied; at most 1."""
    scale = limit / (sqrt(squares) + 1e-6)
    return where(scale < 1.0, scale, 1.0)


def _decay(
    graph: Graph, layout: ArenaLayout, decay: Mapping[str, bool]
) -> tuple[Decay, dict[str, NDArray[np.float32]]]:
    # Padding is zero and shrinks to zero, so only what all parameters say matters.
    flags = {decay[name] for name in layout.segments}
    if len(flags) < 2:
        return flags == {True}, {}
    table = np.zeros(layout.size // BLOCK, np.float32)
    for name, segment in layout.segments.items():
        first = segment.offset // BLOCK
        table[first : first - (-segment.size // BLOCK)] = decay[name]
    mask: Tensor = declare(graph, "state", "decay", TensorType((len(table), 1)))
    return mask, {"decay": table}


def _guarded(
    graph: Graph,
    finite: BoolTensor,
    old: Mapping[str, Tensor],
    new: Mapping[str, Tensor],
    scaling: Scaling | None,
    *,
    check_finite: bool,
) -> dict[str, Tensor]:
    # Steps queued behind a bad one must be no-ops too, so the verdict lives on the device.
    good, verdict = finite, dict[str, Tensor]()
    if check_finite:
        health: Tensor = declare(graph, "state", HEALTH, TensorType((1, BLOCK)))
        step: Tensor = declare(graph, "scalar", "step", TensorType(()))
        healthy = health < 0.5
        fine = finite if scaling is None else logical_not(scaling.hopeless(finite))
        verdict = {HEALTH: where(healthy, where(fine, 0.0, step), health)}
        good = logical_and(finite, healthy[:, :1])
    kept = {name: where(good, new[name], old[name]) for name in new}
    return {**kept, **verdict, **({} if scaling is None else scaling.updates(finite))}
