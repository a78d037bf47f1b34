"""Training on a data set kept on the device, beside batches that are uploaded, beside PyTorch.

    python -m benchmarks.fit [--backend auto|wgpu|numpy] [--graphs mlp_mnist] [--write benchmarks/RESULTS.md]

Per step: what the call takes of the host (waits for the device left out), what it takes
altogether, and the bytes it uploads, the data set itself apart, which goes up once per call of
`fit`. PyTorch has its data on its device and indexes it there with a shuffled order.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from benchmarks.graphs import Arrays, Reference, references
from benchmarks.peers import torch_epoch
from benchmarks.steps import GROUP, find_torch, torch_facts
from tgdsl import minibatches

BATCHES = 64
"""Batches in the data set."""


@attrs.define
class Spent:
    """What one run took, per step."""

    host: float
    whole: float
    uploaded: float


class Meter:
    """Counts what passes through a device."""

    def __init__(self) -> None:
        self.waited, self.uploaded = 0.0, 0

    @contextmanager
    def on(self, device: Any) -> Iterator[Meter]:
        """Watch the waits and writes of a device; NumPy has none."""
        if device is None:
            yield self
            return
        wait, write = device.wait, device.write

        def timed_wait(arrival: Any) -> None:
            start = time.perf_counter()
            wait(arrival)
            self.waited += time.perf_counter() - start

        def counted_write(buffer: Any, offset: int, data: Any) -> None:
            self.uploaded += len(data) if isinstance(data, bytes) else data.nbytes
            write(buffer, offset, data)

        device.wait, device.write = timed_wait, counted_write
        try:
            yield self
        finally:
            del device.wait, device.write


def spend(device: Any, run: Callable[[], None], steps: int) -> Spent:
    """Run once and count."""
    meter = Meter()
    with meter.on(device):
        start = time.perf_counter()
        run()
        whole = time.perf_counter() - start
    return Spent((whole - meter.waited) / steps * 1e6, whole / steps * 1e6, meter.uploaded / steps)


def data_of(reference: Reference) -> Arrays:
    """So many batches in one."""
    rng = np.random.default_rng(0)
    made = [reference.batch(rng) for _ in range(BATCHES)]
    return {name: np.concatenate([b[name] for b in made]) for name in made[0]}


def measure(reference: Reference, backend: Any, seconds: float, torch_device: str | None) -> str:
    """One row of the table."""
    train = reference.compile(backend)
    device = getattr(train._weights.engine, "device", None)
    arrays = data_of(reference)
    data = reference.loss.inputs(**arrays)
    batch = reference.dims["B"]
    split = minibatches(data, batch)

    def by_steps(epochs: int) -> None:
        for _ in range(epochs):
            last = list(train.steps(split, read_every=GROUP))[-1]
        float(last)

    def epochs_for(run: Callable[[int], Any]) -> int:
        run(1)
        start = time.perf_counter()
        run(1)
        return max(1, min(100, int(seconds / (time.perf_counter() - start))))

    runs: dict[str, Callable[[int], Any]] = {"fit": lambda n: train.fit(data, epochs=n), "steps": by_steps}
    if torch_device is not None:
        runs["torch"] = torch_epoch(reference, arrays, batch, torch_device)
    epochs = {name: epochs_for(run) for name, run in runs.items()}
    found: dict[str, list[Spent]] = {name: [] for name in runs}
    for _ in range(3):
        for name, run in runs.items():
            n = epochs[name]
            found[name].append(spend(device, lambda run=run, n=n: run(n), n * BATCHES))  # type: ignore[misc]
    train.destroy()
    once = sum(a.nbytes for a in arrays.values())
    middle = {n: _medians(s) for n, s in found.items()}
    host, whole, uploaded = middle["fit"]
    host_steps, whole_steps, uploaded_steps = middle["steps"]
    torch = f"{middle['torch'][1]:.0f}" if "torch" in middle else "-"
    sent = "- | -"  # NumPy reads its arrays where they are
    if device is not None:
        sent = f"{uploaded - once / (epochs['fit'] * BATCHES):,.0f} | {uploaded_steps:,.0f}"
    return (
        f"| `{reference.name}` | {host:.0f} | {host_steps:.0f} | {whole:.0f} | {whole_steps:.0f} | {torch} "
        f"| {sent} | {once / 1e6:.1f} |"
    )


def _medians(spent: list[Spent]) -> tuple[float, ...]:
    return tuple(map(statistics.median, zip(*map(attrs.astuple, spent), strict=True)))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="auto", choices=["auto", "wgpu", "numpy"])
    parser.add_argument("--graphs", default="mlp_sin,mlp_mnist,cnn,gpt_small")
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--write", type=Path, help="append the table to this file")
    args = parser.parse_args()
    torch_device = find_torch()
    chosen = [references()[name] for name in args.graphs.split(",")]
    probe = chosen[0].compile(args.backend)
    about = f"{probe.device}; {torch_facts(torch_device)}; {BATCHES} batches of data, medians of 3 interleaved runs"
    probe.destroy()
    print(about)
    lines = [
        "| graph | fit: host us/step | steps(minibatches) | fit: us/step | steps(minibatches) "
        "| PyTorch, data on device | fit: bytes uploaded/step | steps(minibatches) | once, MB |",
        "|" + "---|" * 9,
    ]
    lines += [measure(r, args.backend, args.seconds, torch_device) for r in chosen]
    table = "\n".join(lines)
    print(table)
    if args.write is not None:
        with args.write.open("a", encoding="utf-8") as file:
            file.write(f"\n## {time.strftime('%Y-%m-%d')}: data on the device\n\n{about}.\n\n{table}\n")


if __name__ == "__main__":
    main()
