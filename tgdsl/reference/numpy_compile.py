"""From a graph to a list of bound NumPy calls.

Buffers come from a pool and go back after their last use; a chain of element-wise calls
works in place. A state whose last reader is the call that computes its next value is
overwritten by that call; otherwise its next value is copied when the graph has run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from tgdsl.dtypes import NUMPY
from tgdsl.ir import Leaf, Node, View

from . import numpy_moves
from .numpy_calls import Call, Place, elementwise, emit

Array = NDArray[Any]


@attrs.define(eq=False)
class Storage:
    """Memory behind one or several arrays, and how many reads of it are still to come."""

    buffer: Array | None
    pending: int = 0


@attrs.define(eq=False)
class Pool:
    """Free buffers by dtype; the smallest that is large enough is taken."""

    free: dict[Any, list[Array]] = attrs.field(factory=dict)
    allocated: int = 0

    def take(self, shape: tuple[int, ...], dtype: Any) -> tuple[Array, Array]:
        """A buffer, and an array of the shape at its start."""
        size = int(np.prod(shape))
        fitting = [b for b in self.free.get(dtype, ()) if size <= b.size <= 2 * size]
        if fitting:
            buffer = min(fitting, key=lambda b: b.size)
            self.free[dtype] = [b for b in self.free[dtype] if b is not buffer]
        else:
            buffer = np.zeros(size, dtype)
            self.allocated += buffer.nbytes
        return buffer, buffer[:size].reshape(shape)

    def give(self, buffer: Array) -> None:
        """Take a buffer back."""
        self.free.setdefault(buffer.dtype.type, []).append(buffer)


@attrs.define(eq=False)
class Calls:
    """A compiled graph.

    Attributes:
        calls: To be run in order.
        copies: Next values of states, copied by `commit`.
        arrays: Where each node lies, by its id.
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
    *,
    given: Mapping[int, Array] = MappingProxyType({}),
    rows: tuple[int, int] | None = None,
    pool: Pool | None = None,
) -> Calls:
    """Bind every call of a graph.

    Args:
        results: Nodes whose arrays stay valid until `commit`.
        leaf: The array of a leaf.
        targets: Nodes and where else their values are written.
        updates: Next value, array and leaf of each state.
        key: Two numbers that stochastic ops are keyed by.
        given: Nodes that are computed already, by id.
        rows: `(all, some)`: arrays are parts of `some` rows of arenas of `all` rows.
        pool: Where buffers come from; they are shared with whoever else takes from it.
    """
    compiler = _Compiler(leaf, np.zeros(2, np.int64) if key is None else key, pool or Pool())
    compiler.given, compiler.rows = given, rows
    return compiler.compile(results, targets, updates)


class _Compiler:
    def __init__(self, leaf: Callable[[Node], Array], key: Array, pool: Pool) -> None:
        self.leaf = leaf
        self.key = key
        self.pool = pool
        self.given: Mapping[int, Array] = {}
        self.rows: tuple[int, int] | None = None
        self.out = Calls()
        self.scratch: list[Array] = []
        self.storage: dict[int, Storage] = {}
        self.uses: dict[int, int] = {}
        self.constant: set[int] = set()

    def compile(self, results: Sequence[Node], targets: Sequence[tuple[Node, Array]], updates: Updates) -> Calls:
        roots = [*results, *(n for n, _ in targets), *(n for n, _, _ in updates)]
        order = _needed(roots, self.given)
        for node in [*(n for o in order if o.id not in self.given for n in o.inputs), *roots]:
            self.uses[node.id] = self.uses.get(node.id, 0) + 1
        # The first target of a node is where it is computed; others are copies.
        direct: dict[int, Array] = {}
        for node, array in targets:
            direct.setdefault(node.id, array)
        states = {n.id: (array, source) for n, array, source in updates}
        for node in order:
            self._place(node, direct.get(node.id), states.get(node.id))
        for node, array in targets:
            self._copy(self.out.calls, node, array)
        self._commits(updates)
        self.out.allocated = self.pool.allocated
        return self.out

    def _shape(self, node: Node) -> tuple[int, ...]:
        shape = tuple(int(n) for n in node.shape)
        if self.rows is not None and len(shape) == 2 and shape[0] == self.rows[0]:
            return (self.rows[1], shape[1])
        return shape

    def _place(self, node: Node, target: Array | None, state: tuple[Array, Node] | None) -> None:
        if node.id in self.given:
            self._adopt(node, self.given[node.id], Storage(None))
            return
        inputs = [self.out.arrays[n.id] for n in node.inputs]
        if isinstance(node.op.lower, Leaf):
            self._adopt(node, self.leaf(node), Storage(None))
            return
        if self._is_constant(node):
            self._adopt(node, self._evaluate(node, inputs), Storage(None))
            return
        alias = self._alias(node, inputs)
        if node.op.name == "windows" and any(node.attrs["padding"]):
            self._windows(node, inputs)
        elif alias is not None:
            self._adopt(node, alias, self.storage[node.inputs[0].id])
        else:
            array, storage = self._destination(node, target, state)
            self._adopt(node, array, storage)
            self.out.calls += emit(self._at(node, inputs, array))
            while self.scratch:
                self.pool.give(self.scratch.pop())
            self.out.nbytes += sum(a.nbytes for a in inputs) + array.nbytes
        for n in node.inputs:
            self._release(self.storage[n.id])

    def _at(self, node: Node, inputs: Sequence[Array], array: Array) -> Place:
        constant = [n.id in self.constant for n in node.inputs]
        return Place(node, inputs, array, constant, self._scratch, self.key)

    def _windows(self, node: Node, inputs: Sequence[Array]) -> None:
        (b, c, h, w), (p, q) = inputs[0].shape, node.attrs["padding"]
        buffer, padded = self.pool.take((b, c, h + 2 * p, w + 2 * q), np.float32)
        calls, view = numpy_moves.padded_windows(self._at(node, inputs, padded), padded)
        self._adopt(node, view, Storage(buffer))
        self.out.calls += calls
        self.out.nbytes += inputs[0].nbytes + padded.nbytes

    def _adopt(self, node: Node, array: Array, storage: Storage) -> None:
        self.out.arrays[node.id] = array
        self.storage[node.id] = storage
        storage.pending += self.uses.get(node.id, 0)

    def _release(self, storage: Storage) -> None:
        storage.pending -= 1
        if storage.pending == 0 and storage.buffer is not None:
            self.pool.give(storage.buffer)
            storage.buffer = None

    def _is_constant(self, node: Node) -> bool:
        known = not node.op.stochastic and all(n.id in self.constant for n in node.inputs)
        if known:
            self.constant.add(node.id)
        return known

    def _evaluate(self, node: Node, inputs: Sequence[Array]) -> Array:
        value = np.asarray(node.op.ref(*inputs, **node.attrs), NUMPY[node.dtype])
        return value.reshape(self._shape(node))

    def _alias(self, node: Node, inputs: Sequence[Array]) -> Array | None:
        if not isinstance(node.op.lower, View) or len(inputs) != 1:
            return None
        seen = np.asarray(node.op.ref(inputs[0], **node.attrs))
        same = seen.shape == self._shape(node) and seen.dtype == inputs[0].dtype
        return seen if same and np.may_share_memory(seen, inputs[0]) else None

    def _destination(self, node: Node, target: Array | None, state: tuple[Array, Node] | None) -> tuple[Array, Storage]:
        if target is not None:
            return target, Storage(None)
        reads = [n.id for n in node.inputs]
        if state is not None and self._overwritable(node, state[1]):
            return state[0], Storage(None)
        if elementwise(node):
            for n in node.inputs:
                storage, array = self.storage[n.id], self.out.arrays[n.id]
                mine = sum(self.storage[i] is storage for i in reads)
                if storage.buffer is None or storage.pending != mine:
                    continue
                if n.type == node.type and array.flags.c_contiguous and array.flags.writeable:
                    buffer, storage.buffer = storage.buffer, None
                    return array, Storage(buffer)
        buffer, array = self.pool.take(self._shape(node), NUMPY[node.dtype])
        return array, Storage(buffer)

    def _scratch(self, shape: tuple[int, ...], dtype: Any) -> Array:
        buffer, array = self.pool.take(tuple(int(n) for n in shape), np.dtype(dtype).type)
        self.scratch.append(buffer)
        return array

    def _overwritable(self, node: Node, source: Node) -> bool:
        if source.id not in self.storage:  # never read
            return True
        storage = self.storage[source.id]
        mine = sum(self.storage[n.id] is storage for n in node.inputs)
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


def _needed(roots: Sequence[Node], given: Mapping[int, Array]) -> list[Node]:
    """The nodes that the roots need, in topological order, not looking behind those given."""
    found: dict[int, Node] = {}
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node.id not in found:
            found[node.id] = node
            stack += () if node.id in given else node.inputs
    return sorted(found.values(), key=lambda n: n.id)


def _copier(to: Array, value: Array) -> Call:
    def copy() -> None:
        np.copyto(to, value)

    return copy
