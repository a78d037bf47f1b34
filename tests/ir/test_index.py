"""Symbolic indices: simplified expressions equal plain arithmetic, within their bounds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tgdsl.codegen.wgsl import show_index
from tgdsl.ir.index import Div, Index, Mod, Var, flatten, reindex, unflatten, var

SIZES = {"a": 6, "b": 4, "c": 5}


def value(i: Index, at: dict[str, int]) -> int:
    """The expression at concrete variables, by plain arithmetic."""
    total = i.offset
    for atom, c in i.terms:
        match atom:
            case Var(name=name):
                total += c * at[name]
            case Div(x=x, c=k):
                total += c * (value(x, at) // k)
            case Mod(x=x, c=k):
                total += c * (value(x, at) % k)
    return total


@st.composite
def expressions(draw: Any, depth: int = 3) -> tuple[Index, Any]:
    """An expression, and the function that it should be."""
    if depth == 0 or draw(st.booleans()):
        name = draw(st.sampled_from(list(SIZES)))
        return var(name, SIZES[name]), lambda at: at[name]
    x, f = draw(expressions(depth - 1))
    match draw(st.integers(0, 4)):
        case 0:
            y, g = draw(expressions(depth - 1))
            return x + y, lambda at: f(at) + g(at)
        case 1:
            k = draw(st.integers(1, 12))
            return x * k, lambda at: f(at) * k
        case 2:
            k = draw(st.integers(0, 7))
            return x + k, lambda at: f(at) + k
        case 3:
            k = draw(st.integers(1, 12))
            return x // k, lambda at: f(at) // k
        case _:
            k = draw(st.integers(1, 12))
            return x % k, lambda at: f(at) % k


points = st.fixed_dictionaries({n: st.integers(0, s - 1) for n, s in SIZES.items()})


@given(expressions(), points)
def test_simplified_equals_plain(pair: Any, at: dict[str, int]) -> None:
    simplified, plain = pair
    assert value(simplified, at) == plain(at)
    assert simplified.lo <= plain(at) <= simplified.hi


@given(expressions(), points)
def test_printed_text_means_the_same(pair: Any, at: dict[str, int]) -> None:
    simplified, plain = pair
    text = show_index(simplified).replace("/", "//")
    text = text.replace("u)", ")")
    assert eval(text, {}, dict(at)) == plain(at)


@given(expressions(), points, points)
def test_substitution(pair: Any, at: dict[str, int], other: dict[str, int]) -> None:
    simplified, plain = pair
    replaced = simplified.substitute({n: var(n, s) * 0 + at[n] for n, s in SIZES.items()})
    assert value(replaced, other) == plain(at)


@given(st.permutations([2, 3, 4, 5]), st.integers(0, 119))
def test_reindex_keeps_the_position(shape: list[int], flat: int) -> None:
    old, new = tuple(shape), (10, 12)
    at = np.unravel_index(flat, old)
    ix = tuple(var(f"i{k}", n) for k, n in enumerate(old))
    got = reindex(ix, old, new)
    where = {f"i{k}": int(i) for k, i in enumerate(at)}
    assert tuple(value(i, where) for i in got) == tuple(int(i) for i in np.unravel_index(flat, new))


def test_splitting_and_merging_an_axis_costs_no_division() -> None:
    t, h, d = var("t", 7), var("h", 4), var("d", 8)
    (merged_t, merged) = reindex((t, h, d), (7, 4, 8), (7, 32))
    assert merged_t == t
    assert show_index(merged) == "h * 8 + d"
    assert unflatten(flatten((h, d), (4, 8)), (4, 8)) == (h, d)
    assert show_index((merged // 8) * 8 + merged % 8) == "h * 8 + d"


@given(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4), st.data())
def test_reindex_between_random_shapes(old: list[int], data: Any) -> None:
    size = math.prod(old)
    new: list[int] = []
    rest = size
    while rest > 1:
        new.append(data.draw(st.sampled_from([d for d in range(2, rest + 1) if rest % d == 0])))
        rest //= new[-1]
    new.insert(data.draw(st.integers(0, len(new))), 1)
    got = reindex(tuple(var(f"i{k}", n) for k, n in enumerate(old)), old, new)
    flat = data.draw(st.integers(0, size - 1))
    where = {f"i{k}": int(i) for k, i in enumerate(np.unravel_index(flat, old))}
    assert tuple(value(i, where) for i in got) == tuple(int(i) for i in np.unravel_index(flat, new))
    assert all(0 <= i.lo <= i.hi < n for i, n in zip(got, new, strict=True))


@given(expressions(), expressions(), st.integers(1, 9), points)
def test_differences_that_stay_positive_divide(a: Any, b: Any, c: int, at: dict[str, int]) -> None:
    (x, f), (y, g) = a, b
    moved, plain = x - y, f(at) - g(at)
    assert value(moved, at) == plain
    moved = moved - moved.lo  # not negative, as padding makes it
    lifted = value(moved, at)
    assert value(moved // c, at) == lifted // c
    assert value(moved % c, at) == lifted % c


def test_division_of_what_may_be_negative_is_refused() -> None:
    x = var("a", 6) - 3
    with pytest.raises(ValueError, match="possibly negative"):
        x // 4
    with pytest.raises(ValueError, match="possibly negative"):
        (var("a", 6) * -1) % 5
    assert value(x % 5, {"a": 1}) == -2 % 5, "an offset alone is made positive"


def test_nested_splits_join_again() -> None:
    """An image of a batch is unflattened axis by axis; put together again it is the flat position."""
    n = var("n", 5 * 7 * 9)
    assert flatten(unflatten(n, (5, 7, 9)), (5, 7, 9)) == n
    b, y, x = unflatten(n, (5, 7, 9))
    assert b * 63 + (y * 9 + x) == n
    assert y * 9 + x == n % 63
    assert y * 10 + x != n % 63
