"""The device itself: pipelines, shortcuts, limits, errors, timings."""

from __future__ import annotations

import gc
import time
from types import SimpleNamespace
from typing import Any

import attrs
import numpy as np
import pytest

from tests.runtime.programs import accumulator, chain, step
from tgdsl.errors import DeviceError
from tgdsl.program import Kernel
from tgdsl.runtime import device as module
from tgdsl.runtime.device import open_device
from tgdsl.runtime.profile import elapsed, profile
from tgdsl.runtime.wgpu_engine import WgpuEngine

pytestmark = pytest.mark.gpu
F4 = np.zeros(4, np.float32)


def test_kernels_of_equal_text_share_a_pipeline(engine: Any) -> None:
    held = [engine.load(chain(3), engine.allocate({}), slots=1)]
    before = engine.device.pipeline_count
    held.append(engine.load(chain(4), engine.allocate({}), slots=1))
    assert engine.device.pipeline_count == before


def test_refused_shader_is_shown_with_the_message(engine: Any) -> None:
    program = attrs.evolve(
        chain(1), kernels=(Kernel("broken", "@compute @workgroup_size(1) fn main() { oops; }", (False, True)),)
    )
    with pytest.raises(DeviceError, match=r"kernel broken was refused[\s\S]*>   1 @compute"):
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


def test_excerpt_shows_the_lines_around_the_mistake(engine: Any) -> None:
    text = "\n".join(["// filler"] * 50 + ["@compute @workgroup_size(1)", "fn main() { let x: i32 = 1.0f; }"])
    program = attrs.evolve(chain(1), kernels=(Kernel("late", text, (False, True)),))
    with pytest.raises(DeviceError, match=r"kernel late was refused") as caught:
        engine.load(program, engine.allocate({}))
    assert ">  52 fn main()" in str(caught.value)
    assert "   1 // filler" not in str(caught.value)


def test_kernel_with_other_bindings_than_its_text_is_refused_with_its_origin(engine: Any) -> None:
    base = chain(1)
    short = attrs.evolve(base.dispatches[0], bindings=base.dispatches[0].bindings[:1])
    with pytest.raises(DeviceError, match=r"kernel add_one: its buffers cannot be bound[\s\S]*in add_0"):
        engine.load(attrs.evolve(base, dispatches=(short,)), engine.allocate({}))


def test_limits_are_checked_by_name_before_anything_is_made(engine: Any, monkeypatch: Any) -> None:
    program = attrs.evolve(chain(1), origins={"x": "input x, model.py:3"})
    for limit, text in (
        ({"max_buffer_bytes": 8}, r"buffer x \(input x, model.py:3\) needs 16 bytes, more than the 8 of one buffer"),
        ({"max_binding_bytes": 8}, r"buffer x \(input x, model.py:3\) needs 16 bytes, more than the 8 of one binding"),
        ({"max_bindings": 1}, "kernel of add_0 binds 2 buffers, more than the 1"),
        ({"max_groups_per_dim": 0}, r"kernel of add_0 needs \(1, 1, 1\) workgroups, more than the 0 per axis"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(engine.device, "limits", attrs.evolve(engine.limits, **limit))
            with pytest.raises(DeviceError, match=text):
                engine.load(program, engine.allocate({}))


def test_pipelines_go_with_the_last_program_that_uses_them(engine: Any) -> None:
    program = accumulator()
    own = attrs.evolve(program.kernels[0], wgsl=program.kernels[0].wgsl + "// nobody else has this text")
    gc.collect()
    before = engine.device.pipeline_count
    executable = engine.load(attrs.evolve(program, kernels=(own,)), engine.allocate({"params": 1}))
    assert engine.device.pipeline_count == before + 1
    executable.destroy()
    assert engine.device.pipeline_count == before


def test_untrusted_kernel_keeps_its_checks(engine: Any) -> None:
    wild = """@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(1)
fn main() { y[0] = x[u32(x[0])]; }
"""
    program = attrs.evolve(chain(1), kernels=(Kernel("wild", wild, (False, True), trusted=False),))
    executable = engine.load(program, engine.allocate({}))
    (ticket,) = executable.submit([step(x=np.array([1e6, 2.0, 3.0, 4.0], np.float32))])
    assert ticket.read()["y"][0] in (0.0, 1e6, 2.0, 3.0, 4.0)


def test_device_that_never_answers_is_given_up(engine: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "LONGEST_WAIT", 0.01)
    with pytest.raises(DeviceError, match="has not answered"):
        engine.device.wait(SimpleNamespace(done=lambda: False, pause=time.sleep))


@pytest.mark.parametrize("public", ["0", "1"])
def test_lost_device_raises_and_does_not_hang(engine: Any, monkeypatch: pytest.MonkeyPatch, public: str) -> None:
    monkeypatch.setenv("TGDSL_PUBLIC_ENCODING", public)
    lost = WgpuEngine()
    store = lost.allocate({"params": 1})
    executable = lost.load(accumulator(), store)
    (ticket,) = executable.submit([step(x=F4[:1])])
    lost.device.native.destroy()
    with pytest.raises(DeviceError):
        ticket.read()
    with pytest.raises(DeviceError):
        executable.submit([step(x=F4[:1])])
    with pytest.raises(DeviceError):
        store.read("params")


def test_auto_refuses_software(engine: Any) -> None:
    if not engine.limits.software:
        assert not open_device("auto").limits.software
        return
    with pytest.raises(DeviceError, match="no GPU was found"):
        open_device("auto")


def test_limits_and_description_name_the_adapter(engine: Any) -> None:
    limits = engine.limits
    assert limits.max_bindings == 8
    assert limits.max_binding_bytes >= 128 << 20
    assert limits.max_buffer_bytes >= 256 << 20
    assert limits.max_workgroup_invocations >= 256
    assert limits.max_workgroup_storage >= 16384
    assert limits.max_groups_per_dim >= 65535
    assert engine.device.info["device"] in engine.description
    assert ("software adapter" in engine.description) == limits.software


def test_each_dispatch_can_be_timed(engine: Any) -> None:
    executable = engine.load(chain(3), engine.allocate({}))
    times = profile(executable, step(x=F4))
    if "timestamp-query" not in engine.device.features:
        assert times is None
        assert elapsed(executable, step(x=F4)) is None
        return
    assert times is not None
    assert [origin for origin, _ in times] == ["add_0", "add_1", "add_2"]
    assert all(0 <= ns < 1e9 for _, ns in times)
    whole = elapsed(executable, step(x=F4), calls=3)
    assert whole is not None
    assert 0 <= whole < 1e9
