"""From a graph to a list of bound NumPy calls.

Buffers come from a pool and go back after their last use; a chain of element-wise calls
works in place, and slab by slab where its arrays would not fit the cache. A state whose
last reader is the call that computes its next value is overwritten by that call;
otherwise its next value is copied when the graph has run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import attrs
import numpy as np

from tgdsl.dtypes import NUMPY
from tgdsl.ir import Leaf, Node, View

from . import numpy_moves
from .numpy_calls import Call, Place, elementwise, emit
from .numpy_pool import Array, Pool, Storage, flattened, in_order, memory_order
from .numpy_slabs import Group, groups, orders


@attrs.define(eq=False)
class Calls:
    """A compiled graph.

    Attributes:
        calls: To be run in order.
        copies: Next values of states, copied by `commit`.
        arrays: Where each node lies, by its id; of what one slab holds, the last one.
        nbytes: Operands and results of all calls.
        allocated: Bytes of buffers.
    """

    calls: list[Call] = attrs.field(factory=list)
    copies: list[Call] = attrs.field(factory=list)
    arrays: dict[int, Array] = attrs.field(factory=dict)
    nbytes: int = 0
    allocated: int = 0

    @property
    def count(self) -> int:
        """The number of calls."""
        return len(self.calls) + len(self.copies)

    def run(self) -> None:
        """Compute everything but the next values that `commit` copies."""
        for call in self.calls:
            call()

    def commit(self) -> None:
        """Replace the states."""
        for call in self.copies:
            call()


Updates = Sequence[tuple[Node, Array, Node]]


def compile_calls(
    results: Sequence[Node],
    leaf: Callable[[Node], Array],
    targets: Sequence[tuple[Node, Array]] = (),
    updates: Updates = (),
    key: Array | None = None,
) -> Calls:
    """Bind every call of a graph.

    Args:
        results: Nodes whose arrays stay valid until `commit`.
        leaf: The array of a leaf.
        targets: Nodes and where else their values are written.
        updates: Next value, array and leaf of each state.
        key: Two numbers that stochastic ops are keyed by.
    """
    compiler = _Compiler(leaf, np.zeros(2, np.int64) if key is None else key)
    return compiler.compile(results, targets, updates)


class _Compiler:
    def __init__(self, leaf: Callable[[Node], Array], key: Array) -> None:
        self.leaf = leaf
        self.key = key
        self.out = Calls()
        self.pool = Pool()
        self.storage: dict[int, Storage] = {}
        self.uses: dict[int, int] = {}
        self.constant: set[int] = set()
        self.made: dict[Hashable, Array] = {}
        self.direct: dict[int, Array] = {}
        self.states: dict[int, tuple[Array, Node]] = {}
        self.parts = _Parts(Group([]), Pool())

    def compile(self, results: Sequence[Node], targets: Sequence[tuple[Node, Array]], updates: Updates) -> Calls:
        roots = [*results, *(n for n, _ in targets), *(n for n, _, _ in updates)]
        order = _needed(roots)
        self.users: dict[int, list[Node]] = {}
        for node in order:
            for read in node.inputs:
                self.users.setdefault(read.id, []).append(node)
        self.uses = {i: len(users) for i, users in self.users.items()}
        for node in roots:
            self.uses[node.id] = self.uses.get(node.id, 0) + 1
        # The first target of a node is where it is computed; others are copies.
        for node, array in targets:
            self.direct.setdefault(node.id, array)
        self.states = {n.id: (array, source) for n, array, source in updates}
        self.layout = orders(order, self.users)
        self._place_all(order)
        for node, array in targets:
            self._copy(self.out.calls, node, array)
        self._commits(updates)
        self.out.allocated = self.pool.allocated + self.parts.pool.allocated
        return self.out

    def _place_all(self, order: Sequence[Node]) -> None:
        for node in order:
            self._place_known(node)
        computed = [n for n in order if n.id not in self.storage]
        for group in groups(computed, self.layout):
            self.parts = _Parts(group, self.parts.pool)
            self.parts.inner = self._inner(group) if len(self.parts.slabs) > 1 else set()
            for node in group.nodes:
                self._place(node)
            self.out.calls += [call for calls in self.parts.calls for call in calls]
            for buffer in self.parts.late:
                self.pool.give(buffer)

    def _inner(self, group: Group) -> set[int]:
        """What only calls of the group read, so that room for one slab is enough."""
        inside = {n.id for n in group.nodes}
        return {
            node.id
            for node in group.nodes
            if not isinstance(node.op.lower, View)
            and len(self.users.get(node.id, ())) == self.uses[node.id]
            and all(u.id in inside and not isinstance(u.op.lower, View) for u in self.users[node.id])
        }

    def _place(self, node: Node) -> None:
        inputs = [self.out.arrays[n.id] for n in node.inputs]
        alias = self._alias(node, inputs)
        if node.op.name == "windows" and any(node.attrs["padding"]):
            self._windows(node, inputs)
        elif alias is not None:
            self._adopt(node, alias, self.storage[node.inputs[0].id])
        else:
            self._compute(node, inputs)
        for n in node.inputs:
            self._release(self.storage[n.id])

    def _compute(self, node: Node, inputs: Sequence[Array]) -> None:
        for n, array in zip(node.inputs, inputs, strict=True):
            if not self.parts.aligned(node, n, array):
                self.parts.whole.append(self.storage[n.id])
        array, storage = self._destination(node)
        self._adopt(node, array, storage)
        for slab, calls in zip(self.parts.slabs, self.parts.calls, strict=True):
            parts = [self.parts.cut(node, n, x, slab) for n, x in zip(node.inputs, inputs, strict=True)]
            calls.extend(self._emit(node, parts, self.parts.cut(node, node, array, slab)))
        self.out.nbytes += sum(a.nbytes for a in inputs) + array.nbytes

    def _emit(self, node: Node, inputs: Sequence[Array], array: Array) -> list[Call]:
        """The calls of one slab; what they take as scratch is free again after them."""
        taken: list[tuple[Pool, Array]] = []
        pool = self.parts.pool if len(self.parts.slabs) > 1 else self.pool

        def scratch(shape: tuple[int, ...], dtype: Any) -> Array:
            buffer, room = pool.take(tuple(int(n) for n in shape), np.dtype(dtype).type)
            taken.append((pool, buffer))
            return room

        constant = [n.id in self.constant for n in node.inputs]
        calls = emit(Place(node, inputs, array, constant, scratch, self.key, self.made))
        for owner, buffer in taken:
            owner.give(buffer)
        return calls

    def _windows(self, node: Node, inputs: Sequence[Array]) -> None:
        (b, c, h, w), (p, q) = inputs[0].shape, node.attrs["padding"]
        buffer, padded = self.pool.take((b, c, h + 2 * p, w + 2 * q), np.float32)
        calls, view = numpy_moves.padded_windows(node, inputs[0], padded)
        self._adopt(node, view, Storage(buffer, self.pool))
        self.parts.calls[0] += calls
        self.out.nbytes += inputs[0].nbytes + padded.nbytes

    def _adopt(self, node: Node, array: Array, storage: Storage) -> None:
        self.out.arrays[node.id] = array
        self.storage[node.id] = storage
        storage.pending += self.uses.get(node.id, 0)

    def _release(self, storage: Storage) -> None:
        storage.pending -= 1
        if storage.pending == 0 and storage.buffer is not None and storage.pool is not None:
            if storage.pool is self.pool and len(self.parts.slabs) > 1:
                self.parts.late.append(storage.buffer)  # the next slab reads it too
            else:
                storage.pool.give(storage.buffer)
            storage.buffer = None

    def _place_known(self, node: Node) -> None:
        """Place a leaf or a constant, which no call computes."""
        if isinstance(node.op.lower, Leaf):
            self._adopt(node, self.leaf(node), Storage())
        elif not node.op.stochastic and all(n.id in self.constant for n in node.inputs):
            self.constant.add(node.id)
            value = node.op.ref(*(self.out.arrays[n.id] for n in node.inputs), **node.attrs)
            self._adopt(node, np.asarray(value, NUMPY[node.dtype]).reshape(_shape(node)), Storage())

    def _alias(self, node: Node, inputs: Sequence[Array]) -> Array | None:
        if not isinstance(node.op.lower, View):
            return None
        seen = np.asarray(node.op.ref(*inputs, **node.attrs))
        same = seen.shape == _shape(node) and seen.dtype == inputs[0].dtype
        return seen if same and np.may_share_memory(seen, inputs[0]) else None

    def _destination(self, node: Node) -> tuple[Array, Storage]:
        if node.id in self.direct:
            return self.direct[node.id], Storage()
        if node.id in self.states and self._overwritable(node, self.states[node.id][1]):
            return self.states[node.id][0], Storage()
        if elementwise(node):
            for n in node.inputs:
                found = self._reused(node, n)
                if found is not None:
                    return found
        order, pool = self.layout[node.id], self.parts.pool if node.id in self.parts.inner else self.pool
        shape = self.parts.shape(node)
        buffer, array = pool.take(tuple(shape[a] for a in order), NUMPY[node.dtype])
        return in_order(array, order), Storage(buffer, pool)

    def _reused(self, node: Node, operand: Node) -> tuple[Array, Storage] | None:
        """The operand's memory, if this node is its last reader and lies in it in the same way."""
        storage, array = self.storage[operand.id], self.out.arrays[operand.id]
        mine = sum(self.storage[n.id] is storage for n in node.inputs)
        if storage.buffer is None or storage.pending != mine or any(s is storage for s in self.parts.whole):
            return None
        if (node.id in self.parts.inner) != (storage.pool is self.parts.pool):
            return None
        if operand.type != node.type or not array.flags.writeable:
            return None
        if not array.transpose(self.layout[node.id]).flags.c_contiguous:
            return None
        again = Storage(storage.buffer, storage.pool)
        storage.buffer = None
        return array, again

    def _overwritable(self, node: Node, source: Node) -> bool:
        if source.id not in self.storage:  # never read
            return True
        storage = self.storage[source.id]
        mine = sum(self.storage[n.id] is storage for n in node.inputs)
        if any(s is storage for s in self.parts.whole):
            return False
        return storage.pending == mine and (mine == 0 or elementwise(node))

    def _commits(self, updates: Updates) -> None:
        moved = [(n, array) for n, array, _ in updates if self.out.arrays[n.id] is not array]
        # A next value that is a state, or a view of one, must be read before any is replaced.
        snapshots: list[tuple[Array, Array]] = []
        for node, array in moved:
            value = self.out.arrays[node.id]
            if any(np.may_share_memory(value, other) for _, other in moved):
                snapshots.append((array, np.zeros_like(array)))
                self._copy(self.out.copies, node, snapshots[-1][1])
            else:
                snapshots.append((array, value))
        self.out.copies += [_copier(to, value) for to, value in snapshots]

    def _copy(self, calls: list[Call], node: Node, array: Array) -> None:
        value = self.out.arrays[node.id]
        if value is not array:
            calls.append(_copier(array, value))


class _Parts:
    """The slabs of the group that is being compiled.

    Attributes:
        group: The group.
        pool: Where buffers of the size of a slab come from; other groups use them too.
        slabs: Where each begins and ends.
        calls: Those of each slab.
        inner: Nodes of which only one slab exists at a time.
        late: Buffers to be given back when all slabs are done.
        whole: Memory of which a call reads more than its own slab; no call may overwrite it.
    """

    def __init__(self, group: Group, pool: Pool) -> None:
        self.group = group
        self.pool = pool
        self.slabs = group.slabs() if group.nodes else []
        self.calls: list[list[Call]] = [[] for _ in self.slabs]
        self.inner: set[int] = set()
        self.late: list[Array] = []
        self.whole: list[Storage] = []

    def shape(self, node: Node) -> tuple[int, ...]:
        """The shape of the array that holds a node, or one slab of it."""
        shape, axis = _shape(node), self.group.axis
        if node.id not in self.inner or axis is None:
            return shape
        return (*shape[:axis], self.slabs[0][1], *shape[axis + 1 :])

    def cut(self, node: Node, operand: Node, array: Array, slab: tuple[int, int]) -> Array:
        """The slab of an operand."""
        axis = self.group.axis_in(node, operand)
        if len(self.slabs) == 1 or axis is None:
            return array
        start, stop = (0, slab[1] - slab[0]) if operand.id in self.inner else slab
        return array[(slice(None),) * axis + (slice(start, stop),)]

    def aligned(self, node: Node, operand: Node, array: Array) -> bool:
        """Whether a slab of the node reads one stretch of memory that other slabs do not."""
        axis = self.group.axis_in(node, operand)
        if len(self.slabs) == 1 or operand.id in self.inner:
            return True
        return axis is not None and memory_order(array)[0] == axis and flattened(array) is not None


def _shape(node: Node) -> tuple[int, ...]:
    return tuple(int(n) for n in node.shape)


def _needed(roots: Sequence[Node]) -> list[Node]:
    """The nodes that the roots need, in topological order."""
    found: dict[int, Node] = {}
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node.id not in found:
            found[node.id] = node
            stack += node.inputs
    return sorted(found.values(), key=lambda n: n.id)


def _copier(to: Array, value: Array) -> Call:
    def copy() -> None:
        np.copyto(to, value)

    return copy
