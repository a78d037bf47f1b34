"""Time matrix products through tgdsl's compiler beside PyTorch's, fp32 without TF32, in one run.

    python -m benchmarks.matmul [--backend auto|wgpu|numpy] [--sizes 512x128x512,1023x1023x1023] [--limit ELEMENTS]
                                [--no-peers] [--write benchmarks/RESULTS.md] [--json FILE]

Sizes are rows x columns x terms. Each is measured as it is, with the left and with the right operand
transposed: a layer, the gradient of its weights, the gradient of its inputs. The host's time is in no
number: passes of 20 calls are timed by the device where it has timestamps, PyTorch's by events around a
CUDA graph. Without a GPU only small sizes are measured.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import Any

import attrs

from benchmarks.kernel_cases import Case, Size
from benchmarks.kernels import SMALL, measured
from benchmarks.peers import find_torch, torch_facts
from benchmarks.peers_kernels import torch_microseconds
from benchmarks.report import Section, options, place_of, progress, publish
from tgdsl import pipeline

LAYERS: tuple[Size, ...] = (
    (128, 256, 784), (128, 256, 256), (256, 256, 128), (784, 256, 128), (512, 128, 128), (512, 512, 128),
    (512, 128, 512), (128, 128, 512), (4096, 384, 384), (4096, 1536, 384), (4096, 384, 1536), (384, 1536, 4096),
)  # fmt: skip
"""What layers of small and middle-sized models multiply."""

SQUARES = (127, 129, 512, 1000, 1023, 1024, 2048, 4096)
"""Large ones, and what lies beside round sizes."""

SIZES = (*LAYERS, *((n, n, n) for n in SQUARES))

CASES = (
    Case(
        "a @ b",
        SIZES,
        lambda m, n, k: {"a": (m, k), "b": (k, n)},
        lambda a, b: a @ b,
        lambda torch, a, b: a @ b,
    ),
    Case(
        "a.mT @ b",
        SIZES,
        lambda m, n, k: {"a": (k, m), "b": (k, n)},
        lambda a, b: a.mT @ b,
        lambda torch, a, b: a.mT @ b,
    ),
    Case(
        "a @ b.mT",
        SIZES,
        lambda m, n, k: {"a": (m, k), "b": (n, k)},
        lambda a, b: a @ b.mT,
        lambda torch, a, b: a @ b.mT,
    ),
)


@attrs.frozen
class Product:
    """A product that has been timed: microseconds of tgdsl, and of PyTorch where it is installed."""

    case: Case
    size: Size
    dispatches: int
    ours: float
    peer: float | None

    def rate(self, microseconds: float) -> float:
        """TFLOP per second."""
        return 2 * math.prod(self.size) / microseconds / 1e6

    def cells(self) -> list[str]:
        """The row of the table."""
        rows = [self.case.name, " x ".join(map(str, self.size)), f"{self.dispatches}"]
        rows += [f"{self.ours:.1f}", f"{self.rate(self.ours):.2f}"]
        if self.peer is not None:
            rows += [f"{self.peer:.1f}", f"{self.rate(self.peer):.2f}", f"{self.peer / self.ours:.2f}x"]
        return rows

    def plain(self) -> dict[str, Any]:
        """The row for other programs."""
        times = {"microseconds": self.ours, "torch_microseconds": self.peer}
        return {"product": self.case.name, "size": self.size, "dispatches": self.dispatches, **times}


def products(engine: Any, sizes: Sequence[Size], device: str | None, seconds: float) -> list[Product]:
    """Measure size after size; the largest first and once more in its turn, so that clocks are up."""
    measured(engine, CASES[0], max(sizes, key=math.prod), "forward", seconds)
    made: list[Product] = []
    for size in sizes:
        for case in CASES:
            run = measured(engine, case, size, "forward", seconds)
            peer = None if device is None else torch_microseconds(case, size, "forward", device, seconds)
            made.append(Product(case, size, run.dispatches, run.microseconds, peer))
            progress(made[-1].cells())
    return made


def sizes_of(args: argparse.Namespace, *, gpu: bool) -> list[Size]:
    """The sizes asked for, within the limit."""
    asked = [tuple(map(int, text.split("x"))) for text in args.sizes.split(",")] if args.sizes else SIZES
    limit = args.limit or (math.inf if gpu else SMALL)
    return [size for size in asked if max(case.elements(size) for case in CASES) <= limit]


def run(args: argparse.Namespace) -> Section:
    """Measure the chosen sizes."""
    engine: Any = pipeline.choose_engine(args.backend)
    place = place_of(engine)
    device = None if args.no_peers else find_torch(gpu=place.gpu)
    rows = products(engine, sizes_of(args, gpu=place.gpu), device, args.seconds)
    calls = "calls" if engine.name == "numpy" else "dispatches"
    head = ["product", "m x n x k", calls, "tgdsl, us", "TFLOP/s"]
    head += [] if device is None else ["PyTorch, us", "TFLOP/s", "ratio"]
    return Section(
        "Matrix products", place, torch_facts(device), head, [r.cells() for r in rows], [r.plain() for r in rows]
    )


def main() -> None:
    """Measure, print, and perhaps write."""
    parser = options(__doc__)
    parser.add_argument("--sizes", help="rows x columns x terms, separated by commas")
    args = parser.parse_args()
    publish([run(args)], args)


if __name__ == "__main__":
    main()
