"""Randomness that both backends agree on bit by bit.

Threefry-2x32 with 20 rounds, keyed by the step and counted by (element, op): adds, xors and
rotations only, because WGSL has no wide multiplication. The same op in forward and gradient
has the same salt, hence the same mask; another step has another key.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tgdsl.errors import ShapeError
from tgdsl.ir import (
    Array,
    Pointwise,
    Sample,
    Shape,
    Tensor,
    TensorType,
    current_graph,
    op,
    operand_error,
)

from .arguments import is_number, shown
from .compare import greater_equal, where
from .rules import floating, sizes

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA

THREEFRY = """
fn rotated(x: u32, by: u32) -> u32 { return (x << by) | (x >> (32u - by)); }
fn threefry(key: vec2<u32>, counter: vec2<u32>) -> vec2<u32> {
  let keys = array<u32, 3>(key.x, key.y, key.x ^ key.y ^ 0x1bd11bdau);
  var x = counter.x + keys[0];
  var y = counter.y + keys[1];
  x += y; y = rotated(y, 13u) ^ x; x += y; y = rotated(y, 15u) ^ x;
  x += y; y = rotated(y, 26u) ^ x; x += y; y = rotated(y, 6u) ^ x;
  x += keys[1]; y += keys[2] + 1u;
  x += y; y = rotated(y, 17u) ^ x; x += y; y = rotated(y, 29u) ^ x;
  x += y; y = rotated(y, 16u) ^ x; x += y; y = rotated(y, 24u) ^ x;
  x += keys[2]; y += keys[0] + 2u;
  x += y; y = rotated(y, 13u) ^ x; x += y; y = rotated(y, 15u) ^ x;
  x += y; y = rotated(y, 26u) ^ x; x += y; y = rotated(y, 6u) ^ x;
  x += keys[0]; y += keys[1] + 3u;
  x += y; y = rotated(y, 17u) ^ x; x += y; y = rotated(y, 29u) ^ x;
  x += y; y = rotated(y, 16u) ^ x; x += y; y = rotated(y, 24u) ^ x;
  x += keys[1]; y += keys[2] + 4u;
  x += y; y = rotated(y, 13u) ^ x; x += y; y = rotated(y, 15u) ^ x;
  x += y; y = rotated(y, 26u) ^ x; x += y; y = rotated(y, 6u) ^ x;
  x += keys[2]; y += keys[0] + 5u;
  return vec2<u32>(x, y);
}
"""
UNIFORM = """
fn uniform_of(word: u32) -> f32 { return f32(word >> 8u) * 5.9604644775390625e-8f; }
"""
NORMAL = """
fn normal_of(words: vec2<u32>) -> f32 {
  // 1 - u is in (0, 1], so the logarithm is finite.
  return sqrt(-2.0f * log(1.0f - uniform_of(words.x))) * cos(6.283185307179586f * uniform_of(words.y));
}
"""


def threefry(key: tuple[int, int], counter: tuple[Array, Array]) -> tuple[Array, Array]:
    """Two words per counter, as the kernels compute them.

    Args:
        key: Two 32-bit numbers.
        counter: Two arrays of uint32.

    Returns:
        Two arrays of uint32.

    Source:
        Salmon et al. 2011, Threefry-2x32-20; the test checks the vectors of Random123.
    """
    k0, k1 = np.uint32(key[0] & 0xFFFFFFFF), np.uint32(key[1] & 0xFFFFFFFF)
    keys = (k0, k1, k0 ^ k1 ^ np.uint32(PARITY))
    with np.errstate(over="ignore"):
        x, y = counter[0] + keys[0], counter[1] + keys[1]
        for block in range(5):
            for by in ROTATIONS[block % 2]:
                x = x + y
                y = ((y << np.uint32(by)) | (y >> np.uint32(32 - by))) ^ x
            x = x + keys[(block + 1) % 3]
            y = y + keys[(block + 2) % 3] + np.uint32(block + 1)
    return x, y


def _words(shape: Shape, salt: int, key: tuple[int, int]) -> tuple[Array, Array]:
    counter = np.arange(math.prod(shape), dtype=np.uint32)
    return threefry(key, (counter, np.full_like(counter, salt)))


def _uniform(words: Array) -> Array:
    return (words >> np.uint32(8)).astype(np.float64) * 2.0**-24


def _rand_ref(shape: Shape, salt: int, key: tuple[int, int]) -> Array:
    return _uniform(_words(shape, salt, key)[0]).reshape(shape)


def _randn_ref(shape: Shape, salt: int, key: tuple[int, int]) -> Array:
    a, b = _words(shape, salt, key)
    normal = np.sqrt(-2.0 * np.log(1.0 - _uniform(a))) * np.cos(2.0 * np.pi * _uniform(b))
    return normal.reshape(shape)


@op(
    name="rand",
    ref=_rand_ref,
    lower=Pointwise(
        "uniform_of(threefry({key}, vec2<u32>(u32({index}), {salt})).x)", helpers=(THREEFRY, UNIFORM), cost=100
    ),
    sample=lambda draw: Sample.of(shape=draw.shape("shape"), salt=draw.choice("salt", (1, 0xFFFFFFFF))),
    stochastic=True,
)
def _rand(*, shape: Shape, salt: int) -> TensorType:
    """Uniform numbers in [0, 1)."""
    return TensorType(shape)


@op(
    name="randn",
    ref=_randn_ref,
    lower=Pointwise(
        "normal_of(threefry({key}, vec2<u32>(u32({index}), {salt})))", helpers=(THREEFRY, UNIFORM, NORMAL), cost=120
    ),
    sample=lambda draw: Sample.of(shape=draw.shape("shape"), salt=draw.choice("salt", (1, 0xFFFFFFFF))),
    stochastic=True,
)
def _randn(*, shape: Shape, salt: int) -> TensorType:
    """Standard normal numbers."""
    return TensorType(shape)


_rand.no_vjp("a random constant")
_randn.no_vjp("a random constant")


def rand(shape: Sequence[int]) -> Tensor:
    """Uniform numbers in [0, 1), new ones at every step.

    Args:
        shape: The shape.

    Shape:
        `shape`.

    Dtype:
        f32; multiples of 2**-24, never 1.

    Gradient:
        None; a random constant.

    Source:
        Salmon et al. 2011 for the words.

    Example:
        >>> bool((compute(lambda: rand((8,))) < 1.0).all())
        True
    """
    return _rand(shape=sizes("rand", shape), salt=current_graph("rand").salt())


def randn(shape: Sequence[int]) -> Tensor:
    """Standard normal numbers, new ones at every step.

    Args:
        shape: The shape.

    Shape:
        `shape`.

    Dtype:
        f32; at most 5.8 in size.

    Gradient:
        None; a random constant.

    Source:
        Box & Muller 1958 on the words of Salmon et al. 2011.

    Example:
        >>> compute(lambda: randn((2, 3))).shape
        (2, 3)
    """
    return _randn(shape=sizes("randn", shape), salt=current_graph("randn").salt())


def dropout(x: Tensor, p: float) -> Tensor:
    """Each element dropped with probability `p`, the others scaled by `1 / (1 - p)`.

    There is no evaluation mode: write a second forward function without dropout.

    Args:
        x: An f32 tensor.
        p: A constant in [0, 1); 0 returns `x` itself.

    Shape:
        That of `x`.

    Dtype:
        f32.

    Gradient:
        `ct` with the same elements dropped.

    Raises:
        ShapeError: If p is outside of [0, 1).

    Source:
        Srivastava et al. 2014, the inverted form.

    Example:
        >>> compute(lambda x: dropout(x, 0.0), [1.0])
        array([1.])
    """
    floating("dropout", x)
    # Compared as f32, like the kernel does: a p that rounds to 1 would keep nothing.
    if not is_number(p) or not (0.0 <= p < 1.0 and np.float32(p) < 1.0):
        raise operand_error(ShapeError, f"dropout: p must be in [0, 1), got {shown(p)}", x=x)
    if p == 0.0:
        return x
    kept = greater_equal(rand(x.shape), p)
    return where(kept, x * (1.0 / (1.0 - p)), 0.0)
