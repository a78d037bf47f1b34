"""Losses by hand, their extremes, and targets that do not fit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tgdsl.ops as ops
from tests.ops.tools import grad, parts
from tgdsl.errors import DTypeError, InputError, ShapeError
from tgdsl.reference.evaluate import compute

LOG3 = math.log(3.0)
LOGITS = [[0.0, LOG3], [0.0, LOG3]]  # softmax 1/4, 3/4 in each row
LOSSES = [-math.log(0.25), -math.log(0.75)]


def ints(*values: Any) -> Any:
    return np.array(values, np.int32)


@pytest.mark.parametrize(
    ("reduction", "want", "slope"),
    [
        ("none", LOSSES, [[-0.75, 0.75], [0.25, -0.25]]),
        ("sum", sum(LOSSES), [[-0.75, 0.75], [0.25, -0.25]]),
        ("mean", sum(LOSSES) / 2, [[-0.375, 0.375], [0.125, -0.125]]),
    ],
)
def test_cross_entropy(reduction: Any, want: Any, slope: Any) -> None:
    def fn(x: Any, t: Any) -> Any:
        return ops.cross_entropy(x, t, reduction=reduction)

    np.testing.assert_allclose(compute(fn, LOGITS, ints(0, 1)), want, rtol=1e-12)
    np.testing.assert_allclose(grad(fn, LOGITS, ints(0, 1)), slope, rtol=1e-12)


def test_reduction_is_the_mean_unless_told() -> None:
    assert compute(ops.cross_entropy, LOGITS, ints(0, 1)) == pytest.approx(sum(LOSSES) / 2)
    np.testing.assert_allclose(compute(ops.cross_entropy_last, LOGITS, ints(0, 1)), LOSSES)


def test_mean_is_over_all_positions() -> None:
    logits, targets = np.zeros((2, 3, 5)), np.zeros((2, 3), np.int32)
    assert compute(ops.cross_entropy, logits, targets) == pytest.approx(math.log(5.0))
    np.testing.assert_allclose(grad(ops.cross_entropy, logits, targets)[0, 0], [-0.8 / 6, *[0.2 / 6] * 4])


def test_one_row_of_logits() -> None:
    assert compute(ops.cross_entropy, [0.0, LOG3], np.int32(0)) == pytest.approx(math.log(4.0))


def test_cross_entropy_is_nll_of_log_softmax() -> None:
    x, t = np.random.default_rng(0).standard_normal((4, 7)) * 5, ints(0, 6, 3, 3)
    ct = [1.0, -2.0, 0.5, 3.0]

    def parts_of(x: Any, t: Any) -> Any:
        return ops.nll_loss(ops.log_softmax(x), t, reduction="none")

    np.testing.assert_allclose(compute(parts_of, x, t), compute(ops.cross_entropy_last, x, t), rtol=1e-12)
    got = grad(ops.cross_entropy_last, x, t, ct=ct)
    np.testing.assert_allclose(got, grad(parts_of, x, t, ct=ct), atol=1e-12)
    np.testing.assert_allclose(got.sum(-1), 0.0, atol=1e-12)


@pytest.mark.parametrize("target", [0, 1])
def test_certain_logits_give_finite_losses(target: int) -> None:
    logits = [[1e4, -1e4]]
    assert compute(ops.cross_entropy, logits, ints(target)) == (2e4 if target else 0.0)
    np.testing.assert_array_equal(grad(ops.cross_entropy, logits, ints(target)), [[1, -1] if target else [0, 0]])


def test_masked_class_gets_no_gradient() -> None:
    """A logit of `-inf` is a class that cannot occur."""
    assert compute(ops.cross_entropy, [[0.0, 0.0, -np.inf]], ints(1)) == pytest.approx(math.log(2.0))
    np.testing.assert_array_equal(grad(ops.cross_entropy, [[0.0, 0.0, -np.inf]], ints(1)), [[0.5, -0.5, 0.0]])


@pytest.mark.parametrize("bad", [-1, 2])
@pytest.mark.parametrize("fn", [ops.cross_entropy, ops.nll_loss])
def test_target_out_of_range_raises(fn: Any, bad: int) -> None:
    with pytest.raises(InputError, match=f"{bad} is out of range for"):
        compute(fn, LOGITS, ints(0, bad))


def test_nll_by_hand() -> None:
    x = [[-1.0, -2.0], [-3.0, -4.0]]
    np.testing.assert_array_equal(compute(lambda x, t: ops.nll_loss(x, t, reduction="none"), x, ints(1, 0)), [2.0, 3.0])
    np.testing.assert_array_equal(grad(ops.nll_loss, x, ints(1, 0)), [[0.0, -0.5], [-0.5, 0.0]])


def test_mse_by_hand() -> None:
    a, b = [1.0, 2.0, 3.0], [1.0, 4.0, 0.0]
    assert compute(ops.mse_loss, a, b) == pytest.approx(13.0 / 3.0)
    assert compute(lambda p, t: ops.mse_loss(p, t, reduction="sum"), a, b) == 13.0
    np.testing.assert_array_equal(compute(lambda p, t: ops.mse_loss(p, t, reduction="none"), a, b), [0.0, 4.0, 9.0])
    np.testing.assert_allclose(grad(ops.mse_loss, a, b), [0.0, -4.0 / 3.0, 2.0])
    np.testing.assert_allclose(grad(ops.mse_loss, a, b, wrt=1), [0.0, 4.0 / 3.0, -2.0])


@pytest.mark.parametrize("targets", [np.zeros((4, 1), np.int32), np.zeros(3, np.int32), np.int32(0)])
@pytest.mark.parametrize("fn", [ops.cross_entropy, ops.nll_loss, ops.cross_entropy_last])
def test_targets_are_never_broadcast(fn: Any, targets: Any) -> None:
    with pytest.raises(ShapeError, match="targets must have the shape of logits without the last axis"):
        compute(fn, np.zeros((4, 3)), targets)


@pytest.mark.parametrize(
    ("fn", "error", "text"),
    [
        (lambda x, t: ops.cross_entropy(x, t, reduction="avg"), ShapeError, "must be 'mean', 'sum' or 'none'"),  # type: ignore[arg-type]
        (lambda x, t: ops.mse_loss(x, x, reduction=None), ShapeError, "must be 'mean', 'sum' or 'none'"),  # type: ignore[arg-type]
        (lambda x, t: ops.mse_loss(t, t), DTypeError, "mse_loss: expected f32"),
        (lambda x, t: ops.cross_entropy(t, t), DTypeError, "expected f32 scores and i32 targets"),
    ],
)
def test_bad_calls(fn: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        compute(fn, LOGITS, ints(0, 1))


def test_gradient_reuses_the_work_of_the_forward() -> None:
    """One maximum, one exponential and one comparison serve the loss and its gradient."""
    logits = np.zeros((3, 4), np.float32)
    found = parts(lambda x0, x1: ops.cross_entropy(x0, x1, reduction="none"), logits, ints(0, 1, 2))
    assert {n: found[n] for n in ("max", "exp", "log", "equal")} == {"max": 1, "exp": 1, "log": 1, "equal": 1}, found
