"""Time training steps of the reference graphs beside PyTorch, in one process, interleaved.

    python -m benchmarks.steps [--backend auto|wgpu|numpy] [--graphs mlp_sin,cnn] [--seconds 1.0] [--write]

Prints the adapter's name, dispatches and bytes per step (counted from the program), median
microseconds per step without and with reading the loss, and ratios; `--write` appends to
`benchmarks/RESULTS.md`. A software adapter is named as what it is.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from benchmarks.graphs import Reference, references
from tgdsl import Trained

GROUP = 16
"""Steps per submission in the column without a loss read."""


@attrs.define
class Row:
    """What was measured of one graph; microseconds."""

    name: str
    dispatches: int
    megabytes: float
    budget: int
    compile_seconds: float
    free: list[float] = attrs.field(factory=list)
    read: list[float] = attrs.field(factory=list)
    torch_free: list[float] = attrs.field(factory=list)
    torch_read: list[float] = attrs.field(factory=list)


def timed(step: Callable[[], Any], finish: Callable[[], Any], seconds: float) -> float:
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


def measure(reference: Reference, backend: Any, seconds: float, torch_device: str | None) -> Row:
    """Interleave both frameworks three times."""
    rng = np.random.default_rng(0)
    batch = reference.batch(rng)
    start = time.perf_counter()
    train: Trained[Any, Any, Any] = reference.compile(backend)
    float(train.step(**batch))
    row = Row(
        reference.name, train.kernel_count, train.bytes_moved / 1e6, reference.budget, time.perf_counter() - start
    )
    held = reference.loss.inputs(**batch)
    last: list[Any] = []

    def group() -> None:
        last[:] = list(train.steps([held] * GROUP, read_every=GROUP))

    peer: tuple[Callable[[], Any], Callable[[], None]] | None = None
    if torch_device is not None:
        from benchmarks.peers import torch_step

        peer = torch_step(reference, batch, torch_device)
    for _ in range(3):
        row.free.append(timed(group, lambda: last[-1].loss, seconds) / GROUP)
        row.read.append(timed(lambda: train.step(**batch).loss, lambda: None, seconds))
        if peer is not None:
            row.torch_free.append(timed(*peer, seconds))
            row.torch_read.append(timed(lambda: peer[0]().item(), lambda: None, seconds))
    train.destroy()
    return row


def table(rows: list[Row]) -> str:
    """The rows as Markdown."""
    head = (
        "| graph | dispatches (budget) | MB moved | first step, s | tgdsl us/step | with loss read "
        "| PyTorch eager us/step | with loss read | ratio | ratio, loss read |"
    )
    lines = [head, "|" + "---|" * 10]
    for r in rows:
        median = [statistics.median(x) if x else float("nan") for x in (r.free, r.read, r.torch_free, r.torch_read)]
        lines.append(
            f"| `{r.name}` | {r.dispatches} ({r.budget}) | {r.megabytes:.1f} | {r.compile_seconds:.2f} "
            f"| {median[0]:.0f} | {median[1]:.0f} | {median[2]:.0f} | {median[3]:.0f} | {median[2] / median[0]:.2f}x "
            f"| {median[3] / median[1]:.2f}x |"
        )
    return "\n".join(lines)


def torch_facts(device: str | None) -> str:
    """Which PyTorch, on what."""
    if device is None:
        return "PyTorch is not installed here, so there is no peer"
    import torch

    where = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    return f"PyTorch {torch.__version__} eager on {where}, fp32 without TF32"


def find_torch() -> str | None:
    """The device that PyTorch can use, or None without PyTorch."""
    try:
        import torch
    except ImportError:
        return None
    return "cuda" if torch.cuda.is_available() else "cpu"


def main() -> None:
    """Measure, print, and perhaps write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="auto", choices=["auto", "wgpu", "numpy"])
    parser.add_argument("--graphs", default=",".join(references()))
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--write", type=Path, help="append the table to this file")
    args = parser.parse_args()
    device = find_torch()
    chosen = [references()[name] for name in args.graphs.split(",")]
    probe = chosen[0].compile(args.backend)
    about = f"{probe.device}; {torch_facts(device)}; medians of 3 interleaved runs, {GROUP} steps per submission"
    probe.destroy()
    print(about)
    rows = [measure(r, args.backend, args.seconds, device) for r in chosen]
    print(table(rows))
    if args.write is not None:
        with args.write.open("a", encoding="utf-8") as file:
            file.write(f"\n## {time.strftime('%Y-%m-%d')}: training steps\n\n{about}.\n\n{table(rows)}\n")


if __name__ == "__main__":
    main()
