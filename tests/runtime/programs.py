"""Programs written by hand, so that the runtime is tested without the compiler."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from tgdsl.program import Binding, Buffer, Dispatch, Kernel, Program, Slot, StepData

ADD_ONE = """@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x < 4u) { y[id.x] = x[id.x] + 1.0f; }
}
"""

ACCUMULATE = """@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> scalars: array<f32>;
@group(0) @binding(2) var<storage, read_write> total: array<f32>;
@group(0) @binding(3) var<storage, read_write> seen: array<f32>;
@compute @workgroup_size(1)
fn main() {
  seen[0] = total[0];
  total[0] = total[0] + scalars[0] * x[0];
}
"""

MIXED = """@group(0) @binding(0) var<storage, read> i: array<i32>;
@group(0) @binding(1) var<storage, read> b: array<u32>;
@group(0) @binding(2) var<storage, read_write> doubled: array<i32>;
@group(0) @binding(3) var<storage, read_write> opposite: array<u32>;
@compute @workgroup_size(3)
fn main(@builtin(local_invocation_index) k: u32) {
  doubled[k] = 2 * i[k];
  opposite[k] = 1u - b[k];
}
"""


def chain(length: int) -> Program:
    """`y = x + length`, one dispatch per addition."""
    buffers = [Buffer("x", 16, "step"), Buffer("y", 16, "step")]
    buffers += [Buffer(f"t{i}", 16, "temp") for i in range(length - 1)]
    places = [0, *range(2, length + 1), 1]
    dispatches = [
        Dispatch(0, (Binding(a, 0, 16, False), Binding(b, 0, 16, True)), (1, 1, 1), f"add_{i}")
        for i, (a, b) in enumerate(pairwise(places))
    ]
    kernel = Kernel("add_one", ADD_ONE, (False, True))
    return Program(
        tuple(buffers), (kernel,), tuple(dispatches), {"x": Slot(0, 0, (4,), "f32")}, {}, {"y": Slot(1, 0, (4,), "f32")}
    )


def accumulator() -> Program:
    """`seen = total; total += rate * x` on an arena."""
    buffers = (
        Buffer("x", 4, "step"),
        Buffer("scalars", 4, "step"),
        Buffer("params", 4, "arena"),
        Buffer("seen", 4, "step"),
    )
    bindings = (Binding(0, 0, 4, False), Binding(1, 0, 4, False), Binding(2, 0, 4, True), Binding(3, 0, 4, True))
    return Program(
        buffers,
        (Kernel("accumulate", ACCUMULATE, (False, False, True, True)),),
        (Dispatch(0, bindings, (1, 1, 1), "accumulate"),),
        {"x": Slot(0, 0, (1,), "f32")},
        {"rate": Slot(1, 0, (), "f32")},
        {"seen": Slot(3, 0, (), "f32")},
    )


def mixed() -> Program:
    """Integers and booleans, in and out."""
    buffers = tuple(Buffer(n, 12, "step") for n in ("i", "b", "doubled", "opposite"))
    bindings = tuple(Binding(k, 0, 12, k > 1) for k in range(4))
    return Program(
        buffers,
        (Kernel("mixed", MIXED, (False, False, True, True)),),
        (Dispatch(0, bindings, (1, 1, 1), "mixed"),),
        {"i": Slot(0, 0, (3,), "i32"), "b": Slot(1, 0, (3,), "bool")},
        {},
        {"doubled": Slot(2, 0, (3,), "i32"), "opposite": Slot(3, 0, (3,), "bool")},
    )


def wide(n: int) -> Program:
    """A result larger than the ring holds: `y = x + 1` of which four elements are computed."""
    buffers = (Buffer("x", 4 * n, "step"), Buffer("y", 4 * n, "step"))
    bindings = (Binding(0, 0, 4 * n, False), Binding(1, 0, 4 * n, True))
    return Program(
        buffers,
        (Kernel("add_one", ADD_ONE, (False, True)),),
        (Dispatch(0, bindings, (1, 1, 1), "add"),),
        {"x": Slot(0, 0, (n,), "f32")},
        {},
        {"y": Slot(1, 0, (n,), "f32")},
    )


REPORTING = """@group(0) @binding(0) var<storage, read> i: array<i32>;
@group(0) @binding(1) var<storage, read_write> scalars: array<i32>;
@group(0) @binding(2) var<storage, read_write> y: array<i32>;
@compute @workgroup_size(1)
fn main() {
  if (i[0] > 9) { scalars[1] = 2; }
  y[0] = i[0] + scalars[0];
}
"""


def reporting() -> Program:
    """`y = i + add`; reports an `i` above 9 through the flag."""
    buffers = (Buffer("i", 4, "step"), Buffer("scalars", 8, "step"), Buffer("y", 4, "step"))
    bindings = (Binding(0, 0, 4, False), Binding(1, 0, 8, True), Binding(2, 0, 4, True))
    flag = Slot(1, 4, (), "i32")
    return Program(
        buffers,
        (Kernel("reporting", REPORTING, (False, True, True)),),
        (Dispatch(0, bindings, (1, 1, 1), "reporting"),),
        {"i": Slot(0, 0, (1,), "i32")},
        {"add": Slot(1, 0, (), "i32"), "flag": flag},
        {"y": Slot(2, 0, (), "i32"), "flag": flag},
        {"flag:2": "index outside of f32[9, 4]"},
    )


SUM = """@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> table: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(1)
fn main() {
  var total = 0.0f;
  for (var k = 0u; k < %(n)du; k++) { total = total + x[k]; }
  y[0] = total + table[1];
}
"""


def summing(n: int) -> Program:
    """`y = sum(x) + 5`, with the five in a constant."""
    table = np.array([3.0, 5.0], np.float32).tobytes()
    buffers = (Buffer("x", 4 * n, "step"), Buffer("table", 8, "constant", table), Buffer("y", 4, "step"))
    bindings = (Binding(0, 0, 4 * n, False), Binding(1, 0, 8, False), Binding(2, 0, 4, True))
    return Program(
        buffers,
        (Kernel("summing", SUM % {"n": n}, (False, False, True)),),
        (Dispatch(0, bindings, (1, 1, 1), "sum"),),
        {"x": Slot(0, 0, (n,), "f32")},
        {},
        {"y": Slot(2, 0, (), "f32")},
    )


def step(rate: float = 1.0, **inputs: Any) -> StepData:
    """What one step reads."""
    return StepData({k: np.asarray(v) for k, v in inputs.items()}, {"rate": rate})
