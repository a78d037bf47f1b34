"""Persistent tensors of modules and parameters that are not trained."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tgdsl.ops as ops
from tests.session.models import Batch, Point, batch
from tgdsl import SGD, Tensor, compile_module, forward, module, param, state, update
from tgdsl.errors import ParameterError
from tgdsl.frontend.init import Literal, Ones
from tgdsl.pipeline import Backend


@module
class Centred:
    """Subtracts a running mean of its inputs, then scales by a frozen and adds a trained vector."""

    scale: Tensor = param(3, initial=Ones(), trainable=False)
    shift: Tensor = param(3, initial=Literal((0.1, 0.2, 0.3)))
    mean: Tensor = state(3)
    count: Tensor = state(1)

    def __call__(self, x: Tensor) -> Tensor:
        return (x - self.mean) * self.scale + self.shift


@forward(inputs=Batch)
def loss(m: Centred, b: Batch) -> Tensor:
    y = ops.mean(ops.square(m(b.x)))
    update(m.mean, 0.5 * m.mean + 0.5 * ops.mean(b.x, 0))
    update(m.count, m.count + 1.0)
    return y


@forward(inputs=Point)
def predict(m: Centred, p: Point) -> Tensor:
    return m(p.x)


def make(backend: Backend, **options: Any) -> Any:
    return compile_module(Centred(), loss, optimizer=SGD(0.1), seed=0, backend=backend, **options)


def test_state_follows_the_steps_and_nothing_else(engine_name: Backend) -> None:
    train = make(engine_name)
    infer = train.compile_forward(predict)
    mean = np.zeros(3)
    for i in range(3):
        x = batch(i)["x"]
        train.run(**batch(i))
        infer.run(x=x)
        train.step(**batch(i))
        mean = 0.5 * mean + 0.5 * x.mean(0)
    held = train.download_state()
    np.testing.assert_allclose(held["mean"], mean, rtol=1e-5)
    assert held["count"].tolist() == [3.0]
    shift = train.download_params()["shift"]
    np.testing.assert_allclose(infer.run(x=x).output, x - held["mean"] + shift, rtol=1e-5, atol=1e-6)
    train.reset_optimizer_state()
    assert train.download_state()["count"].tolist() == [3.0]
    train.reset()
    assert not any(a.any() for a in train.download_state().values())


def test_state_is_saved_and_loaded(engine_name: Backend, tmp_path: Any) -> None:
    train = make(engine_name)
    train.step(**batch(0))
    train.save_params(tmp_path / "a.npz")
    other = make(engine_name)
    other.load_params(tmp_path / "a.npz")
    assert other.step(**batch(1)).loss == train.step(**batch(1)).loss
    for name, value in train.download_state().items():
        np.testing.assert_array_equal(other.download_state()[name], value)
    other.upload_state({"count": np.array([7.0], np.float32)}, partial=True)
    assert other.download_state()["count"].tolist() == [7.0]
    with pytest.raises(ParameterError, match="missing state: count"):
        other.upload_state({"mean": np.zeros(3, np.float32)})


def test_frozen_parameters_stay_but_can_be_uploaded(engine_name: Backend) -> None:
    train = make(engine_name)
    assert train.param_names == ("scale", "shift")
    train.step(**batch(0))
    held = train.download_params()
    assert held["scale"].tolist() == [1.0, 1.0, 1.0]
    assert not np.array_equal(held["shift"], np.array([0.1, 0.2, 0.3], np.float32))
    assert list(train.download_param_grads()) == ["shift"]
    with pytest.raises(ParameterError, match="parameter 'scale' is frozen and has no gradient"):
        train.download_param_grads("scale")
    with pytest.raises(ParameterError, match="unknown parameter 'scales'; trainable are: shift"):
        train.download_param_grads("scales")
    train.upload_params({"scale": np.full(3, 2.0, np.float32)}, partial=True)
    x = batch(1)["x"]
    mean = train.download_state()["mean"]
    got = train.compile_forward(predict).run(x=x).output
    np.testing.assert_allclose(got, (x - mean) * 2 + held["shift"], rtol=1e-5, atol=1e-6)
