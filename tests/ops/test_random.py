"""The random numbers: published vectors, moments, and streams that do not repeat each other."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tgdsl.ops as ops
from tests.ops.tools import grad
from tgdsl.errors import DTypeError, ShapeError
from tgdsl.ops.random import threefry
from tgdsl.reference.evaluate import compute

N = 1_000_000


def words(key: tuple[int, int], *counters: int) -> list[int]:
    made = threefry(key, tuple(np.array([c], np.uint32) for c in counters))  # type: ignore[arg-type]
    return [int(w[0]) for w in made]


@pytest.mark.parametrize(
    ("key", "counter", "want"),
    [
        ((0, 0), (0, 0), [0x6B200159, 0x99BA4EFE]),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), [0x1CB996FC, 0xBB002BE7]),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), [0xC4923A9C, 0x483DF7A0]),
    ],
)
def test_known_answers_of_random123(key: tuple[int, int], counter: tuple[int, int], want: list[int]) -> None:
    assert words(key, *counter) == want


def test_negative_keys_are_bit_patterns() -> None:
    """The session passes i32 scalars."""
    assert words((-1, -1), 0xFFFFFFFF, 0xFFFFFFFF) == [0x1CB996FC, 0xBB002BE7]


def stream(key: tuple[int, int] = (0, 0), which: int = 0, make: Any = ops.rand, n: int = N) -> Any:
    """The `which`-th random op of a graph."""
    return compute(lambda: [make((n,)) for _ in range(which + 1)][-1], key=key)


def test_uniform_moments_and_range() -> None:
    u = stream()
    assert u.min() >= 0.0
    assert u.max() < 1.0, "1 would be the logarithm of 0 in Box-Muller, and a dropped element at p = 0"
    assert np.all(u * 2**24 == np.floor(u * 2**24)), "24 bits, exact in f32"
    assert abs(u.mean() - 0.5) < 5 / math.sqrt(12 * N)
    assert abs(u.var() - 1 / 12) < 5 / math.sqrt(180 * N)


def test_normal_moments() -> None:
    z = stream(make=ops.randn)
    assert np.isfinite(z).all()
    assert abs(z.mean()) < 5 / math.sqrt(N)
    assert abs(z.var() - 1.0) < 5 * math.sqrt(2 / N)
    assert abs((z**3).mean()) < 5 * math.sqrt(15 / N)
    assert abs((z**4).mean() - 3.0) < 5 * math.sqrt(96 / N)
    # Within 1 standard deviation: erf(1 / sqrt(2)).
    assert abs((np.abs(z) < 1.0).mean() - math.erf(math.sqrt(0.5))) < 0.0025


@pytest.mark.parametrize("make", [ops.rand, ops.randn])
def test_steps_ops_and_neighbours_are_uncorrelated(make: Any) -> None:
    first = stream(make=make)
    others = [stream((0, 1), make=make), stream((1, 0), make=make), stream(which=1, make=make), np.roll(first, 1)]
    for other in others:
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.005


def test_steps_do_not_permute_the_same_numbers() -> None:
    """Combining step, op and element by xor before hashing does (the ancestor's mistake)."""
    n = 256
    kept = {int((stream((0, step), n=n) >= 0.5).sum()) for step in range(50)}
    assert len(kept) > 10
    values = np.concatenate([stream((0, step), n=n) for step in range(50)])
    assert len(np.unique(values)) > 0.999 * values.size


def test_same_key_gives_the_same_numbers() -> None:
    np.testing.assert_array_equal(stream((3, 4), n=100), stream((3, 4), n=100))


def test_dropout_keeps_its_share_and_the_mean() -> None:
    y = compute(lambda x: ops.dropout(x, 0.2), np.full(N, 3.0))
    assert abs((y == 0.0).mean() - 0.2) < 5 * math.sqrt(0.16 / N)
    np.testing.assert_allclose(np.unique(y), [0.0, 3.75])


def test_masks_of_two_layers_and_of_two_steps_differ() -> None:
    def two(x: Any) -> Any:
        return ops.stack([ops.dropout(x, 0.5), ops.dropout(x, 0.5)])

    first, second = (compute(two, np.ones(N), key=(9, step)) for step in range(2))
    for a, b in ((first[0], first[1]), (first[0], second[0]), (first[1], second[1])):
        assert abs(np.corrcoef(a, b)[0, 1]) < 0.005


def test_gradient_of_dropout_has_the_mask_of_its_own_forward() -> None:
    x = np.full((20, 30), 2.0)

    def second_of_two(x: Any) -> Any:
        ops.dropout(x, 0.5)
        return ops.dropout(x, 0.5)

    for key in ((0, 0), (0, 1), (7, 7)):
        y = compute(second_of_two, x, key=key)
        np.testing.assert_array_equal(grad(second_of_two, x, key=key), y / 2.0)


def test_dropout_of_zero_is_the_tensor_itself() -> None:
    def fn(x: Any) -> Any:
        assert ops.dropout(x, 0.0) is x
        return x

    compute(fn, [1.0])


@pytest.mark.parametrize("p", [1.0, -0.1, float("nan")])
def test_dropout_of_everything_is_refused(p: float) -> None:
    with pytest.raises(ShapeError, match=r"p must be in \[0, 1\)"):
        compute(lambda x: ops.dropout(x, p), [1.0])


def test_dropout_of_integers_is_refused() -> None:
    with pytest.raises(DTypeError, match="dropout: expected f32"):
        compute(lambda x: ops.dropout(x, 0.5), np.zeros(2, np.int32))


@pytest.mark.parametrize("make", [ops.rand, ops.randn])
@pytest.mark.parametrize("shape", [(0,), (2.5,), (True,), (-1, 2)])
def test_bad_sizes_are_refused(make: Any, shape: Any) -> None:
    with pytest.raises(ShapeError, match="sizes must be integers of at least 1"):
        compute(lambda: make(shape))
