"""The loss scale as a state machine: the update graph on the f64 evaluator against PyTorch's rule in plain Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.optim.test_optimizers import CASES, Host
from tgdsl.optim import SGD, Adam
from tgdsl.optim.scaling import GOOD_STEPS, INITIAL, INTERVAL, LARGEST, SCALE, SMALLEST, UNSCALE, initial_scaling

WHOLE = ("params", "m", "v")


def scaled(case: str = "adam", **options: bool) -> Host:
    """An optimizer of one parameter whose gradients come scaled."""
    host = Host(CASES[case], {"w": (3,)}, {"w": True}, scaled=True, **options)
    host.put("params", {"w": [1.0, 2.0, 3.0]})
    begin(host)
    return host


def begin(host: Host, scale: float = INITIAL, good_steps: int = 0) -> None:
    """Set the arenas of the scale."""
    for name, values in initial_scaling(scale, good_steps).items():
        host.arenas[name] = values.reshape(1, -1).astype(np.float64)


def number(host: Host, arena: str) -> float:
    """What an arena of the scale holds, which must be one number."""
    (value,) = set(host.arenas[arena].reshape(-1))
    return float(value)


def test_it_begins_as_in_pytorch() -> None:
    host = scaled()
    restarts = host.update.restarts
    assert {n: set(a) for n, a in restarts.items()} == {SCALE: {65536.0}, GOOD_STEPS: {0.0}, UNSCALE: {2.0**-16}}
    assert not Host(Adam(0.1), {"w": (3,)}, {"w": False}).update.restarts


@pytest.mark.parametrize("case", CASES)
def test_good_steps_are_those_of_the_optimizer_on_unscaled_gradients(case: str) -> None:
    rng = np.random.default_rng(0)
    host = scaled(case)
    plain = Host(CASES[case], {"w": (3,)}, {"w": True})
    plain.put("params", {"w": [1.0, 2.0, 3.0]})
    for _ in range(4):
        g = rng.normal(size=3)
        host.step({"w": g * number(host, SCALE)})
        plain.step({"w": g})
    for name in plain.arenas.keys() - {"grads"}:
        np.testing.assert_allclose(host.arenas[name], plain.arenas[name], rtol=1e-12)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("case", ["adamw_clipped", "sgd_momentum"])
def test_an_overflow_changes_nothing_and_halves_the_scale(case: str, bad: float) -> None:
    host = scaled(case)
    host.step({"w": [1e4, 2e4, 3e4]})
    before = {n: a.copy() for n, a in host.arenas.items()}
    host.step({"w": [1e4, bad, 3e4]})
    for name in before.keys() & set(WHOLE):
        np.testing.assert_array_equal(host.arenas[name], before[name])
    assert [number(host, n) for n in (SCALE, GOOD_STEPS, UNSCALE)] == [INITIAL / 2, 0.0, 1 / INITIAL]
    host.step({"w": [1e4, 2e4, 3e4]})
    assert not np.array_equal(host.arenas["params"], before["params"])
    assert [number(host, n) for n in (SCALE, GOOD_STEPS, UNSCALE)] == [INITIAL / 2, 1.0, 2 / INITIAL]


def test_the_scale_doubles_after_so_many_good_steps_in_a_row() -> None:
    host = scaled()
    begin(host, 1024.0, INTERVAL - 2)
    host.step({"w": [1.0, 1.0, 1.0]})
    assert (number(host, SCALE), number(host, GOOD_STEPS)) == (1024.0, INTERVAL - 1)
    host.step({"w": [1.0, 1.0, 1.0]})
    assert (number(host, SCALE), number(host, GOOD_STEPS)) == (2048.0, 0.0)
    assert number(host, UNSCALE) == 1 / 1024.0  # what that step's gradients were scaled by
    host.step({"w": [1.0, 1.0, 1.0]})
    assert (number(host, SCALE), number(host, GOOD_STEPS)) == (2048.0, 1.0)


@given(
    st.floats(0.0, 40.0).map(lambda e: 2.0 ** int(e)),
    st.integers(INTERVAL - 6, INTERVAL - 1),
    st.lists(st.booleans(), min_size=1, max_size=12),
)
def test_any_sequence_follows_the_rule(scale: float, count: int, finite: list[bool]) -> None:
    host = scaled("sgd")
    begin(host, scale, count)
    for good in finite:
        host.step({"w": [scale, scale, scale if good else np.inf]})
        # torch/amp/grad_scaler.py and amp_update_scale_cuda_kernel: backoff at once, growth after an interval
        if not good:
            scale, count = max(scale * 0.5, SMALLEST), 0
        elif count + 1 == INTERVAL:
            scale, count = min(scale * 2.0, LARGEST), 0
        else:
            count += 1
        assert (number(host, SCALE), number(host, GOOD_STEPS)) == (scale, count)
    np.testing.assert_allclose(host.get("params", "w"), np.array([1.0, 2.0, 3.0]) - 0.1 * sum(finite))


def test_with_a_finite_check_a_step_that_no_scale_can_save_is_the_last() -> None:
    host = Host(SGD(0.1), {"w": (1,)}, {"w": False}, scaled=True, check_finite=True)
    begin(host, 2.0)
    host.step({"w": [np.inf]})
    assert (number(host, SCALE), number(host, "health")) == (SMALLEST, 0.0)
    host.step({"w": [1.0]})
    moved = host.get("params", "w").copy()
    host.step({"w": [np.nan]})
    assert number(host, "health") == 3.0
    host.step({"w": [1.0]})
    np.testing.assert_array_equal(host.get("params", "w"), moved)
    assert number(host, "health") == 3.0
