"""The kernels that `benchmarks.kernels` times: what each computes, in tgdsl and in PyTorch, and for which sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import attrs
import numpy as np

import tgdsl.ops as ops
from benchmarks.graphs import Arrays
from tgdsl.autograd import gradients
from tgdsl.dtypes import DType
from tgdsl.ir import Graph, Tensor, TensorType, tracing
from tgdsl.ops.leaves import declare
from tgdsl.optim.step import ArenaLayout, StepGraphs

Part: TypeAlias = Literal["forward", "backward", "both"]
"""`backward` is from operands and a cotangent alone, as in a training step; `both` is for losses."""

Size: TypeAlias = tuple[int, ...]
Shapes: TypeAlias = Mapping[str, Size]

TARGETS = "targets"
"""The one operand that is not f32: classes below the last axis of `x`."""


@attrs.frozen
class Case:
    """One kernel.

    Attributes:
        name: Its name.
        sizes: What to time, smallest first.
        shapes: Of a size: the shape of each operand.
        ours: Of tensors by name, the result.
        theirs: The same of the module `torch` and its tensors.
        parts: What to time.
        needed: The share of the products of its contractions that is not masked.
    """

    name: str
    sizes: tuple[Size, ...]
    shapes: Callable[..., Shapes]
    ours: Callable[..., Tensor]
    theirs: Callable[..., Any]
    parts: tuple[Part, ...] = ("forward", "backward")
    needed: float = 1.0

    def elements(self, size: Size) -> int:
        """Elements of the largest operand."""
        return max(math.prod(shape) for shape in self.shapes(*size).values())

    def step(self, size: Size, part: Part) -> StepGraphs:
        """What the compiler compiles: operands in `params`, the cotangent in `frozen`, gradients in `grads`."""
        shapes = self.shapes(*size)
        graph = Graph(facts={"below": {TARGETS: size[-1]}} if TARGETS in shapes else {})
        with tracing(graph):
            values = {n: declare(graph, _kind(n), n, TensorType(s, _dtype(n))) for n, s in shapes.items()}
            y = self.ours(**values)
            wanted = {n: t for n, t in values.items() if n != TARGETS}
            layout = ArenaLayout.of((n, t.shape) for n, t in wanted.items())
            if part == "forward":
                return StepGraphs(graph, {"y": y}, layout)
            ct = declare(graph, "param", "ct", y.type) if part == "backward" else None
            made = gradients(graph, y, list(wanted.values()), ct)
        grads = dict(zip(wanted, made, strict=True))
        if ct is None:
            return StepGraphs(graph, {"y": y}, layout, grads=grads)
        return StepGraphs(graph, {}, layout, frozen=ArenaLayout.of([("ct", ct.shape)]), grads=grads)

    def arrays(self, size: Size) -> Arrays:
        """Random operands."""
        rng = np.random.default_rng(0)
        return {
            n: rng.integers(0, size[-1], s, dtype=np.int32) if n == TARGETS else rng.random(s, np.float32) - 0.5
            for n, s in self.shapes(*size).items()
        }


def _kind(name: str) -> Literal["input", "param"]:
    return "input" if name == TARGETS else "param"


def _dtype(name: str) -> DType:
    return "i32" if name == TARGETS else "f32"


def _one(*size: int) -> Shapes:
    return {"x": size}


def _attention(batch: int, heads: int, time: int, dim: int) -> Shapes:
    return dict.fromkeys("qkv", (batch, heads, time, dim))


ROWS: tuple[Size, ...] = ((512, 64), (4096, 384), (8192, 2048))
WIDE: tuple[Size, ...] = ((128, 1024), (4096, 1024), (8192, 4096))

COPY = Case("copy", ((1 << 26,), (1 << 22,), (1 << 17,)), _one, lambda x: -x, lambda torch, x: -x, ("forward",))
MATMUL = Case(
    "matmul",
    ((2048,), (512,), (64,)),
    lambda n: {"a": (n, n), "b": (n, n)},
    lambda a, b: a @ b,
    lambda torch, a, b: a @ b,
    ("forward",),
)

CASES = {
    case.name: case
    for case in (
        Case("softmax", ROWS, _one, lambda x: ops.softmax(x, -1), lambda torch, x: torch.softmax(x, -1)),
        Case(
            "layer norm",
            ROWS,
            lambda rows, dim: {"x": (rows, dim), "g": (dim,), "b": (dim,)},
            lambda x, g, b: ops.layer_norm(x, g, b),
            lambda torch, x, g, b: torch.nn.functional.layer_norm(x, x.shape[-1:], g, b),
        ),
        Case(
            "attention",
            ((8, 4, 64, 32), (16, 6, 256, 64), (4, 8, 1024, 64)),
            _attention,
            lambda q, k, v: ops.attention(q, k, v, causal=True),
            lambda torch, q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True),
            needed=0.5,
        ),
        Case(
            "gelu", ((1 << 16,), (1 << 20,), (1 << 24,)), _one, ops.gelu, lambda torch, x: torch.nn.functional.gelu(x)
        ),
        Case("row sum", WIDE, _one, lambda x: ops.sum(x, 1), lambda torch, x: x.sum(1), ("forward",)),
        Case("column sum", WIDE, _one, lambda x: ops.sum(x, 0), lambda torch, x: x.sum(0), ("forward",)),
        Case(
            "cross-entropy",
            ((512, 65), (4096, 256), (4096, 8192)),
            lambda rows, classes: {"x": (rows, classes), TARGETS: (rows,)},
            lambda x, targets: ops.cross_entropy(x, targets),
            lambda torch, x, targets: torch.nn.functional.cross_entropy(x, targets),
            ("forward", "both"),
        ),
    )
}
