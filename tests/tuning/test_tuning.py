"""Tilings by measurement: only what computes the right thing is chosen, and a choice is made once."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

import tgdsl.ops as ops
from tests.codegen.run import assert_same, on_reference, traced
from tests.session.models import MLP, Line, line, mlp_loss
from tgdsl import SGD, compile_forward, compile_module
from tgdsl.codegen import Target, Tiling, direct, generate, kernels, problems, race
from tgdsl.errors import DeviceError
from tgdsl.ir import Graph
from tgdsl.optim.step import StepGraphs
from tgdsl.pipeline import load
from tgdsl.program import StepData
from tgdsl.runtime import profile
from tgdsl.tuning import contest, tuned
from tgdsl.tuning.cache import Cache, Held, directory

Fn = Callable[..., Any]
Feeds = dict[str, np.ndarray]

USUAL = Tiling(4, 4, 8, 8)
WRONG = Tiling(2, 4, 8, 4, slices=2)
RIGHT = Tiling(1, 4, 8, 8)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


FEEDS = {"a": normal(12, 20), "b": normal(20, 16), "c": normal(16)}


def product(a: Any, b: Any, c: Any) -> Any:
    return ops.relu(a @ b + c)


def step_of(graph: Graph) -> StepGraphs:
    return StepGraphs(graph, {str(i): t for i, t in enumerate(graph.outputs)})


def target_of(engine: Any) -> Target:
    return Target(software=engine.limits.software)


def tune(engine: Any, fn: Fn = product, feeds: Feeds = FEEDS) -> dict[str, Tiling]:
    """What is chosen for each problem of `fn`."""
    return dict(tuned(engine, step_of(traced(fn, feeds)), target_of(engine)).tilings)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TGDSL_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same three candidates on adapters of either kind."""
    monkeypatch.setattr(kernels, "choose_tiling", lambda *_, **__: USUAL)
    monkeypatch.setattr(race, "candidates", lambda *_, **__: [USUAL, RIGHT, WRONG])


@pytest.fixture
def last_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The later a candidate, the faster it seems."""
    monkeypatch.setattr(contest, "race", lambda _, runs: [1.0 / (1 + i) for i in range(len(runs))])


@pytest.fixture
def spoiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels in the tiling `WRONG` are wrong in one cell of each thread."""

    class Spoiled(direct.DirectKernel):
        def finish(self) -> None:
            if self.t == WRONG:
                self.emit.line("acc_1_2 += 0.01f;")
            super().finish()

    monkeypatch.setattr(kernels, "DirectKernel", Spoiled)


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Calling it forbids contests from then on."""

    def forbid() -> None:
        monkeypatch.setattr(contest, "race", lambda *_: pytest.fail("something was timed"))

    return forbid


def test_a_target_without_tilings_and_one_of_other_problems_give_the_same_program() -> None:
    step = step_of(traced(product, FEEDS))
    assert generate(step, Target()) == generate(step, Target(tilings={"1x1x1x1:0": RIGHT}))


def test_a_tiling_of_another_size_of_workgroup_is_not_taken() -> None:
    step = step_of(traced(product, FEEDS))
    (problem,) = problems(step, Target())
    assert generate(step, Target()) == generate(step, Target(tilings={problem.key: Tiling(2, 4, 8, 4)}))


def same_as_reference(engine: Any, fn: Fn, feeds: Feeds, terms: int) -> None:
    graph = traced(fn, feeds)
    store = engine.allocate({})
    loaded = load(engine, step_of(graph), store, slots=1, tune=True)
    results = loaded.executable.submit([StepData(feeds, {"key0": 1, "key1": 2})])[0].read()
    loaded.executable.destroy()
    store.destroy()
    assert_same([results[str(i)] for i in range(len(graph.outputs))], on_reference(graph, feeds), terms=terms)


@pytest.mark.gpu
@pytest.mark.usefixtures("few", "last_wins")
def test_what_was_tuned_gives_what_the_reference_gives(engine: Any) -> None:
    feeds = {"x": normal(2, 3, 9, 8), "w": normal(5, 3, 3, 3), "t": normal(7, 20), "b": normal(20, 16)}
    feeds["i"] = np.arange(12, dtype=np.int32) % 7

    def fn(x: Any, w: Any, t: Any, b: Any, i: Any) -> list[Any]:
        return [ops.conv2d(x, w, stride=2, padding=1), ops.embedding(t, i) @ b, ops.where(b.mT @ b > -99.0, 1.0, 0.0)]

    same_as_reference(engine, fn, feeds, 27)
    assert WRONG in tune(engine, fn, feeds).values(), "nothing was tuned"


@pytest.mark.gpu
@pytest.mark.usefixtures("few", "last_wins")
def test_the_fastest_wins(engine: Any) -> None:
    assert set(tune(engine).values()) == {WRONG}


@pytest.mark.gpu
@pytest.mark.usefixtures("few", "last_wins", "spoiled")
def test_a_wrong_candidate_is_never_chosen(engine: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert set(tune(engine).values()) == {RIGHT}
    (message,) = [r.getMessage() for r in caplog.records if "disagrees" in r.getMessage()]
    assert str(WRONG) in message
    same_as_reference(engine, product, FEEDS, 20)


@pytest.mark.gpu
@pytest.mark.usefixtures("few")
def test_a_small_gain_is_taken_for_noise(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contest, "race", lambda _, runs: [1.0, 0.99, 0.92][: len(runs)])
    assert not tune(engine)


@pytest.mark.gpu
@pytest.mark.usefixtures("few")
def test_tilings_by_which_a_whole_step_is_slower_are_not_taken(
    engine: Any, monkeypatch: pytest.MonkeyPatch, never: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tgdsl")
    # Three candidates run in a contest, two programs in the comparison of steps.
    monkeypatch.setattr(contest, "race", lambda _, runs: [3.0, 2.0, 1.0] if len(runs) == 3 else [1.0, 2.0])
    assert not tune(engine)
    assert "the whole step does not" in caplog.text
    never()
    assert not tune(engine), "the verdict is kept too"


@pytest.mark.gpu
@pytest.mark.usefixtures("few", "last_wins")
@pytest.mark.parametrize(("part", "kept"), [("hold", 0), ("pays", 1)])
def test_what_the_device_refuses_is_not_tuned_and_not_kept(
    engine: Any, part: str, kept: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise DeviceError("no memory")

    monkeypatch.setattr(f"tgdsl.tuning.{part}", refuse)
    assert not tune(engine)
    assert "no memory" in caplog.text
    held = Cache(engine.device.identity).read()
    assert (len(held.tilings), len(held.steps)) == (kept, 0)


@pytest.mark.gpu
@pytest.mark.usefixtures("few")
def test_whole_steps_are_timed(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[float]] = []

    def recorded(*args: Any) -> list[float]:
        seen.append(profile.race(*args))
        return [3.0, 2.0, 1.0] if len(seen[-1]) == 3 else seen[-1]

    monkeypatch.setattr(profile, "PASS", 1e-4)
    monkeypatch.setattr(contest, "race", recorded)
    tune(engine)
    assert [len(times) for times in seen] == [3, 2]
    assert all(0.0 < t < 1.0 for times in seen for t in times)


@pytest.mark.gpu
@pytest.mark.usefixtures("few", "last_wins")
def test_inputs_suit_the_epilogue(engine: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tgdsl")
    assert set(tune(engine, lambda a, b, c: ops.log(a @ b + ops.square(c))).values()) == {WRONG}
    hopeless = tune(engine, lambda a, b, c: ops.log(-ops.square(a @ b) - ops.square(c)))
    assert not hopeless, "nothing can be compared with NaN"
    assert "not finite" in caplog.text


@pytest.mark.gpu
@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("features", [frozenset[str](), None], ids=["host clock", "timestamps"])
def test_candidates_are_timed(engine: Any, features: frozenset[str] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if features is not None:
        monkeypatch.setattr(engine.device, "features", features)
    monkeypatch.setattr(profile, "PASS", 1e-4)
    (problem,) = problems(step_of(traced(product, FEEDS)), target_of(engine))
    outcome = contest.hold(engine, problem)
    assert set(outcome.seconds) == set(problem.tilings)
    assert all(0.0 < t < 1.0 for t in outcome.seconds.values())
    assert outcome.rejected == 0


@pytest.mark.gpu
@pytest.mark.usefixtures("few", "last_wins")
def test_the_second_time_nothing_is_timed(
    engine: Any, never: Callable[[], None], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tgdsl")
    first = tune(engine)
    assert "tuned 1 contraction problems (1 timed, 0 known" in caplog.text
    (path,) = folder.iterdir()
    held = json.loads(path.read_text())
    assert held["adapter"]["device"] == engine.device.info["device"]
    assert {"wgpu", "tgdsl", "description"} <= set(held["adapter"])
    never()
    assert tune(engine) == first
    assert "tuned 1 contraction problems (0 timed, 1 known" in caplog.text


def _edited(change: Callable[[dict[str, Any]], None]) -> Callable[[str], str]:
    def edit(text: str) -> str:
        held = json.loads(text)
        change(held)
        return json.dumps(held)

    return edit


def _all_tilings(numbers: Sequence[Any]) -> Callable[[str], str]:
    return _edited(lambda held: held.update(tilings=dict.fromkeys(held["tilings"], numbers)))


@pytest.mark.gpu
@pytest.mark.usefixtures("few", "last_wins")
@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda text: text[: len(text) // 2], True),
        (lambda text: "[]", True),
        (lambda text: "[" * 100_000, True),
        (lambda text: '{"format": 3}', True),
        (_edited(lambda held: held["adapter"].update(wgpu="0.1")), True),
        (_all_tilings([2, 4, "8", 4, 2, 0]), True),
        (_all_tilings([2, 4]), True),
        (_edited(lambda held: held.update(steps={"s": 1})), True),
        (_all_tilings([4096, 4096, 1, 128, 1, 0]), False),
    ],
    ids=["cut", "a list", "deep", "no adapter", "foreign", "text", "short", "no verdict", "not a candidate"],
)
def test_a_bad_file_is_ignored_and_replaced(
    engine: Any, folder: Path, edit: Callable[[str], str], caplog: pytest.LogCaptureFixture, *, said: bool
) -> None:
    first = tune(engine)
    (path,) = folder.iterdir()
    path.write_text(edit(path.read_text()))
    caplog.clear()
    assert tune(engine) == first
    assert ("are ignored" in caplog.text) == said
    assert Cache(engine.device.identity).read().tilings == first
    assert list(folder.iterdir()) == [path], "a half-written file was left"


@pytest.mark.gpu
@pytest.mark.usefixtures("few", "last_wins")
def test_a_folder_that_cannot_be_written_is_said(
    engine: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "file").write_text("")
    monkeypatch.setenv("TGDSL_CACHE_DIR", str(folder / "file" / "below"))
    assert set(tune(engine).values()) == {WRONG}
    assert "could not be kept" in caplog.text


def test_a_file_per_adapter_and_what_others_wrote_stays(folder: Path) -> None:
    one, two = Cache({"device": "one"}), Cache({"device": "two"})
    assert one.path != two.path
    one.add(Held({"p": RIGHT}, {"s": False}))
    Cache({"device": "one"}).add(Held({"q": WRONG}))
    assert one.read() == Held({"p": RIGHT, "q": WRONG}, {"s": False})
    assert two.read() == Held()


def test_where_the_cache_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TGDSL_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert directory() == Path("/caches/tgdsl")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert directory() == Path.home() / ".cache" / "tgdsl"


# -- handles -----------------------------------------------------------------


def losses(backend: Any, *, tune: bool) -> list[float]:
    batch = {"x": normal(32, 3), "y": normal(32)}
    train = compile_module(MLP(), mlp_loss, optimizer=SGD(0.1), dims={"B": 32}, seed=0, backend=backend, tune=tune)
    found = [train.step(**batch).loss for _ in range(4)]
    train.destroy()
    return found


@pytest.mark.gpu
@pytest.mark.usefixtures("engine", "few", "last_wins")
def test_a_tuned_handle_trains_as_the_others_do(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tgdsl")
    np.testing.assert_allclose(losses("wgpu", tune=True), losses("wgpu", tune=False), rtol=1e-5)
    assert "contraction problems" in caplog.text


@pytest.mark.gpu
@pytest.mark.usefixtures("engine")
def test_replacing_the_model_and_its_forwards_keep_tuning(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def recorded(_: Any, __: Any, target: Target) -> Target:
        asked.append(True)
        return attrs.evolve(target, tilings={})

    monkeypatch.setattr("tgdsl.tuning.tuned", recorded)
    batch = {"x": normal(8, 3), "y": normal(8)}
    train = compile_module(MLP(), mlp_loss, optimizer=SGD(0.1), seed=0, backend="wgpu", tune=True)
    train.step(**batch)
    train.replace_model(MLP(hidden=8), seed=1)
    train.step(**batch)
    train.destroy()
    assert len(asked) >= 2


def test_on_numpy_it_changes_nothing_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    assert losses("numpy", tune=True) == losses("numpy", tune=False)
    assert caplog.text.count("changes nothing on the numpy backend") == 1
    compile_forward(Line(), line, backend="numpy", tune=True).destroy()
    assert "compile_forward: tune=True changes nothing" in caplog.text
