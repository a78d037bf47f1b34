"""The meaning of a graph, in NumPy: every op by its own reference.

In f64 it is what gradients are checked with and what WGSL is compared to; complex arrays
give complex-step derivatives where every op on the way is analytic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import numpy as np

from tgdsl.dtypes import DType
from tgdsl.errors import TraceError
from tgdsl.ir import AnyTensor, Array, Graph, Leaf, Node, TensorType, tracing
from tgdsl.ops.leaves import declare

Mode = Literal["f32", "f64", "complex"]
WORKING: dict[Mode, Any] = {"f32": np.float32, "f64": np.float64, "complex": np.complex128}
"""What stands for f32 in each mode."""


def evaluate(
    graph: Graph,
    feeds: Mapping[Node, Any],
    roots: Iterable[Node] | None = None,
    *,
    mode: Mode = "f64",
    key: tuple[int, int] = (0, 0),
) -> dict[Node, Array]:
    """The values of all nodes that `roots` need.

    Args:
        graph: Any graph.
        feeds: The arrays of leaves; a node that is no leaf may be overridden too.
        roots: What is wanted; the graph's own roots when omitted.
        mode: The precision of f32 values.
        key: The random key of the step, for stochastic ops.

    Returns:
        An array per node.

    Raises:
        TraceError: If a leaf has no value.
    """
    values: dict[Node, Array] = {}
    for node in graph.reachable(roots):
        if node in feeds:
            values[node] = _working(np.asarray(feeds[node]), node, mode)
            continue
        if isinstance(node.op.lower, Leaf):
            raise TraceError(f"evaluate: the {node.op.name} {node.name!r} has no value")
        extra = {"key": key} if node.op.stochastic else {}
        with np.errstate(all="ignore"):
            value = node.op.ref(*(values[x] for x in node.inputs), **node.attrs, **extra)
        values[node] = _working(np.asarray(value), node, mode)
    return values


def _working(value: Array, node: Node, mode: Mode) -> Array:
    return value.astype(WORKING[mode], copy=False) if node.dtype == "f32" else value


def dtype_of(array: Array) -> DType:
    """The dtype that stands for an array's: any float is f32."""
    kinds: dict[str, DType] = {"f": "f32", "i": "i32", "u": "i32", "b": "bool"}
    return kinds[array.dtype.kind]


def compute(fn: Callable[..., AnyTensor[Any]], *operands: Any, key: tuple[int, int] = (0, 0)) -> Array:
    """Trace `fn` on arrays and evaluate it in f64; for examples and for looking at an op.

    Args:
        fn: Takes one tensor per operand.
        operands: Arrays or nested lists; integers become i32, floats f32.
        key: The random key.

    Returns:
        The value.
    """
    arrays = [np.asarray(o) for o in operands]
    graph = Graph()
    with tracing(graph):
        leaves = [declare(graph, "input", f"x{i}", TensorType(a.shape, dtype_of(a))) for i, a in enumerate(arrays)]
        out = fn(*leaves)
    feeds = {t.node: a.astype(np.int32) if dtype_of(a) == "i32" else a for t, a in zip(leaves, arrays, strict=True)}
    return evaluate(graph, feeds, [out.node], key=key)[out.node]
