"""The machinery of tensorgrad 0.0.16 by its own names, over tgdsl's structures.

It is for those who come from there and for custom passes; deviations are in `docs/tensorgrad.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import attrs
import numpy as np
from numpy.typing import NDArray

from .autograd import gradients
from .codegen import generate
from .dtypes import DType
from .errors import GradientError, ParameterError, TraceError
from .frontend import init as _init
from .frontend import param_input as param_input
from .frontend import state_input as state_input
from .frontend import tensor_input as tensor_input
from .frontend import trace as trace
from .frontend import trace_into as trace_into
from .ir import AnyTensor, Graph, Node, Shape, Site, Tensor, TensorType, current_graph
from .lr import Schedule, resolve_lr
from .ops import sqrt
from .ops.leaves import leaves
from .optim.step import ArenaLayout, StepGraphs
from .program import Program

Decay: TypeAlias = bool | None
CallSite: TypeAlias = Site
OpNode: TypeAlias = Node
LRSchedule, InitSpec = Schedule, _init.InitSpec


@attrs.frozen
class GradResult:
    """What `append_grad` returns: the same graph, one gradient per parameter, the loss."""

    graph: Graph
    param_grads: dict[str, Tensor]
    loss: Tensor


def append_grad(graph: Graph) -> GradResult:
    """Append reverse mode to a traced graph whose only output is a scalar loss.

    A parameter that the loss does not depend on gets an explicit zero of its shape.

    Raises:
        GradientError: If the graph has not exactly one output, or it is not a scalar.
    """
    if len(graph.outputs) != 1:
        raise GradientError(f"append_grad: the graph has {len(graph.outputs)} outputs, expected one loss")
    loss = graph.outputs[0]
    if loss.shape != () or not isinstance(loss, Tensor):
        raise GradientError(f"append_grad: the loss must be a scalar f32, got {loss.type}")
    params = {name: graph.tensor(node) for name, node in leaves(graph, "param").items()}
    grads = trace_into(graph, lambda: gradients(graph, loss, list(params.values())))
    return GradResult(graph, dict(zip(params, grads, strict=True)), loss)


@attrs.frozen
class AdamConfig:
    """Adam as tensorgrad 0.0.16 configures it."""

    lr: Schedule
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    decay_filter: Callable[[str], bool] | None = None


@attrs.frozen
class WritebackDecl:
    """`source` becomes the next value of the parameter or state `dest_name`."""

    source: Tensor
    dest_name: str
    dest_kind: Literal["param", "state"]


@attrs.frozen
class AdamResult:
    """What `append_adam` returns.

    Attributes:
        writebacks: Three per parameter, in the order m, v, p.
        lrt_input_name: The input that carries the bias-corrected learning rate.
        decay_shrink_input_name: The input that carries `1 - lr * weight_decay`, if any parameter decays.
        config: The configuration given.
    """

    writebacks: tuple[WritebackDecl, ...]
    lrt_input_name: str
    decay_shrink_input_name: str | None
    config: AdamConfig


def decays(name: str, config: AdamConfig, flags: Mapping[str, Decay]) -> bool:
    """Whether a parameter decays: an explicit flag wins, then the filter, then yes."""
    if config.weight_decay <= 0:
        return False
    flag = flags.get(name)
    if flag is not None:
        return flag
    return True if config.decay_filter is None else config.decay_filter(name)


def append_adam(
    graph: Graph,
    param_grads: Mapping[str, Tensor],
    param_tensors: Mapping[str, Tensor],
    config: AdamConfig,
    decay_flags: Mapping[str, Decay] | None = None,
) -> AdamResult:
    """Append Adam's update to a graph, one set of nodes per parameter.

    The epsilon stands outside of the bias correction, as in section 2 of Kingma & Ba
    ("efficient" form): `p = shrink * p - lrt * m / (sqrt(v) + eps)` with
    `lrt = lr * sqrt(1 - b2**t) / (1 - b1**t)`. The shrink is always a run-time scalar, so a
    changed learning rate changes the decay too.

    Raises:
        ParameterError: If a gradient is missing for a parameter.
    """
    missing = [name for name in param_tensors if name not in param_grads]
    if missing:
        raise ParameterError(f"append_adam: no gradient for parameter {missing[0]!r}")
    flags = dict(decay_flags or {})
    names = [name for name in param_tensors if decays(name, config, flags)]

    def emit() -> list[WritebackDecl]:
        lrt = tensor_input("_adam_lrt", ())
        shrink = tensor_input("_adam_decay_shrink", ()) if names else None
        out: list[WritebackDecl] = []
        for name, p in param_tensors.items():
            m, v = state_input(f"adam_m_{name}", p.shape), state_input(f"adam_v_{name}", p.shape)
            g = param_grads[name]
            m_new = config.b1 * m + (1.0 - config.b1) * g
            v_new = config.b2 * v + (1.0 - config.b2) * (g * g)
            kept = p * shrink if shrink is not None and name in names else p
            p_new = kept - lrt * (m_new / (sqrt(v_new) + config.eps))
            out += [
                WritebackDecl(m_new, f"adam_m_{name}", "state"),
                WritebackDecl(v_new, f"adam_v_{name}", "state"),
                WritebackDecl(p_new, name, "param"),
            ]
        return out

    writebacks = trace_into(graph, emit)
    return AdamResult(tuple(writebacks), "_adam_lrt", "_adam_decay_shrink" if names else None, config)


def adam_scalars(config: AdamConfig, step: int) -> dict[str, float]:
    """The values of Adam's scalar inputs at a step, counted from 1, in double precision."""
    lr = resolve_lr(config.lr, step)
    lrt = lr * math.sqrt(1.0 - config.b2**step) / (1.0 - config.b1**step)
    return {"_adam_lrt": lrt, "_adam_decay_shrink": 1.0 - lr * config.weight_decay}


@attrs.frozen
class BufferSpec:
    """One named range of device memory."""

    id: int
    byte_size: int
    dtype: DType
    shape: Shape
    kind: Literal["param", "param_grad", "tensor_input", "state", "intermediate", "output"]
    name: str | None
    init_value: float | None = None


@attrs.frozen
class Writeback:
    """A resolved `WritebackDecl`: buffer ids and the size."""

    source: int
    dest: int
    nbytes: int


@attrs.frozen
class BufferPlan:
    """Where the values of a graph live, and the program that works on them."""

    buffers: tuple[BufferSpec, ...]
    params_by_name: dict[str, int]
    inputs_by_name: dict[str, int]
    param_grads_by_name: dict[str, int]
    states_by_name: dict[str, int]
    captures_by_name: dict[str, int]
    output_buffer_ids: tuple[int, ...]
    writebacks: tuple[Writeback, ...]
    program: Program = attrs.field(repr=False)


def plan_buffers(
    graph: Graph, param_grads: Mapping[str, Tensor] | None = None, writeback_decls: Sequence[WritebackDecl] = ()
) -> BufferPlan:
    """Plan the memory of a graph; two parameters that share one gradient get a buffer each.

    Raises:
        ParameterError: If a writeback names an unknown destination or one of another size.
    """
    grads = dict(param_grads or {})
    builder = _Planner(graph, grads)
    for decl in writeback_decls:
        builder.write_back(decl)
    return builder.finish()


class _Planner:
    def __init__(self, graph: Graph, grads: dict[str, Tensor]) -> None:
        self.graph, self.grads = graph, grads
        self.specs: list[BufferSpec] = []
        self.ids: dict[str, dict[str, int]] = {
            k: {} for k in ("param", "tensor_input", "state", "param_grad", "output", "capture")
        }
        inits = graph.facts.get("init_value", {})
        for kind, leaf in (("param", "param"), ("tensor_input", "input"), ("state", "state")):
            for name, node in leaves(graph, leaf).items():  # type: ignore[arg-type]
                self._add(kind, kind, name, node.type, inits.get(name, 0.0) if kind == "state" else None)
        for name, t in grads.items():
            self._add("param_grad", "param_grad", name, t.type)
        for i, out in enumerate(graph.outputs):
            self._add("output", "output", str(i), out.type)
        for name, out in graph.captures.items():
            self._add("capture", "output", name, out.type)
        self.results: dict[str, AnyTensor[Any]] = {f"output:{i}": out for i, out in enumerate(graph.outputs)}
        self.results |= {f"capture:{n}": out for n, out in graph.captures.items()}
        self.writebacks: list[Writeback] = []

    def _add(self, group: str, kind: Any, name: str, type_: TensorType, init_value: float | None = None) -> int:
        id_, shape = len(self.specs), tuple(int(n) for n in type_.shape)
        self.specs.append(BufferSpec(id_, max(4, 4 * type_.size), type_.dtype, shape, kind, name, init_value))
        self.ids[group][name] = id_
        return id_

    def write_back(self, decl: WritebackDecl) -> None:
        dest = self.ids[decl.dest_kind].get(decl.dest_name)
        if dest is None:
            raise ParameterError(f"plan_buffers: writeback to unknown {decl.dest_kind} {decl.dest_name!r}")
        nbytes = max(4, 4 * decl.source.size)
        if self.specs[dest].byte_size != nbytes:
            raise ParameterError(
                f"plan_buffers: writeback of {decl.source.type} to {decl.dest_kind} {decl.dest_name!r} "
                f"of shape {list(self.specs[dest].shape)}"
            )
        source, shape = len(self.specs), tuple(int(n) for n in decl.source.shape)
        self.specs.append(BufferSpec(source, nbytes, "f32", shape, "intermediate", None))
        self.results[f"writeback:{len(self.writebacks)}"] = decl.source
        self.writebacks.append(Writeback(source, dest, nbytes))

    def finish(self) -> BufferPlan:
        def layout(kind: Any) -> ArenaLayout:
            return ArenaLayout.of((n, node.shape) for n, node in leaves(self.graph, kind).items())

        step = StepGraphs(self.graph, self.results, params=layout("param"), state=layout("state"), grads=self.grads)
        return BufferPlan(
            tuple(self.specs),
            self.ids["param"],
            self.ids["tensor_input"],
            self.ids["param_grad"],
            self.ids["state"],
            self.ids["capture"],
            tuple(self.ids["output"].values()),
            tuple(self.writebacks),
            generate(step),
        )


@attrs.frozen
class KernelSpec:
    """One dispatch of a program."""

    op_index: int
    op_kind: str
    wgsl: str
    bindings: tuple[int, ...]
    groups: tuple[int, int, int]


def emit_kernels(graph: Graph, plan: BufferPlan) -> list[KernelSpec]:
    """The kernels of a planned graph in the order of dispatch."""
    program = plan.program
    return [
        KernelSpec(i, d.origin, program.kernels[d.kernel].wgsl, tuple(b.buffer for b in d.bindings), d.groups)
        for i, d in enumerate(program.dispatches)
    ]


@attrs.frozen
class CompiledIR:
    """A graph with its gradients, its plan and its kernels; no device is involved."""

    graph: Graph
    param_grads: dict[str, Tensor]
    loss: Tensor
    plan: BufferPlan
    kernels: list[KernelSpec]


def compile_to_ir(trace_fn: Callable[[], Tensor]) -> CompiledIR:
    """Trace, differentiate, plan and emit, without device and optimizer."""
    result = append_grad(trace(trace_fn))
    plan = plan_buffers(result.graph, result.param_grads)
    return CompiledIR(result.graph, result.param_grads, result.loss, plan, emit_kernels(result.graph, plan))


class _Slot(Tensor):
    """A parameter of a `Module` before `materialize_params` has run."""

    __slots__ = ("decay", "initial")

    def __init__(self, shape: Shape, dtype: DType, initial: Any, decay: Decay) -> None:
        super().__init__(TensorType(shape, dtype))
        self.initial, self.decay = initial, decay


class Module:
    """Base class of tensorgrad's models: parameters are declared with `self.param` in `__init__`.

    Prefer the decorator `module`; `materialize_params` replaces the slots of a `Module` in place.
    """

    def param(self, shape: Shape, dtype: DType = "f32", init: Any = "randn", decay: Decay = None) -> Tensor:
        """Declare a parameter; the return value stands for it until the model is traced."""
        return _Slot(tuple(shape), dtype, init, decay)


@attrs.frozen
class MaterializedParams:
    """Parameters by dotted path: tensors of the trace, initialisers, decay flags."""

    tensors: dict[str, Tensor]
    init_fns: dict[str, Callable[[int, np.random.Generator], NDArray[np.float32]]]
    decay_flags: dict[str, bool]


def materialize_params(root: Module) -> MaterializedParams:
    """Replace every slot of a model by a parameter of the current trace, depth first.

    Raises:
        TraceError: Outside of a trace, on a cycle, or on a slot in a place that is not a
            module, list, tuple or dict.
    """
    current_graph("materialize_params")
    walker = _Materializer()
    walker.enter(root, "")
    return MaterializedParams(walker.tensors, walker.inits, walker.flags)


class _Materializer:
    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.inits: dict[str, Callable[[int, np.random.Generator], NDArray[np.float32]]] = {}
        self.flags: dict[str, bool] = {}
        self.made: dict[int, Tensor] = {}
        self.open: list[int] = []
        self.done: set[int] = set()

    def enter(self, x: Any, path: str) -> Any:
        """The value that replaces `x`."""
        if isinstance(x, _Slot):
            return self._slot(x, path)
        if isinstance(x, Module):
            if id(x) in self.open:
                raise TraceError(f"materialize_params: {path} contains itself")
            if id(x) in self.done:
                return x
            self.open.append(id(x))
            for name, value in list(vars(x).items()):
                setattr(x, name, self.enter(value, f"{path}.{name}" if path else name))
            self.open.pop()
            self.done.add(id(x))
            return x
        if isinstance(x, (list, tuple)):
            return type(x)(self.enter(v, f"{path}.{i}") for i, v in enumerate(x))
        if isinstance(x, dict):
            return {k: self.enter(v, f"{path}.{k}") for k, v in x.items()}
        if isinstance(x, (set, frozenset)) and any(isinstance(v, (_Slot, Module)) for v in x):
            raise TraceError(f"materialize_params: {path} holds parameters in a {type(x).__name__}, which has no order")
        return x

    def _slot(self, slot: _Slot, path: str) -> Tensor:
        # The identity of a slot is the identity of the parameter: the first path names it.
        if id(slot) not in self.made:
            self.made[id(slot)] = self.tensors[path] = param_input(path, slot.shape, "f32")
            initial, shape = _init.resolve(slot.initial), slot.shape
            self.inits[path] = lambda size, rng: _init.values(initial, shape, rng).reshape(size)
            self.flags[path] = _init.decays_by_default(initial) if slot.decay is None else slot.decay
        return self.made[id(slot)]
