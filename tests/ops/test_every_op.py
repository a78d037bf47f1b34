"""Every registered op, by its own definition: types, gradients, decompositions, documents."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tgdsl.ops as ops
from tests.helpers import DIFFERENTIABLE, KEY, OPS, Applied, check_gradient, gradient_error
from tests.strategies import HypothesisDraw, SeededDraw
from tgdsl.autograd import gradients
from tgdsl.dtypes import NUMPY
from tgdsl.errors import GradientError
from tgdsl.ir import REGISTRY, Decompose, Op, View, tracing
from tgdsl.ir.index import index
from tgdsl.ops.leaves import declare
from tgdsl.passes import lower
from tgdsl.reference.evaluate import compute, evaluate

every_op = pytest.mark.parametrize("op", OPS.values(), ids=list(OPS))
every_gradient = pytest.mark.parametrize("op", DIFFERENTIABLE.values(), ids=list(DIFFERENTIABLE))
views = {n: op for n, op in OPS.items() if isinstance(op.lower, View)}
decomposed = {n: op for n, op in OPS.items() if isinstance(op.lower, Decompose)}


@every_op
@given(data=st.data())
def test_type_rule_agrees_with_reference(op: Op[..., Any], data: Any) -> None:
    applied = Applied(op, op.sample(HypothesisDraw(data)))
    value = applied.value(applied.arrays)
    assert value.shape == applied.out.shape
    kind = {"f32": "f", "i32": "i", "bool": "b"}[applied.out.dtype]
    assert value.dtype.kind == kind
    assert applied.out.dtype in NUMPY


@every_gradient
@given(data=st.data())
def test_vjp_agrees_with_finite_differences(op: Op[..., Any], data: Any) -> None:
    sample = op.sample(HypothesisDraw(data))
    seed = data.draw(st.integers(0, 2**16), "directions")
    assert gradient_error(op, sample, np.random.default_rng(seed)) <= 1.0


@every_gradient
def test_second_order_agrees_with_finite_differences(op: Op[..., Any]) -> None:
    """The gradient graph is differentiated again, contracted with fixed weights."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        applied = Applied(op, op.sample(SeededDraw(seed)))
        u = rng.uniform(0.5, 1.5, applied.out.shape)
        applied.cotangents(u)
        weights = [rng.uniform(-1, 1, t.shape) for t in applied.made]
        graph = applied.graph
        with tracing(graph):
            held = [declare(graph, "input", f"w{i}", t.type) for i, t in enumerate(applied.made)]
            total: Any = None
            for w, t in zip(held, applied.made, strict=True):
                part = ops.sum(w * t)
                total = part if total is None else total + part
            try:
                second = gradients(graph, total, [applied.leaves[i] for i in applied.wrt])
            except GradientError as error:
                pytest.skip(f"no second order: {error}")
        fixed = {applied.seed.node: u, **{t.node: w for t, w in zip(held, weights, strict=True)}}

        def value(arrays: list[Any], wanted: Any, fixed: Any = fixed, applied: Any = applied) -> Any:
            return evaluate(applied.graph, {**applied.feeds(arrays), **fixed}, [wanted.node], key=KEY)[wanted.node]

        for i, t in zip(applied.wrt, second, strict=True):
            v = rng.uniform(-1, 1, applied.arrays[i].shape)
            hi, lo = list(applied.arrays), list(applied.arrays)
            hi[i], lo[i] = applied.arrays[i] + 1e-5 * v, applied.arrays[i] - 1e-5 * v
            want = float((value(hi, total) - value(lo, total)) / 2e-5)
            got = value(applied.arrays, t)
            scale = float(np.sum(np.abs(v * got))) + abs(want) + 1.0
            assert abs(float(np.sum(v * got)) - want) <= 1e-5 * scale, f"operand {i}, seed {seed}"


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
    x = np.asarray(sample.inputs[0])
    want = op.ref(x, **sample.attrs)
    assert isinstance(op.lower, View)
    for at in np.ndindex(want.shape):
        source = op.lower.map(tuple(index(i) for i in at), x.shape, **sample.attrs)
        inside = all(lo <= e.offset < hi for e, lo, hi in source.inside)
        got = x[tuple(i.offset for i in source.index)] if inside else source.fill
        assert got == want[at], f"element {at}"


@every_gradient
@pytest.mark.parametrize("fault", ["scale", "sign", "drop"])
def test_gradient_test_notices_a_wrong_rule(op: Op[..., Any], fault: str, monkeypatch: Any) -> None:
    """Would the test notice? Every rule is spoiled, and the property has to fail."""
    rule = op.vjp_rule
    assert rule is not None

    def wrong(ct: Any, y: Any, *inputs: Any, **attributes: Any) -> Any:
        parts = list(rule(ct, y, *inputs, **attributes))
        for i, part in enumerate(parts):
            if part is not None:
                parts[i] = {"scale": lambda p: p * 1.01, "sign": lambda p: -p, "drop": lambda p: p * 0.0}[fault](part)
                break
        return tuple(parts)

    if all(_flat(op, seed) for seed in range(6)):
        pytest.skip("the gradient is zero everywhere")
    monkeypatch.setattr(op, "vjp_rule", wrong)
    with pytest.raises(AssertionError, match="tolerances off"):
        check_gradient(op)


def _flat(op: Op[..., Any], seed: int) -> bool:
    applied = Applied(op, op.sample(SeededDraw(seed)))
    if not applied.wrt:
        return True
    got = applied.cotangents(np.ones(applied.out.shape))
    return bool(np.all(np.abs(got[applied.wrt[0]]) < 1e-3))


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
    parts = [p for p in PARTS if p != "Args:" or inspect.signature(getattr(public[name], "rule", public[name])).parameters]
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
