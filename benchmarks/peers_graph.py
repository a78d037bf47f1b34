"""PyTorch at its fastest: the training step as one CUDA graph, and through torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from benchmarks.graphs import Arrays, Reference
from benchmarks.peers import torch_training


def graph_step(reference: Reference, batch: Arrays) -> tuple[Callable[[], Any], Callable[[], None]]:
    """A step that replays a CUDA graph of the whole training step, and what waits for the device.

    As "Whole-network capture" in PyTorch's notes on CUDA: warmed up on a side stream; gradients are
    None when the capture begins, so a replay writes them instead of adding to them.
    """
    import torch

    training = torch_training(reference, batch, "cuda", capturable=True)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            training.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = training.step().detach()

    def step() -> Any:
        graph.replay()
        return loss

    return step, training.wait


def compiled_step(reference: Reference, batch: Arrays, device: str) -> tuple[Callable[[], Any], Callable[[], None]]:
    """A step whose forward and backward torch.compile has compiled; nothing is until it is called."""
    import torch

    torch.compiler.reset()
    training = torch_training(reference, batch, device)
    training = attrs.evolve(training, loss=torch.compile(training.loss))
    return training.step, training.wait
