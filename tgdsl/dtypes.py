"""The three dtypes, each four bytes wide on the device."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import numpy as np

DType: TypeAlias = Literal["f32", "i32", "bool"]

NUMPY: Final[dict[DType, Any]] = {"f32": np.float32, "i32": np.int32, "bool": np.bool_}
"""What an array of this dtype is in NumPy."""

WGSL: Final[dict[DType, str]] = {"f32": "f32", "i32": "i32", "bool": "bool"}
"""What one value of this dtype is in a WGSL expression."""

STORAGE: Final[dict[DType, str]] = {"f32": "f32", "i32": "i32", "bool": "u32"}
"""What one value is in a WGSL buffer: `bool` is not host-shareable, so it is stored as 0 or 1."""

ITEMSIZE: Final = 4
"""Bytes per element on the device, for every dtype."""
