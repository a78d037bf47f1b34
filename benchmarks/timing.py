"""How the benchmarks time what waits for a device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import attrs

Call = Callable[[], Any]


def timed(step: Call, finish: Call, seconds: float) -> float:
    """Microseconds per call over about `seconds`, the wait for the device included."""
    step()
    finish()
    start = time.perf_counter()
    step()
    finish()
    once = max(1e-5, time.perf_counter() - start)
    n = max(2, min(400, int(seconds / once)))
    start = time.perf_counter()
    for _ in range(n):
        step()
    finish()
    return (time.perf_counter() - start) / n * 1e6


@attrs.frozen
class Runner:
    """One framework's training step.

    Attributes:
        name: Whose.
        free: Submits `group` steps and reads nothing.
        wait: Waits until they are done.
        read: Runs `looks` steps and reads the loss of each before the next.
        group: Steps per call of `free`.
        looks: Steps per call of `read`.
    """

    name: str
    free: Call
    wait: Call
    read: Call
    group: int = 1
    looks: int = 1


@attrs.frozen
class Pace:
    """Microseconds per step, nothing read and with every loss read."""

    free: float
    read: float


def interleaved(runners: Sequence[Runner], seconds: float, rounds: int = 3) -> dict[str, Pace]:
    """Medians of rounds in which every runner has its turn, so that a busy moment hits them all."""
    free: dict[str, list[float]] = {r.name: [] for r in runners}
    read: dict[str, list[float]] = {r.name: [] for r in runners}
    for _ in range(rounds):
        for r in runners:
            free[r.name].append(timed(r.free, r.wait, seconds) / r.group)
            read[r.name].append(timed(r.read, r.wait, seconds) / r.looks)
    return {r.name: Pace(statistics.median(free[r.name]), statistics.median(read[r.name])) for r in runners}
