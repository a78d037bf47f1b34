"""Seeds: of parameters, of the random ops of a step, and of those of an evaluation.

A step's key is (seed, step number), so that training that resumes at a step draws what it
would have drawn; evaluations count their own calls and use another first word, so they
never repeat the words of a step.
"""

from __future__ import annotations

import secrets
from typing import Any, Final

from tgdsl.errors import OptionError

_EVALUATION: Final = 0x9E3779B9


def check_seed(seed: Any) -> int:
    """A seed of 32 bits; a fresh one for None."""
    if seed is None:
        return secrets.randbits(32)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise OptionError(f"seed must be an int in [0, 2**32), got {seed!r}")
    return int(seed)


def step_key(seed: int, step: int) -> dict[str, int]:
    """The random key of a training step."""
    return {"key0": _signed(seed), "key1": _signed(step)}


def evaluation_key(seed: int, count: int) -> dict[str, int]:
    """The random key of the `count`-th evaluation of a handle."""
    return {"key0": _signed(seed ^ _EVALUATION), "key1": _signed(count)}


def _signed(word: int) -> int:
    # Scalars travel as i32 bit patterns.
    word &= 0xFFFFFFFF
    return word - 2**32 if word >= 2**31 else word
