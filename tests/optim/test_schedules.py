"""Values of learning-rate schedules, checked against tables worked out by hand."""

from __future__ import annotations

import json
import math

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tgdsl import lr
from tgdsl.errors import OptionError

TABLE = [
    (0.25, {1: 0.25, 1000: 0.25}),
    (lr.constant(0.5), {1: 0.5, 7: 0.5}),
    (lr.linear_decay(1.0, 0.0, 100), {1: 0.99, 2: 0.98, 100: 0.0, 101: 0.0}),
    (
        lr.cosine_decay(1.0, 0.0, 100),
        {1: 0.5 * (1 + math.cos(math.pi / 100)), 50: 0.5, 100: 0.0, 500: 0.0},
    ),
    (lr.linear(1.0, 0.0, 100), {1: 1.0, 2: 0.99, 101: 0.0, 300: 0.0}),
    (lr.cosine_annealing(1.0, 0.2, 10), {1: 1.0, 6: 0.6, 11: 0.2, 12: 0.2}),
    (lr.staircase(1.0, 3, 0.5), {1: 1.0, 3: 1.0, 4: 0.5, 6: 0.5, 7: 0.25}),
    (lr.multi_step(1.0, [3, 5], 0.1), {2: 1.0, 3: 1.0, 4: 0.1, 5: 0.1, 6: 0.01}),
    (lr.warmup(1.0, 10, lr.linear_decay(1.0, 0.0, 100)), {1: 0.1, 10: 1.0, 11: 0.99, 110: 0.0}),
    (
        lr.linear_decay(1.0, 0.0, 100, start_step=50),
        {1: 0.99, 50: 0.99, 51: 0.99, 52: 0.98, 150: 0.0},
    ),
]


@pytest.mark.parametrize(("schedule", "values"), TABLE, ids=lambda v: getattr(v, "kind", None))
def test_schedule_has_the_values_of_its_table(schedule: lr.Schedule, values: dict[int, float]) -> None:
    got = {step: lr.resolve_lr(schedule, step) for step in values}
    assert got == pytest.approx(values, abs=1e-12)


numbers = st.floats(-10, 10)
counts = st.integers(1, 1000)
simple = st.one_of(
    st.floats(0, 1),
    st.builds(lr.Constant, value=numbers),
    st.builds(lr.LinearDecay, peak=numbers, final=numbers, steps=counts),
    st.builds(lr.CosineDecay, peak=numbers, final=numbers, steps=counts, start_step=st.none() | counts),
    st.builds(lr.Linear, peak=numbers, final=numbers, steps=counts),
    st.builds(lr.CosineAnnealing, peak=numbers, final=numbers, steps=counts),
    st.builds(lr.Staircase, peak=numbers, every=counts, gamma=numbers),
    st.builds(
        lr.MultiStep,
        peak=numbers,
        milestones=st.sets(counts, min_size=1).map(lambda s: tuple(sorted(s))),
        gamma=numbers,
    ),
)
schedules = st.recursive(simple, lambda inner: st.builds(lr.Warmup, peak=numbers, steps=counts, after=inner))


@given(schedules)
def test_json_gives_the_schedule_back(schedule: lr.Schedule) -> None:
    assert lr.from_json(json.loads(json.dumps(lr.to_json(schedule)))) == schedule


def test_every_kind_is_drawn_above() -> None:
    assert set(lr.KINDS) == {
        "constant",
        "linear_decay",
        "cosine_decay",
        "linear",
        "cosine_annealing",
        "staircase",
        "multi_step",
        "warmup",
    }
    assert all(attrs.fields_dict(cls)["kind"].default == kind for kind, cls in lr.KINDS.items())


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: lr.linear_decay(1.0, 0.0, 0),
            r"lr.linear_decay: steps must be an int >= 1, got 0",
        ),
        (
            lambda: lr.linear_decay(math.nan, 0.0, 5),
            r"lr.linear_decay: peak must be a finite number, got nan",
        ),
        (
            lambda: lr.warmup(1.0, 5, "x"),  # type: ignore[arg-type]
            r"lr.warmup: after must be a number or a schedule of tgdsl.lr, got str",
        ),
        (
            lambda: lr.multi_step(1.0, [5, 3], 0.1),
            r"milestones must be ascending ints >= 1, got \(5, 3\)",
        ),
        (lambda: lr.multi_step(1.0, [], 0.1), r"milestones must be ascending"),
        (lambda: lr.staircase(1.0, True, 0.1), r"every must be an int >= 1, got True"),
        (lambda: lr.from_json({"kind": "none"}), r"expected a number or a dict with kind in"),
        (lambda: lr.from_json({"kind": "constant", "valve": 1.0}), r"from_json: constant: .*valve"),
        (lambda: lr.check_schedule(math.inf), r"lr must be finite, got inf"),
    ],
)
def test_what_is_no_schedule_is_refused(make, text: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(OptionError, match=text):
        make()
