"""Initial values: data that compares and travels, drawn from one stream per parameter."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.frontend.models import MLP
from tgdsl import Conv2d, DeclarationError, Linear, ParameterError, Tensor, init, module, param, state
from tgdsl.frontend import initial_state, initial_values

numbers = st.floats(width=32, allow_nan=False)
initialisers = st.one_of(
    st.builds(init.Normal, numbers),
    st.just(init.Zeros()),
    st.just(init.Ones()),
    st.builds(init.Kaiming, numbers),
    st.builds(init.Literal, st.lists(numbers, max_size=3)),
)


@given(initialisers)
def test_json_round_trip(initial: init.Init) -> None:
    assert init.from_json(init.to_json(initial)) == initial
    assert hash(init.from_json(init.to_json(initial))) == hash(initial)


def test_json_of_an_unknown_kind() -> None:
    with pytest.raises(DeclarationError, match="unknown initialiser kind 'xavier'"):
        init.from_json('{"kind": "xavier"}')


def test_functions_and_names() -> None:
    assert init.randn() == init.Normal(0.02) == init.resolve("randn")
    assert init.zeros() == init.Zeros() == init.resolve("zeros")
    assert init.ones() == init.Ones() == init.resolve("ones")
    assert init.kaiming() == init.Kaiming(math.sqrt(2))
    assert init.literal(np.ones((1, 2))) == init.Literal((1.0, 1.0))
    assert init.resolve(init.Ones()) == init.Ones()
    with pytest.raises(DeclarationError, match="the names are: randn, zeros, ones"):
        init.resolve("rand")  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="expected numbers"):
        init.literal(["a"])


@pytest.mark.parametrize(
    ("initial", "decays"),
    [
        (init.Normal(), True),
        (init.Kaiming(), True),
        (init.Literal([0.0]), True),
        (init.Zeros(), False),
        (init.Ones(), False),
    ],
)
def test_default_decay(initial: init.Init, decays: bool) -> None:
    assert init.decays_by_default(initial) is decays


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
@pytest.mark.parametrize("initial", [init.Normal(), init.Zeros(), init.Ones(), init.Kaiming()])
def test_values_are_f32_arrays_of_the_shape(initial: init.Init, shape: tuple[int, ...]) -> None:
    made = init.values(initial, shape, init.stream(0, "w"))
    assert made.shape == shape
    assert made.dtype == np.float32
    assert type(made) is np.ndarray


def deviation(initial: init.Init, shape: tuple[int, ...], fan_in: int | None = None) -> float:
    return float(init.values(initial, shape, init.stream(1, "w"), fan_in).std())


def test_deviations() -> None:
    assert deviation(init.Normal(0.5), (100, 100)) == pytest.approx(0.5, rel=0.05)
    assert deviation(init.Kaiming(), (50, 200)) == pytest.approx(math.sqrt(2 / 50), rel=0.05)
    assert deviation(init.Kaiming(1.0), (50, 200), 10) == pytest.approx(math.sqrt(1 / 10), rel=0.05)


def test_fan_in_of_layers() -> None:
    def of(model: Any) -> Any:
        return model.w.fan_in

    assert of(Linear(7, 3)) == 7
    assert of(Conv2d(3, 8, 5)) == 75
    std = float(initial_values(Conv2d(8, 64, 3), 0)["w"].std())
    assert std == pytest.approx(math.sqrt(2 / 72), rel=0.05)


def test_initialisers_must_fit_their_parameter() -> None:
    def declare(*dims: int, initial: Any) -> str:
        @module
        class Net:
            w: Tensor = param(*dims, initial=initial)

        with pytest.raises(DeclarationError) as caught:
            Net()
        return str(caught.value).splitlines()[0]

    assert declare(2, 2, initial=init.literal([1, 2, 3])) == ("Net.w: init.literal has 3 numbers for the shape [2, 2]")
    assert declare(8, 3, 3, 3, initial=init.Kaiming()) == (
        "Net.w: the fan-in of the shape [8, 3, 3, 3] is not known; pass fan_in=..."
    )
    assert declare(1, initial="zeros") == ("Net.w: initial must be an initialiser such as init.Zeros(), got 'zeros'")
    with pytest.raises(ParameterError, match="1 numbers for the shape"):
        init.values(init.literal([1.0]), (2,), init.stream(0, "w"))


def test_literal_values() -> None:
    made = init.values(init.literal([[1, 2], [3, 4]]), (2, 2), init.stream(0, "w"))
    assert made.tolist() == [[1, 2], [3, 4]]


def test_states_start_as_declared() -> None:
    @module
    class Norm:
        mean: Tensor = state(2)
        var: Tensor = state(2, initial=init.Ones())

    assert {k: v.tolist() for k, v in initial_state(Norm()).items()} == {"mean": [0, 0], "var": [1, 1]}


class TestStreams:
    def test_one_seed_gives_one_start(self) -> None:
        a, b = initial_values(MLP(8), 3), initial_values(MLP(8), 3)
        assert all(np.array_equal(a[k], b[k]) for k in a)
        assert not np.array_equal(initial_values(MLP(8), 4)["l1.w"], a["l1.w"])

    def test_parameters_differ_from_each_other(self) -> None:
        @module
        class Two:
            a: Tensor = param(8)
            b: Tensor = param(8)

        made = initial_values(Two(), 0)
        assert not np.array_equal(made["a"], made["b"])

    def test_another_parameter_changes_no_other(self) -> None:
        @module
        class More:
            extra: Tensor = param(3)
            w: Tensor = param(4)

        @module
        class Less:
            w: Tensor = param(4)

        assert np.array_equal(initial_values(More(), 0)["w"], initial_values(Less(), 0)["w"])

    def test_a_start_never_changes_between_versions(self) -> None:
        made = init.stream(0, "l1.w").standard_normal(2)
        assert made == pytest.approx(PINNED, abs=1e-12)


PINNED = [0.2976140434593421, 1.0233774541564147]
