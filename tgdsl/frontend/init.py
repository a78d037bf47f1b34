"""How a parameter starts: frozen values told apart by `kind`.

They are data, so that a model compares, prints and can be written to JSON with them.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any, TypeAlias, assert_never
from typing import Literal as Kind

import attrs
import numpy as np
from numpy.typing import NDArray

from tgdsl.errors import DeclarationError, ParameterError

F32Array: TypeAlias = NDArray[np.float32]


@attrs.frozen
class Normal:
    """Normal numbers of mean 0 and deviation `scale`."""

    scale: float = 0.02
    kind: Kind["normal"] = attrs.field(default="normal", init=False, repr=False)


@attrs.frozen
class Zeros:
    """Zeros; such a parameter does not decay by default."""

    kind: Kind["zeros"] = attrs.field(default="zeros", init=False, repr=False)


@attrs.frozen
class Ones:
    """Ones; such a parameter does not decay by default."""

    kind: Kind["ones"] = attrs.field(default="ones", init=False, repr=False)


@attrs.frozen
class Kaiming:
    """Normal numbers of deviation `gain / sqrt(fan_in)` (He et al. 2015, equation 10).

    The layer says what its fan-in is (`param(..., fan_in=...)`); without that it is the first
    axis, which is right for `[in, out]` weights only.
    """

    gain: float = math.sqrt(2.0)
    kind: Kind["kaiming"] = attrs.field(default="kaiming", init=False, repr=False)


def _flat(data: Any) -> tuple[float, ...]:
    array = np.asarray(data)
    if array.dtype.kind not in "fiu":
        raise DeclarationError(f"init.literal: expected numbers, got {data!r}")
    return tuple(float(x) for x in array.reshape(-1))


@attrs.frozen
class Literal:
    """Given numbers, row-major; their count is checked against the shape."""

    data: tuple[float, ...] = attrs.field(converter=_flat)
    kind: Kind["literal"] = attrs.field(default="literal", init=False, repr=False)


Init: TypeAlias = Normal | Zeros | Ones | Kaiming | Literal
InitSpec: TypeAlias = Init | Kind["randn", "zeros", "ones"]

_KINDS: dict[str, type[Any]] = {
    "normal": Normal,
    "zeros": Zeros,
    "ones": Ones,
    "kaiming": Kaiming,
    "literal": Literal,
}


def randn(scale: float = 0.02) -> Normal:
    """Normal numbers of deviation `scale`."""
    return Normal(scale)


def zeros() -> Zeros:
    """Zeros."""
    return Zeros()


def ones() -> Ones:
    """Ones."""
    return Ones()


def kaiming(gain: float = math.sqrt(2.0)) -> Kaiming:
    """Normal numbers of deviation `gain / sqrt(fan_in)`."""
    return Kaiming(gain)


def literal(data: Any) -> Literal:
    """Given numbers: an array, or lists of numbers."""
    return Literal(data)


def resolve(spec: InitSpec) -> Init:
    """An initialiser from itself or one of the three names."""
    if isinstance(spec, str):
        named: dict[str, Init] = {"randn": Normal(), "zeros": Zeros(), "ones": Ones()}
        if spec not in named:
            known = ", ".join(named)
            raise DeclarationError(f"unknown initialiser {spec!r}; the names are: {known}")
        return named[spec]
    return spec


def decays_by_default(initial: Init) -> bool:
    """Whether weight decay applies when the declaration does not say: not to zeros and ones."""
    return not isinstance(initial, (Zeros, Ones))


def misfit(initial: object, shape: tuple[int, ...], fan_in: int | None) -> str | None:
    """Why a parameter of this shape cannot start like this; None if it can."""
    if not isinstance(initial, tuple(_KINDS.values())):
        return f"initial must be an initialiser such as init.Zeros(), got {initial!r}"
    if isinstance(initial, Literal) and len(initial.data) != math.prod(shape):
        return f"init.literal has {len(initial.data)} numbers for the shape {list(shape)}"
    if isinstance(initial, Kaiming) and fan_in is None and len(shape) > 2:
        return f"the fan-in of the shape {list(shape)} is not known; pass fan_in=..."
    return None


def values(initial: Init, shape: tuple[int, ...], rng: np.random.Generator, fan_in: int | None = None) -> F32Array:
    """The first values of one parameter.

    Raises:
        ParameterError: If the initialiser does not fit the shape.
    """
    if problem := misfit(initial, shape, fan_in):
        raise ParameterError(problem)
    match initial:
        case Normal(scale=scale):
            return np.asarray(rng.standard_normal(shape) * scale, np.float32)
        case Zeros():
            return np.zeros(shape, np.float32)
        case Ones():
            return np.ones(shape, np.float32)
        case Kaiming(gain=gain):
            fan = fan_in if fan_in is not None else shape[0] if shape else 1
            return np.asarray(rng.standard_normal(shape) * (gain / math.sqrt(fan)), np.float32)
        case Literal(data=data):
            return np.array(data, np.float32).reshape(shape)
        case _:
            assert_never(initial)


def stream(seed: int, path: str) -> np.random.Generator:
    """The random stream of one parameter, so that adding a parameter changes no other."""
    name = np.frombuffer(hashlib.blake2b(path.encode(), digest_size=16).digest(), "<u4")
    sequence = np.random.SeedSequence([seed, *(int(word) for word in name)])
    return np.random.Generator(np.random.Philox(sequence))


def to_json(initial: Init) -> str:
    """An initialiser as JSON."""
    return json.dumps(attrs.asdict(initial))


def from_json(text: str) -> Init:
    """The initialiser that `to_json` wrote."""
    fields = json.loads(text)
    kind = fields.pop("kind", None)
    if kind not in _KINDS:
        raise DeclarationError(f"unknown initialiser kind {kind!r}")
    made: Init = _KINDS[kind](**fields)
    return made
