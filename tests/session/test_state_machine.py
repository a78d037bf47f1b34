"""Any order of calls of a training handle does what a NumPy oracle does."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.session.models import Batch, Line, Oracle, batch, line, line_loss
from tgdsl import Adam, Inference, StepResult, Trained, compile_module
from tgdsl.errors import HandleError, InputError, ParameterError
from tgdsl.pipeline import Backend

seeds = st.integers(0, 20)
sizes = st.sampled_from([1, 4, 8])
close: dict[str, Any] = {"rtol": 2e-4, "atol": 2e-5}


class Machine(RuleBasedStateMachine):
    """A handle beside its oracle."""

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self.backend = backend
        self.folder = tempfile.TemporaryDirectory()
        self.saved: tuple[Path, Oracle] | None = None
        self.queued: list[tuple[StepResult, float, int]] = []

    @initialize(seed=seeds)
    def start(self, seed: int) -> None:
        self.train: Trained[Line, Batch, Any] = compile_module(
            Line(),
            line_loss,
            optimizer=Adam(0.05, clip_grad_norm=2.0),
            seed=seed,
            backend=self.backend,
        )
        self.infer: Inference[Any, Any, Any, Any] = self.train.compile_forward(line)
        self.oracle = Oracle(self.train.download_params(), 0.05, 2.0)

    @rule(seed=seeds, size=sizes)
    def step(self, seed: int, size: int) -> None:
        arrays = batch(seed, size)
        result = self.train.step(**arrays)
        copies = {n: a.copy() for n, a in arrays.items()}
        for a in arrays.values():
            a[...] = np.nan  # the call must have copied them
        self.queued.append((result, self.oracle.step(**copies), self.oracle.step_number))

    @rule(first=seeds, count=st.integers(1, 5), group=st.integers(1, 4), read_every=st.integers(1, 3))
    def steps(self, first: int, count: int, group: int, read_every: int) -> None:
        made = [batch(first + i) for i in range(count)]
        losses: dict[int, float] = {}
        for b in made:
            loss = self.oracle.step(**b)
            losses[self.oracle.step_number] = loss
        results = list(self.train.steps((Batch(**b) for b in made), read_every=read_every, group=group))
        assert [r.step for r in results] == [n for n in losses if n % read_every == 0]
        for r in results:
            np.testing.assert_allclose(r.loss, losses[r.step], **close)

    @rule()
    def read_in_reverse(self) -> None:
        for result, loss, number in reversed(self.queued):
            assert result.step == number
            np.testing.assert_allclose(float(result), loss, **close)
        self.queued.clear()

    @rule(seed=seeds, size=sizes)
    def run_loss(self, seed: int, size: int) -> None:
        arrays = batch(seed, size)
        np.testing.assert_allclose(self.train.run(**arrays).output, self.oracle.loss(**arrays), **close)

    @rule(seed=seeds, size=sizes)
    def predict(self, seed: int, size: int) -> None:
        x = batch(seed, size)["x"]
        np.testing.assert_allclose(self.infer.run(x=x).output, self.oracle.predict(x), **close)
        captured = self.infer.with_captures.run(x=x).captures["line"]
        np.testing.assert_allclose(captured, self.oracle.predict(x), **close)

    @rule(seed=seeds)
    def evaluate(self, seed: int) -> None:
        made = [batch(seed, 8), batch(seed + 1, 4)]
        want = (8 * self.oracle.loss(**made[0]) + 4 * self.oracle.loss(**made[1])) / 12
        np.testing.assert_allclose(self.train.evaluate([Batch(**b) for b in made]), want, **close)

    @rule(seed=seeds, partial=st.booleans())
    def upload(self, seed: int, partial: bool) -> None:
        rng = np.random.default_rng(seed)
        params = {"w": rng.normal(size=3).astype(np.float32)}
        if not partial:
            params["b"] = rng.normal(size=1).astype(np.float32)
        (self.infer if seed % 2 else self.train).upload_params(params, partial=partial)
        self.oracle.params |= {n: a.astype(np.float64) for n, a in params.items()}

    @rule()
    def download(self) -> None:
        got = self.train.download_params()
        assert list(got) == ["w", "b"]
        for name, value in self.oracle.params.items():
            np.testing.assert_allclose(got[name], value, **close)
        for name, grad in self.train.download_param_grads().items():
            np.testing.assert_allclose(grad, self.oracle.grads[name], **close)

    @rule(lr=st.sampled_from([0.0, 0.01, 0.1]))
    def set_lr(self, lr: float) -> None:
        self.train.set_lr(lr)
        self.oracle.lr = lr

    @rule()
    def reset(self) -> None:
        self.train.reset()
        self.oracle.reset()

    @rule()
    def reset_optimizer(self) -> None:
        self.train.reset_optimizer_state()
        self.oracle.reset_optimizer()

    @rule()
    def save(self) -> None:
        path = Path(self.folder.name) / "run.npz"
        self.train.save_params(path)
        self.saved = path, deepcopy(self.oracle)

    @precondition(lambda self: self.saved is not None)
    @rule()
    def load(self) -> None:
        assert self.saved is not None
        self.train.load_params(self.saved[0])
        initial, grads = self.oracle.initial, self.oracle.grads
        self.oracle = deepcopy(self.saved[1])
        self.oracle.initial, self.oracle.grads = initial, grads

    @rule(which=st.integers(0, 4))
    def fail(self, which: int) -> None:
        good = batch(0)
        calls: list[tuple[type[Exception], Callable[[], Any]]] = [
            (InputError, lambda: self.train.step(x=good["x"], y=good["y"][:3])),
            (InputError, lambda: self.train.step(x=good["x"].astype(np.float64), y=good["y"])),
            (ParameterError, lambda: self.train.upload_params({"w": np.zeros(3, np.float32)})),
            (
                ParameterError,
                lambda: self.train.upload_params({"w": good["y"], "b": np.zeros(1, np.float32)}),
            ),
            (
                ParameterError,
                lambda: self.train.upload_params({"w": np.zeros(3, np.float32), "c": good["y"]}),
            ),
        ]
        error, call = calls[which]
        with pytest.raises(error):
            call()

    def teardown(self) -> None:
        if hasattr(self, "train"):
            self.train.destroy()
            self.train.destroy()
            self.read_in_reverse()
            with pytest.raises(HandleError):
                self.train.step(**batch(0))
            with pytest.raises(HandleError):
                self.infer.run(x=batch(0)["x"])
        self.folder.cleanup()


def test_any_order_of_calls_follows_the_oracle(engine_name: Backend) -> None:
    examples = 30 if engine_name == "numpy" else 8
    run_state_machine_as_test(
        lambda: Machine(engine_name),  # type: ignore[arg-type]
        settings=settings(max_examples=examples, stateful_step_count=20, deadline=None),
    )
