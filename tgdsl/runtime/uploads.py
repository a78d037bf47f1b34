"""What the steps of a submission read, on its way to the device.

Small inputs and scalars of all steps are packed on the host into rows like those on the
device and written at once. A large input is written from the caller's array, without a copy
in between. Nothing here lets go of the interpreter lock: NumPy does for copies of more than
500 elements, and a busy thread would keep it for 5 ms each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import attrs
import numpy as np
from numpy.typing import NDArray

from tgdsl.errors import InputError
from tgdsl.program import Program, Slot, StepData

from .calls import Command, Words
from .device import Device
from .placement import GATHERED, Placement, Rows
from .readback import FLAG

_STORED: Final = {"f32": np.float32, "i32": np.int32, "bool": np.uint32}
_KINDS: Final = {"f32": "f", "i32": "iu", "bool": "b"}


@attrs.frozen
class _Packed:
    """An input in a row on the host."""

    words: Words
    slot: Slot
    size: int
    at: int


class Uploads:
    """The inputs and scalars of one executable."""

    def __init__(self, device: Device, program: Program, placement: Placement) -> None:
        """Lay out the rows."""
        self._device, self._program = device, program
        self._hosts: dict[int, tuple[Rows, Words]] = {}
        self._slots = placement.slots
        self._packed: list[tuple[str, _Packed]] = []
        self._direct: list[tuple[str, Slot, Rows, int]] = []
        for name, slot in program.inputs.items():
            rows, at = placement.in_row(slot)
            size = int(np.prod(slot.shape))
            if 4 * size > GATHERED:
                self._direct.append((name, slot, rows, at))
            else:
                self._packed.append((name, _Packed(self._host(rows), slot, size, at // 4)))
        self._scalars: list[tuple[str, Words, int, bool]] = []
        given = scalars_of(program)
        for name, slot in program.scalars.items():
            rows, at = placement.in_row(slot)
            host = self._host(rows)  # also where there is but the flag, which starts at 0
            if name in given:
                self._scalars.append((name, host, at // 4, slot.dtype == "f32"))

    def _host(self, rows: Rows) -> Words:
        found = self._hosts.get(id(rows))
        if found is None:
            found = rows, np.zeros((self._slots, rows.stride // 4), np.uint32)
            self._hosts[id(rows)] = found
        return found[1]

    def check(self, step: StepData) -> None:
        """Refuse what does not fit, before anything of the call is done."""
        for name, slot in self._program.inputs.items():
            array = step.inputs.get(name)
            if array is None:
                raise InputError(f"input {name!r} is missing")
            if array.shape != slot.shape or array.dtype.kind not in _KINDS[slot.dtype]:
                got = f"{array.dtype}{list(array.shape)}"
                raise InputError(f"input {name!r}: expected {slot.dtype}{list(slot.shape)}, got {got}")
        for name, _, _, _ in self._scalars:
            check_scalar(name, step)

    def write(self, steps: Sequence[StepData]) -> Sequence[Command]:
        """Write the inputs of checked steps to the slots 0, 1, ...; no commands are needed for it."""
        for i, step in enumerate(steps):
            for name, packed in self._packed:
                _pack(packed, i, step.inputs[name])
            for name, host, at, is_float in self._scalars:
                host[i, at] = word(step.scalars[name], is_float=is_float)
            for name, slot, rows, at in self._direct:
                array = _stored(step.inputs[name], slot)
                self._device.write(rows.native, i * rows.stride + at, array)
        for rows, host in self._hosts.values():
            self._device.write(rows.native, 0, host[: len(steps)])
        return ()


def scalars_of(program: Program) -> dict[str, Slot]:
    """The scalars that the host gives; the flag is the device's own, through which kernels report."""
    return {n: s for n, s in program.scalars.items() if n != FLAG and n not in program.outputs}


def check_scalar(name: str, step: StepData) -> None:
    """Refuse a step without that scalar."""
    if name not in step.scalars:
        raise InputError(f"scalar {name!r} is missing")


def word(value: Any, *, is_float: bool) -> Any:
    """A scalar as the device stores it."""
    return np.float32(value).view(np.uint32) if is_float else int(value) & 0xFFFFFFFF


def _pack(packed: _Packed, step: int, array: NDArray[Any]) -> None:
    words = packed.words[step, packed.at : packed.at + packed.size]
    if array.dtype == _STORED[packed.slot.dtype] and array.flags.c_contiguous and array.size:
        memoryview(words.data).cast("B")[:] = array.reshape(-1).data.cast("B")
    else:
        words.view(_STORED[packed.slot.dtype]).reshape(array.shape)[...] = array


def _stored(array: NDArray[Any], slot: Slot) -> NDArray[Any]:
    """The array as the device stores it."""
    return np.ascontiguousarray(array, dtype=_STORED[slot.dtype])
