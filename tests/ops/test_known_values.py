"""Small closed forms by hand, and bugs of other systems as cases; no code of ours computes what is expected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tgdsl.ops as ops
from tests.codegen.run import TARGETS, on_device, traced
from tgdsl.autograd import gradients
from tgdsl.errors import InputError
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
        return gradients(x.graph, ops.sum(first), [x])[0]

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


@pytest.mark.gpu
@pytest.mark.parametrize("target", TARGETS)
def test_large_arguments_stay_finite(engine: Any, target: Any) -> None:
    x = np.array([44.0, -44.0, 89.0, -89.0, 1e4, -1e4, 1e13, -1e13], np.float32)

    def fn(x: Any) -> list[Any]:
        outs = [ops.tanh(x), ops.sigmoid(x), ops.gelu(x), ops.gelu(x, "tanh"), ops.softplus(x), ops.silu(x)]
        return [*outs, *(gradients(y.graph, ops.sum(y), [x])[0] for y in outs)]

    graph = traced(fn, {"x": x})
    for got in on_device(engine, graph, {"x": x}, target):
        assert np.isfinite(got).all(), got
    values = on_device(engine, graph, {"x": x}, target)
    np.testing.assert_array_equal(values[0], np.sign(x))
    np.testing.assert_array_equal(values[6], np.zeros(8))


def test_attention_shapes_and_causality() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 5, 3)) for _ in range(3))
    first = compute(lambda a, b, c: ops.attention(a, b, c, causal=True), q, k, v)
    changed = v.copy()
    changed[:, 3:] += 10.0
    second = compute(lambda a, b, c: ops.attention(a, b, c, causal=True), q, k, changed)
    np.testing.assert_allclose(first[:, :3], second[:, :3], rtol=1e-12)
    assert not np.allclose(first[:, 3:], second[:, 3:])
