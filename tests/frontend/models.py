"""A small model and its inputs, as a user would write them."""

from __future__ import annotations

from tgdsl import F32, Arg, Linear, Tensor, arg, f32, forward, inputs, module
from tgdsl.ops import mean, relu, square


@module
class MLP:
    hidden: Arg[int] = arg(default=64)
    l1: Linear = Linear(1, hidden)
    l2: Linear = Linear(hidden, hidden)
    l3: Linear = Linear(hidden, 1)

    def __call__(self, x: Tensor) -> Tensor:
        return self.l3(relu(self.l2(relu(self.l1(x)))))


@inputs
class Point:
    x: F32 = f32("B", 1)


@inputs
class Batch:
    x: F32 = f32("B", 1)
    y: F32 = f32("B", 1)


@forward(inputs=Batch)
def loss(m: MLP, b: Batch) -> Tensor:
    return mean(square(m(b.x) - b.y))


@forward(inputs=Point)
def predict(m: MLP, p: Point) -> Tensor:
    return m(p.x)
