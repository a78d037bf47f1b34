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
from typing import Any

import attrs
import numpy as np

from benchmarks.graphs import Arrays, Reference, references
from benchmarks.peers import find_torch, torch_epoch, torch_facts
from benchmarks.report import Section, options, place_of, publish
from benchmarks.steps import GROUP
from tgdsl import minibatches
from tgdsl.pipeline import choose_engine

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


def measure(reference: Reference, backend: Any, seconds: float, torch_device: str | None) -> list[str]:
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
    sent = ["-", "-"]  # NumPy reads its arrays where they are
    if device is not None:
        sent = [f"{uploaded - once / (epochs['fit'] * BATCHES):,.0f}", f"{uploaded_steps:,.0f}"]
    times = [f"{us:.0f}" for us in (host, host_steps, whole, whole_steps)]
    return [f"`{reference.name}`", *times, torch, *sent, f"{once / 1e6:.1f}"]


def _medians(spent: list[Spent]) -> tuple[float, ...]:
    return tuple(map(statistics.median, zip(*map(attrs.astuple, spent), strict=True)))


def run(args: argparse.Namespace) -> Section:
    """Measure the chosen graphs."""
    place = place_of(choose_engine(args.backend))
    device = None if args.no_peers else find_torch(gpu=place.gpu)
    rows = [measure(references()[name], args.backend, args.seconds, device) for name in args.graphs.split(",")]
    about = f"{torch_facts(device)}. {BATCHES} batches of data, medians of 3 interleaved runs"
    head = ["graph", "fit: host us/step", "steps(minibatches)", "fit: us/step", "steps(minibatches)"]
    head += ["PyTorch, data on device", "fit: bytes uploaded/step", "steps(minibatches)", "once, MB"]
    return Section("Data on the device", place, about, head, rows, [dict(zip(head, row, strict=True)) for row in rows])


def main() -> None:
    """Measure, print, and perhaps write."""
    parser = options(__doc__)
    parser.set_defaults(graphs="mlp_sin,mlp_mnist,cnn,gpt_small")
    args = parser.parse_args()
    publish([run(args)], args)


if __name__ == "__main__":
    main()
