"""The handle of a training run: parameters, optimizer state, and what shares them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from tgdsl import checkpoint
from tgdsl.errors import DeclarationError, HandleError, OptionError
from tgdsl.frontend import Forward
from tgdsl.lr import Schedule, check_schedule
from tgdsl.optim.base import Optimizer
from tgdsl.pipeline import Precision

from . import persist
from .inference import Inference
from .persist import Progress
from .programs import log
from .seeds import check_seed
from .stepping import Stepping
from .weights import Weights

M = TypeVar("M")
B = TypeVar("B")
P = ParamSpec("P")
B2 = TypeVar("B2")
P2 = ParamSpec("P2")
S2 = TypeVar("S2", bound=np.generic)


class Trained(Stepping[M, B, P], Generic[M, B, P]):
    """A compiled training step with its parameters and optimizer state."""

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
        super().__init__(loss, optimizer, dims, weights, check_finite=check_finite)
        self._children: list[Inference[Any, Any, Any, Any]] = []

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
                precision=self._weights.precision,
                tune=self._weights.tune,
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
        """The gradients of the last step before clipping, all or those named; zeros before the first.

        With `precision="f16"` they are those of the loss itself: what the device holds is divided by
        the loss scale of that step. After a step that was skipped some are infinite or NaN.
        """
        with self._weights.lock:
            self._require_alive()
            persist.check_grad_names(self._weights, names)
            grads = self._weights.download_grads()
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
        self._weights.restart()
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
    def precision(self) -> Precision:
        """How values between kernels are stored."""
        return self._weights.precision

    @property
    def loss_scale(self) -> float:
        """What the loss of the next step is multiplied by for its gradients; waits for the device, 1 with f32."""
        with self._weights.lock:
            self._require_alive()
            found = self._weights.scaling()
            return 1.0 if found is None else found[0]

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
