"""The floor: every name of tensorgrad 0.0.16 exists and does what it did, or says how it differs."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tgdsl import floor, ops, trace
from tgdsl.errors import GradientError, ParameterError, ShapeError, TraceError
from tgdsl.ir import Graph, tracing
from tgdsl.ops.leaves import leaves
from tgdsl.reference.evaluate import compute, evaluate

DOC = Path(__file__).parents[1] / "docs" / "tensorgrad.md"

VALUES = """
Captures Module ShapeError add appendAdam appendGrad arange capture compileForward compileModule compileToIR div
embedding emitKernels exp greater init.randn init.kaiming init.literal less log logSoftmaxLast lr.constant
lr.linearDecay lr.cosineDecay lr.warmup materializeParams matmul matmulBatched meanLast mul nn.Linear nn.LayerNorm
nn.splitHeads nn.mergeHeads nn.unsplitHeads nn.crossEntropyLast oneHot paramInput planBuffers relu reshape resolveLR
rsqrt sliceLastRange softmaxCausalLast sqrt stateInput sub sumAll sumLast swapAxes tensorInput trace traceInto
transpose where whereCausal
""".split()

TYPES = """
Dtype Shape Tensor CallSite OpNode Graph GradResult AdamConfig AdamResult LRSchedule InitSpec ParamOptions
MaterializedParams BufferSpec BufferPlan Writeback WritebackDecl KernelSpec CompiledIR InputDecl InputDecls
InputsTensors ForwardFn CompileModuleOptions CompileForwardOptions CompileForwardMethodOptions CompiledModule
CompiledForwardModule RunOptions UploadParamsOptions StepResult RunResult
""".split()


def rows() -> dict[str, str]:
    """Each documented name and where it is."""
    found = re.findall(r"^\| `([\w.]+)` \| `([\w.]+)` \| \S.* \|$", DOC.read_text(encoding="utf-8"), re.MULTILINE)
    return dict(found)


def resolve(path: str) -> Any:
    """The object at a dotted path."""
    parts = path.split(".")
    for n in range(len(parts), 0, -1):
        try:
            thing = importlib.import_module(".".join(parts[:n]))
        except ModuleNotFoundError:
            continue
        for part in parts[n:]:
            thing = getattr(thing, part)
        return thing
    raise ModuleNotFoundError(path)


def test_the_table_has_every_name_and_no_other() -> None:
    assert set(rows()) == set(VALUES) | set(TYPES)


@pytest.mark.parametrize("name", [*VALUES, *TYPES])
def test_name_exists(name: str) -> None:
    assert resolve(rows()[name]) is not None


def loss() -> Any:
    """mean((x @ w) ** 2) on declared leaves."""
    w, x = floor.param_input("w", (3, 2)), floor.tensor_input("x", (4, 3))
    return ops.mean(ops.square(x @ w))


def test_compile_to_ir_has_a_gradient_and_kernels() -> None:
    ir = floor.compile_to_ir(loss)
    assert list(ir.param_grads) == ["w"]
    assert ir.param_grads["w"].shape == (3, 2)
    assert ir.loss.shape == ()
    assert all("@compute" in k.wgsl for k in ir.kernels)
    assert ir.plan.buffers[ir.plan.param_grads_by_name["w"]].kind == "param_grad"


def test_append_grad_refuses_what_is_no_loss() -> None:
    with pytest.raises(GradientError, match="2 outputs"):
        floor.append_grad(trace(lambda: [loss(), ops.zeros(())]))
    with pytest.raises(GradientError, match=r"must be a scalar f32, got f32\[4, 2\]"):
        floor.append_grad(trace(lambda: floor.tensor_input("x", (4, 3)) @ floor.param_input("w", (3, 2))))


def test_unreached_parameter_gets_zeros_and_shared_gradient_keeps_both_names() -> None:
    def fn() -> Any:
        a, b = floor.param_input("a", (2,)), floor.param_input("b", (2,))
        floor.param_input("unused", (3,))
        return ops.sum_all(a + b)

    ir = floor.compile_to_ir(fn)
    assert set(ir.plan.param_grads_by_name) == {"a", "b", "unused"}
    graph = ir.graph
    feeds = {node: np.ones(node.shape) for node in leaves(graph, "param").values()}
    values = evaluate(graph, feeds, [t.node for t in ir.param_grads.values()])
    assert [values[t.node].tolist() for t in ir.param_grads.values()] == [[1, 1], [1, 1], [0, 0, 0]]


def test_append_adam_is_part_a_to_the_letter() -> None:
    graph = trace(loss)
    result = floor.append_grad(graph)
    params = {n: graph.tensor(node) for n, node in leaves(graph, "param").items()}
    config = floor.AdamConfig(0.1, weight_decay=0.5, eps=1e-3)
    adam = floor.append_adam(graph, result.param_grads, params, config)
    assert [w.dest_name for w in adam.writebacks] == ["adam_m_w", "adam_v_w", "w"]
    rng = np.random.default_rng(0)
    p, x, m, v = rng.standard_normal((3, 2)), rng.standard_normal((4, 3)), np.zeros((3, 2)), np.zeros((3, 2))
    values = {"w": p, "x": x, "adam_m_w": m, "adam_v_w": v, **floor.adam_scalars(config, 1)}
    feeds = {n: np.asarray(values[n.attrs["name"]]) for n in graph.nodes if "name" in n.attrs}
    got = evaluate(graph, feeds, [w.source.node for w in adam.writebacks])
    g = 2 * x.T @ (x @ p) / 8
    m1, v1 = 0.1 * g, 0.001 * g * g
    lrt = 0.1 * np.sqrt(1 - 0.999) / (1 - 0.9)
    expected = [m1, v1, p * (1 - 0.05) - lrt * m1 / (np.sqrt(v1) + 1e-3)]
    for w, e in zip(adam.writebacks, expected, strict=True):
        np.testing.assert_allclose(got[w.source.node], e, rtol=1e-10)


def test_decay_flag_wins_over_filter() -> None:
    config = floor.AdamConfig(0.1, weight_decay=0.1, decay_filter=lambda name: name != "b")
    assert floor.decays("a", config, {})
    assert not floor.decays("b", config, {"b": None})
    assert floor.decays("b", config, {"b": True})


def test_plan_refuses_a_writeback_that_does_not_fit() -> None:
    graph = trace(loss)
    out: Any = graph.outputs[0]
    with pytest.raises(ParameterError, match="unknown param 'nope'"):
        floor.plan_buffers(graph, {}, [floor.WritebackDecl(out, "nope", "param")])
    with pytest.raises(ParameterError, match="writeback of"):
        floor.plan_buffers(graph, {}, [floor.WritebackDecl(out, "w", "param")])


class Inner(floor.Module):
    """Two parameters."""

    def __init__(self) -> None:
        self.w = self.param((2, 2))
        self.b = self.param((2,), init="zeros")


class Outer(floor.Module):
    """Nested in every way that is followed."""

    def __init__(self) -> None:
        self.first = Inner()
        self.layers = [Inner(), Inner()]
        self.named = {"x": Inner()}
        self.again = self.first


def test_materialize_params_names_by_path() -> None:
    model = Outer()
    with tracing(Graph()):
        made = floor.materialize_params(model)
    assert list(made.tensors) == [
        "first.w", "first.b", "layers.0.w", "layers.0.b", "layers.1.w", "layers.1.b", "named.x.w", "named.x.b",
    ]  # fmt: skip
    assert made.decay_flags["first.w"]
    assert not made.decay_flags["first.b"]
    assert model.again.w is model.first.w
    assert made.init_fns["first.w"](4, np.random.default_rng(0)).shape == (4,)
    with pytest.raises(TraceError):
        floor.materialize_params(Outer())


def test_materialize_params_refuses_cycles_and_sets() -> None:
    model = Outer()
    model.again = model  # type: ignore[assignment]
    with tracing(Graph()), pytest.raises(TraceError, match="contains itself"):
        floor.materialize_params(model)
    other = Outer()
    other.named = {Inner()}  # type: ignore[assignment]
    with tracing(Graph()), pytest.raises(TraceError, match="no order"):
        floor.materialize_params(other)


@pytest.mark.parametrize(
    ("fn", "operands", "want"),
    [
        (ops.mean_last, [[[1.0, 3.0]]], [[2.0]]),
        (ops.sum_last, [[[1.0, 3.0]]], [4.0]),
        (ops.sum_all, [[[1.0, 3.0]]], 4.0),
        (lambda x: ops.slice_last_range(x, 1, 3), [[1.0, 2.0, 3.0, 4.0]], [2.0, 3.0]),
        (lambda x: ops.where_causal(x, -9.0), [[[1.0, 2.0], [3.0, 4.0]]], [[1.0, -9.0], [3.0, 4.0]]),
        (ops.softmax_causal_last, [[[5.0, 9.0], [1.0, 1.0]]], [[1.0, 0.0], [0.5, 0.5]]),
        (lambda i: ops.one_hot(i, 3), [[2, -1]], [[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]),
        (ops.matmul_batched, [[[[1.0, 2.0]]], [[[3.0], [4.0]]]], [[[11.0]]]),
        (lambda x: ops.swap_axes(x, -1, 0), [[[1.0, 2.0]]], [[1.0], [2.0]]),
    ],
)
def test_last_axis_names(fn: Any, operands: Any, want: Any) -> None:
    np.testing.assert_allclose(compute(fn, *operands), want)


def test_slices_and_batches_are_checked() -> None:
    with pytest.raises(ShapeError, match=r"\[1, 9\) is not a range"):
        compute(lambda x: ops.slice_last_range(x, 1, 9), [1.0, 2.0])
    with pytest.raises(ShapeError, match="batch dims differ"):
        compute(ops.matmul_batched, np.ones((1, 2, 2)), np.ones((3, 2, 2)))
