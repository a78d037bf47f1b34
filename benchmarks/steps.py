"""Time training steps of the reference graphs beside other frameworks, in one process, interleaved.

    python -m benchmarks.steps [--backend auto|wgpu|numpy] [--graphs mlp_sin,cnn] [--compile] [--jax]
                               [--seconds 0.5] [--write benchmarks/RESULTS.md] [--json FILE]

Beside PyTorch eager: its CUDA graph of the whole step on a GPU, torch.compile with `--compile`, and
JAX with `--jax`. Each cell shows microseconds per step when nothing is read, and in parentheses when
every loss is read. A ratio is the peer's time by ours: above 1, tgdsl is faster.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from benchmarks.graphs import Arrays, Reference, references
from benchmarks.peers import find_torch, torch_facts, torch_step
from benchmarks.peers_graph import compiled_step, graph_step
from benchmarks.peers_jax import available, jax_facts, jax_step
from benchmarks.report import Place, Section, options, place_of, progress, publish
from benchmarks.timing import Call, Pace, Runner, interleaved
from tgdsl import Trained
from tgdsl.pipeline import choose_engine

GROUP = 16
"""Steps per submission when nothing is read."""

OURS = "tgdsl"


@attrs.frozen
class Row:
    """What was measured of one graph."""

    reference: Reference
    dispatches: int
    megabytes: float
    first_step: float
    paces: dict[str, Pace]

    def cells(self, peers: Sequence[str]) -> list[str]:
        """The row of the table."""
        ours = self.paces[OURS]
        counts = [f"{self.dispatches} ({self.reference.budget})", f"{self.megabytes:.1f}", f"{self.first_step:.2f}"]
        cells = [f"`{self.reference.name}`", *counts, _shown(ours)]
        for name in peers:
            peer = self.paces.get(name)
            ratio = f"{peer.free / ours.free:.2f}x ({peer.read / ours.read:.2f}x)" if peer else "-"
            cells += [_shown(peer) if peer else "-", ratio]
        return cells

    def plain(self) -> dict[str, Any]:
        """The row for other programs."""
        microseconds = {name: attrs.asdict(pace) for name, pace in self.paces.items()}
        counts = {"dispatches": self.dispatches, "budget": self.reference.budget, "megabytes": self.megabytes}
        timings = {"first_step_seconds": self.first_step, "microseconds": microseconds}
        return {"graph": self.reference.name, **counts, **timings}


def _shown(pace: Pace) -> str:
    return f"{pace.free:.0f} ({pace.read:.0f})"


def peers_of(reference: Reference, batch: Arrays, train: Any, place: Place, args: argparse.Namespace) -> list[Runner]:
    """The other frameworks that are there and asked for."""
    found: list[Runner] = []
    device = None if args.no_peers else find_torch(gpu=place.gpu)
    if device is not None:
        found.append(peer("PyTorch eager", *torch_step(reference, batch, device)))
    if device == "cuda":
        found.append(peer("CUDA graph", *graph_step(reference, batch)))
    if device is not None and args.compile:
        found.append(peer("torch.compile", *compiled_step(reference, batch, device)))
    if args.jax and available():
        found.append(peer("JAX jit", *jax_step(reference, batch, train.download_params(), gpu=place.gpu)))
    return found


def peer(name: str, step: Call, wait: Call) -> Runner:
    """Another framework's step, whose loss turns into a number when it is read."""
    return Runner(name, step, wait, lambda: step().item())


def measure(reference: Reference, place: Place, args: argparse.Namespace) -> Row:
    """Every framework in turn, three times."""
    batch = reference.batch(np.random.default_rng(0))
    start = time.perf_counter()
    train: Trained[Any, Any, Any] = reference.compile(args.backend)
    float(train.step(**batch))
    first = time.perf_counter() - start
    ours = our_runner(train, reference.loss.inputs(**batch), args.seconds)
    counts = train.kernel_count, train.bytes_moved / 1e6
    paces = interleaved([ours, *peers_of(reference, batch, train, place, args)], args.seconds)
    train.destroy()
    progress([reference.name, *(f"{name} {_shown(pace)} us" for name, pace in paces.items())])
    return Row(reference, *counts, first, paces)


def our_runner(train: Trained[Any, Any, Any], data: Any, seconds: float) -> Runner:
    """`fit` on a data set of one batch, which lies on the device as that of the peers does."""

    def fitted(steps: int) -> None:
        train.fit(data, epochs=steps, shuffle=False)

    def looked(steps: int) -> None:
        train.fit(data, epochs=steps, shuffle=False, read_every=1, callback=lambda result: math.isnan(result.loss))

    def many(fit: Callable[[int], None]) -> int:
        fit(GROUP)
        start = time.perf_counter()
        fit(GROUP)
        once = time.perf_counter() - start
        return GROUP * max(1, min(128, int(seconds / 2 / once)))

    group, looks = many(fitted), many(looked)
    return Runner(OURS, lambda: fitted(group), lambda: None, lambda: looked(looks), group, looks)


def about(place: Place, args: argparse.Namespace) -> str:
    """What the numbers mean."""
    facts = [] if args.no_peers else [torch_facts(find_torch(gpu=place.gpu))]
    facts += [jax_facts()] if args.jax and available() else []
    facts.append(f"Medians of 3 interleaved runs, {GROUP} steps per submission; in parentheses with every loss read")
    facts.append("Every framework's batch lies on its device")
    return ". ".join(facts)


def run(args: argparse.Namespace) -> Section:
    """Measure the chosen graphs."""
    place = place_of(choose_engine(args.backend))
    rows = [measure(references()[name], place, args) for name in args.graphs.split(",")]
    peers = [name for name in rows[0].paces if name != OURS]
    calls = "NumPy calls (dispatches' budget)" if place.about.startswith("numpy") else "dispatches (budget)"
    head = ["graph", calls, "MB moved", "first step, s", "tgdsl, us"]
    for name in peers:
        head += [f"{name}, us", "ratio"]
    lines = [r.cells(peers) for r in rows]
    return Section("Training steps", place, about(place, args), head, lines, [r.plain() for r in rows])


def main() -> None:
    """Measure, print, and perhaps write."""
    args = options(__doc__).parse_args()
    publish([run(args)], args)


if __name__ == "__main__":
    main()
