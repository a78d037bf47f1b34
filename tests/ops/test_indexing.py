"""Gathers, masks and their adjoints, against NumPy and by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tgdsl.ops as ops
from tests.ops.tools import grad
from tgdsl.errors import DTypeError, InputError, ShapeError
from tgdsl.reference.evaluate import compute

RNG = np.random.default_rng(0)


def ints(*values: Any) -> Any:
    return np.array(values, np.int32)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
@pytest.mark.parametrize("row", [(), (4,), (2, 2)])
def test_take_is_numpy_indexing(shape: tuple[int, ...], row: tuple[int, ...]) -> None:
    table = RNG.standard_normal((5, *row))
    indices = RNG.integers(0, 5, shape).astype(np.int32)
    np.testing.assert_array_equal(compute(ops.take, table, indices), table[indices])


def test_gradient_of_take_sums_the_cotangents_of_each_row() -> None:
    got = grad(ops.take, [[0.0], [0.0], [0.0]], ints([2, 0], [2, 2]), ct=[[[1.0], [10.0]], [[100.0], [1000.0]]])
    np.testing.assert_array_equal(got, [[10.0], [0.0], [1101.0]])


def test_scalar_index_takes_one_row() -> None:
    got = grad(ops.embedding, [[1.0, 2.0], [3.0, 4.0]], np.int32(1), ct=[5.0, 7.0])
    np.testing.assert_array_equal(got, [[0.0, 0.0], [5.0, 7.0]])


@pytest.mark.parametrize("bad", [-1, 3])
def test_index_outside_of_the_table_raises(bad: int) -> None:
    with pytest.raises(InputError, match=f"index {bad} is out of range"):
        compute(ops.take, [1.0, 2.0, 3.0], ints(0, bad))


@given(data=st.data())
def test_take_along_axis_agrees_with_numpy(data: Any) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    wanted = [*shape]
    wanted[axis] = data.draw(st.integers(1, 5))
    x = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
    indices = np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, shape[axis], wanted).astype(np.int32)
    got = compute(lambda t, i: ops.take_along_axis(t, i, axis), x, indices)
    np.testing.assert_array_equal(got, np.take_along_axis(x, indices, axis))


def test_gradient_of_take_along_axis_adds_what_is_taken_twice() -> None:
    got = grad(ops.take_along_axis, [[0.0, 0.0, 0.0]], ints([2, 2, 0]), ct=[[1.0, 10.0, 100.0]])
    np.testing.assert_array_equal(got, [[100.0, 0.0, 11.0]])


def test_one_hot_of_an_index_out_of_range_is_a_row_of_zeros() -> None:
    got = compute(lambda i: ops.one_hot(i, 3), ints(0, 2, -1, 3))
    np.testing.assert_array_equal(got, [[1, 0, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0]])
    assert got.dtype.kind == "f"


def test_one_hot_of_integers() -> None:
    got = compute(lambda i: ops.one_hot(i, 2, "i32"), ints([0], [1]))
    np.testing.assert_array_equal(got, [[[1, 0]], [[0, 1]]])
    assert got.dtype == np.int32


@pytest.mark.parametrize(
    ("fn", "error", "text"),
    [
        (lambda i: ops.one_hot(i, True), ShapeError, "depth must be at least 1"),
        (lambda i: ops.one_hot(i, 2, "bool"), DTypeError, "dtype must be 'f32' or 'i32'"),  # type: ignore[call-overload]
        (lambda i: ops.take_along_axis(ops.zeros((2, 2)), i), ShapeError, "shapes differ outside of axis 1"),
        (lambda i: ops.take(i, i), DTypeError, "take: expected f32"),
    ],
)
def test_bad_calls(fn: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        compute(fn, ints(0, 1))


def test_where_causal_fills_above_the_diagonal() -> None:
    x = np.arange(8.0).reshape(2, 2, 2)
    got = compute(lambda t: ops.where_causal(t, -np.inf), x)
    np.testing.assert_array_equal(got, [[[0, -np.inf], [2, 3]], [[4, -np.inf], [6, 7]]])
    np.testing.assert_array_equal(grad(lambda t: ops.where_causal(t, 9.0), x), [[[1, 0], [1, 1]]] * 2)


def test_where_causal_hides_what_is_above_the_diagonal() -> None:
    got = grad(lambda t: ops.where_causal(t, 0.0), [[1.0, np.nan], [1.0, 1.0]])
    np.testing.assert_array_equal(got, [[1.0, 0.0], [1.0, 1.0]])


def test_where_causal_refuses_nan() -> None:
    with pytest.raises(ShapeError, match="fill_value must be a number in the range of f32, got nan"):
        compute(lambda t: ops.where_causal(t, float("nan")), np.zeros((2, 2)))
