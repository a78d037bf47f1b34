"""Training on a whole data set: which rows each step reads, and the losses on their way back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs
import numpy as np
from numpy.typing import NDArray

from tgdsl import frontend
from tgdsl.data import epoch_order, split_rows
from tgdsl.errors import InputError, OptionError, int_option

from .results import StepResult

GROUP: Final = 16
"""Steps that are put into one submission at most, unless told."""

BEHIND: Final = 512
"""Losses are read this many at once, when twice as many are open: a device has sent them by then."""

Callback: TypeAlias = Callable[[StepResult], bool | None]
Rows: TypeAlias = NDArray[np.int32]
Launch: TypeAlias = Callable[[Sequence[Rows]], list[StepResult]]
"""Submits one step per element."""


@attrs.frozen(eq=False, repr=False)
class FitResult:
    """What `fit` returns.

    Attributes:
        losses: The loss of every step, before its update.
        epoch_losses: The mean of each epoch, weighted by batch size; of an epoch that was stopped, as far as it came.
    """

    losses: NDArray[np.float32]
    epoch_losses: tuple[float, ...]

    @property
    def loss(self) -> float:
        """The mean of the last epoch."""
        return self.epoch_losses[-1]

    def __repr__(self) -> str:
        return f"FitResult(epochs={len(self.epoch_losses)}, steps={len(self.losses)}, loss={self.loss})"


@attrs.frozen
class Plan:
    """Which rows each step of a fit reads.

    Attributes:
        dim: The dim that counts rows.
        dims: Every dim of the data.
        rows: The arrays that are split.
        whole: The arrays that every step reads.
        batch: Rows per step.
        epochs: How often all rows are read.
        shuffle: Whether each epoch has an order of its own.
        seed: What that is drawn from.
        drop_last: Whether a rest that does not fill a batch is left out.
    """

    dim: str
    dims: Mapping[str, int]
    rows: Mapping[str, NDArray[Any]]
    whole: Mapping[str, NDArray[Any]]
    batch: int
    epochs: int
    shuffle: bool
    seed: int
    drop_last: bool

    @classmethod
    def of(
        cls,
        inputs: Any,
        data: Any,
        fixed: Mapping[str, int],
        *,
        batch: int | None,
        epochs: int,
        shuffle: bool,
        seed: int,
        drop_last: bool,
    ) -> Plan:
        """Refuse what cannot be split into batches that the program takes.

        Args:
            inputs: The inputs class of the loss.
            data: The data set.
            fixed: The dims that were bound when the handle was made.
            batch: Rows per step, if given.
            epochs: See `Plan`.
            shuffle: See `Plan`.
            seed: See `Plan`.
            drop_last: See `Plan`.
        """
        name = frontend.name_of(inputs)
        if not isinstance(data, inputs):
            hint = f"{name}(**arrays) checks the arrays and holds them" if isinstance(data, Mapping) else None
            raise InputError(f"fit: expected a {name} value, got {type(data).__name__}", hint=hint)
        dim, rows, whole = split_rows("fit", data)
        for key, spec in frontend.specs(inputs).items():
            if dim in spec.dims[1:]:
                raise InputError(
                    f"fit: {name}.{key}, declared as {spec!r}, has dim {dim!r} beyond axis 0, so it has no rows to pick"
                )
        dims = frontend.batch_dims(data)
        size = _batch_size(f"dim {dim!r} of {name}", fixed.get(dim), batch, dims[dim], drop_last=drop_last)
        int_option("fit: epochs", epochs, 1)
        int_option("fit: seed", seed, 0)
        return cls(dim, dims, rows, whole, size, epochs, shuffle, seed, drop_last)

    @property
    def size(self) -> int:
        """The number of rows."""
        return self.dims[self.dim]

    @property
    def sizes(self) -> list[int]:
        """The rows of each step of an epoch."""
        full, rest = divmod(self.size, self.batch)
        return [self.batch] * full + [rest] * (rest > 0 and not self.drop_last)

    def step_dims(self, rows: int) -> dict[str, int]:
        """The dims of a step that reads so many rows."""
        return {**self.dims, self.dim: rows}

    def steps(self) -> Iterator[tuple[Rows, bool]]:
        """The rows of each step, and whether it is the last one of an epoch."""
        sizes = self.sizes
        for epoch in range(self.epochs):
            order = epoch_order(self.size, epoch, shuffle=self.shuffle, seed=self.seed).astype(np.int32)
            at = 0
            for i, size in enumerate(sizes, 1):
                yield order[at : at + size], i == len(sizes)
                at += size


def _batch_size(dim: str, bound: int | None, batch: int | None, rows: int, *, drop_last: bool) -> int:
    if batch is None and bound is None:
        raise OptionError(f"fit: batch is missing, and {dim} was not bound", hint="fit(data, batch=...)")
    size = bound if batch is None else int_option("fit: batch", batch, 1)
    assert size is not None
    if bound is not None and size != bound:
        raise OptionError(f"fit: batch is {size}, but {dim} was compiled as {bound}")
    if size > rows and drop_last:
        hint = "pass drop_last=False to get one short batch" if bound is None else None
        raise OptionError(f"fit: batch {size} is larger than the data ({rows})", hint=hint)
    if bound is not None and not drop_last and rows % size:
        raise OptionError(
            f"fit: the last batch has {rows % size} rows, but {dim} was compiled as {bound}",
            hint="pass drop_last=True, or leave the dim out of dims= of compile_module",
        )
    return size


class Fitting:
    """A fit as it runs."""

    def __init__(
        self, plan: Plan, read_every: int | None, callback: Callback | None, steps_done: Callable[[], int]
    ) -> None:
        """Check when to call `callback`."""
        if read_every is not None:
            int_option("fit: read_every", read_every, 1)
            if callback is None:
                raise OptionError("fit: read_every says when callback is called, but there is no callback")
        self._plan, self._every, self._callback = plan, read_every, callback
        self._steps_done = steps_done
        self._open: deque[StepResult] = deque()
        self._losses: list[float] = []

    def run(self, launch: Launch) -> FitResult:
        """Submit every step, several at once, and gather the losses."""
        waiting: list[Rows] = []
        for rows, last in self._plan.steps():
            if waiting and len(rows) != len(waiting[0]):
                self._flush(launch, waiting)
            waiting.append(rows)
            due = self._due(len(waiting), last=last)
            if due or len(waiting) == GROUP:
                result = self._flush(launch, waiting)
                if due and self._callback is not None and self._callback(result):
                    break
        if waiting:
            self._flush(launch, waiting)
        self._read(len(self._open))
        return self._result()

    def _due(self, waiting: int, *, last: bool) -> bool:
        """Whether the callback wants the step that was put last."""
        if self._callback is None:
            return False
        return last if self._every is None else (self._steps_done() + waiting) % self._every == 0

    def _flush(self, launch: Launch, waiting: list[Rows]) -> StepResult:
        results = launch(waiting)
        waiting.clear()
        self._open += results
        if len(self._open) > 2 * BEHIND:
            self._read(BEHIND)
        return results[-1]

    def _read(self, count: int) -> None:
        """Take the oldest losses; whether a step was not finite is asked once for all of them."""
        results = [self._open.popleft() for _ in range(count)]
        if results:
            float(results[-1])
        self._losses += [float(r.unchecked()["loss"]) for r in results]

    def _result(self) -> FitResult:
        sizes = self._plan.sizes
        losses = np.array(self._losses, np.float32)
        epochs = (losses[i : i + len(sizes)] for i in range(0, len(losses), len(sizes)))
        means = tuple(float(np.average(e.astype(np.float64), weights=sizes[: len(e)])) for e in epochs)
        return FitResult(losses, means)
