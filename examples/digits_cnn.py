"""Classify handwritten digits (scikit-learn's bundled set) with a small CNN."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tgdsl import (
    F32,
    I32,
    Adam,
    Arg,
    Conv2d,
    IntTensor,
    Linear,
    Tensor,
    Trained,
    arg,
    compile_module,
    f32,
    forward,
    i32,
    inputs,
    minibatches,
    module,
)
from tgdsl.ops import argmax, cross_entropy, max_pool2d, relu, reshape
from tgdsl.pipeline import Backend

BATCH = 32


@module
class CNN:
    """Two convolutions with pooling, then one linear layer."""

    c1: Arg[int] = arg(default=8)
    c2: Arg[int] = arg(default=16)
    conv1: Conv2d = Conv2d(1, c1, 3, padding=1)
    conv2: Conv2d = Conv2d(c1, c2, 3, padding=1)
    fc: Linear = Linear(c2 * 2 * 2, 10)

    def __call__(self, x: Tensor) -> Tensor:
        """`[B, 1, 8, 8] -> [B, 10]`."""
        h = max_pool2d(relu(self.conv1(x)), 2)
        h = max_pool2d(relu(self.conv2(h)), 2)
        return self.fc(reshape(h, (x.shape[0], -1)))


@inputs
class Images:
    """Images of 8 x 8 pixels in [0, 1]."""

    x: F32 = f32("B", 1, 8, 8)


@inputs
class Labeled:
    """Images with their digits."""

    x: F32 = f32("B", 1, 8, 8)
    y: I32 = i32("B", below=10)


@forward(inputs=Labeled)
def loss(m: CNN, b: Labeled) -> Tensor:
    """Mean cross-entropy."""
    return cross_entropy(m(b.x), b.y)


@forward(inputs=Images)
def classify(m: CNN, b: Images) -> IntTensor:
    """The most likely digit."""
    return argmax(m(b.x))


def data() -> tuple[Labeled, NDArray[np.float32], NDArray[np.int32]]:
    """What is trained on, and the held-out images and digits."""
    found: Any = importlib.import_module("sklearn.datasets").load_digits()  # untyped: Any keeps checkers from guessing
    x: NDArray[np.float32] = (found.images / 16.0).astype(np.float32)[:, None]
    y: NDArray[np.int32] = found.target.astype(np.int32)
    order = np.random.default_rng(0).permutation(len(x))
    train, held = order[360:], order[:360]
    return Labeled(x=x[train], y=y[train]), x[held], y[held]


def batches(steps: int) -> Iterator[Labeled]:
    """Shuffled batches, epoch after epoch."""
    loader = minibatches(data()[0], BATCH, seed=0)
    done = 0
    while done < steps:
        for batch in loader:
            yield batch
            done += 1
            if done == steps:
                return


def build(backend: Backend = "auto") -> Trained[CNN, Labeled, ...]:
    """The training handle."""
    optimizer = Adam(5e-3, clip_grad_norm=1.0)
    return compile_module(CNN(), loss, optimizer=optimizer, dims={"B": BATCH}, seed=0, backend=backend)


def main(*, short: bool = False, backend: Backend = "auto") -> float:
    """Train, print the loss, and return the held-out accuracy."""
    train = build(backend)
    print(f"{train.model} on {train.device}")
    for result in train.steps(batches(100 if short else 600), read_every=25):
        print(f"step {result.step:4}  loss {result.loss:.4f}")
    _, x, y = data()
    predicted = train.compile_forward(classify).run(x=x).output
    accuracy = float(np.mean(np.equal(predicted, y)))
    print(f"held-out accuracy {accuracy:.1%}")
    assert accuracy > (0.8 if short else 0.96), f"held-out accuracy {accuracy:.1%}"
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="stop early")
    parser.add_argument("--backend", default="auto", choices=["auto", "wgpu", "numpy"])
    args = parser.parse_args()
    main(short=args.short, backend=args.backend)
