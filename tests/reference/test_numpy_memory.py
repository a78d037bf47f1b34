"""A step of the NumPy backend computes in the buffers that it has: nothing is copied in secret."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from benchmarks.graphs import references

KEPT = 4096
"""Bytes that a step may leave behind: its result, and whatever Python caches."""

PEAK = 6 * 8192 * 4
"""Bytes that may come and go: a few of the buffers of 8192 elements that a ufunc broadcasts with."""


@pytest.mark.parametrize("name", ["mlp_sin", "mlp_mnist", "gpt_small", "gpt_ref", "cnn"])
def test_a_step_allocates_next_to_nothing(name: str) -> None:
    reference = references()[name]
    train = reference.compile("numpy")
    batch = reference.batch(np.random.default_rng(0))
    for _ in range(3):
        float(train.step(**batch))
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        float(train.step(**batch))
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    train.destroy()
    assert after - before <= KEPT
    assert peak - before <= PEAK
