"""The NumPy backend: what its calls compute, whatever buffers they share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tgdsl.ops as ops
from tests.codegen.random_graphs import arrays, build
from tests.codegen.run import assert_same, on_reference, traced
from tests.optim.test_optimizers import CASES, Host
from tgdsl.autograd import gradients
from tgdsl.errors import DeviceError, InputError
from tgdsl.ir import Graph, IntTensor, Tensor, TensorType, tracing
from tgdsl.lr import resolve_lr
from tgdsl.ops.leaves import declare
from tgdsl.optim import ArenaLayout, StepGraphs
from tgdsl.program import StepData
from tgdsl.reference.numpy_engine import NumpyEngine

Arrays = dict[str, np.ndarray]


def executable(graph: Graph) -> Callable[[Arrays], list[np.ndarray]]:
    engine = NumpyEngine()
    loaded = engine.load(StepGraphs(graph, {str(i): t for i, t in enumerate(graph.outputs)}), engine.allocate({}))

    def run(feeds: Arrays) -> list[np.ndarray]:
        (ticket,) = loaded.submit([StepData(feeds, {"key0": 1, "key1": 2})])
        assert ticket.done()
        return [ticket.read()[str(i)] for i in range(len(graph.outputs))]

    return run


@settings(max_examples=60)
@example(321693)  # a view that cannot be written was taken for a result
@given(st.integers(0, 2**32 - 1))
def test_random_graphs_agree_with_the_evaluator(seed: int) -> None:
    rng = np.random.default_rng(seed)
    feeds = arrays(rng)

    def fn(**leaves: Tensor) -> list[Any]:
        xs = list(leaves.values())
        outs = build(rng, xs, 14)
        loss = ops.sum(ops.tanh(outs[0]))
        for out in outs[1:]:
            loss = loss + ops.sum(ops.tanh(out) * 0.3)
        assert loss.graph is not None
        return [*outs, loss, *gradients(loss.graph, loss, xs)]

    graph = traced(fn, feeds)
    run = executable(graph)
    want = on_reference(graph, feeds)
    scale = float(max(np.max(np.abs(w)) for w in want))
    first = run(feeds)
    assert_same(first, want, terms=64, scale=scale)
    other = {n: a * np.float32(0.5) for n, a in feeds.items()}
    assert_same(run(other), on_reference(graph, other), terms=64, scale=scale)
    for a, b in zip(run(feeds), first, strict=True):
        np.testing.assert_array_equal(a, b)


def images(x: Tensor) -> Tensor:
    return ops.reshape(x[:, :294], (60 * 294 // (3 * 14 * 14), 3, 14, 14))


def kernel(x: Tensor) -> Tensor:
    return ops.reshape(x[0, :108], (4, 3, 3, 3))


def many(rows: int) -> IntTensor:
    return ops.reshape(ops.broadcast_to(ops.arange(rows), (334, rows)), (-1,))


FORMS: dict[str, Callable[..., Any]] = {
    "sum of short rows": lambda x: ops.sum(x, -1),
    "sum of columns": lambda x: ops.sum(x, 0),
    "sum of the middle": lambda x: ops.sum(ops.reshape(x, (60, 10, 30)), 1),
    "max of short rows": lambda x: ops.max(ops.reshape(x, (-1, 10)), -1),
    "min of rows": lambda x: ops.min(x, -1),
    "mean of all": lambda x: ops.mean(x),
    "select": lambda x: ops.where(x > 0.1, x, ops.exp(x)),
    "select or zero": lambda x: ops.where(x > 0.1, x, 0.0),
    "select of itself": lambda x: ops.where(x + 0.0 > 0.1, x * 2.0, 1.0 + x) * 3.0,
    "select a row": lambda x: ops.where(x[:, :1] > 0.1, x, -x),
    "product with a transposed": lambda x: x.mT @ x,
    "product of a strided": lambda x: x[:, ::2] @ x[:, ::2].mT,
    "batched product": lambda x: ops.reshape(x, (60, 10, 30)) @ ops.reshape(x, (60, 30, 10)),
    "batched by matrix": lambda x: ops.reshape(x, (60, 10, 30)) @ ops.reshape(x[:3], (30, 30)),
    "chain": lambda x: ops.sigmoid(ops.rsqrt(x * x + 1.0)) ** 3,
    "overlap": lambda x: (x + 1.0) + ops.reshape(x + 1.0, (300, 60)).mT,
    "flipped": lambda x: ops.flip(x + 1.0, 0) * (x + 1.0),
    "comparisons": lambda x: ops.cast(ops.logical_and(x > 0.0, x < 0.5), "f32"),
    "convolution": lambda x: ops.conv2d(images(x), kernel(x), padding=1),
    "strided convolution": lambda x: ops.conv2d(images(x), kernel(x), stride=2, padding=(1, 0)),
    "pooling": lambda x: ops.max_pool2d(images(x), 2),
    "pooling that overlaps": lambda x: ops.max_pool2d(images(x), 3, stride=2, padding=1),
    "mean pooling": lambda x: ops.avg_pool2d(images(x), 2, stride=3, padding=1),
    "look-up": lambda x: ops.embedding(x, ops.cast(ops.arange(40), "i32")) * 0.5,
    "joined": lambda x: ops.concat([x, x[:, :3] * 2.0], 1),
    "padded": lambda x: ops.pad(x, [(1, 2), (0, 3)], 0.5),
    "causal": lambda x: ops.softmax_causal(x[:, :60]),
    "normalised": lambda x: ops.layer_norm(x),
    "gelu": lambda x: ops.gelu(x * 3.0),
    "gelu of a transposed": lambda x: ops.gelu(x.mT * 3.0),
    "losses": lambda x: ops.cross_entropy(x, ops.arange(60)),
    "root": lambda x: ops.power(x * x + 0.5, 1.5),
    "select of truth": lambda x: ops.where(ops.where(x > 0.0, x < 0.5, x < -0.5), x, 0.0),
    "product": lambda x: ops.prod(x[:, :3], -1),
    "picked from a transposed": lambda x: ops.nll_loss(x[:, :60].mT, ops.arange(60)),
    "many rows": lambda x: ops.mean(ops.embedding(x, many(60)), 0),
    "convolution of columns": lambda x: ops.conv2d(images(x), kernel(x), stride=(1, 3)),
    "constants": lambda x: x + ops.cast(ops.arange(300), "f32") * 0.01 + ops.zeros((60, 1)),
}


@pytest.mark.parametrize("form", FORMS)
def test_each_way_of_calling_numpy_agrees_with_the_evaluator(form: str) -> None:
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(size=(60, 300)).astype(np.float32)}

    def fn(x: Tensor) -> list[Any]:
        y = FORMS[form](x)
        assert y.graph is not None
        weight = ops.cast(ops.arange(y.size), "f32") * (1.0 / y.size) - 0.4
        loss = ops.sum(ops.reshape(y, (-1,)) * weight)
        return [y, *gradients(y.graph, loss, [x])]

    graph = traced(fn, feeds)
    run = executable(graph)
    for _ in range(2):
        assert_same(run(feeds), on_reference(graph, feeds), terms=300, scale=1.0)


def test_select_does_not_mix_bits_of_what_it_leaves_out() -> None:
    bad = np.array([np.nan, np.inf, -np.inf, -0.0] * 100, np.float32)
    feeds = {"c": np.arange(400) % 2 == 0, "a": bad, "b": np.arange(400, dtype=np.float32)}
    graph = traced(lambda c, a, b: [ops.where(c, b, a), ops.where(c, a, 0.0)], feeds)
    got = executable(graph)(feeds)
    np.testing.assert_array_equal(got[0], np.where(feeds["c"], feeds["b"], bad))
    np.testing.assert_array_equal(got[1], np.where(feeds["c"], bad, np.float32(0)))


def states(fn: Callable[..., dict[str, Tensor]], values: Arrays) -> tuple[Callable[[], Arrays], Arrays]:
    """A step that only updates states; returns a function that runs it and what it returned."""
    layout = ArenaLayout.of((n, a.shape) for n, a in values.items())
    graph = Graph()
    with tracing(graph):
        leaves = {n: declare(graph, "state", n, TensorType(a.shape)) for n, a in values.items()}
        graph.updates.update(fn(**leaves))
        results = {n: t * 1.0 for n, t in leaves.items()}
    engine = NumpyEngine()
    store = engine.allocate({"state": layout.size})
    for name, view in store.views("state", layout).items():
        view[...] = values[name]
    loaded = engine.load(StepGraphs(graph, results, state=layout), store)
    seen: Arrays = {}

    def step() -> Arrays:
        seen.update(loaded.submit([StepData({}, {})])[0].read())
        return {n: v.copy() for n, v in store.views("state", layout).items()}

    return step, seen


def test_states_are_replaced_after_every_read_of_the_old_ones() -> None:
    a, b = np.arange(4, dtype=np.float32), np.ones(4, np.float32)
    step, seen = states(lambda a, b: {"a": b, "b": a}, {"a": a, "b": b})
    assert step()["a"].tolist() == b.tolist()
    assert seen["a"].tolist() == a.tolist()
    step, seen = states(lambda a, b: {"a": a + b, "b": a * 2.0}, {"a": a, "b": b})
    got = step()
    np.testing.assert_array_equal(got["a"], a + b)
    np.testing.assert_array_equal(got["b"], a * 2)
    np.testing.assert_array_equal(seen["a"], a)
    step, _ = states(lambda a, b: {"a": ops.flip(a, 0), "b": ops.flip(a, 0) + b}, {"a": a, "b": b})
    got = step()
    np.testing.assert_array_equal(got["a"], a[::-1])
    np.testing.assert_array_equal(got["b"], a[::-1] + b)


def test_a_gradient_that_two_parameters_share_reaches_both() -> None:
    layout = ArenaLayout.of([("a", (3,)), ("b", (3,))])
    graph = Graph()
    with tracing(graph):
        a, b = (declare(graph, "param", n, TensorType((3,))) for n in "ab")
        loss = ops.sum(a + b)
        grads = dict(zip("ab", gradients(graph, loss, [a, b]), strict=True))
    assert grads["a"].node is grads["b"].node
    engine = NumpyEngine()
    store = engine.allocate({"params": layout.size, "grads": layout.size})
    engine.load(StepGraphs(graph, {"loss": loss}, layout, grads=grads), store).submit([StepData({}, {})])
    assert {n: v.tolist() for n, v in store.views("grads", layout).items()} == {
        "a": [1.0] * 3,
        "b": [1.0] * 3,
    }


@pytest.mark.parametrize("check_finite", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_an_update_in_slices_is_the_update_at_once(case: str, check_finite: bool) -> None:
    shapes = {"a": (200, 401), "b": (70,), "c": (64,)}
    decay = {"a": True, "b": False, "c": True}
    host = Host(CASES[case], shapes, decay, check_finite=check_finite)
    rng = np.random.default_rng(0)
    host.put("params", {n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()})
    engine = NumpyEngine()
    store = engine.allocate({n: a.size for n, a in host.arenas.items()})
    for name, array in host.arenas.items():
        store.write(name, array.reshape(-1).astype(np.float32))
    graph = Graph()
    with tracing(graph):
        loss = ops.zeros(())
    step = StepGraphs(graph, {"loss": loss}, host.layout, update=host.update.graph)
    loaded = engine.load(step, store)
    for t in range(1, 4):
        grads = {n: (rng.normal(size=s) * 0.01).astype(np.float32) for n, s in shapes.items()}
        if check_finite and t == 3:
            grads["c"][5] = np.nan
        host.step(grads)
        store.write("grads", host.arenas["grads"].reshape(-1).astype(np.float32))
        scalars = {**host.optimizer.scalars(t, resolve_lr(host.optimizer.lr, t)), "step": float(t)}
        loaded.submit([StepData({}, scalars)])
    for name in host.update.graph.updates:
        np.testing.assert_allclose(store.read(name), host.arenas[name].reshape(-1), rtol=2e-4, atol=1e-6, err_msg=name)


def test_inputs_are_copied_and_results_are_not_reused() -> None:
    x = np.ones(3, np.float32)
    run = executable(traced(lambda x: x, {"x": x}))
    (first,) = run({"x": x})
    x[:] = 7
    (second,) = run({"x": x})
    assert first.tolist() == [1.0] * 3
    assert second.tolist() == [7.0] * 3


def test_indices_out_of_range_are_refused_when_they_are_used() -> None:
    feeds = {"x": np.zeros((3, 2), np.float32), "i": np.array([0, 3], np.int32)}
    for fn in (lambda x, i: ops.embedding(x, i), lambda x, i: ops.cross_entropy(x[:2], i)):
        graph = traced(fn, feeds)
        with pytest.raises(InputError, match="3 is out of range for"):
            executable(graph)(feeds)
        engine = NumpyEngine()
        loaded = engine.load(StepGraphs(graph, {"y": graph.outputs[0]}), engine.allocate({}))
        good = StepData({**feeds, "i": np.zeros(2, np.int32)}, {})
        first, second, third = loaded.submit([good, StepData(feeds, {}), good])
        assert np.isfinite(first.read()["y"]).all()
        for ticket in (second, third):
            with pytest.raises(InputError, match="3 is out of range for"):
                ticket.read()


def test_an_unknown_arena_is_named() -> None:
    with pytest.raises(DeviceError, match="no arena 'm'; there are: params"):
        NumpyEngine().allocate({"params": 64}).read("m")
