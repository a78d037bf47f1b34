"""Learning-rate schedules: frozen values told apart by `kind`, evaluated on the host in f64.

A schedule is data rather than a function, so that it can be compared, printed, saved
with a checkpoint and read back. Steps count from 1. `linear_decay` and `cosine_decay`
divide the step itself by `steps` and so are one notch below `peak` already at step 1;
`linear`, `cosine_annealing`, `staircase` and `multi_step` give PyTorch's values, whose
first step uses `peak`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, TypeAlias, assert_never, get_args

import attrs

from tgdsl.errors import OptionError, int_option


def _finite(self: object, attribute: attrs.Attribute[Any], value: object) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not math.isfinite(value):  # type: ignore[arg-type]
        raise OptionError(f"lr.{_kind(self)}: {attribute.name} must be a finite number, got {value!r}")


def _at_least(least: int) -> Any:
    def check(self: object, attribute: attrs.Attribute[Any], value: object) -> None:
        int_option(f"lr.{_kind(self)}: {attribute.name}", value, least)

    return check


def _start(self: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value is not None:
        _at_least(0)(self, attribute, value)


def _schedule(self: object, attribute: attrs.Attribute[Any], value: object) -> None:
    check_schedule(value, f"lr.{_kind(self)}: {attribute.name}")


def _milestones(self: object, attribute: attrs.Attribute[Any], value: tuple[Any, ...]) -> None:
    ints = all(isinstance(m, int) and not isinstance(m, bool) and m >= 1 for m in value)
    if not value or not ints or any(a >= b for a, b in pairwise(value)):
        raise OptionError(f"lr.{_kind(self)}: milestones must be ascending ints >= 1, got {value!r}")


def _kind(schedule: object) -> str:
    return str(getattr(schedule, "kind", type(schedule).__name__))


@attrs.frozen(kw_only=True)
class Constant:
    """The same value at every step."""

    value: float = attrs.field(validator=_finite)
    start_step: int | None = attrs.field(default=None, validator=_start, repr=False)
    kind: Literal["constant"] = attrs.field(default="constant", init=False, repr=False)


@attrs.frozen(kw_only=True)
class LinearDecay:
    """`peak + (final - peak) * min(s / steps, 1)` at step `s`."""

    peak: float = attrs.field(validator=_finite)
    final: float = attrs.field(validator=_finite)
    steps: int = attrs.field(validator=_at_least(1))
    start_step: int | None = attrs.field(default=None, validator=_start, repr=False)
    kind: Literal["linear_decay"] = attrs.field(default="linear_decay", init=False, repr=False)


@attrs.frozen(kw_only=True)
class CosineDecay:
    """`final + 0.5 * (peak - final) * (1 + cos(pi * min(s / steps, 1)))` at step `s`."""

    peak: float = attrs.field(validator=_finite)
    final: float = attrs.field(validator=_finite)
    steps: int = attrs.field(validator=_at_least(1))
    start_step: int | None = attrs.field(default=None, validator=_start, repr=False)
    kind: Literal["cosine_decay"] = attrs.field(default="cosine_decay", init=False, repr=False)


@attrs.frozen(kw_only=True)
class Linear:
    """PyTorch's `LinearLR` from `peak` to `final`: `s - 1` in place of `s`."""

    peak: float = attrs.field(validator=_finite)
    final: float = attrs.field(validator=_finite)
    steps: int = attrs.field(validator=_at_least(1))
    start_step: int | None = attrs.field(default=None, validator=_start, repr=False)
    kind: Literal["linear"] = attrs.field(default="linear", init=False, repr=False)


@attrs.frozen(kw_only=True)
class CosineAnnealing:
    """PyTorch's `CosineAnnealingLR`, but it stays at `final` instead of rising again."""

    peak: float = attrs.field(validator=_finite)
    final: float = attrs.field(validator=_finite)
    steps: int = attrs.field(validator=_at_least(1))
    start_step: int | None = attrs.field(default=None, validator=_start, repr=False)
    kind: Literal["cosine_annealing"] = attrs.field(default="cosine_annealing", init=False, repr=False)


@attrs.frozen(kw_only=True)
class Staircase:
    """PyTorch's `StepLR`: `peak * gamma ** ((s - 1) // every)`."""

    peak: float = attrs.field(validator=_finite)
    every: int = attrs.field(validator=_at_least(1))
    gamma: float = attrs.field(validator=_finite)
    start_step: int | None = attrs.field(default=None, validator=_start, repr=False)
    kind: Literal["staircase"] = attrs.field(default="staircase", init=False, repr=False)


@attrs.frozen(kw_only=True)
class MultiStep:
    """PyTorch's `MultiStepLR`: one factor `gamma` for each milestone below `s`."""

    peak: float = attrs.field(validator=_finite)
    milestones: tuple[int, ...] = attrs.field(validator=_milestones)
    gamma: float = attrs.field(validator=_finite)
    start_step: int | None = attrs.field(default=None, validator=_start, repr=False)
    kind: Literal["multi_step"] = attrs.field(default="multi_step", init=False, repr=False)


@attrs.frozen(kw_only=True)
class Warmup:
    """A straight line from 0 that reaches `peak` at step `steps`; then `after`, from its own step 1."""

    peak: float = attrs.field(validator=_finite)
    steps: int = attrs.field(validator=_at_least(1))
    after: Schedule = attrs.field(validator=_schedule)
    start_step: int | None = attrs.field(default=None, validator=_start, repr=False)
    kind: Literal["warmup"] = attrs.field(default="warmup", init=False, repr=False)


Declared: TypeAlias = Constant | LinearDecay | CosineDecay | Linear | CosineAnnealing | Staircase | MultiStep | Warmup
Schedule: TypeAlias = float | Declared
"""What an optimizer takes as its learning rate; a plain number is constant."""

KINDS: dict[str, type[Declared]] = {str(attrs.fields_dict(c)["kind"].default): c for c in get_args(Declared)}
"""Every schedule class by its `kind`, for reading JSON back."""


def check_schedule(value: object, what: str = "lr") -> None:
    """Refuse what is not a schedule, and numbers that are not finite."""
    if isinstance(value, get_args(Declared)):
        return
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise OptionError(f"{what} must be a number or a schedule of tgdsl.lr, got {type(value).__name__}")
    if not math.isfinite(value):
        raise OptionError(f"{what} must be finite, got {value!r}")


def resolve_lr(schedule: Schedule, step: int) -> float:
    """The learning rate at `step`, which counts from 1."""
    if isinstance(schedule, (int, float)):
        return float(schedule)
    s = step if schedule.start_step is None else max(1, step - schedule.start_step)
    match schedule:
        case Constant(value=value):
            return float(value)
        case LinearDecay(peak=peak, final=final, steps=steps):
            return peak + (final - peak) * min(s / steps, 1.0)
        case CosineDecay(peak=peak, final=final, steps=steps):
            return _cosine(peak, final, s / steps)
        case Linear(peak=peak, final=final, steps=steps):
            return peak + (final - peak) * min((s - 1) / steps, 1.0)
        case CosineAnnealing(peak=peak, final=final, steps=steps):
            return _cosine(peak, final, (s - 1) / steps)
        case Staircase(peak=peak, every=every, gamma=gamma):
            return float(peak * gamma ** ((s - 1) // every))
        case MultiStep(peak=peak, milestones=milestones, gamma=gamma):
            return float(peak * gamma ** sum(m < s for m in milestones))
        case Warmup(peak=peak, steps=steps, after=after):
            return peak * s / steps if s <= steps else resolve_lr(after, s - steps)
        case _:
            assert_never(schedule)


def _cosine(peak: float, final: float, progress: float) -> float:
    return final + 0.5 * (peak - final) * (1.0 + math.cos(math.pi * min(progress, 1.0)))


def constant(value: float) -> Constant:
    """The same value at every step."""
    return Constant(value=value)


def linear_decay(peak: float, final: float, steps: int, *, start_step: int | None = None) -> LinearDecay:
    """A straight line that reaches `final` at `steps`; see `LinearDecay`."""
    return LinearDecay(peak=peak, final=final, steps=steps, start_step=start_step)


def cosine_decay(peak: float, final: float, steps: int, *, start_step: int | None = None) -> CosineDecay:
    """Half a cosine that reaches `final` at `steps`; see `CosineDecay`."""
    return CosineDecay(peak=peak, final=final, steps=steps, start_step=start_step)


def linear(peak: float, final: float, steps: int, *, start_step: int | None = None) -> Linear:
    """`linear_decay` with PyTorch's values: the first step uses `peak`."""
    return Linear(peak=peak, final=final, steps=steps, start_step=start_step)


def cosine_annealing(peak: float, final: float, steps: int, *, start_step: int | None = None) -> CosineAnnealing:
    """`cosine_decay` with PyTorch's values: the first step uses `peak`."""
    return CosineAnnealing(peak=peak, final=final, steps=steps, start_step=start_step)


def staircase(peak: float, every: int, gamma: float, *, start_step: int | None = None) -> Staircase:
    """Multiply by `gamma` after each `every` steps."""
    return Staircase(peak=peak, every=every, gamma=gamma, start_step=start_step)


def multi_step(peak: float, milestones: Iterable[int], gamma: float, *, start_step: int | None = None) -> MultiStep:
    """Multiply by `gamma` after each milestone."""
    return MultiStep(peak=peak, milestones=tuple(milestones), gamma=gamma, start_step=start_step)


def warmup(peak_lr: float, warmup_steps: int, after: Schedule, *, start_step: int | None = None) -> Warmup:
    """Rise to `peak_lr` over `warmup_steps`, then follow `after`."""
    return Warmup(peak=peak_lr, steps=warmup_steps, after=after, start_step=start_step)


def to_json(schedule: Schedule) -> Any:
    """Plain data for `json.dumps`: a number, or a dict with `kind`."""
    if isinstance(schedule, (int, float)):
        return float(schedule)
    out: dict[str, Any] = {}
    for field in attrs.fields(type(schedule)):
        value = getattr(schedule, field.name)
        if field.name == "start_step" and value is None:
            continue
        if field.name == "after":
            value = to_json(value)
        out[field.name] = list(value) if isinstance(value, tuple) else value
    return out


def from_json(data: Any) -> Schedule:
    """The schedule that `to_json` wrote; unknown kinds and fields are refused."""
    if isinstance(data, (int, float)) and not isinstance(data, bool):
        check_schedule(data)
        return float(data)
    if not isinstance(data, Mapping) or data.get("kind") not in KINDS:
        raise OptionError(f"lr.from_json: expected a number or a dict with kind in {sorted(KINDS)}, got {data!r}")
    made: dict[str, Any] = {k: _value(k, v) for k, v in data.items() if k != "kind"}
    try:
        return KINDS[data["kind"]](**made)
    except TypeError as error:
        raise OptionError(f"lr.from_json: {data['kind']}: {error}") from None


def _value(name: str, value: Any) -> Any:
    if name == "after":
        return from_json(value)
    return tuple(value) if isinstance(value, Sequence) else value
