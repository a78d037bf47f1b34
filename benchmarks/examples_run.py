"""Train every example in full and report steps per second, dispatches and bytes.

python -m benchmarks.examples_run [--backend auto|wgpu|numpy] [--write benchmarks/RESULTS.md]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import time
from typing import Any

from benchmarks.report import Section, options, place_of, publish
from examples import char_transformer, digits, digits_cnn, sine, xor
from tgdsl.pipeline import choose_engine

EXAMPLES: dict[str, tuple[Any, str]] = {
    "xor": (xor, "worst error"),
    "sine": (sine, "error"),
    "digits": (digits, "held-out accuracy"),
    "digits_cnn": (digits_cnn, "held-out accuracy"),
    "char_transformer": (char_transformer, "loss"),
}


def speed(example: Any, backend: Any) -> tuple[float, Any]:
    """Steps per second over a while, batches made beforehand; and the handle."""
    train = example.build(backend)
    batches = list(example.batches(64))
    _wait(list(train.steps(batches, read_every=64)))
    start, n = time.perf_counter(), 0
    while time.perf_counter() - start < 1.0:
        _wait(list(train.steps(batches, read_every=64)))
        n += len(batches)
    return n / (time.perf_counter() - start), train


def _wait(results: list[Any]) -> float:
    """Wait for the last step."""
    return float(results[-1])


def run(args: argparse.Namespace) -> Section:
    """Run all of them."""
    place = place_of(choose_engine(args.backend))
    lines, rows = [], []
    for name, (example, what) in EXAMPLES.items():
        with contextlib.redirect_stdout(io.StringIO()):
            result = example.main(short=args.short, backend=args.backend)
        value = getattr(result, "accuracy", result)
        rate, train = speed(example, args.backend)
        counts = [str(train.kernel_count), f"{train.bytes_moved / 1e6:.2f}"]
        lines.append([f"`{name}`", f"{what} {value:.4f}", *counts, f"{rate:.0f}"])
        rows.append({"example": name, what: float(value), "steps_per_second": rate})
        train.destroy()
    head = ["example", "result", "dispatches", "MB moved", "steps per second"]
    return Section("Examples", place, "Batches are made beforehand", head, lines, rows)


def main() -> None:
    """Measure, print, and perhaps write."""
    parser = options(__doc__)
    parser.add_argument("--short", action="store_true", help="train for a moment only")
    args = parser.parse_args()
    publish([run(args)], args)


if __name__ == "__main__":
    main()
