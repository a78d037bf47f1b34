"""Host microseconds per training step, alone and beside a Python thread that never rests.

    python -m benchmarks.host [--backend auto|wgpu|numpy] [--write benchmarks/RESULTS.md]

The host's share is what a call takes to return, no result being looked at; the device's work is
not in it. Beside a busy thread a slowdown of 1.5 is the goal.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from typing import Any

import numpy as np

from benchmarks.graphs import references
from benchmarks.report import Section, options, place_of, publish
from tgdsl.pipeline import choose_engine

GROUP = 16


def host_microseconds(train: Any, held: Any, rounds: int) -> float:
    """Median host time per step of submissions of `GROUP` steps."""
    took: list[float] = []
    for _ in range(rounds):
        start = time.perf_counter()
        results = list(train.steps([held] * GROUP, read_every=GROUP))
        took.append((time.perf_counter() - start) / GROUP * 1e6)
        float(results[-1])  # the device catches up before the next round is timed
    return statistics.median(took)


def measured(name: str, backend: Any, rounds: int) -> tuple[float, float]:
    """Host time of one graph, alone and beside a busy thread."""
    reference = references()[name]
    train = reference.compile(backend)
    held = reference.loss.inputs(**reference.batch(np.random.default_rng(0)))
    host_microseconds(train, held, 3)
    alone = host_microseconds(train, held, rounds)
    stop = threading.Event()

    def busy() -> None:
        n = 0
        while not stop.is_set():
            n += 1

    thread = threading.Thread(target=busy)
    thread.start()
    beside = host_microseconds(train, held, rounds)
    stop.set()
    thread.join()
    train.destroy()
    return alone, beside


def run(args: argparse.Namespace) -> Section:
    """Measure the chosen graphs."""
    place = place_of(choose_engine(args.backend))
    lines, rows = [], []
    for name in args.graphs.split(","):
        alone, beside = measured(name, args.backend, max(1, int(80 * args.seconds)))
        lines.append([f"`{name}`", f"{alone:.1f}", f"{beside:.1f}", f"{beside / alone:.2f}x"])
        rows.append({"graph": name, "alone": alone, "beside": beside})
    head = ["graph", "host us/step", "beside a busy thread", "slowdown"]
    return Section("Host time", place, f"{GROUP} steps per submission", head, lines, rows)


def main() -> None:
    """Measure, print, and perhaps write."""
    parser = options(__doc__)
    parser.set_defaults(graphs="mlp_sin,mlp_mnist,gpt_small")
    args = parser.parse_args()
    publish([run(args)], args)


if __name__ == "__main__":
    main()
