"""Data sets on the device: rows of every width reach the slots of their steps."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest

from tests.helpers import spied
from tests.runtime.programs import accumulator, chain, mixed, reporting, step, summing
from tgdsl.errors import DeviceError, HandleError, InputError
from tgdsl.program import Pick, Program, Slot, StepData
from tgdsl.runtime import dataset as module
from tgdsl.runtime.wgpu_engine import WgpuEngine

pytestmark = pytest.mark.gpu


def picked(dataset: Any, rows: Any, **scalars: float) -> StepData:
    return StepData({}, scalars, Pick(dataset, np.asarray(rows, np.int32)))


def shaped(*shape: int) -> Program:
    """`y = x + 1`, four elements in a shape."""
    made = chain(1)
    return attrs.evolve(made, inputs={"x": Slot(0, 0, shape, "f32")}, outputs={"y": Slot(1, 0, shape, "f32")})


@pytest.mark.parametrize("shape", [(4,), (2, 2), (1, 4), (4, 1, 1), (1, 2, 2)])
@pytest.mark.parametrize("parts", [1, 4])
def test_each_step_reads_the_rows_it_names(
    wgpu_engine: WgpuEngine, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], parts: int
) -> None:
    device = wgpu_engine.device
    executable = wgpu_engine.load(shaped(*shape), wgpu_engine.allocate({}), slots=3)
    width = 4 // shape[0]
    x = np.random.default_rng(0).normal(size=(29, *shape[1:])).astype(np.float32)
    limit = -(-29 // parts) * 4 * width if parts > 1 else device.limits.max_binding_bytes
    monkeypatch.setattr(device, "limits", attrs.evolve(device.limits, max_binding_bytes=limit))
    monkeypatch.setattr(module, "PIECE", 7 * 4 * width)
    dataset = wgpu_engine.keep({"x": x}, {})
    assert len(dataset.fields["x"].parts) == parts
    rng = np.random.default_rng(1)
    rows = [rng.integers(0, 29, shape[0]) for _ in range(7)]
    tickets = executable.submit([picked(dataset, r) for r in rows])
    for ticket, r in zip(tickets, rows, strict=True):
        assert np.array_equal(ticket.read()["y"], x[r] + 1.0)
    (uploaded,) = executable.submit([step(x=x[rows[0]])])
    assert np.array_equal(uploaded.read()["y"], x[rows[0]] + 1.0), "an upload works in between"


@pytest.mark.parametrize("n", [3, 600, 20_000])
def test_rows_of_numbers_in_packed_and_in_large_inputs(wgpu_engine: WgpuEngine, n: int) -> None:
    executable = wgpu_engine.load(summing(n), wgpu_engine.allocate({}), slots=2)
    rng = np.random.default_rng(n)
    x = rng.integers(-9, 9, 50).astype(np.float32)
    rows = rng.integers(0, 50, (5, n))
    dataset = wgpu_engine.keep({"x": x}, {})
    tickets = executable.submit([picked(dataset, r) for r in rows])
    assert [float(t.read()["y"]) for t in tickets] == [float(x[r].sum()) + 5.0 for r in rows]


def test_integers_and_whole_arrays(wgpu_engine: WgpuEngine) -> None:
    executable = wgpu_engine.load(mixed(), wgpu_engine.allocate({}), slots=2)
    i = np.array([2**30, -7, 5, -(2**30)], np.int32)
    dataset = wgpu_engine.keep({"i": i}, {"b": np.array([1, 0, 1], np.int32)})
    for ticket, rows in zip(
        executable.submit([picked(dataset, r) for r in ([3, 1, 0], [2, 2, 1])]), ([3, 1, 0], [2, 2, 1]), strict=True
    ):
        assert np.array_equal(ticket.read()["doubled"], 2 * i[rows])
        assert ticket.read()["opposite"].tolist() == [False, True, False]


def test_scalars_come_along_and_the_flag_starts_at_zero(wgpu_engine: WgpuEngine) -> None:
    store = wgpu_engine.allocate({"params": 1})
    executable = wgpu_engine.load(accumulator(), store, slots=2)
    dataset = wgpu_engine.keep({"x": np.array([1.0, 10.0, 100.0], np.float32)}, {})
    executable.submit([picked(dataset, [i], rate=r) for i, r in ((2, 1.0), (0, 0.5), (1, 2.0))])
    assert store.read("params").tolist() == [120.5]
    flagged = wgpu_engine.load(reporting(), wgpu_engine.allocate({}), slots=3)
    numbers = wgpu_engine.keep({"i": np.array([1, 30, 3], np.int32)}, {})
    good, bad, after = flagged.submit([picked(numbers, [k], add=2**32 - 1) for k in range(3)])
    assert (int(good.read()["y"]), int(after.read()["y"])) == (0, 2)
    with pytest.raises(InputError, match=r"index outside of f32\[9, 4\]"):
        bad.read()


def test_what_does_not_fit_is_refused_and_changes_nothing(wgpu_engine: WgpuEngine) -> None:
    store = wgpu_engine.allocate({"params": 1})
    executable = wgpu_engine.load(accumulator(), store, slots=1)
    x = np.ones(3, np.float32)
    dataset = wgpu_engine.keep({"x": x}, {})
    good = picked(dataset, [0], rate=1.0)
    for data, text in (
        ([good, picked(dataset, [0, 1], rate=1.0)], r"picked rows: expected i32\[1\], got int32\[2\]"),
        ([good, picked(dataset, [0])], "scalar 'rate' is missing"),
        ([good, step(x=x[:1])], "read their inputs in different ways"),
        ([step(x=x[:1]), good], "input 'x' is missing"),
        ([picked(wgpu_engine.keep({"y": x}, {}), [0], rate=1.0)], "input 'x' is missing"),
        ([picked(wgpu_engine.keep({"x": x[:, None]}, {}), [0], rate=1.0)], r"expected f32\[1\], got rows of \[1\]"),
        ([picked(wgpu_engine.keep({}, {"x": x[:1]}), [0], rate=1.0)], "no input is split into rows"),
    ):
        with pytest.raises(InputError, match=text):
            executable.submit(data)
    assert store.read("params").tolist() == [0.0]


def test_a_data_set_that_was_freed_is_refused(wgpu_engine: WgpuEngine) -> None:
    executable = wgpu_engine.load(shaped(4), wgpu_engine.allocate({}), slots=1)
    dataset = wgpu_engine.keep({"x": np.arange(5, dtype=np.float32)}, {})
    (ticket,) = executable.submit([picked(dataset, [4, 3, 2, 1])])
    dataset.destroy()
    dataset.destroy()
    assert ticket.read()["y"].tolist() == [5.0, 4.0, 3.0, 2.0]
    with pytest.raises(HandleError, match="the data set was freed"):
        executable.submit([picked(dataset, [4, 3, 2, 1])])


def test_a_row_that_no_binding_can_hold_is_refused(wgpu_engine: WgpuEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    device = wgpu_engine.device
    monkeypatch.setattr(device, "limits", attrs.evolve(device.limits, max_binding_bytes=64))
    with pytest.raises(DeviceError, match=r"data set: one row of x needs 80 bytes, more than the 64 of one binding on"):
        wgpu_engine.keep({"x": np.zeros((3, 20), np.float32)}, {})


def test_rows_and_scalars_are_one_write(wgpu_engine: WgpuEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    executable = wgpu_engine.load(accumulator(), wgpu_engine.allocate({"params": 1}), slots=4)
    dataset = wgpu_engine.keep({"x": np.ones(3, np.float32)}, {})
    steps = [picked(dataset, [0], rate=1.0)] * 4
    executable.submit(steps)  # the first ones are timed alone
    device, written = wgpu_engine.device, []
    write = device.write
    monkeypatch.setattr(device, "write", spied(write, lambda b, at, data: written.append(data.nbytes)))
    executable.submit(steps)
    assert written == [4 * 8], "a scalar and a row number per step"


def test_the_next_data_set_of_that_size_compiles_nothing(
    wgpu_engine: WgpuEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    executable = wgpu_engine.load(shaped(4), wgpu_engine.allocate({}), slots=1)
    compiled: list[str] = []
    make = wgpu_engine.device._pipeline
    monkeypatch.setattr(wgpu_engine.device, "_pipeline", spied(make, lambda k: compiled.append(k.name)))
    for start in (0.0, 10.0):
        dataset = wgpu_engine.keep({"x": np.arange(start, start + 6, dtype=np.float32)}, {})
        (ticket,) = executable.submit([picked(dataset, [0, 5, 1, 2])])
        assert ticket.read()["y"].tolist() == [start + 1, start + 6, start + 2, start + 3]
        dataset.destroy()
    assert len(compiled) <= 1


def test_the_first_submission_is_timed_with_picked_rows_too(
    wgpu_engine: WgpuEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = wgpu_engine.device
    monkeypatch.setattr(device, "limits", attrs.evolve(device.limits, software=False))
    store = wgpu_engine.allocate({"params": 1})
    executable = wgpu_engine.load(accumulator(), store, slots=4)
    dataset = wgpu_engine.keep({"x": np.arange(8, dtype=np.float32)}, {})
    tickets = executable.submit([picked(dataset, [k], rate=1.0) for k in range(8)])
    assert [float(t.read()["seen"]) for t in tickets] == [0, 0, 1, 3, 6, 10, 15, 21]
