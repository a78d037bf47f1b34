"""A model is a value; its parameters are named by paths."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple

import attrs
import pytest

from tests.frontend.models import MLP, loss
from tgdsl import (
    Arg,
    DeclarationError,
    FrozenError,
    Linear,
    Param,
    Tensor,
    arg,
    build,
    init,
    module,
    param,
    param_if,
    parameters,
    repeat,
    state,
    tied,
    trace,
)
from tgdsl.frontend import states
from tgdsl.frontend.tree import slots


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(DeclarationError) as caught:
        call()
    return str(caught.value)


class TestValues:
    def test_equality_and_hash_follow_the_arguments(self) -> None:
        assert MLP(8) == MLP(hidden=8)
        assert hash(MLP(8)) == hash(MLP(8))
        assert MLP(8) != MLP(9)
        assert len({MLP(8), MLP(8), MLP(9)}) == 2
        other: object = MLP(1)
        assert Linear(1, 2) != other

    def test_different_initialisers_are_different_models(self) -> None:
        def scaled(scale: float) -> Any:
            @module
            class Scaled:
                w: Tensor = param(3, initial=init.Normal(scale))

            return Scaled()

        assert scaled(1.0).w != scaled(2.0).w
        assert scaled(1.0).w == scaled(1.0).w

    def test_repr_shows_arguments_and_given_children(self) -> None:
        assert repr(MLP(8)) == "MLP(hidden=8)"
        given = Linear(1, 64, bias=False)
        assert repr(MLP(l1=given)) == f"MLP(hidden=64, l1={given!r})"
        assert repr(MLP().l1.w) == "param[1, 64]"

    def test_nothing_can_be_assigned_or_deleted(self) -> None:
        model = MLP(8)
        with pytest.raises(FrozenError, match=r"attrs\.evolve\(m, hidden=\.\.\.\)"):
            model.hidden = 9  # type: ignore[misc]
        with pytest.raises(FrozenError, match="'hidden' cannot be deleted"):
            del model.hidden
        with pytest.raises(AttributeError):
            model.new = 1  # type: ignore[attr-defined]

    def test_tracing_leaves_the_model_as_it_was(self) -> None:
        model = MLP(8)
        before = copy.deepcopy(vars(model))
        graphs = [trace(model, loss, dims={"B": 2}) for _ in range(2)]
        assert vars(model) == before
        shown = [[(n.op.name, n.attrs, n.type) for n in g.nodes] for g in graphs]
        assert shown[0] == shown[1]

    def test_copies_and_pickles_are_equal(self) -> None:
        model = MLP(8)
        for other in (copy.copy(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert other == model
            assert list(parameters(other)) == list(parameters(model))

    def test_a_forward_is_pickled_by_its_import_path(self) -> None:
        assert pickle.loads(pickle.dumps(loss)) is loss


class TestConstruction:
    def test_evolve_of_an_argument_builds_children_anew(self) -> None:
        assert attrs.evolve(MLP(8), hidden=16).l1 == Linear(1, 16)  # type: ignore[misc]

    def test_evolve_of_a_child_keeps_the_rest(self) -> None:
        model = attrs.evolve(MLP(8), l1=Linear(1, 8, bias=False))  # type: ignore[misc]
        assert list(parameters(model))[:3] == ["l1.w", "l2.w", "l2.b"]

    def test_evolve_of_an_argument_keeps_children_that_were_given(self) -> None:
        given = Linear(1, 8, bias=False)
        assert attrs.evolve(MLP(8, l1=given), hidden=16).l1 is given  # type: ignore[misc]

    def test_children_can_be_given_by_position(self) -> None:
        given = Linear(1, 8, bias=False)
        assert MLP(8, given) == MLP(8, l1=given)

    def test_wrong_calls_are_type_errors(self) -> None:
        with pytest.raises(TypeError, match="takes 4 positional arguments, 5 were given"):
            MLP(1, 2, 3, 4, 5)  # type: ignore[call-arg,arg-type]
        with pytest.raises(TypeError, match="multiple values for argument 'hidden'"):
            MLP(1, hidden=2)  # type: ignore[misc]
        with pytest.raises(TypeError, match="unexpected keyword argument 'w'"):
            Linear(1, 2, w=3)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'dout'"):
            Linear(1)  # type: ignore[call-arg]

    def test_arithmetic_on_symbols(self) -> None:
        @module
        class Wide:
            n: Arg[int] = arg()
            inner = 4 * n
            twice: Arg[int] = n * 2
            a: Tensor = param(n + 1, 1 + n, n - 1, 10 - n, n * n, n // 2, inner)
            b: Tensor = param(twice)

        wide = Wide(4)
        assert wide.a.shape == (5, 5, 3, 6, 16, 2, 16)
        assert (wide.inner, wide.twice, wide.b.shape) == (16, 8, (8,))
        assert Wide(4, 5).b.shape == (5,)
        assert repr(Wide(4)) == "Wide(n=4, twice=8)"

    def test_keyword_only_arguments(self) -> None:
        @module
        class Named:
            n: Arg[int] = arg(default=1)
            m: Arg[int] = arg(kw_only=True)

        assert Named(m=2).m == 2
        with pytest.raises(TypeError):
            Named(1, 2)  # type: ignore[call-arg]

    def test_optional_parameters(self) -> None:
        @module
        class Maybe:
            on: Arg[bool] = arg(default=True)
            w: Tensor | None = param_if(on, 3)
            v: Tensor | None = param_if(False, 3)

        assert list(parameters(Maybe())) == ["w"]
        assert Maybe(on=False).w is None

    def test_settings_of_parameters_may_be_arguments(self) -> None:
        @module
        class Scale:
            first: Arg[init.Init] = arg(default=init.Normal())
            trained: Arg[bool] = arg(default=True)
            w: Tensor = param(2, initial=first, trainable=trained, decay=False)

        (w,) = parameters(Scale(init.Ones(), trained=False)).values()
        assert (w.initial, w.trainable, w.decay) == (init.Ones(), False, False)

    def test_decay_has_three_values(self) -> None:
        @module
        class Decays:
            a: Tensor = param(1)
            b: Tensor = param(1, initial=init.Zeros())
            c: Tensor = param(1, initial=init.Ones(), decay=True)
            d: Tensor = param(1, initial=init.Kaiming(), decay=False)

        found = parameters(Decays()).values()
        assert [p.decay for p in found] == [None, None, True, False]
        assert [p.decays for p in found] == [True, False, True, False]

    def test_templates_show_symbols(self) -> None:
        assert repr(vars(MLP)["l1"]) == "Linear(1, <hidden>)"
        assert repr(vars(MLP)["hidden"]) == "<hidden>"
        assert repr(1 + vars(MLP)["hidden"] * 2) == "<(1 + (hidden * 2))>"

        @module
        class Named:
            n: Arg[int] = arg()
            w: Tensor = param(n)
            first: Linear = Linear(din=n, dout=2)

        assert repr(vars(Named)["first"]) == "Linear(din=<n>, dout=2)"
        assert repr(vars(Named)["w"]) == "<param>"

    def test_children_in_class_bodies_belong_to_each_instance(self) -> None:
        @module
        class Net:
            pair: tuple[Linear, Linear] = (Linear(1, 1), Linear(1, 1))

        @module
        class Two:
            a: Net = Net()
            b: Net = Net()
            more: tuple[Net, ...] = repeat(2, Net())

        assert len(parameters(Two())) == 16
        assert Two().a.pair[0] is not Two().a.pair[0]
        assert Two() == Two()

    def test_a_count_of_children(self) -> None:
        def deep(n: Any) -> Any:
            @module
            class Deep:
                n: Arg[int] = arg()
                layers: tuple[Linear, ...] = repeat(n, Linear(1, 1))

            return Deep(n)

        assert deep(0).layers == ()
        for bad in (-1, 1.5, True):
            shown = refused(partial(deep, bad))
            assert shown == f"Deep.layers: repeat needs an int of at least 0, got {bad!r}"

    def test_own_repr_and_plain_base_classes(self) -> None:
        class Calls:
            def __call__(self, x: Tensor) -> Tensor:
                return x

        @module
        class Net(Calls):
            n: Arg[int] = arg(default=1)

            def __repr__(self) -> str:
                return "net"

        assert repr(Net()) == "net"
        assert hasattr(Net.__call__, "__tg_scoped__")

    def test_inheritance(self) -> None:
        @module
        class Base:
            dim: Arg[int] = arg()
            depth: Arg[int] = arg(default=1)
            first: Linear = Linear(dim, dim)

            @build
            def tail(self) -> Linear:
                return Linear(self.dim, 1)

        @module
        class Deep(Base):
            depth: Arg[int] = arg(default=2)
            rest: tuple[Linear, ...] = repeat(depth, Linear(Base.dim, Base.dim, bias=False))

            @build
            def tail(self) -> Linear:
                return Linear(self.dim, 2, bias=False)

        assert repr(Deep(3)) == "Deep(dim=3, depth=2)"
        assert repr(Deep(3, 1)) == "Deep(dim=3, depth=1)"
        assert list(parameters(Deep(3))) == ["first.w", "first.b", "rest.0.w", "rest.1.w", "tail.w"]
        assert Deep(3).tail.dout == 2

    def test_subclass_without_the_decorator_is_refused(self) -> None:
        class Forgot(MLP):
            extra: Linear = Linear(1, 1)

        assert refused(Forgot) == "Forgot declares fields without @module"


class TestBody:
    def test_declarations_need_an_annotation(self) -> None:
        def child() -> None:
            @module
            class Net:
                l1 = Linear(1, 2)

        def slot() -> None:
            @module
            class Net:
                w = param(3)

        def argument() -> None:
            @module
            class Net:
                n = arg()

        assert refused(child) == (
            "@module Net: 'l1' has no annotation, so it is not a field.\n  write: l1: Linear = ..."
        )
        assert refused(slot).endswith("write: w: Tensor = ...")
        assert refused(argument).endswith("write: n: Arg[...] = ...")

    def test_class_variables_are_not_fields(self) -> None:
        @module
        class Net:
            KIND: ClassVar[str] = "net"
            w: Tensor = param(1)

        assert Net.KIND == "net"
        assert repr(Net()) == "Net()"

    def test_leading_underscores_are_reserved(self) -> None:
        def hidden() -> None:
            @module
            class Net:
                _w: Tensor = param(3)

        assert refused(hidden) == ("@module Net: field '_w' begins with an underscore, which is reserved")

    def test_own_constructor_is_refused(self) -> None:
        def own() -> None:
            @module
            class Net:
                def __init__(self) -> None: ...

        assert "defines __init__" in refused(own)

    @pytest.mark.parametrize(
        "use",
        [
            lambda n: n == 3,
            lambda n: n > 3,
            lambda n: n / 2,
            lambda n: -n,
            lambda n: n and 3,
            lambda n: [*n],
            lambda n: n[0],
            lambda n: len(n),
            lambda n: int(n),
            lambda n: float(n),
            lambda n: range(n),
            lambda n: 3 in n,
        ],
    )
    def test_a_symbol_has_no_value(self, use: Callable[[Any], Any]) -> None:
        def body() -> None:
            @module
            class Net:
                n: Arg[int] = arg()
                m: Linear = use(n)

        shown = refused(body)
        assert shown.startswith("argument 'n' has no value inside the class body")
        assert "where self.n is a plain value" in shown

    def test_an_expression_has_no_value(self) -> None:
        def body() -> None:
            @module
            class Net:
                n: Arg[int] = arg()
                m: Linear = Linear(1, 2) if 2 * n else Linear(1, 3)  # type: ignore[redundant-expr]

        assert refused(body).startswith("argument '(2 * n)' has no value")


class TestSharing:
    def test_one_child_under_two_names(self) -> None:
        shared = Linear(2, 2)

        def fields() -> None:
            @module
            class Net:
                a: Linear = shared
                b: Linear = shared

        def elements() -> None:
            @module
            class Net:
                a: tuple[Linear, ...] = (shared, shared)

        assert "'a' and 'b' are one object, but a parameter's identity is its path" in refused(fields)
        assert 'tied("path")' in refused(fields)
        assert "'a.0' and 'a.1' are one object" in refused(elements)

    def test_one_declaration_under_two_names(self) -> None:
        def twice() -> None:
            @module
            class Net:
                a: Tensor = param(3)
                b: Tensor = a

        assert "'a' and 'b' are one object" in refused(twice)

    def test_one_object_from_a_build_or_an_argument(self) -> None:
        @module
        class Built:
            @build
            def layers(self) -> tuple[Linear, ...]:
                return (Linear(1, 1),) * 2

        @module
        class Given:
            a: Linear
            b: Linear

        same = Linear(1, 1)
        assert "'layers.0' and 'layers.1' are one object" in refused(lambda: parameters(Built()))
        assert "'a' and 'b' are one object" in refused(lambda: parameters(Given(same, same)))
        assert len(parameters(Given(same, Linear(1, 1)))) == 4

    def test_one_instance_in_two_models_is_two_sets_of_parameters(self) -> None:
        a, b = MLP(2), MLP(2)

        @module
        class Pair:
            a: MLP
            b: MLP

        assert len(parameters(Pair(a, b))) == 12

    def test_cycles_are_found(self) -> None:
        model = MLP(2)
        vars(model)["again"] = [model]
        assert refused(lambda: parameters(model)) == "again.0: the model contains itself"

    def test_tied_is_one_parameter(self) -> None:
        @module
        class Head:
            w: Tensor = tied("tok.w")

        @module
        class Net:
            tok: Linear = Linear(2, 3, bias=False)
            same: Tensor = tied("tok.w")
            head: Head = Head()

        @module
        class Outer:
            net: Net = Net()

        assert list(parameters(Net())) == ["tok.w"]
        assert list(parameters(Outer())) == ["net.tok.w"]
        assert [repr(s) for s in slots(Net()).values()] == ["param[2, 3]", *["tied('tok.w')"] * 2]

    def test_tied_to_nothing(self) -> None:
        from tgdsl.frontend.tree import bind
        from tgdsl.ir import Graph

        @module
        class Net:
            w: Tensor = param(1)
            v: Tensor = tied("x.w")

        assert refused(lambda: bind(Net(), Graph())) == ("v: tied('x.w') names no parameter; the model has: w")


class Two(NamedTuple):
    left: Linear
    right: Linear


class TestTree:
    def test_builds_may_hold_tuples_dicts_and_parameters(self) -> None:
        @module
        class Net:
            sizes: Arg[tuple[int, ...]] = arg(default=(1, 2))

            @build
            def layers(self) -> dict[str, tuple[Linear, ...]]:
                return {"a": tuple(Linear(n, n, bias=False) for n in self.sizes), "b": ()}

            @build
            def gains(self) -> tuple[Tensor, ...]:
                return tuple(param(n) for n in self.sizes)

            @build
            def two(self) -> Two:
                return Two(Linear(1, 1, bias=False), Linear(1, 1, bias=False))

            @build
            def later(self) -> int:
                return len(self.layers["a"])

        assert list(parameters(Net())) == [
            "layers.a.0.w", "layers.a.1.w", "gains.0", "gains.1", "two.0.w", "two.1.w",
        ]  # fmt: skip
        assert Net().later == 2

    @pytest.mark.parametrize("hold", [lambda p: {p}, lambda p: frozenset([p]), lambda p: type("Box", (), {})() or p])
    def test_parameters_where_no_path_leads_are_refused(self, hold: Callable[[Any], Any]) -> None:
        class Box:
            def __init__(self, inside: object) -> None:
                self.inside = inside

        held = hold(Linear(1, 1))

        @module
        class Net:
            @build
            def layer(self) -> object:
                return held if isinstance(held, (set, frozenset)) else Box(Linear(1, 1))

        assert refused(lambda: parameters(Net())).startswith("layer: parameters inside of a ")

    def test_keys_that_would_confuse_paths_are_refused(self) -> None:
        def with_keys(*keys: object) -> Any:
            @module
            class Net:
                @build
                def layers(self) -> dict[Any, Linear]:
                    return {k: Linear(1, 1) for k in keys}

            return Net()

        assert "'a.b' cannot be part" in refused(lambda: parameters(with_keys("a.b")))
        assert refused(lambda: parameters(with_keys(1, "1"))) == ("two parameters have the path 'layers.1.w'")

    def test_states_are_apart_from_parameters(self) -> None:
        @module
        class Norm:
            dim: Arg[int] = arg()
            mean: Tensor = state(dim)
            var: Tensor = state(dim, initial=init.Ones())
            g: Tensor = param(dim)

        assert list(parameters(Norm(2))) == ["g"]
        assert {k: s.initial for k, s in states(Norm(2)).items()} == {
            "mean": init.Zeros(),
            "var": init.Ones(),
        }

    def test_parameter_order_is_the_order_of_declaration(self) -> None:
        names = list(parameters(MLP(2)))
        assert names == ["l1.w", "l1.b", "l2.w", "l2.b", "l3.w", "l3.b"]
        assert all(isinstance(p, Param) for p in parameters(MLP(2)).values())
