"""The only printer of WGSL text: literals, identifiers, index expressions."""

from __future__ import annotations

import math
import re

import numpy as np

from tgdsl.dtypes import DType
from tgdsl.ir.index import Div, Index, Mod, Var

RESERVED = frozenset(
    "abs array bool break case const continue default discard dot else enable exp f16 f32 false floor fn for "
    "i32 if let log loop main max min mod override ptr return round sign sqrt step struct switch target true u32 "
    "var vec2 vec3 vec4 while private workgroup storage input output sum mix select texture sampler pow sin cos "
    "tan tanh all any p r b m n k wg lid lane acc group live".split()
)

INFINITY = "fn inf() -> f32 { var bits = 0x7f800000u; return bitcast<f32>(bits); }"
"""WGSL has no literal for infinity, and folds constant bitcasts into an error."""


def identifier(name: str, taken: set[str]) -> str:
    """A readable WGSL identifier for `name` that is not in `taken`; it is added there."""
    base = re.sub(r"\W+", "_", name).strip("_") or "x"
    if base[0].isdigit() or base in RESERVED or base.startswith("__"):
        base = f"v_{base}"
    out, i = base, 1
    while out in taken:
        i += 1
        out = f"{base}_{i}"
    taken.add(out)
    return out


def literal(value: float | bool, dtype: DType) -> str:
    """A constant; negative ones are in parentheses so that no `--` can arise."""
    if dtype == "bool":
        return "true" if value else "false"
    if dtype == "i32":
        number = int(value)
        if number == -(2**31):
            return "i32(-2147483648)"
        return f"{number}" if number >= 0 else f"({number})"
    single = float(np.float32(value))
    if math.isinf(single):
        return "inf()" if single > 0 else "(-inf())"
    text = repr(abs(single)) + "f"
    return f"(-{text})" if math.copysign(1.0, single) < 0 else text


def show_index(i: Index) -> str:
    """An index as an i32 expression."""
    parts: list[str] = []
    for atom, c in i.terms:
        text = _atom(atom)
        sign = "-" if c < 0 else "+"
        parts.append(f"{sign} {text}" if abs(c) == 1 else f"{sign} {text} * {abs(c)}")
    if i.offset or not parts:
        parts.append(f"{'-' if i.offset < 0 else '+'} {abs(i.offset)}")
    first = parts[0]
    parts[0] = first[2:] if first.startswith("+ ") else f"-{first[2:]}"
    return " ".join(parts)


def _atom(atom: Var | Div | Mod) -> str:
    if isinstance(atom, Var):
        return atom.name
    x = show_index(atom.x)
    inner = f"({x})" if " " in x else x
    power = atom.c & (atom.c - 1) == 0
    if isinstance(atom, Div):
        return f"({inner} >> {atom.c.bit_length() - 1}u)" if power else f"({inner} / {atom.c})"
    return f"({inner} & {atom.c - 1})" if power else f"({inner} % {atom.c})"
