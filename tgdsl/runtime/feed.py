"""From a data set on the device to the input slots of an executable.

The kernels of a step do not gather. One dispatch per input copies the rows of *all* steps of a
submission into their slots, and the program then runs as if they had been uploaded. The copy
reads and writes a batch once (0.8 MB for 128 rows of 784: 0.2 us at the 4 TB/s of a data-centre GPU).
A gather inside of the kernels would put an index before every load of every kernel that reads
an input, forwards and backwards, for each tile anew, and forbid wide loads there; a copy inside
of the program would cost every step a dispatch per input, which a submission of 16 steps now
pays once. And the program stays the one of `step`: nothing is compiled twice, and training is
equal to the bit whichever way the batches come.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

import attrs
import numpy as np

from tgdsl.errors import InputError
from tgdsl.program import Kernel, Pick, Program, StepData

from .calls import Command, Words
from .dataset import DeviceDataset, Field
from .device import Device
from .placement import Placement, Rows
from .uploads import check_scalar, scalars_of, word

THREADS: Final = 256
GROUPS: Final = 1024
"""Workgroups per step at most; their threads then copy several elements each."""

COPY: Final = """// {name}: to the slots of the steps of a submission
@group(0) @binding(0) var<storage, read> given: array<u32>;
@group(0) @binding(1) var<storage, read> table: array<{unit}>;
@group(0) @binding(2) var<storage, read_write> slots: array<{unit}>;
@compute @workgroup_size({threads})
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {{
  for (var i = id.x; i < {size}u; i += groups.x * {threads}u) {{
    let to = id.y * {stride}u + {at}u + i;
    {body}
  }}
}}
"""

GIVEN: Final = "slots[to] = given[id.y * {given}u + {first}u + i];"
WHOLE: Final = "slots[to] = table[i];"
# A row before the part wraps around to a large number, so one comparison tells.
ROWS: Final = """let row = given[id.y * {given}u + {first}u + i / {width}u] - {start}u;
    if (row < {rows}u) {{ slots[to] = table[row * {width}u + i % {width}u]; }}"""


@attrs.frozen
class _Target:
    """A place in each row of a buffer, in words."""

    rows: Rows
    at: int
    size: int


@attrs.frozen
class _Copy:
    """One dispatch: its kernel, what it binds, its workgroups per step."""

    kernel: Kernel
    ranges: Sequence[tuple[Any, int, int]]
    groups: int


class Feed:
    """The copies for one executable and one data set.

    What the host gives is a row per step: the tables of scalars, then the numbers of the rows.

    Attributes:
        pipelines: Of its kernels; whoever holds them saves the next feed of that shape from compiling.
    """

    def __init__(self, device: Device, program: Program, placement: Placement, dataset: DeviceDataset) -> None:
        """Make the kernels and bind them."""
        self._device, self._slots = device, placement.slots
        self._batch = _batch_size(program, dataset)
        tables = {s.buffer: program.buffers[s.buffer].nbytes // 4 for s in program.scalars.values()}
        starts = {b: sum(list(tables.values())[:i]) for i, b in enumerate(tables)}
        self._scalars = [
            (name, starts[slot.buffer] + slot.offset // 4, slot.dtype == "f32")
            for name, slot in scalars_of(program).items()
        ]
        self._first = sum(tables.values())
        self._host: Words = np.zeros((placement.slots, self._first + self._batch), np.uint32)
        self._native = dataset.own(device.buffer("picked rows", self._host.nbytes))
        copies: list[_Copy] = []
        for buffer, words in tables.items():
            rows, at = placement.rows[buffer]
            copies.append(self._table(_Target(rows, at // 4, words), starts[buffer]))
        for name, slot in program.inputs.items():
            rows, at = placement.in_row(slot)
            copies += self._input(name, dataset.fields[name], _Target(rows, at // 4, math.prod(slot.shape)))
        self.pipelines = device.pipelines([c.kernel for c in copies])
        self._commands = [
            device.command(c.kernel, pipeline, c.ranges, (c.groups, 1, 1))
            for c, pipeline in zip(copies, self.pipelines, strict=True)
        ]

    # -- kernels --------------------------------------------------------------

    def _table(self, target: _Target, first: int) -> _Copy:
        body = GIVEN.format(given=self._host.shape[1], first=first)
        return self._copy("scalars", body, self._native, self._host.nbytes, target, 1)

    def _input(self, name: str, field: Field, target: _Target) -> Iterator[_Copy]:
        unit = 4 if field.width % 4 == target.at % 4 == 0 else 1
        width = field.width // unit
        for part in field.parts:
            body = WHOLE
            if field.picked:
                body = ROWS.format(
                    given=self._host.shape[1], first=self._first, width=width, start=part.first, rows=part.rows
                )
            yield self._copy(name, body, part.native, 4 * field.width * part.rows, target, unit)

    def _copy(self, name: str, body: str, table: Any, nbytes: int, target: _Target, unit: int) -> _Copy:
        size = target.size // unit
        text = COPY.format(
            name=name,
            unit="u32" if unit == 1 else "vec4<u32>",
            threads=THREADS,
            size=size,
            stride=target.rows.stride // 4 // unit,
            at=target.at // unit,
            body=body,
        )
        kernel = Kernel(f"copy_{name}", text, (False, False, True))
        ranges = [
            (self._native, 0, self._host.nbytes),
            (table, 0, nbytes),
            (target.rows.native, 0, self._slots * target.rows.stride),
        ]
        return _Copy(kernel, ranges, min(GROUPS, -(-size // THREADS)))

    # -- steps ----------------------------------------------------------------

    def check(self, step: StepData) -> None:
        """Refuse what does not fit, before anything of the call is done."""
        rows = _picked(step).rows
        if rows.shape != (self._batch,) or rows.dtype != np.int32:
            raise InputError(f"picked rows: expected i32[{self._batch}], got {rows.dtype}{list(rows.shape)}")
        for name, _, _ in self._scalars:
            check_scalar(name, step)

    def write(self, steps: Sequence[StepData]) -> Iterator[Command]:
        """Write what checked steps name; the commands bring it to the slots 0, 1, ..."""
        for i, step in enumerate(steps):
            for name, at, is_float in self._scalars:
                self._host[i, at] = word(step.scalars[name], is_float=is_float)
            # Not an assignment of arrays, for which NumPy lets go of the interpreter lock.
            memoryview(self._host[i, self._first :].data).cast("B")[:] = _picked(step).rows.data.cast("B")
        self._device.write(self._native, 0, self._host[: len(steps)])
        return (c._replace(groups=(c.groups[0], len(steps), 1)) for c in self._commands)


def _picked(step: StepData) -> Pick:
    if step.pick is None:
        raise InputError("the steps of one call read their inputs in different ways")
    return step.pick


def _batch_size(program: Program, dataset: DeviceDataset) -> int:
    """How many rows each step picks; refuses a data set that does not fit."""
    found: set[int] = set()
    for name, slot in program.inputs.items():
        field = dataset.fields.get(name)
        if field is None:
            raise InputError(f"input {name!r} is missing")
        if field.shape != (slot.shape[1:] if field.picked else slot.shape):
            got = f"{'rows of ' if field.picked else ''}{list(field.shape)}"
            raise InputError(f"input {name!r}: expected {slot.dtype}{list(slot.shape)}, got {got}")
        if field.picked:
            found.add(slot.shape[0])
    if len(found) != 1:
        what = f"they disagree on the number of rows: {sorted(found)}" if found else "no input is split into rows"
        raise InputError(f"inputs from a data set: {what}")
    return found.pop()
