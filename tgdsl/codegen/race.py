"""The contraction problems of a step, each as a small program that races candidate tilings.

A problem's kernel is the real one, prologue and epilogue included, but by itself, without what
shares its dispatch in the step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from tgdsl.optim.step import StepGraphs
from tgdsl.program import Binding, Buffer, Dispatch, Kernel, Program
from tgdsl.schedule import Group

from .emit import Bound
from .generate import Generator, Target
from .kernels import Draft, Plan, ProblemKey
from .tiling import Sizes, Tiling, candidates

_TABLE: Final = "scalars"


@attrs.frozen
class Problem:
    """A contraction, whose sizes, operands, prologue and epilogue are those of a step.

    Attributes:
        key: What it is called.
        sizes: Its sizes.
        tilings: Candidates; the first is the heuristic's choice.
        plan: By which its kernels are written.
        group: What they compute.
    """

    key: ProblemKey
    sizes: Sizes
    tilings: tuple[Tiling, ...]
    plan: Plan
    group: Group

    def race(self) -> Race:
        """The candidates as a program."""
        drafts = [self.plan.alone(self.group, tiling) for tiling in self.tilings]
        return _race(self, drafts, _elements(self.plan))


@attrs.frozen
class Race:
    """One dispatch per candidate tiling, all over the same arenas.

    Attributes:
        program: The dispatches.
        arenas: The elements of each arena.
        dtypes: What it holds: `f32`, `i32`, `u32` (a bool), or `scalars` for the table of those.
    """

    program: Program
    arenas: Mapping[str, int]
    dtypes: Mapping[str, str]

    @property
    def written(self) -> list[str]:
        """The arenas that hold results."""
        numbers = {b.buffer for d in self.program.dispatches for b in d.bindings if b.writable}
        return [self.program.buffers[i].name for i in sorted(numbers)]


def problems(step: StepGraphs, target: Target) -> list[Problem]:
    """The distinct contraction problems of a step."""
    generator = Generator(step, attrs.evolve(target, tilings={}))
    generator.run()
    found: dict[ProblemKey, Problem] = {}
    for plan in generator.plans:
        for group in plan.schedule.groups:
            if group.kind == "contraction":
                key, sizes = plan.problem(group), plan.sizes(group)
                tilings = tuple(candidates(sizes, software=target.software))
                found.setdefault(key, Problem(key, sizes, tilings, plan, group))
    return list(found.values())


def _elements(plan: Plan) -> dict[str, int]:
    """How many elements each storage key has."""
    size = {key: plan.graph.nodes[i].type.size for i, key in plan.keys.items()}
    size |= {key: plan.graph.nodes[i].type.size for i, keys in plan.stores.items() for key in keys}
    return size | {_TABLE: len(plan.scalars)}


def _race(problem: Problem, drafts: Sequence[Draft], elements: Mapping[str, int]) -> Race:
    bound: dict[str, Bound] = {b.key: b for d in drafts for b in d.bound}
    number = {key: i for i, key in enumerate(bound)}
    buffers = tuple(Buffer(str(i), max(4, 4 * elements[key]), "arena") for key, i in number.items())
    kernels: list[Kernel] = []
    dispatches: list[Dispatch] = []
    for draft in drafts:
        bindings = tuple(Binding(number[b.key], 0, buffers[number[b.key]].nbytes, b.written) for b in draft.bound)
        dispatches.append(Dispatch(len(kernels), bindings, draft.groups, problem.key))
        kernels.append(Kernel(draft.name, draft.header + draft.text, tuple(b.written for b in draft.bound)))
    program = Program(buffers, tuple(kernels), tuple(dispatches), {}, {}, {})
    arenas = {b.name: b.nbytes // 4 for b in buffers}
    dtypes = {str(i): _TABLE if key == _TABLE else _element(bound[key].dtype) for key, i in number.items()}
    return Race(program, arenas, dtypes)


def _element(dtype: str) -> str:
    return "f32" if dtype == "vec4<f32>" else dtype
