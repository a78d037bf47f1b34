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
        self._device = device
        self._sizes = dict(arenas)
        self._buffers: dict[str, Any] = {}
        self._alive = True
        try:
            for name, size in arenas.items():
                self._buffers[name] = device.buffer(f"arena {name}", 4 * size)
        except BaseException:
            self.destroy()
            raise

    def sizes(self) -> Mapping[str, int]:
        """Elements per arena."""
        return self._sizes

    def require_alive(self) -> None:
        """Refuse what comes after `destroy`."""
        if not self._alive:
            raise HandleError("the store was destroyed")

    def buffers(self) -> Mapping[str, Any]:
        """The device buffers by arena."""
        self.require_alive()
        return self._buffers

    def _buffer(self, arena: str) -> Any:
        self.require_alive()
        if arena not in self._buffers:
            raise InputError(f"there is no arena {arena!r}; there are: {', '.join(self._sizes) or 'none'}")
        return self._buffers[arena]

    def read(self, arena: str) -> NDArray[np.float32]:
        """A copy of an arena after everything submitted so far."""
        with self._device.lock:
            buffer = self._buffer(arena)
            size = self._sizes[arena]
            return self._device.read(buffer, 0, 4 * size).view(np.float32) if size else np.zeros(0, np.float32)

    def write(self, arena: str, values: NDArray[np.float32]) -> None:
        """Replace an arena, after everything submitted so far."""
        with self._device.lock:
            buffer = self._buffer(arena)
            flat = np.ascontiguousarray(values, np.float32).reshape(-1)
            if flat.size != self._sizes[arena]:
                raise InputError(f"arena {arena}: expected {self._sizes[arena]} elements, got {flat.size}")
            self._device.write(buffer, 0, flat)

    def destroy(self) -> None:
        """Free the memory."""
        with self._device.lock:
            self._alive = False
            for buffer in self._buffers.values():
                buffer.destroy()
            self._buffers = {}
