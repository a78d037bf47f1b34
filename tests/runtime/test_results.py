"""Results are fetched when somebody looks, and never lost before that."""

from __future__ import annotations

import gc
from typing import Any

import attrs
import numpy as np
import pytest

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
    tickets = []
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
    submit = calls.submit
    monkeypatch.setattr(calls, "submit", lambda *args: (submitted.append(1), submit(*args)))
    for i in range(10):
        (ticket,) = executable.submit([step(x=one(1.0))])
        assert float(ticket.read()["seen"]) == i
    assert len(submitted) == 11, "only the first result needs a submission of its own"


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
        patch.setattr(wgpu_engine.device.calls, "submit", refuse)
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
