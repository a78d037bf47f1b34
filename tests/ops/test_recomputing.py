"""Checkpoints: the same gradients, less memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tgdsl.ops as ops
from tests.codegen.run import TARGETS, assert_same, grads_of, on_device, on_reference, program_of, traced
from tgdsl import F32, AdamW, Linear, Tensor, compile_module, f32, forward, inputs, module, repeat
from tgdsl.codegen import Target
from tgdsl.errors import TraceError
from tgdsl.ir import show
from tgdsl.reference.evaluate import compute

FEEDS = {
    "x": np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32),
    "w": np.random.default_rng(1).standard_normal((32, 32)).astype(np.float32) * 0.2,
    "ct": np.random.default_rng(2).standard_normal((64, 32)).astype(np.float32),
}


def chain(blocks: int, *, use: bool) -> Any:
    """Blocks of four layers with one weight, and the gradients."""

    def fn(x: Any, w: Any, ct: Any) -> list[Any]:
        def block(y: Any) -> Any:
            for _ in range(4):
                y = ops.tanh(y @ w) * 1.1
            return y

        y = x
        for _ in range(blocks):
            y = (ops.checkpoint(block) if use else block)(y)
        return [y, *grads_of(y, [x, w], ct)]

    return traced(fn, FEEDS)


def test_gradients_are_the_same_to_the_bit() -> None:
    plain, saving = (on_reference(chain(3, use=use), FEEDS) for use in (False, True))
    for a, b in zip(plain, saving, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.gpu
@pytest.mark.parametrize("target", TARGETS)
def test_kernels_agree_with_evaluator(engine: Any, target: Target) -> None:
    graph = chain(3, use=True)
    assert_same(on_device(engine, graph, FEEDS, target), on_reference(graph, FEEDS), terms=64, scale=10.0)


@pytest.mark.parametrize("target", TARGETS)
def test_a_long_chain_needs_less_memory(target: Target) -> None:
    plain, saving = (program_of(chain(16, use=use), target) for use in (False, True))
    assert saving.bytes_live < 0.6 * plain.bytes_live
    assert saving.kernel_count <= 1.5 * plain.kernel_count, "one more forward, and nothing else"


def test_the_graph_shows_what_is_computed_again() -> None:
    text = show(chain(1, use=True))
    assert text.count("= recompute(") == 2, "the block's input, and the weight that the trace was given as an input"
    assert text.count("= tanh(") == 8


@pytest.mark.parametrize("depth", [1, 2])
def test_nested_with_several_inputs_and_outputs(depth: int) -> None:
    def inner(a: Any, b: Any) -> tuple[Any, Any]:
        return ops.sin(a) * b, ops.exp(a * 0.1)

    def outer(a: Any, b: Any) -> tuple[Any, Any]:
        c, d = (ops.checkpoint(inner) if depth == 2 else inner)(a, b)
        return ops.tanh(c) + d, c * d

    def of(use: bool) -> Any:
        def fn(a: Any, b: Any) -> list[Any]:
            c, d = (ops.checkpoint(outer) if use else outer)(a, b)
            total = ops.sum(c * d * a)
            first = grads_of(total, [a, b])
            return [total, *first, *grads_of(ops.sum(first[0] * first[1]), [a, b])]

        feeds = {n: np.linspace(0.3, 1.7, 5).astype(np.float32) for n in "ab"}
        return on_reference(traced(fn, feeds), feeds)

    for a, b in zip(of(use=False), of(use=True), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-13)


def test_random_ops_draw_the_same_numbers_again() -> None:
    def fn(x: Any) -> list[Any]:
        y = ops.checkpoint(lambda x: ops.tanh(ops.dropout(x, 0.5) * 2.0))(x)
        return [y, *grads_of(ops.sum(y), [x])]

    feeds = {"x": np.linspace(0.5, 1.0, 64).astype(np.float32)}
    y, g = on_reference(traced(fn, feeds), feeds)
    kept = y != 0.0
    assert 0 < np.sum(kept) < 64
    np.testing.assert_array_equal(g != 0.0, kept)


@module
class Deep:
    layers: tuple[Linear, ...] = repeat(6, Linear(8, 8))

    def __call__(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = ops.checkpoint(lambda x, layer=layer: ops.tanh(layer(x)))(x)
        return x


@module
class Plain:
    layers: tuple[Linear, ...] = repeat(6, Linear(8, 8))

    def __call__(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = ops.tanh(layer(x))
        return x


@inputs
class Batch:
    x: F32 = f32("B", 8)


@forward(inputs=Batch)
def loss(m: Any, b: Batch) -> Tensor:
    return ops.mean(ops.square(m(b.x) - 1.0))


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["numpy", "wgpu"])
def test_training_is_the_same(engine: Any, backend: Any) -> None:
    x = np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32)
    losses = []
    for model in (Plain(), Deep()):
        with compile_module(model, loss, optimizer=AdamW(1e-2), dims={"B": 16}, seed=3, backend=backend) as train:
            losses.append([float(train.step(x=x)) for _ in range(5)])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)
    assert losses[0][-1] < losses[0][0]


@pytest.mark.parametrize(
    ("fn", "text"),
    [
        (3, "checkpoint: expected a function, got int"),
        (lambda x: 3.0, "checkpoint: the function must return tensors, got float"),
        (lambda x: (), "checkpoint: the function must return tensors, got nothing"),
        (lambda x: [x], "checkpoint: the function must return tensors, got list"),
    ],
)
def test_refusals(fn: Any, text: str) -> None:
    with pytest.raises(TraceError) as caught:
        compute(lambda x: ops.checkpoint(fn)(x), [1.0])
    assert text in str(caught.value)
