"""Hash-consing, sites, leaves, tracing, printing, verifying."""

from __future__ import annotations

from typing import Any

import pytest

import tgdsl.ops as ops
from tgdsl.errors import LoweringError, ShapeError, TraceError
from tgdsl.ir import REGISTRY, Graph, Node, Sized, TensorType, is_tracing, show, tracing, verify
from tgdsl.ops.leaves import declare


def traced() -> tuple[Graph, Any]:
    """A graph with one input, closed."""
    graph = Graph()
    with tracing(graph):
        x = declare(graph, "input", "x", TensorType((Sized(4, "B"), 2)))
    return graph, x


def test_same_application_is_the_same_node() -> None:
    graph, x = traced()
    with tracing(graph):
        a, b = ops.exp(x * 2.0), ops.exp(x * 2.0)
        assert a.node is b.node
        assert ops.exp(x).node is not a.node
    assert len(graph.sites(a.node)) == 2, "two places on one line are two sites"


def test_every_site_of_a_node_is_kept() -> None:
    graph, x = traced()
    with tracing(graph):
        first = ops.exp(x)
        second = ops.exp(x)
    sites = graph.sites(first.node)
    assert second.node is first.node
    assert [s.line for s in sites] == [sites[0].line, sites[0].line + 1]
    assert all(s.short.startswith("test_graph.py:") for s in sites)


@pytest.mark.parametrize(("a", "b"), [(0.0, -0.0), (1, 1.0), (1.0, True)])
def test_attributes_that_compare_equal_are_kept_apart(a: Any, b: Any) -> None:
    graph, _ = traced()
    with tracing(graph):
        one = REGISTRY["full"](shape=(), value=a, dtype="f32")
        two = REGISTRY["full"](shape=(), value=b, dtype="f32")
    assert one.node is not two.node


def test_leaf_names_are_unique_across_params_and_inputs() -> None:
    graph, _ = traced()
    with tracing(graph):
        with pytest.raises(TraceError, match="already declared"):
            declare(graph, "param", "x", TensorType((2,)))
        declare(graph, "state", "x", TensorType((2,)))


def test_nested_trace_is_refused_and_state_restored() -> None:
    graph, x = traced()
    with tracing(graph):
        with pytest.raises(TraceError, match="already being traced"), tracing(Graph()):
            pass
        ops.exp(x)
    with pytest.raises(RuntimeError, match="boom"), tracing(graph):
        raise RuntimeError("boom")
    with pytest.raises(TraceError, match="only while"):
        ops.exp(x)


def test_graph_of_a_failed_trace_is_left_and_another_can_begin() -> None:
    graph, x = traced()
    with pytest.raises(ShapeError), tracing(graph):
        ops.reshape(x, (3,))
    assert not is_tracing()
    other, y = traced()
    with tracing(other):
        assert ops.exp(y).graph is other
        with pytest.raises(TraceError, match="does not belong to this trace"):
            ops.add(y, x)
        with pytest.raises(TraceError, match="does not belong to this trace"):
            ops.capture("c", x)
    assert [n.op.name for n in other.nodes] == ["input", "exp"]


def test_order_of_attributes_and_operands_is_part_of_a_node() -> None:
    graph, x = traced()
    with tracing(graph):
        y = ops.exp(x)
        assert (x - y).node is not (y - x).node
        assert ops.sum(x, 0).node is not ops.sum(x, 1).node
        assert ops.sum(x, (0, 1)).node is ops.sum(x).node is ops.sum(x, (-1, 0)).node
        assert ops.sum(x, -1).node is ops.sum(x, 1).node


def test_random_ops_never_merge() -> None:
    graph, _ = traced()
    with tracing(graph):
        assert ops.rand((2,)).node is not ops.rand((2,)).node


def test_only_what_roots_need_is_reachable_and_operands_come_first() -> None:
    graph, x = traced()
    with tracing(graph):
        kept = ops.exp(x) + 1.0
        ops.log(x)
        graph.outputs = [kept]
    names = [n.op.name for n in graph.reachable()]
    assert "log" not in names
    assert names[0] == "input"
    assert names[-1] == "add"


def test_salts_differ_by_path_and_occurrence() -> None:
    graph = Graph()
    first = graph.salt()
    with graph.scope("a"):
        inner = graph.salt()
    assert len({first, inner, graph.salt()}) == 3
    assert Graph().salt() == first


def test_printed_form() -> None:
    graph, x = traced()
    with tracing(graph):
        w = declare(graph, "param", "w", TensorType((2, 3)))
        graph.outputs = [ops.relu(x @ w)]
    assert show(graph, sites=False).splitlines() == [
        "%0 = input x: f32[B=4, 2]",
        "%1 = parameter w: f32[2, 3]",
        "%2 = matmul(%0, %1): f32[B=4, 3]",
        "%3 = relu(%2): f32[B=4, 3]",
        "return %3",
    ]
    assert "test_graph.py:" in str(graph)


def test_verify_accepts_what_was_traced_and_refuses_a_wrong_type() -> None:
    graph, x = traced()
    with tracing(graph):
        graph.outputs = [ops.sum(ops.exp(x))]
    verify(graph)
    last = graph.nodes[-1]
    graph.nodes[-1] = Node(last.id, last.op, last.inputs, last.attrs, TensorType((7,)))
    graph.outputs = []
    with pytest.raises(LoweringError, match="should have type"):
        verify(graph)


def test_dim_names_survive_ops() -> None:
    graph, x = traced()
    with tracing(graph):
        y = ops.exp(x) + ops.sum(x, 1, keepdims=True)
    assert str(y.type) == "f32[B=4, 2]"
    assert int(y.shape[0]) == 4
