"""stop_gradient: the same values, no gradient, no kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tgdsl.ops as ops
from tests.codegen.run import TARGETS, assert_same, grads_of, on_device, on_reference, program_of, traced
from tests.ops.tools import grad
from tests.session.test_numpy_engine import executable
from tgdsl.autograd import gradients
from tgdsl.codegen import Target
from tgdsl.ir import tracing
from tgdsl.passes import lower
from tgdsl.reference.evaluate import compute

X = np.array([[0.5, -2.0, 3.0], [1.0, 0.25, -1.5]], np.float32)


def straight_through(x: Any) -> Any:
    """Rounded down in the forward pass, the identity in the gradient."""
    return x + ops.stop_gradient(ops.floor(x) - x)


def test_values_are_those_of_the_operand() -> None:
    for x in (X, np.float32(3.0), np.array([True, False]), np.array([1, 2], np.int32)):
        np.testing.assert_array_equal(compute(ops.stop_gradient, x), x)


def test_no_gradient_flows() -> None:
    np.testing.assert_array_equal(grad(ops.stop_gradient, X), np.zeros_like(X))
    np.testing.assert_array_equal(grad(lambda x: ops.exp(ops.stop_gradient(ops.square(x))), X), np.zeros_like(X))


def test_gradient_flows_past_it() -> None:
    np.testing.assert_allclose(grad(lambda x: x * ops.stop_gradient(x), X), X)
    np.testing.assert_allclose(grad(lambda x, y: ops.stop_gradient(x) * y, X, 2 * X, wrt=1), X)
    np.testing.assert_array_equal(grad(straight_through, X, ct=3 * X), 3 * X)


def test_second_order_stops_too() -> None:
    """The gradient of `x**2 * stop(x)` is `2 x stop(x)`, and its gradient is `2 stop(x)`."""

    def twice(x: Any) -> Any:
        y = ops.sum(ops.square(x) * ops.stop_gradient(x))
        (first,) = grads_of(y, [x])
        (second,) = grads_of(ops.sum(first), [x])
        return second

    np.testing.assert_allclose(compute(twice, X), 2 * X)


def test_stop_of_a_gradient() -> None:
    """A gradient may be used as a constant: the penalty does not reach the second order."""

    def penalised(x: Any) -> Any:
        (first,) = gradients(x.graph, ops.sum(x * x * x), [x])
        (second,) = gradients(x.graph, ops.sum(ops.stop_gradient(first) * x), [x])
        return second

    np.testing.assert_allclose(compute(penalised, X), 3 * X**2, rtol=1e-6)


def test_what_carries_no_gradient_is_returned_as_it_is() -> None:
    graph = traced(lambda i, p: [ops.stop_gradient(i), ops.stop_gradient(p)], {"i": np.ones(2, np.int32), "p": X > 0})
    assert [t.node.op.name for t in graph.outputs] == ["input", "input"]


def test_nothing_behind_it_is_differentiated() -> None:
    """No node of the gradient of what is stopped is reachable, though the forward needs it."""
    graph = traced(lambda x, w: ops.sum(ops.stop_gradient(ops.tanh(x @ w)) * x[:, :1]), {"x": X, "w": X.T.copy()})
    leaf = {name: graph.tensor(n) for (_, name), n in graph.leaves.items()}
    with tracing(graph):
        made = gradients(graph, graph.outputs[0], [leaf["x"], leaf["w"]])
    count = [sum(n.op.name == "matmul" for n in graph.reachable([t.node])) for t in made]
    assert count == [1, 0]
    assert made[1].node.op.name == "full"


def with_stops(x: Any, w: Any) -> list[Any]:
    """As in training: a loss with a stopped target, and its gradients."""
    h = ops.tanh(0.1 * (x @ w))  # far from where floor jumps
    loss = ops.mse_loss(straight_through(h), ops.stop_gradient(h * 0.5 + 1.0))
    return [loss, ops.stop_gradient(x), ops.stop_gradient(h), *grads_of(loss, [x, w])]


FEEDS = {"x": X, "w": X.T.copy()}


@pytest.mark.gpu
@pytest.mark.parametrize("target", TARGETS, ids=["gpu kernels", "cpu kernels"])
def test_wgsl_agrees_with_the_reference(engine: Any, target: Target) -> None:
    graph = traced(with_stops, FEEDS)
    want = on_reference(graph, FEEDS)
    assert_same(on_device(engine, graph, FEEDS, target), want, terms=16)
    assert_same(executable(graph)(FEEDS), want, terms=16)


def test_it_costs_no_kernel() -> None:
    plain = traced(lambda x: ops.sum(ops.exp(x) * 2.0), {"x": X})
    stopped = traced(lambda x: ops.sum(ops.stop_gradient(ops.exp(ops.stop_gradient(x))) * 2.0), {"x": X})
    assert program_of(stopped).kernel_count == program_of(plain).kernel_count
    lowered, _ = lower(stopped, stopped.roots())
    assert "stop_gradient" not in {n.op.name for n in lowered.nodes}
