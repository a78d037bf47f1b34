"""Where a run stands: seeds, resets, files, learning rates, and steps that are not finite."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tgdsl.ops as ops
from tests.session.models import MLP, Batch, Line, batch, line_loss, mlp_loss, predict
from tests.session.test_handles import equal, trained
from tgdsl import SGD, Adam, AdamW, Tensor, compile_module, forward, lr
from tgdsl.errors import DeclarationError, NonFiniteError, OptionError, ShapeError
from tgdsl.pipeline import Backend


@forward(inputs=Batch)
def noisy_loss(m: MLP, b: Batch) -> Tensor:
    return ops.mean(ops.square(ops.dropout(m(b.x), 0.3) - b.y))


def test_reset_replays_a_fresh_run_bit_by_bit_and_seeds_differ(engine_name: Backend) -> None:
    def make(seed: int) -> Any:
        return compile_module(
            MLP(),
            noisy_loss,
            optimizer=AdamW(lr.linear_decay(0.1, 0.0, 9)),
            seed=seed,
            backend=engine_name,
        )

    train = make(3)
    losses = [train.step(**batch(i)).loss for i in range(4)]
    train.set_lr(0.5)
    train.step(**batch(9))
    train.reset()
    assert [train.step(**batch(i)).loss for i in range(4)] == losses
    assert make(3).step(**batch(0)).loss == losses[0]
    assert make(4).step(**batch(0)).loss != losses[0]
    same = make(3)
    assert same.step(**batch(0)).loss != same.step(**batch(0)).loss


def test_a_loaded_run_goes_on_as_if_it_had_not_stopped(engine_name: Backend, tmp_path: Any) -> None:
    def make(seed: int) -> Any:
        return compile_module(
            MLP(),
            noisy_loss,
            optimizer=Adam(0.05, clip_grad_norm=1.0),
            seed=seed,
            backend=engine_name,
        )

    train = make(3)
    for i in range(3):
        train.step(**batch(i))
    train.set_lr(lr.warmup(0.1, 2, lr.cosine_decay(0.1, 0.0, 5)))
    train.step(**batch(3))
    train.save_params(tmp_path / "run.npz")
    resumed = make(8)
    resumed.load_params(tmp_path / "run.npz")
    assert (resumed.seed, resumed.steps_done, resumed.lr) == (3, 4, train.lr)
    for i in range(4, 8):
        assert resumed.step(**batch(i)).loss == train.step(**batch(i)).loss
    assert equal(resumed.download_params(), train.download_params())


def test_a_schedule_set_during_training_begins_at_its_first_step(engine_name: Backend) -> None:
    train = compile_module(Line(), line_loss, optimizer=SGD(0.0), seed=0, backend=engine_name)
    train.step(**batch(0))
    start = train.download_params()["b"]
    train.set_lr(lr.linear_decay(0.2, 0.0, 2))
    for _ in range(3):
        train.step(**batch(0))
    moved = train.download_params()["b"]
    fresh = compile_module(Line(), line_loss, optimizer=SGD(0.1), seed=0, backend=engine_name)
    fresh.step(**batch(0))
    np.testing.assert_allclose(moved, fresh.download_params()["b"], rtol=1e-5)
    assert not np.array_equal(moved, start)
    with pytest.raises(OptionError, match="set_lr must be a number or a schedule"):
        train.set_lr("fast")  # type: ignore[arg-type]


def test_set_lr_zero_stops_decay_too(engine_name: Backend) -> None:
    train = trained(engine_name, optimizer=AdamW(0.1, weight_decay=0.5))
    train.step(**batch(0))
    train.set_lr(0.0)
    before = train.download_params()
    train.step(**batch(1))
    assert equal(train.download_params(), before)


def test_queued_steps_before_a_bad_one_count_and_those_after_it_do_not(
    engine_name: Backend,
) -> None:
    train = trained(engine_name, check_finite=True)
    good = train.step(**batch(0))
    after_good = train.download_params()
    bad = train.step(**{**batch(1), "y": np.full(8, np.inf, np.float32)})
    later = train.step(**batch(2))
    assert np.isfinite(good.loss)
    for result in (later, bad):
        with pytest.raises(
            NonFiniteError,
            match=r"^step 2: a gradient or the loss is not finite; the parameters are .* step 1",
        ):
            result.loss  # noqa: B018
    with pytest.raises(NonFiniteError, match="step 2"):
        train.step(**batch(3))
    assert equal(train.download_params(), after_good)
    train.upload_params(after_good)
    assert np.isfinite(train.step(**batch(3)).loss)
    train.reset()
    assert train.step(**batch(0)).loss == good.loss


def test_replace_model_keeps_the_handle_and_its_children(engine_name: Backend) -> None:
    train = trained(engine_name, dims={"B": 8})
    infer = train.compile_forward(predict)
    x = batch(0)["x"]
    old = train.step(**batch(0))
    infer.run(x=x)
    with pytest.raises(DeclarationError, match="replace_model: expected a MLP, got Line"):
        train.replace_model(Line())
    with pytest.raises(OptionError, match="the optimizer must be of the same kind"):
        train.replace_model(MLP(4), optimizer=SGD(0.1))
    with pytest.raises(ShapeError):
        train.replace_model(MLP(features=4))
    assert (train.model, train.steps_done) == (MLP(), 1)
    train.replace_model(MLP(4), seed=5)
    fresh = compile_module(MLP(4), mlp_loss, optimizer=Adam(0.01), seed=5, backend=engine_name)
    assert equal(train.download_params(), fresh.download_params())
    assert train.step(**batch(1)).loss == fresh.step(**batch(1)).loss
    assert (train.steps_done, train.seed, train.model) == (1, 5, MLP(4))
    np.testing.assert_array_equal(infer.run(x=x).output, fresh.compile_forward(predict).run(x=x).output)
    assert np.isfinite(old.loss)
