"""The handle of a training run: steps, evaluation, parameters, optimizer state."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, ParamSpec, TypeVar

import attrs
import numpy as np
from numpy.typing import NDArray

from tgdsl import checkpoint, frontend
from tgdsl.errors import DeclarationError, HandleError, InputError, OptionError, int_option
from tgdsl.frontend import Forward
from tgdsl.lr import Schedule, check_schedule
from tgdsl.optim.base import Optimizer
from tgdsl.optim.step import StepGraphs
from tgdsl.pipeline import trace_loss
from tgdsl.program import StepData

from . import persist
from .handle import Handle
from .inference import Inference
from .persist import Progress
from .programs import Bound, Programs, Variant, log
from .results import RunResult, StepResult
from .seeds import check_seed, step_key
from .weights import Weights

M = TypeVar("M")
B = TypeVar("B")
P = ParamSpec("P")
B2 = TypeVar("B2")
P2 = ParamSpec("P2")
S2 = TypeVar("S2", bound=np.generic)

GROUP = 16
"""Steps that `steps` puts into one submission at most, unless told."""


class Trained(Handle[M], Generic[M, B, P]):
    """A compiled training step with its parameters and optimizer state."""

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
        """Made by `compile_module`."""
        super().__init__(loss.__name__, weights)
        self._loss = loss
        self._optimizer = optimizer
        self._check_finite = check_finite
        self._progress = Progress(0, 0.0 if optimizer is None else optimizer.lr)
        self._children: list[Inference[Any, Any, Any, Any]] = []
        with weights.lock:
            self._programs = Programs(loss.__name__, loss.inputs, dims, self._trace, weights)

    def _trace(self, dims: Mapping[str, int]) -> StepGraphs:
        weights = self._weights
        step = trace_loss(weights.model, self._loss, weights.layout, dims, check_finite=self._check_finite)
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
        weights = self._weights
        with weights.lock:
            self._require_alive()
            weights.require_finite()
            bound = self._programs.bound(frontend.batch_dims(batches[0]))
            first = self._progress.step + 1
            data = [
                StepData(frontend.batch_arrays(batch), self._scalars(bound, first + i))
                for i, batch in enumerate(batches)
            ]
            tickets = bound.variant(variant, weights).executable.submit(data)
            self._progress.step += len(batches)
            self._programs.running = True
            results = [
                StepResult(ticket, bound.shapes, first + i, self._check(first + i)) for i, ticket in enumerate(tickets)
            ]
            weights.pending.update(results)
            return results

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

    def compile_forward(
        self, forward: Forward[M, B2, P2, S2], *, dims: Mapping[str, int] | None = None
    ) -> Inference[M, B2, P2, S2]:
        """A handle that evaluates `forward` with the parameters of this one."""
        with self._weights.lock:
            self._require_alive()
            made = Inference(forward, dims, self._weights, owner=False)
            self._children.append(made)
            return made

    def replace_model(self, model: M, *, seed: int | None = None, optimizer: Optimizer | None = None) -> None:
        """Go on with another model of the same class: the same handle, fresh parameters.

        Optimizer state, step counter and learning rate start over. Forwards compiled from
        this handle stay usable. If the new model is refused, nothing has changed.

        Args:
            model: The new model.
            seed: What its parameters are drawn from; random when omitted.
            optimizer: Other settings of the same kind of optimizer.
        """
        with self._weights.lock:
            self._require_alive()
            chosen = self._optimizer if optimizer is None else optimizer
            if getattr(chosen, "kind", None) != getattr(self._optimizer, "kind", None):
                raise OptionError("replace_model: the optimizer must be of the same kind")
            if not isinstance(model, type(self.model)):
                wanted, got = type(self.model).__name__, type(model).__name__
                raise DeclarationError(f"replace_model: expected a {wanted}, got {got}")
            fresh = Weights.create(
                model,
                chosen,
                check_seed(seed),
                self._weights.engine,
                trained=True,
                check_finite=self._check_finite,
            )
            try:
                # Everything that can be refused is tried on a second handle first.
                dims = self._programs.fixed
                Trained(self._loss, chosen, dims, fresh, check_finite=self._check_finite)
            except BaseException:
                fresh.destroy()
                raise
            for programs in (self._programs, *(child._programs for child in self._children)):
                programs.forget()
            self._weights.become(fresh)
            self._optimizer = chosen
            self._progress = Progress(0, 0.0 if chosen is None else chosen.lr)
            log.info("replace_model: parameters are new, optimizer state and step counter start over")

    # Parameters and optimizer state

    def download_param_grads(self, *names: str) -> dict[str, NDArray[np.float32]]:
        """The gradients of the last step before clipping, all or those named; zeros before the first."""
        with self._weights.lock:
            self._require_alive()
            persist.check_grad_names(self._weights, names)
            grads = self._weights.download(self._weights.params, "grads")
            return {n: grads[n] for n in names or grads}

    def save_params(self, path: str | os.PathLike[str]) -> None:
        """Write parameters, states, optimizer state and step counter to an `.npz` file."""
        with self._weights.lock:
            self._require_alive()
            held = persist.collect(self._weights, self._optimizer, self._progress)
        checkpoint.save(path, held)

    def load_params(self, path: str | os.PathLike[str], *, partial: bool = False, optimizer: bool = True) -> None:
        """Read what `save_params` wrote; training then goes on as if it had not stopped.

        Args:
            path: The file.
            partial: Keep the values of parameters that the file lacks.
            optimizer: Also restore optimizer state, step counter, seed and learning rate;
                otherwise the optimizer starts anew.
        """
        held = checkpoint.load(path)
        with self._weights.lock:
            self._require_alive()
            resumed = persist.restore(self._weights, self._optimizer, held, partial=partial, with_optimizer=optimizer)
            if resumed is None:
                self._restart()
            else:
                self._progress, self._weights.seed = resumed
                self._weights.clear_health()

    def reset(self) -> None:
        """Start over with the same seed: n steps from here equal those of a fresh handle."""
        with self._weights.lock:
            self._require_alive()
            self._weights.zero(["grads"])
            self._weights.initialise()
            self._progress = Progress(0, 0.0 if self._optimizer is None else self._optimizer.lr)
            self._restart()

    def reset_optimizer_state(self) -> None:
        """Zero the moments and the step counter; a schedule begins again."""
        with self._weights.lock:
            self._require_alive()
            self._restart()

    def _restart(self) -> None:
        update = self._weights.update
        self._weights.zero(() if update is None else update.moments)
        self._weights.clear_health()
        self._progress = Progress(0, self._progress.lr)

    def set_lr(self, lr: Schedule) -> None:
        """Use another learning rate from the next step on, which is step 1 of a schedule.

        A schedule with `start_step` counts from there instead.
        """
        check_schedule(lr, "set_lr")
        with self._weights.lock:
            self._require_alive()
            if self._optimizer is None:
                raise HandleError("set_lr: the handle was compiled without an optimizer")
            absolute = isinstance(lr, (int, float)) or lr.start_step is not None
            self._progress.lr = lr
            self._progress.lr_start = 0 if absolute else self._progress.step

    # Facts

    @property
    def optimizer(self) -> Optimizer | None:
        """The optimizer, as given."""
        return self._optimizer

    @property
    def lr(self) -> Schedule:
        """The learning rate in use."""
        return self._progress.lr

    @property
    def steps_done(self) -> int:
        """Steps submitted since the start or the last reset, with those before a file that was loaded."""
        return self._progress.step

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of the loss."""
        return ()

    def destroy(self) -> None:
        """Free everything, also of the forwards compiled from it; results stay readable."""
        with self._weights.lock:
            for child in self._children:
                child.destroy()
            super().destroy()
            self._weights.destroy()


class CapturingTrained(Generic[P]):
    """`step` and `run` with captures."""

    def __init__(self, handle: Trained[Any, Any, P]) -> None:
        """Made by `Trained.with_captures`."""
        self._handle = handle

    def step(self, *args: P.args, **kwargs: P.kwargs) -> StepResult:
        """As `Trained.step`; the result's `captures` are read."""
        handle = self._handle
        return handle._submit([handle._loss.inputs(*args, **kwargs)], "step+captures")[0]

    def run(self, *args: P.args, **kwargs: P.kwargs) -> RunResult[np.float32]:
        """As `Trained.run`; the result's `captures` are read."""
        handle = self._handle
        return handle._run(handle._loss.inputs(*args, **kwargs), "run+captures")
