"""What integers a value can be: the proof that a gather stays inside its table.

Kernels run without the driver's bounds checks, so every index must be in range by
construction. Indices that are data are proven here, from `below=` of a declaration and
from the ops in between; what cannot be proven is clamped by the kernel and reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tgdsl.ir import Gather, Node, Reduction, View

Interval = tuple[int, int]

I32: Interval = (-(2**31), 2**31 - 1)


def _corners(f: Callable[[int, int], int]) -> Callable[[Interval, Interval], Interval]:
    def combine(a: Interval, b: Interval) -> Interval:
        found = [f(x, y) for x in a for y in b]
        return min(found), max(found)

    return combine


_BINARY: dict[str, Callable[[Interval, Interval], Interval]] = {
    "add": _corners(lambda x, y: x + y),
    "sub": _corners(lambda x, y: x - y),
    "mul": _corners(lambda x, y: x * y),
    "maximum": _corners(max),
    "minimum": _corners(min),
    "where": lambda a, b: (min(a[0], b[0]), max(a[1], b[1])),
}


def interval(node: Node, below: Mapping[str, int]) -> Interval:
    """Inclusive bounds of an i32 node.

    Args:
        node: A node of a graph of primitives.
        below: For each input declared with `below=n`, that n; its values are in `[0, n)`.
    """
    known: dict[int, Interval] = {}
    stack = [node]
    while stack:
        x = stack[-1]
        waiting = [n for n in x.inputs if n.dtype == "i32" and n.id not in known]
        if waiting:
            stack.extend(waiting)
            continue
        stack.pop()
        lo, hi = _one(x, [known[n.id] for n in x.inputs if n.dtype == "i32"], below)
        # An overflow wraps on the device, so an interval that leaves i32 says nothing.
        known[x.id] = (lo, hi) if I32[0] <= lo and hi <= I32[1] else I32
    return known[node.id]


def _made(node: Node, below: Mapping[str, int]) -> Interval | None:
    """Bounds of a node that follow from the node alone, whatever its operands are."""
    name = node.op.name
    if name == "input" and node.attrs["name"] in below:
        return 0, below[node.attrs["name"]] - 1
    if name == "bounded":
        return 0, int(node.attrs["below"]) - 1
    if name == "full":
        return int(node.attrs["value"]), int(node.attrs["value"])
    if name == "arange":
        return 0, int(node.shape[0]) - 1
    if name == "cast" and node.inputs[0].dtype == "bool":
        return 0, 1
    return None


def _one(node: Node, operands: list[Interval], below: Mapping[str, int]) -> Interval:
    made = _made(node, below)
    if made is not None:
        return made
    name, lowering = node.op.name, node.op.lower
    if isinstance(lowering, Gather) and len(operands) == 2:
        return operands[0]
    if isinstance(lowering, View) and operands:
        # The fill of a guarded view is the attribute `value`, or zero.
        fill = int(node.attrs.get("value", 0))
        guarded = name not in ("reshape", "permute", "broadcast_to", "slice", "flip")
        lo, hi = operands[0]
        return (min(lo, fill), max(hi, fill)) if guarded else (lo, hi)
    if isinstance(lowering, Reduction) and lowering.combine in ("max", "min") and operands:
        return operands[0]
    if name in _BINARY and len(operands) == 2:
        return _BINARY[name](*operands)
    if name == "remainder" and operands[1][0] == operands[1][1] > 0:
        return 0, operands[1][0] - 1
    return I32
