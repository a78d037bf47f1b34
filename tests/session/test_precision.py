"""`precision="f16"`: what is refused, what training gives, and the loss scale as users meet it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

import tgdsl.ops as ops
from examples import char_transformer as chars
from tests.session.models import MLP, Batch, batch, mlp_loss, predict
from tests.session.test_handles import equal
from tgdsl import SGD, Adam, AdamW, Tensor, compile_module, forward
from tgdsl.errors import DeviceError, NonFiniteError, OptionError
from tgdsl.optim.scaling import INITIAL
from tgdsl.pipeline import Precision, choose_engine

Make = Callable[..., Any]


@forward(inputs=Batch)
def steep_loss(m: MLP, b: Batch) -> Tensor:
    """Gradients in scratch that overflow f16 at the first scales."""
    return 1e3 * ops.mean(ops.square(m(b.x) - b.y))


@pytest.fixture
def make(engine: Any) -> Make:
    """Makes handles in f16, if the adapter has the feature."""
    if not engine.limits.half:
        pytest.skip(f"NO shader-f16, HALF PRECISION IS NOT TESTED: {engine.description}")

    def made(loss: Any = mlp_loss, **options: Any) -> Any:
        chosen = {"optimizer": Adam(0.01), "seed": 3, "backend": "wgpu", "precision": "f16", **options}
        return compile_module(MLP(64), loss, **chosen)

    return made


# -- refused ----------------------------------------------------------------


def test_other_names_and_numpy_are_refused() -> None:
    wrong: Any = "bf16"
    with pytest.raises(OptionError, match=r"^precision must be one of f32, f16, got 'bf16'"):
        compile_module(MLP(), mlp_loss, optimizer=Adam(0.1), backend="numpy", precision=wrong)
    with pytest.raises(OptionError, match=r"precision='f16' is not there on the numpy[\s\S]*use precision='f32', or"):
        compile_module(MLP(), mlp_loss, optimizer=Adam(0.1), backend="numpy", precision="f16")


@pytest.mark.gpu
def test_an_adapter_without_the_feature_is_refused(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    device = choose_engine("wgpu").device  # type: ignore[attr-defined]
    monkeypatch.setattr(device, "limits", attrs.evolve(device.limits, half=False))
    with pytest.raises(DeviceError, match=r"needs the feature shader-f16, which [\s\S]* lacks[\s\S]*precision='f32'"):
        compile_module(MLP(), mlp_loss, optimizer=Adam(0.1), backend="wgpu", precision="f16")


@pytest.mark.gpu
def test_without_an_optimizer_it_is_refused(make: Make) -> None:
    with pytest.raises(OptionError, match=r"precision='f16' needs an optimizer"):
        make(optimizer=None)


# -- training ---------------------------------------------------------------


def windows(steps: int) -> list[chars.Batch]:
    """Short windows of the example's corpus."""
    text, rng = chars.corpus(), np.random.default_rng(0)
    starts = rng.integers(0, len(text) - 17, (steps, 4))
    found = text[starts[..., None] + np.arange(17)]
    return [chars.Batch(tokens=w[:, :-1].copy(), targets=w[:, 1:].copy()) for w in found]


@pytest.mark.gpu
def test_a_transformer_trains_as_in_f32(make: Make) -> None:
    batches = windows(50)

    def losses(precision: Precision) -> list[float]:
        model = chars.Transformer(32, 2, 1)
        optimizer = AdamW(3e-3, clip_grad_norm=1.0)
        train = compile_module(
            model, chars.loss, optimizer=optimizer, seed=0, backend="wgpu", precision=precision, dims={"B": 4, "T": 16}
        )
        found = [r.loss for r in train.steps(batches)]
        assert train.precision == precision
        assert (train.loss_scale == 1.0) == (precision == "f32")
        train.destroy()
        return found

    half, full = losses("f16"), losses("f32")
    assert abs(half[0] - full[0]) < 1e-3 * full[0]
    assert np.mean(full[-10:]) < 0.8 * full[0]
    assert abs(np.mean(half[-10:]) - np.mean(full[-10:])) < 0.02 * np.mean(full[-10:])


@pytest.mark.gpu
def test_losses_and_gradients_are_those_of_the_unscaled_loss(make: Make) -> None:
    half, full = make(), make(precision="f32")
    a, b = half.step(**batch(0)), full.step(**batch(0))
    assert a.loss == pytest.approx(b.loss, rel=2e-3)
    got, want = half.download_param_grads(), full.download_param_grads()
    for name, g in got.items():
        np.testing.assert_allclose(g, want[name], rtol=1e-2, atol=1e-2 * np.abs(want[name]).max())
    assert half.run(**batch(1)).output == pytest.approx(full.run(**batch(1)).output, rel=2e-2)
    infer, other = half.compile_forward(predict), full.compile_forward(predict)
    np.testing.assert_allclose(infer.run(x=batch(0)["x"]).output, other.run(x=batch(0)["x"]).output, atol=2e-2)


@pytest.mark.gpu
def test_overflows_are_skipped_until_the_scale_fits(make: Make) -> None:
    train = make(steep_loss, optimizer=SGD(1e-5))
    start = train.download_params()
    first = train.step(**batch(0, 16))
    assert np.isfinite(first.loss)
    assert train.loss_scale == INITIAL / 2
    assert equal(train.download_params(), start)
    assert not all(np.isfinite(g).all() for g in train.download_param_grads().values())
    for _ in range(20):
        train.step(**batch(0, 16))
    assert 1.0 < train.loss_scale < INITIAL / 2
    assert train.steps_done == 21
    assert not equal(train.download_params(), start)
    assert all(np.isfinite(g).all() for g in train.download_param_grads().values())
    train.reset()
    assert train.loss_scale == INITIAL
    assert train.step(**batch(0, 16)).loss == first.loss


@pytest.mark.gpu
def test_a_loaded_run_goes_on_with_its_scale(make: Make, tmp_path: Path) -> None:
    train = make(steep_loss, optimizer=SGD(1e-5))
    for _ in range(12):
        train.step(**batch(0, 16))
    train.save_params(tmp_path / "run.npz")
    scale, loss = train.loss_scale, train.step(**batch(1)).loss
    assert scale < INITIAL
    other = make(steep_loss, optimizer=SGD(1e-5), seed=5)
    other.load_params(tmp_path / "run.npz")
    assert (other.loss_scale, other.step(**batch(1)).loss) == (scale, loss)
    full = make(steep_loss, optimizer=SGD(1e-5), precision="f32")
    full.load_params(tmp_path / "run.npz")
    full.save_params(tmp_path / "full.npz")
    other.load_params(tmp_path / "full.npz")
    assert other.loss_scale == INITIAL
    other.replace_model(MLP(64))
    assert (other.precision, other.loss_scale) == ("f16", INITIAL)


@pytest.mark.gpu
def test_a_finite_check_stops_at_what_no_scale_can_save(make: Make) -> None:
    train = make(check_finite=True)
    start = train.download_params()
    bad = {**batch(1), "y": np.full(8, np.inf, np.float32)}
    for _ in range(16):
        train.step(**bad)  # from 65536 to 1
    assert train.loss_scale == 1.0
    with pytest.raises(NonFiniteError, match="step 17: a gradient or the loss is not finite"):
        train.step(**bad).loss  # noqa: B018
    assert equal(train.download_params(), start)
