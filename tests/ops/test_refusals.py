"""Bad calls: refused at once, with operands, the user's own line, and nothing added to the graph."""

from __future__ import annotations

import math
from typing import Any

import pytest

import tgdsl.ops as ops
from tgdsl.errors import DTypeError, ShapeError, TraceError
from tgdsl.ir import Graph, TensorType, tracing
from tgdsl.ops.leaves import declare

CASES: list[tuple[Any, type[Exception], str]] = [
    (lambda t: t["a"] + t["b"], ShapeError, "add: shapes do not broadcast at axis -1 (3 against 2)"),
    (lambda t: t["a"] @ t["a"], ShapeError, "matmul: inner dims differ (3 != 4)"),
    (lambda t: t["a"] @ t["c"], ShapeError, "the right operand looks transposed; write x @ w.mT"),
    (lambda t: ops.matmul(t["v"], t["a"]), ShapeError, "both operands need rank >= 2"),
    (lambda t: ops.relu(t["i"]), DTypeError, "relu: expected f32"),
    (lambda t: t["a"] + t["i"], DTypeError, "add: dtypes differ (f32 and i32)"),
    (lambda t: t["i"] + 0.5, DTypeError, "0.5 is not an integer"),
    (lambda t: t["a"] + math.nan, ShapeError, "the constant is NaN"),
    (lambda t: t["a"] * 1e39, ShapeError, "outside the range of f32"),
    (lambda t: t["i"] + 2**31, ShapeError, "does not fit i32"),
    (lambda t: t["a"] / 0.0, ShapeError, "division by the constant zero"),
    (lambda t: (t["a"] > 0.0) + 1, (DTypeError, TypeError), ""),
    (lambda t: ops.add(t["a"] > 0.0, t["a"] > 0.0), DTypeError, "expected numbers, got bool"),
    (lambda t: ops.where(t["a"], t["a"], t["a"]), DTypeError, "where: expected bool"),
    (lambda t: ops.reshape(t["a"], (-1, -1)), ShapeError, "at most one -1"),
    (lambda t: ops.reshape(t["a"], (5, -1)), ShapeError, "12 elements do not fit"),
    (lambda t: ops.reshape(t["a"], (0, 12)), ShapeError, "sizes must be at least 1"),
    (lambda t: ops.permute(t["a"], (0, 0)), ShapeError, "is not a permutation"),
    (lambda t: ops.broadcast_to(t["a"], (4, 6)), ShapeError, "does not broadcast to [4, 6]"),
    (lambda t: t["a"][4], ShapeError, "index 4 is out of range for axis 0 of size 4"),
    (lambda t: t["a"][0, 0, 0], ShapeError, "too many indices (3) for rank 2"),
    (lambda t: t["a"][2:2], ShapeError, "is empty"),
    (lambda t: ops.sum(t["a"], 2), ShapeError, "sum: axis 2 is out of range for rank 2"),
    (lambda t: ops.sum(t["a"], (0, 0)), ShapeError, "names an axis twice"),
    (lambda t: ops.concat([t["a"], t["b"]], 0), ShapeError, "concat: shapes differ outside of axis 0"),
    (lambda t: ops.stack([t["a"], t["c"][:2]], 0), ShapeError, "stack: shapes differ"),
    (lambda t: ops.concat([], 0), ShapeError, "nothing to join"),
    (lambda t: ops.split(t["a"], [1, 1], 1), ShapeError, "does not cut an axis of size 3"),
    (lambda t: ops.softmax(ops.sum(t["a"])), ShapeError, "softmax: a scalar has no axis"),
    (lambda t: ops.softmax_causal(t["a"]), ShapeError, "the last two axes must be equal"),
    (lambda t: ops.cross_entropy(t["a"], t["i"]), ShapeError, "targets must have the shape of logits without the last axis"),
    (lambda t: ops.cross_entropy(t["a"], t["v"]), DTypeError, "expected f32 scores and i32 targets"),
    (lambda t: ops.embedding(t["v"], t["i"]), ShapeError, "the table needs rank 2"),
    (lambda t: ops.embedding(t["a"], t["v"]), DTypeError, "indices must be i32"),
    (lambda t: ops.one_hot(t["i"], 0), ShapeError, "depth must be at least 1"),
    (lambda t: ops.arange(0), ShapeError, "arange: n must be a positive integer"),
    (lambda t: ops.conv2d(t["a"], t["a"]), ShapeError, "conv2d: needs rank 4"),
    (lambda t: ops.max_pool2d(t["m"], 2, padding=2), ShapeError, "more than half of the kernel"),
    (lambda t: ops.conv2d(t["m"], t["m"][:, :2]), ShapeError, "conv2d: input channels differ"),
    (lambda t: ops.dropout(t["a"], 1.0), ShapeError, "p must be in [0, 1)"),
    (lambda t: ops.gelu(t["a"], "exact"), ShapeError, "approximate must be"),
    (lambda t: ops.split_heads(t["a"], 2), ShapeError, "last dim 3 is not a multiple of 2 heads"),
    (lambda t: ops.mse_loss(t["a"], t["c"]), ShapeError, "mse_loss: shapes differ"),
    (lambda t: ops.narrow(t["a"], 0, 3, 2), ShapeError, "is not a range of axis 0"),
    (lambda t: ops.relu([1.0]), DTypeError, "expected a tensor or a number, got list"),
    (lambda t: bool(t["a"] > 0.0), TraceError, "has no truth value"),
    (lambda t: float(t["a"]), TraceError, "it has no value while it is traced"),
]


@pytest.mark.parametrize(("call", "error", "text"), CASES, ids=[c[2] or str(i) for i, c in enumerate(CASES)])
def test_bad_call(call: Any, error: Any, text: str) -> None:
    graph = Graph()
    with tracing(graph):
        tensors = {
            "a": declare(graph, "input", "a", TensorType((4, 3))),
            "b": declare(graph, "input", "b", TensorType((2,))),
            "c": declare(graph, "input", "c", TensorType((5, 3))),
            "v": declare(graph, "input", "v", TensorType((4,))),
            "i": declare(graph, "input", "i", TensorType((2,), "i32")),
            "m": declare(graph, "input", "m", TensorType((1, 3, 4, 4))),
        }
        with pytest.raises(error) as caught:
            call(tensors)
    message = str(caught.value)
    assert text in message
    if not isinstance(caught.value, TypeError) or isinstance(caught.value, ShapeError):
        assert "test_refusals.py" in message, "the user's own line is missing"
        assert "^" in message
    added = [n.op.name for n in graph.nodes[6:]]
    assert "add" not in added or "broadcast" not in text


def test_operands_are_shown_with_type_and_origin() -> None:
    graph = Graph()
    with tracing(graph):
        a = declare(graph, "input", "a", TensorType((4, 3)))
        w = declare(graph, "param", "l1.w", TensorType((4, 3)))
        before = len(graph.nodes)
        with pytest.raises(ShapeError) as caught:
            a @ w
    lines = str(caught.value).splitlines()
    assert lines[0] == "matmul: inner dims differ (3 != 4)"
    assert lines[1] == "  left  f32[4, 3]  (input a)"
    assert lines[2] == "  right f32[4, 3]  (parameter l1.w)"
    assert lines[3] == "  hint: the right operand looks transposed; write x @ w.mT"
    assert lines[-2].strip() == "a @ w"
    assert lines[-1].strip() == "^^^^^"
    assert len(graph.nodes) == before, "a failed call adds nothing"


def test_foreign_tensor_is_refused() -> None:
    other = Graph()
    with tracing(other):
        a = declare(other, "input", "a", TensorType((2,)))
    graph = Graph()
    with tracing(graph):
        b = declare(graph, "input", "b", TensorType((2,)))
        with pytest.raises(TraceError, match="does not belong to this trace"):
            a + b


def test_op_outside_of_a_trace_is_refused() -> None:
    graph = Graph()
    with tracing(graph):
        a = declare(graph, "input", "a", TensorType((2,)))
    with pytest.raises(TraceError, match="only while a @forward function is being traced"):
        ops.relu(a)
