"""Attention as one op, its gradients as ops, and the parts that kernels compute.

Differentiation sees `attention` and the three ops of its gradient, each a function of what the
user gave. Where a target has kernels for them, lowering turns the gradients into parts that
take the row's log-sum-exp, so that a tile of probabilities can be computed again from a tile of
scores; elsewhere everything becomes matrix products and a stored softmax.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from tgdsl.errors import ShapeError
from tgdsl.ir import Array, Attention, Cotangents, Decompose, Draw, Sample, Tensor, TensorType, op, operand_error

from .elementwise import exp, log
from .extrema import maximum
from .indexing import where_causal
from .joining import concat
from .linalg import matmul
from .movement import expand_dims, matrix_transpose, reshape
from .reduce import max as max_
from .reduce import sum as sum_
from .slicing import narrow
from .softmax import LOWEST, softmax_or_zeros


def _scores(q: Tensor, k: Tensor, *, causal: bool, scale: float) -> Tensor:
    scores = matmul(q, matrix_transpose(k)) * scale
    return where_causal(scores, -math.inf) if causal else scores


def _probabilities(q: Tensor, k: Tensor, *, causal: bool, scale: float) -> Tensor:
    return softmax_or_zeros(_scores(q, k, causal=causal, scale=scale), -1)


def _to_scores(p: Tensor, ct: Tensor) -> Tensor:
    """The cotangent of scores for that of their softmax `p`; it is its own adjoint."""
    part = ct * p
    return part - p * sum_(part, -1, keepdims=True)


# -- the meaning in NumPy ----------------------------------------------------


def _scores_ref(q: Array, k: Array, *, causal: bool, scale: float) -> Array:
    scores: Array = np.matmul(q, np.swapaxes(k, -1, -2)) * scale
    return np.where(np.tri(scores.shape[-1], dtype=bool), scores, -np.inf) if causal else scores


def _lse_ref(q: Array, k: Array, *, causal: bool, scale: float) -> Array:
    scores = _scores_ref(q, k, causal=causal, scale=scale)
    top = np.maximum(np.max(scores, axis=-1, keepdims=True), LOWEST)
    out: Array = np.log(np.maximum(np.sum(np.exp(scores - top), axis=-1), 1.0)) + top[..., 0]
    return out


def _p_ref(q: Array, k: Array, *, causal: bool, scale: float) -> Array:
    out: Array = np.exp(
        _scores_ref(q, k, causal=causal, scale=scale) - _lse_ref(q, k, causal=causal, scale=scale)[..., None]
    )
    return out


def _out_ref(q: Array, k: Array, v: Array, *, causal: bool, scale: float) -> Array:
    out: Array = np.matmul(_p_ref(q, k, causal=causal, scale=scale), v)
    return out


def _ds_ref(q: Array, k: Array, v: Array, do: Array, *, causal: bool, scale: float) -> Array:
    p = _p_ref(q, k, causal=causal, scale=scale)
    part = p * np.matmul(do, np.swapaxes(v, -1, -2))
    out: Array = (part - p * np.sum(part, -1, keepdims=True)) * scale
    return out


def _dq_ref(q: Array, k: Array, v: Array, do: Array, *, causal: bool, scale: float) -> Array:
    out: Array = np.matmul(_ds_ref(q, k, v, do, causal=causal, scale=scale), k)
    return out


def _dk_ref(q: Array, k: Array, v: Array, do: Array, *, causal: bool, scale: float) -> Array:
    out: Array = np.matmul(np.swapaxes(_ds_ref(q, k, v, do, causal=causal, scale=scale), -1, -2), q)
    return out


def _dv_ref(q: Array, k: Array, v: Array, do: Array, *, causal: bool, scale: float) -> Array:
    out: Array = np.matmul(np.swapaxes(_p_ref(q, k, causal=causal, scale=scale), -1, -2), do)
    return out


# -- samples and types -------------------------------------------------------


def _draw_operands(draw: Draw, *, names: str) -> Sample:
    batch = draw.choice("batch", ((), (2,), (2, 3)))
    causal = draw.choice("causal", (False, True))
    t, d, e = draw.size("t"), draw.size("d"), draw.size("e")
    s = t if causal else draw.size("s")
    shapes = {"q": (t, d), "k": (s, d), "v": (s, e), "o": (t, e), "lse": (t,), "do": (t, e)}
    arrays = [draw.array(name, (*batch, *shapes[name]), -1.5, 1.5) for name in names.split()]
    return Sample.of(*arrays, causal=causal, scale=draw.choice("scale", (0.5, 1.25)))


def _check(name: str, q: Tensor, k: Tensor, v: Tensor | None = None, **rows: Tensor) -> None:
    """Refuse operands that do not fit; `rows` have the shape of the result of attention."""
    same = q.shape[-1] == k.shape[-1] and q.shape[:-2] == k.shape[:-2]
    if v is not None:
        same = same and v.shape[:-1] == k.shape[:-1]
        same = same and all(x.shape == (*q.shape[:-1], v.shape[-1]) for x in rows.values())
        rows = {"v": v, **rows}
    if not same:
        raise operand_error(ShapeError, f"{name}: operands do not fit", None, q=q, k=k, **rows)


# -- attention and its gradients ---------------------------------------------


def attention_parts(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float) -> Tensor:
    """Attention from matrix products and a softmax; a right operand of rank 2 is shared by the batch."""
    return matmul(_probabilities(q, k, causal=causal, scale=scale), v)


@op(
    name="attention",
    ref=_out_ref,
    lower=Attention("out", attention_parts),
    sample=partial(_draw_operands, names="q k v"),
)
def attention_op(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float) -> TensorType:
    """`softmax_or_zeros(q @ k.mT * scale) @ v`, its scores masked above the diagonal if `causal`."""
    _check("attention", q, k, v)
    return TensorType((*q.shape[:-1], v.shape[-1]))


@attention_op.vjp
def _(ct: Tensor, y: Tensor, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float) -> Cotangents:
    return (
        attention_dq(q, k, v, ct, causal=causal, scale=scale),
        attention_dk(q, k, v, ct, causal=causal, scale=scale),
        attention_dv(q, k, v, ct, causal=causal, scale=scale),
    )


def _ds(q: Tensor, k: Tensor, v: Tensor, do: Tensor, *, causal: bool, scale: float) -> Tensor:
    """The cotangent of `q @ k.mT`."""
    p = _probabilities(q, k, causal=causal, scale=scale)
    return _to_scores(p, matmul(do, matrix_transpose(v))) * scale


def _ds_vjp(u: Tensor, q: Tensor, k: Tensor, v: Tensor, do: Tensor, *, causal: bool, scale: float) -> list[Tensor]:
    """Cotangents of the operands of `_ds` for the cotangent `u` of its result."""
    p = _probabilities(q, k, causal=causal, scale=scale)
    dp = matmul(do, matrix_transpose(v))
    u = u * scale
    to_dp = _to_scores(p, u)
    to_p = u * (dp - sum_(p * dp, -1, keepdims=True)) - dp * sum_(u * p, -1, keepdims=True)
    to_s = _to_scores(p, to_p) * scale
    return [
        matmul(to_s, k),
        matmul(matrix_transpose(to_s), q),
        matmul(matrix_transpose(to_dp), do),
        matmul(to_dp, v),
    ]


def _dq_parts(q: Tensor, k: Tensor, v: Tensor, do: Tensor, *, causal: bool, scale: float) -> Tensor:
    return matmul(_ds(q, k, v, do, causal=causal, scale=scale), k)


def _dq_fused(q: Tensor, k: Tensor, v: Tensor, do: Tensor, *, causal: bool, scale: float) -> Tensor:
    o = attention_op(q, k, v, causal=causal, scale=scale)
    lse = attention_lse(q, k, causal=causal, scale=scale)
    return attention_tiles_dq(q, k, v, o, lse, do, causal=causal, scale=scale)


@op(
    name="attention_dq",
    ref=_dq_ref,
    lower=Decompose(_dq_parts, _dq_fused),
    sample=partial(_draw_operands, names="q k v do"),
)
def attention_dq(q: Tensor, k: Tensor, v: Tensor, do: Tensor, *, causal: bool, scale: float) -> TensorType:
    """The cotangent of the queries of `attention` for the cotangent `do` of its result."""
    _check("attention_dq", q, k, v, do=do)
    return TensorType(q.shape)


@attention_dq.vjp
def _(ct: Tensor, y: Tensor, q: Tensor, k: Tensor, v: Tensor, do: Tensor, *, causal: bool, scale: float) -> Cotangents:
    to_ds = matmul(ct, matrix_transpose(k))
    dq, dk, dv, ddo = _ds_vjp(to_ds, q, k, v, do, causal=causal, scale=scale)
    ds = _ds(q, k, v, do, causal=causal, scale=scale)
    return dq, dk + matmul(matrix_transpose(ds), ct), dv, ddo


def _dk_parts(q: Tensor, k: Tensor, v: Tensor, do: Tensor, *, causal: bool, scale: float) -> Tensor:
    return matmul(matrix_transpose(_ds(q, k, v, do, causal=causal, scale=scale)), q)


def _dkv_fused(q: Tensor, k: Tensor, v: Tensor, do: Tensor, *, causal: bool, scale: float) -> Tensor:
    o = attention_op(q, k, v, causal=causal, scale=scale)
    lse = attention_lse(q, k, causal=causal, scale=scale)
    return attention_tiles_dkv(q, k, v, o, lse, do, causal=causal, scale=scale)


def _dk_fused(q: Tensor, k: Tensor, v: Tensor, do: Tensor, *, causal: bool, scale: float) -> Tensor:
    return narrow(_dkv_fused(q, k, v, do, causal=causal, scale=scale), -1, 0, int(k.shape[-1]))


def _dv_fused(q: Tensor, k: Tensor, v: Tensor, do: Tensor, *, causal: bool, scale: float) -> Tensor:
    both = _dkv_fused(q, k, v, do, causal=causal, scale=scale)
    return narrow(both, -1, int(k.shape[-1]), int(v.shape[-1]))


@op(
    name="attention_dk",
    ref=_dk_ref,
    lower=Decompose(_dk_parts, _dk_fused),
    sample=partial(_draw_operands, names="q k v do"),
)
def attention_dk(q: Tensor, k: Tensor, v: Tensor, do: Tensor, *, causal: bool, scale: float) -> TensorType:
    """The cotangent of the keys of `attention` for the cotangent `do` of its result."""
    _check("attention_dk", q, k, v, do=do)
    return TensorType(k.shape)


@attention_dk.vjp
def _(ct: Tensor, y: Tensor, q: Tensor, k: Tensor, v: Tensor, do: Tensor, *, causal: bool, scale: float) -> Cotangents:
    to_ds = matmul(q, matrix_transpose(ct))
    dq, dk, dv, ddo = _ds_vjp(to_ds, q, k, v, do, causal=causal, scale=scale)
    return dq + matmul(_ds(q, k, v, do, causal=causal, scale=scale), ct), dk, dv, ddo


def _dv_parts(q: Tensor, k: Tensor, v: Tensor, do: Tensor, *, causal: bool, scale: float) -> Tensor:
    return matmul(matrix_transpose(_probabilities(q, k, causal=causal, scale=scale)), do)


@op(
    name="attention_dv",
    ref=_dv_ref,
    lower=Decompose(_dv_parts, _dv_fused),
    sample=partial(_draw_operands, names="q k v do"),
)
def attention_dv(q: Tensor, k: Tensor, v: Tensor, do: Tensor, *, causal: bool, scale: float) -> TensorType:
    """The cotangent of the values of `attention`, which are here for the kernel that makes it beside that of keys."""
    _check("attention_dv", q, k, v, do=do)
    return TensorType(v.shape)


@attention_dv.vjp
def _(ct: Tensor, y: Tensor, q: Tensor, k: Tensor, v: Tensor, do: Tensor, *, causal: bool, scale: float) -> Cotangents:
    p = _probabilities(q, k, causal=causal, scale=scale)
    to_s = _to_scores(p, matmul(do, matrix_transpose(ct))) * scale
    return matmul(to_s, k), matmul(matrix_transpose(to_s), q), None, matmul(p, ct)


# -- what kernels compute ----------------------------------------------------


def _lse_parts(q: Tensor, k: Tensor, *, causal: bool, scale: float) -> Tensor:
    scores = _scores(q, k, causal=causal, scale=scale)
    top = maximum(max_(scores, -1, keepdims=True), LOWEST)
    total = log(maximum(sum_(exp(scores - top), -1, keepdims=True), 1.0)) + top
    return reshape(total, total.shape[:-1])


@op(
    name="attention_lse",
    ref=_lse_ref,
    lower=Attention("lse", _lse_parts),
    sample=partial(_draw_operands, names="q k"),
)
def attention_lse(q: Tensor, k: Tensor, *, causal: bool, scale: float) -> TensorType:
    """Logarithm of the sum of exponentials of each row of scores; the lowest f32 where a row sees nothing."""
    _check("attention_lse", q, k)
    return TensorType(q.shape[:-1])


def _tile_ds(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, do: Tensor, *, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    p = exp(_scores(q, k, causal=causal, scale=scale) - expand_dims(lse, -1))
    dp = matmul(do, matrix_transpose(v))
    return p, p * (dp - sum_(o * do, -1, keepdims=True)) * scale


def _tile_ds_ref(q: Array, k: Array, v: Array, o: Array, lse: Array, do: Array, *, causal: bool, scale: float) -> Array:
    p = np.exp(_scores_ref(q, k, causal=causal, scale=scale) - lse[..., None])
    dp = np.matmul(do, np.swapaxes(v, -1, -2)) - np.sum(o * do, -1, keepdims=True)
    return np.stack([p, p * dp * scale])


def _tiles_dq_ref(
    q: Array, k: Array, v: Array, o: Array, lse: Array, do: Array, *, causal: bool, scale: float
) -> Array:
    out: Array = np.matmul(_tile_ds_ref(q, k, v, o, lse, do, causal=causal, scale=scale)[1], k)
    return out


def _tiles_dq_parts(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, do: Tensor, *, causal: bool, scale: float
) -> Tensor:
    return matmul(_tile_ds(q, k, v, o, lse, do, causal=causal, scale=scale)[1], k)


@op(
    name="attention_tiles_dq",
    ref=_tiles_dq_ref,
    lower=Attention("dq", _tiles_dq_parts),
    sample=partial(_draw_operands, names="q k v o lse do"),
)
def attention_tiles_dq(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, do: Tensor, *, causal: bool, scale: float
) -> TensorType:
    """`attention_dq` from the result and the log-sum-exp of the forward."""
    _check("attention_tiles_dq", q, k, v, o=o, do=do)
    return TensorType(q.shape)


def _tiles_dkv_ref(
    q: Array, k: Array, v: Array, o: Array, lse: Array, do: Array, *, causal: bool, scale: float
) -> Array:
    p, ds = np.swapaxes(_tile_ds_ref(q, k, v, o, lse, do, causal=causal, scale=scale), -1, -2)
    return np.concatenate([np.matmul(ds, q), np.matmul(p, do)], -1)


def _tiles_dkv_parts(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, do: Tensor, *, causal: bool, scale: float
) -> Tensor:
    p, ds = _tile_ds(q, k, v, o, lse, do, causal=causal, scale=scale)
    return concat([matmul(matrix_transpose(ds), q), matmul(matrix_transpose(p), do)], -1)


@op(
    name="attention_tiles_dkv",
    ref=_tiles_dkv_ref,
    lower=Attention("dkv", _tiles_dkv_parts),
    sample=partial(_draw_operands, names="q k v o lse do"),
)
def attention_tiles_dkv(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, do: Tensor, *, causal: bool, scale: float
) -> TensorType:
    """`attention_dk` and `attention_dv` side by side, from the result and the log-sum-exp of the forward."""
    _check("attention_tiles_dkv", q, k, v, o=o, do=do)
    return TensorType((*k.shape[:-1], int(k.shape[-1]) + int(v.shape[-1])))


for _part in (attention_lse, attention_tiles_dq, attention_tiles_dkv):
    _part.no_vjp("a part of kernels, made when gradients are there already")
