"""Results of steps on their way back, only when somebody looks.

Each step copies its small results into a ring on the device; one mapping then serves every
unread step at once. A step whose ring place is about to be reused is read first, if anybody
still holds its ticket. Large results get a staging buffer per submission.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tgdsl.errors import DeviceError, InputError
from tgdsl.program import Program, Slot

from .calls import Copy
from .device import Device
from .device import Mapping as DeviceMapping

SMALL = 1024
"""Bytes of results per step up to which the ring is used."""

RING = 1024
"""Steps that the ring holds."""

_AS = {"f32": np.float32, "i32": np.int32}


class DeviceTicket:
    """One submitted step."""

    __slots__ = ("__weakref__", "_readback", "_values", "place")

    def __init__(self, readback: Readback, place: int) -> None:
        """Made by `Readback`."""
        self._readback: Readback | None = readback
        self.place = place
        self._values: Mapping[str, NDArray[Any]] | BaseException | None = None

    def resolve(self, values: Mapping[str, NDArray[Any]] | BaseException) -> None:
        """Take the results, or what went wrong."""
        self._values, self._readback = values, None

    def done(self) -> bool:
        """Whether its results can be read without waiting."""
        return self._readback is None or self._readback.arrived(self)

    def read(self) -> Mapping[str, NDArray[Any]]:
        """Wait for the step and return its results by name."""
        if self._readback is not None:
            self._readback.wait(self)
        if isinstance(self._values, BaseException):
            raise self._values
        assert self._values is not None
        return self._values


class Readback:
    """Where the results of one program's steps go."""

    def __init__(self, device: Device, program: Program) -> None:
        """Lay the results of a step side by side."""
        self.device = device
        self.layout: list[tuple[str, Slot, int]] = []
        self.origins = program.origins
        at = 0
        for name, slot in program.outputs.items():
            self.layout.append((name, slot, at))
            at += max(4, 4 * int(np.prod(slot.shape)))
        self.nbytes = max(4, at)
        self.small = self.nbytes <= SMALL
        self.ring = device.buffer("results", RING * self.nbytes) if self.small else None
        self.staging = device.buffer("results", RING * self.nbytes, staging=True) if self.small else None
        self.next = 0
        self.unread: dict[int, weakref.ref[DeviceTicket]] = {}
        self.coming: tuple[DeviceMapping, dict[int, weakref.ref[DeviceTicket]], int] | None = None
        self.big: dict[int, tuple[Any, DeviceMapping | None]] = {}

    def admit(self, count: int) -> list[DeviceTicket]:
        """Tickets for the next steps; their places are free afterwards."""
        tickets: list[DeviceTicket] = []
        for _ in range(count):
            place = self.next % RING
            self.next += 1
            old = self.unread.get(place)
            if self.small and old is not None and old() is not None:
                self._fetch_all()
            ticket = DeviceTicket(self, place if self.small else self.next)
            self.unread[ticket.place] = weakref.ref(ticket)
            tickets.append(ticket)
        return tickets

    def copies(self, tickets: Sequence[DeviceTicket], ranges: Any) -> list[Copy]:
        """The copies of a submission; `ranges(slot, step)` says where a result lies."""
        out: list[Copy] = []
        for step, ticket in enumerate(tickets):
            if self.small:
                target, base = self.ring, ticket.place * self.nbytes
            else:
                target, base = self.device.buffer("results", self.nbytes, staging=True), 0
                self.big[ticket.place] = (target, None)
                weakref.finalize(ticket, self._forget, ticket.place)
            for _, slot, at in self.layout:
                buffer, offset = ranges(slot, step)
                out.append(Copy(buffer, offset, target, base + at, max(4, 4 * int(np.prod(slot.shape)))))
        return out

    def _forget(self, place: int) -> None:
        self.big.pop(place, None)
        self.unread.pop(place, None)

    def arrived(self, ticket: DeviceTicket) -> bool:
        """Whether a ticket's results are here; starts to fetch them if nobody has."""
        with self.device.lock:
            if not self.small:
                return self._big_mapping(ticket).done()
            self._begin()
            if self.coming is not None and self.coming[0].done():
                self._finish()
            return ticket._readback is None

    def wait(self, ticket: DeviceTicket) -> None:
        """Fetch a ticket's results."""
        with self.device.lock:
            if ticket._readback is None:
                return
            if not self.small:
                words = self._big_mapping(ticket).read()
                self._forget(ticket.place)
                ticket.resolve(self._values(words))
                return
            self._fetch_all()

    def _big_mapping(self, ticket: DeviceTicket) -> DeviceMapping:
        staging, mapping = self.big[ticket.place]
        if mapping is None:
            mapping = self.device.map(staging, self.nbytes)
            self.big[ticket.place] = (staging, mapping)
        return mapping

    def _fetch_all(self) -> None:
        self._begin()
        while self.coming is not None:
            self._finish()
            self._begin()

    def _begin(self) -> None:
        if self.coming is not None:
            return
        live = {p: r for p, r in self.unread.items() if r() is not None}
        self.unread.clear()
        if not live:
            return
        first, last = min(live), max(live)
        nbytes = (last - first + 1) * self.nbytes
        self.device.submit((), [Copy(self.ring, first * self.nbytes, self.staging, 0, nbytes)])
        self.coming = (self.device.map(self.staging, nbytes), live, first)

    def _finish(self) -> None:
        assert self.coming is not None
        mapping, live, first = self.coming
        self.coming = None
        try:
            words = mapping.read()
        except DeviceError as error:
            for ref in live.values():
                ticket = ref()
                if ticket is not None:
                    ticket.resolve(error)
            raise
        per = self.nbytes // 4
        for place, ref in live.items():
            ticket = ref()
            if ticket is not None:
                ticket.resolve(self._values(words[(place - first) * per : (place - first + 1) * per]))

    def _values(self, words: NDArray[np.uint32]) -> Mapping[str, NDArray[Any]] | BaseException:
        out: dict[str, NDArray[Any]] = {}
        for name, slot, at in self.layout:
            n = int(np.prod(slot.shape))
            part = words[at // 4 : at // 4 + n]
            array: NDArray[Any] = part != 0 if slot.dtype == "bool" else part.view(_AS[slot.dtype])
            out[name] = array.reshape(slot.shape).copy()
        code = int(out.pop("flag", np.zeros((), np.int32)))
        if code:
            return InputError(self.origins.get(f"flag:{code}", "an index is out of range"))
        return out

    def settle(self) -> None:
        """Fetch everything that somebody still holds a ticket for."""
        with self.device.lock:
            if self.small:
                self._fetch_all()
                return
            for ref in list(self.unread.values()):
                ticket = ref()
                if ticket is not None:
                    self.wait(ticket)

    def destroy(self) -> None:
        """Free the buffers."""
        for buffer in (self.ring, self.staging):
            if buffer is not None:
                buffer.destroy()
