"""The only printer of WGSL text: literals, identifiers, index expressions."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from tgdsl.dtypes import DType
from tgdsl.ir.index import Div, Index, Mod, Var

RESERVED = frozenset(
    # keywords and predeclared names that our identifiers could hide
    "abs alias all any array atomic bool break case ceil clamp const const_assert continue continuing cos default "
    "diagnostic discard dot else enable exp exp2 f16 f32 false floor fma fn for i32 if inf let log log2 loop main "
    "mat2x2 max min mix mod override pow private ptr requires return round sampler select sign sin sqrt step storage "
    "struct switch tan tanh texture true trunc u32 uniform var vec2 vec3 vec4 while workgroup input output "
    # names that every kernel uses itself
    "p r b m n k to_half wg lid lane lane_id acc group live slice mine cell cell_sum tiles tx ty "
    "k4 k_tile kk m_tile n_tile row_tile col_tile col_end d_tile dd workgroup shared_f32 shared_i32 "
    # words that the WGSL specification reserves (section 15.2)
    "NULL Self abstract active alignas alignof as asm asm_fragment async attribute auto await become cast catch "
    "class co_await co_return co_yield coherent column_major common compile compile_fragment concept const_cast "
    "consteval constexpr constinit crate debugger decltype delete demote demote_to_helper do dynamic_cast enum "
    "explicit export extends extern external fallthrough filter final finally friend from fxgroup get goto "
    "groupshared highp impl implements import inline instanceof interface layout lowp macro macro_rules match "
    "mediump meta module move mut mutable namespace new nil noexcept noinline nointerpolation non_coherent "
    "noncoherent noperspective null nullptr of operator package packoffset pass patch pixelfragment precise "
    "precision premerge priv protected pub public readonly ref regardless register reinterpret_cast require "
    "resource restrict self set shared sizeof smooth snorm static static_assert static_cast std subroutine super "
    "target template this thread_local throw trait try type typedef typeid typename typeof union unless unorm "
    "unsafe unsized use using varying virtual volatile wgsl where with writeonly yield".split()
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


def literal(value: float, dtype: DType) -> str:
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


def vector(texts: Sequence[str]) -> str:
    """Four values as a vector; as it is where they are the components of one."""
    whole = texts[0].removesuffix(".x")
    if whole.isidentifier() and list(texts) == [f"{whole}.{c}" for c in "xyzw"]:
        return whole
    return f"vec4<f32>({', '.join(texts)})"


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
