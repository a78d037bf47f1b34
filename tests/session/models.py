"""Small models whose training NumPy can repeat by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from tgdsl import F32, Arg, Linear, Tensor, arg, capture, f32, forward, inputs, module, param
from tgdsl.ops import mean, relu, square

Arrays = dict[str, np.ndarray]


@module
class Line:
    features: Arg[int] = arg(default=3)
    w: Tensor = param(features)
    b: Tensor = param(1)

    def __call__(self, x: Tensor) -> Tensor:
        return capture("line", (x @ self.w[:, None])[:, 0] + self.b)


@inputs
class Point:
    x: F32 = f32("B", 3)


@inputs
class Batch:
    x: F32 = f32("B", 3)
    y: F32 = f32("B")


@forward(inputs=Batch)
def line_loss(m: Line, b: Batch) -> Tensor:
    return mean(square(m(b.x) - b.y))


@forward(inputs=Point)
def line(m: Line, p: Point) -> Tensor:
    return m(p.x)


@module
class MLP:
    hidden: Arg[int] = arg(default=16)
    features: Arg[int] = arg(default=3)
    l1: Linear = Linear(features, hidden)
    l2: Linear = Linear(hidden, 1)

    def __call__(self, x: Tensor) -> Tensor:
        return self.l2(relu(self.l1(x)))[:, 0]


@forward(inputs=Batch)
def mlp_loss(m: MLP, b: Batch) -> Tensor:
    return mean(square(m(b.x) - b.y))


@forward(inputs=Point)
def predict(m: MLP, p: Point) -> Tensor:
    return m(p.x)


def batch(seed: int, size: int = 8) -> dict[str, Any]:
    """Arrays for `Batch`."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(size, 3)).astype(np.float32)
    return {"x": x, "y": (x @ np.array([1.0, -2.0, 0.5], np.float32) + 0.3).astype(np.float32)}


class Oracle:
    """`Line` under Adam with a clipped norm, in f64 and by hand."""

    def __init__(self, params: Arrays, lr: float, clip: float) -> None:
        self.initial = {n: a.astype(np.float64) for n, a in params.items()}
        self.clip = clip
        self.first_lr = lr
        self.reset()

    def reset(self) -> None:
        self.params = dict(self.initial)
        self.grads = {n: np.zeros_like(a) for n, a in self.initial.items()}
        self.lr = self.first_lr
        self.reset_optimizer()

    def reset_optimizer(self) -> None:
        self.step_number = 0
        self.m = {n: np.zeros_like(a) for n, a in self.initial.items()}
        self.v = {n: np.zeros_like(a) for n, a in self.initial.items()}

    def predict(self, x: np.ndarray) -> np.ndarray:
        return x.astype(np.float64) @ self.params["w"] + self.params["b"]

    def loss(self, x: np.ndarray, y: np.ndarray) -> float:
        return float(np.mean((self.predict(x) - y) ** 2))

    def step(self, x: np.ndarray, y: np.ndarray) -> float:
        loss = self.loss(x, y)
        error = 2.0 * (self.predict(x) - y) / len(y)
        self.grads = {"w": x.astype(np.float64).T @ error, "b": np.array([error.sum()])}
        norm = np.sqrt(sum(np.sum(g * g) for g in self.grads.values()))
        scale = min(self.clip / (norm + 1e-6), 1.0)
        self.step_number += 1
        for name, gradient in self.grads.items():
            g = gradient * scale
            self.m[name] = 0.9 * self.m[name] + 0.1 * g
            self.v[name] = 0.999 * self.v[name] + 0.001 * g * g
            m = self.m[name] / (1 - 0.9**self.step_number)
            v = self.v[name] / (1 - 0.999**self.step_number)
            self.params[name] = self.params[name] - self.lr * m / (np.sqrt(v) + 1e-8)
        return loss
