"""Where the time of a training step goes: every dispatch by device timestamps, dearest first.

    python -m benchmarks.profile [--graphs gpt_char,cnn] [--top 20]

Each dispatch is timed in a pass of its own, so the sum is more than a step takes. Beside each
stand the bytes of its bindings and its workgroups.
"""

from __future__ import annotations

import argparse
from typing import Any

import attrs
import numpy as np

from benchmarks.graphs import Reference, references
from tgdsl import pipeline
from tgdsl.program import Program, StepData
from tgdsl.runtime.profile import profile


def loaded(reference: Reference, engine: Any) -> tuple[pipeline.Loaded, Program]:
    """The training step of a reference graph on fresh arenas of zeros."""
    layout = pipeline.layout_of(reference.model, reference.optimizer)
    step = pipeline.without_captures(pipeline.trace_loss(reference.model, reference.loss, layout, reference.dims))
    update = pipeline.make_update(reference.optimizer, layout, check_finite=False)
    store = engine.allocate(pipeline.arenas_of(layout, update, trained=True))
    made = pipeline.load(engine, attrs.evolve(step, update=update.graph), store)
    assert made.program is not None
    return made, made.program


def report(reference: Reference, engine: Any, top: int) -> str:
    """One graph's dispatches as text."""
    made, program = loaded(reference, engine)
    scalars = {name: 0 if slot.dtype == "i32" else 1e-3 for name, slot in program.scalars.items()}
    batch = reference.batch(np.random.default_rng(0))
    executable: Any = made.executable
    times = profile(executable, StepData(batch, scalars), repeats=15)
    if times is None:
        return f"{reference.name}: this device has no timestamps"
    total = sum(ns for _, ns in times)
    lines = [f"{reference.name}: {len(times)} dispatches, {total / 1e3:.0f} us, {program.bytes_moved / 1e6:.1f} MB"]
    order = sorted(range(len(times)), key=lambda i: -times[i][1])[:top]
    for i in order:
        d = program.dispatches[i]
        moved = sum(b.nbytes for b in d.bindings)
        groups = d.groups[0] * d.groups[1]
        lines.append(f"  {i:4d} {times[i][1] / 1e3:9.1f} us {moved / 1e6:8.2f} MB {groups:7d} groups  {d.origin}")
    executable.destroy()
    return "\n".join(lines)


def main() -> None:
    """Print every chosen graph."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", default=",".join(references()))
    parser.add_argument("--top", type=int, default=20)
    args = parser.parse_args()
    engine = pipeline.choose_engine("wgpu")
    print(pipeline.describe(engine))
    for name in args.graphs.split(","):
        print(report(references()[name], engine, args.top))


if __name__ == "__main__":
    main()
