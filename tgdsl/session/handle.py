"""What handles of training and of inference have in common: facts, parameters, the end."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from tgdsl.errors import HandleError
from tgdsl.ir import Graph
from tgdsl.optim.step import StepGraphs
from tgdsl.pipeline import Loaded, describe

from .programs import Programs, Variant
from .weights import Weights

M = TypeVar("M")


class Handle(Generic[M]):
    """A forward compiled for a device.

    Every call takes the lock of the device, so calls of any thread and handle have one
    order, and what is read or written lies between the steps around it.
    """

    _variant: Variant = "run"

    def __init__(self, name: str, weights: Weights) -> None:
        """Subclasses add their programs."""
        self._name = name
        self._weights = weights
        self._alive = True
        self._programs: Programs

    # Parameters

    def upload_params(self, params: Mapping[str, NDArray[np.float32]], *, partial: bool = False) -> None:
        """Replace parameters by name; nothing is written unless all of them fit.

        Args:
            params: An f32 array of the declared shape for each name.
            partial: Keep the values of names that are missing, instead of refusing.
        """
        with self._weights.lock:
            self._require_alive()
            self._weights.check_params(params, partial=partial)
            self._weights.write(params)
            self._weights.clear_health()

    def download_params(self) -> dict[str, NDArray[np.float32]]:
        """Every parameter by name, after everything submitted so far."""
        with self._weights.lock:
            self._require_alive()
            return self._weights.download_params()

    def upload_state(self, state: Mapping[str, NDArray[np.float32]], *, partial: bool = False) -> None:
        """Replace persistent tensors of modules by name, as `upload_params` does parameters."""
        with self._weights.lock:
            self._require_alive()
            self._weights.check_state(state, partial=partial)
            self._weights.write_state(state)

    def download_state(self) -> dict[str, NDArray[np.float32]]:
        """Every persistent tensor of modules by name."""
        with self._weights.lock:
            self._require_alive()
            return self._weights.download_state()

    # Facts

    @property
    def model(self) -> M:
        """The model, as given."""
        model: M = self._weights.model
        return model

    @property
    def seed(self) -> int:
        """What parameters and random ops are drawn from."""
        return self._weights.seed

    @property
    def device(self) -> str:
        """The backend, what it runs on, and why it was chosen."""
        return describe(self._weights.engine)

    @property
    def param_names(self) -> tuple[str, ...]:
        """The names of all parameters in the order of declaration."""
        return self._weights.order

    @property
    def ir(self) -> Graph:
        """The traced graph, once all dims are bound."""
        return self._current("ir").graph

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of what the forward returns, once all dims are bound."""
        (out,) = self._current("output_shape").graph.outputs
        return tuple(int(n) for n in out.shape)

    @property
    def kernel_count(self) -> int:
        """Dispatches per call (NumPy calls on that backend), once all dims are bound."""
        return self._compiled("kernel_count").kernel_count

    @property
    def bytes_moved(self) -> int:
        """Bytes that a call reads and writes, once all dims are bound."""
        return self._compiled("bytes_moved").bytes_moved

    def _current(self, what: str) -> StepGraphs:
        with self._weights.lock:
            return self._programs.current(what).step

    def _compiled(self, what: str) -> Loaded:
        with self._weights.lock:
            self._require_alive()
            return self._programs.current(what).variant(self._variant, self._weights)

    def compile(self, **dims: int) -> Self:
        """Bind dims by name and compile ahead of the first call."""
        with self._weights.lock:
            self._require_alive()
            self._programs.compile(dims).variant(self._variant, self._weights)
            return self

    # End

    def _require_alive(self) -> None:
        if not self._alive:
            raise HandleError(f"the handle of {self._name} was destroyed")
        self._weights.require_alive()

    def destroy(self) -> None:
        """Free what the handle owns; results of earlier calls stay readable."""
        with self._weights.lock:
            if self._alive:
                self._alive = False
                self._weights.settle()
                self._programs.forget()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.destroy()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name} of {self.model!r} on {self._weights.engine.name}>"
