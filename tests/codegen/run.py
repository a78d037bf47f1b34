"""Run a traced function on WGSL and on the reference, and compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tgdsl.autograd import gradients
from tgdsl.codegen import Target, generate
from tgdsl.dtypes import DType
from tgdsl.ir import AnyTensor, Graph, Tensor, TensorType, tracing
from tgdsl.ops.leaves import declare
from tgdsl.optim.step import StepGraphs
from tgdsl.program import Program, StepData
from tgdsl.reference.evaluate import evaluate

DTYPES: dict[str, DType] = {"f": "f32", "i": "i32", "b": "bool"}
TARGETS = (Target(), Target(software=True))
"""Both families of kernels run on whatever adapter there is."""


def traced(fn: Callable[..., Any], arrays: Mapping[str, np.ndarray], below: Mapping[str, int] | None = None) -> Graph:
    """The graph of `fn` called with one input leaf per array."""
    graph = Graph(facts={"below": dict(below or {})})
    with tracing(graph):
        leaves = {
            name: declare(graph, "input", name, TensorType(a.shape, DTYPES[a.dtype.kind])) for name, a in arrays.items()
        }
        out = fn(**leaves)
    graph.outputs = list(out) if isinstance(out, (tuple, list)) else [out]
    return graph


def grads_of(y: AnyTensor[Any], wrt: Sequence[AnyTensor[Any]], seed: Tensor | None = None) -> list[Tensor]:
    """Gradients within the trace that made `y`."""
    assert y.graph is not None
    return gradients(y.graph, y, wrt, seed)


def program_of(graph: Graph, target: Target | None = None) -> Program:
    """The inference program of all outputs, named `0`, `1`, ..."""
    results: dict[str, AnyTensor[Any]] = {str(i): t for i, t in enumerate(graph.outputs)}
    return generate(StepGraphs(graph, results), target)


def on_device(engine: Any, graph: Graph, arrays: Mapping[str, np.ndarray], target: Target) -> list[np.ndarray]:
    """Every output as WGSL computes it."""
    store = engine.allocate({})
    executable = engine.load(program_of(graph, target), store, slots=1)
    f32 = {k: a.astype(np.float32) if a.dtype.kind == "f" else a for k, a in arrays.items()}
    results = executable.submit([StepData(f32, {"key0": 1, "key1": 2})])[0].read()
    executable.destroy()
    store.destroy()
    return [results[str(i)] for i in range(len(graph.outputs))]


def on_reference(graph: Graph, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Every output as the f64 evaluator computes it from the same f32 inputs."""
    leaves = {node.attrs["name"]: node for (space, _), node in graph.leaves.items() if space == "named"}
    feeds = {leaves[k]: a.astype(np.float32) if a.dtype.kind == "f" else a for k, a in arrays.items()}
    nodes = [t.node for t in graph.outputs]
    values = evaluate(graph, feeds, nodes, mode="f64", key=(1, 2))
    return [values[n] for n in nodes]


def assert_same(got: Sequence[np.ndarray], want: Sequence[np.ndarray], *, terms: int = 1, scale: float = 0.0) -> None:
    """Compare with the tolerance for sums of `terms` products (exactly for integers and bools)."""
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        assert g.shape == w.shape, f"output {i}: shape {g.shape}, expected {w.shape}"
        if w.dtype.kind != "f":
            np.testing.assert_array_equal(g, w, err_msg=f"output {i}")
            continue
        big = max(scale, float(np.max(np.abs(w), initial=0.0, where=np.isfinite(w))))
        tolerance = (5e-6 + 2e-7 * np.sqrt(terms)) * max(big, 1e-3)
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=tolerance, err_msg=f"output {i}")
