"""The NumPy calls of ops that move elements, look them up, or approximate a function.

Only what cannot be a view of memory comes here. Borders are written anew in every step,
because the buffer may have held something else in between.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import numpy as np

from tgdsl.errors import InputError
from tgdsl.ir import Node

from .numpy_calls import Call, Place, bound, emits, general
from .numpy_pool import Array, flattened

CHUNK: Final = 65536
"""Elements that a long formula works on at a time, so that they stay in cache."""

# erf(x) = tanh(x * P(x * x)): P is smooth, because both sides tend to one alike, and was
# fitted to atanh(erf(x)) / x on [0, 4.2] with the weight that makes the relative error
# of erf even. Beyond, the argument grows until tanh is one. Four units in the last place.
_ERF = (
    1.41853812e-07,
    -5.66850302e-06,
    8.76374924e-05,
    -6.19785088e-04,
    -1.91830317e-04,
    1.02769056e-01,
    1.12837927e00,
)


@emits("erf", in_place=True)
def _erf(place: Place) -> list[Call]:
    x, out = place.x, place.out
    calls: list[Call] = []
    if x.strides != out.strides:
        alike = place.like(out)
        calls.append(partial(np.copyto, alike, x))
        x = alike
    source, to = flattened(x), flattened(out)
    if source is None or to is None:
        return [general(place)]
    s, p = (place.scratch((min(CHUNK, source.size),), np.float32) for _ in range(2))
    for start in range(0, source.size, CHUNK):
        n = min(CHUNK, source.size - start)
        part = slice(start, start + n)
        calls += _erf_of(source[part], to[part], s[:n], p[:n])
    return calls


def _erf_of(x: Array, out: Array, s: Array, p: Array) -> list[Call]:
    first, *rest = _ERF
    calls = [bound(np.multiply, x, x, out=s), bound(np.multiply, s, first, out=p)]
    for c in rest[:-1]:
        calls += [bound(np.add, p, c, out=p), bound(np.multiply, p, s, out=p)]
    return [
        *calls,
        bound(np.add, p, rest[-1], out=p),
        bound(np.multiply, p, x, out=p),
        bound(np.tanh, p, out=out),
    ]


# Moves


@emits("reshape")
def _reshape(place: Place) -> list[Call]:
    return [partial(np.copyto, place.out.reshape(place.x.shape), place.x)]


@emits("cast_f32", in_place=True)
def _cast(place: Place) -> list[Call]:
    return [partial(np.copyto, place.out, place.x)]


@emits("concat")
def _concat(place: Place) -> list[Call]:
    calls: list[Call] = []
    axis, start = place.node.attrs["axis"], 0
    for x in place.inputs:
        stop = start + x.shape[axis]
        part = place.out[(slice(None),) * axis + (slice(start, stop),)]
        calls.append(partial(np.copyto, part, x))
        start = stop
    return calls


@emits("pad")
def _pad(place: Place) -> list[Call]:
    low = place.node.attrs["low"]
    inside = tuple(slice(a, a + n) for a, n in zip(low, place.x.shape, strict=True))
    return _bordered(place.out, inside, place.x, place.node.attrs["value"])


@emits("unslice")
def _unslice(place: Place) -> list[Call]:
    attributes = place.node.attrs
    cuts: list[slice] = []
    for start, size, step in zip(attributes["starts"], place.x.shape, attributes["steps"], strict=True):
        stop = start + size * step
        cuts.append(slice(start, stop if stop >= 0 else None, step))
    return _bordered(place.out, tuple(cuts), place.x, 0.0)


def _bordered(out: Array, inside: tuple[slice, ...], x: Array, value: Any) -> list[Call]:
    return [partial(out.fill, value), partial(np.copyto, out[inside], x)]


def padded_windows(node: Node, x: Array, padded: Array) -> tuple[list[Call], Array]:
    """Windows over a border: calls that write `padded`, and the view of it that is the result."""
    attributes = dict(node.attrs)
    p, q = attributes.pop("padding")
    h, w = x.shape[2:]
    inside = (slice(None), slice(None), slice(p, p + h), slice(q, q + w))
    view = node.op.ref(padded, padding=(0, 0), **attributes)
    return _bordered(padded, inside, x, attributes["value"]), view


@emits("window_sum")
def _window_sum(place: Place) -> list[Call]:
    return add_windows(place, place.x.transpose(2, 3, 0, 1, 4, 5), place.out)


def add_windows(place: Place, taps: Array, out: Array) -> list[Call]:
    """Add windows up where they overlap.

    Args:
        place: Its attributes are stride, padding and size of the image.
        taps: `[kh, kw, B, C, Ho, Wo]`, what each tap of every window adds.
        out: `[B, C, H, W]`, the inside of an image with a border.
    """
    a = place.node.attrs
    (s, t), (p, q), (h, w) = a["stride"], a["padding"], a["size"]
    kh, kw, _, _, ho, wo = taps.shape
    whole = out
    if p or q or (ho - 1) * s + kh > h or (wo - 1) * t + kw > w:
        rows, columns = max(h + 2 * p, (ho - 1) * s + kh), max(w + 2 * q, (wo - 1) * t + kw)
        whole = place.scratch((*out.shape[:2], rows, columns), np.float32)
    calls: list[Call] = []
    apart = s >= kh and t >= kw
    if not apart or (kh * ho, kw * wo) != (h, w) or whole is not out:
        calls.append(partial(whole.fill, 0.0))
    for i, j in np.ndindex(kh, kw):
        part = whole[:, :, i : i + (ho - 1) * s + 1 : s, j : j + (wo - 1) * t + 1 : t]
        if apart:
            calls.append(partial(np.copyto, part, taps[i, j]))
        else:
            calls.append(partial(np.add, part, taps[i, j], out=part))
    if whole is not out:
        calls.append(partial(np.copyto, out, whole[:, :, p : p + h, q : q + w]))
    return calls


# Look-ups


def _checked(what: str, indices: Array, size: int) -> Call:
    def check() -> None:
        if indices.size and (indices.min() < 0 or indices.max() >= size):
            bad = indices[(indices < 0) | (indices >= size)].flat[0]
            raise InputError(f"{what}: index {int(bad)} is out of range for size {size}")

    return check


@emits("take")
def _take(place: Place) -> list[Call]:
    table, indices = place.inputs
    # After the check, clipping changes nothing; the default mode would copy the result once more.
    take: Any = np.take
    return [
        _checked("take", indices, table.shape[0]),
        partial(take, table, indices, 0, place.out, "clip"),
    ]


@emits("pick")
def _pick(place: Place) -> list[Call]:
    scores, targets = place.inputs
    classes = scores.shape[-1]
    if not scores.flags.c_contiguous:
        return [general(place)]
    first = np.arange(0, scores.size, classes, dtype=np.int32).reshape(targets.shape)
    index = place.scratch(targets.shape, np.int32)
    take: Any = np.take
    return [
        _checked("cross_entropy", targets, classes),
        partial(np.add, first, targets, out=index),
        partial(take, scores.reshape(-1), index, None, place.out, "clip"),
    ]


@emits("scatter_rows")
def _scatter_rows(place: Place) -> list[Call]:
    """A product with a matrix of ones where a row goes: BLAS adds faster than `np.add.at`."""
    x, indices = place.inputs
    rows = int(place.node.attrs["rows"])
    if rows * x.shape[0] > 1 << 20:
        return [
            _checked("scatter_rows", indices, rows),
            partial(place.out.fill, 0.0),
            partial(np.add.at, place.out, indices, x),
        ]
    hit = place.scratch((rows, x.shape[0]), np.bool_)
    ones = place.scratch((rows, x.shape[0]), np.float32)
    numbers = np.arange(rows, dtype=np.int32)[:, None]
    return [
        _checked("scatter_rows", indices, rows),
        partial(np.equal, numbers, indices, out=hit),
        partial(np.copyto, ones, hit),
        partial(np.dot, ones, x, place.out),
    ]
