"""A program made ready: buffers, pipelines and bind groups once, then only commands.

Inputs and scalars of all step slots lie in one buffer, so a submission of many steps is one
write, one pass and one submit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tgdsl.errors import DeviceError, HandleError, InputError
from tgdsl.program import Program, Slot, StepData

from .calls import Command
from .device import Device, aligned_slot
from .readback import DeviceTicket, Readback
from .store import DeviceStore

IN_FLIGHT = 32
"""Submissions between two fences; at most two such rounds run ahead of the device."""

_NUMPY = {"f32": np.float32, "i32": np.int32, "bool": np.uint32}


class DeviceExecutable:
    """A step made ready to run against a store."""

    def __init__(self, device: Device, program: Program, store: DeviceStore, slots: int) -> None:
        """Allocate, compile and bind."""
        self.device, self.program, self.store = device, program, store
        self.slots = slots
        _check_sizes(device, program)
        self._place_buffers()
        self._pipelines = [device.pipeline(k) for k in program.kernels]
        self._commands = [[self._command(i, 0) for i in range(len(program.dispatches))]]
        self.readback = Readback(device, program)
        self._since_fence = 0
        self._fence: Any = None
        self._fence_buffer = device.buffer("fence", 4, staging=True)
        self._alive = True

    def _place_buffers(self) -> None:
        device, program = self.device, self.program
        uploaded = {s.buffer for s in program.inputs.values()} | {s.buffer for s in program.scalars.values()}
        # A buffer that a kernel writes may not be bound for reading in the same dispatch, so it stays alone.
        written = {b.buffer for d in program.dispatches for b in d.bindings if b.writable}
        self.stride, self.upload_at = 0, {}
        for i, b in enumerate(program.buffers):
            if b.kind == "step" and i in uploaded and i not in written:
                self.upload_at[i] = self.stride
                self.stride += aligned_slot(b.nbytes)
        self.host = np.zeros((self.slots, max(1, self.stride // 4)), np.uint32)
        self.upload = device.buffer("inputs", self.host.nbytes) if self.stride else None
        self.native: list[Any] = []
        self.alone: list[int] = []
        for i, b in enumerate(program.buffers):
            if b.kind == "arena":
                self.native.append(self.store.buffer(b.name))
            elif i in self.upload_at:
                self.native.append(self.upload)
            elif b.kind == "step":
                self.native.append(device.buffer(b.name, self.slots * aligned_slot(b.nbytes)))
                if i in uploaded:
                    self.alone.append(i)
            else:
                self.native.append(device.buffer(b.name, b.nbytes))
                if b.data is not None:
                    device.write(self.native[-1], 0, b.data)
        self.alone_host = {
            i: np.zeros((self.slots, aligned_slot(program.buffers[i].nbytes) // 4), np.uint32) for i in self.alone
        }

    def _base(self, buffer: int, slot: int) -> int:
        """Where a step slot's part of a program's buffer begins."""
        if buffer in self.upload_at:
            return slot * self.stride + self.upload_at[buffer]
        b = self.program.buffers[buffer]
        return slot * aligned_slot(b.nbytes) if b.kind == "step" else 0

    def _command(self, index: int, slot: int) -> Command:
        d = self.program.dispatches[index]
        ranges = [(self.native[b.buffer], self._base(b.buffer, slot) + b.offset, b.nbytes) for b in d.bindings]
        group = self.device.bind_group(self.program.kernels[d.kernel], ranges)
        return self.device.command(self._pipelines[d.kernel], group, d.groups)

    def _slot_commands(self, slot: int) -> list[Command]:
        """The commands of a step slot; bind groups that touch no step buffer are shared."""
        while len(self._commands) <= slot:
            s, first = len(self._commands), self._commands[0]
            made: list[Command] = []
            for i, d in enumerate(self.program.dispatches):
                stepwise = any(self.program.buffers[b.buffer].kind == "step" for b in d.bindings)
                made.append(self._command(i, s) if stepwise else first[i])
            self._commands.append(made)
        return self._commands[slot]

    def submit(self, steps: Sequence[StepData]) -> Sequence[DeviceTicket]:
        """Run the steps in order, up to `slots` of them per submission; copies the arrays."""
        with self.device.lock:
            if not self._alive:
                raise HandleError("the executable was destroyed")
            for step in steps:
                self._check(step)
            tickets: list[DeviceTicket] = []
            for start in range(0, len(steps), self.slots):
                tickets += self._submit(steps[start : start + self.slots])
            return tickets

    def _check(self, step: StepData) -> None:
        for name, slot in self.program.inputs.items():
            if name not in step.inputs:
                raise InputError(f"input {name!r} is missing")
            if step.inputs[name].shape != slot.shape:
                raise InputError(
                    f"input {name!r}: expected {slot.dtype}{list(slot.shape)}, got {list(step.inputs[name].shape)}"
                )

    def _submit(self, steps: Sequence[StepData]) -> list[DeviceTicket]:
        tickets = self.readback.admit(len(steps))
        for slot, step in enumerate(steps):
            self._fill(slot, step)
        if self.upload is not None:
            self.device.write(self.upload, 0, self.host[: len(steps)])
        for i in self.alone:
            self.device.write(self.native[i], 0, self.alone_host[i][: len(steps)])
        commands = [c for slot in range(len(steps)) for c in self._slot_commands(slot)]
        self.device.submit(commands, self.readback.copies(tickets, self._range))
        self._hold_back()
        return tickets

    def _range(self, slot: Slot, step: int) -> tuple[Any, int]:
        return self.native[slot.buffer], self._base(slot.buffer, step) + slot.offset

    def _fill(self, slot: int, step: StepData) -> None:
        for name, place in self.program.inputs.items():
            self._words(place, slot, step.inputs[name])
        for name, place in self.program.scalars.items():
            self._words(place, slot, np.asarray(step.scalars.get(name, 0)))

    def _words(self, place: Slot, slot: int, array: NDArray[Any]) -> None:
        if place.buffer in self.upload_at:
            row, at = self.host[slot], (self.upload_at[place.buffer] + place.offset) // 4
        else:
            row, at = self.alone_host[place.buffer][slot], place.offset // 4
        words = row[at : at + array.size]
        if array.dtype == _NUMPY[place.dtype] and array.flags.c_contiguous and array.ndim:
            # Not copyto: it lets go of the interpreter lock, and a busy thread would keep it for 5 ms.
            memoryview(words.data).cast("B")[:] = memoryview(array.data).cast("B")
        else:
            np.copyto(words.view(_NUMPY[place.dtype]).reshape(array.shape), array, casting="unsafe")

    def _hold_back(self) -> None:
        """Wait for the device when it lies two rounds of submissions behind."""
        self._since_fence += 1
        if self._since_fence < IN_FLIGHT:
            return
        self._since_fence = 0
        if self._fence is not None:
            self._fence.read()
        self._fence = self.device.map(self._fence_buffer, 4)

    def settle(self) -> None:
        """Wait for the results that somebody still holds a ticket for."""
        self.readback.settle()

    def destroy(self) -> None:
        """Free the memory; tickets stay readable."""
        with self.device.lock:
            if not self._alive:
                return
            self.readback.settle()
            self._alive = False
            if self._fence is not None:
                self._fence.read()
            for b, buffer in zip(self.program.buffers, self.native, strict=True):
                if b.kind != "arena" and buffer is not self.upload:
                    buffer.destroy()
            if self.upload is not None:
                self.upload.destroy()
            self._fence_buffer.destroy()
            self.readback.destroy()
            self._commands = []


def _check_sizes(device: Device, program: Program) -> None:
    limits = device.limits
    names: Mapping[str, str] = program.origins
    for d in program.dispatches:
        for binding in d.bindings:
            if binding.nbytes > limits.max_binding_bytes:
                name = program.buffers[binding.buffer].name
                raise DeviceError(
                    f"{names.get(name, name)} ({d.origin}) needs a binding of {binding.nbytes:,} bytes, "
                    f"more than the {limits.max_binding_bytes:,} that {device.info['device']} allows"
                )
