"""Where values live: arenas, step slots, and a pool of scratch by liveness.

Every temporary is a buffer of its own, shared only by values whose lives do not meet: one
buffer may not be bound for reading and for writing in the same dispatch, so the output of a
kernel is placed before its inputs are freed.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from .program import Buffer, aligned


@attrs.frozen
class Place:
    """A range of a buffer that holds one value."""

    buffer: int
    offset: int
    nbytes: int


@attrs.define
class Memory:
    """The buffers of one program.

    Attributes:
        buffers: In order; a `Place` names one by position.
        places: For each storage key, where it lies.
    """

    buffers: list[Buffer] = attrs.field(factory=list)
    places: dict[str, Place] = attrs.field(factory=dict)
    live: int = 0
    most_live: int = 0
    _free: list[int] = attrs.field(factory=list)
    _arenas: dict[str, int] = attrs.field(factory=dict)

    def arena(self, name: str, elements: int) -> int:
        """The buffer of an arena."""
        if name not in self._arenas:
            self._arenas[name] = self._add(Buffer(name, max(4, 4 * elements), "arena"))
        return self._arenas[name]

    def place(self, key: str, buffer: int, offset: int, elements: int) -> None:
        """Say where `key` lies."""
        self.places[key] = Place(buffer, offset, max(4, 4 * elements))

    def step(self, key: str, name: str, elements: int) -> None:
        """Give `key` a buffer that exists once per step slot."""
        self.place(key, self._add(Buffer(name, max(4, 4 * elements), "step")), 0, elements)

    def take(self, key: str, size: int) -> None:
        """Give `key` that many bytes of scratch: the smallest free buffer that is large enough, or a new one."""
        size = max(4, -(-size // 4) * 4)
        nbytes = aligned(size)
        fitting = [i for i in self._free if self.buffers[i].nbytes >= nbytes]
        chosen = min(fitting, key=lambda i: self.buffers[i].nbytes, default=None)
        if chosen is None or self.buffers[chosen].nbytes > 4 * nbytes:
            chosen = self._grown(nbytes)
        else:
            self._free.remove(chosen)
        self.places[key] = Place(chosen, 0, size)
        self.live += nbytes
        self.most_live = max(self.most_live, self.live)

    def _grown(self, nbytes: int) -> int:
        return self._add(Buffer(f"scratch_{len(self.buffers)}", nbytes, "temp"))

    def release(self, keys: Iterable[str]) -> None:
        """Let later values use the scratch of `keys`."""
        for key in keys:
            place = self.places[key]
            if self.buffers[place.buffer].kind == "temp":
                self._free.append(place.buffer)
                self.live -= aligned(place.nbytes)

    def _add(self, buffer: Buffer) -> int:
        self.buffers.append(buffer)
        return len(self.buffers) - 1
