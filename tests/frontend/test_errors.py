"""The texts of errors, word for word: what, both operands, the user's line, what to do.

Only the position of this file and its line numbers are left out of the comparison.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.frontend.models import MLP, Batch, Point, loss
from tgdsl import (
    F32,
    I32,
    Arg,
    DeclarationError,
    DimError,
    FrozenError,
    InputError,
    Linear,
    ShapeError,
    Tensor,
    TraceError,
    arg,
    f32,
    forward,
    i32,
    inputs,
    module,
    trace,
)
from tgdsl.ops import mean, relu, reshape, square

x = np.zeros((4, 1), np.float32)


def text(error: type[Exception], call: Callable[[], object]) -> str:
    with pytest.raises(error) as caught:
        call()
    shown = str(caught.value).replace(__file__, "test_errors.py")
    shown = re.sub(r'"[^"]*/(\w+\.py)"', r'"\1"', shown)
    shown = re.sub(r"(\.py\"?, line )\d+", r"\1N", shown)
    return re.sub(r"(\.py:)\d+", r"\1N", shown)


def traced(fn: Any) -> Callable[[], object]:
    return lambda: trace(MLP(), forward(inputs=Batch)(fn), dims={"B": 4})


class TestTrace:
    def test_matmul(self) -> None:
        def bad_matmul(m: MLP, b: Batch) -> Tensor:
            h = relu(m.l1(b.x))
            return mean(h @ m.l3.w + m.l1.w @ m.l2.w @ m.l1.w)

        assert text(ShapeError, traced(bad_matmul)) == (
            "matmul: inner dims differ (64 != 1)\n"
            "  left  f32[1, 64]  (matmul at test_errors.py:N)\n"
            "  right f32[1, 64]  (parameter l1.w)\n"
            "  hint: the right operand looks transposed; write x @ w.mT\n"
            '  File "test_errors.py", line N, in TestTrace.test_matmul.<locals>.bad_matmul\n'
            "    return mean(h @ m.l3.w + m.l1.w @ m.l2.w @ m.l1.w)\n"
            "                             ^^^^^^^^^^^^^^^^^^^^^^^^"
        )

    def test_broadcast(self) -> None:
        def bad_broadcast(m: MLP, b: Batch) -> Tensor:
            return mean(m.l1(b.x) - reshape(b.y, (2, -1)))

        assert text(ShapeError, traced(bad_broadcast)) == (
            "sub: shapes do not broadcast at axis -2 (4 against 2)\n"
            "  left  f32[B=4, 64]  (add at test_errors.py:N)\n"
            "  right f32[2, 2]  (reshape at test_errors.py:N)\n"
            '  File "test_errors.py", line N, in TestTrace.test_broadcast.<locals>.bad_broadcast\n'
            "    return mean(m.l1(b.x) - reshape(b.y, (2, -1)))\n"
            "                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^"
        )

    def test_error_inside_a_library_layer_shows_the_users_line(self) -> None:
        def bad_layer(m: MLP, b: Batch) -> Tensor:
            return mean(m.l2(b.x))

        assert text(ShapeError, traced(bad_layer)) == (
            "matmul: inner dims differ (1 != 64)\n"
            "  left  f32[B=4, 1]  (input x)\n"
            "  right f32[64, 64]  (parameter l2.w)\n"
            '  File "test_errors.py", line N, in '
            "TestTrace.test_error_inside_a_library_layer_shows_the_users_line.<locals>.bad_layer\n"
            "    return mean(m.l2(b.x))\n"
            "                ^^^^^^^^^"
        )

    def test_caret_counts_letters_not_bytes(self) -> None:
        def bad(m: MLP, b: Batch) -> Tensor:
            größe = m.l1(b.x)
            return mean(größe @ größe)

        assert text(ShapeError, traced(bad)).endswith("    return mean(größe @ größe)\n                ^^^^^^^^^^^^^")

    def test_truth_value(self) -> None:
        def truth(m: MLP, b: Batch) -> Tensor:
            return b.x if b.x > 0 else b.y

        assert text(TraceError, traced(truth)) == (
            "a tensor has no truth value while it is traced; "
            "use where(cond, a, b) instead of if / and / or\n"
            '  File "test_errors.py", line N, in TestTrace.test_truth_value.<locals>.truth\n'
            "    return b.x if b.x > 0 else b.y\n"
            "                  ^^^^^^^"
        )

    def test_model_from_outside(self) -> None:
        outside = MLP()

        def leaking(m: MLP, b: Batch) -> Tensor:
            return mean(b.x + outside.l1.w)

        assert text(TraceError, traced(leaking)) == (
            "add: param[1, 64] does not belong to this trace.\n"
            "  hint: use the model and the inputs that the forward receives, not values from outside\n"
            '  File "test_errors.py", line N, in TestTrace.test_model_from_outside.<locals>.leaking\n'
            "    return mean(b.x + outside.l1.w)\n"
            "                ^^^^^^^^^^^^^^^^^^"
        )

    def test_inputs_from_outside(self) -> None:
        batch = Batch(x=x, y=x)

        def leaking(m: MLP, b: Batch) -> Tensor:
            return mean(b.x + batch.y)

        assert text(TraceError, traced(leaking)).startswith(
            "add: <HeldTensor f32[4, 1]> does not belong to this trace.\n"
        )

    def test_op_outside_of_a_trace(self) -> None:
        model = MLP()
        assert text(TraceError, lambda: model(model.l1.w)) == (
            "matmul: tensor operations run only while a @forward function is being traced.\n"
            "  hint: pass the function to compile_module / compile_forward, "
            "or look at shapes with trace(...)\n"
            '  File "models.py", line N, in MLP.__call__\n'
            "    return self.l3(relu(self.l2(relu(self.l1(x)))))\n"
            "                                     ^^^^^^^^^^"
        )

    def test_array_in_a_forward(self) -> None:
        def array(m: MLP, b: Batch) -> Tensor:
            return mean(relu(np.zeros(3)))  # type: ignore[arg-type]

        assert text(TypeError, traced(array)).startswith(
            "relu: expected a tensor or a number, got ndarray\n"
            "  hint: arrays enter a forward through its @inputs class\n"
        )


class TestResult:
    where = '  File "test_errors.py", line N, in TestResult.'

    def test_missing_return(self) -> None:
        def forgot(m: MLP, b: Batch) -> Tensor:  # type: ignore[return]
            mean(m(b.x))

        assert text(TraceError, traced(forgot)) == (
            "TestResult.test_missing_return.<locals>.forgot returned None, expected a tensor\n"
            "  hint: is a return statement missing?\n"
            f"{self.where}test_missing_return.<locals>.forgot"
        )

    def test_several_results(self) -> None:
        def pair(m: MLP, b: Batch) -> Any:
            return b.x, b.y

        assert text(TraceError, traced(pair)) == (
            "TestResult.test_several_results.<locals>.pair returned a tuple, expected a tensor\n"
            "  hint: publish further values with capture(name, t)\n"
            f"{self.where}test_several_results.<locals>.pair"
        )

    def test_number(self) -> None:
        def number(m: MLP, b: Batch) -> Any:
            return 1.0

        assert text(TraceError, traced(number)) == (
            "TestResult.test_number.<locals>.number returned a float, expected a tensor\n"
            f"{self.where}test_number.<locals>.number"
        )

    def test_tensor_of_another_trace(self) -> None:
        kept: list[Tensor] = []

        def keeps(m: MLP, b: Batch) -> Tensor:
            kept.append(b.x)
            return kept[0]

        trace(MLP(), forward(inputs=Batch)(keeps), dims={"B": 4})
        assert text(TraceError, traced(keeps)).startswith(
            "TestResult.test_tensor_of_another_trace.<locals>.keeps returned "
            "<Tensor f32[B=4, 1]>, which does not belong to this trace\n"
            "  hint: compute it from the model and the inputs that the forward receives\n"
        )


class TestCalls:
    def test_unknown_dim(self) -> None:
        shown = text(DimError, lambda: trace(MLP(), loss, dims={"b": 4}))
        assert shown == "Batch has no dim 'b'; its dims are: B"

    def test_unbound_dim(self) -> None:
        shown = text(DimError, lambda: trace(MLP(), loss))
        assert shown == "Batch: dim 'B' is not bound; pass dims={'B': ...}"

    @pytest.mark.parametrize("size", [0, -1, 2.0, True, "3"])
    def test_size_of_a_dim(self, size: Any) -> None:
        shown = text(DimError, lambda: trace(MLP(), loss, dims={"B": size}))
        assert shown == f"Batch: dim 'B' must be an int of at least 1, got {size!r}"

    def test_class_instead_of_instance(self) -> None:
        shown = text(DeclarationError, lambda: trace(MLP, loss, dims={"B": 4}))  # type: ignore[misc]
        assert shown == "trace: model is a type, not an instance of a @module class"

    def test_undecorated_forward(self) -> None:
        def plain(m: MLP, b: Batch) -> Tensor:
            return m(b.x)

        shown = text(DeclarationError, lambda: trace(MLP(), plain))  # type: ignore[call-overload]
        assert shown.startswith("trace: expected a @forward function, got <function")

    def test_missing(self) -> None:
        shown = text(InputError, lambda: Batch(x=x))  # type: ignore[call-arg]
        assert shown == "Batch: missing input 'y', declared as f32('B', 1)"

    def test_unknown(self) -> None:
        shown = text(InputError, lambda: Batch(x=x, y=x, z=x))  # type: ignore[call-arg]
        assert shown == "Batch: unknown input 'z'; declared: x, y"

    def test_dtype(self) -> None:
        shown = text(InputError, lambda: Batch(x=np.zeros((4, 1)), y=x))  # type: ignore[arg-type]
        assert shown == (
            "Batch.x: expected f32('B', 1), got float64 array of shape [4, 1]\n  hint: np.asarray(x, dtype=np.float32)"
        )

    def test_list(self) -> None:
        shown = text(InputError, lambda: Batch(x=[[1.0]], y=x))  # type: ignore[arg-type]
        assert shown == ("Batch.x: expected f32('B', 1), got list\n  hint: np.asarray(x, dtype=np.float32)")

    def test_rank(self) -> None:
        shown = text(InputError, lambda: Batch(x=x[:, 0], y=x))
        assert shown == "Batch.x: expected f32('B', 1) (rank 2), got shape [4]"

    def test_fixed_dim(self) -> None:
        shown = text(InputError, lambda: Batch(x=np.zeros((4, 2), np.float32), y=x))
        assert shown == ("Batch.x: expected f32('B', 1), got shape [4, 2]; axis 1 must be 1, is 2")

    def test_dims_disagree(self) -> None:
        shown = text(InputError, lambda: Batch(x=x, y=x[:3]))
        assert shown == "Batch: dim 'B' is 4 in x axis 0 and 3 in y axis 0"

    def test_empty_axis(self) -> None:
        shown = text(InputError, lambda: Batch(x=x[:0], y=x))
        assert shown == ("Batch.x: expected f32('B', 1), got shape [0, 1]; zero-size axes are not supported")

    @pytest.mark.parametrize("bad", [-1, 10])
    def test_value_out_of_range(self, bad: int) -> None:
        @inputs
        class Labels:
            y: I32 = i32("B", below=10)

        values = np.array([3, bad], np.int32)
        shown = text(InputError, lambda: Labels(y=values))
        expected = f"Labels.y: expected i32('B', below=10), got values from {values.min()}"
        assert shown == f"{expected} to {values.max()}"


class TestDecoration:
    def test_two_tensors(self) -> None:
        def wrong() -> object:
            def loss2(m: MLP, x: Tensor, y: Tensor) -> Tensor:
                return x

            return forward(inputs=Batch)(loss2)  # type: ignore[arg-type]

        name = "TestDecoration.test_two_tensors.<locals>.wrong.<locals>.loss2"
        assert text(DeclarationError, wrong) == (
            f"@forward {name}: expected two parameters (model, inputs), found 3 (m, x, y).\n"
            f"  hint: read the inputs from one value: def {name}(m: ..., b: Batch) -> Tensor\n"
            f'  File "test_errors.py", line N, in {name}'
        )

    def test_other_inputs_class(self) -> None:
        def wrong() -> object:
            def loss2(m: MLP, b: Point) -> Tensor:
                return b.x

            return forward(inputs=Batch)(loss2)  # type: ignore[arg-type]

        name = "TestDecoration.test_other_inputs_class.<locals>.wrong.<locals>.loss2"
        assert text(DeclarationError, wrong) == (
            f"@forward {name}: parameter 'b' is annotated Point but inputs=Batch\n"
            f'  File "test_errors.py", line N, in {name}'
        )

    def test_model_is_not_a_module(self) -> None:
        def wrong() -> object:
            def loss2(m: int, b: Batch) -> Tensor:
                return b.x

            return forward(inputs=Batch)(loss2)

        name = "TestDecoration.test_model_is_not_a_module.<locals>.wrong.<locals>.loss2"
        assert text(DeclarationError, wrong) == (
            f"@forward {name}: parameter 'm' is annotated int, which is not a @module class\n"
            f'  File "test_errors.py", line N, in {name}'
        )

    def test_one_annotation_of_a_local_class_does_not_switch_off_the_others(self) -> None:
        class Local: ...

        def loss2(m: Local, b: Point) -> Tensor:
            return b.x

        shown = text(DeclarationError, lambda: forward(inputs=Batch)(loss2))  # type: ignore[arg-type]
        assert "parameter 'b' is annotated Point but inputs=Batch" in shown

    def test_inputs_is_not_an_inputs_class(self) -> None:
        def loss2(m: MLP, b: Batch) -> Tensor:
            return b.x

        shown = text(DeclarationError, lambda: forward(inputs=int)(loss2))  # type: ignore[arg-type]
        assert ": inputs=<class 'int'> is not an @inputs class\n" in shown

    def test_plain_default(self) -> None:
        def wrong() -> object:
            @module
            class Net:
                n: int = 64
                layer: Linear = Linear(1, n)

            return Net

        assert text(DeclarationError, wrong) == (
            "@module Net: field 'n' has the plain default 64, which later lines of the class body "
            "would read as a constant even when Net(n=...) overrides it.\n"
            "  write: n: Arg[int] = arg(default=64)"
        )

    def test_condition_on_a_symbol(self) -> None:
        def cond() -> object:
            @module
            class Net:
                n: Arg[int] = arg()
                layer: Linear = Linear(1, n) if n else Linear(2, n)  # type: ignore[redundant-expr]

            return Net

        assert text(DeclarationError, cond) == (
            "argument 'n' has no value inside the class body; it is a symbol there.\n"
            "  hint: move this choice into a @build method, where self.n is a plain value\n"
            '  File "test_errors.py", line N, in '
            "TestDecoration.test_condition_on_a_symbol.<locals>.cond.<locals>.Net\n"
            "    layer: Linear = Linear(1, n) if n else Linear(2, n)  # type: ignore[redundant-expr]\n"
            "                    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^"
        )

    def test_range_of_a_symbol(self) -> None:
        def rng() -> object:
            @module
            class Net:
                n: Arg[int] = arg()
                layer: tuple[Linear, ...] = tuple(Linear(1, 1) for _ in range(n))  # type: ignore[call-overload]

            return Net

        assert text(DeclarationError, rng) == (
            "argument 'n' has no value inside the class body; it is a symbol there.\n"
            "  hint: move this choice into a @build method, where self.n is a plain value\n"
            '  File "test_errors.py", line N, in '
            "TestDecoration.test_range_of_a_symbol.<locals>.rng.<locals>.Net\n"
            "    layer: tuple[Linear, ...] = tuple(Linear(1, 1) for _ in range(n))"
            "  # type: ignore[call-overload]\n"
            "                                                            ^^^^^^^^"
        )

    def test_comprehension_in_a_class_body(self) -> None:
        def comp() -> object:
            @module
            class Net:
                n: Arg[int] = arg()
                layer: tuple[Linear, ...] = tuple(Linear(1, n) for _ in range(3))  # type: ignore[name-defined]  # noqa: F821

            return Net

        assert text(NameError, comp) == "name 'n' is not defined"

    def test_inputs_without_a_shape(self) -> None:
        def wrong() -> object:
            @inputs
            class I:  # noqa: E742
                x: F32

            return I

        assert text(DeclarationError, wrong) == (
            '@inputs I: field \'x\' declares no shape.\n  write: x: F32 = f32("B", ...)   or   x: I32 = i32("B", ...)'
        )

    def test_frozen(self) -> None:
        def assign() -> None:
            MLP().l1 = Linear(1, 64)  # type: ignore[misc]

        assert text(FrozenError, assign) == ("MLP is immutable; build a new one: attrs.evolve(m, l1=...)")

    def test_frozen_inside_a_forward(self) -> None:
        def assigns(m: MLP, b: Batch) -> Tensor:
            m.hidden = 3  # type: ignore[misc]
            return square(b.x)

        text(FrozenError, traced(assigns))


def test_error_in_a_constructor_shows_the_users_line() -> None:
    assert text(DeclarationError, lambda: MLP(hidden=0)) == (
        "Linear.w: a size must be at least 1, got 0\n"
        '  File "test_errors.py", line N, in '
        "test_error_in_a_constructor_shows_the_users_line.<locals>.<lambda>\n"
        "    assert text(DeclarationError, lambda: MLP(hidden=0)) == (\n"
        "                                          ^^^^^^^^^^^^^"
    )


@pytest.mark.parametrize(
    ("declare", "shown"),
    [
        (lambda: f32("B", 0), "f32('B', 0): a size must be at least 1, got 0"),
        (lambda: f32("B", 1.5), "f32('B', 1.5): a dim is an int or a name, got 1.5"),  # type: ignore[arg-type]
        (lambda: f32(True), "f32(True): a dim is an int or a name, got True"),
        (lambda: f32("B T"), "f32('B T'): 'B T' is not a name for a dim"),
        (lambda: i32("B", below=0), "i32('B', below=0): below must be an int of at least 1, got 0"),
        (lambda: Linear(0, 3), "Linear.w: a size must be at least 1, got 0"),
        (lambda: Linear(3, "4"), "Linear.w: a size must be an int, got '4'"),  # type: ignore[arg-type]
        (lambda: Linear(3, 2.0), "Linear.w: a size must be an int, got 2.0"),  # type: ignore[arg-type]
    ],
)
def test_declared_sizes_are_checked(declare: Callable[[], object], shown: str) -> None:
    assert text(DeclarationError, declare).splitlines()[0] == shown
