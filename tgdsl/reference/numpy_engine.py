"""The backend without a GPU: a step as a flat list of NumPy calls on buffers made beforehand.

Every array is allocated, sliced and transposed once, when the step is loaded, so a run
does nothing but call bound ufuncs: views cost nothing, buffers are reused by liveness,
gradients and new parameters are written straight into their arenas.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import attrs
import numpy as np
from numpy.typing import NDArray

from tgdsl.dtypes import NUMPY
from tgdsl.errors import DeviceError
from tgdsl.ir import Graph, Node
from tgdsl.ops.leaves import leaves
from tgdsl.optim.step import ArenaLayout, StepGraphs
from tgdsl.passes import lower
from tgdsl.program import StepData

from . import numpy_conv as numpy_conv  # registers its calls
from .numpy_compile import Calls, compile_calls
from .numpy_dataset import NumpyDataset, gather
from .numpy_update import compile_update

KEPT: Final = frozenset({"conv2d", "conv2d_input", "conv2d_weight", "window_sum", "scatter_rows", "pick", "concat"})
"""Composite ops whose reference, or calls of their own, are faster than their parts."""


@attrs.define
class NumpyTicket:
    """A step that has run: NumPy computes at once, so there is never anything to wait for."""

    results: Mapping[str, NDArray[Any]] | Exception

    def done(self) -> bool:
        """Always."""
        return True

    def read(self) -> Mapping[str, NDArray[Any]]:
        """Its results; raises what went wrong in the step or in one before it."""
        if isinstance(self.results, Exception):
            raise self.results
        return self.results


@attrs.define(eq=False)
class NumpyStore:
    """Flat f32 arenas in host memory."""

    arenas: dict[str, NDArray[np.float32]]

    def sizes(self) -> Mapping[str, int]:
        """Elements per arena."""
        return {name: a.size for name, a in self.arenas.items()}

    def read(self, arena: str) -> NDArray[np.float32]:
        """A copy of an arena."""
        return self._arena(arena).copy()

    def write(self, arena: str, values: NDArray[np.float32]) -> None:
        """Replace an arena."""
        np.copyto(self._arena(arena), values.reshape(-1), casting="no")

    def _arena(self, name: str) -> NDArray[np.float32]:
        if name not in self.arenas:
            raise DeviceError(f"no arena {name!r}; there are: {', '.join(self.arenas) or 'none'}")
        return self.arenas[name]

    def views(self, arena: str, layout: ArenaLayout) -> dict[str, NDArray[np.float32]]:
        """The segments of an arena, as arrays that share its memory."""
        return {
            name: self.arenas[arena][s.offset : s.offset + s.size].reshape(s.shape)
            for name, s in layout.segments.items()
        }

    def destroy(self) -> None:
        """Forget the arenas."""
        self.arenas.clear()


class NumpyExecutable:
    """A step compiled against a store."""

    def __init__(self, step: StepGraphs, store: NumpyStore) -> None:
        """Make every buffer and bind every call."""
        step = _expanded(step)
        graph = step.graph
        self._inputs = {n: np.zeros(v.shape, NUMPY[v.dtype]) for n, v in leaves(graph, "input").items()}
        self._scalars: dict[str, list[NDArray[Any]]] = {}
        self._key = np.zeros(2, np.int64)
        states = store.views("state", step.state) if step.state.size else {}
        leaf = _Leaves(self._scalars, {**_params(step, store), **self._inputs}, states)
        targets = [(step.grads[n].node, a) for n, a in _grads(step, store).items()]
        updates = [(t.node, states[n], leaves(graph, "state")[n]) for n, t in graph.updates.items()]
        self._forward = compile_calls(
            [t.node for t in step.results.values()],
            leaf.of(graph),
            targets,
            updates,
            self._key,
        )
        self._results = {n: self._forward.arrays[t.node.id] for n, t in step.results.items()}
        self._update = _compile_update(step, store, self._scalars)

    @property
    def kernel_count(self) -> int:
        """NumPy calls per step."""
        return self._forward.count + (self._update.count if self._update else 0)

    @property
    def bytes_moved(self) -> int:
        """All operands read and results written, once each per call."""
        return self._forward.nbytes + (self._update.nbytes if self._update else 0)

    @property
    def bytes_planned(self) -> int:
        """Memory besides the arenas and inputs."""
        return self._forward.allocated + (self._update.allocated if self._update else 0)

    def submit(self, steps: Sequence[StepData]) -> Sequence[NumpyTicket]:
        """Run the steps; one that fails ends the submission."""
        tickets: list[NumpyTicket] = []
        with np.errstate(all="ignore"):
            for data in steps:
                try:
                    tickets.append(self._run(data))
                except Exception as error:
                    if not tickets:
                        raise
                    tickets += [NumpyTicket(error)] * (len(steps) - len(tickets))
                    break
        return tickets

    def _run(self, data: StepData) -> NumpyTicket:
        if data.pick is not None:
            gather(data.pick, self._inputs)
        else:
            for name, array in self._inputs.items():
                np.copyto(array, data.inputs[name], casting="no")
        for name, value in data.scalars.items():
            for scalar in self._scalars.get(name, ()):
                scalar[()] = value
        self._key[:] = data.scalars.get("key0", 0), data.scalars.get("key1", 0)
        self._forward.run()
        results = {name: a.copy() for name, a in self._results.items()}
        self._forward.commit()
        if self._update is not None:
            self._update.run()
            self._update.commit()
        return NumpyTicket(results)

    def destroy(self) -> None:
        """Nothing to free but memory."""


def _expanded(step: StepGraphs) -> StepGraphs:
    """The step with composite ops in parts, which share work and reuse buffers, but for `KEPT`."""
    old = step.graph
    tensors = [*step.results.values(), *step.grads.values(), *old.updates.values()]
    graph, nodes = lower(old, [t.node for t in tensors], keep=KEPT)
    made = iter([graph.tensor(n) for n in nodes])
    results = {name: next(made) for name in step.results}
    grads = {name: next(made) for name in step.grads}
    graph.updates = {name: next(made) for name in old.updates}
    # Inputs that nothing reads must still be accepted.
    graph.leaves = {key: graph.leaves.get(key, node) for key, node in old.leaves.items()}
    return attrs.evolve(step, graph=graph, results=results, grads=grads)


@attrs.frozen
class _Leaves:
    """The array behind each leaf of a graph."""

    scalars: dict[str, list[NDArray[Any]]]
    named: Mapping[str, NDArray[Any]]
    states: Mapping[str, NDArray[Any]]

    def of(self, graph: Graph) -> Callable[[Node], NDArray[Any]]:
        def find(node: Node) -> NDArray[Any]:
            name = node.attrs["name"]
            if node.op.name == "scalar":
                self.scalars.setdefault(name, []).append(np.zeros((), NUMPY[node.dtype]))
                return self.scalars[name][-1]
            return self.states[name] if node.op.name == "state" else self.named[name]

        return find


def _params(step: StepGraphs, store: NumpyStore) -> dict[str, NDArray[np.float32]]:
    trainable = store.views("params", step.params) if step.params.size else {}
    return {**trainable, **(store.views("frozen", step.frozen) if step.frozen.size else {})}


def _grads(step: StepGraphs, store: NumpyStore) -> dict[str, NDArray[np.float32]]:
    return store.views("grads", step.params) if step.grads else {}


def _compile_update(step: StepGraphs, store: NumpyStore, scalars: dict[str, list[NDArray[Any]]]) -> Calls | None:
    if step.update is None:
        return None
    nodes = leaves(step.update, "state")
    arenas = {name: store.arenas[name].reshape(node.shape) for name, node in nodes.items()}
    numbers = {n: np.zeros((), NUMPY[s.dtype]) for n, s in leaves(step.update, "scalar").items()}
    for name, number in numbers.items():
        scalars.setdefault(name, []).append(number)
    return compile_update(step.update, arenas, numbers)


class NumpyEngine:
    """NumPy on the host."""

    name: Literal["numpy"] = "numpy"

    @property
    def description(self) -> str:
        """`NumPy 2.4.6 on 2 cores`."""
        return f"NumPy {np.__version__} on {os.cpu_count()} cores"

    def allocate(self, arenas: Mapping[str, int]) -> NumpyStore:
        """Zeroed arenas."""
        return NumpyStore({name: np.zeros(size, np.float32) for name, size in arenas.items()})

    def load(self, step: StepGraphs, store: NumpyStore) -> NumpyExecutable:
        """Compile a step."""
        return NumpyExecutable(step, store)

    def keep(self, rows: Mapping[str, NDArray[Any]], whole: Mapping[str, NDArray[Any]]) -> NumpyDataset:
        """A copy of a data set: arrays of which steps pick rows, and arrays that every step reads."""
        return NumpyDataset(rows, whole)
