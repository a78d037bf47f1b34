"""What stands behind the `Draw` protocol of op samples: Hypothesis, or a seeded generator."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp


class HypothesisDraw:
    """Draws that shrink; values near kinks are moved away, never thrown away."""

    def __init__(self, data: st.DataObject) -> None:
        self._draw = data.draw

    def size(self, label: str, lo: int = 1, hi: int = 4) -> int:
        return self._draw(st.integers(lo, hi), label)

    def shape(self, label: str, min_dims: int = 0, max_dims: int = 3) -> tuple[int, ...]:
        return self._draw(hnp.array_shapes(min_dims=min_dims, max_dims=max_dims, max_side=4), label)

    def array(
        self, label: str, shape: tuple[int, ...], lo: float = -2.0, hi: float = 2.0, *, away: tuple[float, ...] = ()
    ) -> Any:
        elements = st.floats(lo, hi, allow_subnormal=False)
        return moved(self._draw(hnp.arrays(np.float64, shape, elements=elements), label), away)

    def distinct(self, label: str, shape: tuple[int, ...]) -> Any:
        n = int(np.prod(shape))
        order = self._draw(st.permutations(range(n)), label)
        return (np.array(order, np.float64).reshape(shape) - n / 2) * 0.1

    def integers(self, label: str, shape: tuple[int, ...], lo: int, hi: int) -> Any:
        return self._draw(hnp.arrays(np.int32, shape, elements=st.integers(lo, hi)), label)

    def booleans(self, label: str, shape: tuple[int, ...]) -> Any:
        return self._draw(hnp.arrays(np.bool_, shape), label)

    def choice(self, label: str, options: tuple[Any, ...]) -> Any:
        return self._draw(st.sampled_from(options), label)


class SeededDraw:
    """The same from a NumPy generator, for checks that run outside of Hypothesis."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def size(self, label: str, lo: int = 1, hi: int = 4) -> int:
        return int(self._rng.integers(lo, hi + 1))

    def shape(self, label: str, min_dims: int = 0, max_dims: int = 3) -> tuple[int, ...]:
        rank = int(self._rng.integers(min_dims, max_dims + 1))
        return tuple(int(n) for n in self._rng.integers(1, 5, rank))

    def array(
        self, label: str, shape: tuple[int, ...], lo: float = -2.0, hi: float = 2.0, *, away: tuple[float, ...] = ()
    ) -> Any:
        return moved(self._rng.uniform(lo, hi, shape), away)

    def distinct(self, label: str, shape: tuple[int, ...]) -> Any:
        n = int(np.prod(shape))
        return (self._rng.permutation(n).astype(np.float64).reshape(shape) - n / 2) * 0.1

    def integers(self, label: str, shape: tuple[int, ...], lo: int, hi: int) -> Any:
        return self._rng.integers(lo, hi + 1, shape).astype(np.int32)

    def booleans(self, label: str, shape: tuple[int, ...]) -> Any:
        return self._rng.integers(0, 2, shape).astype(np.bool_)

    def choice(self, label: str, options: tuple[Any, ...]) -> Any:
        return options[int(self._rng.integers(len(options)))]


def moved(x: Any, away: tuple[float, ...]) -> Any:
    """Values closer than 1e-2 to one of `away`, moved to that distance."""
    for kink in away:
        near = np.abs(x - kink) < 1e-2
        x = np.where(near, kink + np.where(x >= kink, 1e-2, -1e-2), x)
    return np.asarray(x)
