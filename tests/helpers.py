"""The gradient property of one op, on the f64 evaluator.

Derivatives are taken with the five-point central difference: its error is of fourth order, so
that one tolerance fits a quotient near zero as well as a sum.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.strategies import SeededDraw
from tgdsl.autograd import gradients
from tgdsl.ir import REGISTRY, Graph, Leaf, Op, Sample, TensorType, tracing
from tgdsl.ops.leaves import declare
from tgdsl.reference.evaluate import dtype_of, evaluate

STEP, RTOL, ATOL = 1e-5, 1e-7, 1e-8
KEY = (123, 456)

OPS = {name: op for name, op in REGISTRY.items() if not isinstance(op.lower, Leaf)}
"""Every op but the leaves, which have no meaning of their own."""

DIFFERENTIABLE = {n: op for n, op in OPS.items() if op.no_gradient is None}


def spied(call: Callable[..., Any], note: Callable[..., object]) -> Callable[..., Any]:
    """`call`, telling `note` its arguments first."""

    def both(*args: Any) -> Any:
        note(*args)
        return call(*args)

    return both


class Applied:
    """One application of an op in a graph of its own, with the cotangents of its f32 operands."""

    def __init__(self, op: Op[..., Any], sample: Sample) -> None:
        self.arrays = [np.asarray(a) for a in sample.inputs]
        self.graph = Graph()
        with tracing(self.graph):
            self.leaves = [
                declare(self.graph, "input", f"x{i}", TensorType(a.shape, dtype_of(a)))
                for i, a in enumerate(self.arrays)
            ]
            self.out = op(*self.leaves, **sample.attrs)
        self.wrt = [i for i, a in enumerate(self.arrays) if dtype_of(a) == "f32"] if self.out.dtype == "f32" else []

    def feeds(self, arrays: list[Any]) -> dict[Any, Any]:
        """Arrays for the leaves."""
        return {t.node: a for t, a in zip(self.leaves, arrays, strict=True)}

    def value(self, arrays: list[Any], mode: Any = "f64") -> Any:
        """The op's value."""
        return evaluate(self.graph, self.feeds(arrays), [self.out.node], mode=mode, key=KEY)[self.out.node]

    def cotangents(self, u: Any) -> dict[int, Any]:
        """The vjp applied to `u`, per f32 operand."""
        with tracing(self.graph):
            seed = declare(self.graph, "input", "seed", self.out.type)
            made = gradients(self.graph, self.out, [self.leaves[i] for i in self.wrt], seed)
        feeds = {**self.feeds(self.arrays), seed.node: u}
        values = evaluate(self.graph, feeds, [t.node for t in made], key=KEY)
        self.seed, self.made = seed, made
        return {i: values[t.node] for i, t in zip(self.wrt, made, strict=True)}


def weights(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Cotangents of both signs, none of them small, no two alike."""
    return rng.uniform(0.5, 1.5, shape) * rng.choice([-1.0, 1.0], shape)


def derivative(f: Callable[[list[Any]], Any], arrays: list[Any], i: int, v: Any) -> Any:
    """How `f` changes when operand `i` moves along `v`."""
    h = STEP * max(1.0, float(np.max(np.abs(arrays[i]), initial=0.0)))

    def at(k: int) -> Any:
        return f([a + k * h * v if j == i else a for j, a in enumerate(arrays)])

    return (8.0 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12.0 * h)


def gradient_errors(op: Op[..., Any], sample: Sample, rng: np.random.Generator) -> dict[int, float]:
    """Per operand the worst disagreement with differences along two random directions, in tolerances."""
    applied = Applied(op, sample)
    u = weights(rng, applied.out.shape)
    errors: dict[int, float] = {}
    for i, got in (applied.cotangents(u) if applied.wrt else {}).items():
        errors[i] = 0.0
        for _ in range(2):
            v = rng.uniform(-1, 1, applied.arrays[i].shape)
            terms = u * derivative(applied.value, applied.arrays, i, v)
            # The sum may cancel; what it is a sum of says how exact it can be.
            scale = max(float(np.sum(np.abs(terms))), float(np.sum(np.abs(v * got))))
            error = abs(float(np.sum(terms)) - float(np.sum(v * got))) / (ATOL + RTOL * scale)
            errors[i] = max(errors[i], error if np.isfinite(error) else np.inf)
    return errors


def check_gradient(op: Op[..., Any], seeds: range = range(6)) -> None:
    """The gradient property on seeded samples."""
    for seed in seeds:
        for i, error in gradient_errors(op, op.sample(SeededDraw(seed)), np.random.default_rng(seed)).items():
            assert error <= 1.0, f"{op.name}: the vjp of operand {i} is {error:.3g} tolerances off (seed {seed})"


@cache
def _what_is_wrong(name: str) -> str:
    try:
        check_gradient(REGISTRY[name])
    except AssertionError as error:
        return str(error)
    return ""


def require_gradient_passed(op: Op[..., Any]) -> None:
    """Fail unless the op's gradient property holds; checked here, once per process, whatever else is run."""
    if op.no_gradient is None and (wrong := _what_is_wrong(op.name)):
        pytest.fail(f"not compared with WGSL, because the gradient property failed first: {wrong}")
