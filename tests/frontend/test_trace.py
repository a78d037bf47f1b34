"""What a trace holds: leaves by name, captures, next values of states, salts of random ops."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest

from tests.frontend.models import MLP, Batch, Point, loss, predict
from tgdsl import (
    F32,
    I32,
    DeclarationError,
    FrozenError,
    Graph,
    Linear,
    ShapeError,
    Tensor,
    TraceError,
    build,
    f32,
    forward,
    i32,
    init,
    inputs,
    module,
    param,
    state,
    tied,
    trace,
    trace_into,
    update,
)
from tgdsl.frontend import (
    batch_arrays,
    batch_dims,
    batch_size,
    name_of,
    param_input,
    state_input,
    tensor_input,
    trace_forward,
)
from tgdsl.ops import capture, dropout, mean, relu, square


def message(error: type[Exception], call: Callable[[], object]) -> str:
    with pytest.raises(error) as caught:
        call()
    return str(caught.value).splitlines()[0]


class TestForward:
    def test_leaves_are_named_in_the_order_of_declaration(self) -> None:
        traced = trace_forward(MLP(8), loss, {"B": 4})
        assert list(traced.params) == ["l1.w", "l1.b", "l2.w", "l2.b", "l3.w", "l3.b"]
        assert list(traced.inputs) == ["x", "y"]
        assert traced.states == {}
        assert traced.graph.outputs == [traced.output]
        assert str(traced.inputs["x"].type) == "f32[B=4, 1]"

    def test_a_forward_may_leave_parameters_unused(self) -> None:
        @forward(inputs=Point)
        def first(m: MLP, p: Point) -> Tensor:
            return m.l1(p.x)

        assert len(trace_forward(MLP(8), first, {"B": 1}).params) == 6

    def test_forwards_call_each_other(self) -> None:
        @forward(inputs=Batch)
        def twice(m: MLP, b: Batch) -> Tensor:
            return loss(m, b) * 2.0

        assert trace_forward(MLP(8), twice, {"B": 4}).output.shape == ()
        assert repr(loss) == "<forward loss(Batch)>"

    def test_a_tied_parameter_is_one_leaf(self) -> None:
        @module
        class Tied:
            l1: Linear = Linear(1, 1, bias=False)
            again: Tensor = tied("l1.w")

        @forward(inputs=Point)
        def both(m: Tied, p: Point) -> Tensor:
            return (p.x @ m.l1.w) @ m.again

        traced = trace_forward(Tied(), both, {"B": 2})
        assert list(traced.params) == ["l1.w"]
        assert [n.inputs[1].name for n in traced.graph.nodes if n.op.name == "matmul"] == ["l1.w"] * 2

    def test_parameters_in_containers_are_bound(self) -> None:
        @module
        class Net:
            @build
            def layers(self) -> dict[str, tuple[Linear, ...]]:
                return {"a": (Linear(1, 2), Linear(2, 1))}

            @build
            def gain(self) -> Tensor:
                return param(1)

            def __call__(self, x: Tensor) -> Tensor:
                for layer in self.layers["a"]:
                    x = layer(x)
                return x * self.gain

        @forward(inputs=Point)
        def run(m: Net, p: Point) -> Tensor:
            return m(p.x)

        assert trace_forward(Net(), run, {"B": 3}).output.shape == (3, 1)

    def test_nested_traces_are_refused_and_state_is_restored(self) -> None:
        @forward(inputs=Point)
        def nested(m: MLP, p: Point) -> Tensor:
            trace(MLP(8), loss, dims={"B": 4})
            return p.x

        for _ in range(2):
            shown = message(TraceError, lambda: trace(MLP(8), nested, dims={"B": 1}))
            assert shown.startswith("a forward is already being traced")
        assert trace(MLP(8), predict, dims={"B": 1}).outputs[0].shape == (1, 1)

    def test_an_input_with_the_name_of_a_parameter_is_refused(self) -> None:
        @module
        class Clash:
            x: Tensor = param(1)

        @forward(inputs=Point)
        def run(m: Clash, p: Point) -> Tensor:
            return p.x * m.x

        shown = message(TraceError, lambda: trace(Clash(), run, dims={"B": 1}))
        assert shown == "input 'x': the name is already declared in this trace"

    def test_bounds_of_integers_are_facts_of_the_graph(self) -> None:
        @inputs
        class Tokens:
            t: I32 = i32("B", below=12)
            u: I32 = i32("B")

        @forward(inputs=Tokens)
        def run(m: MLP, b: Tokens) -> Any:
            return b.t + b.u

        assert trace(MLP(8), run, dims={"B": 2}).facts["below"] == {"t": 12}

    def test_salts_depend_on_the_path_of_the_module(self) -> None:
        @module
        class Noisy:
            inner: Linear = Linear(1, 1)

            def __call__(self, x: Tensor) -> Tensor:
                return dropout(self.inner(x), 0.5)

        @module
        class Net:
            a: Noisy = Noisy()
            b: Noisy = Noisy()

        def salts(fn: Callable[[Any, Any], Tensor]) -> list[int]:
            graph = trace(Net(), forward(inputs=Point)(fn), dims={"B": 2})
            return [n.attrs["salt"] for n in graph.nodes if n.op.stochastic]

        a, b = salts(lambda m, p: m.b(m.a(p.x)))
        assert a != b
        assert salts(lambda m, p: m.b(p.x)) == [b]
        assert len(set(salts(lambda m, p: m.a(m.a(p.x))))) == 2


class TestBareFunctions:
    def test_leaves_and_lists(self) -> None:
        def fn() -> list[Tensor]:
            w, x = param_input("w", (2, 3)), tensor_input("x", [4, 2])
            state_input("m", (3,), init_value=1.5)
            return [x @ w, relu(x)]

        graph = trace(fn)
        assert [t.shape for t in graph.outputs] == [(4, 3), (4, 2)]
        assert graph.facts["init_value"] == {"m": 1.5}

    def test_parameters_and_inputs_share_names_states_do_not(self) -> None:
        def twice(a: Any, b: Any) -> Callable[[], Any]:
            return lambda: (a("n", (1,)), b("n", (1,)))[0]

        trace(twice(param_input, state_input))
        for a, b in ((param_input, tensor_input), (state_input, state_input)):
            assert "already declared" in message(TraceError, partial(trace, twice(a, b)))

    @pytest.mark.parametrize("shape", [(0,), (1.5,), (True,), ("B",), (-1, 2)])
    def test_shapes_are_checked(self, shape: Any) -> None:
        shown = message(ShapeError, lambda: trace(lambda: param_input("w", shape)))
        assert shown == f"param 'w': a size must be an int of at least 1, got {list(shape)}"

    def test_names_and_dtypes_are_checked(self) -> None:
        assert message(TraceError, lambda: trace(lambda: param_input("", ()))) == ("param: the name is empty")
        unknown: Any = "f64"
        assert message(ShapeError, lambda: trace(lambda: tensor_input("x", (), unknown))) == (
            "input 'x': unknown dtype 'f64'"
        )

    def test_results_are_checked(self) -> None:
        assert message(TraceError, lambda: trace(lambda: None)).endswith("<lambda> returned None, expected a tensor")
        assert message(TraceError, lambda: trace(list)) == "trace: list returned no tensor"

    def test_a_model_needs_a_forward(self) -> None:
        shown = message(DeclarationError, lambda: trace(MLP(8)))  # type: ignore[arg-type]
        assert shown == "trace: expected a function without parameters, got MLP(hidden=8)"

    def test_trace_into_adds_to_a_graph_without_captures(self) -> None:
        graph = trace(lambda: capture("x", tensor_input("x", (2,))))

        def more() -> Tensor:
            return capture("x", relu(graph.outputs[0]))  # type: ignore[arg-type]

        made = trace_into(graph, more)
        assert made.graph is graph
        assert list(graph.captures) == ["x"]
        assert graph.captures["x"] is graph.outputs[0]
        assert graph.captures_open

    def test_trace_into_restores_the_graph_after_an_error(self) -> None:
        graph = trace(lambda: tensor_input("x", (2,)))
        with pytest.raises(ZeroDivisionError):
            trace_into(graph, lambda: 1 // 0)
        assert graph.captures_open
        assert "already being traced" in message(
            TraceError, lambda: trace_into(graph, lambda: trace_into(Graph(), lambda: None))
        )


class TestCapture:
    def test_returns_the_tensor_itself_and_allows_two_names(self) -> None:
        def fn() -> Tensor:
            x: Tensor = tensor_input("x", (2,))
            assert capture("a", x) is x
            return capture("b", x)

        assert list(trace(fn).captures) == ["a", "b"]

    def test_a_name_is_used_once(self) -> None:
        def fn() -> Tensor:
            x: Tensor = tensor_input("x", (2,))
            return capture("a", capture("a", x))

        assert message(TraceError, lambda: trace(fn)) == "capture: 'a' is captured twice"

    def test_is_silent_outside_of_a_trace(self) -> None:
        model = MLP(8)
        assert capture("w", model.l1.w) is model.l1.w

    def test_foreign_tensors_are_refused(self) -> None:
        model = MLP(8)
        shown = message(TraceError, lambda: trace(lambda: capture("w", model.l1.w)))
        assert "does not belong to this trace" in shown


@module
class Norm:
    mean: Tensor = state(1)
    w: Tensor = param(1)


def norm(fn: Callable[[Norm, Point], Tensor]) -> Graph:
    return trace(Norm(), forward(inputs=Point)(fn), dims={"B": 4})


class TestUpdate:
    def test_names_the_next_value(self) -> None:
        def run(m: Norm, p: Point) -> Tensor:
            update(m.mean, 0.9 * m.mean + 0.1 * mean(p.x, 0))
            return p.x - m.mean

        graph = norm(run)
        assert {k: str(t.type) for k, t in graph.updates.items()} == {"mean": "f32[1]"}
        assert [n.name for n in graph.nodes if n.op.name == "state"] == ["mean"]

    @pytest.mark.parametrize(
        ("target", "value", "shown"),
        [
            (lambda m, p: m.w, lambda m, p: m.w, "update: the target is parameter w, not declared"),
            (lambda m, p: p.x, lambda m, p: p.x, "update: the target is input x, not declared"),
            (lambda m, p: m.mean, lambda m, p: p.x, "update: the next value has another type"),
            (lambda m, p: m.mean, lambda m, p: 1.0, "update: expected a tensor, got float"),
            (lambda m, p: Norm().mean, lambda m, p: m.w, "update: state[1] does not belong to this"),
            (lambda m, p: m.mean, lambda m, p: Norm().w, "update: param[1] does not belong to this"),
        ],
    )
    def test_mistakes(self, target: Any, value: Any, shown: str) -> None:
        def run(m: Norm, p: Point) -> Tensor:
            update(target(m, p), value(m, p))
            return p.x

        got = message((ShapeError, TraceError), lambda: norm(run))  # type: ignore[arg-type]
        assert got.startswith(shown)

    def test_happens_once_and_only_in_a_trace(self) -> None:
        def twice(m: Norm, p: Point) -> Tensor:
            update(m.mean, m.w)
            update(m.mean, m.w)
            return p.x

        assert message(TraceError, lambda: norm(twice)) == "update: 'mean' is updated twice"
        assert message(TraceError, lambda: update(Norm().mean, Norm().w)).startswith(
            "update: tensor operations run only while"
        )


class TestInputs:
    x = np.arange(4, dtype=np.float32).reshape(4, 1)

    def test_held_values(self) -> None:
        @inputs
        class Labeled:
            x: F32 = f32("B", 1)
            y: I32 = i32("B", below=3)

        y = np.zeros(4, np.int32)
        batch = Labeled(x=self.x, y=y)
        assert batch.x.numpy() is self.x
        assert batch.y.numpy() is y
        assert (batch.x.dtype, batch.y.dtype, batch.y.shape) == ("f32", "i32", (4,))
        assert type(batch.y).__mro__[1].__name__ == "IntTensor"
        assert batch_arrays(batch) == {"x": self.x, "y": y}
        assert batch_dims(batch) == {"B": 4}
        assert repr(batch) == "Labeled(x=[4, 1], y=[4])"

    def test_is_frozen(self) -> None:
        batch = Batch(x=self.x, y=self.x)
        with pytest.raises(FrozenError, match="Batch is immutable"):
            batch.x = self.x  # type: ignore[misc]
        with pytest.raises(FrozenError):
            del batch.x

    def test_scalars_and_strided_arrays(self) -> None:
        @inputs
        class Odd:
            t: F32 = f32()
            x: F32 = f32("B", 2)

        wide = np.zeros((3, 4), np.float32)
        batch = Odd(t=np.asarray(1.0, np.float32), x=wide[:, ::2])
        assert batch.t.shape == ()

    def test_class_variables_and_sizes(self) -> None:
        @inputs
        class Counted:
            LIMIT: ClassVar[int] = 3
            x: F32 = f32("B", 1)

        @inputs
        class One:
            t: F32 = f32()

        assert batch_size(Counted(x=self.x)) == 4
        assert batch_size(One(t=np.zeros((), np.float32))) == 1
        assert name_of(One) == "One"

    def test_inheritance(self) -> None:
        @inputs
        class Weighted(Batch):
            w: F32 = f32("B")

        batch = Weighted(x=self.x, y=self.x, w=self.x[:, 0])
        assert list(batch_arrays(batch)) == ["x", "y", "w"]

    def test_declarations_need_an_annotation_and_no_underscore(self) -> None:
        def bare() -> None:
            @inputs
            class Bad:
                x = f32("B", 1)

        def hidden() -> None:
            @inputs
            class Bad:
                _x: F32 = f32("B")

        def empty() -> None:
            @inputs
            class Bad: ...

        with pytest.raises(DeclarationError) as caught:
            bare()
        assert str(caught.value) == (
            "@inputs Bad: 'x' has no annotation, so it is not a field.\n  write: x: F32 = f32('B', 1)"
        )
        assert "'_x' begins with an underscore" in message(DeclarationError, hidden)
        assert message(DeclarationError, empty) == "@inputs Bad: declares no input"

    def test_methods_and_properties_work_in_a_trace(self) -> None:
        @inputs
        class Scaled:
            x: F32 = f32("B", 1)

            @property
            def half(self) -> Tensor:
                return self.x * 0.5

        @forward(inputs=Scaled)
        def run(m: MLP, b: Scaled) -> Tensor:
            return square(b.half)

        assert trace(MLP(8), run, dims={"B": 2}).outputs[0].shape == (2, 1)


def test_initialiser_of_a_state_must_fit() -> None:
    @module
    class Bad:
        mean: Tensor = state(2, initial=init.literal([1.0]))

    assert message(DeclarationError, Bad) == "Bad.mean: init.literal has 1 numbers for the shape [2]"
