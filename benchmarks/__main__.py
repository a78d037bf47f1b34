"""Run the benchmarks one after another and put their sections into RESULTS.md: `make bench`.

python -m benchmarks [--backend auto|wgpu|numpy] [--write benchmarks/RESULTS.md] [--json FILE]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from benchmarks import compile as compiling
from benchmarks import kernels, steps
from benchmarks.report import Section, options, publish


def sections(args: argparse.Namespace) -> Iterator[Section]:
    """Every section, as soon as it is measured."""
    for part in (steps, kernels, compiling):
        yield part.run(args)


def main() -> None:
    """Measure, print, and perhaps write."""
    args = options(__doc__).parse_args()
    publish(sections(args), args)


if __name__ == "__main__":
    main()
