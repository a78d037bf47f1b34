"""Tilings of contractions by measurement instead of by rule, on request.

At most six candidates of each distinct contraction problem are run on the device. Those that
agree with the rule's choice are timed, and the fastest is kept on disk. Then the whole step is
timed with and without them. The next compilation of the same step on the same adapter times nothing.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time

import attrs

from tgdsl.codegen import Problem, Target, Tiling, generate, problems
from tgdsl.errors import DeviceError
from tgdsl.optim.step import StepGraphs
from tgdsl.program import Program
from tgdsl.runtime.wgpu_engine import WgpuEngine

from .cache import Cache, Held
from .contest import hold, pays

log = logging.getLogger("tgdsl")


def tuned(engine: WgpuEngine, step: StepGraphs, target: Target) -> Target:
    """The target with the fastest tiling of every contraction problem of a step, if the step gains by them."""
    start = time.perf_counter()
    cache = Cache(engine.device.identity)
    asked = problems(step, target)
    held = cache.read()
    known = {p.key: held.tilings[p.key] for p in asked if held.tilings.get(p.key) in p.tilings}
    found = _contests(engine, [p for p in asked if p.key not in known])
    if found:
        cache.add(Held(tilings=found))
    better = {p.key: t for p in asked if (t := {**known, **found}.get(p.key, p.tilings[0])) != p.tilings[0]}
    chosen = attrs.evolve(target, tilings=better)
    kept = not better or _pays(engine, cache, generate(step, target), generate(step, chosen))
    log.info(
        "tuned %d contraction problems (%d timed, %d known from %s) in %.1f s; %d do better than by the rule%s",
        *(len(asked), len(found), len(known), cache.path, time.perf_counter() - start, len(better)),
        "" if kept else ", but the whole step does not, so the rule stays",
    )
    return chosen if kept else target


def _pays(engine: WgpuEngine, cache: Cache, plain: Program, other: Program) -> bool:
    """The verdict about a whole step, from the file or by timing it."""
    digest = hashlib.sha256("".join(_text(program) for program in (plain, other)).encode()).hexdigest()[:16]
    verdict = cache.read().steps.get(digest)
    if verdict is None:
        try:
            verdict = pays(engine, plain, other)
        except DeviceError as error:  # memory for a second copy of the step, most likely
            log.warning("tuning: a whole step could not be timed, so the rule stays: %s", error)
            return False
        cache.add(Held(steps={digest: verdict}))
    return verdict


def _text(program: Program) -> str:
    """What a program runs, without the comments, in which the user's line numbers stand."""
    kernels = [re.sub(r"^//.*\n", "", kernel.wgsl, flags=re.MULTILINE) for kernel in program.kernels]
    return "".join(f"{kernels[d.kernel]}{d.groups}\n" for d in program.dispatches)


def _contests(engine: WgpuEngine, unknown: list[Problem]) -> dict[str, Tiling]:
    found: dict[str, Tiling] = {}
    for problem in unknown:
        try:
            outcome = hold(engine, problem)
        except DeviceError as error:
            log.warning("tuning %s: the usual tiling stays: %s", problem.key, error)
            continue
        found[problem.key] = outcome.tiling
        times = ", ".join(f"{tiling}: {1e6 * t:.1f} us" for tiling, t in outcome.seconds.items())
        log.debug("tuning %s: %s of %s", problem.key, outcome.tiling, times)
    return found
