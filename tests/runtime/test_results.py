"""Results are fetched when somebody looks, and never lost before that."""

from __future__ import annotations

import gc
from typing import Any

import attrs
import numpy as np
import pytest

from tests.helpers import spied
from tests.runtime.programs import accumulator, chain, step, wide
from tgdsl.errors import DeviceError
from tgdsl.runtime import readback
from tgdsl.runtime.wgpu_engine import WgpuEngine

pytestmark = pytest.mark.gpu


def one(x: float) -> np.ndarray:
    """A single f32."""
    return np.array([x], np.float32)


@pytest.fixture
def maps(wgpu_engine: WgpuEngine, monkeypatch: Any) -> list[int]:
    """The sizes of all mappings from now on, without those of the fence."""
    sizes: list[int] = []
    calls = wgpu_engine.device.calls
    begin = calls.map

    def counted(staging: Any, nbytes: int) -> Any:
        sizes.extend([nbytes] if nbytes > 4 else [])
        return begin(staging, nbytes)

    monkeypatch.setattr(calls, "map", counted)
    return sizes


def test_thousands_of_steps_without_reading_lose_nothing(wgpu_engine: WgpuEngine) -> None:
    executable = wgpu_engine.load(accumulator(), wgpu_engine.allocate({"params": 1}), slots=8)
    tickets: list[Any] = []
    for i in range(0, 3000, 8):
        tickets += executable.submit([step(x=one(1.0)) for _ in range(8)])
        if i % 160 == 0:
            tickets = tickets[-40:]  # the others are forgotten: nobody may wait for them
            gc.collect()
    values = [float(t.read()["seen"]) for t in tickets]
    assert values == [float(v) for v in range(3000 - len(values), 3000)]


def test_unread_result_survives_the_reuse_of_its_place(wgpu_engine: WgpuEngine) -> None:
    executable = wgpu_engine.load(accumulator(), wgpu_engine.allocate({"params": 1}), slots=8)
    (first,) = executable.submit([step(x=one(1.0))])
    for _ in range(150):
        executable.submit([step(x=one(1.0)) for _ in range(8)])
    assert float(first.read()["seen"]) == 0.0


def test_large_results_have_buffers_of_their_own(wgpu_engine: WgpuEngine) -> None:
    executable = wgpu_engine.load(wide(1000), wgpu_engine.allocate({}), slots=2)
    tickets = executable.submit([step(x=np.full(1000, i, np.float32)) for i in range(3)])
    assert [float(t.read()["y"][0]) for t in tickets] == [1.0, 2.0, 3.0]
    while not tickets[0].done():
        pass


def test_done_becomes_true_without_reading(wgpu_engine: WgpuEngine) -> None:
    executable = wgpu_engine.load(accumulator(), wgpu_engine.allocate({"params": 1}), slots=1)
    (ticket,) = executable.submit([step(x=one(1.0))])
    for _ in range(100_000):
        if ticket.done():
            break
    assert ticket.done()
    assert float(ticket.read()["seen"]) == 0.0


def test_every_one_of_three_thousand_live_tickets_is_readable(wgpu_engine: WgpuEngine) -> None:
    executable = wgpu_engine.load(accumulator(), wgpu_engine.allocate({"params": 1}), slots=7)
    tickets = [t for _ in range(429) for t in executable.submit([step(x=one(1.0))] * 7)]
    assert [float(t.read()["seen"]) for t in tickets] == list(range(3003))


def test_nothing_is_read_back_unless_somebody_looks(wgpu_engine: WgpuEngine, maps: list[int]) -> None:
    executable = wgpu_engine.load(accumulator(), wgpu_engine.allocate({"params": 1}), slots=8)
    for _ in range(200):
        executable.submit([step(x=one(1.0))] * 8)
    assert maps == []


def test_unread_tickets_come_in_one_mapping(wgpu_engine: WgpuEngine, maps: list[int]) -> None:
    executable = wgpu_engine.load(accumulator(), wgpu_engine.allocate({"params": 1}), slots=8)
    tickets = [t for _ in range(4) for t in executable.submit([step(x=one(1.0))] * 8)]
    assert [float(t.read()["seen"]) for t in tickets] == list(range(32))
    assert maps == [32 * 256]


@pytest.mark.parametrize("pattern", ["rrrrrr", "r-r-r-", "rr--rr--", "--r---r"])
def test_any_pattern_of_reading_gives_the_same(wgpu_engine: WgpuEngine, pattern: str) -> None:
    executable = wgpu_engine.load(accumulator(), wgpu_engine.allocate({"params": 1}), slots=2)
    kept = []
    for i, what in enumerate(pattern * 3):
        tickets = executable.submit([step(x=one(1.0))] * 2)
        if what == "r":
            assert [float(t.read()["seen"]) for t in tickets] == [2 * i, 2 * i + 1]
        elif i % 2:
            kept.append((i, tickets))
    assert all(float(t.read()["seen"]) == 2 * i + j for i, pair in kept for j, t in enumerate(pair))


def test_loop_that_reads_each_step_submits_once_per_step(wgpu_engine: WgpuEngine, monkeypatch: Any) -> None:
    executable = wgpu_engine.load(accumulator(), wgpu_engine.allocate({"params": 1}), slots=1)
    submitted = []
    calls = wgpu_engine.device.calls
    run = calls.run
    monkeypatch.setattr(calls, "run", spied(run, lambda _: submitted.append(1)))
    for i in range(10):
        (ticket,) = executable.submit([step(x=one(1.0))])
        assert float(ticket.read()["seen"]) == i
    assert len(submitted) == 11, "only the first result needs a submission of its own"


class _Never:
    """An arrival that is not there at the first question, as on a device that takes its time."""

    def __init__(self, arrival: Any) -> None:
        self.arrival, self.asked = arrival, False

    def done(self) -> bool:
        if not self.asked:
            self.asked = True
            return False
        return bool(self.arrival.done())

    def pause(self, seconds: float) -> None:
        self.arrival.pause(seconds)

    def take(self) -> Any:
        return self.arrival.take()


@pytest.fixture
def slow(wgpu_engine: WgpuEngine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A device whose results never come at once; what is recorded, run and forgotten is noted."""
    calls, seen = wgpu_engine.device.calls, list[str]()
    before = {name: getattr(calls, name) for name in ("encode", "run", "forget", "map")}

    def note(name: str) -> Any:
        def call(*args: Any) -> Any:
            seen.append(name)
            made = before[name](*args)
            return _Never(made) if name == "map" else made

        return call

    for name in before:
        monkeypatch.setattr(calls, name, note(name))
    return seen


def test_loop_that_reads_each_step_records_the_next_one_while_it_waits(
    wgpu_engine: WgpuEngine, slow: list[str]
) -> None:
    executable = wgpu_engine.load(accumulator(), wgpu_engine.allocate({"params": 1}), slots=1)
    for i in range(5):
        (ticket,) = executable.submit([step(x=one(1.0))])
        if i > 1:
            assert slow[0] == "run", "the step had been recorded before it was asked for"
        slow.clear()
        assert float(ticket.read()["seen"]) == i
        assert "encode" in slow
        slow.clear()


@pytest.mark.parametrize("other", ["two steps", "a step that nobody reads", "the ring", "destroy"])
def test_what_was_recorded_ahead_is_forgotten_when_something_else_comes(
    wgpu_engine: WgpuEngine, slow: list[str], other: str
) -> None:
    store = wgpu_engine.allocate({"params": 1})
    executable = wgpu_engine.load(accumulator(), store, slots=2)
    for i in range(3):
        assert float(executable.submit([step(x=one(1.0))])[0].read()["seen"]) == i
    slow.clear()
    if other == "destroy":
        executable.destroy()
        assert "forget" in slow or not wgpu_engine.device.fast
        return
    if other == "two steps":
        assert [float(t.read()["seen"]) for t in executable.submit([step(x=one(1.0))] * 2)] == [3, 4]
    elif other == "the ring":
        kept = [executable.submit([step(x=one(1.0))])[0] for _ in range(2000)]
        assert [float(t.read()["seen"]) for t in kept] == [3 + i for i in range(2000)]
    else:
        executable.submit([step(x=one(1.0))])
        executable.submit([step(x=one(1.0))])
    done = float(store.read("params")[0])
    assert float(executable.submit([step(x=one(1.0))])[0].read()["seen"]) == done


@pytest.mark.parametrize("kept", [1, 3, 40])
def test_large_results_survive_the_reuse_of_their_slots(wgpu_engine: WgpuEngine, kept: int) -> None:
    executable = wgpu_engine.load(wide(5000), wgpu_engine.allocate({}), slots=2)
    tickets: list[Any] = []
    for i in range(40):
        new = executable.submit([step(x=np.full(5000, i, np.float32))] * 2)
        tickets += [t for t in new if i % (40 // min(kept, 40)) == 0]
    values = [float(t.read()["y"][3]) for t in tickets]
    assert values == sorted(values)
    assert len(set(values)) >= kept
    assert all(t.read()["y"].flags.writeable for t in tickets)


def test_forgotten_large_results_cost_nothing(wgpu_engine: WgpuEngine, maps: list[int]) -> None:
    executable = wgpu_engine.load(wide(5000), wgpu_engine.allocate({}), slots=2)
    for _ in range(5):
        executable.submit([step(x=np.zeros(5000, np.float32))] * 2)
    assert maps == []


def test_results_do_not_share_memory(wgpu_engine: WgpuEngine) -> None:
    executable = wgpu_engine.load(chain(1), wgpu_engine.allocate({}), slots=2)
    first, second = executable.submit([step(x=np.full(4, v, np.float32)) for v in (1.0, 2.0)])
    first.read()["y"][...] = 100.0
    np.testing.assert_array_equal(second.read()["y"], np.full(4, 3.0, np.float32))


def test_step_without_results_is_done_at_once(wgpu_engine: WgpuEngine) -> None:
    program = attrs.evolve(accumulator(), outputs={})
    store = wgpu_engine.allocate({"params": 1})
    (ticket,) = wgpu_engine.load(program, store).submit([step(x=one(3.0))])
    assert ticket.done()
    assert ticket.read() == {}
    assert store.read("params").tolist() == [3.0]


def test_refused_submission_is_told_to_tickets_it_would_have_rescued(wgpu_engine: WgpuEngine, monkeypatch: Any) -> None:
    executable = wgpu_engine.load(wide(5000), wgpu_engine.allocate({}), slots=1)
    (old,) = executable.submit([step(x=np.zeros(5000, np.float32))])

    def refuse(*args: Any) -> None:
        raise DeviceError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(wgpu_engine.device.calls, "run", refuse)
        with pytest.raises(DeviceError, match="out of memory"):
            executable.submit([step(x=np.ones(5000, np.float32))])
    with pytest.raises(DeviceError, match="out of memory"):
        old.read()
    (new,) = executable.submit([step(x=np.ones(5000, np.float32))])
    assert float(new.read()["y"][0]) == 2.0


def test_few_staging_buffers_wait_at_a_time(wgpu_engine: WgpuEngine) -> None:
    executable = wgpu_engine.load(wide(5000), wgpu_engine.allocate({}), slots=1)
    tickets = [executable.submit([step(x=np.full(5000, i, np.float32))])[0] for i in range(30)]
    assert len(executable._results._open) <= readback.OPEN + 1
    executable.destroy()
    assert all(t.done() for t in tickets)
    assert [float(t.read()["y"][0]) for t in tickets] == [i + 1.0 for i in range(30)]
