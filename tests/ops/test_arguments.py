"""Every argument of every public op: what does not fit is refused at once, kind by kind.

One legal call per op stands in `LEGAL`; each test spoils one argument of one kind in all of
them. A new op, or a new parameter, fails until it is listed.
"""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
import pytest

import tgdsl.ops as ops
from tgdsl.dtypes import DType
from tgdsl.errors import DTypeError, ShapeError, TgdslError
from tgdsl.ir import AnyTensor, Graph, TensorType, tracing
from tgdsl.ops.leaves import declare

TYPES: dict[str, tuple[tuple[int, ...], DType]] = {
    "a": ((4, 3), "f32"), "row": ((1, 3), "f32"), "b": ((3, 5), "f32"), "v": ((3,), "f32"), "square": ((3, 3), "f32"),
    "cube": ((2, 4, 3), "f32"), "cube2": ((2, 3, 5), "f32"), "image": ((1, 2, 4, 4), "f32"), "i": ((4,), "i32"),
    "pick": ((4, 2), "i32"), "p": ((4, 3), "bool"), "scalar": ((), "f32"),
}  # fmt: skip

UNARY = ("abs cos erf exp floor gelu is_finite leaky_relu log log1p log_softmax_last mean_last neg relu rsqrt sigmoid"
         " sign silu sin softplus sqrt square stop_gradient sum_all sum_last tanh")  # fmt: skip
BINARY = "add div equal greater greater_equal less less_equal maximum minimum mul mse_loss not_equal sub"
FOLDS = "max mean min prod sum"
LEGAL: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    **{name: (("a",), {}) for name in UNARY.split()},
    **{name: (("a", "a"), {}) for name in BINARY.split()},
    **{name: (("a",), {"axis": 0, "keepdims": True}) for name in FOLDS.split()},
    **{name: (("a",), {"axis": 0}) for name in ("argmax", "argmin", "flip", "log_softmax", "logsumexp", "softmax")},
    **{name: (("i", "i"), {}) for name in ("floor_divide", "remainder")},
    **{name: (("p", "p"), {}) for name in ("logical_and", "logical_or")},
    **{name: (("a",), {"perm": (1, 0)}) for name in ("permute", "transpose")},
    **{name: (("a",), {"axis1": 0, "axis2": 1}) for name in ("swap_axes", "swapaxes")},
    **{name: ((["a", "a"],), {"axis": 0}) for name in ("concat", "concatenate", "stack")},
    **{name: (("a", "i"), {"reduction": "sum"}) for name in ("cross_entropy", "nll_loss")},
    **{name: (("image",), {"kernel": 2, "stride": 2, "padding": 0}) for name in ("avg_pool2d", "max_pool2d")},
    **{name: ((), {"shape": (2, 3)}) for name in ("ones", "rand", "randn", "zeros")},
    "arange": ((), {"n": 3, "dtype": "i32"}),
    "attention": (("a", "a", "a"), {"causal": True, "scale": 0.5}),
    "broadcast_to": (("row",), {"shape": (4, 3)}),
    "capture": (("a",), {"name": "h"}),
    "cast": (("a",), {"dtype": "i32"}),
    "conv2d": (("image", "image"), {"stride": 1, "padding": 0}),
    "cross_entropy_last": (("a", "i"), {}),
    "dropout": (("a",), {"p": 0.5}),
    "embedding": (("a", "i"), {}),
    "expand_dims": (("a",), {"axis": 0}),
    "full": ((), {"shape": (2,), "value": 1.0, "dtype": "f32"}),
    "gelu": (("a",), {"approximate": "tanh"}),
    "getitem": (("a",), {"key": 0}),
    "layer_norm": (("a", "v", "v"), {"eps": 1e-3}),
    "leaky_relu": (("a",), {"alpha": 0.1}),
    "logical_not": (("p",), {}),
    "matmul": (("a", "b"), {}),
    "matmul_batched": (("cube", "cube2"), {}),
    "matrix_transpose": (("a",), {}),
    "merge_heads": (("cube",), {}),
    "mse_loss": (("a", "a"), {"reduction": "mean"}),
    "narrow": (("a",), {"axis": 0, "start": 1, "length": 2}),
    "one_hot": (("i",), {"depth": 3, "dtype": "f32"}),
    "pad": (("a",), {"widths": [(1, 0), (0, 2)], "value": 0.5}),
    "power": (("a",), {"exponent": 3}),
    "reshape": (("a",), {"shape": (2, -1)}),
    "slice_last_range": (("a",), {"start": 0, "end": 2}),
    "softmax_causal": (("square",), {"axis": -1}),
    "softmax_causal_last": (("square",), {}),
    "split": (("a",), {"sizes": (1, 3), "axis": 0}),
    "split_heads": (("a",), {"heads": 3}),
    "squeeze": (("row",), {"axis": 0}),
    "take": (("a", "i"), {}),
    "take_along_axis": (("a", "pick"), {"axis": 1}),
    "where": (("p", "a", "a"), {}),
    "where_causal": (("square",), {"fill_value": -math.inf}),
}

TENSOR = "<a tensor>"
"""Stands for a tensor of the trace where a number belongs."""
NO_INTEGER: list[Any] = [True, np.True_, 1.0, 0.5, np.float32(1), math.nan, "1", None, 1j, np.ones(2), TENSOR]
NO_NUMBER: list[Any] = [True, False, np.True_, math.nan, "1", 1j, 1e39, 10**400, np.ones(2), [1.0], TENSOR]
NO_FLAG: list[Any] = [1, 0, 2, "no", None, TENSOR]
NO_SHAPE: list[Any] = [
    3,
    None,
    "ab",
    (2.0, 3),
    (True, 12),
    (0, 12),
    (-2, -6),
    (2**31, 2),
    (2, math.nan),
    ("a",),
    TENSOR,
]
NO_AXIS = [x for x in NO_INTEGER if x is not None] + [(0.0,), 99, -99]
NO_PAIR: list[Any] = [True, 1.0, -1, "a", (1,), (1, 1, 1), (1, 0.5), np.ones(2), TENSOR]
NO_NAME: list[Any] = ["", None, 3, TENSOR]
NO_OPTION: list[Any] = ["other", None, True, ["mean"], 1]
NO_DTYPE: list[Any] = ["f64", "float32", float, np.float32, None, ["f32"], 1]
NO_WIDTHS: list[Any] = [1, None, [1, 1], [(1, 1)], [(0.5, 1), (0, 0)], [(True, 1), (0, 0)], [(-1, 1), (0, 0)], TENSOR]
NO_KEY: list[Any] = [True, 1.0, "a", [0, 1], np.array([0, 1]), 4, slice(0.0, 2), slice(True, None), TENSOR,
                     slice(None, None, 0), slice(2, 2), (..., ...), (0, 0, 0)]  # fmt: skip
NO_PERM: list[Any] = [(True, False), (1.0, 0.0), (0, 0), (-1, 0), (0,), 1, None, "ab", TENSOR]
NO_SIZES: list[Any] = [True, 2.0, [2.0, 2.0], [True, 3], 0, -1, [1, 1], [0, 4], None, "13", TENSOR]
BAD: dict[str, list[Any]] = {
    **{key: [*NO_INTEGER, 0, -1] for key in ("n", "depth", "heads")},
    **{key: [*NO_INTEGER, -1, 99] for key in ("start", "length", "end")},
    **dict.fromkeys(("axis", "axis1", "axis2"), NO_AXIS),
    **{key: [*NO_NUMBER, None, math.inf, -math.inf] for key in ("alpha", "exponent")},
    **{key: [*NO_NUMBER, None] for key in ("value", "fill_value")},
    **dict.fromkeys(("keepdims", "causal"), NO_FLAG),
    **dict.fromkeys(("approximate", "reduction"), NO_OPTION),
    **dict.fromkeys(("kernel", "stride", "padding"), NO_PAIR),
    "scale": [*NO_NUMBER, math.inf],
    "eps": [*NO_NUMBER, None, math.inf, -1e-5],
    "p": [*NO_NUMBER, None, math.inf, -0.1, 1, 1.0, 1.5, 0.99999999],
    "shape": NO_SHAPE, "name": NO_NAME, "dtype": NO_DTYPE, "widths": NO_WIDTHS, "key": NO_KEY, "perm": NO_PERM,
    "sizes": NO_SIZES,
}  # fmt: skip
"""By the name of a parameter, whatever the op: values that nothing accepts."""

public = {n: f for n, f in vars(ops).items() if callable(f) and not n.startswith("_") and not inspect.isclass(f)}


def signature(name: str) -> list[str]:
    """The parameters of a public op in order."""
    return list(inspect.signature(getattr(public[name], "rule", public[name])).parameters)


def call(name: str, operands: Any, attributes: dict[str, Any]) -> Any:
    """The op with its operands first, but for `capture`."""
    if name == "capture":
        return ops.capture(attributes["name"], *operands)
    return public[name](*operands, **attributes)


class Trace:
    """A graph with an input of each type."""

    def __init__(self) -> None:
        self.graph = Graph()
        with tracing(self.graph):
            self.tensors = {
                k: declare(self.graph, "input", k, TensorType(shape, dtype)) for k, (shape, dtype) in TYPES.items()
            }
        self.before = len(self.graph.nodes)

    def operands(self, name: str) -> list[Any]:
        """The operands of the legal call."""
        made = LEGAL[name][0]
        return [[self.tensors[x] for x in o] if isinstance(o, list) else self.tensors[o] for o in made]

    def other(self, name: str, shape: tuple[int, ...], dtype: Any) -> Any:
        """One more input."""
        made = declare(self.graph, "input", name, TensorType(shape, dtype))
        self.before = len(self.graph.nodes)
        return made

    def refuses(self, name: str, operands: Any, attributes: dict[str, Any]) -> TgdslError:
        """Check that the call is refused, with the user's line, and leaves nothing behind."""
        with pytest.raises(TgdslError) as caught:
            call(name, operands, attributes)
        assert "test_arguments.py" in str(caught.value), "the user's own line is missing"
        made = [n.op.name for n in self.graph.nodes[self.before :] if n.op.name != "full"]
        assert made == [], "a refused call adds nothing"
        return caught.value


def test_every_op_and_every_parameter_is_listed() -> None:
    assert sorted(LEGAL) == sorted(set(public) - {"checkpoint"}), "which takes no tensors"
    for name, (operands, attributes) in LEGAL.items():
        rest = [p for p in signature(name)[len(operands) :] if p not in attributes]
        rest = [p for p in rest if p != "x"] if name == "capture" else rest
        assert rest == [], f"{name}: {rest} is not in LEGAL"
        assert [p for p in attributes if p not in BAD] == [], f"{name}: a parameter of no known kind"


@pytest.mark.parametrize("name", LEGAL)
def test_legal_call_is_accepted(name: str) -> None:
    t = Trace()
    with tracing(t.graph):
        made = call(name, t.operands(name), LEGAL[name][1])
    assert all(isinstance(x, AnyTensor) for x in (made if isinstance(made, list) else [made]))
    assert all(type(n) is not bool and isinstance(n, int) for x in t.graph.nodes for n in x.shape)


@pytest.mark.parametrize(("name", "parameter"), [(n, p) for n, (_, attributes) in LEGAL.items() for p in attributes])
def test_attribute_that_does_not_fit_is_refused(name: str, parameter: str) -> None:
    for bad in BAD[parameter]:
        t = Trace()
        with tracing(t.graph):
            wrong = t.tensors["scalar"] if isinstance(bad, str) and bad == TENSOR else bad
            t.refuses(name, t.operands(name), {**LEGAL[name][1], parameter: wrong})


WITH_OPERANDS = [(n, i) for n, (operands, _) in LEGAL.items() for i in range(len(operands))]


@pytest.mark.parametrize(("name", "i"), WITH_OPERANDS)
def test_array_in_place_of_a_tensor_is_refused(name: str, i: int) -> None:
    t = Trace()
    with tracing(t.graph):
        operands = t.operands(name)
        good = operands[i][-1] if isinstance(operands[i], list) else operands[i]
        array = np.ones(good.shape, {"f32": np.float32, "i32": np.int32, "bool": np.bool_}[good.dtype])
        operands[i] = [good, array] if isinstance(operands[i], list) else array
        error = t.refuses(name, operands, LEGAL[name][1])
        assert isinstance(error, DTypeError)
        assert "hint: arrays enter a forward through its @inputs class" in str(error)
        for nothing in ("x", object(), *([] if name == "layer_norm" and i else [None])):
            operands[i] = nothing
            t.refuses(name, operands, LEGAL[name][1])


@pytest.mark.parametrize("name", [n for n in LEGAL if n in ("concat", "concatenate", "stack")])
def test_single_tensor_is_not_taken_for_its_rows(name: str) -> None:
    t = Trace()
    with tracing(t.graph):
        assert "expected a list of tensors" in str(t.refuses(name, [t.tensors["a"]], LEGAL[name][1]))
        assert "there is nothing to" in str(t.refuses(name, [[]], LEGAL[name][1]))


ELEMENTWISE = {*UNARY.split(), *BINARY.split(), "cast", "dropout", "power", "where", "floor_divide", "remainder"} - {
    "log_softmax_last", "mean_last", "sum_last", "mse_loss",
}  # fmt: skip
SCALARS_TOO = ELEMENTWISE | {
    "logical_and", "logical_or", "logical_not", "capture", "broadcast_to", "expand_dims", "one_hot", "take",
    "embedding", "stack",
}  # fmt: skip
"""Ops with an operand that may be a scalar."""


@pytest.mark.parametrize(("name", "i"), [(n, i) for n, i in WITH_OPERANDS if n not in SCALARS_TOO])
def test_scalar_where_axes_are_needed_is_refused(name: str, i: int) -> None:
    t = Trace()
    with tracing(t.graph):
        operands = t.operands(name)
        good = operands[i][-1] if isinstance(operands[i], list) else operands[i]
        scalar = t.other("s", (), good.dtype)
        operands[i] = [good, scalar] if isinstance(operands[i], list) else scalar
        assert isinstance(t.refuses(name, operands, LEGAL[name][1]), ShapeError)


ANY_DTYPE = {
    "broadcast_to", "capture", "cast", "concat", "concatenate", "expand_dims", "flip", "getitem", "matrix_transpose",
    "narrow", "pad", "permute", "reshape", "slice_last_range", "split", "squeeze", "stack", "stop_gradient",
    "swap_axes", "swapaxes", "transpose", "where",
}  # fmt: skip
INTEGERS_TOO = {
    "add", "sub", "mul", "maximum", "minimum", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal",
    "sum", "prod", "max", "min", "argmax", "argmin",
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["i32", "bool"])
@pytest.mark.parametrize("name", [n for n, (operands, _) in LEGAL.items() if operands])
def test_dtypes_without_a_meaning_are_refused(name: str, dtype: str) -> None:
    """All f32 operands become another dtype, and then one of them only."""
    t = Trace()
    accepted = name in ANY_DTYPE or (dtype == "i32" and name in INTEGERS_TOO)
    attributes = {k: 1 if k == "value" else v for k, v in LEGAL[name][1].items()}
    with tracing(t.graph):
        operands = t.operands(name)
        flat = operands[0] if isinstance(operands[0], list) else operands
        others = [t.other(f"o{i}", x.shape, dtype) if x.dtype == "f32" else x for i, x in enumerate(flat)]
        floats = [i for i, x in enumerate(flat) if x.dtype == "f32"]
        mixed = [[x if j == i else y for j, (x, y) in enumerate(zip(others, flat, strict=True))] for i in floats]
        if len(floats) < 2:
            mixed = []
        for spoiled in ([] if accepted or not floats else [others]) + mixed:
            t.refuses(name, [spoiled] if isinstance(operands[0], list) else spoiled, attributes)
        if accepted:
            call(name, [others] if isinstance(operands[0], list) else others, attributes)


@pytest.mark.parametrize("name", ["floor_divide", "remainder", "take", "embedding", "one_hot", "take_along_axis"])
@pytest.mark.parametrize("dtype", ["f32", "bool"])
def test_integers_are_not_replaced_by_other_dtypes(name: str, dtype: str) -> None:
    t = Trace()
    with tracing(t.graph):
        operands = [t.other(f"o{i}", x.shape, dtype) if x.dtype == "i32" else x
                    for i, x in enumerate(t.operands(name))]  # fmt: skip
        assert isinstance(t.refuses(name, operands, LEGAL[name][1]), DTypeError)


RANGES = {"i32": [0.5, math.nan, math.inf, -math.inf, 2**31, -(2**31) - 1, 2.0**31, True, "1", None],
          "bool": [2, -1, 0.5, math.nan, "True", None]}  # fmt: skip


@pytest.mark.parametrize("dtype", RANGES)
@pytest.mark.parametrize("op", ["full", "pad"])
def test_value_outside_of_the_dtype_is_refused(op: str, dtype: Any) -> None:
    for value in RANGES[dtype]:
        t = Trace()
        with tracing(t.graph):
            x = t.other("o", (2,), dtype)
            if op == "full":
                t.refuses("full", [], {"shape": (2,), "value": value, "dtype": dtype})
            else:
                t.refuses("pad", [x], {"widths": [(1, 1)], "value": value})
                t.refuses("pad", [x], {"widths": [(0, 0)], "value": value})


@pytest.mark.parametrize("dtype", RANGES)
def test_value_of_the_dtype_is_accepted(dtype: Any) -> None:
    t = Trace()
    values: list[Any] = [0, 1, True] if dtype == "bool" else [0, -(2**31), 2**31 - 1, 3.0, np.int64(5), np.float32(2)]
    kind = bool if dtype == "bool" else int
    with tracing(t.graph):
        x = t.other("o", (2,), dtype)
        for value in values[:2] + values[2:]:
            made = [ops.full(shape=[2], value=value, dtype=dtype), ops.pad(x, [(1, 0)], value)]
            assert [m.dtype for m in made] == [dtype, dtype]
            assert all(type(m.node.attrs["value"]) is kind for m in made)


def test_numpy_integers_are_integers() -> None:
    two: Any = np.int64(2)  # to a checker NumPy's integers are no ints
    t = Trace()
    with tracing(t.graph):
        a = t.tensors["a"]
        assert ops.arange(two).shape == ops.full(shape=(two,), value=0.0).shape == (2,)
        same = [ops.reshape(a, (two, 6)), ops.narrow(a, two - 2, two, two), ops.sum(a, two - 1),
                ops.permute(a, (two - 1, two - 2)), ops.pad(a, [(two, 0), (0, 0)])]  # fmt: skip
        plain = [ops.reshape(a, (2, 6)), ops.narrow(a, 0, 2, 2), ops.sum(a, 1), ops.permute(a, (1, 0)),
                 ops.pad(a, [(2, 0), (0, 0)])]  # fmt: skip
    assert [x.node for x in same] == [x.node for x in plain]


@pytest.mark.parametrize("name", ["div", "floor_divide", "remainder"])
def test_known_zero_divisor_is_refused(name: str) -> None:
    """Zero is seen through views and casts."""
    dtype: Any = "f32" if name == "div" else "i32"
    t = Trace()
    with tracing(t.graph):
        x = t.other("o", (2, 3), dtype)
        zero = ops.full(shape=(1, 3), value=0, dtype=dtype)
        other = ops.full(shape=(3,), value=False, dtype="bool")
        made = [zero, ops.broadcast_to(zero, (2, 3)), ops.reshape(zero, (3, 1))[:2], ops.cast(other, dtype)]
        t.before = len(t.graph.nodes)
        for b in made:
            assert "division by the constant zero" in str(t.refuses(name, [x, b], {}))


def test_shapes_beyond_what_a_kernel_counts_are_refused() -> None:
    t = Trace()
    with tracing(t.graph):
        for name in ("zeros", "ones", "rand", "randn"):
            assert "more than 2**31 - 1 elements" in str(t.refuses(name, [], {"shape": (2**16, 2**15)}))
        assert ops.zeros((2**16, 2**15 - 1)).size < 2**31
        t.before = len(t.graph.nodes)
        t.refuses("broadcast_to", [t.tensors["scalar"]], {"shape": (2**31,)})
        t.refuses("arange", [], {"n": 2**31})
        t.refuses("pad", [t.tensors["v"]], {"widths": [(2**31, 0)]})


def test_attention_stretches_nothing() -> None:
    t = Trace()
    with tracing(t.graph):
        cube, a = t.tensors["cube"], t.tensors["a"]
        for operands in ([cube, a, a], [a, cube, cube], [cube, cube, a]):
            error = t.refuses("attention", operands, {})
            assert "q, k and v differ in the axes before the last two" in str(error)
            assert "hint: nothing is stretched" in str(error)
