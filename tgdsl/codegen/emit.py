"""Expressions: the value of a node at an index, as WGSL statements in nested scopes.

A value is emitted once per scope and index, in the outermost scope in which everything
that it reads is known: what depends only on the row is computed outside of the loop over
the row. Loads are in range by construction: an index that a guard could let out of range
is clamped first, and the guard then selects.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence, Set
from typing import Any

import attrs

from tgdsl.dtypes import STORAGE, DType
from tgdsl.errors import LoweringError
from tgdsl.ir import Gather, Leaf, Node, Pointwise, Source, View
from tgdsl.ir.index import Index, Var, flatten, index, of_atom
from tgdsl.passes import interval
from tgdsl.schedule.access import Ix, broadcast_index, view_source

from .halves import TO_HALF
from .quads import quad_of
from .tiling import WIDTH
from .wgsl import INFINITY, identifier, literal, show_index, vector

FLAG = "flag"
"""The scalar into which a kernel writes the code of what went wrong; the host clears it each step."""


@attrs.define
class Bound:
    """One storage binding of a kernel: what it holds and how the text calls it."""

    name: str
    key: str
    dtype: str
    read: bool = False
    written: bool = False


@attrs.define
class Scope:
    """Lines of one block, and the values known in it."""

    lines: list[str] = attrs.field(factory=list)
    known: dict[tuple[int, Ix], str] = attrs.field(factory=dict)


class Emitter:
    """The statements of one kernel.

    Args:
        keys: For each node that lies in memory, the key of its storage.
        names: For a storage key, a name for people.
        members: Ids of the nodes that this kernel computes.
        scalars: Position of each per-step scalar in the table.
        below: Declared bounds of integer inputs, for proofs that gathers stay inside.
        unproven: Gets the nodes of gathers whose indices may leave the table; the
            position in the list is the code that the kernel reports.
        vectors: Storage keys whose bindings are arrays of `vec4<f32>`.
        halves: Storage keys whose bindings hold f16.
    """

    def __init__(
        self,
        keys: Mapping[int, str],
        names: Mapping[str, str],
        members: set[int],
        scalars: Mapping[str, int],
        below: Mapping[str, int],
        unproven: list[Node],
        vectors: Set[str] = frozenset(),
        halves: Set[str] = frozenset(),
    ) -> None:
        self.below, self.unproven, self.vectors, self.halves = below, unproven, vectors, halves
        self.keys, self.names, self.members, self.scalars = keys, names, members, scalars
        self.scopes = [Scope()]
        self.depths: dict[str, int] = {}
        self.bound: dict[str, Bound] = {}
        self.helpers: dict[str, None] = {}
        self.taken: set[str] = set()
        self._depth_of: dict[str, int] = {}

    def beside(self, members: set[int]) -> Emitter:
        """An emitter for another body of the same kernel: other statements, the same bindings and helpers."""
        below, unproven = self.below, self.unproven
        other = Emitter(self.keys, self.names, members, self.scalars, below, unproven, self.vectors, self.halves)
        other.bound, other.helpers = self.bound, self.helpers
        other.taken = {b.name for b in self.bound.values()}
        return other

    # -- statements ---------------------------------------------------------

    def line(self, text: str, depth: int | None = None) -> None:
        """Append a statement to a scope, by default the innermost."""
        self.scopes[-1 if depth is None else depth].lines.append(text)

    def open(self) -> None:
        """Enter a block."""
        self.scopes.append(Scope())

    def close(self, head: str) -> None:
        """Leave the block and put it, under `head`, into the scope around it."""
        block = self.scopes.pop()
        depth = len(self.scopes)
        self.depths = {name: d for name, d in self.depths.items() if d < depth}
        self._depth_of = {name: d for name, d in self._depth_of.items() if d < depth}
        self.line(f"{head} {{" if head else "{")
        self.scopes[-1].lines.extend("  " + text for text in block.lines)
        self.line("}")

    def variable(self, name: str, depth: int | None = None) -> None:
        """Declare that an index variable is known from this scope on."""
        self.depths[name] = len(self.scopes) - 1 if depth is None else depth
        self.taken.add(name)

    def name(self, hint: str) -> str:
        """A fresh identifier."""
        return identifier(hint, self.taken)

    def let(self, hint: str, expression: str, depth: int) -> str:
        """Bind an expression to a name in the scope at `depth`."""
        name = self.name(hint)
        self.line(f"let {name} = {expression};", depth)
        self._depth_of[name] = depth
        return name

    def know(self, node: Node, ix: Ix, text: str, depth: int) -> None:
        """Record that `text` is the value of `node` at `ix`."""
        self.scopes[depth].known[node.id, ix] = text
        self._depth_of[text] = depth

    def depth_of_index(self, *ix: Index) -> int:
        """The outermost scope in which these indices are known."""
        names = frozenset[str]().union(*(i.variables() for i in ix))
        return max((self.depths[n] for n in names), default=0)

    def depth_of(self, text: str) -> int:
        """The scope in which a value was bound; literals are known everywhere."""
        return self._depth_of.get(text, 0)

    # -- storage ------------------------------------------------------------

    def binding(self, key: str, dtype: DType, *, write: bool = False) -> str:
        """The name of the binding that holds `key`."""
        found = self.bound.get(key)
        if found is None:
            name = identifier(self.names.get(key, key), self.taken)
            element = "f16" if key in self.halves else STORAGE[dtype]
            found = self.bound[key] = Bound(name, key, f"vec4<{element}>" if key in self.vectors else element)
        found.written |= write
        found.read |= not write
        return found.name

    def store(self, key: str, node: Node, ix: Ix, text: str) -> None:
        """Write a value of `node` to a storage."""
        name = self.binding(key, node.dtype, write=True)
        value = f"select(0u, 1u, {text})" if node.dtype == "bool" else self._narrowed(key, text)
        self.line(f"{self._element(name, key, flatten(ix, node.shape))} = {value};")

    def store_run(self, key: str, node: Node, places: Sequence[Ix], texts: Sequence[str]) -> None:
        """Write values of `node`: as a vector where they fill one."""
        quads = [quad_of(flatten(ix, node.shape)) for ix in places] if key in self.vectors else []
        if len(quads) == WIDTH and quads[0] is not None and quads == [(quads[0][0], i) for i in range(WIDTH)]:
            name = self.binding(key, node.dtype, write=True)
            if key in self.halves:
                texts = [self._narrowed(key, text) for text in texts]
                self.line(f"{name}[{show_index(quads[0][0])}] = {self.bound[key].dtype}({', '.join(texts)});")
            else:
                self.line(f"{name}[{show_index(quads[0][0])}] = {vector(texts)};")
            return
        for ix, text in zip(places, texts, strict=True):
            self.store(key, node, ix, text)

    def _narrowed(self, key: str, text: str) -> str:
        """A value as the binding of `key` holds it."""
        if key not in self.halves:
            return text
        self.helpers[TO_HALF] = None
        return f"to_half({text})"

    def _element(self, name: str, key: str, flat: Index) -> str:
        """One element of a binding, whether or not that is an array of vectors."""
        text = show_index(flat)
        if key not in self.vectors:
            return f"{name}[{text}]"
        found = quad_of(flat)
        if found is not None:
            return f"{name}[{show_index(found[0])}].{'xyzw'[found[1]]}"
        return f"{name}[({text}) >> 2u][({text}) & 3]"

    def _load(self, node: Node, ix: Ix) -> str:
        if node.op.name == "scalar":
            return self._scalar(node)
        flat = flatten(ix, node.shape)
        key = self.keys[node.id]
        name = self.binding(key, node.dtype)
        found = quad_of(flat) if key in self.vectors else None
        if found is not None:
            return self._component(node, name, *found)
        text = self._element(name, key, flat)
        if key in self.halves:
            text = f"f32({text})"
        if node.dtype == "bool":
            text = f"({text} != 0u)"
        return self.let(f"{name}_at", text, self.depth_of_index(flat))

    def _component(self, node: Node, name: str, quad: Index, component: int) -> str:
        """One of four values that are loaded together."""
        depth = self.depth_of_index(quad)
        key = (-1 - node.id, (quad,))  # no node has a negative id
        vector = next((s.known[key] for s in reversed(self.scopes) if key in s.known), None)
        if vector is None:
            text = f"{name}[{show_index(quad)}]"
            wide = f"vec4<f32>({text})" if self.keys[node.id] in self.halves else text
            vector = self.let(f"{name}_quad", wide, depth)
            self.scopes[depth].known[key] = vector
        text = f"{vector}.{'xyzw'[component]}"
        self._depth_of[text] = depth
        return text

    def _scalar(self, node: Node) -> str:
        text = self.scalar_text(node.attrs["name"])
        return self.let(node.attrs["name"], f"bitcast<i32>({text})" if node.dtype == "i32" else text, 0)

    def scalar_text(self, name: str) -> str:
        """A per-step scalar, as it lies in the table."""
        return f"{self.binding('scalars', 'f32')}[{self.scalars[name]}]"

    # -- values -------------------------------------------------------------

    def value(self, node: Node, ix: Ix) -> str:
        """The value of `node` at `ix`: a name, a literal, or an atom."""
        for scope in reversed(self.scopes):
            if (node.id, ix) in scope.known:
                return scope.known[node.id, ix]
        text = self._compute(node, ix)
        self.scopes[self.depth_of(text)].known[node.id, ix] = text
        return text

    def _compute(self, node: Node, ix: Ix) -> str:
        lowering = node.op.lower
        if isinstance(lowering, Leaf) or (node.id in self.keys and node.id not in self.members):
            return self._load(node, ix)
        if isinstance(lowering, View):
            return self._view(node, ix)
        if isinstance(lowering, Gather):
            return self._gather(node, ix)
        if node.op.name == "bounded":
            return self._bounded(node, ix)
        if isinstance(lowering, Pointwise):
            return self._pointwise(node, lowering, ix)
        raise LoweringError(f"{node!r} is read at an index at which its kernel does not compute it")

    def _view(self, node: Node, ix: Ix) -> str:
        source = view_source(node, ix)
        x = node.inputs[0]
        inner = self._clamped(source, x)
        text = self.value(x, inner)
        condition, depth = self._condition(source)
        if condition is None:
            return text
        if math_is_infinite(source.fill):
            self.helpers[INFINITY] = None
        fill = literal(source.fill, node.dtype)
        return self.let(node.op.name, f"select({fill}, {text}, {condition})", max(depth, self.depth_of(text)))

    def _condition(self, source: Source) -> tuple[str | None, int]:
        parts: list[str] = []
        depth = 0
        for expression, lo, hi in source.inside:
            if expression.lo >= lo and expression.hi < hi:
                continue
            depth = max(depth, self.depth_of_index(expression))
            shown = show_index(expression)
            if expression.lo < lo:
                parts.append(f"{shown} >= {lo}")
            if expression.hi >= hi:
                parts.append(f"{shown} < {hi}")
        return (" && ".join(parts), depth) if parts else (None, 0)

    def _clamped(self, source: Source, x: Node) -> Ix:
        out: list[Index] = []
        for i, n in zip(source.index, x.shape, strict=True):
            if i.lo >= 0 and i.hi < n:
                out.append(i)
                continue
            depth = self.depth_of_index(i)
            name = self.let("at", f"clamp({show_index(i)}, 0, {int(n) - 1})", depth)
            self.depths[name] = depth
            out.append(of_atom(Var(name, 0, int(n) - 1)) if n > 1 else index(0))
        return tuple(out)

    def _gather(self, node: Node, ix: Ix) -> str:
        table, indices = node.inputs
        rank = indices.type.ndim
        row = self.value(indices, ix[:rank])
        depth = self.depth_of(row)
        size = int(table.shape[0])
        lo, hi = interval(indices, self.below)
        if lo < 0 or hi >= size:
            row = self._reported(node, row, size, depth)
        elif row.isidentifier():
            return self._row_of(table, row, depth, ix[rank:])
        return self._row_of(table, self.let("row", row, depth), depth, ix[rank:])

    def _bounded(self, node: Node, ix: Ix) -> str:
        """An index that must be below a bound: as it is where that is proven, else checked."""
        below = int(node.attrs["below"])
        text = self.value(node.inputs[0], ix)
        lo, hi = interval(node.inputs[0], self.below)
        if lo >= 0 and hi < below:
            return text
        depth = self.depth_of(text)
        return self.let("bounded", self._reported(node, text, below, depth), depth)

    def _reported(self, node: Node, row: str, size: int, depth: int) -> str:
        """Clamp an index that may be outside, and leave a code in the step's table if it is."""
        if node not in self.unproven:
            self.unproven.append(node)
        table = self.binding("scalars", "f32", write=True)
        code = self.unproven.index(node) + 1
        flag = f"{table}[{self.scalars[FLAG]}] = bitcast<f32>({code}u);"
        self.line(f"if ({row} < 0 || {row} >= {size}) {{ {flag} }}", depth)
        return f"clamp({row}, 0, {size - 1})"

    def _row_of(self, table: Node, name: str, depth: int, rest: Ix) -> str:
        size = int(table.shape[0])
        self.depths[name] = depth
        first = of_atom(Var(name, 0, size - 1)) if size > 1 else index(0)
        return self.value(table, (first, *rest))

    def _pointwise(self, node: Node, lowering: Pointwise, ix: Ix) -> str:
        operands: dict[str, str] = {}
        depth = 0
        for name, x in zip(node.op.operands, node.inputs, strict=True):
            operands[name] = self.value(x, broadcast_index(ix, x.shape))
            depth = max(depth, self.depth_of(operands[name]))
        for helper in lowering.helpers:
            self.helpers[helper] = None
        fields = {f for _, f, _, _ in string.Formatter().parse(lowering.wgsl) if f}
        if "index" in fields:
            flat = flatten(ix, node.shape)
            operands["index"] = f"({show_index(flat)})"
            depth = max(depth, self.depth_of_index(flat))
        if "key" in fields:
            words = (f"bitcast<u32>({self.scalar_text(w)})" for w in ("key0", "key1"))
            operands["key"] = f"vec2<u32>({', '.join(words)})"
        for name in fields - operands.keys():
            operands[name] = self._attribute(node, name)
        text = lowering.wgsl.format(**operands)
        if node.op.name == "full":
            return text
        return self.let(node.op.name, text, depth)

    def _attribute(self, node: Node, name: str) -> str:
        value: Any = node.attrs[name]
        if name == "salt":
            return f"{int(value)}u"
        if isinstance(value, bool):
            return literal(value, "bool")
        if node.op.name == "full":
            if node.dtype == "f32" and math_is_infinite(float(value)):
                self.helpers[INFINITY] = None
            return literal(value, node.dtype)
        if isinstance(value, float) and math_is_infinite(value):
            self.helpers[INFINITY] = None
        return literal(value, "f32" if isinstance(value, float) else "i32")


def math_is_infinite(value: float) -> bool:
    """Whether the constant needs the helper for infinities."""
    return value in (float("inf"), float("-inf"))
