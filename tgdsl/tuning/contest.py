"""One contest: candidate tilings of a problem on a device, checked and then timed."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Mapping
from typing import Final

import attrs
import numpy as np
from numpy.typing import NDArray

from tgdsl.codegen import Problem, Race, Tiling
from tgdsl.program import Program
from tgdsl.runtime.executable import DeviceExecutable
from tgdsl.runtime.profile import alone, race
from tgdsl.runtime.store import DeviceStore
from tgdsl.runtime.wgpu_engine import WgpuEngine

log = logging.getLogger("tgdsl")

WORTH: Final = 0.9
"""What a candidate's time may be of the heuristic's.

A smaller gain may be noise, or may be lost in the step, where kernels share dispatches and so registers.
"""

Values = Mapping[str, NDArray[np.float32]]


@attrs.frozen
class Outcome:
    """How a contest ended.

    Attributes:
        tiling: The fastest that computes the right thing.
        seconds: What the candidates took, the heuristic's choice first; empty if nothing could be compared.
        rejected: How many disagreed.
    """

    tiling: Tiling
    seconds: Mapping[Tiling, float]
    rejected: int


def hold(engine: WgpuEngine, problem: Problem) -> Outcome:
    """Find the fastest tiling of a problem among the candidates that agree with the first one."""
    usual, made = problem.tilings[0], problem.race()
    store = engine.allocate(made.arenas)
    try:
        executable = engine.load(made.program, store, slots=1)
        try:
            agreeing = _agreeing(executable, store, problem, made)
            seconds = race(engine.device, [executable.commands(0)[i : i + 1] for i in agreeing])
        finally:
            executable.destroy()
    finally:
        store.destroy()
    timed = {problem.tilings[i]: t for i, t in zip(agreeing, seconds, strict=True)}
    best = min(timed, key=lambda tiling: timed[tiling], default=usual)
    if best != usual and timed[best] > WORTH * timed[usual]:
        best = usual
    rejected = len(problem.tilings) - len(agreeing) if agreeing else 0
    return Outcome(best, timed, rejected)


def pays(engine: WgpuEngine, plain: Program, other: Program) -> bool:
    """Whether a whole step is no slower with the tilings that won one by one; it runs on zeros, in arenas of its own.

    In a step, kernels share dispatches, and with them registers and workgroup memory.
    """
    arenas = {b.name: b.nbytes // 4 for b in plain.buffers if b.kind == "arena"}
    with contextlib.ExitStack() as stack:
        store = engine.allocate(arenas)
        stack.callback(store.destroy)
        runs = []
        for program in (plain, other):
            executable = engine.load(program, store, slots=1)
            stack.callback(executable.destroy)
            runs.append(executable.commands(0))
        before, after = race(engine.device, runs)
    log.debug("a step takes %.1f us, with the tilings that were found %.1f us", 1e6 * before, 1e6 * after)
    return after <= before


def _agreeing(executable: DeviceExecutable, store: DeviceStore, problem: Problem, made: Race) -> list[int]:
    """Positions of the candidates with the right results; none where no result could be told from a wrong one."""
    for low in (-1.0, 0.5):
        # Products of both signs tell most; but a variance must not be negative.
        inputs = _inputs(made, low)
        want = _results(executable, store, made, inputs, 0)
        if all(np.isfinite(w).all() for w in want.values()):
            break
    else:
        log.info("tuning %s: its results are not finite, so the usual tiling stays", problem.key)
        return []
    agreeing = [0]
    for i, tiling in enumerate(problem.tilings[1:], 1):
        if same(_results(executable, store, made, inputs, i), want, problem.sizes.k):
            agreeing.append(i)
        else:
            log.warning("tuning %s: %s disagrees with the reference and is not used", problem.key, tiling)
    return agreeing


def _inputs(made: Race, low: float) -> Values:
    """Random values for every arena, the same each time; indices are 0, which is in range everywhere."""
    rng = np.random.default_rng(0)
    out: dict[str, NDArray[np.float32]] = {}
    for name, size in made.arenas.items():
        match made.dtypes[name]:
            case "f32":
                out[name] = rng.uniform(low, 1.5, size).astype(np.float32)
            case "u32":
                out[name] = rng.integers(0, 2, size, np.uint32).view(np.float32)
            case _:
                out[name] = np.zeros(size, np.float32)
    return out


def _results(executable: DeviceExecutable, store: DeviceStore, made: Race, inputs: Values, index: int) -> Values:
    for name, values in inputs.items():
        store.write(name, values)  # results too: a cell that is left out must not look like the last candidate's
    alone(executable, index)
    return {name: store.read(name) for name in made.written}


def same(got: Values, want: Values, terms: int) -> bool:
    """Whether results agree as well as sums of that many terms in another order do."""
    for name, w in want.items():
        big = max(1e-3, float(np.max(np.abs(w), initial=0.0)))
        tolerance = (5e-6 + 2e-7 * math.sqrt(terms)) * big
        if not np.allclose(got[name], w, rtol=1e-5, atol=tolerance):
            return False
    return True
