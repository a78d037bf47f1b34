"""Bad calls: refused at once, with operands, the user's own line, and nothing added to the graph."""

from __future__ import annotations

import inspect
import math
import sys
from typing import Any

import numpy as np
import pytest

import tgdsl.ops as ops
from tests.helpers import OPS
from tests.strategies import SeededDraw
from tgdsl.errors import DTypeError, ShapeError, TgdslError, TraceError
from tgdsl.ir import Graph, TensorType, tracing
from tgdsl.ops.leaves import declare

UNARY = [
    name
    for name, op in OPS.items()
    if op.operands == ("x",) and op.sample(SeededDraw(0)).attrs == {} and not name.startswith(("cast_", "logical_"))
]
"""Functions of one f32 tensor and nothing else."""

CASES: list[tuple[Any, type[Exception] | tuple[type[Exception], ...], str]] = [
    (lambda t: t["a"] + t["b"], ShapeError, "add: shapes do not broadcast at axis -1 (3 against 2)"),
    (lambda t: t["a"] @ t["a"], ShapeError, "matmul: inner dims differ (3 != 4)"),
    (lambda t: t["a"] @ t["c"], ShapeError, "the right operand looks transposed; write x @ w.mT"),
    (lambda t: ops.matmul(t["v"], t["a"]), ShapeError, "both operands need rank >= 2"),
    (lambda t: ops.relu(t["i"]), DTypeError, "relu: expected f32"),
    (lambda t: t["a"] + t["i"], DTypeError, "add: dtypes differ (f32 and i32)"),
    (lambda t: t["i"] + 0.5, DTypeError, "0.5 is not an integer"),
    (lambda t: t["a"] + np.ones(3), DTypeError, "add: expected a tensor or a number, got ndarray"),
    (lambda t: np.ones(3) * t["a"], DTypeError, "mul: expected a tensor or a number, got ndarray"),
    (lambda t: t["a"] + math.nan, ShapeError, "the constant is NaN"),
    (lambda t: t["a"] * 1e39, ShapeError, "outside the range of f32"),
    (lambda t: t["i"] + 2**31, ShapeError, "does not fit i32"),
    (lambda t: t["a"] / 0.0, ShapeError, "division by the constant zero"),
    (lambda t: t["i"] / t["i"], (DTypeError, TypeError), ""),
    (lambda t: t["i"] // 0, ShapeError, "floor_divide: division by the constant zero"),
    (lambda t: t["i"] % 0, ShapeError, "remainder: division by the constant zero"),
    (lambda t: ops.floor_divide(t["v"], t["v"]), DTypeError, "floor_divide: expected i32"),
    (lambda t: ops.div(t["i"], t["i"]), DTypeError, "div: integers are divided with //"),
    (lambda t: t["p"] + 1, (DTypeError, TypeError), ""),
    (lambda t: t["p"] < t["p"], (DTypeError, TypeError), ""),
    (lambda t: ops.less(t["p"], t["p"]), DTypeError, "less: expected numbers, got bool"),
    (lambda t: ops.logical_and(t["a"], t["p"]), DTypeError, "logical_and: expected bool"),
    (lambda t: ops.logical_not(t["i"]), DTypeError, "logical_not: expected bool"),
    (lambda t: ops.is_finite(t["i"]), DTypeError, "is_finite: expected f32"),
    (lambda t: ops.power(t["i"], 1), DTypeError, "power: expected f32"),
    (lambda t: t["a"] ** math.inf, ShapeError, "power: the exponent must be finite"),
    (lambda t: ops.cast(t["a"], "f64"), ShapeError, "cast: unknown dtype 'f64'"),  # type: ignore[call-overload]
    (lambda t: ops.where(True, t["a"], t["a"]), DTypeError, "where: cond must be a tensor, got True"),  # type: ignore[call-overload]
    (lambda t: ops.where(t["p"], t["a"], t["q"]), DTypeError, "where: dtypes differ (f32 and i32)"),
    (lambda t: ops.where(t["p"], t["v"], t["v"]), ShapeError, "where: shapes do not broadcast at axis -1"),
    (lambda t: ops.where(t["p"], 1e39, 0.0), ShapeError, "outside the range of f32"),
    (lambda t: ops.add(t["p"], t["p"]), DTypeError, "expected numbers, got bool"),
    (lambda t: ops.where(t["a"], t["a"], t["a"]), DTypeError, "where: expected bool"),
    (lambda t: ops.reshape(t["a"], (-1, -1)), ShapeError, "at most one -1"),
    (lambda t: ops.reshape(t["a"], (5, -1)), ShapeError, "12 elements do not fit"),
    (lambda t: ops.reshape(t["a"], (0, 12)), ShapeError, "sizes must be at least 1"),
    (lambda t: ops.reshape(t["a"], (2.0, 6)), ShapeError, "reshape: sizes must be integers"),  # type: ignore[arg-type]
    (lambda t: ops.swap_axes(t["a"], 0, 2), ShapeError, "swap_axes: axis 2 is out of range"),
    (lambda t: t["v"].mT, ShapeError, "mT: needs rank 2 or more"),
    (lambda t: ops.pad(t["a"], [(1, 1)]), ShapeError, "does not give two widths for each axis"),
    (lambda t: ops.pad(t["a"], [(1, 1), (-1, 0)]), ShapeError, "does not give two widths for each axis"),
    (lambda t: ops.pad(t["i"], [(1, 0)], 0.5), DTypeError, "pad: 0.5 is not an integer"),
    (lambda t: ops.flip(t["a"], 2), ShapeError, "flip: axis 2 is out of range"),
    (lambda t: ops.expand_dims(t["a"], 3), ShapeError, "expand_dims: axis 3 is out of range for rank 3"),
    (lambda t: ops.squeeze(t["a"], 0), ShapeError, "squeeze: axis 0 has size 4, not 1"),
    (lambda t: ops.slice_last_range(t["a"], 1, 5), ShapeError, "[1, 5) is not a range of axis 1"),
    (lambda t: t["a"][..., ...], ShapeError, "at most one ellipsis"),
    (lambda t: t["a"][t["i"]], DTypeError, "expected an integer, a slice, None or ..., got IntTensor"),
    (lambda t: ops.sum(t["p"]), DTypeError, "sum: expected numbers, got bool"),
    (lambda t: ops.sum(t["p"], ()), DTypeError, "sum: expected numbers, got bool"),
    (lambda t: ops.mean(t["i"]), DTypeError, "mean: expected f32"),
    (lambda t: ops.max(t["p"]), DTypeError, "max: expected numbers, got bool"),
    (lambda t: ops.argmax(t["p"]), DTypeError, "argmax: expected numbers, got bool"),
    (lambda t: ops.argmin(t["s"]), ShapeError, "argmin: a scalar has no axis"),
    (lambda t: ops.sum(t["a"], 1.0), ShapeError, "sum: an axis must be an integer, got 1.0"),  # type: ignore[arg-type]
    (lambda t: ops.sum(t["a"], True), ShapeError, "sum: an axis must be an integer, got True"),
    (lambda t: ops.sum_last(t["s"]), ShapeError, "sum_last: a scalar has no last axis"),
    (lambda t: ops.matmul(t["q"], t["q"]), DTypeError, "matmul: expected f32"),
    (lambda t: t["a3"] @ t["b3"], ShapeError, "matmul: batch dims differ"),
    (lambda t: ops.matmul_batched(t["a3"], t["w"]), ShapeError, "matmul_batched: batch dims differ"),
    (lambda t: ops.zeros((2, 0)), ShapeError, "zeros: sizes must be integers of at least 1"),
    (lambda t: ops.ones((-1,)), ShapeError, "ones: sizes must be integers of at least 1"),
    (lambda t: ops.full(shape=(2.0,), value=1.0), ShapeError, "full: sizes must be integers"),  # type: ignore[arg-type]
    (lambda t: ops.full(shape=2, value=1.0), ShapeError, "full: sizes must be integers of at least 1, got 2"),  # type: ignore[call-overload]
    (lambda t: ops.full(shape=(2,), value=math.nan), ShapeError, "full: nan is NaN"),
    (lambda t: ops.full(shape=(2,), value=0.5, dtype="i32"), DTypeError, "full: 0.5 is not an integer"),  # type: ignore[call-overload]
    (lambda t: ops.full(shape=(2,), value=0.5, dtype="f64"), ShapeError, "full: unknown dtype"),  # type: ignore[call-overload]
    (lambda t: ops.rand((0,)), ShapeError, "rand: sizes must be integers of at least 1"),
    (lambda t: ops.randn((2, 1.5)), ShapeError, "randn: sizes must be integers of at least 1"),  # type: ignore[arg-type]
    (lambda t: ops.broadcast_to(t["a"], (0, 4, 3)), ShapeError, "broadcast_to: sizes must be integers of at least 1"),
    (lambda t: ops.arange(3, "bool"), DTypeError, "arange: dtype must be"),  # type: ignore[call-overload]
    (lambda t: ops.take(t["q"], t["i"]), DTypeError, "take: expected f32"),
    (lambda t: ops.take_along_axis(t["q"], t["q"]), DTypeError, "take_along_axis: expected f32"),
    (lambda t: ops.take_along_axis(t["a"], t["i"]), ShapeError, "take_along_axis: shapes differ outside of axis 1"),
    (lambda t: ops.where_causal(t["a"], 0.0), ShapeError, "where_causal: the last two axes must be equal"),
    (lambda t: ops.log_softmax(t["a"], 2), ShapeError, "log_softmax: axis 2 is out of range"),
    (lambda t: ops.logsumexp(t["q"]), DTypeError, "logsumexp: expected f32"),
    (lambda t: ops.layer_norm(t["s"]), ShapeError, "layer_norm: a scalar has no axis"),
    (lambda t: ops.nll_loss(t["a"], t["i"]), ShapeError, "nll_loss: targets must have the shape"),
    (lambda t: ops.mse_loss(t["a"], t["a"], reduction="avg"), ShapeError, "reduction must be 'mean', 'sum' or 'none'"),  # type: ignore[arg-type]
    (lambda t: ops.avg_pool2d(t["a"], 2), ShapeError, "avg_pool2d: needs rank 4"),
    (lambda t: ops.avg_pool2d(t["m"], 5), ShapeError, "is larger than the padded image"),
    (lambda t: ops.conv2d(t["m"], t["m"], stride=0), ShapeError, "stride must be an int or a pair of ints"),
    (lambda t: ops.dropout(t["q"], 0.5), DTypeError, "dropout: expected f32"),
    (lambda t: ops.attention(t["v"], t["a"], t["a"]), ShapeError, "attention: q needs rank 2 or more"),
    (lambda t: ops.merge_heads(t["a"]), ShapeError, "merge_heads: needs rank 3 or more"),
    (lambda t: ops.split(t["a"], 0, 1), ShapeError, "does not cut an axis of size 3"),
    (lambda t: ops.concat([t["a"], t["q"]]), DTypeError, "concat: dtypes differ (f32 and i32)"),
    (lambda t: ops.permute(t["a"], (0, 0)), ShapeError, "is not a permutation"),
    (lambda t: ops.broadcast_to(t["a"], (4, 6)), ShapeError, "does not broadcast to [4, 6]"),
    (lambda t: t["a"][4], ShapeError, "index 4 is out of range for axis 0 of size 4"),
    (lambda t: t["a"][0, 0, 0], ShapeError, "too many indices (3) for rank 2"),
    (lambda t: t["a"][2:2], ShapeError, "is empty"),
    (lambda t: ops.sum(t["a"], 2), ShapeError, "sum: axis 2 is out of range for rank 2"),
    (lambda t: ops.sum(t["a"], (0, 0)), ShapeError, "names an axis twice"),
    (lambda t: ops.concat([t["a"], t["b"]], 0), ShapeError, "concat: shapes differ outside of axis 0"),
    (lambda t: ops.stack([t["a"], t["c"]], 0), ShapeError, "stack: shapes differ"),
    (lambda t: ops.concat([], 0), ShapeError, "nothing to join"),
    (lambda t: ops.split(t["a"], [1, 1], 1), ShapeError, "does not cut an axis of size 3"),
    (lambda t: ops.softmax(t["s"]), ShapeError, "softmax: a scalar has no axis"),
    (lambda t: ops.softmax_causal(t["a"]), ShapeError, "the last two axes must be equal"),
    (lambda t: ops.cross_entropy(t["a"], t["i"]), ShapeError, "targets must have the shape of logits without the"),
    (lambda t: ops.cross_entropy(t["a"], t["v"]), DTypeError, "expected f32 scores and i32 targets"),
    (lambda t: ops.embedding(t["v"], t["i"]), ShapeError, "the table needs rank 2"),
    (lambda t: ops.embedding(t["a"], t["v"]), DTypeError, "indices must be i32"),
    (lambda t: ops.one_hot(t["i"], 0), ShapeError, "depth must be at least 1"),
    (lambda t: ops.arange(0), ShapeError, "arange: n must be a positive integer"),
    (lambda t: ops.conv2d(t["a"], t["a"]), ShapeError, "conv2d: needs rank 4"),
    (lambda t: ops.max_pool2d(t["m"], 2, padding=2), ShapeError, "more than half of the kernel"),
    (lambda t: ops.conv2d(t["m"], t["m2"]), ShapeError, "conv2d: input channels differ"),
    (lambda t: ops.dropout(t["a"], 1.0), ShapeError, "p must be in [0, 1)"),
    (lambda t: ops.gelu(t["a"], "exact"), ShapeError, "approximate must be"),  # type: ignore[arg-type]
    (lambda t: ops.split_heads(t["a"], 2), ShapeError, "last dim 3 is not a multiple of 2 heads"),
    (lambda t: ops.mse_loss(t["a"], t["c"]), ShapeError, "mse_loss: shapes differ"),
    (lambda t: ops.narrow(t["a"], 0, 3, 2), ShapeError, "is not a range of axis 0"),
    (lambda t: ops.relu([1.0]), DTypeError, "expected a tensor or a number, got list"),  # type: ignore[arg-type]
    (lambda t: bool(t["p"]), TraceError, "has no truth value"),
    (lambda t: float(t["a"]), TraceError, "it has no value while it is traced"),
]


@pytest.mark.parametrize(("call", "error", "text"), CASES, ids=[c[2] or str(i) for i, c in enumerate(CASES)])
def test_bad_call(call: Any, error: Any, text: str) -> None:
    graph = Graph()
    with tracing(graph):
        f32 = {"a": (4, 3), "b": (2,), "c": (5, 3), "v": (4,), "m": (1, 3, 4, 4), "m2": (1, 2, 4, 4), "s": ()}
        f32 |= {"a3": (2, 4, 3), "b3": (3, 3, 4), "w": (3, 4)}
        tensors = {name: declare(graph, "input", name, TensorType(shape)) for name, shape in f32.items()}
        tensors["i"] = declare(graph, "input", "i", TensorType((2,), "i32"))
        tensors["q"] = declare(graph, "input", "q", TensorType((4, 3), "i32"))
        tensors["p"] = declare(graph, "input", "p", TensorType((4, 3), "bool"))
        before = len(graph.nodes)
        with pytest.raises(error) as caught:
            call(tensors)
    message = str(caught.value)
    assert text in message
    if isinstance(caught.value, TgdslError):
        assert "test_refusals.py" in message, "the user's own line is missing"
        assert "^" in message
    # A number becomes a constant before it is known what it meets.
    assert [n.op.name for n in graph.nodes[before:] if n.op.name != "full"] == []


NO_CASE = {
    "checkpoint",
    *("capture", "getitem", "logical_or", "leaky_relu", "matrix_transpose"),  # tested as an operator, or below
    *("sub", "mul", "maximum", "minimum", "remainder", "min", "prod"),  # as their siblings
    *("equal", "not_equal", "greater", "less_equal", "greater_equal"),
    *("concatenate", "swapaxes", "transpose", "mean_last", "sum_all", "log_softmax_last", "softmax_causal_last"),
    *("cross_entropy_last",),
}


def test_every_public_op_has_a_case() -> None:
    source = inspect.getsource(sys.modules[__name__])
    made = {name for name, f in vars(ops).items() if callable(f) and not name.startswith("_")}
    assert [n for n in sorted(made - set(UNARY) - NO_CASE) if f"ops.{n}(" not in source] == []


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("dtype", ["i32", "bool"])
def test_functions_of_one_f32_refuse_other_dtypes(name: str, dtype: Any) -> None:
    graph = Graph()
    with tracing(graph):
        x = declare(graph, "input", "x", TensorType((3, 3), dtype))
        with pytest.raises(DTypeError, match=r"expected f32(.|\n)*test_refusals"):
            OPS[name](x)
    assert len(graph.nodes) == 1


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
