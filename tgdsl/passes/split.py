"""Give long folds enough parallelism: a fold of few results over many terms is split in two.

A sum of a million terms into one number would keep a single workgroup busy, and a
weight gradient of a small convolution is a contraction of fifty thousand terms into a
hundred results. Both become a first stage over slices and a second stage over the
slices' results, as graph rewrites, so no kernel knows of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tgdsl.ir import REGISTRY, Contraction, Graph, Node, Reduction

from .fold import simplify
from .rebuild import rebuild

LONG_FOLD = 4096
"""Terms per result from which a fold into few results is split."""

TILE, THREADS_PER_TILE = 64, 256
"""Of a contraction: a tile's side, and how many of a device's threads a tile keeps busy."""

SLICE = 256
"""Terms that a slice of a contraction keeps at least."""

LANES_OF_PROCESSOR = 1024
"""Of a device's threads, those of one processor."""

WORTH = 1.15
"""How much busier a device must get for the results of more slices to be added up."""


def split_folds(graph: Graph, roots: Sequence[Node], *, lanes: int) -> tuple[Graph, list[Node]]:
    """Split every fold that would leave most of a device of `lanes` threads idle."""
    return rebuild(graph, roots, lambda new, node, inputs: _one(new, node, inputs, lanes))


def _one(new: Graph, node: Node, inputs: tuple[Node, ...], lanes: int) -> Node:
    if isinstance(node.op.lower, Reduction):
        pieces = _pieces_of_reduction(node, lanes)
        if pieces:
            return _reduction(new, node, inputs[0], pieces)
    if isinstance(node.op.lower, Contraction):
        pieces = _pieces_of_contraction(node, lanes)
        if pieces:
            return _contraction(new, node, inputs, pieces)
    return simplify(new, node.op, inputs, node.attrs, node.type)


def _pieces_of_reduction(node: Node, lanes: int) -> int:
    x = node.inputs[0]
    terms = math.prod(x.shape[a] for a in node.attrs["axes"])
    results = max(1, node.type.size)
    # A row is shared by many threads anyway; a column by few, so that neighbouring ones load neighbours.
    threads = 64 if x.type.ndim - 1 in node.attrs["axes"] else 16
    if terms < LONG_FOLD or results * threads > lanes:
        return 0
    first = node.inputs[0].shape[node.attrs["axes"][0]]
    return _divisor(int(first), terms // 1024, results, lanes)


def _pieces_of_contraction(node: Node, lanes: int) -> int:
    k = int(node.inputs[0].shape[-1])
    *batch, m, n = (int(d) for d in node.shape)
    tiles = math.prod(batch) * -(-m // TILE) * -(-n // TILE)
    processors = max(1, lanes // LANES_OF_PROCESSOR)
    if k < 4 * SLICE or (tiles >= 2 * processors and _use(tiles, processors) > 1 / WORTH):
        return 0
    most = min(k // SLICE, lanes // (tiles * THREADS_PER_TILE))
    pieces = max((d for d in range(1, most + 1) if k % d == 0), default=1)
    for more in range(pieces + 1, 2 * most + 1):
        # Long slices may be shorter yet, if that leaves fewer processors waiting for the last ones.
        gain = _use(tiles * more, processors) / _use(tiles * pieces, processors)
        if k % more == 0 and k // more >= 4 * SLICE and gain > WORTH:
            pieces = more
    return pieces if pieces > 1 else 0


def _use(workgroups: int, processors: int) -> float:
    """The share of the time that processors work if each takes one of the workgroups after the other."""
    return workgroups / (-(-workgroups // processors) * processors)


def _divisor(n: int, wanted: int, results: int, lanes: int) -> int:
    """The divisor of `n` nearest below the number of slices worth having; 0 if there is none."""
    most = max(2, min(wanted, 4 * lanes // results, 256))
    return max((d for d in range(2, most + 1) if n % d == 0), default=0)


def _reduction(new: Graph, node: Node, x: Node, pieces: int) -> Node:
    axes = node.attrs["axes"]
    first = axes[0]
    n = int(x.shape[first])
    shape = (*x.shape[:first], pieces, n // pieces, *x.shape[first + 1 :])
    cut: Any = REGISTRY["reshape"](new.tensor(x), shape=tuple(int(d) for d in shape))
    inner = tuple(a + 1 for a in axes)
    partial = REGISTRY[node.op.name](cut, axes=inner)
    out: Node = REGISTRY[node.op.name](partial, axes=(first,)).node
    return out


def _contraction(new: Graph, node: Node, inputs: tuple[Node, ...], pieces: int) -> Node:
    a, b = inputs
    *batch, m, k = (int(d) for d in a.shape)
    n = int(b.shape[-1])
    lead = tuple(range(len(batch)))
    rank = len(batch)
    left: Any = REGISTRY["reshape"](new.tensor(a), shape=(*batch, m, pieces, k // pieces))
    left = REGISTRY["permute"](left, perm=(*lead, rank + 1, rank, rank + 2))
    right: Any = REGISTRY["reshape"](new.tensor(b), shape=(*batch, pieces, k // pieces, n))
    partial = REGISTRY["matmul"](left, right)
    out: Node = REGISTRY["sum"](partial, axes=(rank,)).node
    return out
