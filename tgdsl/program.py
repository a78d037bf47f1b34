"""What crosses from the compiler to a backend: pure data, and the protocols of a backend.

A `Program` is one step: buffers, kernels, dispatches, and where inputs go in and results
come out. It holds no graph, so it can be saved, compared, replayed and shipped elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import attrs
import numpy as np
from numpy.typing import NDArray

from .dtypes import DType

ALIGN = 256
"""Bytes; every binding starts at a multiple, which every adapter accepts."""


def aligned(nbytes: int) -> int:
    """`nbytes` rounded up to the alignment of a binding."""
    return -(-nbytes // ALIGN) * ALIGN


@attrs.frozen
class Buffer:
    """One device buffer.

    Attributes:
        name: For messages and headers, unique in the program.
        nbytes: Its size, a multiple of 4.
        kind: `arena` is owned by the store of that name and outlives the program;
            `step` exists once per step slot (inputs, scalars, results), so that several
            steps fit into one submission; `temp` is scratch; `constant` is uploaded once.
        data: The bytes of a constant.
    """

    name: str
    nbytes: int
    kind: Literal["arena", "step", "temp", "constant"]
    data: bytes | None = None


@attrs.frozen
class Binding:
    """A range of a buffer as one storage binding."""

    buffer: int
    offset: int
    nbytes: int
    writable: bool


@attrs.frozen
class Kernel:
    """One compute shader; kernels of equal text are one.

    Attributes:
        name: After the op and the place, for profilers.
        wgsl: The text; its entry point is `main`, its bindings are group 0.
        bindings: Per binding, whether it is writable (the layout).
        trusted: Every index is in range by construction or by proof, so the driver's
            run-time checks may be left out.
    """

    name: str
    wgsl: str
    bindings: tuple[bool, ...]
    trusted: bool = True


@attrs.frozen
class Dispatch:
    """One run of a kernel."""

    kernel: int
    bindings: tuple[Binding, ...]
    groups: tuple[int, int, int]
    origin: str = ""


@attrs.frozen
class Slot:
    """Where an input, result or scalar lies: a range of a `step` buffer."""

    buffer: int
    offset: int
    shape: tuple[int, ...]
    dtype: DType


@attrs.frozen
class Program:
    """One step.

    Attributes:
        buffers: All buffers.
        kernels: Distinct kernels.
        dispatches: In order; each sees what those before it wrote.
        inputs: Where each input is written before the step.
        scalars: Where each per-step scalar is written; 4 bytes each.
        outputs: Where each result lies after the step (`loss`, `output`, `capture:NAME`).
        origins: For messages: buffer name to the op, tensor and `file:line` behind it.
        bytes_live: What the values in scratch take when they take most; no plan of this order of
            dispatches can do with less.
    """

    buffers: tuple[Buffer, ...]
    kernels: tuple[Kernel, ...]
    dispatches: tuple[Dispatch, ...]
    inputs: Mapping[str, Slot]
    scalars: Mapping[str, Slot]
    outputs: Mapping[str, Slot]
    origins: Mapping[str, str] = attrs.field(factory=dict)
    bytes_live: int = 0

    @property
    def kernel_count(self) -> int:
        """Dispatches per step."""
        return len(self.dispatches)

    @property
    def bytes_moved(self) -> int:
        """All bindings read and written, once each per dispatch."""
        return sum(b.nbytes for d in self.dispatches for b in d.bindings)

    @property
    def bytes_planned(self) -> int:
        """Device memory of this program besides the arenas."""
        return sum(b.nbytes for b in self.buffers if b.kind != "arena")

    @property
    def bytes_scratch(self) -> int:
        """The part of it that holds values between dispatches."""
        return sum(b.nbytes for b in self.buffers if b.kind == "temp")


class Dataset(Protocol):
    """Arrays by input name that lie where the steps run, so that a step names rows instead of bringing them."""

    def destroy(self) -> None:
        """Free the memory."""
        ...


@attrs.frozen
class Pick:
    """The inputs of one step as rows of a data set, which must all exist.

    Attributes:
        dataset: Made by the engine that runs the step.
        rows: i32, one per row of the batch.
    """

    dataset: Dataset
    rows: NDArray[np.int32]


@attrs.frozen
class StepData:
    """What one step reads: arrays by input name, numbers by scalar name.

    Attributes:
        inputs: The arrays; empty where they are picked.
        scalars: The numbers.
        pick: Takes the place of `inputs`.
    """

    inputs: Mapping[str, NDArray[Any]]
    scalars: Mapping[str, float | int]
    pick: Pick | None = None


class Ticket(Protocol):
    """One submitted step."""

    def done(self) -> bool:
        """Whether its results can be read without waiting."""
        ...

    def read(self) -> Mapping[str, NDArray[Any]]:
        """Wait for the step and return its results by name; raises what went wrong in it."""
        ...


class Store(Protocol):
    """Flat f32 arenas that outlive programs: parameters, gradients, moments, states."""

    def sizes(self) -> Mapping[str, int]:
        """Elements per arena."""
        ...

    def read(self, arena: str) -> NDArray[np.float32]:
        """A copy of an arena after everything submitted so far."""
        ...

    def write(self, arena: str, values: NDArray[np.float32]) -> None:
        """Replace an arena, after everything submitted so far."""
        ...

    def destroy(self) -> None:
        """Free the memory."""
        ...


class Executable(Protocol):
    """A step made ready to run against a store."""

    def submit(self, steps: Sequence[StepData]) -> Sequence[Ticket]:
        """Run the steps in order, in one submission if the backend can; copies the arrays."""
        ...

    def destroy(self) -> None:
        """Free the memory."""
        ...


class Engine(Protocol):
    """A place to run."""

    @property
    def name(self) -> Literal["wgpu", "numpy"]:
        """Which kind it is."""
        ...

    @property
    def description(self) -> str:
        """For people: the adapter's name, its driver, and what is not available."""
        ...

    def allocate(self, arenas: Mapping[str, int]) -> Store:
        """Zeroed arenas of that many f32 elements each."""
        ...

    def keep(self, rows: Mapping[str, NDArray[Any]], whole: Mapping[str, NDArray[Any]]) -> Dataset:
        """Copy a data set to where the steps run.

        Args:
            rows: The arrays of which a step picks rows, all of one length.
            whole: The arrays that every step reads as they are.
        """
        ...
