"""Attention written with plain ops becomes one op; nothing else does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tgdsl.ops as ops
from benchmarks.graphs import GPT, references
from tests.codegen.run import assert_same, on_reference, traced
from tgdsl import pipeline
from tgdsl.codegen import Target, generate
from tgdsl.ir import Graph, tracing, verify
from tgdsl.passes import recognise_attention

INF = float("inf")


def feeds_of(t: int = 5, s: int = 5) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes = {"q": (t, 3), "k": (s, 3), "v": (s, 4)}
    return {n: rng.standard_normal((2, *shape)).astype(np.float32) for n, shape in shapes.items()}


def attentions(graph: Graph) -> list[dict[str, Any]]:
    return [n.attrs for n in graph.reachable() if n.op.name == "attention"]


RECOGNISED = {
    "causal": (lambda q, k, v: ops.softmax_causal(q @ k.mT / 2.0) @ v, True, 0.5),
    "unscaled": (lambda q, k, v: ops.softmax(q @ k.mT) @ v, False, 1.0),
    "factor": (lambda q, k, v: ops.softmax(q @ k.mT * 0.3) @ v, False, 0.3),
    "factor first": (lambda q, k, v: ops.softmax(0.3 * (q @ k.mT)) @ v, False, 0.3),
    "masked": (lambda q, k, v: ops.softmax(ops.where_causal(q @ k.mT / 4.0, -INF)) @ v, True, 0.25),
    "masked before": (lambda q, k, v: ops.softmax(ops.where_causal(q @ k.mT, -INF) / 4.0) @ v, True, 0.25),
    "large number": (lambda q, k, v: ops.softmax(ops.where_causal(q @ k.mT, -1e9) * 1.0) @ v, True, 1.0),
    "transposed": (lambda q, k, v: ops.softmax(q @ ops.permute(k, (0, 2, 1))) @ v, False, 1.0),
    "negative": (lambda q, k, v: ops.softmax(-0.5 * (q @ k.mT)) @ v, False, -0.5),
}


@pytest.mark.parametrize("name", RECOGNISED)
def test_is_recognised(name: str) -> None:
    fn, causal, scale = RECOGNISED[name]
    feeds = feeds_of()
    graph = traced(fn, feeds)
    made = recognise_attention(graph)
    verify(made)
    (attributes,) = attentions(made)
    assert attributes == {"causal": causal, "scale": pytest.approx(scale)}
    assert_same(on_reference(made, feeds), on_reference(graph, feeds))


def used_twice(q: Any, k: Any, v: Any) -> list[Any]:
    p = ops.softmax(q @ k.mT)
    return [p @ v, p]


def two_products(q: Any, k: Any, v: Any) -> Any:
    p = ops.softmax(q @ k.mT)
    return p @ v + p @ (v * 2.0)


LEFT_ALONE = {
    "result": used_twice,
    "two products": two_products,
    "dropout": lambda q, k, v: ops.dropout(ops.softmax(q @ k.mT), 0.5) @ v,
    "other axis": lambda q, k, v: ops.softmax(q @ k.mT, -2) @ v,
    "added bias": lambda q, k, v: ops.softmax(q @ k.mT + ops.sum(q)) @ v,
    "small fill": lambda q, k, v: ops.softmax(ops.where_causal(q @ k.mT, -10.0)) @ v,
    "fill made small": lambda q, k, v: ops.softmax(ops.where_causal(q @ k.mT, -1e9) * 1e-9) @ v,
    "fill turned": lambda q, k, v: ops.softmax(ops.where_causal(q @ k.mT, -INF) * -1.0) @ v,
    "sigmoid": lambda q, k, v: ops.sigmoid(q @ k.mT) @ v,
    "other mask": lambda q, k, v: ops.softmax(ops.where(q @ k.mT > 0.0, q @ k.mT, -INF)) @ v,
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_is_left_alone(name: str) -> None:
    graph = traced(LEFT_ALONE[name], feeds_of())
    assert recognise_attention(graph) is graph


def test_captures_do_not_count_and_stay() -> None:
    feeds = feeds_of()
    graph = traced(lambda q, k, v: ops.capture("p", ops.softmax_causal(q @ k.mT)) @ v, feeds)
    made = recognise_attention(graph)
    assert len(attentions(made)) == 1
    assert made.captures["p"].node.op.name == "softmax_causal"
    with tracing(made):
        made.outputs = [*made.outputs, made.captures["p"]]
    graph.outputs = [*graph.outputs, graph.captures["p"]]
    assert_same(on_reference(made, feeds), on_reference(graph, feeds))


def test_leaves_that_nothing_reads_stay() -> None:
    graph = traced(lambda q, k, v, w: ops.softmax(q @ k.mT) @ v, {**feeds_of(), "w": np.ones(3, np.float32)})
    assert recognise_attention(graph).leaves.keys() == graph.leaves.keys()


def test_a_gpt_stores_no_scores() -> None:
    b, t, dim, heads = 2, 320, 32, 4
    r = references()["gpt_char"]
    model = GPT(65, t, dim, heads, 1)
    layout = pipeline.layout_of(model, r.optimizer)
    step = pipeline.without_captures(pipeline.trace_loss(model, r.loss, layout, {"B": b, "T": t}))
    bound = {x.nbytes for d in generate(step).dispatches for x in d.bindings}
    stored = {x.nbytes for d in generate(step, Target(software=True)).dispatches for x in d.bindings}
    scores = 4 * b * heads * t * t
    assert max(bound) < scores / 4
    assert max(stored) == scores, "on a CPU that plays the GPU"
