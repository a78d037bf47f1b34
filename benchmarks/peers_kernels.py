"""One kernel of PyTorch, without the host's share of its time where there is a GPU."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from benchmarks.kernel_cases import Case, Part, Size
from benchmarks.timing import timed

CALLS = 20
"""Calls in one CUDA graph."""


def torch_microseconds(case: Case, size: Size, part: Part, device: str, seconds: float) -> float:
    """Per call: on CUDA of a graph of 20 calls, between two events; on a CPU by the clock."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    if device == "cpu":
        return timed(_call(case, size, part, device), lambda: None, seconds)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):  # a backward runs on the stream of its forward
        call = _call(case, size, part, device)
        for _ in range(3):
            call()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        for _ in range(CALLS):
            call()
    taken: list[float] = []
    for _ in range(6):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        taken.append(begin.elapsed_time(end) * 1e3 / CALLS)
    return statistics.median(taken[1:])


def _call(case: Case, size: Size, part: Part, device: str) -> Callable[[], Any]:
    import torch

    values = {n: torch.from_numpy(a).to(device) for n, a in case.arrays(size).items()}
    values = {n: t if t.is_floating_point() else t.long() for n, t in values.items()}
    if part == "forward":
        return lambda: case.theirs(torch, **values)
    wanted = [t.requires_grad_() for t in values.values() if t.is_floating_point()]
    if part == "both":
        return lambda: torch.autograd.grad(case.theirs(torch, **values), wanted)
    y = case.theirs(torch, **values)
    ct = torch.ones_like(y)
    return lambda: torch.autograd.grad(y, wanted, ct, retain_graph=True)
