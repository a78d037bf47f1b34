"""Checks of arguments that families of ops share: operands are tensors, attributes are fitting numbers.

Python takes True for 1 and NumPy takes an array for anything, so nothing is left to duck
typing: what does not fit is refused before a node is added, with the operands and a hint.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from tgdsl.dtypes import DType
from tgdsl.errors import DTypeError, ShapeError
from tgdsl.ir import AnyTensor, operand_error, user_site

LARGEST = float(np.finfo(np.float32).max)
"""The largest finite f32."""


def tensors(what: str, **operands: object) -> None:
    """Refuse an operand that is not a tensor; operands are given by name."""
    for name, x in operands.items():
        if not isinstance(x, AnyTensor):
            hint = "make it a tensor with full(shape=..., value=...)"
            if isinstance(x, (np.ndarray, list, tuple)):
                hint = "arrays enter a forward through its @inputs class"
            raise DTypeError(f"{what}: {name} must be a tensor, got {shown(x)}", hint=hint, site=user_site())


def sequence(what: str, xs: object) -> list[AnyTensor[Any]]:
    """Several tensors as a list; a single tensor is not taken for its rows."""
    if isinstance(xs, (AnyTensor, np.ndarray)) or not isinstance(xs, Iterable):
        raise DTypeError(f"{what}: expected a list of tensors, got {shown(xs)}", site=user_site())
    parts = list(xs)
    for i, x in enumerate(parts):
        tensors(what, **{f"element {i}": x})
    return parts


def shown(value: object) -> str:
    """A value in one line of a message."""
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    if isinstance(value, AnyTensor):
        return f"the tensor {value.type}"
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else f"a {type(value).__name__} ({text[:40]!r}...)"


def is_integer(value: object) -> bool:
    """Whether it is an int of Python or NumPy; a bool is none."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether it is a real number of Python or NumPy; a bool is none."""
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def _refused(text: str, value: object, operands: dict[str, AnyTensor[Any]]) -> ShapeError:
    hint = "a tensor has no value while it is traced; give a number" if isinstance(value, AnyTensor) else None
    return operand_error(ShapeError, f"{text}, got {shown(value)}", hint, **operands)


def integer(what: str, name: str, value: Any, least: int | None = None, **operands: AnyTensor[Any]) -> int:
    """An attribute that is an integer, not below `least`; a size keeps the name of its dim."""
    if not is_integer(value) or (least is not None and value < least):
        wanted = "an integer" if least is None else f"an integer of at least {least}"
        raise _refused(f"{what}: {name} must be {wanted}", value, operands)
    return value if isinstance(value, int) else int(value)


def number(
    what: str,
    name: str,
    value: Any,
    *,
    least: float = -math.inf,
    **operands: AnyTensor[Any],
) -> float:
    """An attribute that is a real number of f32, not below `least`; infinities are refused."""
    text = "a finite number"
    if not is_number(value):
        raise _refused(f"{what}: {name} must be {text}", value, operands)
    # Compared before it is converted, because float() of a long int overflows.
    if not -LARGEST <= value <= LARGEST or value < least:
        wanted = text if least == -math.inf else f"{text} of at least {least:g}"
        raise _refused(f"{what}: {name} must be {wanted} in the range of f32", value, operands)
    return float(value)


def element(what: str, name: str, value: Any, dtype: DType, **operands: AnyTensor[Any]) -> float:
    """One element of a dtype: neither NaN nor outside of its range, and neither truncated nor reinterpreted."""
    if dtype == "bool":
        if isinstance(value, (bool, np.bool_)) or (is_number(value) and value in (0, 1)):
            return bool(value)
        raise _refused(f"{what}: {name} must be True or False", value, operands)
    if dtype == "f32":
        if is_number(value) and (-LARGEST <= value <= LARGEST or value in (math.inf, -math.inf)):
            return float(value)
        raise _refused(f"{what}: {name} must be a number in the range of f32", value, operands)
    if not is_number(value) or not -(2.0**31) <= value < 2.0**31:
        raise _refused(f"{what}: {name} must be an integer in the range of i32", value, operands)
    if value != int(value):
        raise operand_error(DTypeError, f"{what}: {value!r} is not an integer", None, **operands)
    return int(value)


def flag(what: str, name: str, value: object, **operands: AnyTensor[Any]) -> bool:
    """An attribute that is True or False, not just true or false in an `if`."""
    if not isinstance(value, (bool, np.bool_)):
        raise _refused(f"{what}: {name} must be True or False", value, operands)
    return bool(value)


def dtype_name(what: str, dtype: object, *known: DType) -> None:
    """Refuse what is not one of the dtypes `known`."""
    if not isinstance(dtype, str) or dtype not in known:
        *first, last = (repr(k) for k in known)
        raise DTypeError(
            f"{what}: dtype must be {', '.join(first)} or {last}, got {shown(dtype)}",
            site=user_site(),
        )
