"""Submissions, results, order, and the end of things, on hand-written programs."""

from __future__ import annotations

import gc
import threading
from typing import Any

import attrs
import numpy as np
import pytest

from tests.runtime.programs import accumulator, chain, mixed, step, wide
from tgdsl.errors import DeviceError, HandleError, InputError
from tgdsl.program import Kernel
from tgdsl.runtime.wgpu_engine import WgpuEngine

pytestmark = pytest.mark.gpu
F4 = np.zeros(4, np.float32)


def one(x: float) -> np.ndarray:
    """A single f32."""
    return np.array([x], np.float32)


def test_chain_of_dispatches_sees_what_came_before(engine: Any) -> None:
    executable = engine.load(chain(5), engine.allocate({}), slots=2)
    (ticket,) = executable.submit([step(x=F4)])
    np.testing.assert_array_equal(ticket.read()["y"], F4 + 5)
    assert ticket.done()


@pytest.mark.parametrize("slots", [1, 3, 8])
def test_many_steps_in_one_submission_equal_single_ones(engine: Any, slots: int) -> None:
    store = engine.allocate({"params": 1})
    executable = engine.load(accumulator(), store, slots=slots)
    tickets = executable.submit([step(rate=float(i), x=one(2.0)) for i in range(7)])
    assert [float(t.read()["seen"]) for t in tickets] == [0, 0, 2, 6, 12, 20, 30]
    assert store.read("params").tolist() == [42.0]


def test_inputs_are_copied_when_submitted(engine: Any) -> None:
    executable = engine.load(chain(1), engine.allocate({}), slots=1)
    x = F4.copy()
    (ticket,) = executable.submit([step(x=x)])
    x[:] = 100.0
    np.testing.assert_array_equal(ticket.read()["y"], F4 + 1)


def test_thousands_of_steps_without_reading_lose_nothing(engine: Any) -> None:
    executable = engine.load(accumulator(), engine.allocate({"params": 1}), slots=8)
    tickets = []
    for i in range(0, 3000, 8):
        tickets += executable.submit([step(x=one(1.0)) for _ in range(8)])
        if i % 160 == 0:
            tickets = tickets[-40:]  # the others are forgotten: nobody may wait for them
            gc.collect()
    values = [float(t.read()["seen"]) for t in tickets]
    assert values == [float(v) for v in range(3000 - len(values), 3000)]


def test_unread_result_survives_the_reuse_of_its_place(engine: Any) -> None:
    executable = engine.load(accumulator(), engine.allocate({"params": 1}), slots=8)
    (first,) = executable.submit([step(x=one(1.0))])
    for _ in range(150):
        executable.submit([step(x=one(1.0)) for _ in range(8)])
    assert float(first.read()["seen"]) == 0.0


def test_large_results_have_buffers_of_their_own(engine: Any) -> None:
    executable = engine.load(wide(1000), engine.allocate({}), slots=2)
    tickets = executable.submit([step(x=np.full(1000, i, np.float32)) for i in range(3)])
    assert [float(t.read()["y"][0]) for t in tickets] == [1.0, 2.0, 3.0]
    while not tickets[0].done():
        pass


def test_done_becomes_true_without_reading(engine: Any) -> None:
    executable = engine.load(accumulator(), engine.allocate({"params": 1}), slots=1)
    (ticket,) = executable.submit([step(x=one(1.0))])
    for _ in range(100_000):
        if ticket.done():
            break
    assert ticket.done()
    assert float(ticket.read()["seen"]) == 0.0


def test_integers_and_booleans(engine: Any) -> None:
    executable = engine.load(mixed(), engine.allocate({}), slots=1)
    data = step(i=np.array([1, -2, 3], np.int32), b=np.array([True, False, True]))
    values = executable.submit([data])[0].read()
    np.testing.assert_array_equal(values["doubled"], np.array([2, -4, 6], np.int32))
    np.testing.assert_array_equal(values["opposite"], [False, True, False])
    assert values["doubled"].dtype == np.int32
    assert values["opposite"].dtype == np.bool_


def test_store_access_is_in_order_with_steps(engine: Any) -> None:
    store = engine.allocate({"params": 1})
    executable = engine.load(accumulator(), store, slots=1)
    executable.submit([step(x=one(1.0))])
    assert store.read("params").tolist() == [1.0]
    store.write("params", one(10.0))
    (ticket,) = executable.submit([step(x=one(1.0))])
    assert float(ticket.read()["seen"]) == 10.0
    assert store.sizes() == {"params": 1}
    with pytest.raises(InputError, match="expected 1 elements, got 2"):
        store.write("params", np.zeros(2, np.float32))


def test_bad_inputs_change_nothing(engine: Any) -> None:
    store = engine.allocate({"params": 1})
    executable = engine.load(accumulator(), store, slots=1)
    with pytest.raises(InputError, match="'x' is missing"):
        executable.submit([step()])
    with pytest.raises(InputError, match="expected f32"):
        executable.submit([step(x=one(1.0)), step(x=F4)])
    assert store.read("params").tolist() == [0.0]


def test_destroyed_things_refuse(engine: Any) -> None:
    store = engine.allocate({"params": 1})
    executable = engine.load(accumulator(), store, slots=1)
    (ticket,) = executable.submit([step(x=one(1.0))])
    executable.destroy()
    executable.destroy()
    assert float(ticket.read()["seen"]) == 0.0, "a ticket outlives its executable"
    with pytest.raises(HandleError):
        executable.submit([step(x=one(1.0))])
    store.destroy()
    with pytest.raises(HandleError):
        store.read("params")


def test_kernels_of_equal_text_share_a_pipeline(engine: Any) -> None:
    engine.load(chain(3), engine.allocate({}), slots=1)
    before = engine.device.pipeline_count
    engine.load(chain(4), engine.allocate({}), slots=1)
    assert engine.device.pipeline_count == before


def test_refused_shader_is_shown_with_the_message(engine: Any) -> None:
    program = attrs.evolve(
        chain(1), kernels=(Kernel("broken", "@compute @workgroup_size(1) fn main() { oops; }", (False, True)),)
    )
    with pytest.raises(DeviceError, match=r"kernel broken was refused[\s\S]*1 @compute"):
        engine.load(program, engine.allocate({}), slots=1)


def test_sizes_beyond_the_device_are_refused_by_name(engine: Any) -> None:
    huge = engine.limits.max_buffer_bytes + 4
    with pytest.raises(DeviceError, match=r"arena params needs [\d,]+ bytes"):
        engine.allocate({"params": huge // 4})


@pytest.mark.parametrize("switch", ["TGDSL_CHECKED_SHADERS", "TGDSL_PUBLIC_ENCODING"])
def test_shortcuts_can_be_turned_off_and_change_no_result(engine: Any, switch: str, monkeypatch: Any) -> None:
    monkeypatch.setenv(switch, "1")
    plain = WgpuEngine()
    note = {"TGDSL_CHECKED_SHADERS": "checked shaders", "TGDSL_PUBLIC_ENCODING": "public encoding"}[switch]
    assert note in plain.description
    assert note not in engine.description
    executable = plain.load(chain(3), plain.allocate({}), slots=2)
    for ticket in executable.submit([step(x=F4), step(x=F4 + 1)]):
        assert ticket.read()["y"][0] in (3.0, 4.0)


def test_calls_from_several_threads_have_one_order(engine: Any) -> None:
    store = engine.allocate({"params": 1})
    executable = engine.load(accumulator(), store, slots=2)
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


def test_training_goes_on_beside_a_busy_python_thread(engine: Any) -> None:
    executable = engine.load(chain(10), engine.allocate({}), slots=8)
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
