"""Attention in kernels: parity with the f64 evaluator, what is stored, what is recognised."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import tgdsl.ops as ops
from tests.codegen.run import assert_same, grads_of, on_device, on_reference, program_of, traced
from tgdsl.codegen import Target, attention_tile

SIZES = (1, 15, 16, 17, 33, 65)
WIDTHS = (1, 5, 16, 32, 64)


def feeds_of(batch: tuple[int, ...], t: int, s: int, d: int, e: int) -> dict[str, Any]:
    """Operands, and a cotangent."""
    rng = np.random.default_rng([t, s, d, e])
    shapes = {"q": (t, d), "k": (s, d), "v": (s, e), "ct": (t, e)}
    return {name: rng.standard_normal((*batch, *shape)).astype(np.float32) for name, shape in shapes.items()}


def value_and_gradients(causal: bool) -> Any:
    def fn(q: Any, k: Any, v: Any, ct: Any) -> list[Any]:
        o = ops.attention(q, k, v, causal=causal)
        return [o, *grads_of(o, [q, k, v], ct)]

    return fn


def check(engine: Any, fn: Any, feeds: dict[str, Any], terms: int) -> None:
    graph = traced(fn, feeds)
    got = on_device(engine, graph, feeds, Target())
    assert_same(got, on_reference(graph, feeds), terms=terms, scale=1.0)


CASES = [
    (t, SIZES[-1 - i], WIDTHS[(i + k) % 5], WIDTHS[(2 * i + k) % 5]) for k in (0, 1, 3) for i, t in enumerate(SIZES)
]


@pytest.mark.gpu
@pytest.mark.parametrize(("t", "s", "d", "e"), CASES)
def test_any_size_agrees(engine: Any, t: int, s: int, d: int, e: int) -> None:
    check(engine, value_and_gradients(causal=False), feeds_of((2,), t, s, d, e), s + t + d)


@pytest.mark.gpu
@pytest.mark.parametrize(("t", "d"), [(t, WIDTHS[i % 5]) for i, t in enumerate(SIZES * 2)])
def test_any_size_agrees_causal(engine: Any, t: int, d: int) -> None:
    check(engine, value_and_gradients(causal=True), feeds_of((1, 3), t, t, d, d), 2 * t + d)


@pytest.mark.gpu
@pytest.mark.parametrize(("t", "d", "causal"), [(130, 20, True), (65, 64, False), (48, 128, True)])
def test_large_tiles_agree(engine: Any, t: int, d: int, causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several rows per thread, and widths that are staged in pieces."""
    monkeypatch.setattr(attention_tile, "BUSY_GROUPS", 1)
    check(engine, value_and_gradients(causal), feeds_of((2,), t, t, d, d), 2 * t + d)


@pytest.mark.gpu
def test_heads_are_read_where_they_lie(engine: Any) -> None:
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal((2, 19, 24)).astype(np.float32) for n in ("q", "k", "v", "ct")}

    def fn(q: Any, k: Any, v: Any, ct: Any) -> list[Any]:
        heads = [ops.split_heads(x, 3) for x in (q, k, v)]
        o = ops.merge_heads(ops.attention(*heads, causal=True))
        return [o, *grads_of(o, [q, k, v], ct)]

    check(engine, fn, feeds, 64)
    program = program_of(traced(lambda q, k, v, ct: fn(q, k, v, ct)[0], feeds))
    assert program.kernel_count == 2, "one kernel, and one that shows its result in the order of the output"


@pytest.mark.gpu
def test_rows_that_see_nothing_are_zero(engine: Any) -> None:
    inf = float("inf")
    q = np.ones((20, 1), np.float32)
    k = np.full((40, 1), -inf, np.float32)
    feeds = {"q": q, "k": k, "v": np.ones((40, 3), np.float32), "ct": np.ones((20, 3), np.float32)}

    def fn(q: Any, k: Any, v: Any, ct: Any) -> list[Any]:
        o = ops.attention(q, k, v)
        return [o, grads_of(o, [v], ct)[0]]

    graph = traced(fn, feeds)
    for got in on_device(engine, graph, feeds, Target()):
        np.testing.assert_array_equal(got, np.zeros_like(got))


@pytest.mark.gpu
def test_large_scores_do_not_overflow(engine: Any) -> None:
    feeds = feeds_of((2,), 33, 33, 16, 16)
    feeds["q"] *= 300.0
    graph = traced(lambda q, k, v, ct: ops.attention(q, k, v, causal=True, scale=1.0), feeds)
    (got,), (want,) = on_device(engine, graph, feeds, Target()), on_reference(graph, feeds)
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=2e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("target", [Target(max_bindings=8), Target(max_bindings=7)])
def test_second_order_agrees(engine: Any, target: Target) -> None:
    feeds = feeds_of((2,), 9, 9, 4, 4)

    def fn(q: Any, k: Any, v: Any, ct: Any) -> list[Any]:
        o = ops.attention(q, k, v, causal=True)
        first = grads_of(o, [q, k, v], ct)
        total = ops.sum(first[0] * q) + ops.sum(ops.square(first[1])) + ops.sum(first[2] * first[2])
        return grads_of(total, [q, k, v])

    graph = traced(fn, feeds)
    assert_same(on_device(engine, graph, feeds, target), on_reference(graph, feeds), terms=64, scale=10.0)


def test_gradient_is_one_dispatch_and_scores_are_not_stored() -> None:
    feeds = feeds_of((2, 3), 100, 100, 16, 16)
    program = program_of(traced(value_and_gradients(causal=True), feeds))
    dkv_in_two_parts = 1
    assert program.kernel_count == 2 + dkv_in_two_parts
    assert max(b.nbytes for d in program.dispatches for b in d.bindings) < 6 * 100 * 100 * 4


def test_bindings_stay_within_the_limit() -> None:
    feeds = feeds_of((2, 3), 10, 10, 4, 4)
    for limit in (7, 8):
        program = program_of(traced(value_and_gradients(causal=True), feeds), Target(max_bindings=limit))
        assert max(len(d.bindings) for d in program.dispatches) <= limit


@pytest.mark.parametrize("threads", [64, 128, 256])
@pytest.mark.parametrize("role", ["out", "lse", "dq", "dkv"])
def test_tiles_fit_into_workgroup_memory(role: Any, threads: int) -> None:
    """Beside the 4 bytes per thread and dtype that folds of the same bundle take."""
    widths = (1, 5, 32, 40, 64, 100, 128)
    for b, t, d, e in itertools.product((1, 64, 4096), (1, 16, 17, 256), widths, widths):
        span = attention_tile.Span(role, b, t, t + 1, d, 0 if role == "lse" else e)
        tile = attention_tile.choose_attention_tile(span, threads)
        assert tile.threads == threads
        assert tile.fits(span)
        assert 16 * tile.needed(span) + 8 * threads <= 16384
