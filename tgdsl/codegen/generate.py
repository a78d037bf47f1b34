"""A step's graphs to a Program.

The loss graph and the update graph go through the same stages one after the other; the
second works on arenas that the first has filled. Gradients are stored straight into their
arena slices, results straight into their step slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from tgdsl.dtypes import ITEMSIZE, DType
from tgdsl.errors import LoweringError
from tgdsl.ir import REGISTRY, Gather, Graph, Leaf, Node
from tgdsl.ops.leaves import leaves
from tgdsl.optim.step import ArenaLayout, StepGraphs
from tgdsl.passes import interval, lower, split_folds
from tgdsl.passes.fold import scalar_value
from tgdsl.plan import Memory
from tgdsl.program import Binding, Dispatch, Kernel, Program, Slot
from tgdsl.schedule import Schedule, bundle, partition
from tgdsl.schedule.access import bases

from .attention_tile import MOST_WIDE
from .emit import FLAG
from .halves import half_nodes
from .kernels import Draft, Plan, ProblemKey, draft
from .tiling import Tiling


@attrs.frozen
class Target:
    """What the code generator must know of a device.

    Attributes:
        max_bindings: Storage buffers per kernel.
        software: Whether a CPU plays the GPU: barriers are dear, cores are few.
        half: Store values between kernels of the loss graph as f16, see `halves`.
        tilings: Tilings of contractions that were found by timing them.
    """

    max_bindings: int = 8
    software: bool = False
    half: bool = False
    tilings: Mapping[ProblemKey, Tiling] = attrs.field(factory=dict)

    @property
    def lanes(self) -> int:
        """Threads that run at the same time, roughly."""
        return 1024 if self.software else 131072


def generate(step: StepGraphs, target: Target | None = None) -> Program:
    """Compile one step.

    Args:
        step: The graphs.
        target: The device; a usual GPU when omitted.

    Returns:
        A program whose inputs, scalars and outputs are named as in `step`.
    """
    return Generator(step, target or Target()).run()


class Generator:
    """Compiles one step, and keeps the plans by which it did.

    Attributes:
        plans: One per graph or piece of a graph that was scheduled by itself.
    """

    def __init__(self, step: StepGraphs, target: Target) -> None:
        self.step, self.target = step, target
        self.plans: list[Plan] = []
        self.memory = Memory()
        self.kernels: dict[str, int] = {}
        self.kernel_list: list[Kernel] = []
        self.dispatches: list[Dispatch] = []
        self.inputs: dict[str, Slot] = {}
        self.outputs: dict[str, Slot] = {}
        self.origins: dict[str, str] = {}
        self.scalars = self._scalar_table()
        self.late: list[tuple[str, str, Node]] = []
        self.unproven: list[Node] = []
        self.unproven_texts: list[str] = []

    def run(self) -> Program:
        """Everything, in the order in which it runs."""
        self._loss_graph()
        self._late_copies()
        if self.step.update is not None:
            self._update_graph(self.step.update)
        table = self.memory.places["scalars"].buffer if self.scalars else 0
        scalars = {n: Slot(table, 4 * i, (), self.scalar_types[n]) for n, i in self.scalars.items()}
        if self.unproven:
            self.outputs[FLAG] = scalars[FLAG]
            for code, (node, text) in enumerate(zip(self.unproven, self.unproven_texts, strict=True), 1):
                what = node.inputs[0].type if isinstance(node.op.lower, Gather) else f"[0, {node.attrs['below']})"
                self.origins[f"{FLAG}:{code}"] = f"index outside of {what}{text}"
        return Program(
            tuple(self.memory.buffers),
            tuple(self.kernel_list),
            tuple(self.dispatches),
            self.inputs,
            scalars,
            self.outputs,
            self.origins,
            self.memory.most_live,
        )

    def _scalar_table(self) -> dict[str, int]:
        found: dict[str, DType] = {n: node.dtype for n, node in leaves(self.step.graph, "scalar").items()}
        if self.step.update is not None:
            found |= {n: node.dtype for n, node in leaves(self.step.update, "scalar").items()}
        if any(node.op.stochastic for node in self.step.graph.nodes):
            found |= {"key0": "i32", "key1": "i32"}
        self.scalar_types = found
        if any(node.dtype == "i32" for node in self.step.graph.nodes):
            found[FLAG] = "i32"
        if found:
            self.memory.step("scalars", "scalars", len(found))
        return {n: i for i, n in enumerate(found)}

    # -- the loss graph -----------------------------------------------------

    def _loss_graph(self) -> None:
        step = self.step
        wanted: list[tuple[str, Node]] = [(f"result:{n}", t.node) for n, t in step.results.items()]
        wanted += [(f"grads:{n}", t.node) for n, t in step.grads.items()]
        wanted += [(f"next:{n}", t.node) for n, t in step.graph.updates.items()]
        graph, roots = self._primitive(step.graph, [n for _, n in wanted])
        stores: dict[int, list[str]] = {}
        for (key, original), node in zip(wanted, roots, strict=True):
            kind, name = key.split(":", 1)
            if kind == "grads" and scalar_value(node) == 0.0:
                continue  # the arena starts as zeros, and nothing else writes this slice
            self._destination(kind, name, key, original)
            root = node if not isinstance(node.op.lower, Leaf) else _copy_of(graph, node)
            while root.id in stores:
                root = _copy_of(graph, root)  # a place of its own for each copy, so that bindings are counted
            stores.setdefault(root.id, []).append(key)
            if kind == "next":
                self.late.append((name, key, root))
        roots = [n for n in graph.nodes if n.id in stores]
        self._emit(graph, roots, stores, self._leaf_keys(graph), {}, half=self.target.half)

    def _primitive(self, graph: Graph, roots: Sequence[Node]) -> tuple[Graph, list[Node]]:
        lowered, roots = lower(graph, roots, fused=self._fused)
        return split_folds(lowered, roots, lanes=self.target.lanes)

    def _fused(self, node: Node) -> bool:
        """Whether there is a kernel for this part of an attention: on a CPU its barriers are too dear."""
        return not self.target.software and all(x.shape[-1] <= MOST_WIDE for x in node.inputs[:3])

    def _destination(self, kind: str, name: str, key: str, node: Node) -> None:
        if kind == "result":
            self.memory.step(key, name, node.type.size)
            place = self.memory.places[key]
            self.outputs[name] = Slot(place.buffer, 0, tuple(int(d) for d in node.shape), node.dtype)
        elif kind == "grads":
            self._segment("grads", self.step.params, name, key)
        else:
            self.memory.take(key, ITEMSIZE * node.type.size)
        self.origins[self.memory.buffers[self.memory.places[key].buffer].name] = f"{kind} {name}"

    def _segment(self, arena: str, layout: ArenaLayout, name: str, key: str) -> None:
        segment = layout.segments[name]
        self.memory.place(key, self.memory.arena(arena, layout.size), 4 * segment.offset, segment.size)

    def _leaf_keys(self, graph: Graph) -> dict[int, str]:
        keys: dict[int, str] = {}
        for name, node in leaves(graph, "param").items():
            trained = name in self.step.params.segments
            arena, layout = ("params", self.step.params) if trained else ("frozen", self.step.frozen)
            keys[node.id] = f"param:{name}"
            self._segment(arena, layout, name, keys[node.id])
        for name, node in leaves(graph, "state").items():
            if name in self.step.state.segments:
                keys[node.id] = f"state:{name}"
                self._segment("state", self.step.state, name, keys[node.id])
            else:
                keys[node.id] = self._whole_arena(name, node.type.size)
        for name, node in leaves(self.step.graph, "input").items():
            key = f"input:{name}"
            self.memory.step(key, name, node.type.size)
            place = self.memory.places[key]
            self.inputs[name] = Slot(place.buffer, 0, tuple(int(d) for d in node.shape), node.dtype)
        for name, node in leaves(graph, "input").items():
            keys[node.id] = f"input:{name}"
        return keys

    def _whole_arena(self, name: str, size: int) -> str:
        self.memory.place(f"arena:{name}", self.memory.arena(name, size), 0, size)
        return f"arena:{name}"

    def _late_copies(self) -> None:
        """Replace module states once everything has read the old ones."""
        for name, key, root in self.late:
            graph = Graph()
            shape = tuple(int(d) for d in root.shape)
            leaf = graph.add(REGISTRY["state"], (), {"name": name, "shape": shape, "dtype": root.dtype}, root.type)
            copy = _copy_of(graph, leaf)
            self._segment("state", self.step.state, name, f"new:{name}")
            self._emit(graph, [copy], {copy.id: [f"new:{name}"]}, {leaf.id: key}, {})

    # -- the update graph ---------------------------------------------------

    def _update_graph(self, update: Graph) -> None:
        names = list(update.updates)
        graph, roots = self._primitive(update, [update.updates[n].node for n in names])
        keys: dict[int, str] = {}
        for name, node in leaves(graph, "state").items():
            keys[node.id] = f"arena:{name}"
        sizes = {name: node.type.size for name, node in leaves(update, "state").items()}
        for name, size in sizes.items():
            self._whole_arena(name, size)
        stores: dict[int, list[str]] = {}
        ties: dict[int, int] = {}
        leaf_of = {name: node.id for name, node in leaves(graph, "state").items()}
        for name, node in zip(names, roots, strict=True):
            stores.setdefault(node.id, []).append(f"arena:{name}")
            if name in leaf_of:
                ties[node.id] = leaf_of[name]
        self._emit(graph, [n for n in graph.nodes if n.id in stores], stores, keys, ties)

    # -- kernels ------------------------------------------------------------

    def _emit(
        self,
        graph: Graph,
        roots: Sequence[Node],
        stores: dict[int, list[str]],
        keys: dict[int, str],
        ties: Mapping[int, int],
        *,
        half: bool = False,
    ) -> None:
        # The random key and reports of bad indices use the table of scalars, which no node reads.
        table = any(_needs_table(n, graph) for n in graph.reachable(roots))
        limit = self.target.max_bindings - (1 if table else 0)
        schedule = partition(graph, roots, max_bindings=limit, ties=ties)
        _check_ties(schedule, ties)
        by_id = {n.id: n for g in schedule.groups for n in g.members}
        between = [i for i in schedule.stored if i not in stores]
        stores |= {i: [f"%{len(self.dispatches)}:{i}"] for i in between}
        halves = {stores[i][0] for i in half_nodes(graph, schedule, between)} if half else set[str]()
        keys = {**keys, **{i: k[0] for i, k in stores.items()}}
        names = {k: _short(graph, i, k) for i, k in keys.items()} | {
            k: _short(graph, i, k) for i, ks in stores.items() for k in ks
        }
        software, tilings = self.target.software, self.target.tilings
        plan = Plan(
            graph, schedule, keys, names, stores, self.scalars, self.unproven, software, tilings=tilings, halves=halves
        )
        self.plans.append(plan)
        bundles = bundle(schedule.groups, schedule.used, limit, lambda g: plan.tile(g).threads)
        drafts = [draft(plan, b) for b in bundles]
        for node in self.unproven[len(self.unproven_texts) :]:
            sites = graph.sites(node)
            self.unproven_texts.append(f"\n{sites[0]}" if sites else "")
        nbytes = {k: (2 if k in halves else ITEMSIZE) * by_id[i].type.size for i, ks in stores.items() for k in ks}
        self._place_and_dispatch(drafts, nbytes)

    def _place_and_dispatch(self, drafts: Sequence[Draft], nbytes: Mapping[str, int]) -> None:
        last: dict[str, int] = {}
        for i, d in enumerate(drafts):
            for b in d.bound:
                last[b.key] = i
        for i, d in enumerate(drafts):
            for b in d.bound:
                if b.written and b.key not in self.memory.places:
                    self.memory.take(b.key, nbytes[b.key])
                    place = self.memory.places[b.key]
                    self.origins.setdefault(self.memory.buffers[place.buffer].name, d.name)
            self._dispatch(d)
            self.memory.release(k for k, at in last.items() if at == i and k.startswith("%"))

    def _dispatch(self, d: Draft) -> None:
        written = {self.memory.places[b.key].buffer for b in d.bound if b.written}
        bindings: list[Binding] = []
        text = d.text
        for i, b in enumerate(d.bound):
            place = self.memory.places[b.key]
            writable = b.written
            if not writable and place.buffer in written:
                # One buffer may not be bound both ways in a dispatch, even at disjoint ranges.
                writable = True
                text = text.replace(f"@binding({i}) var<storage, read>", f"@binding({i}) var<storage, read_write>")
            bindings.append(Binding(place.buffer, place.offset, place.nbytes, writable))
        number = self.kernels.get(text)
        if number is None:
            number = self.kernels[text] = len(self.kernel_list)
            layout = tuple(b.writable for b in bindings)
            self.kernel_list.append(Kernel(d.name, d.header + text, layout))
        self.dispatches.append(Dispatch(number, tuple(bindings), d.groups, d.name))


def _needs_table(node: Node, graph: Graph) -> bool:
    """Whether computing `node` reads the random key or may have to report an index."""
    if node.op.name == "bounded" or isinstance(node.op.lower, Gather):
        size = node.attrs["below"] if node.op.name == "bounded" else node.inputs[0].shape[0]
        lo, hi = interval(node.inputs[-1], graph.facts.get("below", {}))
        return lo < 0 or hi >= size
    return node.op.stochastic


def _copy_of(graph: Graph, node: Node) -> Node:
    """A root of its own for a leaf: a reshape to the same shape, which a kernel then copies."""
    return graph.add(REGISTRY["reshape"], (node,), {"shape": node.shape}, node.type)


def _short(graph: Graph, node_id: int, key: str) -> str:
    """A binding's name for people; numbers of layers are left out, so that equal layers share their text."""
    kind, _, name = key.partition(":")
    if kind in ("param", "input", "state", "arena", "new"):
        return "_".join(part for part in name.split(".")[-2:] if not part.isdigit())
    if kind == "grads":
        return "d_" + "_".join(part for part in name.split(".")[-2:] if not part.isdigit())
    if kind == "result":
        return name
    return graph.nodes[node_id].op.name


def _check_ties(schedule: Schedule, ties: Mapping[int, int]) -> None:
    """Whoever reads an arena that is replaced in place does so before, or in the same kernel at the same index."""
    is_base = lambda n: n.id in schedule.computed  # noqa: E731
    for root, leaf in ties.items():
        home = schedule.home[root]
        for group in schedule.groups:
            if group.id == home.id or group.id in home.before:
                continue
            if any(base.id == leaf for node in group.members for base in bases(node, is_base)):
                raise LoweringError("an arena is read after the update has replaced it, or meanwhile")
