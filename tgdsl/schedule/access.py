"""Which stored values an expression reads, and at which index.

Views, gathers and inlined element-wise ops are walked through; the walk stops at a
*base*: a leaf, or a node that some kernel computes. An index that depends on data, or
that a view guards with a condition, becomes an opaque variable, which equals nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

from tgdsl.ir import Gather, Leaf, Node, Pointwise, Shape, Source, View
from tgdsl.ir.index import Index, index, var

Ix = tuple[Index, ...]
IsBase = Callable[[Node], bool]

_fresh = count()


def broadcast_index(ix: Ix, shape: Shape) -> Ix:
    """The index into an operand of `shape` that broadcasts to the index `ix` of the result."""
    lead = len(ix) - len(shape)
    return tuple(index(0) if n == 1 else ix[lead + i] for i, n in enumerate(shape))


def view_source(node: Node, ix: Ix) -> Source:
    """Where a view reads its element at `ix`."""
    lowering = node.op.lower
    assert isinstance(lowering, View)
    source: Source = lowering.map(ix, node.inputs[0].shape, **node.attrs)
    return source


def opaque(size: int) -> Index:
    """An index of which only the range is known."""
    return var(f"?{next(_fresh)}", size)


def bounded(ix: Ix, shape: Shape) -> Ix:
    """`ix`, with every entry that may leave `shape` replaced by an opaque one."""
    return tuple(i if i.lo >= 0 and i.hi < n else opaque(n) for i, n in zip(ix, shape, strict=True))


def reads(node: Node, ix: Ix, is_base: IsBase) -> Iterator[tuple[Node, Ix]]:
    """The bases that the value of `node` at `ix` reads, `node` itself being no base."""
    lowering = node.op.lower
    if isinstance(lowering, View):
        x = node.inputs[0]
        yield from reads_of(x, bounded(view_source(node, ix).index, x.shape), is_base)
    elif isinstance(lowering, Gather):
        table, indices = node.inputs
        yield from reads_of(indices, ix[: indices.type.ndim], is_base)
        yield from reads_of(table, (opaque(table.shape[0]), *ix[indices.type.ndim :]), is_base)
    elif isinstance(lowering, Pointwise):
        for x in node.inputs:
            yield from reads_of(x, broadcast_index(ix, x.shape), is_base)


def reads_of(node: Node, ix: Ix, is_base: IsBase) -> Iterator[tuple[Node, Ix]]:
    """The bases that reading `node` at `ix` reads: itself, or those of its expression."""
    if isinstance(node.op.lower, Leaf) or is_base(node):
        yield node, ix
    else:
        yield from reads(node, ix, is_base)


def read_inputs(node: Node) -> tuple[Node, ...]:
    """The operands whose values a node reads; `recompute` only waits for its second."""
    return node.inputs[:1] if isinstance(node.op.lower, View) else node.inputs


def bases(node: Node, is_base: IsBase, inputs: Callable[[Node], tuple[Node, ...]] = read_inputs) -> list[Node]:
    """The distinct bases under `node`, without indices (`node` itself excluded).

    Args:
        node: An expression.
        is_base: Whether a node is stored.
        inputs: Which operands count.
    """
    found: dict[int, Node] = {}
    seen: set[int] = set()
    stack = list(inputs(node))
    while stack:
        x = stack.pop()
        if x.id in seen:
            continue
        seen.add(x.id)
        if isinstance(x.op.lower, Leaf) or is_base(x):
            found[x.id] = x
        else:
            stack.extend(inputs(x))
    return [found[i] for i in sorted(found)]
