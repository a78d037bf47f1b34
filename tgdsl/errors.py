"""Every exception that tgdsl raises on purpose, and the layout of its text.

Each class also derives from the built-in that fits, so that `except ValueError`
keeps working in code that does not know tgdsl. The text is laid out here only:
what is wrong, one line per operand, a hint, and the user's own line with a caret.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class TgdslError(Exception):
    """Base class of every error that tgdsl raises on purpose."""

    def __init__(
        self,
        what: str,
        *,
        operands: Iterable[tuple[str, str, str]] = (),
        hint: str | None = None,
        site: object | None = None,
    ) -> None:
        """Compose the text.

        Args:
            what: What is wrong, in one sentence that begins with the op or the call.
            operands: `(name, type, origin)` of each operand, e.g. `("left", "f32[2]", "input x")`.
            hint: What to do instead.
            site: The user's line; its `str()` is appended.
        """
        super().__init__(_compose(what, list(operands), hint, site))


def _compose(
    what: str,
    operands: list[tuple[str, str, str]],
    hint: str | None,
    site: object | None,
) -> str:
    wide = max((len(name) for name, _, _ in operands), default=0)
    lines = [what]
    lines += [f"  {name:<{wide}} {type_}  ({origin})" for name, type_, origin in operands]
    if hint is not None:
        lines.append(f"  hint: {hint}")
    if site is not None:
        lines.append(str(site))
    return "\n".join(lines)


class DeclarationError(TgdslError, TypeError):
    """A decorator refuses its declaration."""


class TraceError(TgdslError, RuntimeError):
    """A tensor is used in a way that tracing cannot follow."""


class FrozenError(TgdslError, AttributeError):
    """An immutable value is assigned to."""


class InputError(TgdslError, ValueError):
    """An array given to a call does not fit its declaration."""


class DimError(TgdslError, ValueError):
    """A named dim is unknown, unbound, or bound twice to different sizes."""


class OptionError(TgdslError, ValueError):
    """An option (a learning rate, a seed, the name of a backend) has a value that is refused."""


def int_option(what: str, value: Any, least: int) -> int:
    """`value`, refused unless it is an int of at least `least`; `what` begins the message."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise OptionError(f"{what} must be an int >= {least}, got {value!r}")
    return value


class ShapeError(TgdslError, ValueError):
    """An op refuses the shapes or attributes of its operands."""


class DTypeError(ShapeError, TypeError):
    """An op refuses the dtype of an operand."""


class GradientError(TgdslError, ValueError):
    """A gradient is asked for that is not defined, or is found to be wrong."""


class LoweringError(TgdslError, RuntimeError):
    """A graph cannot be turned into kernels."""


class DeviceError(TgdslError, RuntimeError):
    """The GPU is missing, lost, or refuses what it is asked."""


class ParameterError(TgdslError, ValueError):
    """Parameters that are uploaded or loaded do not fit the model."""


class CaptureError(TgdslError, KeyError):
    """A capture is asked for that the call did not read or the forward does not make."""

    __str__ = Exception.__str__  # KeyError would print the text quoted, on one line


class NonFiniteError(TgdslError, ArithmeticError):
    """A checked step produced an infinity or a NaN; the parameters are those before it."""


class HandleError(TgdslError, RuntimeError):
    """A handle is used after `destroy`, or before what it needs is bound."""


class OpDefinitionError(TgdslError, TypeError):
    """Whoever defines an op made a mistake; users never see this."""
