"""How long a program takes on the device, without the host: each dispatch, or a whole step.

A pass of its own per dispatch is timed, so the sum is more than a step takes in one pass.
`alone` and `race` compare dispatches that do the same work in different ways.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from tgdsl.program import StepData

from .calls import Command
from .device import Device
from .executable import DeviceExecutable

PASS: Final = 2e-3
"""Seconds that a pass of one candidate should take; shorter ones would measure the clock."""


def profile(executable: DeviceExecutable, step: StepData, repeats: int = 5) -> list[tuple[str, float]] | None:
    """Run a step a few times and time each dispatch.

    Args:
        executable: What to run; the arenas of its store change as in that many steps.
        step: What each step reads.
        repeats: How many steps.

    Returns:
        The origin of each dispatch and its median time in nanoseconds; None if the device
        has no timestamps.
    """
    dispatches = executable.program.dispatches
    if "timestamp-query" not in executable.device.features or not dispatches:
        return None
    with executable.device.lock:
        executable.submit([step])  # warms up, and leaves the inputs in slot 0
        medians = _passes(executable.device, [[command] for command in executable.commands(0)], repeats)
    return [(d.origin, ns) for d, ns in zip(dispatches, medians, strict=True)]


def elapsed(executable: DeviceExecutable, step: StepData, calls: int = 20, repeats: int = 5) -> float | None:
    """Nanoseconds per step of `calls` steps in one pass, the median of `repeats` passes; None without timestamps."""
    if "timestamp-query" not in executable.device.features or not executable.program.dispatches:
        return None
    with executable.device.lock:
        executable.submit([step])
        (median,) = _passes(executable.device, [executable.commands(0) * calls], repeats)
    return median / calls


def alone(executable: DeviceExecutable, index: int) -> None:
    """Run one dispatch of a program, which has no inputs."""
    with executable.device.lock:
        executable.device.submit((), [executable.commands(0)[index]], ())


def race(device: Device, runs: Sequence[Sequence[Command]], repeats: int = 5) -> list[float]:
    """Seconds that each of these runs of commands takes by itself; the median of `repeats` passes.

    Without timestamps, or where they stand still, the host's clock is asked.
    """
    with device.lock:
        single = [min(_clocked(device, [*run, *run]) for _ in range(2)) / 2 for run in runs]
        # Every candidate the same number of times: a longer pass hides more of what begins and ends it.
        calls = max(1, min(50, int(PASS / min(single, default=PASS))))
        passes = [list(run) * calls for run in runs]
        if "timestamp-query" in device.features:
            taken = [float(ns) / 1e9 for ns in _passes(device, passes, repeats)]
            if min(taken, default=0.0) > 0.0:
                return [t / calls for t in taken]
        rounds = [[_clocked(device, run) for run in passes] for _ in range(repeats)]
    return [statistics.median(times) / calls for times in zip(*rounds, strict=True)]


def _clocked(device: Device, commands: Sequence[Command]) -> float:
    device.finish()
    start = time.perf_counter()
    device.submit((), commands, ())
    device.finish()
    return time.perf_counter() - start


def _passes(device: Device, passes: Sequence[Sequence[Command]], repeats: int) -> list[float]:
    """The median time of each pass, in nanoseconds."""
    count = 2 * len(passes)
    queries = device.native.create_query_set(type="timestamp", count=count)
    ticks = device.query_buffer(8 * count)
    taken: list[Any] = []
    for _ in range(repeats):
        encoder = device.native.create_command_encoder()
        for i, commands in enumerate(passes):
            writes = {
                "query_set": queries,
                "beginning_of_pass_write_index": 2 * i,
                "end_of_pass_write_index": 2 * i + 1,
            }
            compute = encoder.begin_compute_pass(timestamp_writes=writes)
            for command in commands:
                compute.set_pipeline(command.pipeline)
                compute.set_bind_group(0, command.bind_group)
                compute.dispatch_workgroups(*command.groups)
            compute.end()
        encoder.resolve_query_set(queries, 0, count, ticks, 0)
        device.native.queue.submit([encoder.finish()])
        times = device.read(ticks, 0, 8 * count).view(np.uint64).reshape(-1, 2)
        taken.append((times[:, 1] - times[:, 0]).astype(np.float64) * device.nanoseconds_per_tick)
    ticks.destroy()
    return [statistics.median(row) for row in zip(*taken, strict=True)]
