"""Where the buffers of a program lie on the device.

Buffers that exist once per step slot are gathered into few: small inputs and scalars into one,
so that the inputs of a whole submission are one write, and small results into one, so that
they are one copy. A buffer that a kernel writes is never gathered with one that a kernel
reads, because both may be bound in one dispatch, and then WebGPU wants them to be different.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from tgdsl.errors import DeviceError
from tgdsl.program import Buffer, Program, Slot, aligned

from .device import Device, Limits

GATHERED: Final = 32 << 10
"""Bytes up to which a buffer is gathered; a larger input is written from the caller's array."""

STEP_MEMORY: Final = 256 << 20
"""Bytes of all step slots together; a program with large inputs or results gets fewer slots."""


@attrs.define(eq=False)
class Rows:
    """A device buffer with one row per step slot."""

    name: str
    stride: int = 0
    native: Any = None


class Placement:
    """The device buffers of one program.

    Attributes:
        slots: Steps that one submission may hold.
        rows: Of each step buffer of the program, the rows that it lies in and its offset there.
        whole: Of every other buffer of the program, the device buffer.
    """

    def __init__(self, device: Device, program: Program, arenas: Mapping[str, Any], slots: int) -> None:
        """Allocate.

        Args:
            device: Where.
            program: What for.
            arenas: The device buffers of the store.
            slots: How many steps one submission should hold.

        Raises:
            DeviceError: If something is larger than the device allows; nothing is allocated then.
        """
        self.rows: dict[int, tuple[Rows, int]] = {}
        self.whole: dict[int, Any] = {}
        self._owned: list[Any] = []
        self._gather(program)
        every = {id(rows): rows for rows, _ in self.rows.values()}.values()
        self.slots = max(1, min(slots, STEP_MEMORY // max(1, sum(rows.stride for rows in every))))
        check_sizes(device.limits, str(device.info["device"]), program)
        try:
            for rows in every:
                rows.native = self._own(device.buffer(rows.name, self.slots * rows.stride))
            for i, b in enumerate(program.buffers):
                if b.kind != "step":
                    self.whole[i] = self._arena(arenas, b) if b.kind == "arena" else self._scratch(device, b)
        except BaseException:
            self.destroy()
            raise

    def _gather(self, program: Program) -> None:
        uploaded = {s.buffer for s in (*program.inputs.values(), *program.scalars.values())}
        results = {s.buffer for s in program.outputs.values()}
        bound = [b for d in program.dispatches for b in d.bindings]
        written = {b.buffer for b in bound if b.writable}
        read = {b.buffer for b in bound if not b.writable}
        shared = {"inputs": uploaded - written, "results": results & written - read - uploaded}
        found: dict[str, Rows] = {}
        for i, b in enumerate(program.buffers):
            if b.kind != "step":
                continue
            fitting = [name for name, members in shared.items() if i in members and b.nbytes <= GATHERED]
            rows = found.setdefault(fitting[0], Rows(fitting[0])) if fitting else Rows(b.name)
            self.rows[i] = rows, rows.stride
            rows.stride += aligned(b.nbytes)

    def _own(self, buffer: Any) -> Any:
        self._owned.append(buffer)
        return buffer

    def _arena(self, arenas: Mapping[str, Any], b: Buffer) -> Any:
        found = arenas.get(b.name)
        if found is None or found.size < b.nbytes:
            has = "none" if found is None else f"{found.size:,} bytes"
            raise DeviceError(f"the program needs an arena {b.name} of {b.nbytes:,} bytes, the store has {has}")
        return found

    def _scratch(self, device: Device, b: Buffer) -> Any:
        made = self._own(device.buffer(b.name, b.nbytes))
        if b.data is not None:
            device.write(made, 0, b.data)
        return made

    def find(self, buffer: int, step: int) -> tuple[Any, int]:
        """The device buffer and the offset at which a buffer of the program begins in a step slot."""
        if buffer in self.whole:
            return self.whole[buffer], 0
        rows, at = self.rows[buffer]
        return rows.native, step * rows.stride + at

    def in_row(self, slot: Slot) -> tuple[Rows, int]:
        """The rows that hold an input or result, and its offset in each."""
        rows, at = self.rows[slot.buffer]
        return rows, at + slot.offset

    def destroy(self) -> None:
        """Free everything but the arenas."""
        for buffer in self._owned:
            buffer.destroy()
        self._owned.clear()


def check_sizes(limits: Limits, name: str, program: Program) -> None:
    """Refuse what the device cannot hold, by the name that the user knows it by."""
    for b in program.buffers:
        if b.nbytes > limits.max_buffer_bytes:
            raise _too_large(program, b, b.nbytes, limits.max_buffer_bytes, f"one buffer on {name}")
    for d in program.dispatches:
        if len(d.bindings) > limits.max_bindings:
            most = f"{limits.max_bindings} that {name} allows"
            raise DeviceError(f"kernel of {d.origin} binds {len(d.bindings)} buffers, more than the {most}")
        if max(d.groups) > limits.max_groups_per_dim:
            most = f"{limits.max_groups_per_dim:,} per axis that {name} allows"
            raise DeviceError(f"kernel of {d.origin} needs {d.groups} workgroups, more than the {most}")
        for binding in d.bindings:
            if binding.nbytes > limits.max_binding_bytes:
                b = program.buffers[binding.buffer]
                raise _too_large(program, b, binding.nbytes, limits.max_binding_bytes, f"one binding on {name}")


def _too_large(program: Program, b: Buffer, nbytes: int, most: int, where: str) -> DeviceError:
    origin = program.origins.get(b.name)
    what = f"buffer {b.name}" + (f" ({origin})" if origin else "")
    return DeviceError(
        f"{what} needs {nbytes:,} bytes, more than the {most:,} of {where}",
        hint="a smaller batch, or the model in smaller parts",
    )
