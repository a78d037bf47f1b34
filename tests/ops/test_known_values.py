"""Small closed forms by hand, and bugs of other systems as cases; no code of ours computes what is expected."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import tgdsl.ops as ops
from tests.codegen.run import TARGETS, grads_of, on_device, traced
from tgdsl.autograd import gradients
from tgdsl.errors import InputError, ShapeError
from tgdsl.ir import REGISTRY
from tgdsl.ops.random import threefry
from tgdsl.reference.evaluate import compute


def grad(fn: Any, *operands: Any, wrt: int = 0) -> Any:
    """The gradient of the sum of `fn` with respect to one operand."""

    def of(*xs: Any) -> Any:
        y = fn(*xs)
        return gradients(y.graph, ops.sum(y) if y.ndim else y, [xs[wrt]])[0]

    return compute(of, *operands)


def test_untaken_branch_leaks_no_nan_with_a_safe_operand() -> None:
    def safe(x: Any) -> Any:
        positive = x > 0.0
        return ops.where(positive, ops.sqrt(ops.where(positive, x, 1.0)), x)

    np.testing.assert_array_equal(grad(safe, [-1.0, -4.0]), [1.0, 1.0])


@pytest.mark.parametrize("fn", [ops.maximum, ops.minimum])
def test_ties_share_equally(fn: Any) -> None:
    assert grad(fn, [1.0], [1.0]) == 0.5
    assert grad(fn, [1.0], [1.0], wrt=1) == 0.5


def test_extremum_over_an_axis_shares_among_ties() -> None:
    np.testing.assert_allclose(grad(lambda x: ops.max(x, -1), [[2.0, 2.0, 1.0]]), [[0.5, 0.5, 0.0]])


@pytest.mark.parametrize("x", [0.0, -0.0])
def test_subgradients_at_the_kink_are_zero(x: float) -> None:
    assert grad(ops.abs, [x]) == 0.0
    assert grad(ops.relu, [x]) == 0.0
    assert grad(lambda t: ops.leaky_relu(t, 0.1), [x]) == pytest.approx(0.1)


def test_squared_norm_has_zero_gradient_at_zero() -> None:
    np.testing.assert_array_equal(grad(lambda x: ops.sum(x * x), [0.0, 0.0, 0.0]), [0.0, 0.0, 0.0])


def test_second_derivative_of_a_square_at_zero() -> None:
    def twice(x: Any) -> Any:
        first = gradients(x.graph, ops.sum(x**2), [x])[0]
        return grads_of(ops.sum(first), [x])[0]

    np.testing.assert_array_equal(compute(twice, [0.0]), [2.0])


def test_gradient_of_a_scalar_operand_has_its_shape() -> None:
    got = grad(lambda s, v, ct: s * v * ct, 2.0, [1.0, 2.0], [3.0, 4.0])
    assert got.shape == ()
    assert got == 11.0


@pytest.mark.parametrize("fn", [ops.tanh, ops.sigmoid, ops.silu])
def test_permuted_operand_has_the_gradient_of_a_copy(fn: Any) -> None:
    x = np.random.default_rng(0).standard_normal((1, 7, 4, 3))
    turned = grad(lambda t: fn(ops.permute(t, (0, 3, 1, 2))), x)
    np.testing.assert_allclose(turned, grad(fn, x), rtol=1e-12)


def test_overlapping_pool_adds() -> None:
    x = np.array([[[[0.0, 0.0, 5.0, 0.0, 0.0]]]])
    got = grad(lambda t: ops.max_pool2d(t, (1, 3), stride=1), x)
    np.testing.assert_array_equal(got[0, 0, 0], [0.0, 0.0, 3.0, 0.0, 0.0])


def test_matmul_by_hand() -> None:
    np.testing.assert_array_equal(compute(ops.matmul, [[1.0, 2.0], [3.0, 4.0]], [[5.0], [6.0]]), [[17.0], [39.0]])
    np.testing.assert_array_equal(grad(ops.matmul, [[1.0, 2.0]], [[5.0], [6.0]]), [[5.0, 6.0]])


def test_same_tensor_twice() -> None:
    np.testing.assert_array_equal(grad(lambda x: x * x, [3.0]), [6.0])
    np.testing.assert_array_equal(grad(lambda x: x - x, [3.0]), [0.0])


def test_embedding_adds_repeated_rows() -> None:
    got = grad(lambda t, i: ops.embedding(t, i), [[1.0], [2.0], [3.0]], np.array([1, 1, 0], np.int32))
    np.testing.assert_array_equal(got, [[1.0], [2.0], [0.0]])


def test_index_out_of_range_raises() -> None:
    with pytest.raises(InputError, match="index 3 is out of range for 3 rows"):
        compute(ops.embedding, [[1.0], [2.0], [3.0]], np.array([3], np.int32))


def test_cross_entropy_by_hand() -> None:
    logits, target = [[0.0, np.log(3.0)]], np.array([1], np.int32)
    assert compute(ops.cross_entropy, logits, target) == pytest.approx(-np.log(0.75))
    got = grad(lambda x, t: ops.cross_entropy(x, t), logits, target)
    np.testing.assert_allclose(got, [[0.25, -0.25]])
    assert compute(lambda x, t: ops.cross_entropy(x, t, reduction="sum"), logits * 2, np.array([1, 1], np.int32)) == (
        pytest.approx(-2 * np.log(0.75))
    )


def test_integer_division_follows_python() -> None:
    a, b = np.array([-7, 7, -7], np.int32), np.array([2, -2, -2], np.int32)
    np.testing.assert_array_equal(compute(lambda x, y: x // y, a, b), [-4, -4, 3])
    np.testing.assert_array_equal(compute(lambda x, y: x % y, a, b), [1, -1, -1])


def test_argmax_takes_the_first_of_ties() -> None:
    assert compute(ops.argmax, [1.0, 5.0, 5.0]) == 1
    assert compute(ops.argmin, [1.0, 0.0, 0.0]) == 1


def test_threefry_has_the_published_vectors() -> None:
    zero = np.zeros(1, np.uint32)
    full = np.full(1, 0xFFFFFFFF, np.uint32)
    assert [hex(int(w[0])) for w in threefry((0, 0), (zero, zero))] == ["0x6b200159", "0x99ba4efe"]
    assert [hex(int(w[0])) for w in threefry((0xFFFFFFFF,) * 2, (full, full))] == ["0x1cb996fc", "0xbb002be7"]


def test_random_streams_are_uniform_and_independent() -> None:
    n = 100_000
    both = [compute(lambda: ops.rand((n,)), key=(1, k)) for k in (0, 1)]
    for u in both:
        assert u.min() >= 0.0
        assert u.max() < 1.0
        assert abs(u.mean() - 0.5) < 0.005
        counts, _ = np.histogram(u, 64, (0.0, 1.0))
        assert ((counts - n / 64) ** 2 / (n / 64)).sum() < 120  # chi-square, 63 degrees of freedom
    assert abs(np.corrcoef(both[0], both[1])[0, 1]) < 0.01
    two = compute(lambda: ops.stack([ops.rand((n,)), ops.rand((n,))]))
    assert abs(np.corrcoef(two[0], two[1])[0, 1]) < 0.01
    normal = compute(lambda: ops.randn((n,)))
    assert abs(normal.mean()) < 0.02
    assert abs(normal.std() - 1.0) < 0.02


def test_dropout_mask_is_the_same_in_the_gradient() -> None:
    x = np.ones((50, 20))
    y = compute(lambda t: ops.dropout(t, 0.25), x)
    assert set(np.unique(y)) == {0.0, 1.0 / 0.75}
    assert 0.7 < np.mean(y > 0) < 0.8
    np.testing.assert_array_equal(grad(lambda t: ops.dropout(t, 0.25), x), y)


def test_untaken_branch_without_a_safe_operand_gives_nan_as_documented() -> None:
    """0 times infinity: `where` says so, and shows the way around."""
    assert "NaN" in (ops.where.__doc__ or "")
    got = grad(lambda x: ops.where(x > 0.0, ops.sqrt(x), x), [4.0, -1.0])
    assert got[0] == 0.25
    assert np.isnan(got[1])


def test_norm_at_zero_with_a_safe_operand() -> None:
    def norm(x: Any) -> Any:
        total = ops.sum(x * x)
        zero = ops.equal(total, 0.0)
        return ops.where(zero, 0.0, ops.sqrt(ops.where(zero, 1.0, total)))

    np.testing.assert_array_equal(grad(norm, [0.0, 0.0, 0.0]), [0.0, 0.0, 0.0])
    np.testing.assert_allclose(grad(norm, [3.0, 4.0]), [0.6, 0.8])


def test_transposed_convolution_of_stride_2_and_kernel_1() -> None:
    w, ct = np.full((1, 1, 1, 1), -0.7767), np.array([1.5, 0.0, 0.7]).reshape(1, 1, 1, 3)
    x = np.array([2.0, -1.0]).reshape(1, 1, 1, 2)
    turned = REGISTRY["conv2d_input"]

    def fn(x: Any, w: Any, ct: Any) -> Any:
        y = turned(x, w, stride=(2, 2), padding=(0, 0), size=(1, 3))
        return grads_of(y, [x], ct)[0]

    np.testing.assert_allclose(compute(fn, x, w, ct).ravel(), [-1.16505, -0.54369])


def test_convolution_by_hand() -> None:
    x = np.arange(9.0).reshape(1, 1, 3, 3)
    got = compute(ops.conv2d, x, [[[[1.0, 0.0], [0.0, -1.0]]]])
    np.testing.assert_array_equal(got[0, 0], [[-4.0, -4.0], [-4.0, -4.0]])
    delta = np.zeros((1, 1, 3, 3))
    delta[0, 0, 1, 1] = 1.0
    np.testing.assert_array_equal(compute(lambda x, w: ops.conv2d(x, w, padding=1), x, delta), x)
    np.testing.assert_array_equal(
        compute(lambda x, w: ops.conv2d(x, w, padding=1, stride=2), x, delta)[0, 0], [[0.0, 2.0], [6.0, 8.0]]
    )


def test_max_pool_shares_among_ties_and_padding_never_wins() -> None:
    shared = grad(lambda t: ops.max_pool2d(t, 2), np.ones((1, 1, 2, 2)))
    np.testing.assert_array_equal(shared, np.full((1, 1, 2, 2), 0.25))
    assert compute(lambda t: ops.max_pool2d(t, 2, padding=1), np.full((1, 1, 2, 2), -7.0)).max() == -7.0


def test_layer_norm_and_its_parameters_by_hand() -> None:
    x, w, b = [[1.0, 3.0], [2.0, 2.0]], [2.0, 10.0], [0.5, 0.0]

    def fn(x: Any, w: Any, b: Any) -> Any:
        return ops.layer_norm(x, w, b, eps=1e-30)

    np.testing.assert_allclose(compute(fn, x, w, b), [[-1.5, 10.0], [0.5, 0.0]])
    np.testing.assert_allclose(grad(fn, x, w, b, wrt=1), [-1.0, 1.0])
    np.testing.assert_allclose(grad(fn, x, w, b, wrt=2), [2.0, 2.0])


def test_softmax_by_hand() -> None:
    np.testing.assert_allclose(compute(ops.softmax, [0.0, np.log(3.0)]), [0.25, 0.75])
    np.testing.assert_allclose(compute(ops.softmax, [1e4, 1e4 + np.log(3.0)]), [0.25, 0.75], rtol=1e-8)
    got = compute(lambda x, c: gradients(x.graph, ops.softmax(x), [x], c)[0], [0.0, np.log(3.0)], [1.0, 0.0])
    np.testing.assert_allclose(got, [0.1875, -0.1875])
    np.testing.assert_allclose(compute(ops.logsumexp, [np.log(2.0), np.log(6.0)]), np.log(8.0))
    np.testing.assert_array_equal(compute(ops.softmax_causal, np.zeros((3, 3)))[0], [1.0, 0.0, 0.0])


def test_softmax_of_nothing_but_minus_infinity() -> None:
    """A row that is masked as a whole is NaN in the bare softmax, as documented, and leaves other rows alone."""
    x = [[-np.inf, -np.inf], [0.0, 0.0]]
    got = compute(ops.softmax, x)
    assert np.isnan(got[0]).all()
    np.testing.assert_array_equal(got[1], [0.5, 0.5])
    assert "NaN" in (ops.softmax.__doc__ or "")


def test_product_with_zeros_has_the_right_gradient() -> None:
    np.testing.assert_array_equal(grad(ops.prod, [2.0, 0.0, 3.0]), [0.0, 6.0, 0.0])
    np.testing.assert_array_equal(grad(ops.prod, [0.0, 0.0, 3.0]), [0.0, 0.0, 0.0])
    np.testing.assert_array_equal(grad(ops.prod, [2.0, 5.0, 3.0]), [15.0, 6.0, 10.0])


def test_powers_at_zero_and_below() -> None:
    np.testing.assert_array_equal(grad(lambda x: x**3, [0.0, -2.0]), [0.0, 12.0])
    np.testing.assert_array_equal(grad(lambda x: x**1, [0.0, -2.0]), [1.0, 1.0])
    np.testing.assert_array_equal(grad(lambda x: x**0, [0.0, -2.0]), [0.0, 0.0])
    np.testing.assert_array_equal(compute(lambda x: x**-1, [-2.0, 4.0]), [-0.5, 0.25])


def test_integer_sums_keep_their_dtype_and_wrap() -> None:
    got = compute(ops.sum, np.array([2**31 - 1, 1], np.int32))
    assert got.dtype == np.int32
    assert got == -(2**31)


def test_slices_with_negative_steps() -> None:
    x = np.arange(12.0).reshape(3, 4)
    keys: list[Any] = [
        np.s_[::-1],
        np.s_[:, ::-2],
        np.s_[2:0:-1, 1],
        np.s_[..., None, 1:3],
        np.s_[-1],
        np.s_[-2:, -3:-1],
    ]
    for key in keys:
        np.testing.assert_array_equal(compute(lambda t, key=key: t[key], x), x[key])
        hit = np.zeros_like(x)
        hit[key] = 1.0
        np.testing.assert_array_equal(grad(lambda t, key=key: t[key], x), hit)


def test_no_size_is_zero() -> None:
    """There are no empty tensors, so that no fold is over nothing."""
    for make in (ops.zeros, ops.ones, ops.rand, ops.randn):
        with pytest.raises(ShapeError, match="at least 1"):
            compute(lambda make=make: make((2, 0)))


def test_consecutive_seeds_and_steps_give_unlike_masks() -> None:
    keys = [(0, 0), (0, 1), (1, 0), (1, 1)]
    masks = [compute(lambda x: ops.dropout(x, 0.5), np.ones(50_000), key=k) > 0 for k in keys]
    r = np.corrcoef(np.array(masks, float)) - np.eye(4)
    assert np.abs(r).max() < 0.02


gpu = pytest.mark.gpu
on_both = pytest.mark.parametrize("target", TARGETS, ids=["gpu kernels", "cpu kernels"])


def run(engine: Any, target: Any, fn: Any, **arrays: Any) -> list[Any]:
    """The outputs of `fn` as WGSL computes them."""
    arrays = {k: np.asarray(a, np.float32) if np.asarray(a).dtype.kind == "f" else a for k, a in arrays.items()}
    return on_device(engine, traced(fn, arrays), arrays, target)


@gpu
@on_both
def test_large_arguments_stay_finite(engine: Any, target: Any) -> None:
    x = np.array([44.0, -44.0, 89.0, -89.0, 1e4, -1e4, 1e13, -1e13, -13.24, 100.0, -100.0])
    up = np.maximum(x, 0.0)

    def fn(x: Any) -> list[Any]:
        outs = [ops.tanh(x), ops.sigmoid(x), ops.gelu(x), ops.gelu(x, "tanh"), ops.softplus(x), ops.silu(x)]
        return [*outs, *(grads_of(ops.sum(y), [x])[0] for y in outs)]

    values = run(engine, target, fn, x=x)
    assert all(np.isfinite(got).all() for got in values)
    step = (x > 0) * 1.0
    for got, want in zip(values[:6], [np.sign(x), step, up, up, up, up], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=5e-5)
    for got, want in zip(values[6:], [0 * x, 0 * x, step, step, step, step], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=5e-5)


@gpu
@on_both
def test_infinite_arguments(engine: Any, target: Any) -> None:
    got = run(engine, target, lambda x: [ops.tanh(x), ops.sigmoid(x), ops.relu(x)], x=[np.inf, -np.inf])
    np.testing.assert_array_equal(got[0], [1.0, -1.0])
    np.testing.assert_allclose(got[1], [1.0, 0.0], atol=1e-30)
    np.testing.assert_array_equal(got[2], [np.inf, 0.0])


@gpu
@on_both
def test_long_sums_are_not_sequential(engine: Any, target: Any) -> None:
    def fn(x: Any) -> list[Any]:
        return [ops.sum(x), ops.mean(ops.reshape(x, (1000, 1000)), 0)]

    total, mean = run(engine, target, fn, x=np.full(1_000_000, 0.1))
    assert total == pytest.approx(100_000.0, abs=0.1)
    np.testing.assert_allclose(mean, 0.1, rtol=1e-6)
    minus = run(engine, target, lambda x: [ops.mean(x)], x=np.full((4500, 450), -1.0))[0]
    assert minus == pytest.approx(-1.0, rel=2e-7)


@gpu
@on_both
def test_more_operands_than_bindings(engine: Any, target: Any) -> None:
    xs = {f"x{i}": np.linspace(-1, 1, 4) * (i + 1) for i in range(12)}

    def fn(**xs: Any) -> list[Any]:
        total = ops.gelu(functools.reduce(lambda a, b: a + b, xs.values()))
        return [total, *grads_of(ops.sum(total), list(xs.values()))]

    got = run(engine, target, fn, **xs)
    z = np.linspace(-1, 1, 4) * 78
    np.testing.assert_allclose(got[0], np.maximum(z, 0.0), rtol=1e-6, atol=1e-6)
    assert len(got) == 13
    for g in got[1:]:
        np.testing.assert_allclose(g, z > 0, atol=1e-6)


@gpu
@on_both
def test_fold_over_axes_apart_then_compared(engine: Any, target: Any) -> None:
    x = np.random.default_rng(0).standard_normal((1, 2, 2, 2, 2, 64)).astype(np.float32)

    def fn(x: Any) -> list[Any]:
        return [ops.equal(x, ops.max(x, (2, 4), keepdims=True))]

    np.testing.assert_array_equal(run(engine, target, fn, x=x)[0], x == x.max((2, 4), keepdims=True))


@gpu
@on_both
def test_division_of_integers_follows_python_on_the_device(engine: Any, target: Any) -> None:
    a, b = np.array([-7, 7, -7, -7, 7], np.int32), np.array([2, -2, -2, 0, 0], np.int32)
    quotient, rest = run(engine, target, lambda a, b: [a // b, a % b], a=a, b=b)
    np.testing.assert_array_equal(quotient, [-4, -4, 3, -7, 7])
    np.testing.assert_array_equal(rest, [1, -1, -1, 0, 0])
    np.testing.assert_array_equal(compute(lambda x, y: x // y, a, b), quotient)


@gpu
@on_both
def test_threefry_words_on_the_device(engine: Any, target: Any) -> None:
    """The first uniform number under the key (1, 2) is the first 24 bits of the published function's word."""
    salt = traced(lambda: ops.rand((4,)), {}).outputs[0].node.attrs["salt"]
    counter = np.arange(4, dtype=np.uint32)
    words, _ = threefry((1, 2), (counter, np.full_like(counter, salt)))
    np.testing.assert_array_equal(run(engine, target, lambda: [ops.rand((4,))])[0], (words >> 8) * np.float32(2.0**-24))


def test_attention_shapes_and_causality() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 5, 3)) for _ in range(3))
    first = compute(lambda a, b, c: ops.attention(a, b, c, causal=True), q, k, v)
    changed = v.copy()
    changed[:, 3:] += 10.0
    second = compute(lambda a, b, c: ops.attention(a, b, c, causal=True), q, k, changed)
    np.testing.assert_allclose(first[:, :3], second[:, :3], rtol=1e-12)
    assert not np.allclose(first[:, 3:], second[:, 3:])
