"""Which calls work on one slab of their arrays after the other, and how arrays lie in memory.

A chain of passes over arrays of megabytes goes to memory in each of them. Done for a part
of the outermost axis that fits the cache, then for the next part, all but the first find
their operands in cache, and what only the chain reads needs no more room than one part.

Images that a convolution made have the batch innermost: every shift of a window is then a
move of whole rows of `width * batch` elements, and the columns of a convolution, its
product and its pooling never touch less than a batch at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import attrs

from tgdsl.ir import Node, Pointwise, Reduction, View

from .numpy_calls import elementwise

SLAB: Final = 65536
"""Elements of the largest array in a slab: 256 KB. Less would go into calls, more out of cache."""

IMAGES: Final = frozenset({"conv2d", "conv2d_input"})
MANY: Final = 8
"""Images from which on it pays to have the batch innermost."""

Order = tuple[int, ...]


@attrs.define
class Group:
    """Nodes that run one after the other, slab by slab along one axis that all of them have.

    Attributes:
        nodes: In topological order.
        axis: The axis, the outermost one in memory; None where the node is not cut.
        extent: Its size.
        ids: Those of the nodes.
        largest: Elements of the largest array that is read or written.
    """

    nodes: list[Node]
    axis: int | None = None
    extent: int = 1
    ids: set[int] = attrs.field(factory=set)
    largest: int = 0

    @classmethod
    def of(cls, node: Node, axis: int | None = None, extent: int = 1) -> Group:
        """A group of one."""
        return cls([node], axis, extent, {node.id}, _weight(node))

    def add(self, node: Node) -> None:
        """Another node, which comes last."""
        self.nodes.append(node)
        self.ids.add(node.id)
        self.largest = max(self.largest, _weight(node))

    def small(self) -> bool:
        """Whether everything fits into one slab."""
        return self.largest <= SLAB

    def slabs(self) -> list[tuple[int, int]]:
        """Where each slab begins and ends."""
        if self.axis is None or self.small():
            return [(0, self.extent)]
        rows = max(1, SLAB * self.extent // self.largest)
        return [(i, min(i + rows, self.extent)) for i in range(0, self.extent, rows)]

    def axis_in(self, node: Node, operand: Node) -> int | None:
        """The axis of an operand that is cut with the node's; None if it is read as a whole."""
        if self.axis is None:
            return None
        shift = node.type.ndim - operand.type.ndim if isinstance(node.op.lower, Pointwise) else 0
        axis = self.axis - shift
        return axis if axis >= 0 and operand.shape[axis] == self.extent else None


def _weight(node: Node) -> int:
    return max(n.type.size for n in (node, *node.inputs))


def orders(nodes: Iterable[Node], users: Mapping[int, Sequence[Node]]) -> dict[int, Order]:
    """The axes of each node from the outermost to the innermost in memory."""
    found: dict[int, Order] = {}
    for node in nodes:
        found[node.id] = _order(node, found, users.get(node.id, ()))
    return found


def _order(node: Node, known: Mapping[int, Order], users: Sequence[Node]) -> Order:
    plain, name = tuple(range(node.type.ndim)), node.op.name
    if name in IMAGES and node.shape[0] >= MANY:
        return _batch_last(plain)
    if not node.inputs:
        return plain
    first = known.get(node.inputs[0].id, ())
    if elementwise(node):
        alike = [known[n.id] for n in node.inputs if n.shape == node.shape and n.id in known]
        return next((o for o in alike if o != plain), plain)
    if isinstance(node.op.lower, Reduction) and "axes" in node.attrs:
        left = [a for a in first if a not in node.attrs["axes"]]
        return tuple(sorted(left).index(a) for a in left)
    if name == "permute":
        return tuple(node.attrs["perm"].index(a) for a in first)
    if name in ("windows", "window_sum", "reshape") and first == _batch_last(first) and min(len(first), len(plain)) > 1:
        kept = name != "reshape" or node.shape[0] == node.inputs[0].shape[0]
        return _batch_last(plain) if kept and not any(node.attrs.get("padding", ())) else plain
    if name == "matmul" and len(plain) > 2 and users and all(u.op.name == "permute" for u in users):
        # Written as it will be read, the heads of an attention need no copy to be joined.
        wanted = {tuple(u.attrs["perm"]) for u in users}
        return wanted.pop() if len(wanted) == 1 else plain
    return plain


def _batch_last(axes: Sequence[int]) -> Order:
    return (*range(1, len(axes)), 0)


def groups(nodes: Iterable[Node], layout: Mapping[int, Order]) -> Iterator[Group]:
    """The nodes in groups, in an order in which they can run.

    A node that cannot be cut waits until the group that it reads is done, unless it reads
    none of it, so that the chain goes on past the sums and products beside it.

    Args:
        nodes: In topological order.
        layout: What `orders` found.
    """
    chain: Group | None = None
    after: list[Node] = []
    waiting: set[int] = set()
    for node in nodes:
        reads = {n.id for n in node.inputs}
        late, joined = reads & waiting, chain is not None and reads & chain.ids
        begins = _begins(node, layout[node.id])
        # What needs no slabs had better not be cut because something larger comes after it.
        grows = chain is not None and chain.small() and begins is not None and not begins.small()
        if chain is not None and not late and not grows and _joins(node, layout[node.id], chain):
            chain.add(node)
        elif begins is not None and (chain is None or late or joined or grows):
            yield from _closed(chain, after)
            chain, after, waiting = begins, [], set()
        elif late or joined:
            after.append(node)
            waiting.add(node.id)
        else:
            yield begins or Group.of(node)
    yield from _closed(chain, after)


def _closed(chain: Group | None, after: Sequence[Node]) -> Iterator[Group]:
    if chain is not None:
        yield chain
    for node in after:
        yield Group.of(node)


def _joins(node: Node, order: Order, group: Group) -> bool:
    """Whether the node can be cut as the group is, and what it reads of the group too."""
    alike = all(group.axis_in(node, n) == group.axis for n in node.inputs if n.id in group.ids)
    return alike and order[:1] == (group.axis,) and _fits(node, group)


def _begins(node: Node, order: Order) -> Group | None:
    """The group that starts with a node, if its outermost axis can be cut."""
    if node.type.ndim < 1 or isinstance(node.op.lower, View) or node.shape[order[0]] < 2:
        return None
    group = Group.of(node, order[0], int(node.shape[order[0]]))
    return group if _fits(node, group) else None


def _fits(node: Node, group: Group) -> bool:
    """Whether a slab of the node needs only the same slab of its operands."""
    axis, n = group.axis, group.extent
    if axis is None or not node.inputs or node.type.ndim <= axis or node.shape[axis] != n or node.op.stochastic:
        return False
    lowering, attributes, source = node.op.lower, node.attrs, node.inputs[0]
    if isinstance(lowering, Pointwise):
        return True
    if isinstance(lowering, Reduction):
        return "axes" in attributes and all(a > axis for a in attributes["axes"])
    if node.op.name == "matmul":
        return axis <= node.type.ndim - 3 and all(
            x.type.ndim == node.type.ndim and x.shape[axis] == n for x in node.inputs
        )
    if node.op.name in ("windows", "window_sum"):
        return axis < 2 and source.shape[axis] == n and not any(attributes["padding"])
    return isinstance(lowering, View) and _keeps(node, axis)


def _keeps(node: Node, axis: int) -> bool:
    """Whether a view leaves an axis and all before it where they are."""
    source, attributes = node.inputs[0], node.attrs
    if node.op.name == "permute":
        return bool(attributes["perm"][axis] == axis)
    if node.op.name == "reshape":
        return source.type.ndim > axis and source.shape[: axis + 1] == node.shape[: axis + 1]
    same = source.type.ndim == node.type.ndim and source.shape[axis] == node.shape[axis]
    return same and (node.op.name == "broadcast_to" or (node.op.name == "slice" and attributes["steps"][axis] == 1))
