"""Learn XOR, the smallest function that needs a hidden layer."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np

from tgdsl import F32, Adam, Arg, Linear, Tensor, Trained, arg, compile_module, f32, forward, init, inputs, module
from tgdsl.ops import mean, sigmoid, square, tanh
from tgdsl.pipeline import Backend

X = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.float32)
Y = np.array([[0], [1], [1], [0]], np.float32)


@module
class Net:
    """One hidden layer of tanh."""

    hidden: Arg[int] = arg(default=8)
    first: Linear = Linear(2, hidden, initial=init.Normal(1.0))
    last: Linear = Linear(hidden, 1, initial=init.Normal(1.0))

    def __call__(self, x: Tensor) -> Tensor:
        """`[4, 2] -> [4, 1]`."""
        return sigmoid(self.last(tanh(self.first(x))))


@inputs
class Rows:
    """Rows of the truth table."""

    x: F32 = f32("B", 2)
    y: F32 = f32("B", 1)


@inputs
class Row:
    """Operands alone."""

    x: F32 = f32("B", 2)


@forward(inputs=Rows)
def loss(m: Net, b: Rows) -> Tensor:
    """Mean squared error."""
    return mean(square(m(b.x) - b.y))


@forward(inputs=Row)
def predict(m: Net, b: Row) -> Tensor:
    """The learned truth value."""
    return m(b.x)


def batches(steps: int) -> Iterator[Rows]:
    """The whole table, again and again."""
    for _ in range(steps):
        yield Rows(x=X, y=Y)


def build(backend: Backend = "auto") -> Trained[Net, Rows, ...]:
    """The training handle."""
    return compile_module(Net(), loss, optimizer=Adam(0.05), dims={"B": 4}, seed=1, backend=backend)


def main(*, short: bool = False, backend: Backend = "auto") -> float:
    """Train, print the learned table, and return the worst error."""
    train = build(backend)
    print(f"{train.model} on {train.device}")
    for result in train.steps(batches(250 if short else 500), read_every=50):
        print(f"step {result.step:4}  loss {result.loss:.5f}")
    out = train.compile_forward(predict).run(x=X).output
    for (a, b), y in zip(X, out[:, 0], strict=True):
        print(f"{a:.0f} xor {b:.0f} = {y:.3f}")
    worst = float(np.max(np.abs(out - Y)))
    assert worst < 0.2, f"the table is off by {worst}"
    return worst


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="stop early")
    parser.add_argument("--backend", default="auto", choices=["auto", "wgpu", "numpy"])
    args = parser.parse_args()
    main(short=args.short, backend=args.backend)
