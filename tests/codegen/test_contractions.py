"""Every tiling of a contraction gives what the evaluator gives, whatever the sizes and operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tgdsl.ops as ops
from tests.codegen.run import assert_same, grads_of, on_device, on_reference, program_of, traced
from tgdsl.codegen import Target, kernels
from tgdsl.codegen.tiling import Sizes, Tiling, choose_tiling
from tgdsl.passes import split_folds

TILINGS = {
    "direct, one row": Tiling(1, 4, 8, 4, slices=4),
    "direct, two rows": Tiling(2, 4, 4, 2, slices=16),
    "direct, four rows": Tiling(4, 4, 8, 8, slices=2),
    "direct, no slices": Tiling(4, 4, 8, 8),
    "direct, eight by eight": Tiling(8, 8, 8, 8),
    "direct, more threads than cells": Tiling(1, 4, 2, 2, slices=32),
    "tiled, two rows": Tiling(2, 4, 16, 8, bk=16),
    "tiled 4x4": Tiling(4, 4, 16, 16, bk=16),
    "tiled 8x4": Tiling(8, 4, 16, 8, bk=16),
    "tiled 8x8": Tiling(8, 8, 16, 16, bk=8),
    "tiled 8x8, sixteen terms": Tiling(8, 8, 16, 16, bk=16),
    "tiled 8x8, flat": Tiling(8, 8, 8, 16, bk=16),
}
SIZES = [(1, 1, 1), (15, 17, 16), (65, 40, 129), (128, 127, 255), (130, 129, 8), (256, 16, 48)]


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> Callable[[Tiling], None]:
    def force(tiling: Tiling) -> None:
        monkeypatch.setattr(kernels, "choose_tiling", lambda *_, **__: tiling)

    return force


def check(engine: Any, fn: Callable[..., Any], feeds: dict[str, np.ndarray], terms: int) -> None:
    graph = traced(fn, feeds)
    assert_same(on_device(engine, graph, feeds, Target()), on_reference(graph, feeds), terms=terms)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.gpu
@pytest.mark.parametrize("tiling", TILINGS.values(), ids=TILINGS)
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_sizes(engine: Any, forced: Callable[[Tiling], None], tiling: Tiling, m: int, n: int, k: int) -> None:
    forced(tiling)
    check(engine, lambda a, b: a @ b, {"a": normal(m, k), "b": normal(k, n)}, k)


@pytest.mark.gpu
@pytest.mark.parametrize("tiling", TILINGS.values(), ids=TILINGS)
def test_operands(engine: Any, forced: Callable[[Tiling], None], tiling: Tiling) -> None:
    forced(tiling)
    m, n, k = 24, 36, 20

    def products(a: Any, at: Any, b: Any, bt: Any, heads: Any, bias: Any, x: Any) -> list[Any]:
        return [
            at.mT @ b,  # a gradient of weights
            a @ bt.mT,  # a gradient of inputs
            at.mT @ bt.mT,
            ops.relu(a * 2.0) @ (b + 1.0),  # prologues
            ops.tanh(a @ b + bias) * x,  # an epilogue
            ops.merge_heads(ops.split_heads(heads, 2) @ ops.split_heads(heads, 2).mT),
        ]

    feeds = {"a": normal(m, k), "at": normal(k, m), "b": normal(k, n), "bt": normal(n, k)}
    feeds |= {"heads": normal(2, 8, 24), "bias": normal(n), "x": normal(m, n)}
    check(engine, products, feeds, k)


@pytest.mark.gpu
@pytest.mark.parametrize("tiling", TILINGS.values(), ids=TILINGS)
def test_convolutions(engine: Any, forced: Callable[[Tiling], None], tiling: Tiling) -> None:
    forced(tiling)

    def convolved(x: Any, w: Any) -> list[Any]:
        y = ops.conv2d(x, w, stride=2, padding=1)
        loss = ops.sum(ops.square(y))
        return [y, *grads_of(loss, [x, w])]

    check(engine, convolved, {"x": normal(2, 3, 9, 8), "w": normal(5, 3, 3, 3)}, 200)


@pytest.mark.parametrize("threads", [64, 128, 256])
@pytest.mark.parametrize("dear", [False, True])
@pytest.mark.parametrize("software", [False, True])
def test_tilings_have_the_size_asked_for(*, threads: int, dear: bool, software: bool) -> None:
    for m in (1, 3, 16, 100, 4096):
        for n in (1, 10, 64, 1000, 4096):
            for k in (1, 9, 64, 4096):
                t = choose_tiling(Sizes(2, m, n, k, dear), software=software, threads=threads)
                assert t.threads == threads
                assert t.bk == 0 or t.rows % 4 == t.columns % 4 == 0
                floats = t.threads * t.tm * t.tn if t.slices > 1 else (t.rows + t.columns) * t.bk
                assert 4 * floats <= 16384, "more workgroup memory than every adapter has"


@pytest.mark.parametrize(
    ("size", "want"),
    [
        ((1, 2048, 2048, 2048), Tiling(8, 8, 16, 16, bk=16)),
        ((1, 4096, 1536, 384), Tiling(8, 8, 8, 16, bk=16)),
        ((1, 1023, 1023, 1023), Tiling(8, 4, 16, 8, bk=16)),  # 64 of the largest tiles leave most processors idle
        ((1, 4096, 384, 1536), Tiling(8, 4, 16, 8, bk=16)),
    ],
)
def test_largest_tiling_that_keeps_a_device_busy(size: tuple[int, int, int, int], want: Tiling) -> None:
    assert choose_tiling(Sizes(*size), software=False) == want


def pieces(m: int, n: int, k: int) -> int:
    """Slices that the contracted axis of a product is cut into."""
    graph = traced(lambda a, b: a @ b, {"a": normal(m, k), "b": normal(k, n)})
    _, (root,) = split_folds(graph, [graph.outputs[0].node], lanes=131072)
    return int(root.inputs[0].shape[0]) if root.op.name == "sum" else 1


def test_long_axes_are_split_as_far_as_that_keeps_a_device_busier() -> None:
    assert pieces(384, 1536, 4096) == 4
    assert pieces(384, 384, 4096) == 8
    assert pieces(1024, 1024, 1024) == 1, "every processor has two tiles already"


def test_neighbours_are_loaded_and_stored_as_vectors() -> None:
    feeds = {"a": normal(512, 128), "b": normal(128, 512), "bias": normal(512)}
    (kernel,) = program_of(traced(lambda a, b, bias: ops.relu(a @ b + bias), feeds), Target()).kernels
    assert kernel.wgsl.count("array<vec4<f32>>") >= 2


def test_odd_sizes_use_no_vectors() -> None:
    feeds = {"a": normal(511, 127), "b": normal(127, 513)}
    (kernel,) = program_of(traced(lambda a, b: a @ b, feeds), Target()).kernels
    assert "array<vec4<f32>>" not in kernel.wgsl
