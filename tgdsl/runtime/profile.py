"""How long a program takes on the device, without the host: each dispatch, or a whole step.

A pass of its own per dispatch is timed, so the sum is more than a step takes in one pass.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from tgdsl.program import StepData

from .calls import Command
from .executable import DeviceExecutable


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
        medians = _passes(executable, [[command] for command in executable.commands(0)], repeats)
    return [(d.origin, ns) for d, ns in zip(dispatches, medians, strict=True)]


def elapsed(executable: DeviceExecutable, step: StepData, calls: int = 20, repeats: int = 5) -> float | None:
    """Nanoseconds per step of `calls` steps in one pass, the median of `repeats` passes; None without timestamps."""
    if "timestamp-query" not in executable.device.features or not executable.program.dispatches:
        return None
    with executable.device.lock:
        executable.submit([step])
        (median,) = _passes(executable, [executable.commands(0) * calls], repeats)
    return median / calls


def _passes(executable: DeviceExecutable, passes: Sequence[Sequence[Command]], repeats: int) -> list[float]:
    """The median time of each pass, in nanoseconds."""
    device = executable.device
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
