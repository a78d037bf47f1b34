"""Time the compilation of the reference graphs, stage by stage, and the first step.

    python -m benchmarks.compile [--backend auto|wgpu|numpy] [--graphs gpt_char] [--compile] [--no-peers]
                                 [--write benchmarks/RESULTS.md] [--json FILE]

Every graph has a process of its own, in which the device is open and nothing was compiled. "Cold"
means that and empty caches on disk: those of Mesa and of NVIDIA's driver are turned off by their
environment variables, other drivers may know the shaders from an earlier run. "Again" is the same
compilation a second time, when only the driver's memory of this process can help. Stages are the
time in a function minus that in the functions of other stages; the goal is 2 s for `gpt_char`.
With `--compile` torch.compile's first step stands beside it, its caches turned off.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import attrs
import numpy as np

from benchmarks.graphs import Reference, references
from benchmarks.peers import find_torch, torch_facts
from benchmarks.report import Section, options, place_of, progress, publish
from tgdsl import pipeline

CACHES_OFF = {
    "MESA_SHADER_CACHE_DISABLE": "true",
    "__GL_SHADER_DISK_CACHE": "0",
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
}

STAGES: dict[str, tuple[str, ...]] = {
    "trace": ("tgdsl.frontend.trace",),
    "autograd": ("tgdsl.pipeline.gradients",),
    "optimizer": ("tgdsl.pipeline.build_update",),
    "passes": ("tgdsl.codegen.generate.lower", "tgdsl.codegen.generate.split_folds"),
    "schedule": ("tgdsl.codegen.generate.partition", "tgdsl.codegen.generate.bundle"),
    "codegen": ("tgdsl.codegen.generate",),
    "pipelines": ("tgdsl.runtime.device.Device.pipelines",),
    "loading": ("tgdsl.runtime.wgpu_engine.WgpuEngine.load", "tgdsl.reference.numpy_engine.NumpyEngine.load"),
    "first step": ("tgdsl.session.training.Trained.step",),
}
"""The functions of each stage."""


@attrs.define
class Stopwatch:
    """Time by stage; the innermost one that runs gets it."""

    seconds: dict[str, float] = attrs.field(factory=lambda: dict.fromkeys([*STAGES, "other"], 0.0))
    _running: list[str] = attrs.field(factory=lambda: ["other"])
    _since: float = attrs.field(factory=time.perf_counter)

    def switch(self) -> None:
        """Charge the time since the last switch."""
        now = time.perf_counter()
        self.seconds[self._running[-1]] += now - self._since
        self._since = now

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Charge what runs inside to a stage."""
        self.switch()
        self._running.append(name)
        try:
            yield
        finally:
            self.switch()
            self._running.pop()

    def timing(self, name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
        """`fn`, charged to a stage."""

        def call(*args: Any, **kwargs: Any) -> Any:
            with self.stage(name):
                return fn(*args, **kwargs)

        return call


def owner_of(path: str) -> tuple[Any, str]:
    """What holds the name at the end of a dotted path: a module or a class."""
    parts = path.split(".")
    for n in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:n])
        try:
            found = import_module(module)
        except ModuleNotFoundError:
            continue
        for name in parts[n:-1]:
            found = getattr(found, name)
        return found, parts[-1]
    raise LookupError(path)


def stages(reference: Reference, backend: Any) -> dict[str, float]:
    """Seconds by stage of compiling a graph and of its first step, loss read."""
    batch = reference.batch(np.random.default_rng(0))
    with ExitStack() as patches:
        watch = Stopwatch()
        for stage, paths in STAGES.items():
            for owner, name in map(owner_of, paths):
                patches.enter_context(mock.patch.object(owner, name, watch.timing(stage, getattr(owner, name))))
        train = reference.compile(backend)
        with watch.stage("first step"):
            float(train.step(**batch))
        watch.switch()
    train.destroy()
    return watch.seconds


def torch_seconds(reference: Reference, device: str) -> float:
    """The first step of torch.compile."""
    from benchmarks.peers_graph import compiled_step

    step, wait = compiled_step(reference, reference.batch(np.random.default_rng(0)), device)
    start = time.perf_counter()
    step()
    wait()
    return time.perf_counter() - start


def one(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """What is measured in a process of its own."""
    place = place_of(pipeline.choose_engine(args.backend))
    reference = references()[name]
    found: dict[str, Any] = {"graph": name, "cold": stages(reference, args.backend)}
    found["again"] = stages(reference, args.backend)
    device = None if args.no_peers or not args.compile else find_torch(gpu=place.gpu)
    found["torch.compile"] = None if device is None else torch_seconds(reference, device)
    return found


def in_process(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """The same, cold."""
    command = [sys.executable, "-m", "benchmarks.compile", "--one", name, "--backend", args.backend]
    command += ["--compile"] * args.compile + ["--no-peers"] * args.no_peers
    env, root = {**os.environ, **CACHES_OFF}, Path(__file__).parent.parent
    done = subprocess.run(command, env=env, cwd=root, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    progress(
        [name, f"{sum(found['cold'].values()):.2f} s", f"torch.compile {found['torch.compile'] or math.nan:.1f} s"]
    )
    return found


def cells(row: dict[str, Any], shown: Sequence[str]) -> list[str]:
    """The row of the table."""
    cold, again, peer = row["cold"], sum(row["again"].values()), row["torch.compile"]
    times = [f"{1e3 * cold[stage]:.0f}" for stage in shown]
    line = [f"`{row['graph']}`", *times, f"**{sum(cold.values()):.2f}**", f"{again:.2f}"]
    return line if peer is None else [*line, f"{peer:.1f}", f"{peer / sum(cold.values()):.1f}x"]


def run(args: argparse.Namespace) -> Section:
    """Measure the chosen graphs."""
    place = place_of(pipeline.choose_engine(args.backend))
    rows = [in_process(name, args) for name in args.graphs.split(",")]
    shown = [stage for stage in rows[0]["cold"] if any(row["cold"][stage] for row in rows)]
    head = ["graph", *(f"{stage}, ms" for stage in shown), "cold, s", "again, s"]
    facts = "Each graph in a process of its own, cold: caches of Mesa's and NVIDIA's shader compilers turned off"
    if any(row["torch.compile"] is not None for row in rows):
        head += ["torch.compile, s", "ratio"]
        facts = f"{torch_facts(find_torch(gpu=place.gpu))}. {facts}"
    return Section("Compile times", place, facts, head, [cells(row, shown) for row in rows], rows)


def main() -> None:
    """Measure, print, and perhaps write."""
    parser = options(__doc__)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one is not None:
        print(json.dumps(one(args.one, args)))
        return
    publish([run(args)], args)


if __name__ == "__main__":
    main()
