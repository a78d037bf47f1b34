"""Recognise attention in what users write with plain ops.

`softmax(q @ k.mT * c) @ v`, its scores masked above the diagonal or not, becomes one op, before
anything is differentiated, so that neither it nor its gradient stores the probabilities. Where these are used for
anything else, as under dropout, the graph stays as it is. A captured value counts as no use:
it is computed when it is asked for. As everywhere in attention, a row that sees nothing but
`-inf` gives zeros then, where a softmax by itself gives NaN.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import attrs

from tgdsl.ir import REGISTRY, Graph, Node

from .fold import scalar_value
from .rebuild import rebuild

HIDDEN = -1e9
"""A fill at or below this hides a score."""


@attrs.frozen
class _Found:
    """Attention of `left` on the columns of `right`, an operand of a product of scores."""

    left: Node
    right: Node
    causal: bool
    scale: float


def recognise_attention(graph: Graph) -> Graph:
    """The graph with every recognisable attention as one op; the same graph if there is none."""
    kept = [*(t.node for t in graph.outputs), *(t.node for t in graph.updates.values())]
    nodes = graph.reachable(kept)
    uses = Counter(x.id for node in nodes for x in node.inputs) + Counter(node.id for node in kept)
    found = {node.id: match for node in nodes if (match := _match(node, uses)) is not None}
    if not found:
        return graph
    roots = list(dict.fromkeys([*graph.roots(), *graph.leaves.values()]))

    known: dict[int, Node] = {}

    def one(new: Graph, node: Node, inputs: tuple[Node, ...]) -> Node:
        match = found.get(node.id)
        if match is None:
            known[node.id] = new.add(node.op, inputs, node.attrs, node.type)
        else:
            q, kt = known[match.left.id], known[match.right.id]
            known[node.id] = _attention(new, q, kt, inputs[1], match)
        return known[node.id]

    new, _ = rebuild(graph, roots, one)
    new.outputs = [new.tensor(known[t.node.id]) for t in graph.outputs]
    new.captures = {name: new.tensor(known[t.node.id]) for name, t in graph.captures.items()}
    new.updates = {name: new.tensor(known[t.node.id]) for name, t in graph.updates.items()}
    return new


def _attention(new: Graph, q: Node, kt: Node, v: Node, match: _Found) -> Node:
    rank = kt.type.ndim
    turned = (*range(rank - 2), rank - 1, rank - 2)
    if kt.op.name == "permute" and kt.attrs["perm"] == turned:
        k: Any = new.tensor(kt.inputs[0])
    else:
        k = REGISTRY["permute"](new.tensor(kt), perm=turned)
    made = REGISTRY["attention"](new.tensor(q), k, new.tensor(v), causal=match.causal, scale=match.scale)
    out: Node = made.node
    return out


def _match(node: Node, uses: Counter[int]) -> _Found | None:
    """The attention that a product of probabilities and values is."""
    if node.op.name != "matmul":
        return None
    p, v = node.inputs
    if uses[p.id] != 1 or p.shape[:-2] != v.shape[:-2]:
        return None
    if p.op.name == "softmax_causal":
        x, causal = p.inputs[0], True
    elif p.op.name in ("softmax", "softmax_or_zeros") and p.attrs["axis"] == p.type.ndim - 1:
        (x,), causal = p.inputs, False
    else:
        return None
    return _of_scores(x, 1.0, causal=causal)


def _of_scores(x: Node, factor: float, *, causal: bool) -> _Found | None:
    """What `x * factor` is made of: products of scores under scalings and causal masks."""
    if x.op.name == "matmul":
        left, right = x.inputs
        return _Found(left, right, causal, factor)
    if x.op.name in ("mul", "div"):
        for a, b in (x.inputs, x.inputs[::-1] if x.op.name == "mul" else x.inputs):
            by = scalar_value(b)
            if by and a.type == x.type:
                return _of_scores(a, factor * by if x.op.name == "mul" else factor / by, causal=causal)
    if x.op.name == "where" and _is_causal_mask(x.inputs[0]) and x.inputs[1].type == x.type:
        fill = scalar_value(x.inputs[2])
        if fill is not None and fill * factor <= HIDDEN:
            return _of_scores(x.inputs[1], factor, causal=True)
    return None


def _is_causal_mask(mask: Node) -> bool:
    """Whether this is `column <= row` for the last two axes."""
    if mask.op.name != "greater_equal" or len(set(mask.shape)) != 1 or mask.type.ndim != 2:
        return False
    rows, columns = mask.inputs
    base = rows.inputs[0] if rows.op.name == "reshape" else rows
    column_of = rows.shape == (mask.shape[0], 1) and base.op.name == "arange"
    return column_of and columns.op.name == "arange" and columns.shape == (mask.shape[1],)
