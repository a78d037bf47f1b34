"""Tilings of contractions by measurement instead of by rule, on request.

At most six candidates of each distinct contraction problem are run on the device. Those that
agree with the rule's choice are timed, the fastest is kept on disk, and the next compilation
of the same problem on the same adapter times nothing.
"""

from __future__ import annotations

import logging
import time

import attrs

from tgdsl.codegen import Problem, Target, Tiling, problems
from tgdsl.optim.step import StepGraphs
from tgdsl.runtime.wgpu_engine import WgpuEngine

from .cache import Cache
from .contest import hold

log = logging.getLogger("tgdsl")


def tuned(engine: WgpuEngine, step: StepGraphs, target: Target) -> Target:
    """The target with the fastest tiling of every contraction problem of a step."""
    start = time.perf_counter()
    cache = Cache(engine.device.identity)
    asked = problems(step, target)
    held = cache.read()
    known = {p.key: held[p.key] for p in asked if p.key in held and held[p.key] in p.tilings}
    found = _contests(engine, [p for p in asked if p.key not in known])
    if found:
        cache.add(found)
    tilings = {**known, **found}
    changed = sum(tilings[p.key] != p.tilings[0] for p in asked)
    log.info(
        "tuned %d contraction problems (%d timed, %d known from %s) in %.1f s; %d do better than the rule",
        *(len(asked), len(found), len(known), cache.path, time.perf_counter() - start, changed),
    )
    return attrs.evolve(target, tilings=tilings)


def _contests(engine: WgpuEngine, unknown: list[Problem]) -> dict[str, Tiling]:
    found: dict[str, Tiling] = {}
    for problem in unknown:
        outcome = hold(engine, problem)
        found[problem.key] = outcome.tiling
        times = ", ".join(f"{tiling}: {1e6 * t:.1f} us" for tiling, t in outcome.seconds.items())
        log.debug("tuning %s: %s of %s", problem.key, outcome.tiling, times)
    return found
