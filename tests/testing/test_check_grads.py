"""The public gradient check: quiet on right models, exact about wrong ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import char_transformer, digits, digits_cnn, sine, xor
from tgdsl import F32, I32, Arg, Linear, Tensor, arg, f32, forward, i32, inputs, module
from tgdsl.errors import DimError, GradientError
from tgdsl.ir import REGISTRY
from tgdsl.ops import cross_entropy, tanh
from tgdsl.testing import batches, check_grads


@module
class Net:
    """A small classifier."""

    hidden: Arg[int] = arg(default=3)
    first: Linear = Linear(4, hidden)
    last: Linear = Linear(hidden, 5)

    def __call__(self, x: Tensor) -> Tensor:
        """`[B, 4] -> [B, 5]`."""
        return self.last(tanh(self.first(x)))


@inputs
class Batch:
    """Points with classes."""

    x: F32 = f32("B", 4)
    y: I32 = i32("B", below=5)


@forward(inputs=Batch)
def loss(m: Net, b: Batch) -> Tensor:
    """Mean cross-entropy."""
    return cross_entropy(m(b.x), b.y)


@given(st.integers(1, 6), batches(Batch, B=st.integers(1, 5)))
def test_right_gradients_pass(hidden: int, batch: Batch) -> None:
    check_grads(loss, Net(hidden), batch)


@given(batches(Batch))
def test_batches_obey_the_declaration(batch: Batch) -> None:
    x, y = batch.x.numpy(), batch.y.numpy()
    assert x.shape == (len(y), 4)
    assert y.min() >= 0
    assert y.max() < 5


def test_unknown_dim_is_refused() -> None:
    with pytest.raises(DimError, match="Batch has no dim 'Q'; its dims are: B"):
        batches(Batch, Q=3)


def test_wrong_rule_is_found_with_parameter_and_values(monkeypatch: Any) -> None:
    monkeypatch.setattr(REGISTRY["tanh"], "vjp_rule", lambda ct, y, x: (ct * (1.0 - 0.9 * y * y),))
    rng = np.random.default_rng(0)
    batch = Batch(x=rng.standard_normal((3, 4)).astype(np.float32), y=np.array([0, 1, 4], np.int32))
    with pytest.raises(GradientError) as caught:
        check_grads(loss, Net(), batch)
    text = str(caught.value)
    assert "check_grads: loss: 2 of 4 parameters disagree" in text
    assert "first.w[" in text
    assert "central difference" in text
    assert "test_check_grads.py" in text
    assert "last.w" not in text


EXAMPLES: dict[str, tuple[Any, Any, Any]] = {
    "sine": (sine.loss, sine.MLP(4), lambda: batches(sine.Batch, B=3)),
    "xor": (xor.loss, xor.Net(3), lambda: batches(xor.Rows, B=3)),
    "digits": (digits.loss, digits.MLP(4), lambda: batches(digits.Labeled, B=2)),
    "digits_cnn": (digits_cnn.loss, digits_cnn.CNN(2, 2), lambda: batches(digits_cnn.Labeled, B=2)),
    "char_transformer": (
        char_transformer.loss,
        char_transformer.Transformer(dim=4, heads=2, depth=1),
        lambda: batches(char_transformer.Batch, B=2, T=3),
    ),
}


@pytest.mark.parametrize("name", list(EXAMPLES))
@settings(max_examples=5)
@given(data=st.data())
def test_forward_of_every_example(name: str, data: Any) -> None:
    fn, model, strategy = EXAMPLES[name]
    batch = data.draw(strategy())
    if name == "digits_cnn":
        # Pixels of any order would meet the kinks of relu and pool; small noise on distinct pixels does not.
        ramp = np.random.default_rng(3).permutation(128).astype(np.float32).reshape(2, 1, 8, 8) / 64 - 1
        batch = digits_cnn.Labeled(x=np.resize(ramp, batch.x.shape), y=batch.y.numpy())
    check_grads(fn, model, batch, rtol=1e-5, atol=1e-7)
