"""Convolution and pooling against a naive loop, by hand, and by their laws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tgdsl.ops as ops
from tests.ops.tools import grad, parts
from tgdsl.errors import ShapeError
from tgdsl.reference.evaluate import compute


def naive(x: Any, w: Any, stride: tuple[int, int], padding: tuple[int, int]) -> Any:
    """Cross-correlation by the definition, one multiplication at a time."""
    (s, t), (p, q) = stride, padding
    x = np.pad(x, ((0, 0), (0, 0), (p, p), (q, q)))
    (b, _, h, v), (co, _, kh, kw) = x.shape, w.shape
    out = np.zeros((b, co, (h - kh) // s + 1, (v - kw) // t + 1))
    for at in np.ndindex(out.shape):
        n, c, i, j = at
        out[at] = np.sum(x[n, :, i * s : i * s + kh, j * t : j * t + kw] * w[c])
    return out


@given(data=st.data())
def test_convolution_is_the_naive_loop(data: Any) -> None:
    """Both gradients too: the convolution is linear in each operand, so <ct, conv(dx, w)> = <dx, grad>."""
    size = st.integers(1, 3)
    b, ci, co, kh, kw = (data.draw(size, n) for n in ("b", "ci", "co", "kh", "kw"))
    stride = data.draw(st.tuples(size, size), "stride")
    padding = data.draw(st.tuples(st.integers(0, 2), st.integers(0, 2)), "padding")
    h, v = (data.draw(st.integers(max(1, k - 2 * p), 6)) for k, p in zip((kh, kw), padding, strict=True))
    rng = np.random.default_rng(data.draw(st.integers(0, 99), "seed"))
    x, w = rng.standard_normal((b, ci, h, v)), rng.standard_normal((co, ci, kh, kw))
    dx, dw = rng.standard_normal(x.shape), rng.standard_normal(w.shape)

    def fn(x: Any, w: Any) -> Any:
        return ops.conv2d(x, w, stride=stride, padding=padding)

    want = naive(x, w, stride, padding)
    np.testing.assert_allclose(compute(fn, x, w), want, atol=1e-12)
    ct = rng.standard_normal(want.shape)
    for wrt, d, moved in ((0, dx, naive(dx, w, stride, padding)), (1, dw, naive(x, dw, stride, padding))):
        got = grad(fn, x, w, ct=ct, wrt=wrt)
        assert np.sum(d * got) == pytest.approx(np.sum(ct * moved), abs=1e-10)


def test_transposed_convolution_of_stride_two() -> None:
    """Pixels that no window reads, and the tap that reads the right cotangent (candle#2337)."""
    got = grad(
        lambda x, w: ops.conv2d(x, w, stride=(1, 2)), np.zeros((1, 1, 1, 3)), [[[[-0.7767]]]], ct=[[[[1.5, 0.7]]]]
    )
    np.testing.assert_allclose(got, [[[[-1.16505, 0.0, -0.54369]]]], rtol=1e-12)


def test_convolution_of_a_delta_is_the_flipped_kernel() -> None:
    x = np.zeros((1, 1, 3, 3))
    x[0, 0, 1, 1] = 1.0
    w = np.arange(9.0).reshape(1, 1, 3, 3)
    np.testing.assert_array_equal(compute(lambda a, b: ops.conv2d(a, b, padding=1), x, w)[0, 0], w[0, 0, ::-1, ::-1])


def test_convolution_moves_with_the_image() -> None:
    rng = np.random.default_rng(0)
    x, w = np.zeros((1, 2, 8, 8)), rng.standard_normal((3, 2, 3, 3))
    x[:, :, 2:5, 2:5] = rng.standard_normal((1, 2, 3, 3))
    moved = compute(lambda a, b: ops.conv2d(a, b), np.roll(x, (1, 1), (2, 3)), w)
    np.testing.assert_allclose(moved, np.roll(compute(lambda a, b: ops.conv2d(a, b), x, w), (1, 1), (2, 3)), atol=1e-12)


def test_kernel_of_one_pixel_is_a_product_over_channels() -> None:
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((2, 3, 4, 5)), rng.standard_normal((6, 3, 1, 1))
    np.testing.assert_allclose(compute(ops.conv2d, x, w), np.einsum("bchw,oc->bohw", x, w[:, :, 0, 0]), atol=1e-12)


def test_convolution_and_its_gradients_are_one_product_each() -> None:
    x, w = np.zeros((2, 3, 6, 6), np.float32), np.zeros((4, 3, 3, 3), np.float32)
    for wrt in (0, 1):
        found = parts(lambda x0, x1: ops.conv2d(x0, x1, padding=1), x, w, wrt=wrt)
        assert found["matmul"] == 2, found


# -- pooling -----------------------------------------------------------------

IMAGE = np.array([[[[1.0, 5.0, 2.0], [4.0, 3.0, 9.0], [8.0, 7.0, 6.0]]]])


def test_max_pool_by_hand() -> None:
    np.testing.assert_array_equal(compute(lambda x: ops.max_pool2d(x, 2, stride=1), IMAGE), [[[[5, 9], [8, 9]]]])
    got = grad(lambda x: ops.max_pool2d(x, 2, stride=1), IMAGE, ct=[[[[1.0, 10.0], [100.0, 1000.0]]]])
    np.testing.assert_array_equal(got, [[[[0, 1, 0], [0, 0, 1010], [100, 0, 0]]]])


def test_ties_share_equally() -> None:
    got = grad(lambda x: ops.max_pool2d(x, 2), np.full((1, 1, 2, 2), 7.0), ct=[[[[8.0]]]])
    np.testing.assert_array_equal(got, np.full((1, 1, 2, 2), 2.0))


def test_padding_never_wins() -> None:
    x = np.full((1, 1, 2, 2), -3.0)
    np.testing.assert_array_equal(compute(lambda t: ops.max_pool2d(t, 2, padding=1), x), np.full((1, 1, 2, 2), -3.0))
    np.testing.assert_array_equal(grad(lambda t: ops.max_pool2d(t, 2, padding=1), x), np.ones((1, 1, 2, 2)))


def test_stride_beyond_the_kernel_leaves_pixels_out() -> None:
    x = np.arange(25.0).reshape(1, 1, 5, 5)
    np.testing.assert_array_equal(compute(lambda t: ops.max_pool2d(t, 1, stride=(2, 3)), x), x[:, :, ::2, ::3])
    got = grad(lambda t: ops.max_pool2d(t, 1, stride=(2, 3)), x)
    assert got.sum() == 6.0
    assert np.all(got[:, :, ::2, ::3] == 1.0)


def test_stride_is_the_kernel_unless_told() -> None:
    assert compute(lambda x: ops.max_pool2d(x, (3, 2)), np.zeros((1, 1, 7, 7))).shape == (1, 1, 2, 3)


def test_avg_pool_counts_padding_as_zeros() -> None:
    x = np.full((1, 1, 2, 2), 4.0)
    np.testing.assert_array_equal(compute(lambda t: ops.avg_pool2d(t, 2, padding=1), x), np.ones((1, 1, 2, 2)))
    slopes = grad(lambda t: ops.avg_pool2d(t, 2, stride=1), IMAGE)
    np.testing.assert_array_equal(slopes * 4, [[[[1, 2, 1], [2, 4, 2], [1, 2, 1]]]])


@pytest.mark.parametrize(
    ("fn", "text"),
    [
        (lambda x: ops.conv2d(x, x, stride=0), "stride must be an int or a pair of ints of at least 1, got 0"),
        (lambda x: ops.conv2d(x, x, padding=-1), "padding must be an int or a pair of ints of at least 0, got -1"),
        (lambda x: ops.conv2d(x, x, stride=(1, 2, 3)), "stride must be an int or a pair"),  # type: ignore[arg-type]
        (lambda x: ops.conv2d(x, x, stride=1.5), "stride must be an int or a pair"),  # type: ignore[arg-type]
        (lambda x: ops.conv2d(x[:, :, :2], x), "the kernel is larger than the padded image"),
        (lambda x: ops.max_pool2d(x, 4), "the window \\(4, 4\\) is larger than the padded image"),
        (lambda x: ops.max_pool2d(x, 3, padding=2), "more than half of the kernel"),
        (lambda x: ops.avg_pool2d(x, True), "kernel must be an int or a pair"),
        (lambda x: ops.avg_pool2d(x[0], 2), "needs rank 4"),
    ],
)
def test_bad_calls(fn: Any, text: str) -> None:
    with pytest.raises(ShapeError, match=text):
        compute(fn, IMAGE)
