"""What a training run writes to a file and reads back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from tgdsl import lr
from tgdsl.checkpoint import Checkpoint
from tgdsl.errors import ParameterError
from tgdsl.lr import Schedule, resolve_lr
from tgdsl.optim.base import Optimizer
from tgdsl.optim.scaling import INITIAL

from .weights import Weights, check_arrays, pack


@attrs.define
class Progress:
    """Where a run stands.

    Attributes:
        step: Steps done.
        lr: The learning rate in use.
        lr_start: The step after which it was set; a schedule begins there.
    """

    step: int
    lr: Schedule
    lr_start: int = 0

    def rate(self, step: int) -> float:
        """The learning rate of a step."""
        return resolve_lr(self.lr, step - self.lr_start)


def collect(weights: Weights, optimizer: Optimizer | None, progress: Progress) -> Checkpoint:
    """Everything that training needs to go on."""
    moments = () if optimizer is None else optimizer.moments
    meta: dict[str, Any] = {
        "step": progress.step,
        "seed": weights.seed,
        "lr": lr.to_json(progress.lr),
        "lr_start": progress.lr_start,
        "optimizer": None if optimizer is None else optimizer.kind,
    }
    scaling = weights.scaling()
    if scaling is not None:
        meta["loss_scale"], meta["good_steps"] = scaling
    return Checkpoint(
        weights.download_params(),
        weights.download_state(),
        {m: weights.download(weights.params, m) for m in moments},
        meta,
    )


def restore(
    weights: Weights,
    optimizer: Optimizer | None,
    held: Checkpoint,
    *,
    partial: bool,
    with_optimizer: bool,
) -> tuple[Progress, int] | None:
    """Write a checkpoint to the device, all or nothing.

    Returns:
        Where the run stood and its seed; None when the optimizer starts anew.
    """
    weights.check_params(held.params, partial=partial)
    weights.check_state(held.state, partial=partial)
    resumed = _resumed(weights, optimizer, held) if with_optimizer else None
    weights.write(held.params)
    weights.write_state(held.state)
    if resumed is not None:
        for moment, arrays in held.moments.items():
            weights.store.write(moment, pack(weights.params, arrays))
        _resume_scaling(weights, held)
    return resumed


def _resumed(weights: Weights, optimizer: Optimizer | None, held: Checkpoint) -> tuple[Progress, int]:
    hint = "load_params(path, optimizer=False) reads the parameters alone"
    kind = None if optimizer is None else optimizer.kind
    if "optimizer" not in held.meta:
        raise ParameterError("the file holds no optimizer state", hint=hint)
    if held.meta["optimizer"] != kind:
        raise ParameterError(f"the file was saved with optimizer {held.meta['optimizer']}, not {kind}", hint=hint)
    wanted = set(() if optimizer is None else optimizer.moments)
    if held.moments.keys() != wanted:
        raise ParameterError(
            f"the file holds moments {sorted(held.moments)}, the optimizer needs {sorted(wanted)}",
            hint=hint,
        )
    shapes = {n: s.shape for n, s in weights.params.segments.items()}
    for moment, arrays in held.moments.items():
        check_arrays(f"moment {moment} of", shapes, arrays, partial=False)
    try:
        progress = Progress(int(held.meta["step"]), lr.from_json(held.meta["lr"]), int(held.meta["lr_start"]))
        return progress, int(held.meta["seed"])
    except (KeyError, TypeError, ValueError) as error:
        raise ParameterError(f"the file's training state is incomplete ({error})", hint=hint) from error


def _resume_scaling(weights: Weights, held: Checkpoint) -> None:
    """Go on with the loss scale of the file; one saved by a run in f32 has none, and it starts anew."""
    scale, good_steps = held.meta.get("loss_scale", INITIAL), held.meta.get("good_steps", 0)
    weights.set_scaling(float(scale), int(good_steps))


def check_grad_names(weights: Weights, names: Iterable[str]) -> None:
    """Refuse names of frozen and unknown parameters."""
    for name in names:
        if name in weights.frozen.segments:
            raise ParameterError(f"parameter {name!r} is frozen and has no gradient")
        if name not in weights.params.segments:
            raise ParameterError(f"unknown parameter {name!r}; trainable are: {', '.join(weights.params.segments)}")
