"""Submissions, their inputs, their order, and the end of things, on hand-written programs."""

from __future__ import annotations

import threading
from typing import Any

import attrs
import numpy as np
import pytest

from tests.helpers import spied
from tests.runtime.programs import accumulator, chain, mixed, reporting, step, summing
from tgdsl.errors import DeviceError, HandleError, InputError
from tgdsl.program import StepData
from tgdsl.runtime import executable as module
from tgdsl.runtime.wgpu_engine import WgpuEngine

pytestmark = pytest.mark.gpu
F4 = np.zeros(4, np.float32)


def one(x: float) -> np.ndarray:
    """A single f32."""
    return np.array([x], np.float32)


def test_chain_of_dispatches_sees_what_came_before(wgpu_engine: WgpuEngine) -> None:
    executable = wgpu_engine.load(chain(5), wgpu_engine.allocate({}), slots=2)
    (ticket,) = executable.submit([step(x=F4)])
    np.testing.assert_array_equal(ticket.read()["y"], F4 + 5)
    assert ticket.done()


@pytest.mark.parametrize("slots", [1, 3, 8])
def test_many_steps_in_one_submission_equal_single_ones(wgpu_engine: WgpuEngine, slots: int) -> None:
    store = wgpu_engine.allocate({"params": 1})
    executable = wgpu_engine.load(accumulator(), store, slots=slots)
    tickets = executable.submit([step(rate=float(i), x=one(2.0)) for i in range(7)])
    assert [float(t.read()["seen"]) for t in tickets] == [0, 0, 2, 6, 12, 20, 30]
    assert store.read("params").tolist() == [42.0]


def test_inputs_are_copied_when_submitted(wgpu_engine: WgpuEngine) -> None:
    executable = wgpu_engine.load(chain(1), wgpu_engine.allocate({}), slots=1)
    x = F4.copy()
    (ticket,) = executable.submit([step(x=x)])
    x[:] = 100.0
    np.testing.assert_array_equal(ticket.read()["y"], F4 + 1)


def test_integers_and_booleans(wgpu_engine: WgpuEngine) -> None:
    executable = wgpu_engine.load(mixed(), wgpu_engine.allocate({}), slots=1)
    data = step(i=np.array([1, -2, 3], np.int32), b=np.array([True, False, True]))
    values = executable.submit([data])[0].read()
    np.testing.assert_array_equal(values["doubled"], np.array([2, -4, 6], np.int32))
    np.testing.assert_array_equal(values["opposite"], [False, True, False])
    assert values["doubled"].dtype == np.int32
    assert values["opposite"].dtype == np.bool_


def test_store_access_is_in_order_with_steps(wgpu_engine: WgpuEngine) -> None:
    store = wgpu_engine.allocate({"params": 1})
    executable = wgpu_engine.load(accumulator(), store, slots=1)
    executable.submit([step(x=one(1.0))])
    assert store.read("params").tolist() == [1.0]
    store.write("params", one(10.0))
    (ticket,) = executable.submit([step(x=one(1.0))])
    assert float(ticket.read()["seen"]) == 10.0
    assert store.sizes() == {"params": 1}
    with pytest.raises(InputError, match="expected 1 elements, got 2"):
        store.write("params", np.zeros(2, np.float32))


def test_bad_inputs_change_nothing(wgpu_engine: WgpuEngine) -> None:
    store = wgpu_engine.allocate({"params": 1})
    executable = wgpu_engine.load(accumulator(), store, slots=1)
    with pytest.raises(InputError, match="'x' is missing"):
        executable.submit([step()])
    with pytest.raises(InputError, match=r"expected f32\[1\], got float32\[4\]"):
        executable.submit([step(x=one(1.0)), step(x=F4)])
    with pytest.raises(InputError, match=r"expected f32\[1\], got int64\[1\]"):
        executable.submit([step(x=np.ones(1, np.int64))])
    with pytest.raises(InputError, match="scalar 'rate' is missing"):
        executable.submit([StepData({"x": one(1.0)}, {})])
    assert store.read("params").tolist() == [0.0]


def test_destroyed_things_refuse(wgpu_engine: WgpuEngine) -> None:
    store = wgpu_engine.allocate({"params": 1})
    executable = wgpu_engine.load(accumulator(), store, slots=1)
    (ticket,) = executable.submit([step(x=one(1.0))])
    executable.destroy()
    executable.destroy()
    assert float(ticket.read()["seen"]) == 0.0, "a ticket outlives its executable"
    with pytest.raises(HandleError):
        executable.submit([step(x=one(1.0))])
    other = wgpu_engine.load(accumulator(), store, slots=1)
    store.destroy()
    store.destroy()
    with pytest.raises(HandleError, match="the store was destroyed"):
        store.read("params")
    with pytest.raises(HandleError, match="the store was destroyed"):
        other.submit([step(x=one(1.0))])


def test_calls_from_several_threads_have_one_order(wgpu_engine: WgpuEngine) -> None:
    store = wgpu_engine.allocate({"params": 1})
    executable = wgpu_engine.load(accumulator(), store, slots=2)
    results: list[float] = []

    def work() -> None:
        for _ in range(25):
            (ticket,) = executable.submit([step(x=one(1.0))])
            results.append(float(ticket.read()["seen"]))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(results) == [float(i) for i in range(100)]


def test_training_goes_on_beside_a_busy_python_thread(wgpu_engine: WgpuEngine) -> None:
    executable = wgpu_engine.load(chain(10), wgpu_engine.allocate({}), slots=8)
    stop = threading.Event()

    def busy() -> None:
        n = 0
        while not stop.is_set():
            n += 1

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        tickets = [t for _ in range(20) for t in executable.submit([step(x=F4)] * 8)]
        assert all((t.read()["y"] == 10.0).all() for t in tickets)
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("n", [3, 600, 20_000])
def test_inputs_of_every_size_reach_their_step(wgpu_engine: WgpuEngine, n: int) -> None:
    executable = wgpu_engine.load(summing(n), wgpu_engine.allocate({}), slots=3)
    rng = np.random.default_rng(n)
    x = rng.integers(-9, 9, size=(5, n)).astype(np.float32)
    layouts = [x[0], np.asfortranarray(x)[1], x[2].astype(np.float64), x[3, ::-1], x[4]]
    tickets = executable.submit([step(x=a) for a in layouts])
    assert [float(t.read()["y"]) for t in tickets] == [float(a.sum()) + 5.0 for a in layouts]


def test_packed_inputs_and_scalars_are_one_write(wgpu_engine: WgpuEngine, monkeypatch: Any) -> None:
    executable = wgpu_engine.load(accumulator(), wgpu_engine.allocate({"params": 1}), slots=4)
    executable.submit([step(x=one(1.0))] * 4)  # the first ones are timed alone
    device, writes = wgpu_engine.device, []
    write = device.write
    monkeypatch.setattr(device, "write", spied(write, lambda *args: writes.append(args)))
    executable.submit([step(x=one(1.0))] * 4)
    assert len(writes) == 1


def test_error_flag_of_a_step_is_raised_by_its_ticket_only(wgpu_engine: WgpuEngine) -> None:
    executable = wgpu_engine.load(reporting(), wgpu_engine.allocate({}), slots=2)
    data = [StepData({"i": np.array([i], np.int32)}, {"add": 2**32 - 1}) for i in (1, 30, 3)]
    good, bad, after = executable.submit(data)
    assert int(good.read()["y"]) == 0, "a bit pattern above 2**31 is an i32"
    with pytest.raises(InputError, match=r"index outside of f32\[9, 4\]"):
        bad.read()
    assert int(after.read()["y"]) == 2
    assert "flag" not in after.read()


def test_large_steps_get_fewer_slots(wgpu_engine: WgpuEngine, monkeypatch: Any) -> None:
    monkeypatch.setattr("tgdsl.runtime.placement.STEP_MEMORY", 3 * 80_384)
    executable = wgpu_engine.load(summing(20_000), wgpu_engine.allocate({}), slots=8)
    assert executable.slots == 3
    x = np.ones(20_000, np.float32)
    assert [float(t.read()["y"]) for t in executable.submit([step(x=x)] * 5)] == [20_005.0] * 5


def test_submissions_that_would_take_long_are_shortened(wgpu_engine: WgpuEngine, monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "LONGEST", 0.0)
    device = wgpu_engine.device
    monkeypatch.setattr(device, "limits", attrs.evolve(device.limits, software=False))
    store = wgpu_engine.allocate({"params": 1})
    executable = wgpu_engine.load(accumulator(), store, slots=4)
    tickets = executable.submit([step(x=one(1.0))] * 6)
    assert executable.slots == 1
    assert [float(t.read()["seen"]) for t in tickets] == [0, 1, 2, 3, 4, 5]


def test_program_that_does_not_fit_its_store_is_refused(wgpu_engine: WgpuEngine) -> None:
    with pytest.raises(DeviceError, match=r"needs an arena params of 4 bytes, the store has none"):
        wgpu_engine.load(accumulator(), wgpu_engine.allocate({"state": 3}))


def test_arena_without_elements_can_be_read(wgpu_engine: WgpuEngine) -> None:
    store = wgpu_engine.allocate({"empty": 0, "params": 2})
    store.write("empty", np.zeros(0, np.float32))
    assert store.read("empty").shape == (0,)
    with pytest.raises(InputError, match="no arena 'grads'; there are: empty, params"):
        store.read("grads")


def test_large_arena_round_trip(wgpu_engine: WgpuEngine) -> None:
    store = wgpu_engine.allocate({"params": 3_000_000})
    assert not store.read("params").any(), "arenas begin as zeros"
    values = np.arange(3_000_000, dtype=np.float32)
    store.write("params", values)
    read = store.read("params")
    np.testing.assert_array_equal(read, values)
    read[0] = 1.0  # a copy that belongs to the caller
