"""Losses. Reductions default to the mean, as in PyTorch; shapes of targets are never broadcast."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np

from tgdsl.errors import DTypeError, InputError, ShapeError
from tgdsl.ir import (
    AnyTensor,
    Array,
    Cotangents,
    Decompose,
    Draw,
    IntTensor,
    Sample,
    Tensor,
    TensorType,
    op,
    operand_error,
    user_site,
)

from .arguments import shown, tensors
from .compare import equal, where
from .creation import arange
from .indexing import bounded
from .movement import expand_dims
from .power import square
from .reduce import mean
from .reduce import sum as sum_
from .softmax import log_softmax, softmax

ReductionName = Literal["mean", "sum", "none"]


def check_reduction(what: str, reduction: ReductionName) -> None:
    """Refuse an unknown reduction before anything is added to the graph."""
    if reduction not in get_args(ReductionName):
        raise ShapeError(f"{what}: reduction must be 'mean', 'sum' or 'none', got {shown(reduction)}", site=user_site())


def _reduced(x: Tensor, reduction: ReductionName) -> Tensor:
    """Apply a reduction by name."""
    return mean(x) if reduction == "mean" else sum_(x) if reduction == "sum" else x


def _check_targets(what: str, scores: AnyTensor[Any], targets: AnyTensor[Any]) -> None:
    tensors(what, logits=scores, targets=targets)
    if scores.dtype != "f32" or targets.dtype != "i32":
        raise operand_error(DTypeError, f"{what}: expected f32 scores and i32 targets", logits=scores, targets=targets)
    if scores.ndim == 0 or scores.shape[:-1] != targets.shape:
        raise operand_error(
            ShapeError,
            f"{what}: targets must have the shape of logits without the last axis",
            logits=scores,
            targets=targets,
        )


def _hit(scores: Tensor, targets: IntTensor) -> Any:
    classes = int(scores.shape[-1])
    return equal(expand_dims(bounded(targets, below=classes), -1), arange(classes))


def _pick_parts(scores: Tensor, targets: IntTensor) -> Tensor:
    return sum_(where(_hit(scores, targets), scores, 0.0), -1)


def _pick_ref(scores: Array, targets: Array) -> Array:
    n = scores.shape[-1]
    if np.any((targets < 0) | (targets >= n)):
        bad = targets[(targets < 0) | (targets >= n)].flat[0]
        raise InputError(f"cross_entropy: target {int(bad)} is out of range for {n} classes")
    return np.take_along_axis(scores, targets[..., None], -1)[..., 0]


def _pick_sample(draw: Draw) -> Sample:
    classes = draw.size("classes", 1, 5)
    shape = draw.shape("shape", 0, 2)
    return Sample.of(draw.array("scores", (*shape, classes)), draw.integers("targets", shape, 0, classes - 1))


@op(name="pick", ref=_pick_ref, lower=Decompose(_pick_parts), sample=_pick_sample, analytic=True)
def _pick(scores: Tensor, targets: IntTensor) -> TensorType:
    """The score of the target in each row."""
    return TensorType(targets.shape)


@_pick.vjp
def _(ct: Tensor, y: Tensor, scores: Tensor, targets: IntTensor) -> Cotangents:
    return where(_hit(scores, targets), expand_dims(ct, -1), 0.0), None


def _ce_parts(logits: Tensor, targets: IntTensor) -> Tensor:
    return -_pick(log_softmax(logits), targets)


def _ce_ref(logits: Array, targets: Array) -> Array:
    shifted = logits - np.max(np.real(logits), axis=-1, keepdims=True)
    total = np.log(np.sum(np.exp(shifted), axis=-1))
    out: Array = total - _pick_ref(shifted, targets)
    return out


def _ce_sample(draw: Draw) -> Sample:
    classes = draw.size("classes", 1, 5)
    shape = draw.shape("shape", 0, 2)
    logits = draw.array("logits", (*shape, classes), -4.0, 4.0)
    return Sample.of(logits, draw.integers("targets", shape, 0, classes - 1))


@op(
    name="cross_entropy",
    ref=_ce_ref,
    lower=Decompose(_ce_parts),
    sample=_ce_sample,
    hard=(0.0, 1e4, -1e4),
    analytic=True,
)
def _cross_entropy(logits: Tensor, targets: IntTensor) -> TensorType:
    """Negative log-likelihood of the target in each row of logits."""
    return TensorType(targets.shape)


@_cross_entropy.vjp
def _(ct: Tensor, y: Tensor, logits: Tensor, targets: IntTensor) -> Cotangents:
    p = softmax(logits)
    return expand_dims(ct, -1) * where(_hit(logits, targets), p - 1.0, p), None


def cross_entropy(logits: Tensor, targets: IntTensor, *, reduction: ReductionName = "mean") -> Tensor:
    """Negative log-likelihood of integer targets under the softmax of logits.

    Args:
        logits: `[..., C]`, unnormalised.
        targets: `[...]`, classes in `[0, C)`; declare the input with `below=C`.
        reduction: `"mean"` over all positions, `"sum"`, or `"none"`.

    Shape:
        `()`, or that of `targets` with `"none"`.

    Dtype:
        f32 and i32, to f32.

    Gradient:
        `(softmax(logits) - one_hot(targets)) * ct`.

    Raises:
        ShapeError: If `targets.shape != logits.shape[:-1]`, or the reduction is unknown.

    Source:
        `torch.nn.functional.cross_entropy`.

    Example:
        >>> compute(cross_entropy, [[0.0, 0.0]], [1])
        array(0.69314718)
    """
    check_reduction("cross_entropy", reduction)
    _check_targets("cross_entropy", logits, targets)
    return _reduced(_cross_entropy(logits, targets), reduction)


def cross_entropy_last(logits: Tensor, targets: IntTensor) -> Tensor:
    """`cross_entropy` without reduction: one loss per position."""
    return cross_entropy(logits, targets, reduction="none")


def nll_loss(log_probs: Tensor, targets: IntTensor, *, reduction: ReductionName = "mean") -> Tensor:
    """Negative log-likelihood of integer targets, from log-probabilities.

    Args:
        log_probs: `[..., C]`, from `log_softmax`.
        targets: `[...]`, classes in `[0, C)`.
        reduction: `"mean"` over all positions, `"sum"`, or `"none"`.

    Shape:
        `()`, or that of `targets` with `"none"`.

    Dtype:
        f32 and i32, to f32.

    Gradient:
        `-ct` at the targets, 0 elsewhere.

    Raises:
        ShapeError: If `targets.shape != log_probs.shape[:-1]`, or the reduction is unknown.

    Source:
        `torch.nn.functional.nll_loss`.

    Example:
        >>> compute(nll_loss, [[-1.0, -2.0]], [1])
        array(2.)
    """
    check_reduction("nll_loss", reduction)
    _check_targets("nll_loss", log_probs, targets)
    return _reduced(-_pick(log_probs, targets), reduction)


def mse_loss(prediction: Tensor, target: Tensor, *, reduction: ReductionName = "mean") -> Tensor:
    """Squared difference.

    Args:
        prediction: Any tensor.
        target: One of the same shape.
        reduction: `"mean"` over all elements, `"sum"`, or `"none"`.

    Shape:
        `()`, or that of `prediction` with `"none"`.

    Dtype:
        f32.

    Gradient:
        `2 * (prediction - target) * ct`, and its negative.

    Raises:
        ShapeError: If the shapes differ: nothing is broadcast.

    Source:
        `torch.nn.functional.mse_loss`.

    Example:
        >>> compute(mse_loss, [1.0, 2.0], [1.0, 4.0])
        array(2.)
    """
    tensors("mse_loss", prediction=prediction, target=target)
    if prediction.dtype != "f32" or target.dtype != "f32":
        raise operand_error(DTypeError, "mse_loss: expected f32", prediction=prediction, target=target)
    check_reduction("mse_loss", reduction)
    if prediction.shape != target.shape:
        raise operand_error(ShapeError, "mse_loss: shapes differ", prediction=prediction, target=target)
    return _reduced(square(prediction - target), reduction)
