"""Layers against NumPy, their parameters, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tgdsl import (
    F32,
    I32,
    Conv2d,
    Embedding,
    LayerNorm,
    Linear,
    ShapeError,
    f32,
    forward,
    i32,
    init,
    inputs,
    nn,
    parameters,
)
from tgdsl.frontend import initial_values, trace_forward
from tgdsl.reference.evaluate import evaluate

rng = np.random.default_rng(0)


@inputs
class Rows:
    x: F32 = f32("B", "T", 6)


@inputs
class Ids:
    x: I32 = i32("B", "T", below=5)


@inputs
class Images:
    x: F32 = f32("B", 2, 7, 6)


def apply(model: Any, cls: Any, x: np.ndarray, params: dict[str, np.ndarray]) -> np.ndarray:
    """The result in f64, called as `m(x)` and as `m.fwd(x)`, which must be one node."""

    def run(m: Any, b: Any) -> Any:
        y = m(b.x)
        assert m.fwd(b.x).node is y.node
        return y

    batch = cls(x=x)
    traced = trace_forward(model, forward(inputs=cls)(run), vars(batch)["_tg_dims"])
    feeds = {t.node: params[n] for n, t in traced.params.items()}
    feeds[traced.inputs["x"].node] = x
    return evaluate(traced.graph, feeds)[traced.output.node]


def drawn(model: Any) -> dict[str, np.ndarray]:
    return {n: rng.normal(size=p.shape) for n, p in parameters(model).items()}


@pytest.mark.parametrize("bias", [True, False])
def test_linear(bias: bool) -> None:
    model = Linear(6, 4, bias=bias)
    p, x = drawn(model), rng.normal(size=(2, 3, 6)).astype(np.float32)
    assert list(p) == (["w", "b"] if bias else ["w"])
    expected = x.astype(np.float64) @ p["w"] + p.get("b", 0.0)
    np.testing.assert_allclose(apply(model, Rows, x, p), expected, rtol=1e-12)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("eps", [1e-5, 0.3])
def test_layer_norm(bias: bool, eps: float) -> None:
    model = LayerNorm(6, eps, bias=bias)
    p, x = drawn(model), rng.normal(size=(2, 3, 6)).astype(np.float32)
    assert list(p) == (["g", "b"] if bias else ["g"])
    c = x - x.astype(np.float64).mean(-1, keepdims=True)
    expected = c / np.sqrt((c * c).mean(-1, keepdims=True) + eps) * p["g"] + p.get("b", 0.0)
    np.testing.assert_allclose(apply(model, Rows, x, p), expected, rtol=1e-9, atol=1e-12)


def test_embedding() -> None:
    model = Embedding(5, 3)
    p, ids = drawn(model), rng.integers(0, 5, (2, 4), dtype=np.int32)
    np.testing.assert_array_equal(apply(model, Ids, ids, p), p["w"][ids])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("stride", "padding"), [(1, 0), (1, 1), (2, 0), (2, 1)])
def test_conv2d(bias: bool, stride: int, padding: int) -> None:
    model = Conv2d(2, 3, 3, stride=stride, padding=padding, bias=bias)
    p, x = drawn(model), rng.normal(size=(2, 2, 7, 6)).astype(np.float32)
    assert list(p) == (["w", "b"] if bias else ["w"])
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[:, :, ::stride, ::stride]
    expected = np.einsum("bchwij,ocij->bohw", windows, p["w"]) + p.get("b", 0.0)
    np.testing.assert_allclose(apply(model, Images, x, p), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("model", "shown"),
    [
        (Linear(5, 2), "matmul: inner dims differ (6 != 5)"),
        (LayerNorm(5), "layer_norm: "),
    ],
)
def test_a_wrong_width_is_refused(model: Any, shown: str) -> None:
    with pytest.raises(ShapeError) as caught:
        apply(model, Rows, rng.normal(size=(2, 3, 6)).astype(np.float32), drawn(model))
    assert str(caught.value).startswith(shown)
    assert 'test_layers.py", line' in str(caught.value)


@pytest.mark.parametrize(
    ("model", "first"),
    [
        (Linear(2, 2), init.Normal(0.02)),
        (Embedding(2, 2), init.Normal(0.02)),
        (LayerNorm(2), init.Ones()),
        (Linear(2, 2, initial=init.Kaiming()), init.Kaiming()),
        (Embedding(2, 2, init.Zeros()), init.Zeros()),
    ],
)
def test_initial_values(model: Any, first: init.Init) -> None:
    w, *rest = parameters(model).values()
    assert w.initial == first
    assert all(b.initial == init.Zeros() for b in rest)
    assert set(initial_values(model, 0)) == set(parameters(model))


def test_decay_defaults() -> None:
    def flags(model: Any) -> list[bool]:
        return [p.decays for p in parameters(model).values()]

    assert flags(Linear(1, 1)) == flags(Conv2d(1, 1, 1)) == [True, False]
    assert flags(LayerNorm(1)) == [False, False]
    assert flags(Embedding(1, 1)) == [True]


@pytest.mark.parametrize(
    ("model", "shown"),
    [
        (Linear(2, 3), "Linear(din=2, dout=3, bias=True, initial=Normal(scale=0.02))"),
        (LayerNorm(2), "LayerNorm(dim=2, eps=1e-05, bias=True)"),
    ],
)
def test_repr(model: object, shown: str) -> None:
    assert repr(model) == shown


def test_functions_beside_the_layers() -> None:
    class Read:
        def per_head(self, name: str) -> list[Any]:
            return [name]

    functions: list[Callable[..., Any]] = [nn.split_heads, nn.merge_heads, nn.cross_entropy_last]
    assert all(map(callable, functions))
    assert nn.unsplit_heads(Read(), "attn") == ["attn"]
