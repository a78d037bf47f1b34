"""The handle of a forward that is only evaluated."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np

from tgdsl import checkpoint, frontend
from tgdsl.frontend import Forward
from tgdsl.optim.step import StepGraphs
from tgdsl.pipeline import trace_forward
from tgdsl.program import StepData

from .handle import Handle
from .programs import Programs, Variant
from .results import RunResult
from .seeds import evaluation_key
from .weights import Weights

M = TypeVar("M")
B = TypeVar("B")
P = ParamSpec("P")
S = TypeVar("S", bound=np.generic)


class Inference(Handle[M], Generic[M, B, P, S]):
    """A compiled forward; it owns its parameters or shares those of a training handle."""

    def __init__(
        self,
        forward: Forward[M, B, P, S],
        dims: Mapping[str, int] | None,
        weights: Weights,
        *,
        owner: bool,
    ) -> None:
        """Made by `compile_forward`."""
        super().__init__(forward.__name__, weights)
        self._forward = forward
        self._owner = owner
        self._runs = 0
        with weights.lock:
            self._programs = Programs(forward.__name__, forward.inputs, dims, self._trace, weights)

    def _trace(self, dims: Mapping[str, int]) -> StepGraphs:
        return trace_forward(self.model, self._forward, self._weights.layout, dims)

    # Calls

    def run(self, *args: P.args, **kwargs: P.kwargs) -> RunResult[S]:
        """Evaluate the forward; returns at once, the result waits when it is read."""
        return self._run(self._forward.inputs(*args, **kwargs), "run")

    @property
    def with_captures(self) -> CapturingInference[P, S]:
        """The same call, reading the captures too."""
        return CapturingInference(self)

    def _run(self, batch: object, variant: Variant) -> RunResult[S]:
        with self._weights.lock:
            self._require_alive()
            bound = self._programs.bound(frontend.batch_dims(batch))
            scalars = evaluation_key(self.seed, self._runs + 1) if bound.keyed else {}
            loaded = bound.variant(variant, self._weights)
            data = StepData(frontend.batch_arrays(batch), scalars)
            (ticket,) = loaded.executable.submit([data])
            self._runs += 1
            self._programs.running = True
            result: RunResult[S] = RunResult(ticket, bound.shapes)
            self._weights.pending.add(result)
            return result

    # Files

    def save_params(self, path: str | os.PathLike[str]) -> None:
        """Write parameters and states to an `.npz` file."""
        with self._weights.lock:
            self._require_alive()
            held = checkpoint.Checkpoint(self._weights.download_params(), self._weights.download_state())
        checkpoint.save(path, held)

    def load_params(self, path: str | os.PathLike[str], *, partial: bool = False) -> None:
        """Read parameters and states from an `.npz` file; what an optimizer saved there is ignored."""
        held = checkpoint.load(path)
        with self._weights.lock:
            self._require_alive()
            self._weights.check_params(held.params, partial=partial)
            self._weights.check_state(held.state, partial=partial)
            self._weights.write(held.params)
            self._weights.write_state(held.state)

    def destroy(self) -> None:
        """Free its programs, and its parameters unless it shares them; results stay readable."""
        with self._weights.lock:
            super().destroy()
            if self._owner:
                self._weights.destroy()


class CapturingInference(Generic[P, S]):
    """`run` with captures."""

    def __init__(self, handle: Inference[Any, Any, P, S]) -> None:
        """Made by `Inference.with_captures`."""
        self._handle = handle

    def run(self, *args: P.args, **kwargs: P.kwargs) -> RunResult[S]:
        """As `Inference.run`; the result's `captures` are read."""
        handle = self._handle
        return handle._run(handle._forward.inputs(*args, **kwargs), "run+captures")
