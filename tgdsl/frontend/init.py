"""How a parameter starts: frozen values told apart by `kind`.

They are data, so that a model compares, prints and can be written to JSON with them.
"""

from __future__ import annotations

import json
import math
import zlib
from typing import Any, Literal as TypingLiteral, TypeAlias

import attrs
import numpy as np
from numpy.typing import NDArray
from typing_extensions import assert_never

from tgdsl.errors import DeclarationError, ParameterError

F32Array: TypeAlias = NDArray[np.float32]


@attrs.frozen
class Normal:
    """Normal numbers of mean 0 and deviation `scale`."""

    scale: float = 0.02
    kind: TypingLiteral["normal"] = attrs.field(default="normal", init=False, repr=False)


@attrs.frozen
class Zeros:
    """Zeros; such a parameter does not decay by default."""

    kind: TypingLiteral["zeros"] = attrs.field(default="zeros", init=False, repr=False)


@attrs.frozen
class Ones:
    """Ones; such a parameter does not decay by default."""

    kind: TypingLiteral["ones"] = attrs.field(default="ones", init=False, repr=False)


@attrs.frozen
class Kaiming:
    """Normal numbers of deviation `gain / sqrt(fan_in)` (He et al. 2015, equation 10).

    The layer says what its fan-in is (`param(..., fan_in=...)`); without that it is the first
    axis, which is right for `[in, out]` weights only.
    """

    gain: float = math.sqrt(2.0)
    kind: TypingLiteral["kaiming"] = attrs.field(default="kaiming", init=False, repr=False)


@attrs.frozen
class Literal:
    """Given numbers, row-major; their count is checked against the shape."""

    data: tuple[float, ...] = attrs.field(converter=lambda d: tuple(float(x) for x in np.asarray(d).reshape(-1)))
    kind: TypingLiteral["literal"] = attrs.field(default="literal", init=False, repr=False)


Init: TypeAlias = Normal | Zeros | Ones | Kaiming | Literal
InitSpec: TypeAlias = Init | TypingLiteral["randn", "zeros", "ones"]

_KINDS: dict[str, type[Any]] = {"normal": Normal, "zeros": Zeros, "ones": Ones, "kaiming": Kaiming, "literal": Literal}


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
    """Given numbers."""
    return Literal(data)


def resolve(spec: InitSpec) -> Init:
    """An initialiser from itself or one of the three names."""
    if isinstance(spec, str):
        named: dict[str, Init] = {"randn": Normal(), "zeros": Zeros(), "ones": Ones()}
        if spec not in named:
            raise DeclarationError(f"unknown initialiser {spec!r}; the names are: {', '.join(named)}")
        return named[spec]
    return spec


def decays_by_default(initial: Init) -> bool:
    """Whether weight decay applies when the declaration does not say: not to zeros and ones."""
    return not isinstance(initial, (Zeros, Ones))


def values(initial: Init, shape: tuple[int, ...], rng: np.random.Generator, fan_in: int | None = None) -> F32Array:
    """The first values of one parameter."""
    match initial:
        case Normal(scale=scale):
            return (rng.standard_normal(shape) * scale).astype(np.float32)
        case Zeros():
            return np.zeros(shape, np.float32)
        case Ones():
            return np.ones(shape, np.float32)
        case Kaiming(gain=gain):
            fan = fan_in if fan_in is not None else int(shape[0]) if shape else 1
            return (rng.standard_normal(shape) * (gain / math.sqrt(fan))).astype(np.float32)
        case Literal(data=data):
            if len(data) != math.prod(shape):
                raise ParameterError(f"init.literal: {len(data)} numbers for the shape {list(shape)}")
            return np.array(data, np.float32).reshape(shape)
        case _:
            assert_never(initial)


def stream(seed: int, path: str) -> np.random.Generator:
    """The random stream of one parameter, so that adding a parameter changes no other."""
    words = [seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF, zlib.crc32(path.encode()), len(path)]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))


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
