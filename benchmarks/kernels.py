"""Time single kernels through tgdsl's compiler, against the roof of the machine and beside PyTorch.

    python -m benchmarks.kernels [--backend auto|wgpu|numpy] [--kernels softmax,gelu] [--limit ELEMENTS]
                                 [--no-peers] [--write benchmarks/RESULTS.md] [--json FILE]

A kernel can take no less than the time to read its operands and write its results once, at the rate
of a large copy, nor less than its arithmetic takes at the rate of a matrix product. Both rates are
measured in the same run, the better of tgdsl and PyTorch. "Roof" is that time by the time taken. The
host's time is in no number: passes of 20 calls are timed by the device, PyTorch's by events around a
CUDA graph.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import Any, assert_never

import attrs
import numpy as np
from numpy.typing import NDArray

from benchmarks.graphs import Arrays
from benchmarks.kernel_cases import CASES, COPY, MATMUL, TARGETS, Case, Part, Size
from benchmarks.peers import find_torch, torch_facts
from benchmarks.peers_kernels import torch_microseconds
from benchmarks.report import Section, options, place_of, progress, publish
from benchmarks.timing import timed
from tgdsl import pipeline
from tgdsl.dtypes import ITEMSIZE
from tgdsl.ir import Attention, Contraction, Decompose, Gather, Leaf, Node, Pointwise, Reduction, View
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
class Timing:
    """A kernel of a case beside PyTorch's, if there is one."""

    case: Case
    size: Size
    part: Part
    ours: Run
    peer: float | None

    def cells(self, roof: Roof) -> list[str]:
        """The row of the table."""
        title = {"forward": "", "backward": ", backward", "both": " with gradient"}[self.part]
        ours, least = self.ours, roof.microseconds(self.ours)
        work = [f"{ours.dispatches}", f"{ours.least / 1e6:.2f}", f"{ours.moved / 1e6:.2f}", f"{ours.flops / 1e6:.1f}"]
        took = [f"{ours.microseconds:.1f}", f"{least / ours.microseconds:.0%}"]
        if self.peer is not None:
            took += [f"{self.peer:.1f}", f"{least / self.peer:.0%}", f"{self.peer / ours.microseconds:.2f}x"]
        return [f"{self.case.name}{title}", " x ".join(map(str, self.size)), *work, *took]

    def plain(self, roof: Roof) -> dict[str, Any]:
        """The row for other programs."""
        times = {"roof_microseconds": roof.microseconds(self.ours), "torch_microseconds": self.peer}
        return {"kernel": self.case.name, "size": self.size, "part": self.part, **attrs.asdict(self.ours), **times}


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
        case Attention(role=role):
            products = {"lse": 1, "out": 2, "dq": 3, "dkv": 4}[role]
            q, k = node.inputs[0], node.inputs[1]
            return 2 * products * q.type.size * int(k.shape[-2])
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


def roof_of(copy: Timing, product: Timing) -> Roof:
    """The best rates of the run."""
    fastest = min(copy.ours.microseconds, copy.peer or math.inf)
    return Roof(
        copy.ours.least / fastest, product.ours.flops / min(product.ours.microseconds, product.peer or math.inf)
    )


def timings(engine: Any, chosen: Sequence[tuple[Case, Size, Part]], device: str | None, seconds: float) -> list[Timing]:
    """Measure kernel after kernel."""
    made: list[Timing] = []
    for case, size, part in chosen:
        ours = measured(engine, case, size, part, seconds)
        peer = None if device is None else torch_microseconds(case, size, part, device, seconds)
        made.append(Timing(case, size, part, ours, peer))
        progress([case.name, str(size), part, f"{ours.microseconds:.1f} us", f"PyTorch {peer or math.nan:.1f} us"])
    return made


def chosen_of(args: argparse.Namespace, *, gpu: bool) -> list[tuple[Case, Size, Part]]:
    """What to measure: the two that make the roof, and the kernels asked for within the limit."""
    which = 0 if gpu else 1 if args.limit is None else 2
    limit = args.limit or (math.inf if gpu else SMALL)
    found: list[tuple[Case, Size, Part]] = [(case, case.sizes[which], "forward") for case in (COPY, MATMUL)]
    for case in [CASES[name] for name in args.kernels.split(",")]:
        found += [(case, size, part) for part in case.parts for size in case.sizes if case.elements(size) <= limit]
    return found


def run(args: argparse.Namespace) -> Section:
    """Measure the chosen kernels."""
    engine: Any = pipeline.choose_engine(args.backend)
    place = place_of(engine)
    device = None if args.no_peers else find_torch(gpu=place.gpu)
    rows = timings(engine, chosen_of(args, gpu=place.gpu), device, args.seconds)
    roof = roof_of(rows[0], rows[1])
    calls = "calls" if engine.name == "numpy" else "dispatches"
    head = ["kernel", "size", calls, "MB least", "MB moved", "MFLOP", "tgdsl, us", "roof"]
    head += [] if device is None else ["PyTorch, us", "roof", "ratio"]
    about = (
        f"{torch_facts(device)}. The roof is {roof.bandwidth / 1e3:.0f} GB/s and {roof.rate / 1e3:.0f} GFLOP/s; what "
        "fits into a cache can be above it, what is short is below it by the time to start a kernel"
    )
    return Section("Kernels", place, about, head, [r.cells(roof) for r in rows], [r.plain(roof) for r in rows])


def main() -> None:
    """Measure, print, and perhaps write."""
    args = options(__doc__).parse_args()
    publish([run(args)], args)


if __name__ == "__main__":
    main()
