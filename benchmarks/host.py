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
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.graphs import references

GROUP = 16


def host_microseconds(train: Any, held: Any, rounds: int = 40) -> float:
    """Median host time per step of submissions of `GROUP` steps."""
    took: list[float] = []
    for _ in range(rounds):
        start = time.perf_counter()
        results = list(train.steps([held] * GROUP, read_every=GROUP))
        took.append((time.perf_counter() - start) / GROUP * 1e6)
        float(results[-1])  # the device catches up before the next round is timed
    return statistics.median(took)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="auto", choices=["auto", "wgpu", "numpy"])
    parser.add_argument("--graphs", default="mlp_sin,mlp_mnist,gpt_small")
    parser.add_argument("--write", type=Path, help="append the table to this file")
    args = parser.parse_args()
    lines = ["| graph | host us/step | beside a busy thread | slowdown |", "|---|---|---|---|"]
    about = ""
    for name in args.graphs.split(","):
        reference = references()[name]
        train = reference.compile(args.backend)
        about = train.device
        held = reference.loss.inputs(**reference.batch(np.random.default_rng(0)))
        host_microseconds(train, held, 3)
        alone = host_microseconds(train, held)
        stop = threading.Event()

        def busy(stop: threading.Event = stop) -> None:
            n = 0
            while not stop.is_set():
                n += 1

        thread = threading.Thread(target=busy)
        thread.start()
        beside = host_microseconds(train, held)
        stop.set()
        thread.join()
        train.destroy()
        lines.append(f"| `{name}` | {alone:.1f} | {beside:.1f} | {beside / alone:.2f}x |")
    text = (
        f"\n## {time.strftime('%Y-%m-%d')}: host time\n\n{about}; {GROUP} steps per submission.\n\n"
        + "\n".join(lines)
        + "\n"
    )
    print(text)
    if args.write is not None:
        with args.write.open("a", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    main()
