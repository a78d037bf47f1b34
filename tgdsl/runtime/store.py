"""Arenas on the device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tgdsl.errors import HandleError, InputError

from .device import Device


class DeviceStore:
    """Flat f32 arenas, one buffer each."""

    def __init__(self, device: Device, arenas: Mapping[str, int]) -> None:
        """Allocate zeroed arenas."""
        self.device = device
        self._sizes = dict(arenas)
        self._buffers: dict[str, Any] | None = {n: device.buffer(f"arena {n}", 4 * size) for n, size in arenas.items()}

    def sizes(self) -> Mapping[str, int]:
        """Elements per arena."""
        return self._sizes

    def buffer(self, arena: str) -> Any:
        """The device buffer of an arena."""
        if self._buffers is None:
            raise HandleError("the store was destroyed")
        return self._buffers[arena]

    def read(self, arena: str) -> NDArray[np.float32]:
        """A copy of an arena after everything submitted so far."""
        with self.device.lock:
            data = self.device.read(self.buffer(arena), 0, 4 * self._sizes[arena])
            return np.frombuffer(data, np.float32).copy()

    def write(self, arena: str, values: NDArray[np.float32]) -> None:
        """Replace an arena, after everything submitted so far."""
        with self.device.lock:
            flat = np.ascontiguousarray(values, np.float32).reshape(-1)
            if flat.size != self._sizes[arena]:
                raise InputError(f"arena {arena}: expected {self._sizes[arena]} elements, got {flat.size}")
            self.device.write(self.buffer(arena), 0, flat)

    def destroy(self) -> None:
        """Free the memory."""
        with self.device.lock:
            for buffer in (self._buffers or {}).values():
                buffer.destroy()
            self._buffers = None
