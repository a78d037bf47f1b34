"""Results of steps on their way back, only when somebody looks.

Results of a step stay on the device: small ones are copied into a ring of the last 1024
steps, large ones remain in the step slots. Whatever is about to be overwritten while somebody
still holds its ticket is first copied to a staging buffer, in the same submission. Reading a
ticket fetches everything unread at once. A loop that reads each step gets its results copied
to staging by the step's own submission, which saves a second one.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs
import numpy as np
from numpy.typing import NDArray

from tgdsl.errors import DeviceError, InputError
from tgdsl.program import Program, Slot

from .calls import Arrival, Copy, Words
from .device import Device
from .placement import Placement, Rows

SMALL: Final = 4096
"""Bytes of results per step up to which the ring is used."""

RING: Final = 1024
"""Steps that the ring holds."""

OPEN: Final = 8
"""Staging buffers with unread results that may be waiting; the oldest is read when there are more."""

FLAG: Final = "flag"
"""The result in which a step reports an index that was out of range."""

Values: TypeAlias = Mapping[str, NDArray[Any]]

_AS: Final = {"f32": np.float32, "i32": np.int32}


class DeviceTicket:
    """One submitted step.

    Attributes:
        place: The row of the history that holds its results until they are fetched.
        batch: What fetches them.
    """

    __slots__ = ("__weakref__", "_results", "_values", "batch", "place")

    def __init__(self, results: Results, place: int) -> None:
        """Made by `Results`."""
        self._results: Results | None = results
        self._values: Values | Exception | None = None
        self.place = place
        self.batch: Batch | None = None

    @property
    def resolved(self) -> bool:
        """Whether the values are here."""
        return self._results is None

    def resolve(self, values: Values | Exception) -> None:
        """Take the results, or what went wrong."""
        self._values, self._results, self.batch = values, None, None

    def done(self) -> bool:
        """Whether its results can be read without waiting."""
        results = self._results
        return results is None or results.arrived(self)

    def read(self) -> Values:
        """Wait for the step and return its results by name."""
        results = self._results
        if results is not None:
            results.wait(self)
        if isinstance(self._values, Exception):
            raise self._values
        assert self._values is not None
        return self._values


@attrs.define(eq=False)
class Batch:
    """The results of some steps in one staging buffer.

    Attributes:
        staging: Where; for each source its rows one after another.
        rows: How many steps.
        tickets: Who waits, and for which row.
        arrival: Set once the copies are submitted.
    """

    staging: Any
    rows: int
    tickets: list[tuple[weakref.ref[DeviceTicket], int]]
    arrival: Arrival | None = None


@attrs.frozen
class Ahead:
    """A step that was recorded before it was asked for, with its results copied to staging.

    Attributes:
        commands: What it runs.
        staging: Where its results go.
        recorded: The submission.
    """

    commands: Any
    staging: Any
    recorded: Any


@attrs.frozen
class _Result:
    """Where a result lies: in the rows of a source, at a word."""

    name: str
    slot: Slot
    source: int
    word: int
    size: int


class Results:
    """Where the results of one executable's steps go."""

    def __init__(self, device: Device, program: Program, placement: Placement) -> None:
        """Allocate the ring, if the results are small enough for one."""
        self._device, self._origins = device, program.origins
        self._sources: list[Rows] = []
        self._results: list[_Result] = []
        for name, slot in program.outputs.items():
            rows, at = placement.in_row(slot)
            if rows not in self._sources:
                self._sources.append(rows)
            size = int(np.prod(slot.shape))
            self._results.append(_Result(name, slot, self._sources.index(rows), at // 4, size))
        self._row_bytes = sum(s.stride for s in self._sources)
        self._ring: list[Any] = []
        if self._row_bytes <= SMALL:
            self._ring = [device.buffer(f"history of {s.name}", RING * s.stride) for s in self._sources]
        self._next = 0
        self._latest: Sequence[weakref.ref[DeviceTicket]] = ()
        self._unread: list[weakref.ref[DeviceTicket]] = []
        self._open: list[Batch] = []
        self._asked = False
        self._single: Any = None
        self._ahead: Ahead | None = None

    # -- around a submission ------------------------------------------------

    def submit(self, commands: Any, count: int) -> list[DeviceTicket]:
        """Submit the commands of `count` steps with the copies around them."""
        if not self._sources:
            self._device.submit((), commands, ())
            return [self._empty() for _ in range(count)]
        first = self._next % RING if self._ring else 0
        tickets = [DeviceTicket(self, (first + i) % RING) for i in range(count)]
        rescued, before = self._rescue(first, count)
        made = [rescued] if rescued is not None else []
        ahead = self._recorded(commands, count)
        batch, after = self._returning(tickets, first, ahead)
        if batch is not None:
            made.append(batch)
        try:
            if ahead is None:
                self._device.submit(before, commands, after)
            else:
                if before:
                    self._device.submit(before, (), ())
                self._device.run(ahead.recorded)
            for batch in made:
                self._begin(batch)
        except BaseException as error:
            for batch in made:
                self._resolve(batch, error)
            raise
        self._next += count
        self._latest = [weakref.ref(t) for t in tickets]
        if not self._asked:
            self._unread += self._latest
        self._asked = False
        return tickets

    def _recorded(self, commands: Any, count: int) -> Ahead | None:
        """What was recorded ahead, if it is this submission."""
        self._single = commands if count == 1 else None
        ahead, self._ahead = self._ahead, None
        if ahead is not None and not (self._asked and ahead.commands is commands):
            self._forget(ahead)
            return None
        return ahead

    def _returning(
        self, tickets: Sequence[DeviceTicket], first: int, ahead: Ahead | None
    ) -> tuple[Batch | None, Sequence[Copy]]:
        """How the results of a submission come back, and the copies at its end."""
        if ahead is not None:
            tickets[0].batch = Batch(ahead.staging, 1, [(weakref.ref(tickets[0]), 0)])
            return tickets[0].batch, ()
        if self._asked:
            return self._stage(self._natives(), [(t, i) for i, t in enumerate(tickets)])
        return None, self._into_ring(first, len(tickets))

    def _empty(self) -> DeviceTicket:
        ticket = DeviceTicket(self, 0)
        ticket.resolve({})
        return ticket

    def _natives(self) -> list[Any]:
        return [s.native for s in self._sources]

    def _rescue(self, first: int, count: int) -> tuple[Batch | None, Sequence[Copy]]:
        """What must be copied before the places of the next steps are overwritten."""
        half = RING // 2
        if self._ring and first % half and first // half == (first + count - 1) // half:
            return None, ()  # within a half that was emptied when it was entered
        self._sweep()
        return self._gather()

    def _into_ring(self, first: int, count: int) -> list[Copy]:
        copies: list[Copy] = []
        head = min(count, RING - first)
        for source, ring in zip(self._sources, self._ring, strict=False):
            n = source.stride
            copies.append(Copy(source.native, 0, ring, first * n, head * n))
            if head < count:
                copies.append(Copy(source.native, head * n, ring, 0, (count - head) * n))
        return copies

    # -- batches ------------------------------------------------------------

    def _gather(self) -> tuple[Batch | None, Sequence[Copy]]:
        """A batch of every unread step whose ticket is alive, and the copies that fill it."""
        alive = [t for t in (ref() for ref in self._unread) if t is not None and not t.resolved]
        self._unread.clear()
        if not alive:
            return None, ()
        return self._stage(self._ring or self._natives(), [(t, t.place) for t in alive])

    def _stage(self, sources: Sequence[Any], wanted: Sequence[tuple[DeviceTicket, int]]) -> tuple[Batch, list[Copy]]:
        low, high = min(at for _, at in wanted), max(at for _, at in wanted)
        rows = high - low + 1
        batch = Batch(
            self._device.staging(rows * self._row_bytes), rows, [(weakref.ref(t), at - low) for t, at in wanted]
        )
        for ticket, _ in wanted:
            ticket.batch = batch
        return batch, self._copies(sources, low, rows, batch.staging)

    def _copies(self, sources: Sequence[Any], low: int, rows: int, staging: Any) -> list[Copy]:
        copies: list[Copy] = []
        to = 0
        for native, source in zip(sources, self._sources, strict=True):
            nbytes = rows * source.stride
            copies.append(Copy(native, low * source.stride, staging, to, nbytes))
            to += nbytes
        return copies

    def _begin(self, batch: Batch) -> None:
        batch.arrival = self._device.calls.map(batch.staging, batch.rows * self._row_bytes)
        self._open.append(batch)

    def _sweep(self) -> None:
        """Finish what has arrived and drop what nobody waits for, so that little memory is held."""
        for batch in list(self._open):
            if all(ref() is None for ref, _ in batch.tickets):
                self._open.remove(batch)
                batch.staging.destroy()
            elif batch.arrival is not None and batch.arrival.done():
                self._finish(batch)
        while len(self._open) > OPEN:
            self._complete(self._open[0])

    def _complete(self, batch: Batch) -> None:
        assert batch.arrival is not None
        self._device.wait(batch.arrival)
        self._finish(batch)

    def _finish(self, batch: Batch) -> None:
        """Hand out what has arrived; harmless when another thread has done so."""
        if batch not in self._open:
            return
        self._open.remove(batch)
        assert batch.arrival is not None
        try:
            words = batch.arrival.take()
        except DeviceError as error:
            self._resolve(batch, error)
            return
        self._device.recycle(batch.staging)
        alone = len(batch.tickets) == 1
        for ref, row in batch.tickets:
            ticket = ref()
            if ticket is not None:
                ticket.resolve(self._values(words, batch.rows, row, alone=alone))

    def _resolve(self, batch: Batch, error: BaseException) -> None:
        shown = error if isinstance(error, Exception) else DeviceError("the results were lost by an interrupt")
        for ref, _ in batch.tickets:
            ticket = ref()
            if ticket is not None:
                ticket.resolve(shown)

    def _values(self, words: Words, rows: int, row: int, *, alone: bool) -> Values | Exception:
        starts = [0]
        for source in self._sources:
            starts.append(starts[-1] + rows * source.stride // 4)
        out: dict[str, NDArray[Any]] = {}
        for r in self._results:
            at = starts[r.source] + row * self._sources[r.source].stride // 4 + r.word
            part = words[at : at + r.size]
            array: NDArray[Any] = part != 0 if r.slot.dtype == "bool" else part.view(_AS[r.slot.dtype])
            out[r.name] = array.reshape(r.slot.shape) if alone and r.size > 1 else array.reshape(r.slot.shape).copy()
        flag = out.pop(FLAG, None)
        if flag is not None and flag:
            return InputError(self._origins.get(f"{FLAG}:{int(flag)}", "an index is out of range"))
        return out

    # -- reading ------------------------------------------------------------

    def _batch_of(self, ticket: DeviceTicket) -> Batch:
        if any(ref() is ticket for ref in self._latest):
            self._asked = True  # the next submission brings its results along
        if ticket.batch is None:
            batch, copies = self._gather()
            assert batch is not None
            try:
                self._device.submit(copies, (), ())
                self._begin(batch)
            except BaseException as error:
                self._resolve(batch, error)
                raise
        assert ticket.batch is not None
        return ticket.batch

    def arrived(self, ticket: DeviceTicket) -> bool:
        """Whether a ticket's results are here; starts to fetch them if nobody has."""
        with self._device.lock:
            if not ticket.resolved:
                batch = self._batch_of(ticket)
                if batch.arrival is not None and batch.arrival.done():
                    self._finish(batch)
            return ticket.resolved

    def wait(self, ticket: DeviceTicket) -> None:
        """Fetch a ticket's results; the device is free for others meanwhile."""
        while True:
            with self._device.lock:
                if ticket.resolved:
                    return
                batch = self._batch_of(ticket)
                assert batch.arrival is not None
                if not batch.arrival.done():
                    self._record_ahead()
            self._device.wait(batch.arrival)
            with self._device.lock:
                self._finish(batch)

    def _record_ahead(self) -> None:
        """In a loop that reads every step the host would idle here; it records the next step instead."""
        if not self._asked or self._single is None or self._ahead is not None:
            return
        staging = self._device.staging(self._row_bytes)
        try:
            copies = self._copies(self._natives(), 0, 1, staging)
            self._ahead = Ahead(self._single, staging, self._device.encode((), self._single, copies))
        except DeviceError:
            self._device.recycle(staging)  # the step itself is going to say what is wrong

    def _forget(self, ahead: Ahead) -> None:
        self._device.calls.forget(ahead.recorded)
        self._device.recycle(ahead.staging)

    def settle(self) -> None:
        """Fetch everything that somebody still holds a ticket for."""
        batch, copies = self._gather()
        if batch is not None:
            self._device.submit(copies, (), ())
            self._begin(batch)
        self._asked = False
        for open_ in list(self._open):
            if any(ref() is not None for ref, _ in open_.tickets):
                self._complete(open_)
        self._sweep()

    def destroy(self) -> None:
        """Free the ring; tickets stay readable."""
        self.settle()
        ahead, self._ahead, self._single = self._ahead, None, None
        if ahead is not None:
            self._forget(ahead)
        for buffer in self._ring:
            buffer.destroy()
