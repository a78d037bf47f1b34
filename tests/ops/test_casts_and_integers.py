"""Where backends like to differ: casts outside of the range, integer overflow, division by zero, NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tgdsl.ops as ops
from tests.codegen.run import TARGETS, on_device, on_reference, traced
from tests.session.test_numpy_engine import executable
from tgdsl.codegen import Target
from tgdsl.ir import BoolTensor
from tgdsl.reference.evaluate import compute

targets = pytest.mark.parametrize("target", TARGETS, ids=["gpu kernels", "cpu kernels"])
LEAST, MOST = -(2**31), 2**31 - 1
NAN, INF = float("nan"), float("inf")
TRUNCATED = [
    (0.0, 0), (-0.0, 0), (0.999, 0), (-0.999, 0), (1.5, 1), (-1.5, -1), (16777217.0, 16777216), (1e-40, 0),
    (2147483520.0, 2147483520), (2147483648.0, MOST), (-2147483648.0, LEAST), (-2147483904.0, LEAST),
    (3e38, MOST), (-3e38, LEAST), (INF, MOST), (-INF, LEAST), (NAN, 0), (-NAN, 0),
]  # fmt: skip
FLOATS = np.array([x for x, _ in TRUNCATED], np.float32)
INTEGERS = np.array([0, 1, -1, 2, -2, 3, -3, 7, -7, 46341, -46341, 2**30, MOST, MOST - 1, LEAST, LEAST + 1], np.int32)
LEFT, RIGHT = (a.ravel().copy() for a in np.meshgrid(INTEGERS, INTEGERS))


def everywhere(engine: Any, fn: Callable[..., Any], feeds: dict[str, Any], target: Target) -> list[np.ndarray]:
    """What the evaluator says, after checking that both backends say the same, dtype and all."""
    graph = traced(fn, feeds)
    want = on_reference(graph, feeds)
    for got in (on_device(engine, graph, feeds, target), executable(graph)(feeds)):
        for g, w in zip(got, want, strict=True):
            assert w.dtype.kind == "f" or g.dtype == w.dtype
            np.testing.assert_array_equal(g, w.astype(g.dtype))
    return want


@pytest.mark.gpu
@targets
def test_float_to_integer_saturates(engine: Any, target: Target) -> None:
    (got,) = everywhere(engine, lambda x: ops.cast(x, "i32"), {"x": FLOATS}, target)
    np.testing.assert_array_equal(got, [n for _, n in TRUNCATED])


def test_float_to_integer_saturates_for_constants() -> None:
    for value in (1e30, -1e30, INF, -INF):
        got = compute(lambda value=value: ops.cast(ops.full(shape=(2,), value=value), "i32"))
        np.testing.assert_array_equal(got, [MOST if value > 0 else LEAST] * 2)


@pytest.mark.gpu
@targets
def test_other_casts(engine: Any, target: Target) -> None:
    feeds = {"x": FLOATS, "i": INTEGERS, "p": np.array([True, False])}

    def fn(x: Any, i: Any, p: Any) -> list[Any]:
        return [ops.cast(x, "bool"), ops.cast(i, "bool"), ops.cast(i, "f32"), ops.cast(p, "i32"), ops.cast(p, "f32")]

    got = everywhere(engine, fn, feeds, target)
    np.testing.assert_array_equal(got[0][FLOATS != FLOATS], True)
    np.testing.assert_array_equal(got[2].astype(np.float32), INTEGERS.astype(np.float32))


ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "maximum": lambda a, b: ops.maximum(a, b),
    "minimum": lambda a, b: ops.minimum(a, b), "floor_divide": lambda a, b: a // b, "remainder": lambda a, b: a % b,
}  # fmt: skip
EXACT: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "maximum": max, "minimum": min,
    "floor_divide": lambda a, b: a // (b or 1), "remainder": lambda a, b: a % (b or 1),
}  # fmt: skip


def wrapped(n: int) -> int:
    """What is left of an integer in 32 bits."""
    return (n - LEAST) % 2**32 + LEAST


@pytest.mark.gpu
@targets
@pytest.mark.parametrize("name", ARITHMETIC)
def test_integers_wrap_around(engine: Any, name: str, target: Target) -> None:
    """Every pair of edge values, zero divisors and the least integer by -1 among them."""
    (got,) = everywhere(engine, ARITHMETIC[name], {"a": LEFT, "b": RIGHT}, target)
    assert got.dtype == np.int32
    want = [wrapped(EXACT[name](a, b)) for a, b in zip(LEFT.tolist(), RIGHT.tolist(), strict=True)]
    np.testing.assert_array_equal(got, want)


@pytest.mark.gpu
@targets
@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("name", ["sum", "prod", "max", "min"])
def test_folds_of_integers_stay_32_bits_wide(engine: Any, name: str, axis: int | None, target: Target) -> None:
    x = np.concatenate([LEFT, RIGHT]).reshape(8, -1)
    (got,) = everywhere(engine, lambda x: getattr(ops, name)(x, axis), {"x": x}, target)
    assert got.dtype == np.int32
    exact = getattr(np, name)(x.astype(object), axis=axis)
    np.testing.assert_array_equal(got, np.vectorize(wrapped, otypes=[np.int64])(exact))


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min"])
def test_long_folds_of_integers_stay_32_bits_wide(name: str) -> None:
    """Folds that a backend does in parts."""
    x = np.random.default_rng(0).integers(-(2**31), 2**31, (3000, 5)).astype(np.int32) | 1
    for axis in (0, 1, None):
        graph = traced(lambda x, axis=axis: getattr(ops, name)(x, axis), {"x": x})
        (got,), (want,) = executable(graph)({"x": x}), on_reference(graph, {"x": x})
        assert got.dtype == want.dtype == np.int32
        np.testing.assert_array_equal(got, want)


COMPARISONS: dict[str, Callable[..., BoolTensor]] = {
    n: getattr(ops, n) for n in ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")
}


@pytest.mark.gpu
@targets
@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons_of_special_values(engine: Any, name: str, target: Target) -> None:
    """Infinities, signed zeros, and NaN, which is different from everything; and integers at the edge."""
    special = np.array([0.0, -0.0, 1.0, -1.0, INF, -INF, NAN, 3e38], np.float32)
    a, b = (m.ravel().copy() for m in np.meshgrid(special, special))
    (got,) = everywhere(engine, lambda a, b: COMPARISONS[name](a, b), {"a": a, "b": b}, target)
    np.testing.assert_array_equal(got, getattr(np, name)(a, b))
    everywhere(engine, lambda a, b: COMPARISONS[name](a, b), {"a": LEFT, "b": RIGHT}, target)
