"""A program made ready: buffers, pipelines and bind groups once, then only commands.

The steps of a submission share one encoder and one pass. How many there may be is bounded by
the slots, and by the time that they take: a driver resets a GPU that is busy for seconds.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

from tgdsl.errors import DeviceError, HandleError
from tgdsl.program import Program, StepData

from .calls import Command
from .dataset import DeviceDataset
from .device import Device
from .feed import Feed
from .placement import Placement
from .readback import RING, DeviceTicket, Results
from .store import DeviceStore
from .uploads import Uploads

LONGEST: Final = 0.25
"""Seconds that one submission should take at most."""


class DeviceExecutable:
    """A step made ready to run against a store.

    Attributes:
        slots: How many steps one submission may hold.
    """

    def __init__(self, device: Device, program: Program, store: DeviceStore, slots: int) -> None:
        """Allocate, compile and bind."""
        self.device, self.program = device, program
        self._store = store
        self.placement = Placement(device, program, store.buffers(), max(1, min(slots, RING // 2)))
        try:
            self.slots = self.placement.slots
            self._pipelines = device.pipelines(program.kernels)
            self._commands = [[self._command(i, 0) for i in range(len(program.dispatches))]]
            self._uploads = Uploads(device, program, self.placement)
            self._feeds: WeakKeyDictionary[DeviceDataset, Feed] = WeakKeyDictionary()
            self._singles: WeakKeyDictionary[Uploads | Feed, list[Command]] = WeakKeyDictionary()
            self._last_copies: list[Any] = []
            self._results = Results(device, program, self.placement)
        except BaseException:
            self.placement.destroy()
            raise
        self._paced = device.limits.software  # nobody resets a CPU
        self._alive = True

    def _command(self, index: int, step: int) -> Command:
        d = self.program.dispatches[index]
        ranges = []
        for b in d.bindings:
            native, base = self.placement.find(b.buffer, step)
            ranges.append((native, base + b.offset, b.nbytes))
        try:
            return self.device.command(self.program.kernels[d.kernel], self._pipelines[d.kernel], ranges, d.groups)
        except DeviceError as error:
            raise DeviceError(f"{error}\n  in {d.origin}") from error

    def commands(self, step: int) -> list[Command]:
        """The commands of a step slot; bind groups that touch no step buffer are shared."""
        while len(self._commands) <= step:
            made = list(self._commands[0])
            for i, d in enumerate(self.program.dispatches):
                if any(b.buffer in self.placement.rows for b in d.bindings):
                    made[i] = self._command(i, len(self._commands))
            self._commands.append(made)
        return self._commands[step]

    def submit(self, steps: Sequence[StepData]) -> Sequence[DeviceTicket]:
        """Run the steps in order, up to `slots` of them per submission; copies the arrays."""
        with self.device.lock:
            self.require_alive()
            source = self._source(steps)
            for step in steps:
                source.check(step)
            tickets: list[DeviceTicket] = []
            if len(steps) > 2 and not self._paced:
                tickets += self._pace(steps, source)
            while len(tickets) < len(steps):
                tickets += self._submit(steps[len(tickets) : len(tickets) + self.slots], source)
            return tickets

    def _source(self, steps: Sequence[StepData]) -> Uploads | Feed:
        """What brings the inputs of the steps of one call."""
        pick = steps[0].pick if steps else None
        if pick is None:
            return self._uploads
        dataset: Any = pick.dataset
        dataset.require_alive()
        feed = self._feeds.get(dataset)
        if feed is None:
            feed = self._feeds[dataset] = Feed(self.device, self.program, self.placement, dataset)
            self._last_copies = feed.pipelines  # the next data set is often of the same size
        return feed

    def _submit(self, steps: Sequence[StepData], source: Uploads | Feed) -> list[DeviceTicket]:
        first = source.write(steps)
        if len(steps) == 1:
            # Always the same list, by which results know a submission that was recorded ahead.
            single = self._singles.get(source)
            if single is None:
                single = self._singles[source] = [*first, *self.commands(0)]
            return self._results.submit(single, 1)
        commands = list(first)
        for i in range(len(steps)):
            commands += self.commands(i)
        return self._results.submit(commands, len(steps))

    def _pace(self, steps: Sequence[StepData], source: Uploads | Feed) -> list[DeviceTicket]:
        """Run two steps alone and time the second: the first may wait for the driver's compiler."""
        tickets = self._submit(steps[:1], source)
        self.device.finish()
        start = time.perf_counter()
        tickets += self._submit(steps[1:2], source)
        self.device.finish()
        self.slots = max(1, min(self.slots, int(LONGEST / (time.perf_counter() - start))))
        self._paced = True
        return tickets

    def require_alive(self) -> None:
        """Refuse what comes after `destroy`."""
        if not self._alive:
            raise HandleError("the executable was destroyed")
        self._store.require_alive()

    def destroy(self) -> None:
        """Free the memory; tickets stay readable."""
        with self.device.lock:
            if not self._alive:
                return
            self._alive = False
            self._results.destroy()
            self._commands.clear()
            self._feeds.clear()
            self._singles.clear()
            self._last_copies.clear()
            self._pipelines.clear()
            self.placement.destroy()
