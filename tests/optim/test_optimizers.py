"""Optimizers as graphs over arenas, against values recorded from PyTorch and worked out by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.optim.record_torch import start_and_gradients
from tgdsl import lr
from tgdsl.errors import OptionError
from tgdsl.ir import Node
from tgdsl.ops.leaves import leaves
from tgdsl.optim import SGD, Adam, AdamW, ArenaLayout, Optimizer, build_update, decays
from tgdsl.optim.step import BLOCK
from tgdsl.reference.evaluate import evaluate

TORCH = json.loads((Path(__file__).parent / "torch_values.json").read_text())
Arrays = dict[str, np.ndarray]


class Host:
    """Runs an optimizer's update graph in f64 on one parameter per given shape."""

    def __init__(
        self,
        optimizer: Optimizer,
        shapes: Mapping[str, tuple[int, ...]],
        decay: Mapping[str, bool],
        **options: Any,
    ) -> None:
        self.optimizer = optimizer
        self.layout = ArenaLayout.of(shapes.items())
        self.update = build_update(optimizer, self.layout, decay, **options)
        self.nodes = leaves(self.update.graph, "state")
        self.arenas: Arrays = {n: np.zeros(node.shape) for n, node in self.nodes.items()}
        for name, table in self.update.tables.items():
            self.arenas[name] = table.reshape(self.nodes[name].shape).astype(np.float64)
        self.done = 0

    def put(self, arena: str, values: Mapping[str, Any]) -> None:
        flat = self.arenas[arena].reshape(-1)
        for name, value in values.items():
            s = self.layout.segments[name]
            flat[s.offset : s.offset + s.size] = np.asarray(value).reshape(-1)

    def get(self, arena: str, name: str) -> np.ndarray:
        s = self.layout.segments[name]
        return self.arenas[arena].reshape(-1)[s.offset : s.offset + s.size].reshape(s.shape)

    def step(self, grads: Mapping[str, Any]) -> None:
        self.done += 1
        self.put("grads", grads)
        scalars: dict[str, float] = {
            **self.optimizer.scalars(self.done, lr.resolve_lr(self.optimizer.lr, self.done)),
            "step": float(self.done),
        }
        feeds: dict[Node, Any] = {self.nodes[n]: a for n, a in self.arenas.items()}
        feeds |= {node: scalars[n] for n, node in leaves(self.update.graph, "scalar").items()}
        updates = self.update.graph.updates
        values = evaluate(self.update.graph, feeds, [t.node for t in updates.values()])
        self.arenas |= {n: values[t.node] for n, t in updates.items()}


CASES: dict[str, Optimizer] = {
    "adam": Adam(0.01),
    "adam_l2": Adam(0.01, weight_decay=0.1, b1=0.8, b2=0.9, eps=1e-3),
    "adamw": AdamW(0.01, weight_decay=0.1),
    "adamw_clipped": AdamW(0.01, weight_decay=0.1, clip_grad_norm=0.5),
    "sgd": SGD(0.1),
    "sgd_momentum": SGD(0.1, momentum=0.9, weight_decay=0.05),
    "sgd_nesterov": SGD(0.1, momentum=0.9, nesterov=True, clip_grad_norm=1.0),
}


@pytest.mark.parametrize("case", CASES)
def test_parameters_follow_pytorch(case: str) -> None:
    start, grads = start_and_gradients()
    host = Host(CASES[case], {"w": (6,)}, {"w": True})
    host.put("params", {"w": start})
    for g, want in zip(grads, TORCH[case], strict=True):
        host.step({"w": g})
        np.testing.assert_allclose(host.get("params", "w"), want, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    "schedule",
    [
        lr.linear(0.5, 0.05, 8),
        lr.cosine_annealing(0.5, 0.05, 11),
        lr.staircase(0.5, 3, 0.5),
        lr.multi_step(0.5, [2, 7], 0.1),
    ],
    ids=lambda s: s.kind,
)
def test_schedules_follow_pytorch(schedule: Any) -> None:
    got = [lr.resolve_lr(schedule, step) for step in range(1, 13)]
    assert got == pytest.approx(TORCH["schedules"][schedule.kind], abs=1e-12)


def test_eps_before_the_correction_is_the_form_of_the_paper() -> None:
    host = Host(Adam(0.1, eps=0.01, eps_after_correction=False), {"w": (1,)}, {"w": False})
    host.put("params", {"w": [1.0]})
    m = v = 0.0
    p = 1.0
    for t, g in enumerate((0.3, -0.2, 0.5), 1):
        host.step({"w": [g]})
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        p -= 0.1 * math.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (math.sqrt(v) + 0.01)
        assert host.get("params", "w")[0] == pytest.approx(p, rel=1e-12)


@given(
    st.sampled_from(sorted(CASES)),
    st.lists(st.integers(1, 150), min_size=1, max_size=4),
    st.data(),
)
def test_padding_stays_zero_and_parameters_do_not_mix(case: str, sizes: list[int], data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    shapes = {f"p{i}": (n,) for i, n in enumerate(sizes)}
    decay = {n: data.draw(st.booleans()) for n in shapes}
    host = Host(CASES[case], shapes, decay)
    alone = Host(CASES[case], {"p0": shapes["p0"]}, {"p0": decay["p0"]})
    values = {n: rng.normal(size=s) for n, s in shapes.items()}
    host.put("params", values)
    alone.put("params", {"p0": values["p0"]})
    for _ in range(2):
        grads = {n: rng.normal(size=s) for n, s in shapes.items()}
        host.step(grads)
        alone.step({"p0": grads["p0"]})
    used = np.zeros(host.layout.size, bool)
    for s in host.layout.segments.values():
        used[s.offset : s.offset + s.size] = True
    assert not host.arenas["params"].reshape(-1)[~used].any()
    if CASES[case].clip_grad_norm is None:
        np.testing.assert_allclose(host.get("params", "p0"), alone.get("params", "p0"), rtol=1e-12)


def test_only_decaying_parameters_shrink() -> None:
    host = Host(AdamW(0.1, weight_decay=0.5), {"w": (70,), "b": (3,)}, {"w": True, "b": False})
    host.put("params", {"w": np.ones(70), "b": np.ones(3)})
    host.step({})
    np.testing.assert_allclose(host.get("params", "w"), 0.95)
    np.testing.assert_array_equal(host.get("params", "b"), 1.0)
    assert host.update.tables["decay"].tolist() == [1.0, 1.0, 0.0]


def test_clip_uses_the_norm_of_all_gradients_together() -> None:
    host = Host(SGD(1.0, clip_grad_norm=1.0), {"a": (1,), "b": (1,)}, {"a": False, "b": False})
    host.step({"a": [3.0], "b": [4.0]})
    np.testing.assert_allclose([host.get("params", n)[0] for n in "ab"], [-0.6, -0.8], rtol=1e-6)
    np.testing.assert_array_equal([host.get("grads", n)[0] for n in "ab"], [3.0, 4.0])


@pytest.mark.parametrize("bad", [np.inf, np.nan, -np.inf])
def test_a_step_that_is_not_finite_and_those_after_it_change_nothing(bad: float) -> None:
    host = Host(Adam(0.1), {"w": (2,)}, {"w": False}, check_finite=True)
    host.put("params", {"w": [1.0, 2.0]})
    host.step({"w": [0.5, 0.5]})
    before = {n: a.copy() for n, a in host.arenas.items()}
    host.step({"w": [bad, 0.5]})
    host.step({"w": [0.5, 0.5]})
    for name in ("params", "m", "v"):
        np.testing.assert_array_equal(host.arenas[name], before[name])
    assert host.arenas["health"].tolist() == [[2.0] * BLOCK]


def test_explicit_flag_wins_over_filter_wins_over_default() -> None:
    optimizer = AdamW(0.1, decay_filter=lambda name: name.endswith("w"))
    assert [decays(optimizer, "w", declared=flag, default=False) for flag in (True, False, None)] == [True, False, True]
    assert [decays(optimizer, "b", declared=None, default=default) for default in (True, False)] == [False, False]
    assert [decays(AdamW(0.1), "b", declared=None, default=default) for default in (True, False)] == [True, False]
    assert not decays(Adam(0.1), "w", declared=True, default=True)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Adam("x"), r"Adam: lr must be a number or a schedule of tgdsl.lr, got str"),  # type: ignore[arg-type]
        (lambda: Adam(0.1, b1=1.0), r"Adam: b1 must be in \[0.0, 1.0\), got 1.0"),
        (lambda: Adam(0.1, eps=0.0), r"Adam: eps must be in \[1e-30, inf\), got 0.0"),
        (
            lambda: AdamW(0.1, weight_decay=-1.0),
            r"AdamW: weight_decay must be in \[0.0, inf\), got -1.0",
        ),
        (
            lambda: AdamW(0.1, clip_grad_norm=0.0),
            r"AdamW: clip_grad_norm must be in \(0.0, inf\), got 0.0",
        ),
        (lambda: AdamW(math.nan), r"AdamW: lr must be finite, got nan"),
        (lambda: SGD(0.1, nesterov=True), r"SGD: nesterov needs momentum > 0"),
    ],
)
def test_what_is_out_of_range_is_refused(make: Any, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        make()
