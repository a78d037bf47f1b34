"""Kernels that do not wait for each other share a dispatch.

A dependent dispatch costs microseconds on a GPU whatever it computes, so on small models the
number of dispatches is the time. Bodies of a bundle stand in one shader, each in a branch on
the workgroup's number, which is uniform, so that barriers inside stay legal. The longest chain
of kernels runs as early as it can; what nobody waits for (weight gradients) fills the
bindings that are left over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs

from tgdsl.ir import Node

from .group import Group

LARGE_WORK = 1 << 26
"""Multiplications (or elements times 16) from which a kernel fills a GPU for longer than a dispatch costs."""


@attrs.frozen
class Bundle:
    """Groups that run in one dispatch."""

    groups: tuple[Group, ...]


def bundle(
    groups: Sequence[Group],
    used: Mapping[int, frozenset[str]],
    max_bindings: int,
    threads: Callable[[Group], int] = lambda _: 64,
) -> list[Bundle]:
    """Bundle a schedule.

    Args:
        groups: In an order in which they may run.
        used: For each group's id, what it binds.
        max_bindings: The most storage buffers of one dispatch.
        threads: How many invocations a group's workgroup would have by itself.

    Returns:
        Bundles in an order in which they may run.
    """
    height = _heights(groups)
    order = {g.id: i for i, g in enumerate(groups)}
    waiting = sorted(groups, key=lambda g: (-height[g.id], order[g.id]))
    done: set[int] = set()
    out: list[Bundle] = []
    while waiting:
        ready = [g for g in waiting if g.before <= done]
        chosen = _choose(ready, used, max_bindings, threads)
        done |= {g.id for g in chosen}
        taken = {g.id for g in chosen}
        waiting = [g for g in waiting if g.id not in taken]
        out.append(Bundle(tuple(chosen)))
    return out


def _heights(groups: Sequence[Group]) -> dict[int, int]:
    """For each group, how many dispatches at least must follow it."""
    height: dict[int, int] = {}
    for g in reversed(groups):
        height[g.id] = max((height[h.id] + 1 for h in groups if g.id in h.before and h.id in height), default=0)
    return height


def _choose(
    ready: Sequence[Group], used: Mapping[int, frozenset[str]], limit: int, threads: Callable[[Group], int]
) -> list[Group]:
    """The first of `ready`, and what fits beside it, each time what binds least anew."""
    chosen = [ready[0]]
    bound = set(used[ready[0].id])
    rest = list(ready[1:])
    while True:
        fitting = [
            g for g in rest if len(bound | used[g.id]) <= limit and all(_get_along(g, c, threads) for c in chosen)
        ]
        if not fitting:
            return chosen
        best = min(fitting, key=lambda g: len(used[g.id] - bound))
        rest.remove(best)
        chosen.append(best)
        bound |= used[best.id]


def _get_along(a: Group, b: Group, threads: Callable[[Group], int]) -> bool:
    """Whether neither of two bodies makes the other slow.

    A kernel takes the registers of its hungriest body, and bodies have workgroups of one size. That
    matters only where both compute for long.
    """
    if work(a) < LARGE_WORK or work(b) < LARGE_WORK:
        return True
    return a.kind == b.kind and threads(a) == threads(b)


def work(group: Group) -> int:
    """A rough measure of what a group computes: multiplications, or 16 per element that it visits."""
    if group.kind == "contraction":
        return group.anchor.type.size * _terms(group.anchor)
    if group.kind == "attention":
        q, k = group.anchor.inputs[:2]
        return 2 * q.type.size * int(k.shape[-2])
    return 16 * group.rows * group.fold


def _terms(node: Node) -> int:
    return int(node.inputs[0].shape[-1])
