"""Comparisons, logic and selection."""

from __future__ import annotations

from typing import Any, overload

import numpy as np

from tgdsl.dtypes import DType
from tgdsl.errors import DTypeError
from tgdsl.ir import (
    REGISTRY,
    AnyTensor,
    BoolTensor,
    Cotangents,
    Draw,
    IntTensor,
    Op,
    Pointwise,
    Sample,
    Scalar,
    Tensor,
    TensorType,
    op,
    operand_error,
)

from . import samplers
from .arguments import element, is_number, tensors
from .rules import broadcast_shape, comparison, unbroadcast

Number = Tensor | IntTensor | Scalar


def _comparison(name: str, ref: Any, wgsl: str, what: str, nan: str = "never so") -> Op[[Number, Number], BoolTensor]:
    def rule(a: Number, b: Number) -> TensorType:
        return comparison(name, a, b)

    rule.__doc__ = f"""Whether each element of `a` is {what} that of `b`.

    A NaN is {nan}, as far as the driver keeps NaNs at all; `is_finite` is certain.

    Args:
        a: Left operand.
        b: Right operand.

    Shape:
        Right-aligned NumPy broadcasting.

    Dtype:
        f32 or i32, both alike, to bool.

    Gradient:
        None; a comparison is constant almost everywhere.

    Source:
        Array API standard, `{name}`.

    Example:
        >>> compute({name}, [1.0, 2.0], [2.0, 2.0])
        {np.array(ref(np.array([1.0, 2.0]), np.array([2.0, 2.0])))!r}
    """
    made = op(name=name, ref=ref, lower=Pointwise(wgsl), sample=samplers.binary(), returns=BoolTensor)(rule)
    made.no_vjp("a comparison is constant almost everywhere")
    return made


less = _comparison("less", np.less, "{a} < {b}", "smaller than")
greater = _comparison("greater", np.greater, "{a} > {b}", "larger than")
less_equal = _comparison("less_equal", np.less_equal, "{a} <= {b}", "at most")
greater_equal = _comparison("greater_equal", np.greater_equal, "{a} >= {b}", "at least")
equal = _comparison("equal", np.equal, "{a} == {b}", "equal to")
# Not `!=`, which SPIR-V's ordered comparison makes false for NaN.
not_equal = _comparison("not_equal", np.not_equal, "!({a} == {b})", "different from", "different from everything")


def _bools(what: str, *xs: AnyTensor[Any]) -> None:
    for x in xs:
        if x.dtype != "bool":
            raise operand_error(DTypeError, f"{what}: expected bool", x=x)


def _two_bools(draw: Draw) -> Sample:
    shape = draw.shape("shape")
    return Sample.of(draw.booleans("a", shape), draw.booleans("b", shape))


@op(ref=np.logical_and, lower=Pointwise("{a} && {b}"), sample=_two_bools, returns=BoolTensor)
def logical_and(a: BoolTensor, b: BoolTensor) -> TensorType:
    """Whether both elements are true; the operator is `a & b`.

    Args:
        a: Left operand.
        b: Right operand.

    Shape:
        Right-aligned NumPy broadcasting.

    Dtype:
        bool.

    Gradient:
        None.

    Source:
        Array API standard, `logical_and`.

    Example:
        >>> compute(logical_and, [True, True], [True, False])
        array([ True, False])
    """
    _bools("logical_and", a, b)
    return TensorType(broadcast_shape("logical_and", a, b), "bool")


@op(ref=np.logical_or, lower=Pointwise("{a} || {b}"), sample=_two_bools, returns=BoolTensor)
def logical_or(a: BoolTensor, b: BoolTensor) -> TensorType:
    """Whether either element is true; the operator is `a | b`.

    Args:
        a: Left operand.
        b: Right operand.

    Shape:
        Right-aligned NumPy broadcasting.

    Dtype:
        bool.

    Gradient:
        None.

    Source:
        Array API standard, `logical_or`.

    Example:
        >>> compute(logical_or, [True, False], [False, False])
        array([ True, False])
    """
    _bools("logical_or", a, b)
    return TensorType(broadcast_shape("logical_or", a, b), "bool")


@op(
    ref=np.logical_not,
    lower=Pointwise("!{x}"),
    sample=lambda draw: Sample.of(draw.booleans("x", draw.shape("shape"))),
    returns=BoolTensor,
)
def logical_not(x: BoolTensor) -> TensorType:
    """The opposite of each element; the operator is `~x`.

    Args:
        x: Any bool tensor.

    Shape:
        That of `x`.

    Dtype:
        bool.

    Gradient:
        None.

    Source:
        Array API standard, `logical_not`.

    Example:
        >>> compute(logical_not, [True, False])
        array([False,  True])
    """
    _bools("logical_not", x)
    return x.type


for _made in (logical_and, logical_or, logical_not):
    _made.no_vjp("booleans carry no gradient")


FINITE = """
fn is_finite_of(x: f32) -> bool {
  // WGSL may assume that there are no NaNs, so only the bits can tell.
  return (bitcast<u32>(x) & 0x7f800000u) != 0x7f800000u;
}
"""


@op(
    ref=np.isfinite,
    lower=Pointwise("is_finite_of({x})", helpers=(FINITE,), cost=2),
    sample=samplers.unary(),
    returns=BoolTensor,
)
def is_finite(x: Tensor) -> TensorType:
    """Whether each element is neither infinite nor NaN, decided by its bits.

    Args:
        x: Any f32 tensor.

    Shape:
        That of `x`.

    Dtype:
        f32 to bool.

    Gradient:
        None.

    Source:
        Array API standard, `isfinite`.

    Example:
        >>> compute(is_finite, [1.0, float("inf")])
        array([ True, False])
    """
    if x.dtype != "f32":
        raise operand_error(DTypeError, "is_finite: expected f32", x=x)
    return TensorType(x.shape, "bool")


is_finite.no_vjp("a test is constant almost everywhere")


def _where_sample(draw: Draw) -> Sample:
    shape = draw.shape("shape")
    return Sample.of(draw.booleans("cond", shape), draw.array("a", shape), draw.array("b", shape))


@op(name="where", ref=np.where, lower=Pointwise("select({b}, {a}, {cond})"), sample=_where_sample)
def _where(cond: AnyTensor[Any], a: AnyTensor[Any], b: AnyTensor[Any]) -> TensorType:
    """Elements of `a` where `cond` holds, else those of `b`."""
    _bools("where", cond)
    if a.dtype != b.dtype:
        raise operand_error(DTypeError, f"where: dtypes differ ({a.dtype} and {b.dtype})", a=a, b=b)
    both = broadcast_shape("where", a, b)
    shape = both if cond.shape == both else broadcast_shape("where", cond, _Shaped(TensorType(both, a.dtype), a))
    return TensorType(shape, a.dtype)


class _Shaped(AnyTensor[Any]):
    """The broadcast of two operands, for the message about the third."""

    __slots__ = ()
    dtype = "f32"

    def __init__(self, type_: TensorType, like: AnyTensor[Any]) -> None:
        super().__init__(type_, like.graph, like.node)


@_where.vjp
def _(ct: Tensor, y: Tensor, cond: BoolTensor, a: Tensor, b: Tensor) -> Cotangents:
    return None, unbroadcast(where(cond, ct, 0.0), a), unbroadcast(where(cond, 0.0, ct), b)


@overload
def where(cond: BoolTensor, a: Tensor | Scalar, b: Tensor) -> Tensor: ...
@overload
def where(cond: BoolTensor, a: Tensor, b: Scalar) -> Tensor: ...
@overload
def where(cond: BoolTensor, a: IntTensor | int, b: IntTensor) -> IntTensor: ...
@overload
def where(cond: BoolTensor, a: IntTensor, b: int) -> IntTensor: ...
@overload
def where(cond: BoolTensor, a: BoolTensor, b: BoolTensor) -> BoolTensor: ...
@overload
def where(cond: BoolTensor, a: float, b: float) -> Tensor: ...
def where(cond: BoolTensor, a: Any, b: Any) -> Any:
    """Elements of `a` where `cond` holds, else those of `b`.

    Both branches are computed. A NaN in the gradient of the branch that is not taken (the
    square root of a negative number, say) still spreads, because 0 times it is NaN; select
    a harmless operand first: `where(x > 0, sqrt(where(x > 0, x, 1.0)), x)`.

    Args:
        cond: A bool tensor.
        a: A tensor or a number.
        b: A tensor or a number of the same dtype.

    Shape:
        The three broadcast together.

    Dtype:
        That of the branches; bool for `cond`.

    Gradient:
        `ct` to `a` where `cond` holds, else to `b`, exactly 0 to the other; none to `cond`.

    Source:
        Array API standard, `where`.

    Example:
        >>> compute(lambda x: where(x > 0.0, x, -1.0), [2.0, -3.0])
        array([ 2., -1.])
    """
    tensors("where", cond=cond)
    _bools("where", cond)
    for name, branch in (("a", a), ("b", b)):
        if not is_number(branch):
            tensors("where", **{name: branch})
    like = next((t for t in (a, b) if isinstance(t, AnyTensor)), None)
    dtype: DType = "f32" if like is None else like.dtype
    return _where(cond, *(t if isinstance(t, AnyTensor) else _constant(t, dtype, cond) for t in (a, b)))


def _constant(value: Scalar, dtype: DType, cond: BoolTensor) -> Any:
    if dtype == "bool":
        raise operand_error(DTypeError, f"where: {value!r} cannot be combined with a bool branch", cond=cond)
    return REGISTRY["full"](shape=(), value=element("where", "a branch", value, dtype, cond=cond), dtype=dtype)
