"""What may be timed: tilings that fit everywhere and compute the right thing, once per distinct problem."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tgdsl.ops as ops
from tests.codegen.run import traced
from tgdsl.codegen import Target, problems
from tgdsl.codegen.tiling import MOST_CANDIDATES, MOST_SHARED, Sizes, candidates, choose_tiling
from tgdsl.ir import Graph
from tgdsl.optim.step import StepGraphs
from tgdsl.tuning import contest


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


FEEDS = {"a": normal(12, 20), "b": normal(20, 16), "c": normal(16)}


def step_of(graph: Graph) -> StepGraphs:
    return StepGraphs(graph, {str(i): t for i, t in enumerate(graph.outputs)})


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("dear", [False, True])
@pytest.mark.parametrize("software", [False, True])
def test_candidates_are_few_and_fit_everywhere(*, software: bool, dear: bool, turned: bool) -> None:
    for m in (1, 3, 16, 100, 4096):
        for n in (1, 10, 64, 1000, 4096):
            for k in (1, 9, 64, 4096):
                sizes = Sizes(2, m, n, k, dear, turned)
                found = candidates(sizes, software=software)
                assert found[0] == choose_tiling(sizes, software=software)
                assert 1 <= len(found) <= MOST_CANDIDATES
                assert len(set(found)) == len(found)
                assert {t.threads for t in found} == {found[0].threads}
                assert all(t.shared <= MOST_SHARED for t in found)
                assert all(t.bk == 0 or t.rows % 4 == t.columns % 4 == 0 for t in found)


def test_large_problems_have_several_candidates() -> None:
    assert len(candidates(Sizes(1, 512, 512, 512), software=False)) == MOST_CANDIDATES


@pytest.mark.gpu
@pytest.mark.parametrize("software", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), [(130, 129, 65), (16, 200, 40), (40, 3, 9)])
def test_every_candidate_computes_the_right_thing(
    engine: Any, m: int, n: int, k: int, monkeypatch: pytest.MonkeyPatch, *, software: bool
) -> None:
    monkeypatch.setattr(contest, "race", lambda _, runs: [1.0] * len(runs))
    feeds = {"a": normal(m, k), "b": normal(k, n), "bt": normal(n, k), "c": normal(n)}
    graph = traced(lambda a, b, bt, c: [ops.relu(a @ b + c), (a * 2.0) @ bt.mT], feeds)
    for problem in problems(step_of(graph), Target(software=software)):
        outcome = contest.hold(engine, problem)
        assert set(outcome.seconds) == set(problem.tilings)
        assert outcome.rejected == 0


def test_problems_are_told_apart_by_what_their_kernels_do() -> None:
    def fn(a: Any, b: Any, c: Any) -> list[Any]:
        return [a @ b, (a * 2.0) @ (b + 1.0), ops.tanh(a @ b * 0.5 + c), a @ (b * 0.5), a @ (b + c)]

    found = problems(step_of(traced(fn, FEEDS)), Target())
    assert len({p.key for p in found}) == len(found) > 3
    assert all(p.key.startswith("1x12x16x20:") for p in found)


def test_equal_products_of_other_tensors_are_one_problem() -> None:
    feeds = {"a": normal(12, 20), "b": normal(20, 16), "p": normal(12, 20), "q": normal(20, 16)}
    found = problems(step_of(traced(lambda a, b, p, q: [ops.tanh(a @ b), ops.tanh(p @ q)], feeds)), Target())
    assert len(found) == 1
