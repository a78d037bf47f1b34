"""The gradient property of one op, on the f64 evaluator."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from tests.strategies import SeededDraw
from tgdsl.autograd import gradients
from tgdsl.ir import REGISTRY, Graph, Leaf, Op, Sample, TensorType, tracing
from tgdsl.ops.leaves import declare
from tgdsl.reference.evaluate import dtype_of, evaluate

STEP, RTOL, ATOL = 1e-5, 2e-6, 1e-8
KEY = (123, 456)

OPS = {name: op for name, op in REGISTRY.items() if not isinstance(op.lower, Leaf)}
"""Every op but the leaves, which have no meaning of their own."""

DIFFERENTIABLE = {n: op for n, op in OPS.items() if op.no_gradient is None}


class Applied:
    """One application of an op in a graph of its own, with the cotangents of its f32 operands."""

    def __init__(self, op: Op[..., Any], sample: Sample) -> None:
        self.arrays = [np.asarray(a) for a in sample.inputs]
        self.graph = Graph()
        with tracing(self.graph):
            self.leaves = [
                declare(self.graph, "input", f"x{i}", TensorType(a.shape, dtype_of(a))) for i, a in enumerate(self.arrays)
            ]
            self.out = op(*self.leaves, **sample.attrs)
        self.wrt = [i for i, a in enumerate(self.arrays) if dtype_of(a) == "f32"]

    def feeds(self, arrays: list[Any]) -> dict[Any, Any]:
        """Arrays for the leaves."""
        return {t.node: a for t, a in zip(self.leaves, arrays, strict=True)}

    def value(self, arrays: list[Any]) -> Any:
        """The op's value in f64."""
        return evaluate(self.graph, self.feeds(arrays), [self.out.node], key=KEY)[self.out.node]

    def cotangents(self, u: Any) -> dict[int, Any]:
        """The vjp applied to `u`, per f32 operand."""
        with tracing(self.graph):
            seed = declare(self.graph, "input", "seed", self.out.type)
            made = gradients(self.graph, self.out, [self.leaves[i] for i in self.wrt], seed)
        feeds = {**self.feeds(self.arrays), seed.node: u}
        values = evaluate(self.graph, feeds, [t.node for t in made], key=KEY)
        self.seed, self.made = seed, made
        return {i: values[t.node] for i, t in zip(self.wrt, made, strict=True)}


def gradient_error(op: Op[..., Any], sample: Sample, rng: np.random.Generator) -> float:
    """The worst disagreement with central differences along random directions, in tolerances."""
    applied = Applied(op, sample)
    if not applied.wrt or applied.out.dtype != "f32":
        return 0.0
    u = rng.uniform(0.5, 1.5, applied.out.shape) * rng.choice([-1.0, 1.0], applied.out.shape)
    got = applied.cotangents(u)
    worst = 0.0
    for i in applied.wrt:
        for _ in range(2):
            v = rng.uniform(-1, 1, applied.arrays[i].shape)
            hi, lo = list(applied.arrays), list(applied.arrays)
            hi[i], lo[i] = applied.arrays[i] + STEP * v, applied.arrays[i] - STEP * v
            terms = u * (applied.value(hi) - applied.value(lo)) / (2 * STEP)
            want, mine = float(np.sum(terms)), float(np.sum(v * got[i]))
            scale = float(np.sum(np.abs(terms))) + float(np.sum(np.abs(v * got[i])))
            worst = max(worst, abs(want - mine) / (ATOL + RTOL * scale))
    return worst


def check_gradient(op: Op[..., Any], seeds: range = range(6)) -> None:
    """The gradient property on seeded samples."""
    for seed in seeds:
        error = gradient_error(op, op.sample(SeededDraw(seed)), np.random.default_rng(seed))
        assert error <= 1.0, f"{op.name}: the vjp is {error:.3g} tolerances off (seed {seed})"


@cache
def gradient_passed(name: str) -> str:
    """Empty when the op's gradient property holds, else what is wrong; once per process."""
    op = REGISTRY[name]
    if op.no_gradient is not None:
        return ""
    try:
        check_gradient(op)
    except AssertionError as error:
        return str(error)
    return ""
