"""Programs for half precision: what is stored as f16, and what that costs in accuracy."""

from __future__ import annotations

import re
from typing import Any

import attrs
import numpy as np
import pytest

import tgdsl.ops as ops
from benchmarks.graphs import references
from tests.codegen.run import TARGETS, grads_of, on_device, on_reference, program_of, traced
from tgdsl import pipeline
from tgdsl.codegen import Target, generate
from tgdsl.errors import LoweringError
from tgdsl.ir import Graph, TensorType, tracing
from tgdsl.ops.leaves import declare
from tgdsl.optim.step import StepGraphs
from tgdsl.pipeline import Precision
from tgdsl.program import Kernel, Program

HALF = [attrs.evolve(t, half=True) for t in TARGETS]
Feeds = dict[str, np.ndarray]


def training_program(name: str, precision: Precision, target: Target | None = None) -> Program:
    """The training step of a reference graph."""
    r = references()[name]
    layout = pipeline.layout_of(r.model, r.optimizer)
    step = pipeline.without_captures(pipeline.trace_loss(r.model, r.loss, layout, r.dims, precision=precision))
    update = pipeline.make_update(r.optimizer, layout, check_finite=False, precision=precision)
    wanted = attrs.evolve(target or Target(), half=precision == "f16")
    return generate(attrs.evolve(step, update=update.graph), wanted)


def declared(kernel: Kernel) -> list[str]:
    """The element type of every binding."""
    return re.findall(r"var<storage, \w+> \w+: array<(.+)>;", kernel.wgsl)


@pytest.fixture
def half_engine(engine: Any) -> Any:
    """The engine, if its adapter has the feature."""
    if not engine.limits.half:
        pytest.skip(f"NO shader-f16, HALF PRECISION IS NOT TESTED: {engine.description}")
    return engine


# -- text -------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["mlp_mnist", "gpt_small", "cnn"])
def test_only_scratch_is_f16_and_only_its_kernels_enable_it(name: str, target: Target) -> None:
    program = training_program(name, "f16", target)
    assert any("enable f16;" in k.wgsl for k in program.kernels)
    for kernel in program.kernels:
        code = [line for line in kernel.wgsl.splitlines() if not line.startswith("//")]
        types = declared(kernel)
        assert (code[0] == "enable f16;") == any("f16" in t for t in types)
        assert kernel.wgsl.count("enable f16;") == kernel.wgsl.count("enable")
        assert ("fn to_half" in kernel.wgsl) == ("= to_half(" in kernel.wgsl or "<f16>(to_half" in kernel.wgsl)
    for d in program.dispatches:
        for binding, element in zip(d.bindings, declared(program.kernels[d.kernel]), strict=True):
            assert "f16" not in element or program.buffers[binding.buffer].kind == "temp"
            assert binding.nbytes % 4 == 0


@pytest.mark.parametrize("name", ["mlp_sin", "gpt_small", "cnn"])
def test_f32_programs_know_nothing_of_it(name: str) -> None:
    assert not any(re.search("f16|to_half", k.wgsl) for k in training_program(name, "f32").kernels)


def test_loads_widen_and_stores_narrow() -> None:
    x = {"x": np.ones((64, 64), np.float32), "w": np.ones((64, 64), np.float32)}
    first, second = program_of(traced(lambda x, w: (x @ w) @ w, x), Target(half=True, software=True)).kernels
    assert declared(first)[-1] == "vec4<f16>"
    assert re.search(r"= vec4<f16>\(to_half\(acc_\w+\), to_half\(", first.wgsl)
    assert re.search(r"let \w+_quad = vec4<f32>\(matmul\[", second.wgsl)
    odd = {"x": np.ones((33, 33), np.float32), "w": np.ones((33, 33), np.float32)}
    program = program_of(traced(lambda x, w: (x @ w) @ w, odd), Target(half=True))
    first, second = program.kernels
    assert declared(first)[-1] == "f16"
    assert re.search(r"\] = to_half\(", first.wgsl)
    assert re.search(r"let matmul_at = f32\(matmul\[", second.wgsl)
    assert program.dispatches[0].bindings[-1].nbytes == 2180  # 2 * 33 * 33, and two bytes up to a word


def test_statistics_loss_terms_and_partial_sums_stay_f32() -> None:
    def norm_loss(x: Any, w: Any, v: Any) -> Any:
        h = x @ w
        h = (h - ops.mean(h, -1, keepdims=True)) @ v
        row = ops.log(ops.sum(ops.exp(h), -1))
        return [ops.mean(row), ops.sum((w.mT @ h) * 2.0, 0)]

    feeds = {n: np.ones(s, np.float32) for n, s in (("x", (512, 512)), ("w", (512, 512)), ("v", (512, 512)))}
    program = program_of(traced(norm_loss, feeds), Target(half=True))
    sizes = {512: 0, 512 * 512: 0}
    for d in program.dispatches:
        for binding, element in zip(d.bindings, declared(program.kernels[d.kernel]), strict=True):
            if program.buffers[binding.buffer].kind == "temp":
                item = 2 if "f16" in element else 4
                sizes[binding.nbytes // item] = sizes.get(binding.nbytes // item, 0) + 1
                assert item == 2 or binding.nbytes // item <= 512
                assert item == 4 or binding.nbytes // item > 512
    assert all(sizes.values())


def test_slices_of_a_split_contraction_are_added_in_f32() -> None:
    feeds = {"x": np.ones((4096, 64), np.float32), "w": np.ones((4096, 64), np.float32)}
    first, second = program_of(traced(lambda x, w: x.mT @ w, feeds), Target(half=True)).kernels
    assert not any("f16" in t for t in [*declared(first), *declared(second)])


def test_what_a_kernel_takes_the_largest_of_is_not_rounded_when_stored() -> None:
    """The gradient of a maximum compares with what is stored."""

    def fn(x: Any, w: Any) -> Any:
        y = ops.tanh(x + 1.0)
        top = ops.max(y, -1, keepdims=True)
        return [y @ w, ops.where(y >= top, 1.0, 0.0) @ w]

    feeds = {"x": np.ones((256, 64), np.float32), "w": np.ones((64, 64), np.float32)}
    program = program_of(traced(fn, feeds), Target(half=True))
    storing = [k for k in program.kernels if "tanh(" in k.wgsl and "max(" in k.wgsl]
    assert storing
    assert all("f16" not in t for k in storing for t in declared(k))


def test_bytes_moved_shrink_and_three_dispatches_are_added() -> None:
    half, full = (training_program("gpt_char", p) for p in ("f16", "f32"))
    assert half.bytes_moved < 0.65 * full.bytes_moved
    assert half.bytes_scratch < 0.52 * full.bytes_scratch
    assert half.kernel_count <= full.kernel_count + 3  # the norm in two stages, and the scale


def test_an_arena_must_not_be_read_by_a_kernel_beside_its_replacement() -> None:
    """Of two independent kernels that the same dispatch may run, one reads what the other replaces."""
    graph = Graph()
    with tracing(graph):
        a, b = (declare(graph, "state", n, TensorType((1, 64))) for n in "ab")
        g = declare(graph, "state", "g", TensorType((4, 64)))
        graph.updates["a"] = ops.where(a < 0.5, 1.0, a)
        graph.updates["g"] = ops.where(a[:, :1] < 0.5, g, b + g)
        graph.updates["b"] = ops.sum(g, 0, keepdims=True)
    loss = Graph()
    with tracing(loss):
        x = declare(loss, "input", "x", TensorType(()))
        step = StepGraphs(loss, {"loss": x + 1.0}, update=graph)
    with pytest.raises(LoweringError, match="an arena is read after"):
        generate(step)


# -- numbers ----------------------------------------------------------------


def layers(x: Any, w: Any, v: Any) -> list[Any]:
    """Contractions, a row kernel and column sums, with values between them."""
    h = ops.gelu(x @ w)
    p = ops.softmax(h @ v)
    return [p @ v.mT, ops.sum(p * h, 0), ops.mean(ops.square(h - p), -1)]


@pytest.mark.gpu
@pytest.mark.parametrize("target", HALF)
@pytest.mark.parametrize("n", [24, 33, 64])
def test_values_agree_to_the_rounding_of_f16(half_engine: Any, n: int, target: Target) -> None:
    rng = np.random.default_rng(n)
    feeds = {k: (rng.standard_normal((n, n)) / np.sqrt(n)).astype(np.float32) for k in "wv"}
    feeds["x"] = rng.standard_normal((n + 3, n)).astype(np.float32)
    graph = traced(layers, feeds)
    assert any("enable f16;" in k.wgsl for k in program_of(graph, target).kernels)
    got, want = on_device(half_engine, graph, feeds, target), on_reference(graph, feeds)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=4e-3, atol=2e-3 * float(np.abs(w).max()))
    assert any(np.abs(g - w).max() > 1e-5 * np.abs(w).max() for g, w in zip(got, want, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("target", HALF)
@pytest.mark.parametrize("n", [33, 64])
def test_what_f16_cannot_hold_becomes_infinite(half_engine: Any, n: int, target: Target) -> None:
    """Clamping would hide it from the loss scale; the largest f16 is 65504."""
    values = [65504.0, 65505.0, 1e30, -1e30, np.inf, -np.inf, np.nan, -65504.0, 2.0**-14, 1.0 + 2.0**-10]
    x = np.ones((n, 1), np.float32)
    x[: len(values), 0] = values
    feeds = {"x": x, "one": np.ones((1, n), np.float32), "z": np.zeros((n, n), np.float32)}
    graph = traced(lambda x, one, z: z @ z + ops.flip(x @ one, 1), feeds)  # what is turned around has to be stored
    assert any("to_half(" in k.wgsl for k in program_of(graph, target).kernels)
    (got,) = on_device(half_engine, graph, feeds, target)
    want = np.array([65504, np.inf, np.inf, -np.inf, np.inf, -np.inf, np.nan, -65504, 2.0**-14, 1.0 + 2.0**-10])
    for column in got.T:
        np.testing.assert_array_equal(column[: len(values)], want.astype(np.float32))


@pytest.mark.gpu
def test_fused_attention_reads_and_writes_halves(engine: Any) -> None:
    if not engine.limits.half:
        pytest.skip("NO shader-f16, HALF PRECISION IS NOT TESTED")
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal((4, 40, 16)).astype(np.float32) for n in ("q", "k", "v", "ct")}

    def fn(q: Any, k: Any, v: Any, ct: Any) -> list[Any]:
        a, b, c = (ops.softmax(x) * 2.0 for x in (q, k, v))  # stored, so that operands lie in scratch
        o = ops.tanh(ops.attention(a, b, c, causal=True))
        return [o, *grads_of(o, [q, k, v], ct)]

    graph = traced(fn, feeds)
    program = program_of(graph, Target(half=True))
    assert any("attention" in k.name and "f16" in k.wgsl for k in program.kernels)
    got, want = on_device(engine, graph, feeds, Target(half=True)), on_reference(graph, feeds)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, atol=6e-3 * float(np.max(np.abs(w))), rtol=0)
