"""The calls of every step, through the binding's public API.

They are behind a protocol because `native` does the same several times faster; this version
works with every release of the binding and says what the other one must do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tgdsl.errors import DeviceError

Words: TypeAlias = NDArray[np.uint32]


class Copy(NamedTuple):
    """A range of one buffer to copy into another."""

    source: Any
    at: int
    target: Any
    to: int
    nbytes: int


class Command(NamedTuple):
    """One dispatch made ready, with the native handles of what it uses (0 where they are not)."""

    pipeline_handle: int
    group_handle: int
    groups: tuple[int, int, int]
    pipeline: Any
    bind_group: Any


class Arrival(Protocol):
    """A staging buffer on its way to the host."""

    def done(self) -> bool:
        """Whether it is there, or lost; never waits."""
        ...

    def pause(self, seconds: float) -> None:
        """Let about that much time pass, less if it arrives; zero means to be asked again at once."""
        ...

    def take(self) -> Words:
        """Copy its words out and unmap it, once it is done."""
        ...


class Calls(Protocol):
    """What a step asks of the device."""

    def command(self, pipeline: Any, bind_group: Any, groups: tuple[int, int, int]) -> Command:
        """Make a dispatch ready."""
        ...

    def encode(self, before: Sequence[Copy], commands: Iterable[Command], after: Sequence[Copy]) -> Any:
        """Record copies, one pass of dispatches, and copies; what is returned is run once, or forgotten."""
        ...

    def run(self, recorded: Any) -> None:
        """Submit what was recorded."""
        ...

    def forget(self, recorded: Any) -> None:
        """Free what was recorded and is not going to run."""
        ...

    def write(self, buffer: Any, offset: int, data: NDArray[Any]) -> None:
        """Copy a contiguous array into a buffer, after everything submitted so far."""
        ...

    def map(self, staging: Any, nbytes: int) -> Arrival:
        """Begin to map the start of a staging buffer, after everything submitted so far."""
        ...


class PublicCalls:
    """The calls as the binding documents them."""

    def __init__(self, device: Any) -> None:
        """Use a device of the binding."""
        self._device = device
        # The binding has no public way to ask whether a mapping is done; waiting elsewhere is one.
        self._waiting = ThreadPoolExecutor(1, thread_name_prefix="tgdsl-map")

    def command(self, pipeline: Any, bind_group: Any, groups: tuple[int, int, int]) -> Command:
        """See `Calls`."""
        return Command(0, 0, groups, pipeline, bind_group)

    def encode(self, before: Sequence[Copy], commands: Iterable[Command], after: Sequence[Copy]) -> Any:
        """See `Calls`."""
        encoder = self._device.create_command_encoder()
        for copy in before:
            encoder.copy_buffer_to_buffer(*copy)
        compute = encoder.begin_compute_pass()
        last = None
        for command in commands:
            if command.pipeline is not last:
                last = command.pipeline
                compute.set_pipeline(last)
            compute.set_bind_group(0, command.bind_group)
            compute.dispatch_workgroups(*command.groups)
        compute.end()
        for copy in after:
            encoder.copy_buffer_to_buffer(*copy)
        return encoder.finish()

    def run(self, recorded: Any) -> None:
        """See `Calls`."""
        self._device.queue.submit([recorded])

    def forget(self, recorded: Any) -> None:
        """See `Calls`; the binding frees it with the object."""

    def write(self, buffer: Any, offset: int, data: NDArray[Any]) -> None:
        """See `Calls`."""
        self._device.queue.write_buffer(buffer, offset, data)

    def map(self, staging: Any, nbytes: int) -> Arrival:
        """See `Calls`."""
        promise = staging.map_async("READ", 0, nbytes)
        return _PublicArrival(staging, nbytes, self._waiting.submit(promise.sync_wait))


class _PublicArrival:
    def __init__(self, staging: Any, nbytes: int, future: Any) -> None:
        self._staging, self._nbytes, self._future = staging, nbytes, future

    def done(self) -> bool:
        return bool(self._future.done())

    def pause(self, seconds: float) -> None:
        # Asking again at once would keep the interpreter from the thread that waits for the device.
        wait([self._future], max(1e-3, seconds))

    def take(self) -> Words:
        if self._future.exception() is not None:
            raise DeviceError(f"results could not be read back: {self._future.exception()}")
        words = np.frombuffer(self._staging.read_mapped(0, self._nbytes, copy=False), np.uint32).copy()
        self._staging.unmap()
        return words
