"""A character transformer in f32 and in f16: final losses, step times and bytes, in one process.

python -m benchmarks.precision --dim 256 --depth 4 --steps 300
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import attrs
import numpy as np

from examples import char_transformer as chars
from tgdsl import AdamW, compile_module
from tgdsl.pipeline import Precision

LAST = 20
"""Losses whose mean is compared."""


@attrs.frozen
class Measured:
    """What one precision gave.

    Attributes:
        loss: The mean of the last losses.
        microseconds: Per step, of the fastest run over the batches.
        megabytes: Bindings read and written per step.
        scale: The loss scale at the end.
        device: What it ran on.
    """

    loss: float
    microseconds: float
    megabytes: float
    scale: float
    device: str


def measure(precision: Precision, model: chars.Transformer, batches: Sequence[chars.Batch], repeats: int) -> Measured:
    """Train once for the losses, then time steps that nobody reads."""
    dims = {"B": chars.BATCH, "T": chars.CONTEXT}
    optimizer = AdamW(1e-3, clip_grad_norm=1.0)
    train = compile_module(
        model, chars.loss, optimizer=optimizer, dims=dims, seed=0, backend="wgpu", precision=precision
    )
    losses = [r.loss for r in train.steps(batches)]
    seconds = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        list(train.steps(batches, read_every=len(batches)))[-1].loss  # noqa: B018
        seconds = min(seconds, (time.perf_counter() - start) / len(batches))
    out = Measured(
        float(np.mean(losses[-LAST:])), 1e6 * seconds, train.bytes_moved / 1e6, train.loss_scale, train.device
    )
    train.destroy()
    return out


def main(arguments: Sequence[str] | None = None) -> tuple[Measured, Measured]:
    """Measure both and print them side by side."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("dim", 256), ("heads", 4), ("depth", 4), ("steps", 300), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args(arguments)
    batches = list(chars.batches(args.steps))
    model = chars.Transformer(args.dim, args.heads, args.depth)
    full = measure("f32", model, batches, args.repeats)
    half = measure("f16", model, batches, args.repeats)
    print(f"{full.device}\nB {chars.BATCH}, T {chars.CONTEXT}, {model}, {args.steps} steps")
    for name, m in (("f32", full), ("f16", half)):
        print(f"{name}: loss {m.loss:.4f}, {m.microseconds:.0f} us/step, {m.megabytes:.1f} MB/step, scale {m.scale:g}")
    print(f"f16 / f32: loss {half.loss / full.loss:.4f}, time {half.microseconds / full.microseconds:.3f}")
    return full, half


if __name__ == "__main__":
    main()
