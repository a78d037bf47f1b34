"""WGSL against the evaluator, op by op, forward and gradient; only ops whose gradient property holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tgdsl.ops as ops
from tests.codegen.run import TARGETS, assert_same, on_device, on_reference, traced
from tests.helpers import OPS, gradient_passed
from tests.strategies import SeededDraw
from tgdsl.autograd import gradients
from tgdsl.codegen import Target
from tgdsl.ir import AnyTensor, Op
from tgdsl.reference.evaluate import dtype_of

pytestmark = pytest.mark.gpu
targets = pytest.mark.parametrize("target", TARGETS, ids=["gpu kernels", "cpu kernels"])


def graph_of(op: Op[..., Any], seed: int) -> tuple[Any, dict[str, Any]]:
    """The op on a sample, and its cotangents for a fixed non-uniform seed."""
    sample = op.sample(SeededDraw(seed))
    feeds = {f"x{i}": np.asarray(a) for i, a in enumerate(sample.inputs)}
    feeds = {k: a.astype(np.float32) if a.dtype.kind == "f" else a for k, a in feeds.items()}

    def fn(**xs: AnyTensor[Any]) -> list[Any]:
        y = op(*xs.values(), **sample.attrs)
        wrt = [x for x in xs.values() if x.dtype == "f32"]
        if op.no_gradient is not None or y.dtype != "f32" or not wrt:
            return [y]
        graph = y.graph
        assert graph is not None
        weights = ops.reshape(1.0 + 0.25 * ops.arange(y.size, "f32"), y.shape)
        return [y, *gradients(graph, y, wrt, weights)]

    return traced(fn, feeds), feeds


@targets
@pytest.mark.parametrize("op", OPS.values(), ids=list(OPS))
def test_op_agrees_with_evaluator(engine: Any, op: Op[..., Any], target: Target) -> None:
    wrong = gradient_passed(op.name)
    if wrong:
        pytest.fail(f"not run, the gradient property failed first: {wrong}")
    for seed in range(2):
        graph, feeds = graph_of(op, seed)
        want = on_reference(graph, feeds)
        got = on_device(engine, graph, feeds, target)
        if op.stochastic:
            np.testing.assert_allclose(got[0], want[0], rtol=2e-5, atol=2e-6)
        else:
            assert_same(got, want, terms=64, scale=1.0)


HARD = {n: op for n, op in OPS.items() if op.hard and len(op.operands) == 1 and "axis" not in str(op.rule.__annotations__)}


@targets
@pytest.mark.parametrize("op", HARD.values(), ids=list(HARD))
def test_hard_values(engine: Any, op: Op[..., Any], target: Target) -> None:
    """Large, tiny and special arguments: as the evaluator says, and never NaN."""
    attributes = op.sample(SeededDraw(0)).attrs
    x = np.array(op.hard, np.float32)
    x = np.tile(x, (len(x), 1)) if op.name == "softmax_causal" else x
    feeds = {"x": x}
    attributes = {k: (x.ndim - 1 if k == "axis" else v) for k, v in attributes.items()}

    def fn(x: Any) -> list[Any]:
        y = op(x, **attributes)
        made = [] if op.no_gradient is not None or y.dtype != "f32" else gradients(y.graph, y, [x], y * 0.0 + 1.0)
        return [y, *made]

    graph = traced(fn, feeds)
    for got, want in zip(on_device(engine, graph, feeds, target), on_reference(graph, feeds), strict=True):
        finite = np.isfinite(want) & (np.abs(want) < 1e38)
        assert not np.isnan(got[finite]).any(), (got, want)
        np.testing.assert_allclose(got[finite], want[finite], rtol=3e-5, atol=1e-6)


SIZES = (1, 15, 16, 17, 255, 256, 257)


@targets
@pytest.mark.parametrize("n", SIZES)
def test_edge_sizes(engine: Any, n: int, target: Target) -> None:
    rng = np.random.default_rng(n)
    feeds = {
        "x": rng.standard_normal((3, n)).astype(np.float32),
        "v": rng.standard_normal(n).astype(np.float32),
        "w": rng.standard_normal((n, 5)).astype(np.float32),
    }

    def fn(x: Any, v: Any, w: Any) -> list[Any]:
        return [x + v, ops.sum(x, 0), ops.sum(x, 1), ops.softmax(x), x @ w, ops.max(x, 1), x.mT @ x, ops.argmax(x)]

    graph = traced(fn, feeds)
    assert_same(on_device(engine, graph, feeds, target), on_reference(graph, feeds), terms=n)


@targets
def test_random_words_are_bit_equal(engine: Any, target: Target) -> None:
    graph = traced(lambda: [ops.rand((1000,)), ops.rand((1000,))], {})
    got, want = on_device(engine, graph, {}, target), on_reference(graph, {})
    np.testing.assert_array_equal(got[0], want[0].astype(np.float32))
    np.testing.assert_array_equal(got[1], want[1].astype(np.float32))
    assert not np.array_equal(got[0], got[1])
