"""Every registered op, by its own definition: types, gradients, decompositions, documents."""

from __future__ import annotations

import doctest
import functools
import importlib
import inspect
import pkgutil
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tgdsl.ops as ops
from tests.helpers import DIFFERENTIABLE, KEY, OPS, Applied, check_gradient, derivative, gradient_errors, weights
from tests.strategies import HypothesisDraw, SeededDraw
from tgdsl.autograd import gradients
from tgdsl.ir import REGISTRY, Attention, Decompose, Op, Sample, TensorType, View, tracing
from tgdsl.ir.index import index
from tgdsl.ops.leaves import declare
from tgdsl.passes import lower
from tgdsl.reference.evaluate import compute, evaluate

every_op = pytest.mark.parametrize("op", OPS.values(), ids=list(OPS))
every_gradient = pytest.mark.parametrize("op", DIFFERENTIABLE.values(), ids=list(DIFFERENTIABLE))
views = {n: op for n, op in OPS.items() if isinstance(op.lower, View)}
decomposed = {n: op for n, op in OPS.items() if isinstance(op.lower, (Attention, Decompose))}


KINDS = {"f32": np.float64, "i32": np.int32, "bool": np.bool_}
"""What the evaluator computes with."""


@every_op
@given(data=st.data())
def test_type_rule_agrees_with_reference(op: Op[..., Any], data: Any) -> None:
    applied = Applied(op, op.sample(HypothesisDraw(data)))
    value = applied.value(applied.arrays)
    assert value.shape == applied.out.shape
    assert value.dtype == KINDS[applied.out.dtype]


@every_gradient
@given(data=st.data())
def test_vjp_agrees_with_finite_differences(op: Op[..., Any], data: Any) -> None:
    sample = op.sample(HypothesisDraw(data))
    seed = data.draw(st.integers(0, 2**16), "directions")
    errors = gradient_errors(op, sample, np.random.default_rng(seed))
    assert all(e <= 1.0 for e in errors.values()), f"tolerances off, per operand: {errors}"


@pytest.mark.parametrize("op", [o for o in DIFFERENTIABLE.values() if o.analytic], ids=lambda o: o.name)
@given(data=st.data())
def test_vjp_agrees_with_complex_step(op: Op[..., Any], data: Any) -> None:
    """To the last digits, where the reference is analytic; also the proof that it is."""
    applied = Applied(op, op.sample(HypothesisDraw(data)))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**16), "directions"))
    u = weights(rng, applied.out.shape)
    for i, got in applied.cotangents(u).items():
        v = rng.uniform(-1, 1, applied.arrays[i].shape)
        moved = [a + 1e-100j * v if j == i else a for j, a in enumerate(applied.arrays)]
        terms = u * np.imag(applied.value(moved, "complex")) / 1e-100
        scale = max(np.sum(np.abs(terms)), np.sum(np.abs(v * got)))
        assert abs(np.sum(terms) - np.sum(v * got)) <= 1e-12 * scale + 1e-13, f"operand {i}"


@pytest.mark.parametrize("op", [o for o in OPS.values() if o.no_gradient is not None], ids=lambda o: o.name)
def test_op_without_gradient_says_why(op: Op[..., Any]) -> None:
    assert op.no_gradient
    applied = Applied(op, op.sample(SeededDraw(0)))
    made = op.cotangents(applied.out, applied.out, tuple(applied.leaves), {})
    assert made == (None,) * len(applied.leaves)


@every_gradient
def test_second_order_agrees_with_finite_differences(op: Op[..., Any]) -> None:
    """The gradient graph is differentiated again, contracted with fixed weights."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        applied = Applied(op, op.sample(SeededDraw(seed)))
        u = weights(rng, applied.out.shape)
        applied.cotangents(u)
        graph = applied.graph
        with tracing(graph):
            held = [declare(graph, "input", f"w{i}", t.type) for i, t in enumerate(applied.made)]
            parts = [ops.sum(w * t) for w, t in zip(held, applied.made, strict=True)]
            total = functools.reduce(lambda a, b: a + b, parts)
            second = gradients(graph, total, [applied.leaves[i] for i in applied.wrt])
        fixed = {applied.seed.node: u, **{t.node: weights(rng, t.shape) for t in held}}

        def value(arrays: list[Any], wanted: Any = total, fixed: Any = fixed, applied: Any = applied) -> Any:
            return evaluate(applied.graph, {**applied.feeds(arrays), **fixed}, [wanted.node], key=KEY)[wanted.node]

        level = 1.0 + abs(float(value(applied.arrays)))
        for i, t in zip(applied.wrt, second, strict=True):
            v = rng.uniform(-1, 1, applied.arrays[i].shape)
            want, got = float(derivative(value, applied.arrays, i, v)), v * value(applied.arrays, t)
            tolerance = 1e-7 * (float(np.sum(np.abs(got))) + abs(want)) + 1e-8 * level
            assert abs(float(np.sum(got)) - want) <= tolerance, f"operand {i}, seed {seed}"


LINEAR = (
    "neg", "reshape", "broadcast_to", "permute", "slice", "unslice", "sum", "mean", "take", "scatter_rows", "windows",
    "window_sum", "pick", "matmul", "conv2d", "conv2d_input", "conv2d_weight", "mul",
)  # fmt: skip
TOGETHER = ("add", "sub", "concat", "where")


@pytest.mark.parametrize("name", LINEAR + TOGETHER)
@given(data=st.data())
def test_cotangent_of_a_linear_op_is_its_adjoint(name: str, data: Any) -> None:
    """`<f(x), u> = <x, vjp(u)>` in each operand, or in all of them together, to the last digits."""
    applied = Applied(OPS[name], OPS[name].sample(HypothesisDraw(data)))
    u = weights(np.random.default_rng(data.draw(st.integers(0, 2**16), "cotangent")), applied.out.shape)
    left = applied.value(applied.arrays) * u
    right = [x * applied.arrays[i] for i, x in applied.cotangents(u).items()]
    for each in [np.concatenate([np.ravel(r) for r in right])] if name in TOGETHER else right:
        scale = np.sum(np.abs(left)) + np.sum(np.abs(each)) + 1e-100
        assert abs(np.sum(left) - np.sum(each)) <= 1e-12 * scale


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "maximum", "minimum", "matmul"])
def test_same_tensor_as_both_operands(name: str) -> None:
    x = np.array([[1.5, -2.0], [0.5, 3.0]])
    applied = Applied(OPS[name], Sample.of(x, x.copy()))
    u = weights(np.random.default_rng(0), applied.out.shape)
    apart = applied.cotangents(u)
    once = compute(lambda t, s: gradients(t.graph, OPS[name](t, t), [t], s)[0], x, u)
    np.testing.assert_allclose(once, apart[0] + apart[1], rtol=1e-12, atol=1e-14)


@every_gradient
def test_unused_operand_gets_zeros_of_its_shape(op: Op[..., Any]) -> None:
    applied = Applied(op, op.sample(SeededDraw(0)))
    with tracing(applied.graph):
        other = declare(applied.graph, "param", "other", TensorType((2, 3)))
        (made,) = gradients(applied.graph, ops.sum(applied.out), [other])
    np.testing.assert_array_equal(evaluate(applied.graph, {}, [made.node])[made.node], np.zeros((2, 3)))


@pytest.mark.parametrize("op", decomposed.values(), ids=list(decomposed))
@given(data=st.data())
def test_decomposition_means_the_same(op: Op[..., Any], data: Any) -> None:
    applied = Applied(op, op.sample(HypothesisDraw(data)))
    lowered, (root,) = lower(applied.graph, [applied.out.node])
    leaves = {n.attrs["name"]: n for n in lowered.nodes if "name" in n.attrs}
    feeds = {leaves[f"x{i}"]: a for i, a in enumerate(applied.arrays) if f"x{i}" in leaves}
    got = evaluate(lowered, feeds, [root], key=KEY)[root]
    np.testing.assert_allclose(got, applied.value(applied.arrays), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("op", views.values(), ids=list(views))
@given(data=st.data())
def test_view_map_is_what_the_reference_does(op: Op[..., Any], data: Any) -> None:
    sample = op.sample(HypothesisDraw(data))
    x, *more = (np.asarray(a) for a in sample.inputs)
    want = op.ref(x, *more, **sample.attrs)
    assert isinstance(op.lower, View)
    for at in np.ndindex(want.shape):
        source = op.lower.map(tuple(index(i) for i in at), x.shape, **sample.attrs)
        inside = all(lo <= e.offset < hi for e, lo, hi in source.inside)
        got = x[tuple(i.offset for i in source.index)] if inside else source.fill
        assert got == want[at], f"element {at}"


FLAT = ("sign", "floor")
"""Ops whose gradient is zero wherever it is defined: there is nothing to spoil."""
WITHOUT = {("attention_dv", 2), ("recompute", 1)}
"""Operands that an op takes but does not depend on."""
FAULTS = {"scaled": lambda p: p * 1.01, "sign": lambda p: -p, "dropped": lambda p: None}


def _telling(op: Op[..., Any], i: int) -> int:
    """A seed whose sample has a gradient to operand `i` worth the name."""
    for seed in range(40):
        applied = Applied(op, op.sample(SeededDraw(seed)))
        if i in applied.wrt:
            got = applied.cotangents(weights(np.random.default_rng(seed), applied.out.shape))[i]
            if np.max(np.abs(got)) > 1e-2:
                return seed
    pytest.fail(f"{op.name}: no sample has a gradient to operand {i}")


def _spoiled(rule: Any, operand: int, fault: Any) -> Any:
    def wrong(*inputs: Any, **attributes: Any) -> Any:
        parts = list(rule(*inputs, **attributes))
        parts[operand] = fault(parts[operand])
        return tuple(parts)

    return wrong


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("op", [o for o in DIFFERENTIABLE.values() if o.name not in FLAT], ids=lambda o: o.name)
def test_gradient_test_notices_a_wrong_rule(op: Op[..., Any], fault: str, monkeypatch: Any) -> None:
    """Would the test notice? The rule is spoiled for one operand after the other, and the property has to fail."""
    rule = op.vjp_rule
    assert rule is not None
    for i in Applied(op, op.sample(SeededDraw(0))).wrt:
        if (op.name, i) in WITHOUT:
            continue
        seed = _telling(op, i)
        with monkeypatch.context() as patch:
            patch.setattr(op, "vjp_rule", _spoiled(rule, i, FAULTS[fault]))
            with pytest.raises(AssertionError, match=f"operand {i} is .* tolerances off"):
                check_gradient(op, range(seed, seed + 1))
        check_gradient(op, range(seed, seed + 1))


def test_every_op_has_a_gradient_or_a_reason() -> None:
    for op in OPS.values():
        assert (op.vjp_rule is None) != (op.no_gradient is None), op.name


ALIASES = {
    "transpose", "swapaxes", "concatenate", "mean_last", "sum_last", "sum_all", "slice_last_range", "matmul_batched",
    "log_softmax_last", "softmax_causal_last", "cross_entropy_last", "slice_axes",
}  # fmt: skip
PARTS = ("Args:", "Shape:", "Dtype:", "Gradient:", "Source:", "Example:")
public = {n: f for n, f in vars(ops).items() if callable(f) and not n.startswith("_") and not inspect.isclass(f)}


@pytest.mark.parametrize("name", [n for n in public if n not in ALIASES])
def test_public_op_is_documented(name: str) -> None:
    text = getattr(public[name], "rule", public[name]).__doc__ or ""
    first = text.strip().splitlines()[0]
    assert first.endswith((".", "`.")), first
    takes = inspect.signature(getattr(public[name], "rule", public[name])).parameters
    parts = [p for p in PARTS if p != "Args:" or takes]
    missing = [p for p in parts if p not in text]
    if name == "capture":
        missing = [p for p in missing if p == "Args:"]
    assert not missing, f"{name}: the docstring lacks {missing}"


MODULES = [m.name for m in pkgutil.iter_modules(ops.__path__)]


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings_run(module: str) -> None:
    found = importlib.import_module(f"tgdsl.ops.{module}")
    names = {**vars(found), "compute": compute, "np": np}
    for name, thing in list(vars(found).items()):
        text = getattr(getattr(thing, "rule", thing), "__doc__", None)
        here = getattr(getattr(thing, "rule", thing), "__module__", None) == found.__name__
        if here and isinstance(text, str) and ">>>" in text:
            case = doctest.DocTestParser().get_doctest(text, dict(names), name, found.__file__, 0)
            runner = doctest.DocTestRunner(verbose=False)
            failures: list[str] = []
            runner.run(case, out=failures.append)
            assert not failures, "".join(failures)


def test_registry_names_are_those_of_the_ops() -> None:
    assert all(REGISTRY[name].name == name for name in REGISTRY)
