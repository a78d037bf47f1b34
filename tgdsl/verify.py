"""Gradients of a declared forward against central differences, on the f64 evaluator.

A finite difference in f32 is too coarse to tell a wrong factor from rounding, so both sides
are evaluated in f64; small models are checked element by element, larger ones along random
directions, where every element of a parameter takes part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from tgdsl import frontend
from tgdsl.autograd import gradients
from tgdsl.errors import GradientError
from tgdsl.ir import Graph, Node, tracing
from tgdsl.ops.leaves import leaves
from tgdsl.reference.evaluate import evaluate

STEP = 1e-5
"""Where truncation and rounding of a central difference in f64 meet for values of order 1."""

ELEMENTS = 64
"""Elements of a parameter up to which each is perturbed alone."""

F64Array = NDArray[np.float64]


@attrs.frozen
class Finding:
    """One comparison.

    Attributes:
        parameter: The parameter.
        where: The element, or `direction k`.
        gradient: What the graph says.
        difference: What the central difference says.
        tolerances: Their distance, in tolerances; above 1 they disagree.
    """

    parameter: str
    where: str
    gradient: float
    difference: float
    tolerances: float

    def __str__(self) -> str:
        return (
            f"{self.parameter}{self.where}: gradient {self.gradient:.9g}, "
            f"central difference {self.difference:.9g} ({self.tolerances:.3g} tolerances apart)"
        )


def compare_gradients(
    forward: Any,
    model: object,
    batch: Any,
    *,
    rtol: float = 1e-6,
    atol: float = 1e-8,
    directions: int = 8,
    seed: int = 0,
) -> list[Finding]:
    """The worst finding of every parameter that the loss depends on.

    Args:
        forward: A `@forward` that returns a scalar.
        model: Its model; parameters start at their initial values plus a little noise, so
            that none is exactly at a kink or at zero.
        batch: A value of its inputs class.
        rtol: Relative tolerance.
        atol: Absolute tolerance.
        directions: Random directions per parameter of more than 64 elements.
        seed: What the noise and the directions are drawn from.

    Raises:
        GradientError: If the forward does not return a scalar f32.
    """
    check = _Comparison(forward, model, batch, np.random.default_rng(seed))
    return [check.worst(name, rtol, atol, directions) for name in check.names]


class _Comparison:
    def __init__(self, forward: Any, model: object, batch: Any, rng: np.random.Generator) -> None:
        self.rng = rng
        self.graph: Graph = frontend.trace(model, forward, dims=frontend.batch_dims(batch))
        (out,) = self.graph.outputs
        if out.shape != () or out.dtype != "f32":
            raise GradientError(
                f"check_grads: {forward.__name__} must return a scalar f32, got {out.type}", site=forward.where
            )
        self.out = out.node
        reached = {n.id for n in self.graph.reachable([self.out])}
        self.params: dict[str, Node] = {n: x for n, x in leaves(self.graph, "param").items() if x.id in reached}
        self.names = list(self.params)
        with tracing(self.graph):
            made = gradients(self.graph, out, [self.graph.tensor(n) for n in self.params.values()])
        self.feeds = self._feeds(model, batch)
        values = evaluate(self.graph, self.feeds, [t.node for t in made])
        self.gradients: Mapping[str, F64Array] = {n: values[t.node] for n, t in zip(self.params, made, strict=True)}

    def _feeds(self, model: object, batch: Any) -> dict[Node, Any]:
        feeds: dict[Node, Any] = {}
        initial = frontend.initial_values(model, 0)
        for name, node in leaves(self.graph, "param").items():
            feeds[node] = initial[name] + 0.05 * self.rng.standard_normal(node.shape)
        states = frontend.initial_state(model)
        feeds |= {node: states[name] for name, node in leaves(self.graph, "state").items()}
        arrays = frontend.batch_arrays(batch)
        feeds |= {node: arrays[name] for name, node in leaves(self.graph, "input").items()}
        return feeds

    def worst(self, name: str, rtol: float, atol: float, directions: int) -> Finding:
        """The comparison of one parameter that is furthest off."""
        shape = self.params[name].shape
        size = int(np.prod(shape))
        found: list[Finding] = []
        if size <= ELEMENTS:
            for at in np.ndindex(*shape):
                direction = np.zeros(shape)
                direction[at] = 1.0
                found.append(self._along(name, str(list(at)), direction, rtol, atol))
        else:
            found += [
                self._along(name, f" along direction {k}", self.rng.uniform(-1, 1, shape), rtol, atol)
                for k in range(directions)
            ]
        return max(found, key=lambda f: f.tolerances)

    def _along(self, name: str, where: str, direction: F64Array, rtol: float, atol: float) -> Finding:
        node = self.params[name]
        x = self.feeds[node]
        step = STEP * max(1.0, float(np.max(np.abs(x))))
        ends = [self._loss({**self.feeds, node: x + s * step * direction}) for s in (1.0, -1.0)]
        difference = (ends[0] - ends[1]) / (2 * step)
        terms = self.gradients[name] * direction
        gradient = float(np.sum(terms))
        # Rounding of the loss itself limits what a difference can tell.
        noise = 4 * np.finfo(np.float64).eps * max(1.0, abs(ends[0])) / step
        tolerance = atol + noise + rtol * max(abs(difference), float(np.sum(np.abs(terms))))
        return Finding(name, where, gradient, difference, abs(gradient - difference) / tolerance)

    def _loss(self, feeds: Mapping[Node, Any]) -> float:
        return float(evaluate(self.graph, feeds, [self.out])[self.out])
