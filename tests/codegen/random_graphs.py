"""Random well-typed programs over the public ops, small enough for a software adapter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tgdsl.ops as ops
from tgdsl.ir import Tensor

Maker = Callable[[np.random.Generator, list[Tensor]], Tensor | None]


def _pick(rng: np.random.Generator, xs: list[Tensor]) -> Tensor:
    return xs[int(rng.integers(len(xs)))]


def _unary(rng: np.random.Generator, xs: list[Tensor]) -> Tensor:
    fn: Any = (ops.tanh, ops.exp, ops.relu, ops.sigmoid, ops.neg, ops.square, ops.abs)[int(rng.integers(7))]
    return ops.tanh(fn(_pick(rng, xs) * 0.5))


def _binary(rng: np.random.Generator, xs: list[Tensor]) -> Tensor | None:
    a = _pick(rng, xs)
    same = [x for x in xs if x.shape == a.shape or x.shape == a.shape[1:] or x.size == 1]
    b = _pick(rng, same)
    return (a + b, a * b, a - 2.0 * b, ops.maximum(a, b), ops.where(a > b, a, 0.5 * b))[int(rng.integers(5))]


def _reduce(rng: np.random.Generator, xs: list[Tensor]) -> Tensor | None:
    x = _pick(rng, xs)
    if x.ndim == 0:
        return None
    axis = int(rng.integers(x.ndim))
    fn: Any = (ops.mean, ops.max, ops.sum)[int(rng.integers(3))]
    y: Tensor = fn(x, axis, keepdims=bool(rng.integers(2)))
    return y if fn is not ops.sum else y * (1.0 / float(x.shape[axis]))


def _row(rng: np.random.Generator, xs: list[Tensor]) -> Tensor | None:
    x = _pick(rng, xs)
    if x.ndim == 0:
        return None
    return (ops.softmax(x), ops.log_softmax(x) * 0.1, x - ops.mean(x, -1, keepdims=True))[int(rng.integers(3))]


def _view(rng: np.random.Generator, xs: list[Tensor]) -> Tensor | None:
    x = _pick(rng, xs)
    if x.ndim < 2:
        return None
    match int(rng.integers(5)):
        case 0:
            return x.mT
        case 1:
            return ops.reshape(x, (-1,))
        case 2:
            return x[..., ::-1] if x.shape[-1] > 1 else x[..., 0]
        case 3:
            return ops.concat([x, x * 2.0], -1)
        case _:
            return x[:, : max(1, int(x.shape[1]) - 1)]


def _matmul(rng: np.random.Generator, xs: list[Tensor]) -> Tensor | None:
    a = _pick(rng, [x for x in xs if x.ndim >= 2] or xs)
    fitting = [b for b in xs if b.ndim == 2 and a.ndim >= 2 and b.shape[0] == a.shape[-1]]
    if not fitting:
        return a @ a.mT * (1.0 / float(a.shape[-1])) if a.ndim >= 2 else None
    return a @ _pick(rng, fitting) * (1.0 / float(a.shape[-1]))


MAKERS: tuple[Maker, ...] = (_unary, _binary, _binary, _reduce, _row, _view, _matmul)


def build(rng: np.random.Generator, leaves: list[Tensor], length: int) -> list[Tensor]:
    """Apply `length` random ops; returns the last few values."""
    xs = list(leaves)
    for _ in range(length):
        made = MAKERS[int(rng.integers(len(MAKERS)))](rng, xs)
        if made is not None and made.size <= 4096:
            xs.append(made)
    return xs[-3:]


def arrays(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Inputs whose shapes fit together in several ways."""
    a, b, c = (int(rng.choice([1, 2, 3, 5, 8, 17])) for _ in range(3))
    shapes = {"x": (a, b), "y": (b, c), "z": (2, a, b), "v": (b,)}
    return {k: rng.uniform(-1, 1, s).astype(np.float32) for k, s in shapes.items()}
