"""The tensors of one model on one device, shared by every handle made for it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakSet

import attrs
import numpy as np
from numpy.typing import NDArray

from tgdsl import frontend
from tgdsl.errors import HandleError, NonFiniteError, ParameterError
from tgdsl.optim.base import Optimizer
from tgdsl.optim.scaling import GOOD_STEPS, SCALE, UNSCALE, initial_scaling
from tgdsl.optim.step import ArenaLayout
from tgdsl.optim.update import HEALTH, Update
from tgdsl.pipeline import Layout, Precision, arenas_of, layout_of, lock_of, make_update
from tgdsl.program import Engine, Store

from .results import Pending

F32Array = NDArray[np.float32]


def pack(layout: ArenaLayout, arrays: Mapping[str, F32Array], into: F32Array | None = None) -> F32Array:
    """A flat arena with the arrays at their places, over `into` or zeros."""
    flat = np.zeros(layout.size, np.float32) if into is None else into
    for name, segment in layout.segments.items():
        if name in arrays:
            flat[segment.offset : segment.offset + segment.size] = arrays[name].reshape(-1)
    return flat


def unpack(layout: ArenaLayout, flat: F32Array) -> dict[str, F32Array]:
    """The arrays of a flat arena, as copies that do not keep it alive."""
    return {name: flat[s.offset : s.offset + s.size].reshape(s.shape).copy() for name, s in layout.segments.items()}


@attrs.define(eq=False)
class Weights:
    """Parameters, states and moments in the arenas of a store.

    Attributes:
        engine: Where they are.
        lock: Held by every call of every handle on the device, so that calls from any
            thread have one order and the device sees them in it.
        model: What they are the parameters of.
        layout: Where they lie.
        update: The optimizer for that layout.
        seed: What they were drawn from.
        store: The arenas.
        tune: Whether programs that use them are compiled with timed tilings.
        pending: Results whose step may still be running.
        bad_step: The first step that was not finite, once it is known.
        precision: How values between kernels are stored.
    """

    engine: Engine
    lock: threading.RLock
    model: Any
    layout: Layout
    update: Update | None
    seed: int
    store: Store
    tune: bool = False
    pending: WeakSet[Pending] = attrs.field(factory=WeakSet)
    alive: bool = True
    bad_step: int = 0
    precision: Precision = "f32"

    @classmethod
    def create(
        cls,
        model: object,
        optimizer: Optimizer | None,
        seed: int,
        engine: Engine,
        *,
        trained: bool,
        check_finite: bool = False,
        precision: Precision = "f32",
        tune: bool = False,
    ) -> Weights:
        """Allocate the arenas of a model and draw its parameters."""
        layout = layout_of(model, optimizer)
        update = None
        if optimizer is not None:
            update = make_update(optimizer, layout, check_finite=check_finite, precision=precision)
        lock = lock_of(engine)
        with lock:
            store = engine.allocate(arenas_of(layout, update, trained=trained))
            made = cls(engine, lock, model, layout, update, seed, store, tune=tune, precision=precision)
            for name, table in ({} if update is None else update.tables).items():
                store.write(name, table)
            made.initialise()
            made.restart()
        return made

    def initialise(self) -> None:
        """Draw every parameter from its own stream of the seed, and set the states."""
        self.write(frontend.initial_values(self.model, self.seed))
        self.write_state(frontend.initial_state(self.model))

    def restart(self) -> None:
        """Set the loss scale, if there is one, to what it is before the first step."""
        for name, values in ({} if self.update is None else self.update.restarts).items():
            self.store.write(name, values)

    def become(self, other: Weights) -> None:
        """Take over the model and the arenas of `other`, which must not be used any more."""
        self.settle()
        self.store.destroy()
        self.model, self.layout, self.update = other.model, other.layout, other.update
        self.seed, self.store, self.bad_step = other.seed, other.store, 0

    @property
    def order(self) -> tuple[str, ...]:
        """The names of all parameters as declared."""
        return self.layout.order

    @property
    def params(self) -> ArenaLayout:
        """Where trainable parameters lie."""
        return self.layout.params

    @property
    def frozen(self) -> ArenaLayout:
        """Where the other parameters lie."""
        return self.layout.frozen

    @property
    def state(self) -> ArenaLayout:
        """Where persistent tensors of modules lie."""
        return self.layout.state

    def require_alive(self) -> None:
        """Refuse a call after `destroy`."""
        if not self.alive:
            raise HandleError("the handle was destroyed; its parameters are gone")

    def require_finite(self) -> None:
        """Refuse a call after a step that was not finite."""
        if self.bad_step:
            raise NonFiniteError(
                f"step {self.bad_step}: a gradient or the loss is not finite; "
                f"the parameters are those after step {self.bad_step - 1}",
                hint="reset(), load_params() or upload_params() makes the handle usable again",
            )

    def check_health(self, step: int) -> None:
        """Read the device's verdict; raises for the bad step and those after it."""
        with self.lock:
            if self.alive and not self.bad_step and HEALTH in self.store.sizes():
                self.bad_step = int(self.store.read(HEALTH)[0])
            if self.bad_step and step >= self.bad_step:
                self.require_finite()

    def clear_health(self) -> None:
        """Forget a step that was not finite."""
        self.bad_step = 0
        self.zero([HEALTH])

    def zero(self, arenas: Iterable[str]) -> None:
        """Fill those of the arenas that exist with zeros."""
        for name, size in self.store.sizes().items():
            if name in arenas:
                self.store.write(name, np.zeros(size, np.float32))

    def settle(self) -> None:
        """Wait for everything submitted, so that its results survive what comes next."""
        for result in list(self.pending):
            result.settle()

    def destroy(self) -> None:
        """Free the arenas."""
        if self.alive:
            self.settle()
            if HEALTH in self.store.sizes():
                self.bad_step = self.bad_step or int(self.store.read(HEALTH)[0])
            self.alive = False
            self.store.destroy()

    # Reading and writing by name

    def download(self, layout: ArenaLayout, arena: str) -> dict[str, F32Array]:
        """The arrays of an arena."""
        return unpack(layout, self.store.read(arena)) if layout.size else {}

    def download_params(self) -> dict[str, F32Array]:
        """All parameters in the order of declaration."""
        found = {**self.download(self.params, "params"), **self.download(self.frozen, "frozen")}
        return {name: found[name] for name in self.order}

    def download_grads(self) -> dict[str, F32Array]:
        """The gradients of all trainable parameters, those of a scaled loss divided by the scale of that step."""
        grads = self.download(self.params, "grads")
        if UNSCALE not in self.store.sizes():
            return grads
        factor = self.store.read(UNSCALE)[0]
        return {name: g * factor for name, g in grads.items()}

    def scaling(self) -> tuple[float, int] | None:
        """The loss scale and the steps since it last changed; None where the loss is not scaled."""
        if SCALE not in self.store.sizes():
            return None
        return float(self.store.read(SCALE)[0]), int(self.store.read(GOOD_STEPS)[0])

    def set_scaling(self, scale: float, good_steps: int) -> None:
        """Go on with a loss scale from a file."""
        if SCALE in self.store.sizes():
            for name, values in initial_scaling(scale, good_steps).items():
                self.store.write(name, values)

    def download_state(self) -> dict[str, F32Array]:
        """All persistent tensors of modules."""
        return self.download(self.state, "state")

    def check_params(self, arrays: Mapping[str, Any], *, partial: bool) -> None:
        """Refuse unknown and missing names, and what is not an f32 array of the right shape."""
        shapes = {n: s.shape for layout in (self.params, self.frozen) for n, s in layout.segments.items()}
        check_arrays("parameter", shapes, arrays, partial=partial)

    def check_state(self, arrays: Mapping[str, Any], *, partial: bool) -> None:
        """As `check_params`, for persistent tensors of modules."""
        shapes = {n: s.shape for n, s in self.state.segments.items()}
        check_arrays("state", shapes, arrays, partial=partial)

    def write(self, arrays: Mapping[str, F32Array]) -> None:
        """Replace parameters that were checked."""
        self._write(self.params, "params", arrays)
        self._write(self.frozen, "frozen", arrays)

    def write_state(self, arrays: Mapping[str, F32Array]) -> None:
        """Replace states that were checked."""
        self._write(self.state, "state", arrays)

    def _write(self, layout: ArenaLayout, arena: str, arrays: Mapping[str, F32Array]) -> None:
        mine = layout.segments.keys() & arrays.keys()
        if mine:
            whole = mine == layout.segments.keys()
            self.store.write(arena, pack(layout, arrays, None if whole else self.store.read(arena)))


def check_arrays(what: str, shapes: Mapping[str, tuple[int, ...]], arrays: Mapping[str, Any], *, partial: bool) -> None:
    """Refuse names and arrays that do not fit `shapes`."""
    if unknown := [n for n in arrays if n not in shapes]:
        raise ParameterError(f"unknown {what} {unknown[0]!r}; the model has: {', '.join(shapes) or 'none'}")
    if not partial and (missing := [n for n in shapes if n not in arrays]):
        raise ParameterError(
            f"missing {what}{'s' if len(missing) > 1 else ''}: {', '.join(missing)}",
            hint="pass partial=True to keep the values of those",
        )
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype != np.float32:
            got = f"{array.dtype} array" if isinstance(array, np.ndarray) else type(array).__name__
            raise ParameterError(
                f"{what} {name!r}: expected an f32 array, got {got}",
                hint="np.asarray(x, dtype=np.float32)",
            )
        if array.shape != shapes[name]:
            raise ParameterError(f"{what} {name!r}: expected shape {list(shapes[name])}, got {list(array.shape)}")
