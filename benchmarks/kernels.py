"""Time single kernels through tgdsl's compiler, against the roof of the machine and beside PyTorch.

    python -m benchmarks.kernels [--backend auto|wgpu|numpy] [--kernels softmax,gelu] [--limit ELEMENTS]
                                 [--no-peers] [--write benchmarks/RESULTS.md] [--json FILE]

A kernel can take no less than the time to read its operands and write its results once, at the rate
of a large copy, nor less than its arithmetic takes at the rate of a matrix product; both rates are
measured in the same run, through tgdsl as well. "Roof" is that time by the time taken. The host's time
is in no number: passes of 20 calls are timed by the device, PyTorch's by events around a CUDA graph.
"""

from __future__ import annotations

import argparse
from typing import Any, assert_never

import attrs
import numpy as np
from numpy.typing import NDArray

from benchmarks.graphs import Arrays
from benchmarks.kernel_cases import CASES, COPY, MATMUL, TARGETS, Case, Part, Size
from benchmarks.peers import find_torch, torch_facts
from benchmarks.peers_kernels import torch_microseconds
from benchmarks.report import Place, Section, options, place_of, publish
from benchmarks.timing import timed
from tgdsl import pipeline
from tgdsl.dtypes import ITEMSIZE
from tgdsl.ir import Contraction, Decompose, Gather, Leaf, Node, Pointwise, Reduction, View
from tgdsl.ops.leaves import leaves
from tgdsl.optim.step import ArenaLayout, StepGraphs
from tgdsl.passes import lower
from tgdsl.program import StepData

SMALL = 1 << 20
"""Elements of the largest operand where no GPU is."""


@attrs.frozen
class Run:
    """A kernel that has been timed.

    Attributes:
        flops: Arithmetic of the primitives that it is made of, masked products left out.
        least: Bytes of operands and results, once each.
        moved: Bytes that the program moves.
        dispatches: Of the program.
        microseconds: How long it takes.
    """

    flops: float
    least: int
    moved: int
    dispatches: int
    microseconds: float


@attrs.frozen
class Roof:
    """What the machine can do: bytes and flops per microsecond."""

    bandwidth: float
    rate: float

    def microseconds(self, run: Run) -> float:
        """The least time for what a kernel has to do."""
        return max(run.least / self.bandwidth, run.flops / self.rate)


def flops_of(node: Node) -> int:
    """Arithmetic instructions of a primitive; a transcendental counts as 8, a multiply-add as 2."""
    match node.op.lower:
        case Contraction():
            return 2 * node.type.size * int(node.inputs[0].shape[-1])
        case Pointwise(cost=cost):
            return cost * node.type.size
        case Reduction():
            return node.inputs[0].type.size
        case View() | Gather() | Leaf() | Decompose():
            return 0
        case other:
            assert_never(other)


def count(step: StepGraphs, needed: float) -> tuple[float, int]:
    """Flops and least bytes of a kernel."""
    roots = [t.node for t in (*step.results.values(), *step.grads.values())]
    lowered, made = lower(step.graph, roots)
    flops = 0.0
    for node in lowered.reachable(made):
        flops += flops_of(node) * (needed if isinstance(node.op.lower, Contraction) else 1.0)
    read = {**leaves(lowered, "param"), **leaves(lowered, "input")}.values()
    return flops, ITEMSIZE * sum(node.type.size for node in (*read, *roots))


def measured(engine: Any, case: Case, size: Size, part: Part, seconds: float) -> Run:
    """Compile and time one kernel."""
    step, arrays = case.step(size, part), case.arrays(size)
    sizes = {"params": step.params.size, "frozen": step.frozen.size, "grads": step.params.size if step.grads else 0}
    store = engine.allocate({name: n for name, n in sizes.items() if n})
    for name, layout in (("params", step.params), ("frozen", step.frozen)):
        if layout.size:
            store.write(name, filled(layout, arrays))
    made = pipeline.load(engine, step, store, slots=1)
    data = StepData({n: a for n, a in arrays.items() if n == TARGETS}, {})
    took = _microseconds(engine, made.executable, data, seconds)
    made.executable.destroy()
    store.destroy()
    return Run(*count(step, case.needed), made.bytes_moved, made.kernel_count, took)


def filled(layout: ArenaLayout, arrays: Arrays) -> NDArray[np.float32]:
    """An arena with arrays in their places, ones where there are none."""
    arena = np.ones(layout.size, np.float32)
    for name, at in layout.segments.items():
        if name in arrays:
            arena[at.offset : at.offset + at.size] = arrays[name].ravel()
    return arena


def _microseconds(engine: Any, executable: Any, data: StepData, seconds: float) -> float:
    if engine.name == "wgpu":
        from tgdsl.runtime.profile import elapsed

        found = elapsed(executable, data)
        if found is not None:
            return found / 1e3
    return timed(lambda: executable.submit([data]), lambda: engine.name == "wgpu" and engine.device.finish(), seconds)


def limited(case: Case, limit: int | None) -> list[Size]:
    """The sizes of a kernel within the limit."""
    return [size for size in case.sizes if limit is None or case.elements(size) <= limit]


def measure_roof(engine: Any, place: Place, args: argparse.Namespace) -> tuple[Roof, str]:
    """The rates of the largest copy and matrix product within reach, and a sentence about them."""
    which = 0 if place.gpu else 1
    sizes = [([s for s in limited(c, args.limit) if s in c.sizes[which:]] or c.sizes[-1:])[0] for c in (COPY, MATMUL)]
    copy = measured(engine, COPY, sizes[0], "forward", args.seconds)
    product = measured(engine, MATMUL, sizes[1], "forward", args.seconds)
    roof = Roof(copy.least / copy.microseconds, product.flops / product.microseconds)
    return roof, (
        f"Roof: {roof.bandwidth / 1e3:.0f} GB/s, a copy of {ITEMSIZE * sizes[0][0] / 1e6:.0f} MB; "
        f"{roof.rate / 1e3:.0f} GFLOP/s, a matrix product of {sizes[1][0]}; "
        "what fits into a cache can be above it, what is short is below it by the time to start a kernel"
    )


def run(args: argparse.Namespace) -> Section:
    """Measure the chosen kernels."""
    engine: Any = pipeline.choose_engine(args.backend)
    place = place_of(engine)
    device = None if args.no_peers else find_torch(gpu=place.gpu)
    roof, sentence = measure_roof(engine, place, args)
    limit = args.limit or (None if place.gpu else SMALL)
    lines, rows = [], []
    for case in [CASES[name] for name in args.kernels.split(",")]:
        for size, part in [(s, p) for p in case.parts for s in limited(case, limit)]:
            ours = measured(engine, case, size, part, args.seconds)
            peer = None if device is None else torch_microseconds(case, size, part, device, args.seconds)
            lines.append(cells(case.name, size, part, ours, roof, peer))
            plain = {"kernel": case.name, "size": size, "part": part, **attrs.asdict(ours)}
            rows.append({**plain, "roof_microseconds": roof.microseconds(ours), "torch_microseconds": peer})
    head = [
        "kernel",
        "size",
        "calls" if engine.name == "numpy" else "dispatches",
        "MB least",
        "MB moved",
        "MFLOP",
        "tgdsl, us",
        "roof",
    ]
    head += [] if device is None else ["PyTorch, us", "roof", "ratio"]
    facts = [] if args.no_peers else [torch_facts(device)]
    return Section("Kernels", place, ". ".join([*facts, sentence]), head, lines, rows)


def cells(name: str, size: Size, part: Part, ours: Run, roof: Roof, peer: float | None) -> list[str]:
    """The row of the table."""
    title = {"forward": name, "backward": f"{name}, backward", "both": f"{name} with gradient"}[part]
    least = roof.microseconds(ours)
    work = [f"{ours.dispatches}", f"{ours.least / 1e6:.2f}", f"{ours.moved / 1e6:.2f}", f"{ours.flops / 1e6:.1f}"]
    row = [title, " x ".join(map(str, size)), *work, f"{ours.microseconds:.1f}", f"{least / ours.microseconds:.0%}"]
    return row if peer is None else [*row, f"{peer:.1f}", f"{least / peer:.0%}", f"{peer / ours.microseconds:.2f}x"]


def main() -> None:
    """Measure, print, and perhaps write."""
    args = options(__doc__).parse_args()
    publish([run(args)], args)


if __name__ == "__main__":
    main()
