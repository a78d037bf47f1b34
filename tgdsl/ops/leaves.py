"""Leaves: values that are bound from outside of the graph.

Parameters and inputs share one namespace, because users give both by name; states and
scalars have namespaces of their own.
"""

from __future__ import annotations

from typing import Any, Literal

from tgdsl.dtypes import DType
from tgdsl.errors import TraceError
from tgdsl.ir import CLASSES, Graph, Leaf, Node, Sample, Shape, TensorType, op, user_site
from tgdsl.ir.op import Op

Kind = Literal["param", "input", "state", "scalar"]


def _unbound(**attributes: Any) -> Any:
    raise TraceError(f"the leaf {attributes['name']!r} has no value; feed it to the evaluator")


def _define(kind: Kind) -> Op[..., Any]:
    def rule(*, name: str, shape: Shape, dtype: DType = "f32") -> TensorType:
        return TensorType(shape, dtype)

    rule.__doc__ = f"The {kind} named `name`."
    made = op(
        name=kind,
        ref=_unbound,
        lower=Leaf(kind),
        sample=lambda draw: Sample.of(name="leaf", shape=draw.shape("shape"), dtype="f32"),
    )(rule)
    made.no_vjp("a leaf")
    return made


LEAVES: dict[Kind, Op[..., Any]] = {
    "param": _define("param"),
    "input": _define("input"),
    "state": _define("state"),
    "scalar": _define("scalar"),
}


def declare(graph: Graph, kind: Kind, name: str, type_: TensorType) -> Any:
    """Add the leaf `name` to `graph` and return its tensor; a name used twice is refused."""
    space = "named" if kind in ("param", "input") else kind
    if (space, name) in graph.leaves:
        raise TraceError(f"{kind} {name!r}: the name is already declared in this trace", site=user_site())
    attributes = {"name": name, "shape": type_.shape, "dtype": type_.dtype}
    node: Node = graph.add(LEAVES[kind], (), attributes, type_)
    graph.leaves[space, name] = node
    return CLASSES[type_.dtype](type_, graph, node)


def leaves(graph: Graph, kind: Kind) -> dict[str, Node]:
    """The leaves of one kind by name, in the order of declaration."""
    return {node.attrs["name"]: node for node in graph.leaves.values() if node.op is LEAVES[kind]}
