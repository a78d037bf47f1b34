"""Minibatches, and which backend is chosen."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.session.models import MLP, Batch, Point, batch, mlp_loss
from tgdsl import F32, Adam, compile_module, f32, inputs, minibatches, pipeline
from tgdsl.errors import DeviceError, InputError, OptionError
from tgdsl.runtime import wgpu_engine


@given(st.integers(1, 30), st.integers(1, 12), st.booleans(), st.booleans())
def test_an_epoch_holds_every_row_once(size: int, rows: int, shuffle: bool, drop: bool) -> None:
    if drop and rows > size:
        return
    data = minibatches({"x": np.arange(size), "y": np.arange(size) * 2}, rows, shuffle=shuffle, drop_last=drop)
    for _ in range(2):
        batches = list(data)
        assert len(batches) == len(data)
        seen = np.concatenate([b["x"] for b in batches])
        assert all(np.array_equal(b["y"], b["x"] * 2) for b in batches)
        assert len(set(seen.tolist())) == len(seen) == (size // rows * rows if drop else size)
        if not shuffle:
            assert seen.tolist() == list(range(len(seen)))


def test_epochs_differ_and_repeat_with_the_seed() -> None:
    x = {"x": np.arange(100)}

    def order(data: Any) -> list[int]:
        return [int(v) for b in data for v in b["x"]]

    data, again, other = minibatches(x, 10), minibatches(x, 10), minibatches(x, 10, seed=1)
    first, second = order(data), order(data)
    assert first != second
    assert [order(again), order(again)] == [first, second]
    assert order(other) != first


@inputs
class Masked:
    x: F32 = f32("B", 2)
    mask: F32 = f32("T")


def test_a_value_of_an_inputs_class_gives_values_of_that_class() -> None:
    data = Masked(x=np.zeros((7, 2), np.float32), mask=np.ones(3, np.float32))
    batches = list(minibatches(data, 3))
    assert [type(b) for b in batches] == [Masked, Masked]
    assert [(b.x.shape, b.mask.shape) for b in batches] == [((3, 2), (3,))] * 2


def test_batches_train() -> None:
    train = compile_module(MLP(), mlp_loss, optimizer=Adam(0.02), seed=0, backend="numpy")
    data = minibatches(Batch(**batch(0, 100)), 20)
    before = train.evaluate(data)
    for _ in range(20):
        for _ in train.steps(data, read_every=5):
            pass
    assert train.evaluate(data) < 0.2 * before


@inputs
class Fixed:
    x: F32 = f32(4, 2)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: minibatches({"x": np.zeros(3)}, 0), OptionError, "batch must be an int >= 1, got 0"),
        (
            lambda: minibatches({"x": np.zeros(3)}, 4),
            OptionError,
            r"batch 4 is larger than the data \(3\)\n  hint",
        ),
        (lambda: minibatches({"x": np.zeros(3), "y": np.zeros(2)}, 1), InputError, "arrays differ in length"),
        (lambda: minibatches({}, 1), InputError, "there are none"),
        (lambda: minibatches(3, 1), InputError, "expected an @inputs value or arrays by name, got int"),
        (
            lambda: minibatches(Fixed(x=np.zeros((4, 2), np.float32)), 2),
            InputError,
            "the first input of Fixed does not begin with a named dim",
        ),
    ],
)
def test_data_that_cannot_be_split_is_refused(make: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()


class NoGpu:
    """Stands for the WebGPU engine where there is no adapter."""

    def __init__(self, *, hardware_only: bool = False) -> None:
        raise DeviceError("no adapter")


def test_auto_falls_back_to_numpy_and_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pipeline, "_engines", {})
    monkeypatch.setattr(wgpu_engine, "WgpuEngine", NoGpu)
    monkeypatch.delenv("TGDSL_BACKEND", raising=False)
    with caplog.at_level(logging.INFO, "tgdsl"):
        engine = pipeline.choose_engine()
        assert pipeline.choose_engine() is engine
    assert engine.name == "numpy"
    assert [r.message for r in caplog.records] == [f"backend {pipeline.describe(engine)}"]
    assert pipeline.describe(engine).endswith("cores (no hardware adapter: no adapter)")
    assert pipeline.choose_engine("numpy") is engine
    with pytest.raises(DeviceError, match="no adapter"):
        pipeline.choose_engine("wgpu")


def test_the_environment_decides_what_auto_means(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "_engines", {})
    monkeypatch.setenv("TGDSL_BACKEND", "numpy")
    train = compile_module(MLP(), mlp_loss, optimizer=Adam(0.1))
    assert train.device.startswith("numpy: NumPy ")
    monkeypatch.setenv("TGDSL_BACKEND", "cuda")
    with pytest.raises(OptionError, match="TGDSL_BACKEND must be one of auto, wgpu, numpy, got 'cuda'"):
        pipeline.choose_engine()
    with pytest.raises(OptionError, match="backend must be one of auto, wgpu, numpy, got 'cuda'"):
        pipeline.choose_engine("cuda")  # type: ignore[arg-type]


def test_a_point_is_no_batch() -> None:
    train = compile_module(MLP(), mlp_loss, optimizer=Adam(0.1), backend="numpy")
    with pytest.raises(InputError, match="expected Batch values, got Point"):
        train.evaluate([Point(x=batch(0)["x"])])  # type: ignore[list-item]
