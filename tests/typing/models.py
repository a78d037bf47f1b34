"""Two models with inputs and forwards, for the files that checkers read."""

from __future__ import annotations

import math

from tgdsl import (
    F32,
    I32,
    Arg,
    IntTensor,
    LayerNorm,
    Linear,
    Tensor,
    arg,
    f32,
    forward,
    i32,
    inputs,
    module,
    param,
    repeat,
)
from tgdsl.ops import (
    arange,
    argmax,
    capture,
    cross_entropy,
    embedding,
    gelu,
    matmul_batched,
    mean,
    relu,
    softmax_causal,
    split_heads,
    square,
)


@module
class MLP:
    hidden: Arg[int] = arg(default=64)
    l1: Linear = Linear(1, hidden)
    l2: Linear = Linear(hidden, hidden)
    l3: Linear = Linear(hidden, 1)

    def __call__(self, x: Tensor) -> Tensor:
        return self.l3(relu(self.l2(relu(self.l1(x)))))


@inputs
class Point:
    x: F32 = f32("B", 1)


@inputs
class Batch:
    x: F32 = f32("B", 1)
    y: F32 = f32("B", 1)


@forward(inputs=Batch)
def loss(m: MLP, b: Batch) -> Tensor:
    return mean(square(m(b.x) - b.y))


@forward(inputs=Point)
def predict(m: MLP, p: Point) -> Tensor:
    return m(p.x)


@module
class Attention:
    dim: Arg[int] = arg()
    heads: Arg[int] = arg()
    q: Linear = Linear(dim, dim, bias=False)
    k: Linear = Linear(dim, dim, bias=False)

    def __call__(self, x: Tensor) -> Tensor:
        q, k = split_heads(self.q(x), self.heads), split_heads(self.k(x), self.heads)
        scores = matmul_batched(q, k.mT) / math.sqrt(self.dim // self.heads)
        return capture("attention", softmax_causal(scores))


@module
class Block:
    dim: Arg[int] = arg()
    heads: Arg[int] = arg()
    ln: LayerNorm = LayerNorm(dim)
    attn: Attention = Attention(dim, heads)
    up: Linear = Linear(dim, 4 * dim)

    def __call__(self, x: Tensor) -> Tensor:
        return mean(self.attn(self.ln(x))) + gelu(self.up(x))[..., : self.dim]


@module
class Transformer:
    vocab: Arg[int] = arg()
    context: Arg[int] = arg()
    dim: Arg[int] = arg(default=8)
    heads: Arg[int] = arg(default=2)
    depth: Arg[int] = arg(default=2)
    tok: Tensor = param(vocab, dim)
    pos: Tensor = param(context, dim)
    blocks: tuple[Block, ...] = repeat(depth, Block(dim, heads))
    ln: LayerNorm = LayerNorm(dim)

    def __call__(self, tokens: IntTensor) -> Tensor:
        x = embedding(self.tok, tokens) + embedding(self.pos, arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.ln(x) @ self.tok.mT


@inputs
class Tokens:
    tokens: I32 = i32("B", "T", below=12)


@inputs
class Pairs:
    tokens: I32 = i32("B", "T", below=12)
    targets: I32 = i32("B", "T", below=12)


@forward(inputs=Pairs)
def next_token_loss(m: Transformer, b: Pairs) -> Tensor:
    return cross_entropy(m(b.tokens), b.targets)


@forward(inputs=Tokens)
def next_token(m: Transformer, b: Tokens) -> IntTensor:
    return argmax(m(b.tokens)[:, -1, :])
