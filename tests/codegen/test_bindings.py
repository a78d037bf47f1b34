"""No kernel binds more storage buffers than a device allows, whatever a graph looks like.

Every graph here is compiled and run on the adapter as well, because the driver is the one
who counts: inputs, results, per-step scalars (the random key, and the flag into which a
kernel reports an index out of range).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tgdsl.ops as ops
from tests.codegen.run import TARGETS, assert_same, grads_of, on_device, on_reference, program_of, traced
from tgdsl.codegen import Target
from tgdsl.errors import InputError
from tgdsl.program import Program

LIMIT = 8
"""What every device offers, and the default of a target."""

pytestmark = pytest.mark.gpu
targets = pytest.mark.parametrize("target", TARGETS, ids=["gpu kernels", "cpu kernels"])
Feeds = dict[str, np.ndarray]


def floats(n: int, shape: tuple[int, ...] = (6, 5)) -> Feeds:
    """`n` inputs of one shape, no two alike."""
    rng = np.random.default_rng(n)
    return {f"x{i}": rng.uniform(-1, 1, shape).astype(np.float32) for i in range(n)}


def total(xs: Any) -> Any:
    """A plain chain of additions."""
    return functools.reduce(lambda a, b: a + b, xs)


def within(program: Program, limit: int = LIMIT) -> None:
    """Every dispatch stays within the limit, and binds nothing twice."""
    for d in program.dispatches:
        assert len(d.bindings) <= limit, f"{d.origin} binds {len(d.bindings)}"
        places = [(b.buffer, b.offset, b.nbytes) for b in d.bindings]
        assert len(set(places)) == len(places), f"{d.origin} binds the same range twice"
        text = program.kernels[d.kernel].wgsl
        assert text.count("var<storage") == len(d.bindings), "the text declares what the dispatch binds"


def check(engine: Any, fn: Callable[..., Any], feeds: Feeds, target: Target, below: Any = None, terms: int = 64) -> Any:
    """Compile within the limit, run, and compare."""
    graph = traced(fn, feeds, below)
    program = program_of(graph, target)
    within(program)
    assert_same(on_device(engine, graph, feeds, target), on_reference(graph, feeds), terms=terms, scale=1.0)
    return program


@targets
@pytest.mark.parametrize("n", [6, 7, 8, 9, 12, 15, 23])
def test_sum_of_many_tensors(engine: Any, n: int, target: Target) -> None:
    program = check(engine, lambda **xs: total(xs.values()), floats(n), target)
    # A kernel adds seven inputs, or six to what another has added.
    assert program.kernel_count <= 1 + -(-max(0, n - 7) // 5)


@targets
@pytest.mark.parametrize("shape", [(), (1,), (257,), (3, 1, 4)])
def test_sum_of_twelve_tensors_of_any_shape(engine: Any, shape: tuple[int, ...], target: Target) -> None:
    check(engine, lambda **xs: ops.tanh(total(xs.values())), floats(12, shape), target)


@targets
def test_balanced_tree_of_many_tensors(engine: Any, target: Target) -> None:
    def tree(xs: list[Any]) -> Any:
        half = len(xs) // 2
        return xs[0] if len(xs) == 1 else tree(xs[:half]) * 0.5 + tree(xs[half:])

    check(engine, lambda **xs: tree(list(xs.values())), floats(16), target)


@targets
def test_gradients_of_a_function_of_many_tensors(engine: Any, target: Target) -> None:
    def fn(**xs: Any) -> list[Any]:
        y = functools.reduce(lambda a, b: ops.tanh(a * b + a), xs.values())
        loss = ops.sum(y)
        return [loss, *grads_of(loss, list(xs.values()))]

    check(engine, fn, floats(12), target)


@targets
def test_many_results_of_one_input(engine: Any, target: Target) -> None:
    check(engine, lambda x0: [x0 * float(i) + 1.0 for i in range(20)], floats(1), target)


@targets
def test_many_results_of_many_inputs(engine: Any, target: Target) -> None:
    def fn(**xs: Any) -> list[Any]:
        both = total(xs.values())
        return [both * x for x in xs.values()]

    check(engine, fn, floats(12), target)


@targets
def test_one_value_in_several_places(engine: Any, target: Target) -> None:
    """Each place is one binding: results that are the same value, stored as often."""

    def fn(**xs: Any) -> list[Any]:
        a = total(xs.values())
        return [a, a, a, a * 2.0, ops.sum(a, 1), a]

    for n in (3, 5, 9, 12):
        check(engine, fn, floats(n), target)


@targets
def test_inputs_as_results(engine: Any, target: Target) -> None:
    """An input that is a result too, as it is and changed, next to what else is computed from it."""

    def fn(**xs: Any) -> list[Any]:
        return [*xs.values(), total(xs.values()), *[x * 2.0 for x in xs.values()]]

    check(engine, fn, floats(9), target)


@targets
@pytest.mark.parametrize("n", [1, 6, 7, 12])
def test_random_numbers_with_many_inputs(engine: Any, n: int, target: Target) -> None:
    """The key is a binding of its own."""

    def fn(**xs: Any) -> list[Any]:
        noise = ops.rand((6, 5))
        return [total(xs.values()) * noise, noise, ops.rand((6, 5)) + next(iter(xs.values()))]

    check(engine, fn, floats(n), target)


@targets
def test_dropout_of_everything_and_its_gradient(engine: Any, target: Target) -> None:
    def fn(**xs: Any) -> list[Any]:
        y = total([ops.dropout(x, 0.5) for x in xs.values()])
        loss = ops.sum(ops.tanh(y))
        return [loss, *grads_of(loss, list(xs.values()))]

    check(engine, fn, floats(12), target)


def tables(n: int) -> Feeds:
    """`n` tables and as many lists of rows."""
    rng = np.random.default_rng(n)
    made: Feeds = {f"table{i}": rng.uniform(-1, 1, (7, 5)).astype(np.float32) for i in range(n)}
    return made | {f"rows{i}": rng.integers(0, 7, 6).astype(np.int32) for i in range(n)}


def gathered(xs: dict[str, Any]) -> list[Any]:
    """Every table at its rows."""
    n = sum(name.startswith("table") for name in xs)
    return [ops.take(xs[f"table{i}"], xs[f"rows{i}"]) for i in range(n)]


@targets
@pytest.mark.parametrize("proven", [False, True], ids=["checked", "proven"])
@pytest.mark.parametrize("n", [1, 3, 4, 6])
def test_gathers_with_many_inputs(engine: Any, n: int, proven: bool, target: Target) -> None:
    """An unproven gather reads a table and its rows, and writes the flag."""
    feeds = {**tables(n), **floats(5)}

    def fn(**xs: Any) -> list[Any]:
        others = total(v for name, v in xs.items() if name.startswith("x"))
        return [total(gathered(xs)) * others, others]

    below = {name: 7 for name in feeds if name.startswith("rows")} if proven else None
    program = check(engine, fn, feeds, target, below)
    assert ("flag" in program.outputs) is not proven


@targets
def test_gathers_of_one_table_by_many(engine: Any, target: Target) -> None:
    rng = np.random.default_rng(0)
    feeds: Feeds = {"table": rng.uniform(-1, 1, (7, 5)).astype(np.float32)}
    feeds |= {f"rows{i}": rng.integers(0, 7, 6).astype(np.int32) for i in range(12)}
    check(engine, lambda table, **rows: total(ops.take(table, r) for r in rows.values()), feeds, target)


@targets
def test_gather_at_gathered_rows(engine: Any, target: Target) -> None:
    """Indices that are computed, from many inputs, and random numbers on top: key and flag in one table."""
    rng = np.random.default_rng(1)
    feeds: Feeds = {f"i{k}": rng.integers(0, 2, 6).astype(np.int32) for k in range(6)}
    feeds["table"] = rng.uniform(-1, 1, (7, 5)).astype(np.float32)
    feeds |= floats(4)

    def fn(table: Any, **xs: Any) -> list[Any]:
        rows = total(v for name, v in xs.items() if name.startswith("i"))
        others = total(v for name, v in xs.items() if name.startswith("x"))
        return [ops.take(table, rows) * ops.rand((6, 5)) + others, rows]

    check(engine, fn, feeds, target)


@targets
def test_losses_with_unproven_targets(engine: Any, target: Target) -> None:
    """Several losses and their gradients: logits made of many tensors, targets that are checked."""
    rng = np.random.default_rng(2)
    feeds = {**floats(9), **{f"t{k}": rng.integers(0, 5, 6).astype(np.int32) for k in range(3)}}

    def fn(t0: Any, t1: Any, t2: Any, **xs: Any) -> list[Any]:
        logits = total(xs.values())
        loss = ops.cross_entropy(logits, t0) + ops.cross_entropy(logits * 2.0, t1) + ops.nll_loss(logits, t2)
        return [loss, *grads_of(loss, list(xs.values()))]

    check(engine, fn, feeds, target)


@targets
def test_split_gather_still_reports(engine: Any, target: Target) -> None:
    """The kernel that was split off is the one that reports, and names the user's line."""
    feeds = {**tables(4), **floats(9)}
    feeds["rows3"] = np.array([0, 1, 7, 2, 3, 4], np.int32)
    graph = traced(lambda **xs: total([*gathered(xs), *(v for k, v in xs.items() if k.startswith("x"))]), feeds)
    within(program_of(graph, target))
    with pytest.raises(InputError, match=r"index outside of f32\[7, 5\][\s\S]*test_bindings.py"):
        on_device(engine, graph, feeds, target)


@targets
def test_folds_of_many_inputs(engine: Any, target: Target) -> None:
    """Reductions of several shapes over sums of many, and what is computed from them."""

    def fn(**xs: Any) -> list[Any]:
        both = total(xs.values())
        centred = both - ops.mean(both, -1, keepdims=True)
        return [ops.softmax(both), ops.sum(centred * centred, 0), ops.max(both, 1), ops.layer_norm(both), centred]

    check(engine, fn, floats(12), target)


@targets
def test_products_with_many_operands_around(engine: Any, target: Target) -> None:
    """A contraction whose operands are sums of many, with a sum of many added to the product."""
    left = floats(9, (6, 5))
    right = {f"w{i}": x for i, x in enumerate(floats(9, (5, 4)).values())}
    added = {f"b{i}": x for i, x in enumerate(floats(9, (6, 4)).values())}

    def fn(**xs: Any) -> list[Any]:
        a, w, b = (total(v for k, v in xs.items() if k.startswith(name)) for name in "xwb")
        y = ops.relu(a @ w + b)
        loss = ops.sum(ops.square(y))
        return [y, loss, *grads_of(loss, [xs["x0"], xs["w3"], xs["b8"]])]

    check(engine, fn, {**left, **right, **added}, target, terms=512)


@targets
@pytest.mark.parametrize("n", [9, 20])
def test_selection_among_many(engine: Any, n: int, target: Target) -> None:
    """Bools are stored too: conditions and branches, all of them inputs."""
    feeds = floats(n) | {f"p{i}": x > 0 for i, x in enumerate(floats(n).values())}

    def fn(**xs: Any) -> list[Any]:
        out, every = xs["x0"] * 0.0, xs["p0"] | ~xs["p0"]
        for i in range(n):
            out = ops.where(xs[f"p{i}"], xs[f"x{i}"], out)
            every = every & xs[f"p{i}"]
        return [out, every]

    check(engine, fn, feeds, target)


@targets
@pytest.mark.parametrize("depth", [1, 4, 7, 12])
def test_chains_of_gathers(engine: Any, depth: int, target: Target) -> None:
    """A gather of a gather is a view of a view; a long chain of them has to be stored somewhere."""
    rng = np.random.default_rng(depth)
    feeds: Feeds = {"table": rng.uniform(-1, 1, (6, 5)).astype(np.float32), **floats(2)}
    feeds |= {f"rows{k}": rng.integers(0, 6, 6).astype(np.int32) for k in range(2 * depth)}

    def fn(table: Any, x0: Any, x1: Any, **rows: Any) -> Any:
        both = [table, table * 2.0]
        for k, r in enumerate(rows.values()):
            both[k % 2] = ops.take(both[k % 2], r)
        return ops.where(x0 > x1, both[0], both[1])

    check(engine, fn, feeds, target)


def some_of_everything(**xs: Any) -> list[Any]:
    """Gathers where there are tables, sums and random numbers."""
    others = total(v for name, v in xs.items() if name.startswith("x"))
    return [total([others, *gathered(xs)]), ops.rand((6, 5)) * others]


@pytest.mark.parametrize(("limit", "gathers"), [(4, 0), (5, 1), (6, 1), (7, 2), (8, 4), (10, 4)])
def test_other_limits_are_kept(engine: Any, limit: int, gathers: int) -> None:
    """The limit is the device's; nothing assumes eight."""
    feeds = {**tables(gathers), **floats(12)}
    graph = traced(some_of_everything, feeds)
    target = Target(max_bindings=limit)
    within(program_of(graph, target), limit)
    if limit <= LIMIT:
        assert_same(on_device(engine, graph, feeds, target), on_reference(graph, feeds), terms=64, scale=1.0)
