"""Local simplifications made while a graph is rebuilt.

Only identities that hold bit for bit on finite values are here: a product with one, a
view of a constant, two views in a row. Adding zero is one of them but for -0.0 + 0.0,
which no rule of ours tells apart.
"""

from __future__ import annotations

from typing import Any

from tgdsl.ir import REGISTRY, Graph, Node, Op, Reduction, TensorType, View


def scalar_value(node: Node) -> float | None:
    """The number that fills `node`, if it is a constant."""
    return node.attrs["value"] if node.op.name == "full" else None


def simplify(
    graph: Graph, op: Op[..., Any], inputs: tuple[Node, ...], attributes: dict[str, Any], type_: TensorType
) -> Node:
    """The node for this application, or a simpler one of the same value."""
    simpler = _arithmetic(op.name, inputs, type_)
    if simpler is None and isinstance(op.lower, View):
        simpler = _view(graph, op.name, inputs[0], attributes, type_)
    if isinstance(op.lower, Reduction) and all(inputs[0].shape[a] == 1 for a in attributes["axes"]):
        return simplify(graph, REGISTRY["reshape"], inputs, {"shape": type_.shape}, type_)
    return graph.add(op, inputs, attributes, type_) if simpler is None else simpler


def _arithmetic(name: str, inputs: tuple[Node, ...], type_: TensorType) -> Node | None:
    if name not in ("add", "sub", "mul", "div"):
        return None
    a, b = inputs
    neutral = 0.0 if name in ("add", "sub") else 1.0
    if scalar_value(b) == neutral and a.shape == type_.shape:
        return a
    if name in ("add", "mul") and scalar_value(a) == neutral and b.shape == type_.shape:
        return b
    return None


def _view(graph: Graph, name: str, x: Node, attributes: dict[str, Any], type_: TensorType) -> Node | None:
    value = scalar_value(x)
    if value is not None and name in ("reshape", "broadcast_to", "permute", "slice", "flip"):
        filled = {"shape": type_.shape, "value": value, "dtype": type_.dtype}
        return graph.add(REGISTRY["full"], (), filled, type_)
    if name == "reshape":
        base = x.inputs[0] if x.op.name == "reshape" else x
        if base.shape == type_.shape:
            return base
        if base is not x:
            return graph.add(REGISTRY["reshape"], (base,), attributes, type_)
    if name == "permute" and x.op.name == "permute":
        inner = x.attrs["perm"]
        perm = tuple(inner[i] for i in attributes["perm"])
        if perm == tuple(range(len(perm))):
            return x.inputs[0]
        return graph.add(REGISTRY["permute"], x.inputs, {"perm": perm}, type_)
    return None
