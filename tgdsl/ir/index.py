"""Symbolic integers: the indices that views map and kernels print.

Views are free because their index maps compose; they stay cheap because every
expression is simplified with the known range of its variables as it is built. All
divisors are positive constants and every operand of `//` and `%` is non-negative (a
slice or flip keeps that by construction), so WGSL's truncating division agrees.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import gcd
from typing import TypeAlias

import attrs


@attrs.frozen(cache_hash=True)
class Index:
    """An integer expression with inclusive bounds: `offset + sum(coefficient * atom)`."""

    terms: tuple[tuple[Atom, int], ...]
    offset: int
    lo: int
    hi: int

    def __add__(self, other: Index | int) -> Index:
        o = index(other)
        if not o.terms:
            d = o.offset
            return Index(self.terms, self.offset + d, self.lo + d, self.hi + d) if d else self
        if not self.terms:
            d = self.offset
            return Index(o.terms, o.offset + d, o.lo + d, o.hi + d) if d else o
        merged: dict[Atom, int] = dict(self.terms)
        for atom, c in o.terms:
            merged[atom] = merged.get(atom, 0) + c
        return _linear(merged, self.offset + o.offset)

    def __radd__(self, other: int) -> Index:
        return self + other

    def __sub__(self, other: Index | int) -> Index:
        return self + index(other) * -1

    def __rsub__(self, other: int) -> Index:
        return index(other) - self

    def __mul__(self, c: int) -> Index:
        if c == 1:
            return self
        if c > 1:  # the order of the terms stays, and nothing new can be joined
            return Index(tuple([(a, k * c) for a, k in self.terms]), self.offset * c, self.lo * c, self.hi * c)
        return _linear({atom: k * c for atom, k in self.terms}, self.offset * c)

    def __rmul__(self, c: int) -> Index:
        return self * c

    def __floordiv__(self, c: int) -> Index:
        return _div(self, c)

    def __mod__(self, c: int) -> Index:
        return _mod(self, c)

    @property
    def constant(self) -> int | None:
        """The value, if there is only one."""
        return self.offset if not self.terms else None

    def variables(self) -> frozenset[str]:
        """Names of the variables that this expression reads."""
        return frozenset().union(*(atom.variables() for atom, _ in self.terms))

    def substitute(self, values: dict[str, Index]) -> Index:
        """This expression with variables replaced, simplified again."""
        out = index(self.offset)
        for atom, c in self.terms:
            out = out + atom.substitute(values) * c
        return out


@attrs.frozen(cache_hash=True)
class Var:
    """A loop variable, or an i32 value loaded by the kernel, in `[lo, hi]`."""

    name: str
    lo: int
    hi: int

    def variables(self) -> frozenset[str]:
        """Its own name."""
        return frozenset((self.name,))

    def substitute(self, values: dict[str, Index]) -> Index:
        """The replacement, if there is one."""
        return values.get(self.name, of_atom(self))

    @property
    def bounds(self) -> tuple[int, int]:
        """Inclusive bounds."""
        return self.lo, self.hi


@attrs.frozen(cache_hash=True)
class Div:
    """`x // c` with `x >= 0`, `c > 1`."""

    x: Index
    c: int

    def variables(self) -> frozenset[str]:
        """Those of its operand."""
        return self.x.variables()

    def substitute(self, values: dict[str, Index]) -> Index:
        """Rebuilt from the replaced operand."""
        return self.x.substitute(values) // self.c

    @property
    def bounds(self) -> tuple[int, int]:
        """Inclusive bounds."""
        return self.x.lo // self.c, self.x.hi // self.c


@attrs.frozen(cache_hash=True)
class Mod:
    """`x % c` with `x >= 0`, `c > 1`."""

    x: Index
    c: int

    def variables(self) -> frozenset[str]:
        """Those of its operand."""
        return self.x.variables()

    def substitute(self, values: dict[str, Index]) -> Index:
        """Rebuilt from the replaced operand."""
        return self.x.substitute(values) % self.c

    @property
    def bounds(self) -> tuple[int, int]:
        """Inclusive bounds."""
        return 0, min(self.x.hi, self.c - 1)


Atom: TypeAlias = Var | Div | Mod


def of_atom(atom: Atom) -> Index:
    """The expression that is just `atom`."""
    return _linear({atom: 1}, 0)


def index(x: Index | int) -> Index:
    """Lift an int."""
    return x if isinstance(x, Index) else Index((), int(x), int(x), int(x))


def var(name: str, size: int) -> Index:
    """A loop variable in `[0, size)`; a loop of one pass is the constant 0."""
    return of_atom(Var(name, 0, size - 1)) if size > 1 else index(0)


@lru_cache(maxsize=65536)
def _name(atom: Atom) -> str:
    return repr(atom)


def _order(item: tuple[Atom, int]) -> tuple[int, str]:
    return -abs(item[1]), _name(item[0])


def _linear(terms: dict[Atom, int], offset: int) -> Index:
    kept: dict[Atom, int] = {}
    for atom, c in terms.items():
        lo, hi = atom.bounds
        if lo == hi:
            offset += lo * c
        elif c:
            kept[atom] = c
    if len(kept) > 1:
        offset += _rejoin(kept)
    lo = hi = offset
    for atom, c in kept.items():
        a, b = atom.bounds
        lo += min(a * c, b * c)
        hi += max(a * c, b * c)
    ordered = tuple(sorted(kept.items(), key=_order)) if len(kept) > 1 else tuple(kept.items())
    return Index(ordered, offset, lo, hi)


def _rejoin(kept: dict[Atom, int]) -> int:
    """Undo splits: `k * (x // k) + x % k` is `x`, and `k * ((x // k) % m) + x % k` is `x % (k * m)`.

    Changes `kept`, and returns the constant that comes out.
    """
    offset = 0
    while (found := _split_pair(kept)) is not None:
        low, high, joined = found
        c = kept[low]
        del kept[low], kept[high]
        offset += joined.offset * c
        for inner, k in joined.terms:
            total = kept.get(inner, 0) + k * c
            if total:
                kept[inner] = total
            else:
                del kept[inner]
    return offset


def _split_pair(kept: dict[Atom, int]) -> tuple[Atom, Atom, Index] | None:
    for low, c in kept.items():
        if not isinstance(low, Mod):
            continue
        rest = low.x // low.c
        for high, c_high in kept.items():
            if c_high != c * low.c:
                continue
            if rest == Index(((high, 1),), 0, *high.bounds):
                return low, high, low.x
            if isinstance(high, Mod) and high.x == rest:
                return low, high, low.x % (low.c * high.c)
    return None


@lru_cache(maxsize=262144)
def _div(x: Index, c: int) -> Index:
    if c == 1:
        return x
    if x.lo // c == x.hi // c:
        return index(x.lo // c)
    whole = {a: k // c for a, k in x.terms if k % c == 0}
    rest = {a: k for a, k in x.terms if k % c}
    whole_offset, rest_offset = divmod(x.offset, c)
    remainder = _linear(rest, rest_offset)
    if whole and remainder.lo >= 0:
        return _linear(whole, whole_offset) + remainder // c
    if len(x.terms) == 1 and x.offset == 0:
        (atom, k) = x.terms[0]
        if k == 1 and isinstance(atom, Div):  # (y // a) // b
            return atom.x // (atom.c * c)
        if k == 1 and isinstance(atom, Mod) and atom.c % c == 0:  # (y % ab) // b
            return (atom.x // c) % (atom.c // c)
    g = gcd(c, *(k for _, k in x.terms))
    if g > 1:  # (g * y + o) // (g * m), with o < g
        return _divided(x, g) // (c // g)
    if x.lo < 0:
        msg = f"division of a possibly negative index {x}"
        raise ValueError(msg)
    return of_atom(Div(x, c))


def _divided(x: Index, g: int) -> Index:
    """`x // g` where `g` divides every coefficient."""
    return _linear({a: k // g for a, k in x.terms}, x.offset // g)


@lru_cache(maxsize=65536)
def _mod(x: Index, c: int) -> Index:
    if c == 1:
        return index(0)
    if x.lo >= 0 and x.hi < c:
        return x
    if x.lo // c == x.hi // c:
        return x - (x.lo // c) * c
    rest = _linear({a: k % c if k > 0 else k for a, k in x.terms if k % c}, x.offset % c)
    if rest != x and rest.lo >= 0:
        return rest % c
    if len(x.terms) == 1 and x.offset == 0:
        atom, k = x.terms[0]
        if k == 1 and isinstance(atom, Mod) and atom.c % c == 0:
            return atom.x % c
    g = gcd(c, *(k for _, k in x.terms))
    if g > 1:  # (g * y + o) % (g * m), with o < g
        return (_divided(x, g) % (c // g)) * g + x.offset % g
    if x.lo < 0:
        msg = f"remainder of a possibly negative index {x}"
        raise ValueError(msg)
    return of_atom(Mod(x, c))


def flatten(ix: Sequence[Index], shape: Sequence[int]) -> Index:
    """Row-major position of `ix` in an array of `shape`."""
    out = index(0)
    for i, n in zip(ix, shape, strict=True):
        out = out * n + i
    return out


def unflatten(flat: Index, shape: Sequence[int]) -> tuple[Index, ...]:
    """The index at row-major position `flat` of an array of `shape`."""
    out: list[Index] = []
    for n in reversed(shape[1:]):
        out.append(flat % n)
        flat = flat // n
    if shape:
        out.append(flat)
    return tuple(reversed(out))


def reindex(ix: Sequence[Index], old: Sequence[int], new: Sequence[int]) -> tuple[Index, ...]:
    """Map an index of `old` to the index of `new` at the same row-major position.

    Axes are regrouped where their products meet, so that splitting or merging a head
    axis costs no division at all.
    """
    out: list[Index] = []
    i = j = 0
    while i < len(old) or j < len(new):
        a, b, si, sj = i, j, 1, 1
        while True:
            if si == sj and a > i and b > j:
                break
            if si <= sj and a < len(old):
                si *= old[a]
                a += 1
            elif b < len(new):
                sj *= new[b]
                b += 1
            elif a < len(old):
                si *= old[a]
                a += 1
            else:
                break
        out.extend(unflatten(flatten(ix[i:a], old[i:a]), new[j:b]))
        i, j = a, b
    return tuple(out)
