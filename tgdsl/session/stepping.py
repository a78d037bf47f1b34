"""The calls of a training handle that run steps: one by one, from batches, or from a data set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, ParamSpec, TypeVar

import attrs
import numpy as np
from numpy.typing import NDArray

from tgdsl import frontend
from tgdsl.errors import InputError, int_option
from tgdsl.frontend import Forward
from tgdsl.optim.base import Optimizer
from tgdsl.optim.step import StepGraphs
from tgdsl.pipeline import trace_loss
from tgdsl.program import Dataset, Pick, StepData

from .fit import GROUP, Callback, FitResult, Fitting, Plan, Rows
from .handle import Handle
from .persist import Progress
from .programs import Bound, Programs, Variant
from .results import RunResult, StepResult
from .seeds import step_key
from .weights import Weights

M = TypeVar("M")
B = TypeVar("B")
P = ParamSpec("P")


class Stepping(Handle[M], Generic[M, B, P]):
    """A compiled training step and the ways to run it."""

    _variant: Variant = "step"

    def __init__(
        self,
        loss: Forward[M, B, P, np.float32],
        optimizer: Optimizer | None,
        dims: Mapping[str, int] | None,
        weights: Weights,
        *,
        check_finite: bool,
    ) -> None:
        """Trace and compile if every dim is bound."""
        super().__init__(loss.__name__, weights)
        self._loss = loss
        self._optimizer = optimizer
        self._check_finite = check_finite
        self._progress = Progress(0, 0.0 if optimizer is None else optimizer.lr)
        with weights.lock:
            self._programs = Programs(loss.__name__, loss.inputs, dims, self._trace, weights)

    def _trace(self, dims: Mapping[str, int]) -> StepGraphs:
        weights = self._weights
        step = trace_loss(
            weights.model,
            self._loss,
            weights.layout,
            dims,
            check_finite=self._check_finite,
            precision=weights.precision,
        )
        return attrs.evolve(step, update=None if weights.update is None else weights.update.graph)

    # Calls

    def step(self, *args: P.args, **kwargs: P.kwargs) -> StepResult:
        """Train on one batch; returns at once, the loss waits when it is read."""
        return self._submit([self._loss.inputs(*args, **kwargs)], "step")[0]

    def run(self, *args: P.args, **kwargs: P.kwargs) -> RunResult[np.float32]:
        """Evaluate the loss that the next step would have, changing nothing."""
        return self._run(self._loss.inputs(*args, **kwargs), "run")

    @property
    def with_captures(self) -> CapturingTrained[P]:
        """The same calls, reading the captures too."""
        return CapturingTrained(self)

    def steps(self, batches: Iterable[B], *, read_every: int = 1, group: int | None = None) -> Iterator[StepResult]:
        """Train on each batch, yielding the result of every `read_every`-th step.

        Args:
            batches: Values of the loss's inputs class.
            read_every: Steps per yielded result; those between are never read.
            group: Steps per submission at most; a submission also ends where a result is yielded.
        """
        int_option("steps: read_every", read_every, 1)
        return self._steps(batches, read_every, GROUP if group is None else int_option("steps: group", group, 1))

    def _steps(self, batches: Iterable[B], read_every: int, group: int) -> Iterator[StepResult]:
        waiting: list[B] = []
        try:
            for batch in batches:
                self._check_batch(batch)
                if waiting and frontend.batch_dims(batch) != frontend.batch_dims(waiting[0]):
                    self._flush(waiting)
                waiting.append(batch)
                number = self._progress.step + len(waiting)
                if number % read_every == 0:
                    yield self._flush(waiting)[-1]
                elif len(waiting) >= group:
                    self._flush(waiting)
        finally:
            # Batches taken before an error of the source are steps like any other.
            if waiting:
                self._flush(waiting)

    def _flush(self, waiting: list[B]) -> list[StepResult]:
        batches = list(waiting)
        waiting.clear()
        return self._submit(batches, "step")

    def _check_batch(self, batch: object) -> None:
        if not isinstance(batch, self._loss.inputs):  # type: ignore[arg-type]
            raise InputError(
                f"steps: expected {frontend.name_of(self._loss.inputs)} values, got {type(batch).__name__}"
            )

    def _submit(self, batches: Sequence[object], variant: Variant) -> list[StepResult]:
        sources = [frontend.batch_arrays(batch) for batch in batches]
        return self._launch(frontend.batch_dims(batches[0]), sources, variant)

    def _launch(
        self, dims: Mapping[str, int], sources: Sequence[Mapping[str, NDArray[Any]] | Pick], variant: Variant
    ) -> list[StepResult]:
        weights = self._weights
        with weights.lock:
            self._require_alive()
            weights.require_finite()
            bound = self._programs.bound(dims)
            first = self._progress.step + 1
            data = [_step_data(source, self._scalars(bound, first + i)) for i, source in enumerate(sources)]
            tickets = bound.variant(variant, weights).executable.submit(data)
            self._progress.step += len(sources)
            self._programs.running = True
            results = [
                StepResult(ticket, bound.shapes, first + i, self._check(first + i)) for i, ticket in enumerate(tickets)
            ]
            weights.pending.update(results)
            return results

    def fit(
        self,
        data: B,
        *,
        epochs: int = 1,
        batch: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = True,
        read_every: int | None = None,
        callback: Callback | None = None,
    ) -> FitResult:
        """Train on a data set that is uploaded once and stays on the device until the call returns.

        Each step uploads nothing but the numbers of its rows. The batches are those of
        `minibatches(data, batch, shuffle=shuffle, seed=seed)`, each epoch one `for` over
        it, so training is the same as with `steps`; every call begins with epoch 0, so give
        another seed to go on in another order.

        Args:
            data: The whole data set as one value of the loss's inputs class. The inputs that
                begin with the same named dim as the first one are its rows; every step
                reads the others as they are.
            epochs: How often to go through the data.
            batch: Rows per step; by default what the dim was bound to.
            shuffle: Draw the rows of an epoch in random order.
            seed: What the order is drawn from.
            drop_last: Leave out the rest that does not fill a batch; it needs a program of its own.
            read_every: Steps per call of `callback`, by default those of an epoch.
            callback: Gets the result of that step before the next one is submitted, so it may
                evaluate, save, or set the learning rate; reading the loss there waits for
                the device, as in `steps`. Where it returns True, training stops.

        Returns:
            The loss of every step and the mean of each epoch.

        Raises:
            InputError: If `data` is no value of the inputs class, or cannot be split into rows.
            OptionError: If the batch does not fit the data or what was compiled.
        """
        plan = Plan.of(
            self._loss.inputs,
            data,
            self._programs.fixed,
            batch=batch,
            epochs=epochs,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
        )
        fitting = Fitting(plan, read_every, callback, lambda: self._progress.step)
        with self._weights.lock:
            self._require_alive()
            self._weights.require_finite()
            for size in set(plan.sizes):  # what is refused is refused before the upload
                self._programs.bound(plan.step_dims(size)).variant("step", self._weights)
            dataset = self._weights.engine.keep(plan.rows, plan.whole)
        try:
            return fitting.run(lambda rows: self._pick(plan, dataset, rows))
        finally:
            with self._weights.lock:
                dataset.destroy()

    def _pick(self, plan: Plan, dataset: Dataset, rows: Sequence[Rows]) -> list[StepResult]:
        return self._launch(plan.step_dims(len(rows[0])), [Pick(dataset, r) for r in rows], "step")

    def _scalars(self, bound: Bound, step: int) -> dict[str, float | int]:
        out: dict[str, float | int] = {}
        if self._optimizer is not None:
            out.update(self._optimizer.scalars(step, self._progress.rate(step)))
        if self._check_finite:
            out["step"] = float(step)
        if bound.keyed:
            out.update(step_key(self.seed, step))
        return out

    def _check(self, step: int) -> Any:
        if not self._check_finite:
            return None
        return lambda: self._weights.check_health(step)

    def _run(self, batch: object, variant: Variant) -> RunResult[np.float32]:
        with self._weights.lock:
            self._require_alive()
            bound = self._programs.bound(frontend.batch_dims(batch))
            scalars = step_key(self.seed, self._progress.step + 1) if bound.keyed else {}
            data = StepData(frontend.batch_arrays(batch), scalars)
            (ticket,) = bound.variant(variant, self._weights).executable.submit([data])
            self._programs.running = True
            result: RunResult[np.float32] = RunResult(ticket, bound.shapes)
            self._weights.pending.add(result)
            return result

    def evaluate(self, batches: Iterable[B]) -> float:
        """The mean loss over the batches, weighted by batch size, changing nothing."""
        total, weight = 0.0, 0
        running: list[tuple[int, RunResult[np.float32]]] = []
        for batch in batches:
            self._check_batch(batch)
            running.append((frontend.batch_size(batch), self._run(batch, "run")))
            weight += running[-1][0]
            if len(running) > GROUP:
                size, result = running.pop(0)
                total += size * float(result.output)
        if not weight:
            raise InputError("evaluate: there are no batches")
        return (total + sum(size * float(r.output) for size, r in running)) / weight


class CapturingTrained(Generic[P]):
    """`step` and `run` with captures."""

    def __init__(self, handle: Stepping[Any, Any, P]) -> None:
        """Made by `Stepping.with_captures`."""
        self._handle = handle

    def step(self, *args: P.args, **kwargs: P.kwargs) -> StepResult:
        """As `Stepping.step`; the result's `captures` are read."""
        handle = self._handle
        return handle._submit([handle._loss.inputs(*args, **kwargs)], "step+captures")[0]

    def run(self, *args: P.args, **kwargs: P.kwargs) -> RunResult[np.float32]:
        """As `Stepping.run`; the result's `captures` are read."""
        handle = self._handle
        return handle._run(handle._loss.inputs(*args, **kwargs), "run+captures")


def _step_data(source: Mapping[str, NDArray[Any]] | Pick, scalars: Mapping[str, float | int]) -> StepData:
    return StepData({}, scalars, source) if isinstance(source, Pick) else StepData(source, scalars)
