"""A data set on the device, in parts that one binding can hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs
import numpy as np
from numpy.typing import NDArray

from tgdsl.errors import DeviceError, HandleError

from .device import Device

PIECE: Final = 32 << 20
"""Bytes written at once: the queue holds a copy of what is written until the next submission."""


@attrs.frozen
class Part:
    """Neighbouring rows of an array in a buffer of their own."""

    native: Any
    first: int
    rows: int


@attrs.frozen
class Field:
    """One array.

    Attributes:
        parts: Where its rows lie.
        shape: The shape of a row, or of the whole array.
        picked: Whether a step picks rows of it; otherwise it is one row, which every step reads.
    """

    parts: tuple[Part, ...]
    shape: tuple[int, ...]
    picked: bool

    @property
    def width(self) -> int:
        """Words per row."""
        return int(np.prod(self.shape))


class DeviceDataset:
    """A data set in buffers of its own.

    Attributes:
        fields: By input name.
    """

    def __init__(self, device: Device, rows: Mapping[str, NDArray[Any]], whole: Mapping[str, NDArray[Any]]) -> None:
        """Upload arrays of f32 and i32."""
        self._device = device
        self._owned: list[Any] = []
        self._alive = True
        self.fields: dict[str, Field] = {}
        try:
            for name, array in rows.items():
                self.fields[name] = Field(self._parts(name, array), array.shape[1:], picked=True)
            for name, array in whole.items():
                self.fields[name] = Field(self._parts(name, array[None]), array.shape, picked=False)
        except BaseException:
            self.destroy()
            raise

    def _parts(self, name: str, array: NDArray[Any]) -> tuple[Part, ...]:
        limits = self._device.limits
        nbytes = 4 * array[0].size
        most = min(limits.max_binding_bytes, limits.max_buffer_bytes) // nbytes
        if not most:
            where = f"the {limits.max_binding_bytes:,} of one binding on {self._device.info['device']}"
            raise DeviceError(f"data set: one row of {name} needs {nbytes:,} bytes, more than {where}")
        return tuple(self._part(name, array[i : i + most], i) for i in range(0, len(array), most))

    def _part(self, name: str, array: NDArray[Any], first: int) -> Part:
        nbytes = 4 * array[0].size
        native = self.own(self._device.buffer(f"data set: {name}", nbytes * len(array)))
        step = max(1, PIECE // nbytes)
        for at in range(0, len(array), step):
            self._device.write(native, at * nbytes, array[at : at + step])
            self._device.submit((), (), ())
        return Part(native, first, len(array))

    def own(self, buffer: Any) -> Any:
        """Free a buffer together with the data set."""
        self._owned.append(buffer)
        return buffer

    def require_alive(self) -> None:
        """Refuse what comes after `destroy`."""
        if not self._alive:
            raise HandleError("the data set was freed")

    def destroy(self) -> None:
        """Free the memory, once the steps submitted so far have read it."""
        with self._device.lock:
            self._alive = False
            for buffer in self._owned:
                buffer.destroy()
            self._owned.clear()
