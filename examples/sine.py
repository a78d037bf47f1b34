"""Fit a sine with a small MLP: the shortest complete program."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np

from tgdsl import (
    F32,
    Adam,
    Arg,
    Linear,
    Tensor,
    Trained,
    arg,
    compile_module,
    f32,
    forward,
    init,
    inputs,
    lr,
    module,
)
from tgdsl.ops import mean, relu, square
from tgdsl.pipeline import Backend


@module
class MLP:
    """Three linear layers with relu between them."""

    hidden: Arg[int] = arg(default=64)
    l1: Linear = Linear(1, hidden, initial=init.Kaiming())
    l2: Linear = Linear(hidden, hidden, initial=init.Kaiming())
    l3: Linear = Linear(hidden, 1)

    def __call__(self, x: Tensor) -> Tensor:
        """`[B, 1] -> [B, 1]`."""
        return self.l3(relu(self.l2(relu(self.l1(x)))))


@inputs
class Point:
    """Where the function is looked at."""

    x: F32 = f32("B", 1)


@inputs
class Batch:
    """Points with their values."""

    x: F32 = f32("B", 1)
    y: F32 = f32("B", 1)


@forward(inputs=Batch)
def loss(m: MLP, b: Batch) -> Tensor:
    """Mean squared error."""
    return mean(square(m(b.x) - b.y))


@forward(inputs=Point)
def predict(m: MLP, p: Point) -> Tensor:
    """The fitted function."""
    return m(p.x)


def batches(steps: int, seed: int = 0) -> Iterator[Batch]:
    """Random points of the sine."""
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        x = rng.uniform(-3, 3, (128, 1)).astype(np.float32)
        yield Batch(x=x, y=np.sin(x))


def build(backend: Backend = "auto", steps: int = 1000) -> Trained[MLP, Batch, ...]:
    """The training handle."""
    optimizer = Adam(lr.cosine_decay(peak=5e-3, final=1e-4, steps=steps))
    return compile_module(MLP(), loss, optimizer=optimizer, dims={"B": 128}, seed=0, backend=backend)


def main(*, short: bool = False, backend: Backend = "auto") -> float:
    """Train, print the loss, and return the root of the mean squared error on a grid."""
    steps = 300 if short else 1000
    train = build(backend, steps)
    print(f"{train.model} on {train.device}")
    for result in train.steps(batches(steps), read_every=50):
        print(f"step {result.step:5}  loss {result.loss:.5f}")
    infer = train.compile_forward(predict)
    grid = np.linspace(-3, 3, 61, dtype=np.float32)[:, None]
    error = float(np.sqrt(np.mean(np.square(infer.run(x=grid).output - np.sin(grid)))))
    print(f"error on [-3, 3]: {error:.4f}")
    assert error < (0.15 if short else 0.03), f"the fit is off by {error}"
    return error


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="stop early")
    parser.add_argument("--backend", default="auto", choices=["auto", "wgpu", "numpy"])
    args = parser.parse_args()
    main(short=args.short, backend=args.backend)
