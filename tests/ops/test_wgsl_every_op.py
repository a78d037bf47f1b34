"""WGSL against the evaluator, op by op, forward and gradient; only ops whose gradient property holds."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import tgdsl.ops as ops
from tests.codegen.run import TARGETS, assert_same, grads_of, on_device, on_reference, traced
from tests.helpers import OPS, require_gradient_passed
from tests.strategies import SeededDraw
from tgdsl.autograd import gradients
from tgdsl.codegen import Target
from tgdsl.dtypes import NUMPY
from tgdsl.ir import AnyTensor, Op

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
    require_gradient_passed(op)
    for seed in range(2):
        graph, feeds = graph_of(op, seed)
        want = on_reference(graph, feeds)
        got = on_device(engine, graph, feeds, target)
        if op.stochastic:
            np.testing.assert_allclose(got[0], want[0], rtol=2e-5, atol=2e-6)
        else:
            assert_same(got, want, terms=64, scale=1.0)


HARD = {n: op for n, op in OPS.items() if op.hard}
ROW = ("softmax", "log_softmax", "logsumexp", "normalize")
"""Ops that fold a row: the hard values stand beside each other in every order."""


def hard_operands(op: Op[..., Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Operands made of the hard values, and attributes to go with them."""
    values = np.array(op.hard, np.float32)
    n = len(values)
    attributes = dict(op.sample(SeededDraw(0)).attrs)
    if op.name in ROW or op.name == "cross_entropy":
        rows = np.array(list(itertools.product(values, repeat=n)), np.float32)
        attributes |= {"axis": 1} if "axis" in attributes else {}
        targets = {"targets": np.arange(len(rows), dtype=np.int32) % n} if op.name == "cross_entropy" else {}
        return {"x": rows, **targets}, attributes
    if op.name == "softmax_causal":
        return {"x": np.stack([np.roll(np.tile(values, (n, 1)), k, 1) for k in range(n)])}, attributes
    if len(op.operands) == 2:
        a, b = np.meshgrid(values, values)
        return {"a": a, "b": b}, attributes
    return {"x": values}, attributes


@targets
@pytest.mark.parametrize("op", HARD.values(), ids=list(HARD))
def test_hard_values(engine: Any, op: Op[..., Any], target: Target) -> None:
    """Large, tiny and special arguments: as the evaluator says, and never NaN."""
    require_gradient_passed(op)
    feeds, attributes = hard_operands(op)

    def fn(**xs: Any) -> list[Any]:
        y = op(*xs.values(), **attributes)
        wrt = [x for x in xs.values() if x.dtype == "f32"]
        if op.no_gradient is not None or y.dtype != "f32":
            return [y]
        return [y, *grads_of(y, wrt, ops.broadcast_to(ops.full(shape=(), value=0.75), y.shape))]

    graph = traced(fn, feeds)
    for got, want in zip(on_device(engine, graph, feeds, target), on_reference(graph, feeds), strict=True):
        fits = np.isfinite(want) & (np.abs(want) < 1e38)
        assert not np.isnan(want).any(), "the reference itself gives NaN"
        np.testing.assert_allclose(got[fits], want[fits], rtol=3e-5, atol=1e-6)
        assert not np.isfinite(got[~fits]).any() or (np.abs(got[~fits]) > 1e38).all(), (got, want)


OTHER_DTYPES = [
    *(("i32", n) for n in ("add", "sub", "mul", "maximum", "minimum", "sum", "prod", "max", "min", "argmax", "argmin")),
    *(("i32", n) for n in ("less", "greater", "less_equal", "greater_equal", "equal", "not_equal", "cast_bool")),
    *((d, n) for d in ("i32", "bool") for n in ("reshape", "broadcast_to", "permute", "pad", "slice", "unslice")),
    *((d, n) for d in ("i32", "bool") for n in ("concat", "where", "cast_f32")),
    *(("bool", n) for n in ("cast_i32",)),
    *(("f32", n) for n in ("cast_bool",)),
]


@targets
@pytest.mark.parametrize(("dtype", "name"), OTHER_DTYPES)
def test_other_dtypes(engine: Any, dtype: str, name: str, target: Target) -> None:
    """Ops whose samples are of one dtype but which take others: types, values and bits."""
    for seed in range(2):
        sample = OPS[name].sample(SeededDraw(seed))
        kept = 1 if name == "where" else 0
        made = [np.asarray(a) for a in sample.inputs]
        made = [a if i < kept else as_dtype(a, dtype) for i, a in enumerate(made)]
        feeds = {f"x{i}": a for i, a in enumerate(made)}
        attributes = {k: 1 if k == "value" else v for k, v in sample.attrs.items()}
        graph = traced(lambda attributes=attributes, **xs: OPS[name](*xs.values(), **attributes), feeds)
        got, want = on_device(engine, graph, feeds, target), on_reference(graph, feeds)
        assert got[0].dtype == want[0].astype(NUMPY[graph.outputs[0].dtype]).dtype
        np.testing.assert_array_equal(got[0], want[0])


def as_dtype(x: Any, dtype: str) -> Any:
    """Values of another dtype, not all alike; floats are not whole."""
    if dtype == "bool":
        return x > 0
    return np.round(3 * x).astype(np.int32) if dtype == "i32" else np.asarray(1.3 * x, np.float32)


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


@targets
def test_normal_numbers_are_close(engine: Any, target: Target) -> None:
    graph = traced(lambda: ops.randn((5000,)), {})
    got, want = on_device(engine, graph, {}, target)[0], on_reference(graph, {})[0]
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=5e-6)
    assert np.isfinite(got).all()


@targets
def test_integer_division_by_every_sign_and_zero(engine: Any, target: Target) -> None:
    a, b = np.meshgrid(np.arange(-7, 8), np.arange(-3, 4))
    big = [2**31 - 1, -(2**31), 2**31 - 1, -(2**31)], [2, 2, -2, -3]
    feeds = {
        "a": np.concatenate([a.ravel(), big[0]]).astype(np.int32),
        "b": np.concatenate([b.ravel(), big[1]]).astype(np.int32),
    }
    graph = traced(lambda a, b: [a // b, a % b], feeds)
    quotient, rest = on_device(engine, graph, feeds, target)
    for x, y, q, r in zip(feeds["a"].tolist(), feeds["b"].tolist(), quotient, rest, strict=True):
        assert (q, r) == ((x // y, x % y) if y else (x, 0)), (x, y)


@targets
def test_dropout_drops_the_same_elements_in_forward_and_gradient(engine: Any, target: Target) -> None:
    feeds = {"x": np.ones((40, 50), np.float32)}

    def fn(x: Any) -> list[Any]:
        y, other = ops.dropout(x, 0.25), ops.dropout(x, 0.25)
        return [y, grads_of(ops.sum(y), [x])[0], other]

    y, gradient, other = on_device(engine, traced(fn, feeds), feeds, target)
    np.testing.assert_array_equal(y, gradient)
    assert 0.7 < np.mean(y > 0) < 0.8
    assert not np.array_equal(y, other), "two dropouts drop alike"
