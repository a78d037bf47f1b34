"""How long each dispatch of a program takes on the device.

A pass of its own per dispatch is timed, so the sum is more than a step takes in one pass.
"""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

from tgdsl.program import StepData

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
    device = executable.device
    dispatches = executable.program.dispatches
    if "timestamp-query" not in device.features or not dispatches:
        return None
    with device.lock:
        executable.submit([step])  # warms up, and leaves the inputs in slot 0
        commands = executable.commands(0)
        count = 2 * len(commands)
        queries = device.native.create_query_set(type="timestamp", count=count)
        ticks = device.query_buffer(8 * count)
        taken: list[Any] = []
        for _ in range(repeats):
            encoder = device.native.create_command_encoder()
            for i, command in enumerate(commands):
                writes = {
                    "query_set": queries,
                    "beginning_of_pass_write_index": 2 * i,
                    "end_of_pass_write_index": 2 * i + 1,
                }
                compute = encoder.begin_compute_pass(timestamp_writes=writes)
                compute.set_pipeline(command.pipeline)
                compute.set_bind_group(0, command.bind_group)
                compute.dispatch_workgroups(*command.groups)
                compute.end()
            encoder.resolve_query_set(queries, 0, count, ticks, 0)
            device.native.queue.submit([encoder.finish()])
            times = device.read(ticks, 0, 8 * count).view(np.uint64).reshape(-1, 2)
            taken.append((times[:, 1] - times[:, 0]).astype(np.float64) * device.nanoseconds_per_tick)
        ticks.destroy()
    medians = [statistics.median(row) for row in zip(*taken, strict=True)]
    return [(d.origin, ns) for d, ns in zip(dispatches, medians, strict=True)]
