"""Train every example in full and report steps per second, dispatches and bytes.

python -m benchmarks.examples_run [--backend auto|wgpu|numpy] [--write benchmarks/RESULTS.md]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import time
from pathlib import Path
from typing import Any

from examples import char_transformer, digits, digits_cnn, sine, xor

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


def main() -> None:
    """Run all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="auto", choices=["auto", "wgpu", "numpy"])
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--write", type=Path, help="append the table to this file")
    args = parser.parse_args()
    lines = ["| example | result | dispatches | MB moved | steps per second |", "|---|---|---|---|---|"]
    about = ""
    for name, (example, what) in EXAMPLES.items():
        with contextlib.redirect_stdout(io.StringIO()):
            result = example.main(short=args.short, backend=args.backend)
        value = getattr(result, "accuracy", result)
        rate, train = speed(example, args.backend)
        about = train.device
        lines.append(
            f"| `{name}` | {what} {value:.4f} | {train.kernel_count} | {train.bytes_moved / 1e6:.2f} | {rate:.0f} |"
        )
        print(lines[-1], flush=True)
        train.destroy()
    text = f"\n## {time.strftime('%Y-%m-%d')}: examples\n\n{about}.\n\n" + "\n".join(lines) + "\n"
    print(text)
    if args.write is not None:
        with args.write.open("a", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    main()
