"""From declarations to something that runs: trace, differentiate, add the optimizer, load.

Each stage is called here, top to bottom, so this file is the map of the compiler.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args
from weakref import WeakKeyDictionary

import attrs

from tgdsl import frontend
from tgdsl.autograd import gradients
from tgdsl.dtypes import ITEMSIZE
from tgdsl.errors import DeviceError, GradientError, OptionError, ShapeError
from tgdsl.ir import Graph, show_shape, tracing
from tgdsl.ops import is_finite, where
from tgdsl.ops.leaves import leaves
from tgdsl.optim.base import Optimizer, decays
from tgdsl.optim.scaling import loss_scale
from tgdsl.optim.step import ArenaLayout, StepGraphs
from tgdsl.optim.update import Update, build_update
from tgdsl.passes import recognise_attention
from tgdsl.program import Engine, Executable, Program, Store
from tgdsl.reference.numpy_engine import NumpyEngine

log = logging.getLogger("tgdsl")

Backend: TypeAlias = Literal["auto", "wgpu", "numpy"]
Precision: TypeAlias = Literal["f32", "f16"]
SLOTS = 16
"""Steps that may be recorded into one submission, unless their inputs are large."""
_INPUT_BYTES = 64 << 20
"""What the inputs of all steps of a submission may take on the device."""

_engines: dict[Backend, Engine] = {}
_locks: WeakKeyDictionary[Engine, threading.RLock] = WeakKeyDictionary()
_reasons: WeakKeyDictionary[Engine, str] = WeakKeyDictionary()
_choosing = threading.Lock()


@attrs.frozen
class Layout:
    """Where every tensor of a model lies, and what its declarations say."""

    params: ArenaLayout
    frozen: ArenaLayout
    state: ArenaLayout
    decay: Mapping[str, bool]
    order: tuple[str, ...]


def layout_of(model: object, optimizer: Optimizer | None) -> Layout:
    """Lay out the parameters and states of a model."""
    declared = frontend.parameters(model)
    trainable = {n: p for n, p in declared.items() if p.trainable}
    decay = {
        name: optimizer is not None
        and decays(optimizer, name, declared=p.decay, default=frontend.init.decays_by_default(p.initial))
        for name, p in trainable.items()
    }
    return Layout(
        ArenaLayout.of((n, p.shape) for n, p in trainable.items()),
        ArenaLayout.of((n, p.shape) for n, p in declared.items() if n not in trainable),
        ArenaLayout.of((n, s.shape) for n, s in frontend.states(model).items()),
        decay,
        tuple(declared),
    )


def trace_loss(
    model: object,
    loss: Any,
    layout: Layout,
    dims: Mapping[str, int],
    *,
    check_finite: bool = False,
    precision: Precision = "f32",
) -> StepGraphs:
    """Trace a loss and append the gradient of every trainable parameter it depends on, scaled for f16."""
    graph = recognise_attention(frontend.trace(model, loss, dims=dims))
    (out,) = graph.outputs
    if out.shape != () or out.dtype != "f32":
        shown = str(out.type) if out.dtype != "f32" else show_shape(out.shape)
        sites = graph.sites(out.node)
        raise ShapeError(
            f"compile_module: {loss.__name__} must return a scalar loss, got {shown}",
            hint="reduce it with mean(...) or sum(...)",
            site=sites[0] if sites else None,
        )
    reached = {n.id for n in graph.reachable([out.node])}
    found = leaves(graph, "param")
    wanted = [n for n in layout.params.segments if n in found and found[n].id in reached]
    if not wanted:
        raise GradientError(
            f"compile_module: {loss.__name__} does not depend on any trainable parameter",
            hint="compute the loss from what the model returns",
        )
    with tracing(graph):
        seed = _seed(graph, out, check_finite=check_finite, scaled=precision == "f16")
        made = gradients(graph, out, [graph.tensor(found[n]) for n in wanted], seed)
    return StepGraphs(
        graph,
        {"loss": out, **_captures(graph)},
        layout.params,
        layout.frozen,
        layout.state,
        dict(zip(wanted, made, strict=True)),
    )


def _seed(graph: Graph, loss: Any, *, check_finite: bool, scaled: bool) -> Any:
    scale: Any = loss_scale(graph) if scaled else 1.0
    if check_finite:
        # A loss that is not finite must spoil the gradients, which is where the update looks.
        return where(is_finite(loss), scale, 3e38)
    return scale if scaled else None


def trace_forward(model: object, forward: Any, layout: Layout, dims: Mapping[str, int]) -> StepGraphs:
    """Trace a forward for evaluation; the next values of states are not computed."""
    graph = recognise_attention(frontend.trace(model, forward, dims=dims))
    (out,) = graph.outputs
    step = StepGraphs(graph, {"output": out, **_captures(graph)}, layout.params, layout.frozen, layout.state)
    return evaluation(step)


def _captures(graph: Graph) -> dict[str, Any]:
    return {f"capture:{name}": t for name, t in graph.captures.items()}


def evaluation(step: StepGraphs) -> StepGraphs:
    """The same results without gradients, update, or next values of states."""
    return attrs.evolve(step, graph=attrs.evolve(step.graph, updates={}), grads={}, update=None)


def without_captures(step: StepGraphs) -> StepGraphs:
    """The same step, reading nothing but its first result, so that captures cost nothing."""
    results = {n: t for n, t in step.results.items() if not n.startswith("capture:")}
    return attrs.evolve(step, graph=attrs.evolve(step.graph, captures={}), results=results)


def make_update(optimizer: Optimizer, layout: Layout, *, check_finite: bool, precision: Precision = "f32") -> Update:
    """The optimizer for a layout; the same for every batch size."""
    scaled = precision == "f16"
    return build_update(optimizer, layout.params, layout.decay, check_finite=check_finite, scaled=scaled)


def arenas_of(layout: Layout, update: Update | None, *, trained: bool) -> dict[str, int]:
    """The arenas that a store needs, in f32 elements."""
    sizes = {"params": layout.params.size, "frozen": layout.frozen.size, "state": layout.state.size}
    if trained:
        sizes["grads"] = layout.params.size
    if update is not None:
        for node in leaves(update.graph, "state").values():
            sizes[node.attrs["name"]] = node.type.size
    return {name: size for name, size in sizes.items() if size}


@attrs.frozen
class Loaded:
    """A step that is ready to run.

    Attributes:
        executable: Runs it.
        kernel_count: Dispatches per step (NumPy calls on that backend).
        bytes_moved: What they read and write.
        program: What was compiled; None on the NumPy backend.
    """

    executable: Executable
    kernel_count: int
    bytes_moved: int
    program: Program | None = None


def check_precision(precision: Precision, engine: Engine, *, trained: bool) -> None:
    """Refuse a precision that this engine lacks, or that there is no such name of."""
    if precision not in get_args(Precision):
        raise OptionError(f"precision must be one of {', '.join(get_args(Precision))}, got {precision!r}")
    if precision == "f32":
        return
    if isinstance(engine, NumpyEngine):
        raise OptionError(
            f"precision='f16' is not there on the {describe(engine)} backend",
            hint="use precision='f32', or backend='wgpu' with an adapter that has shader-f16",
        )
    device: Any = engine
    if not device.limits.half:
        raise DeviceError(
            f"precision='f16' needs the feature shader-f16, which {engine.description} lacks",
            hint="use precision='f32'",
        )
    if not trained:
        raise OptionError(
            "precision='f16' needs an optimizer, because its update adapts the loss scale",
            hint="SGD(0.0) changes no parameter",
        )


def load(
    engine: Engine,
    step: StepGraphs,
    store: Store,
    slots: int = SLOTS,
    *,
    precision: Precision = "f32",
    tune: bool = False,
) -> Loaded:
    """Compile a step for an engine and load it; if `tune`, time tilings of its contractions first."""
    if isinstance(engine, NumpyEngine):
        ready = engine.load(step, store)  # type: ignore[arg-type]
        return Loaded(ready, ready.kernel_count, ready.bytes_moved)
    from tgdsl.codegen import Target, generate  # NumPy users need no compiler

    device: Any = engine
    slots = max(1, min(slots, _INPUT_BYTES // max(1, _input_bytes(step))))
    limits = device.limits
    target = Target(max_bindings=limits.max_bindings, software=limits.software, half=precision == "f16")
    if tune:
        from tgdsl.tuning import tuned

        target = tuned(device, step, target)
    program = generate(step, target)
    return Loaded(device.load(program, store, slots), program.kernel_count, program.bytes_moved, program)


def _input_bytes(step: StepGraphs) -> int:
    return sum(node.type.size * ITEMSIZE for node in leaves(step.graph, "input").values())


def choose_engine(backend: Backend = "auto") -> Engine:
    """The engine of that name; one per process, so that everything on a device has one order.

    `auto` takes the environment variable TGDSL_BACKEND, else a hardware adapter, else
    NumPy: a software adapter is far slower than NumPy, so it is used only by name.
    """
    if backend not in get_args(Backend):
        raise OptionError(f"backend must be one of {', '.join(get_args(Backend))}, got {backend!r}")
    with _choosing:
        wanted = backend if backend != "auto" else _from_environment()
        if wanted not in _engines:
            engine, why = _open(wanted)
            _engines[wanted] = engine
            _reasons.setdefault(engine, why)
            log.info("backend %s", describe(engine))
        return _engines[wanted]


def describe(engine: Engine) -> str:
    """An engine, what it runs on, and why it was chosen."""
    return f"{engine.name}: {engine.description} ({_reasons.get(engine, 'given')})"


def _from_environment() -> Backend:
    value: Any = os.environ.get("TGDSL_BACKEND", "auto")
    if value not in get_args(Backend):
        raise OptionError(f"TGDSL_BACKEND must be one of {', '.join(get_args(Backend))}, got {value!r}")
    chosen: Backend = value
    return chosen


def _open(backend: Backend) -> tuple[Engine, str]:
    if backend == "numpy":
        return NumpyEngine(), "asked for by name"
    from tgdsl.runtime import wgpu_engine  # importing wgpu takes a while

    if backend == "wgpu":
        return wgpu_engine.WgpuEngine(), "asked for by name"
    known: Any = _engines.get("wgpu")
    try:
        if known is None or known.limits.software:
            known = wgpu_engine.WgpuEngine(hardware_only=True)
        # Both names must mean one device, or calls of the two would not be ordered.
        _engines["wgpu"] = known
        return known, "a hardware adapter was found"
    except DeviceError as error:
        return _engines.setdefault("numpy", NumpyEngine()), f"no hardware adapter: {error}"


def lock_of(engine: Engine) -> threading.RLock:
    """The lock that every call on this device takes."""
    with _choosing:
        return _locks.setdefault(engine, threading.RLock())
