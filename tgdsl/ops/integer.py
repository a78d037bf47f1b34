"""Division of integers, as Python does it: the quotient is rounded down, the remainder has the divisor's sign.

WGSL truncates toward zero; the kernels correct that, so that both backends agree with NumPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tgdsl.errors import DTypeError, ShapeError
from tgdsl.ir import AnyTensor, Array, Draw, IntTensor, Op, Pointwise, Sample, TensorType, op, operand_error

from .rules import binary, constant_of

FLOOR_DIVIDE = """
fn floor_divide_of(a: i32, b: i32) -> i32 {
  // Dividing by 0, and the least i32 by -1, is undefined on Vulkan.
  if (b == -1) { return -a; }
  let d = select(b, 1, b == 0);
  let q = a / d;
  return select(q, q - 1, a != q * d && (a < 0) != (d < 0));
}
"""
REMAINDER = """
fn remainder_of(a: i32, b: i32) -> i32 {
  // Not a % b: on Vulkan its result is undefined where an operand is negative.
  let d = select(b, 1, b == 0 || b == -1);
  let r = a - (a / d) * d;
  return select(r, r + d, r != 0 && (r < 0) != (d < 0));
}
"""


def _sample(draw: Draw) -> Sample:
    shape = draw.shape("shape")
    b = draw.integers("b", shape, 1, 5) * np.where(draw.booleans("negative", shape), -1, 1)
    return Sample.of(draw.integers("a", shape, -9, 9), np.asarray(b, np.int32))


def _check(what: str, a: AnyTensor[Any], b: AnyTensor[Any]) -> TensorType:
    type_ = binary(what, a, b)
    if type_.dtype != "i32":
        raise operand_error(DTypeError, f"{what}: expected i32", left=a, right=b)
    if constant_of(b) == 0:
        raise operand_error(ShapeError, f"{what}: division by the constant zero", left=a, right=b)
    return type_


def _safe(fn: Any) -> Any:
    def ref(a: Array, b: Array) -> Array:
        # As if a divisor of 0 were 1. In 64 bits, because the one quotient that leaves i32 has to wrap.
        out: Array = fn(a.astype(np.int64), np.where(b == 0, 1, b))
        return out.astype(np.int32)

    return ref


def _division(
    name: str, fn: Any, helper: str, what: str, sign: str, shown: str
) -> Op[[IntTensor, IntTensor | int], IntTensor]:
    def rule(a: IntTensor, b: IntTensor | int) -> TensorType:
        assert isinstance(b, AnyTensor)  # Op.__call__ has turned numbers into tensors
        return _check(name, a, b)

    rule.__doc__ = f"""{what} of two integer tensors, as in Python; the operator is `a {sign} b`.

    Args:
        a: Dividend.
        b: Divisor, a tensor or a number. A zero among its elements counts as 1: the quotient is `a`, the
            remainder 0, as WGSL defines them. The least i32 divided by -1 wraps around to itself.

    Shape:
        Right-aligned NumPy broadcasting.

    Dtype:
        i32.

    Gradient:
        None; integers carry no gradient.

    Raises:
        ShapeError: If `b` is the number zero, or a tensor of which that is known.

    Source:
        Array API standard, `{name}`.

    Example:
        >>> compute({name}, [-7, 7], [2, 2])
        {shown}
    """
    made = op(
        name=name,
        ref=_safe(fn),
        lower=Pointwise(f"{name}_of({{a}}, {{b}})", helpers=(helper,), cost=8),
        sample=_sample,
        returns=IntTensor,
    )(rule)
    made.no_vjp("integers carry no gradient")
    return made


floor_divide = _division(
    "floor_divide", np.floor_divide, FLOOR_DIVIDE, "The quotient rounded down", "//", "array([-4,  3], dtype=int32)"
)
remainder = _division(
    "remainder",
    np.remainder,
    REMAINDER,
    "The remainder of the division rounded down",
    "%",
    "array([1, 1], dtype=int32)",
)
