"""Nodes and graphs: functional, hash-consed, defined by their roots.

The same op on the same operands is the same node, so common subexpressions merge as
they are traced and what no root reaches does not exist. Call sites are not part of a
node's identity: a side table keeps every site at which it was written.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from tgdsl.dtypes import DType
from tgdsl.errors import DTypeError, ShapeError, TraceError

from .site import Site, user_site
from .tensor import CLASSES, AnyTensor, IntTensor, Tensor
from .types import Shape, TensorType

if TYPE_CHECKING:
    from .op import Op


@attrs.frozen(eq=False)
class Node:
    """One value: an op applied to other nodes. Identity is equality."""

    id: int
    op: Op[..., Any]
    inputs: tuple[Node, ...]
    attrs: dict[str, Any]
    type: TensorType

    @property
    def shape(self) -> Shape:
        """The static shape."""
        return self.type.shape

    @property
    def dtype(self) -> DType:
        """The static dtype."""
        return self.type.dtype

    @property
    def name(self) -> str | None:
        """The name of a leaf (parameter, input, state, scalar)."""
        return self.attrs.get("name")

    def __repr__(self) -> str:
        return f"<%{self.id} {self.op.name} {self.type}>"


def _key(value: Any) -> Any:
    # 1 == 1.0 == True and 0.0 == -0.0 in Python; as attributes they are different.
    if isinstance(value, float):
        return ("float", value.hex())
    if isinstance(value, tuple):
        return tuple(_key(v) for v in value)
    return (type(value).__name__, value)


@attrs.define(eq=False)
class Graph:
    """What a trace produces.

    Attributes:
        nodes: Every node in the order of construction, which is topological.
        outputs: What the traced function returned.
        captures: Values published under a name by `capture`.
        updates: The next value of each state, by name.
    """

    nodes: list[Node] = attrs.field(factory=list)
    outputs: list[AnyTensor[Any]] = attrs.field(factory=list)
    captures: dict[str, AnyTensor[Any]] = attrs.field(factory=dict)
    updates: dict[str, AnyTensor[Any]] = attrs.field(factory=dict)
    leaves: dict[tuple[str, str], Node] = attrs.field(factory=dict)
    facts: dict[str, Any] = attrs.field(factory=dict)
    _table: dict[Any, Node] = attrs.field(factory=dict, repr=False)
    _sites: dict[int, list[Site]] = attrs.field(factory=dict, repr=False)
    _scope: list[str] = attrs.field(factory=list, repr=False)
    _occurrences: dict[str, int] = attrs.field(factory=dict, repr=False)
    _regions: dict[int, tuple[int, ...]] = attrs.field(factory=dict, repr=False)
    _open: tuple[int, ...] = attrs.field(default=(), repr=False)
    _region_count: int = attrs.field(default=0, repr=False)
    captures_open: bool = True
    current_site: Site | None = None

    def add(self, op: Op[..., Any], inputs: tuple[Node, ...], attributes: dict[str, Any], type_: TensorType) -> Node:
        """The node of this application: the one that exists, or a new one."""
        key = (op.name, tuple(n.id for n in inputs), tuple((k, _key(v)) for k, v in attributes.items()))
        node = self._table.get(key)
        if node is None:
            node = Node(len(self.nodes), op, inputs, attributes, type_)
            self.nodes.append(node)
            self._table[key] = node
            if self._open:
                self._regions[node.id] = self._open
        return node

    def tensor(self, node: Node) -> Any:
        """The handle of a node, of the class of its dtype."""
        return CLASSES[node.dtype](node.type, self, node)

    def note_site(self, node: Node, site: Site) -> None:
        """Remember one more place where this node was written."""
        sites = self._sites.setdefault(node.id, [])
        if site not in sites:
            sites.append(site)

    def sites(self, node: Node) -> tuple[Site, ...]:
        """Every place where this node was written."""
        return tuple(self._sites.get(node.id, ()))

    def origin(self, node: Node) -> str:
        """`parameter l1.w`, `input x`, or `add at train.py:20`."""
        kinds = {"param": "parameter", "input": "input", "state": "state", "scalar": "scalar"}
        if node.op.name in kinds:
            return f"{kinds[node.op.name]} {node.name}"
        sites = self.sites(node)
        return f"{node.op.name} at {sites[0].short}" if sites else node.op.name

    @contextmanager
    def scope(self, name: str) -> Generator[None]:
        """Enter the call of a module; stochastic ops are salted by the path."""
        self._scope.append(name)
        try:
            yield
        finally:
            self._scope.pop()

    @contextmanager
    def region(self) -> Generator[None]:
        """Enter a part of the trace whose values are computed again for the gradient."""
        self._region_count += 1
        with self.within((*self._open, self._region_count)):
            yield

    @contextmanager
    def within(self, regions: tuple[int, ...]) -> Generator[None]:
        """Make new nodes part of these regions, outermost first."""
        before, self._open = self._open, regions
        try:
            yield
        finally:
            self._open = before

    def regions_of(self, node: Node) -> tuple[int, ...]:
        """The regions that a node is part of, outermost first."""
        return self._regions.get(node.id, ())

    def salt(self) -> int:
        """A 32-bit number for the next stochastic op: FNV-1a of the module path and occurrence."""
        path = "/".join(self._scope)
        count = self._occurrences.get(path, 0)
        self._occurrences[path] = count + 1
        h = 0x811C9DC5
        for byte in f"{path}#{count}".encode():
            h = ((h ^ byte) * 0x01000193) & 0xFFFFFFFF
        return h

    def __str__(self) -> str:
        from .printer import show

        return show(self)

    def roots(self) -> list[Node]:
        """Everything the graph is for: outputs, captures, state updates."""
        tensors = [*self.outputs, *self.captures.values(), *self.updates.values()]
        return list(dict.fromkeys(t.node for t in tensors))

    def reachable(self, roots: Iterable[Node] | None = None) -> list[Node]:
        """The nodes that the roots need, in topological order."""
        seen: set[int] = set()
        stack = list(self.roots() if roots is None else roots)
        found: list[Node] = []
        while stack:
            node = stack.pop()
            if node.id in seen:
                continue
            seen.add(node.id)
            found.append(node)
            stack.extend(node.inputs)
        return sorted(found, key=lambda n: n.id)


_current: ContextVar[Graph | None] = ContextVar("tgdsl_graph", default=None)


def current_graph(what: str) -> Graph:
    """The graph being traced; an error that names `what` when there is none."""
    graph = _current.get()
    if graph is None:
        raise TraceError(
            f"{what}: tensor operations run only while a @forward function is being traced.",
            hint="pass the function to compile_module / compile_forward, or look at shapes with trace(...)",
            site=user_site(),
        )
    return graph


def is_tracing() -> bool:
    """Whether a graph is being traced in this context."""
    return _current.get() is not None


@contextmanager
def tracing(graph: Graph) -> Generator[Graph]:
    """Make `graph` current; the previous state is restored also after an error."""
    if _current.get() is not None:
        raise TraceError("a forward is already being traced; call undecorated helpers from a forward", site=user_site())
    token = _current.set(graph)
    try:
        yield graph
    finally:
        _current.reset(token)


def apply(op: Op[..., Any], args: tuple[Any, ...], attributes: dict[str, Any]) -> AnyTensor[Any]:
    """Type-check one application of `op` and add it to the current graph."""
    graph = current_graph(op.name)
    inputs = _operands(graph, op.name, args)
    type_ = op.infer(inputs, attributes)
    node = graph.add(op, tuple(t.node for t in inputs), attributes, type_)
    site = graph.current_site or user_site()
    if site is not None:
        graph.note_site(node, site)
    return graph.tensor(node)  # type: ignore[no-any-return]


def _operands(graph: Graph, what: str, args: tuple[Any, ...]) -> tuple[AnyTensor[Any], ...]:
    like = next((a for a in args if isinstance(a, AnyTensor)), None)
    out: list[AnyTensor[Any]] = []
    for a in args:
        if isinstance(a, AnyTensor):
            if a.graph is not graph:
                raise TraceError(
                    f"{what}: {a!r} does not belong to this trace.",
                    hint="use the model and the inputs that the forward receives, not values from outside",
                    site=user_site(),
                )
            out.append(a)
        elif like is not None and isinstance(a, (int, float, np.integer, np.floating)) and not isinstance(a, bool):
            out.append(constant(what, a, like))
        else:
            raise DTypeError(
                f"{what}: expected a tensor or a number, got {type(a).__name__}",
                hint="arrays enter a forward through its @inputs class",
                site=user_site(),
            )
    return tuple(out)


def constant(what: str, value: Any, like: AnyTensor[Any]) -> AnyTensor[Any]:
    """A Python number as a rank-0 tensor of the dtype of `like`; never truncated in silence."""
    if isinstance(like, IntTensor):
        if not -(2**31) <= value < 2**31:  # NaN and infinities too; int() would fail on them
            raise ShapeError(f"{what}: {value!r} does not fit i32", site=user_site())
        if value != int(value):
            raise DTypeError(f"{what}: {value!r} is not an integer, the other operand is {like.type}", site=user_site())
        return _filled(int(value), "i32")
    if isinstance(like, Tensor):
        if value != value:
            raise ShapeError(f"{what}: the constant is NaN", site=user_site())
        # Compared before it is converted, because float() of a long int overflows.
        if value not in (math.inf, -math.inf) and abs(value) > float(np.finfo(np.float32).max):
            raise ShapeError(f"{what}: {value!r} is outside the range of f32", site=user_site())
        return _filled(float(value), "f32")
    raise DTypeError(f"{what}: a number cannot be combined with {like.type}", site=user_site())


def _filled(value: float, dtype: DType) -> AnyTensor[Any]:
    from .op import REGISTRY  # op.py imports this module

    made: AnyTensor[Any] = REGISTRY["full"](shape=(), value=value, dtype=dtype)
    return made


def operand_error(
    error: type[ShapeError],
    what: str,
    hint: str | None = None,
    **operands: AnyTensor[Any],
) -> ShapeError:
    """An error about operands: each with its type and where it comes from."""
    current_graph(what.partition(":")[0])  # outside of a trace that is the mistake, not the shapes
    rows: list[tuple[str, str, str]] = []
    for name, t in operands.items():
        graph = t.graph
        origin = "from outside this trace" if graph is None else graph.origin(t.node)
        rows.append((name, str(t.type), origin))
    return error(what, operands=rows, hint=hint, site=user_site())
