"""Softmax and its family, activations and layer norm: closed forms, extremes, and what gradients share."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tgdsl.ops as ops
from tests.codegen.run import TARGETS, grads_of, on_device, on_reference, traced
from tests.ops.tools import grad, parts
from tgdsl.errors import ShapeError
from tgdsl.ops.softmax import softmax_or_zeros
from tgdsl.reference.evaluate import compute

INF = np.inf
X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


# -- softmax -----------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, -1, -2])
def test_softmax_sums_to_one_and_log_softmax_is_its_logarithm(axis: int) -> None:
    y = compute(lambda x: ops.softmax(x, axis), X)
    np.testing.assert_allclose(y.sum(axis), 1.0, rtol=1e-12)
    np.testing.assert_allclose(compute(lambda x: ops.log_softmax(x, axis), X), np.log(y), rtol=1e-12)


@pytest.mark.parametrize("shift", [1e4, -1e4])
def test_softmax_does_not_see_a_shift(shift: float) -> None:
    x = np.array([0.0, 1.0, 2.0])
    np.testing.assert_allclose(compute(ops.softmax, x + shift), compute(ops.softmax, x), rtol=1e-12)
    np.testing.assert_allclose(compute(ops.log_softmax, x + shift), compute(ops.log_softmax, x), rtol=1e-12)
    np.testing.assert_allclose(compute(ops.logsumexp, x + shift), compute(ops.logsumexp, x) + shift, rtol=1e-12)


def test_softmax_by_hand() -> None:
    x = [0.0, math.log(3.0)]  # softmax 1/4, 3/4
    np.testing.assert_allclose(compute(ops.softmax, x), [0.25, 0.75])
    np.testing.assert_allclose(grad(ops.softmax, x, ct=[1.0, 0.0]), [0.1875, -0.1875])
    np.testing.assert_allclose(grad(ops.log_softmax, x, ct=[1.0, 0.0]), [0.75, -0.75])
    np.testing.assert_allclose(grad(ops.logsumexp, x), [0.25, 0.75])
    assert compute(ops.logsumexp, x) == pytest.approx(math.log(4.0))


def test_softmax_of_nothing_is_nan_and_leaves_other_rows_alone() -> None:
    got = compute(ops.softmax, [[-INF, -INF], [0.0, 0.0]])
    assert np.isnan(got[0]).all()
    np.testing.assert_array_equal(got[1], [0.5, 0.5])


def test_logsumexp_of_nothing_is_minus_infinity_without_gradient() -> None:
    x = [[-INF, -INF], [-INF, 0.0]]
    np.testing.assert_array_equal(compute(ops.logsumexp, x), [-INF, 0.0])
    np.testing.assert_array_equal(grad(ops.logsumexp, x), [[0.0, 0.0], [0.0, 1.0]])


def test_causal_softmax_is_exactly_zero_above_the_diagonal() -> None:
    x = np.random.default_rng(1).standard_normal((2, 4, 4))
    y = compute(ops.softmax_causal, x)
    upper = np.triu(np.ones((4, 4), bool), 1)
    assert np.all(y[:, upper] == 0.0)
    np.testing.assert_allclose(y.sum(-1), 1.0, rtol=1e-12)
    np.testing.assert_allclose(y[:, 3], compute(ops.softmax, x[:, 3]), rtol=1e-12)
    assert np.all(grad(ops.softmax_causal, x, ct=x)[:, upper] == 0.0)


@pytest.mark.parametrize("axis", [0, 1, 2, -2, -3])
def test_causal_softmax_along_another_axis(axis: int) -> None:
    x = np.random.default_rng(2).standard_normal((3, 3, 3))
    want = np.moveaxis(compute(ops.softmax_causal, np.moveaxis(x, axis, -1)), -1, axis)
    np.testing.assert_array_equal(compute(lambda t: ops.softmax_causal(t, axis), x), want)


# -- attention ---------------------------------------------------------------


def test_attention_by_hand() -> None:
    k = [[0.0], [math.log(3.0)]]  # weights 1/4, 3/4 for the query 1
    assert compute(ops.attention, [[1.0]], k, [[4.0], [8.0]]) == pytest.approx(7.0)
    half = compute(lambda q, k, v: ops.attention(q, k, v, scale=0.0), [[1.0]], k, [[4.0], [8.0]])
    assert half == pytest.approx(6.0)
    four = compute(ops.attention, np.ones((1, 4)), np.repeat(k, 4, 1) / 2.0, [[4.0], [8.0]])
    assert four == pytest.approx(7.0), "the scale is 1 / sqrt(D)"


def test_attention_over_nothing_gives_zeros() -> None:
    """Scores that are all `-inf`: zeros out, no gradient; other rows as ever."""
    scores, v = [[-INF, -INF], [-INF, 0.0]], [[3.0], [5.0]]

    def seen(s: Any, v: Any) -> Any:
        return ops.matmul(softmax_or_zeros(s, -1), v)

    np.testing.assert_array_equal(compute(seen, scores, v), [[0.0], [5.0]])
    np.testing.assert_array_equal(grad(seen, scores, v), np.zeros((2, 2)))
    np.testing.assert_array_equal(grad(seen, scores, v, wrt=1), [[0.0], [1.0]])
    got = compute(ops.attention, [[1.0]], [[-INF], [-INF]], [[3.0], [5.0]])
    np.testing.assert_array_equal(got, [[0.0]])


@pytest.mark.gpu
@pytest.mark.parametrize("target", TARGETS, ids=["gpu kernels", "cpu kernels"])
def test_nothing_to_see_on_the_device(engine: Any, target: Any) -> None:
    feeds = {"x": np.array([[-INF] * 3, [0.0, 1.0, -INF], [-INF, -INF, 5.0]], np.float32)}

    def fn(x: Any) -> list[Any]:
        y, total = softmax_or_zeros(x, -1), ops.logsumexp(x)
        weights = ops.reshape(1.0 + ops.arange(9, "f32"), (3, 3))
        return [y, total, *grads_of(y, [x], weights), *grads_of(ops.sum(total), [x])]

    graph = traced(fn, feeds)
    for got, want in zip(on_device(engine, graph, feeds, target), on_reference(graph, feeds), strict=True):
        assert not np.isnan(got).any()
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


# -- activations -------------------------------------------------------------


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_far_out(approximate: Any) -> None:
    x = np.array([-13.24, -100.0, -1e13, 100.0, 1e13])
    want = [0.0, 0.0, 0.0, 100.0, 1e13]
    np.testing.assert_allclose(compute(lambda t: ops.gelu(t, approximate), x), want, atol=1e-30)
    slopes = grad(lambda t: ops.gelu(t, approximate), x)
    np.testing.assert_allclose(slopes, [0.0, 0.0, 0.0, 1.0, 1.0], atol=1e-30)


def test_gelu_by_its_definitions() -> None:
    want = [0.5 * v * (1.0 + math.erf(v / math.sqrt(2.0))) for v in (-1.5, 0.3, 2.0)]
    np.testing.assert_allclose(compute(ops.gelu, [-1.5, 0.3, 2.0]), want, rtol=1e-14)
    want = [0.5 * v * (1.0 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))) for v in (-1.5, 0.3, 2.0)]
    np.testing.assert_allclose(compute(lambda x: ops.gelu(x, "tanh"), [-1.5, 0.3, 2.0]), want, rtol=1e-14)
    assert grad(ops.gelu, [0.0]) == 0.5


def test_softplus_slope_at_zero_is_a_half() -> None:
    assert grad(ops.softplus, [0.0]) == 0.5
    np.testing.assert_allclose(compute(ops.softplus, [0.0, -50.0]), [math.log(2.0), math.exp(-50.0)], rtol=1e-12)
    np.testing.assert_array_equal(grad(ops.softplus, [1e4, -1e4]), [1.0, 0.0])


def test_silu_by_hand() -> None:
    np.testing.assert_allclose(compute(ops.silu, [math.log(3.0)]), [0.75 * math.log(3.0)])
    assert grad(ops.silu, [0.0]) == 0.5
    np.testing.assert_allclose(grad(ops.silu, [1e4, -1e4]), [1.0, 0.0], atol=1e-12)


def test_leaky_relu_takes_any_slope() -> None:
    np.testing.assert_array_equal(compute(lambda x: ops.leaky_relu(x, -2.0), [-1.0, 0.0, 3.0]), [2.0, 0.0, 3.0])


# -- layer norm --------------------------------------------------------------


def test_layer_norm_by_hand() -> None:
    x = [[1.0, 3.0, 1.0, 3.0]]
    np.testing.assert_allclose(compute(lambda t: ops.layer_norm(t, eps=0.0), x), [[-1.0, 1.0, -1.0, 1.0]])
    got = compute(lambda t, w, b: ops.layer_norm(t, w, b, eps=3.0), x, [1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 1.0, 1.0])
    np.testing.assert_allclose(got, [[-0.5, 1.0, -0.5, 3.0]], err_msg="the variance is biased, eps is inside the root")


def test_layer_norm_does_not_see_a_shift_and_its_gradient_sums_to_zero() -> None:
    ct = np.random.default_rng(3).standard_normal(X.shape)
    np.testing.assert_allclose(compute(ops.layer_norm, X + 50.0), compute(ops.layer_norm, X), atol=1e-4)
    got = grad(ops.layer_norm, X, ct=ct)
    np.testing.assert_allclose(got.sum(-1), 0.0, atol=1e-12)
    assert np.abs(got).max() > 0.1


def test_constant_row_is_normalised_to_zero() -> None:
    np.testing.assert_array_equal(compute(ops.layer_norm, [[7.0, 7.0]]), [[0.0, 0.0]])
    assert np.isfinite(grad(ops.layer_norm, [[7.0, 7.0]], ct=[[1.0, 2.0]])).all()


def test_refused_layer_norm_adds_nothing() -> None:
    def fn(x: Any) -> Any:
        before = len(x.graph.nodes)
        with pytest.raises(ShapeError, match="need the shape of the last axis"):
            ops.layer_norm(x, x)
        assert len(x.graph.nodes) == before
        return x

    compute(fn, X)


# -- what a forward and its gradient share -----------------------------------

SHARED: list[tuple[Any, dict[str, int]]] = [
    (ops.softmax, {"max": 1, "exp": 1, "sum": 3}),
    (ops.log_softmax, {"max": 1, "exp": 2, "log": 1, "sum": 3}),
    (ops.logsumexp, {"max": 1, "exp": 1, "log": 1, "sum": 2}),
    (ops.layer_norm, {"rsqrt": 1, "exp": 0, "sub": 3}),
    (ops.gelu, {"erf": 1, "exp": 1}),
    (lambda x0: ops.gelu(x0, "tanh"), {"tanh": 1, "exp": 0}),
    (ops.silu, {"sigmoid": 1, "exp": 0}),
]
NAMES = ["softmax", "log_softmax", "logsumexp", "layer_norm", "gelu", "gelu tanh", "silu"]


@pytest.mark.parametrize(("fn", "counts"), SHARED, ids=NAMES)
def test_gradient_reuses_the_work_of_the_forward(fn: Any, counts: dict[str, int]) -> None:
    """Hash-consing merges them only while both are written from the same pieces."""
    found = parts(lambda x0: fn(x0), X)
    assert {name: found[name] for name in counts} == counts, found
