"""Slabs: whatever is cut into whatever pieces, the result is that of whole arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tgdsl.ops as ops
from tests.codegen.random_graphs import arrays, build
from tests.codegen.run import assert_same, on_reference, traced
from tests.session.test_numpy_engine import FORMS, executable
from tgdsl.autograd import gradients
from tgdsl.ir import Graph, Node, Tensor
from tgdsl.passes import lower
from tgdsl.reference import numpy_conv, numpy_slabs
from tgdsl.reference.numpy_compile import Calls, compile_calls
from tgdsl.reference.numpy_engine import KEPT
from tgdsl.reference.numpy_slabs import groups, orders


@pytest.mark.parametrize("size", [1, 50, 700, 5000])
@pytest.mark.parametrize("form", FORMS)
def test_each_form_agrees_with_the_evaluator_in_slabs_of_any_size(
    form: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numpy_slabs, "SLAB", size)
    monkeypatch.setattr(numpy_conv, "COLUMNS", size)
    feeds = {"x": np.random.default_rng(1).normal(size=(60, 300)).astype(np.float32)}

    def fn(x: Tensor) -> list[Any]:
        y = FORMS[form](x)
        loss = ops.sum(ops.reshape(y, (-1,)) * (ops.cast(ops.arange(y.size), "f32") * (1.0 / y.size) - 0.4))
        return [y, *gradients(y.graph, loss, [x])]

    graph = traced(fn, feeds)
    run = executable(graph)
    for _ in range(2):
        assert_same(run(feeds), on_reference(graph, feeds), terms=300, scale=1.0)


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 7, 60]))
def test_random_graphs_agree_with_the_evaluator_in_small_slabs(seed: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    feeds = arrays(rng)
    graph = traced(lambda **leaves: build(rng, list(leaves.values()), 14), feeds)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numpy_slabs, "SLAB", size)
        run = executable(graph)
    want = on_reference(graph, feeds)
    scale = float(max(np.max(np.abs(w)) for w in want))
    for _ in range(2):
        assert_same(run(feeds), want, terms=64, scale=scale)


def nodes_of(fn: Callable[..., Any], feeds: dict[str, np.ndarray]) -> list[Node]:
    graph = traced(fn, feeds)
    graph, roots = lower(graph, [t.node for t in graph.outputs], keep=KEPT)
    return list(graph.reachable(roots))


def grouped(nodes: list[Node]) -> list[numpy_slabs.Group]:
    users: dict[int, list[Node]] = {}
    for node in nodes:
        for read in node.inputs:
            users.setdefault(read.id, []).append(node)
    return list(groups(nodes, orders(nodes, users)))


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1))
def test_groups_hold_each_node_once_and_after_what_it_reads(seed: int) -> None:
    rng = np.random.default_rng(seed)
    feeds = arrays(rng)
    nodes = nodes_of(lambda **leaves: build(rng, list(leaves.values()), 20), feeds)
    done: set[int] = set()
    for group in grouped(nodes):
        for node in group.nodes:
            assert all(n.id in done for n in node.inputs)
            assert node.id not in done
            done.add(node.id)
    assert done == {n.id for n in nodes}


def chains(fn: Callable[..., Any], *shape: int) -> list[list[str]]:
    nodes = nodes_of(fn, {"x": np.zeros(shape, np.float32)})
    return [[n.op.name for n in g.nodes] for g in grouped(nodes) if len(g.slabs()) > 1]


def test_a_chain_goes_on_past_the_sums_beside_it() -> None:
    def fn(x: Tensor) -> list[Tensor]:
        y = ops.exp(x)
        return [ops.sum(y, 0), ops.tanh(y)]

    assert chains(fn, 64, 4096) == [["exp", "tanh"]]


def test_rows_are_folded_and_spread_within_a_slab() -> None:
    assert chains(lambda x: ops.softmax(x), 64, 4096) == [["max", "reshape", "sub", "exp", "sum", "reshape", "div"]]


def test_what_reads_other_rows_waits_for_all_slabs() -> None:
    def fn(x: Tensor) -> Tensor:
        y = ops.exp(x)
        return ops.tanh(y) + ops.sqrt(y).mT

    assert chains(fn, 512, 512) == [["exp", "tanh", "sqrt"], ["add"]]


def test_an_operand_is_not_overwritten_while_another_slab_reads_all_of_it() -> None:
    feeds = {"x": np.random.default_rng(0).normal(size=(512, 512)).astype(np.float32)}

    def fn(x: Tensor) -> Tensor:
        y = ops.exp(x)
        ops.sum(y)
        return ops.tanh(ops.reshape(ops.sum(y, 0) + 0.0, (1, 512)) * 1e-3 + y.mT) * y

    graph = traced(fn, feeds)
    assert_same(executable(graph)(feeds), on_reference(graph, feeds), terms=300, scale=1.0)


def compiled(fn: Callable[..., Any], x: np.ndarray) -> Calls:
    graph: Graph = traced(fn, {"x": x})
    return compile_calls([t.node for t in graph.outputs], lambda _: x)


def test_what_only_a_chain_reads_takes_the_room_of_one_slab() -> None:
    def fn(x: Tensor) -> Tensor:
        return ops.exp(x) * ops.tanh(x) + ops.sin(x) * ops.cos(x)

    x = np.zeros((64, 4096), np.float32)
    assert compiled(fn, x).allocated < 2 * x.nbytes


def test_small_arrays_are_not_cut() -> None:
    assert compiled(lambda x: ops.tanh(ops.exp(x)), np.zeros((64, 64), np.float32)).count == 2


@pytest.mark.parametrize(
    ("batch", "want"),
    [
        (8, [[1, 512, 64, 8], [1, 128, 32, 8], [1, 8], [1, 512, 64, 8]]),
        (2, [[128, 64, 8, 1], [32, 16, 4, 1], [32, 1], [128, 64, 8, 1]]),
    ],
)
def test_many_images_have_the_batch_innermost_until_they_are_flat(batch: int, want: list[list[int]]) -> None:
    x = np.zeros((batch, 3, 8, 8), np.float32)

    def fn(x: Tensor) -> list[Tensor]:
        y = ops.relu(ops.conv2d(x, ops.reshape(x[:2, :, :3, :3], (2, 3, 3, 3)), padding=1))
        z = ops.max_pool2d(y, 2)
        return [y, z, ops.reshape(z, (batch, -1)), y * ops.exp(y)]

    graph = traced(fn, {"x": x})
    graph, roots = lower(graph, [t.node for t in graph.outputs], keep=KEPT)
    made = compile_calls(roots, lambda _: x)
    assert [[s // 4 for s in made.arrays[n.id].strides] for n in roots] == want


def test_heads_are_written_as_they_are_joined() -> None:
    x = np.ones((2, 8, 12), np.float32)

    def fn(x: Tensor) -> Tensor:
        q = ops.split_heads(x, 3)
        return ops.merge_heads((q @ q.mT) @ q)

    names = [n.op.name for n in nodes_of(fn, {"x": x})]
    assert names.count("reshape") == 2
    assert compiled(fn, x).count <= 3  # two products, and a copy of the transposed operand


@pytest.mark.parametrize("x", [0.0, -0.0, 1e-30, np.inf, -np.inf, np.nan, 3e38])
def test_erf_at_the_edges(x: float) -> None:
    feeds = {"x": np.full(20, x, np.float32)}
    (got,) = executable(traced(lambda x: ops.erf(x), feeds))(feeds)
    want = {0.0: x, 1e-30: np.float32(1.1283792e-30)}.get(x, np.sign(x))
    np.testing.assert_allclose(got, np.full(20, want, np.float32), rtol=1e-6)


def test_erf_is_within_four_units_in_the_last_place() -> None:
    feeds = {"x": np.linspace(-6, 6, 100_001).astype(np.float32)}
    graph = traced(lambda x: ops.erf(x), feeds)
    (want,) = on_reference(graph, feeds)
    (got,) = executable(graph)(feeds)
    assert np.max(np.abs(got - want) / np.spacing(np.abs(want.astype(np.float32)) + np.float32(1e-30))) <= 4
