"""One group to one kernel: its text, its bindings, its grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from tgdsl.ir import Graph, Node
from tgdsl.schedule import Group, Schedule

from .contract import ContractionKernel, choose_tiling, sizes_of
from .emit import Bound, Emitter
from .fold import FoldKernel, choose_tile, grid
from .wgsl import identifier


@attrs.frozen
class Draft:
    """A kernel before its storage keys have places.

    Attributes:
        name: After the op and the place.
        header: Comment lines: the graph lines that the kernel computes.
        text: The WGSL without the header; kernels of equal text are one.
        bound: Bindings in order.
        groups: The grid.
    """

    name: str
    header: str
    text: str
    bound: tuple[Bound, ...]
    groups: tuple[int, int, int]


def draft(
    graph: Graph,
    schedule: Schedule,
    group: Group,
    *,
    keys: Mapping[int, str],
    names: Mapping[str, str],
    stores: Mapping[int, list[str]],
    scalars: Mapping[str, int],
    unproven: list[Node],
    software: bool,
) -> Draft:
    """Write the kernel of `group`.

    Args:
        graph: For sites.
        schedule: For which nodes kernels compute.
        group: The group.
        keys: Storage key of each node that lies in memory.
        names: Names of storage keys for people.
        stores: Storage keys that each member is written to.
        scalars: Position of each scalar in the table.
        unproven: Gets the gathers whose indices may leave their table.
        software: Whether barriers are dear.
    """
    below = graph.facts.get("below", {})
    emitter = Emitter(keys, names, {n.id for n in group.members}, scalars, below, unproven)
    if group.kind == "contraction":
        tiling = choose_tiling(sizes_of(group.anchor), software=software)
        contraction = ContractionKernel(group, tiling, emitter, stores)
        contraction.body()
        threads, workgroups, shared = tiling.threads, contraction.workgroups, contraction.shared
    else:
        tile = choose_tile(group, software=software)
        fold = FoldKernel(group, tile, emitter, stores, schedule.computed)
        fold.body()
        threads, workgroups, shared = tile.threads, fold.workgroups, fold.shared
    bound = tuple(emitter.bound.values())
    text = _module(emitter, bound, shared, threads)
    return Draft(_name(graph, group), _header(graph, group), text, bound, grid(workgroups))


def _module(emitter: Emitter, bound: Sequence[Bound], shared: Sequence[str], threads: int) -> str:
    lines: list[str] = []
    for i, b in enumerate(bound):
        mode = "read_write" if b.written else "read"
        lines.append(f"@group(0) @binding({i}) var<storage, {mode}> {b.name}: array<{b.dtype}>;")
    lines += shared
    lines += [helper.strip() for helper in emitter.helpers]
    lines.append(f"@compute @workgroup_size({threads})")
    lines.append("fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {")
    lines += ["  " + text for text in emitter.scopes[0].lines]
    lines.append("}")
    return "\n".join(lines) + "\n"


def _name(graph: Graph, group: Group) -> str:
    main = max(group.members, key=lambda n: n.inputs[0].type.size if n.inputs else 0)
    if group.kind == "contraction":
        main = group.anchor
    sites = graph.sites(main)
    return identifier(f"{main.op.name}_{sites[0].short}" if sites else main.op.name, set())


def _header(graph: Graph, group: Group) -> str:
    return "".join(f"// {_graph_line(graph, n)}\n" for n in group.members)


def _graph_line(graph: Graph, node: Node) -> str:
    operands = ", ".join(graph.origin(x) if not x.inputs else f"%{x.id}" for x in node.inputs)
    sites = graph.sites(node)
    place = f"  {sites[0].short}" if sites else ""
    return f"%{node.id} = {node.op.name}({operands}): {node.type}{place}"
