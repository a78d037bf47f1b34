"""The gradient of a function, and what its graph is made of, for tests of single families."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

import tgdsl.ops as ops
from tests.codegen.run import traced
from tgdsl.autograd import gradients
from tgdsl.ir import Tensor, tracing
from tgdsl.passes import lower
from tgdsl.reference.evaluate import compute

Fn = Callable[..., Any]


def grad(fn: Fn, *operands: Any, ct: Any = None, wrt: int = 0, key: tuple[int, int] = (0, 0)) -> Any:
    """The gradient of `sum(ct * fn)` with respect to one operand; `ct` is ones when omitted."""

    def of(*xs: Any) -> Any:
        y = fn(*xs[: len(operands)])
        total = y if ct is None else y * xs[-1]
        return gradients(y.graph, ops.sum(total) if total.ndim else total, [xs[wrt]])[0]

    return compute(of, *operands, *([] if ct is None else [np.asarray(ct, np.float64)]), key=key)


def parts(fn: Fn, *arrays: Any, wrt: int = 0) -> Counter[str]:
    """How often each primitive occurs in the loss `fn` and its gradient together."""
    graph = traced(fn, {f"x{i}": np.asarray(a) for i, a in enumerate(arrays)} if arrays else {})
    (loss,) = graph.outputs
    assert isinstance(loss, Tensor)
    leaf = next(n for (space, _), n in graph.leaves.items() if space == "named" and n.attrs["name"] == f"x{wrt}")
    with tracing(graph):
        total = ops.sum(loss * ops.reshape(1.0 + ops.arange(loss.size, "f32"), loss.shape))
        made = gradients(graph, total, [graph.tensor(leaf)])
    lowered, roots = lower(graph, [total.node, made[0].node])
    return Counter(n.op.name for n in lowered.reachable(roots))
