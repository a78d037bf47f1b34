"""The reference graphs whose dispatches, bytes and times are counted, written as a user writes them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from tgdsl import (
    F32,
    I32,
    Adam,
    AdamW,
    Arg,
    Conv2d,
    IntTensor,
    LayerNorm,
    Linear,
    Tensor,
    Trained,
    arg,
    compile_module,
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
    cross_entropy,
    embedding,
    gelu,
    max_pool2d,
    mean,
    merge_heads,
    relu,
    reshape,
    softmax_causal,
    split_heads,
    square,
)
from tgdsl.optim.base import Optimizer
from tgdsl.pipeline import Backend

Arrays = dict[str, NDArray[Any]]


@module
class MLP:
    """Linear layers with relu between them."""

    din: Arg[int] = arg()
    hidden: Arg[int] = arg()
    dout: Arg[int] = arg()
    l1: Linear = Linear(din, hidden)
    l2: Linear = Linear(hidden, hidden)
    l3: Linear = Linear(hidden, dout)

    def __call__(self, x: Tensor) -> Tensor:
        """`[B, din] -> [B, dout]`."""
        return self.l3(relu(self.l2(relu(self.l1(x)))))


@module
class Attention:
    """Causal self-attention from plain ops."""

    dim: Arg[int] = arg()
    heads: Arg[int] = arg()
    q: Linear = Linear(dim, dim, bias=False)
    k: Linear = Linear(dim, dim, bias=False)
    v: Linear = Linear(dim, dim, bias=False)
    o: Linear = Linear(dim, dim)

    def __call__(self, x: Tensor) -> Tensor:
        """`[B, T, D] -> [B, T, D]`."""
        q, k, v = (split_heads(f(x), self.heads) for f in (self.q, self.k, self.v))
        scores = q @ k.mT / math.sqrt(self.dim // self.heads)
        return self.o(merge_heads(softmax_causal(scores) @ v))


@module
class Block:
    """A pre-norm transformer block."""

    dim: Arg[int] = arg()
    heads: Arg[int] = arg()
    ln1: LayerNorm = LayerNorm(dim)
    attn: Attention = Attention(dim, heads)
    ln2: LayerNorm = LayerNorm(dim)
    up: Linear = Linear(dim, 4 * dim)
    down: Linear = Linear(4 * dim, dim)

    def __call__(self, x: Tensor) -> Tensor:
        """`[B, T, D] -> [B, T, D]`."""
        x = x + self.attn(self.ln1(x))
        return x + self.down(gelu(self.up(self.ln2(x))))


@module
class GPT:
    """Token and position embedding, blocks, final norm, untied head."""

    vocab: Arg[int] = arg()
    context: Arg[int] = arg()
    dim: Arg[int] = arg()
    heads: Arg[int] = arg()
    depth: Arg[int] = arg()
    tok: Tensor = param(vocab, dim)
    pos: Tensor = param(context, dim)
    blocks: tuple[Block, ...] = repeat(depth, Block(dim, heads))
    ln: LayerNorm = LayerNorm(dim)
    head: Linear = Linear(dim, vocab, bias=False)

    def __call__(self, tokens: IntTensor) -> Tensor:
        """`[B, T] -> [B, T, vocab]`."""
        x = embedding(self.tok, tokens) + embedding(self.pos, arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x))


@module
class CNN:
    """Two convolutions, each with relu and pooling, then one linear layer."""

    conv1: Conv2d = Conv2d(1, 16, 3, padding=1)
    conv2: Conv2d = Conv2d(16, 32, 3, padding=1)
    fc: Linear = Linear(32 * 7 * 7, 10)

    def __call__(self, x: Tensor) -> Tensor:
        """`[B, 1, 28, 28] -> [B, 10]`."""
        h = max_pool2d(relu(self.conv1(x)), 2)
        h = max_pool2d(relu(self.conv2(h)), 2)
        return self.fc(reshape(h, (x.shape[0], -1)))


@inputs
class Points:
    """Samples of a function."""

    x: F32 = f32("B", 1)
    y: F32 = f32("B", 1)


@inputs
class Digits:
    """Flat images with labels."""

    x: F32 = f32("B", 784)
    y: I32 = i32("B", below=10)


@inputs
class Images:
    """Images with labels."""

    x: F32 = f32("B", 1, 28, 28)
    y: I32 = i32("B", below=10)


def _text(vocab: int) -> type[Any]:
    @inputs
    class Text:
        """Tokens, and the tokens that follow them."""

        tokens: I32 = i32("B", "T", below=vocab)
        targets: I32 = i32("B", "T", below=vocab)

    return Text


@forward(inputs=Points)
def sine_loss(m: MLP, b: Points) -> Tensor:
    """Mean squared error."""
    return mean(square(m(b.x) - b.y))


@forward(inputs=Digits)
def digits_loss(m: MLP, b: Digits) -> Tensor:
    """Mean cross-entropy."""
    return cross_entropy(m(b.x), b.y)


@forward(inputs=Images)
def images_loss(m: CNN, b: Images) -> Tensor:
    """Mean cross-entropy."""
    return cross_entropy(m(b.x), b.y)


def _text_loss(vocab: int) -> Any:
    text = _text(vocab)

    def loss(m: GPT, b: Any) -> Tensor:
        return cross_entropy(m(b.tokens), b.targets)

    return forward(inputs=text)(loss)


@attrs.frozen
class Reference:
    """One reference graph.

    Attributes:
        name: Its name.
        model: The model.
        loss: Its loss.
        optimizer: The update rule.
        dims: Sizes of named dims.
        batch: Makes a random batch.
        budget: Dispatches per training step that the schedule should need.
        ancestor: Dispatches that tensorgrad needs, one per op.
        budget_bytes: Bytes moved per step that it should need, if stated.
    """

    name: str
    model: Any
    loss: Any
    optimizer: Optimizer
    dims: dict[str, int]
    batch: Callable[[np.random.Generator], Arrays]
    budget: int
    ancestor: int | None
    budget_bytes: int | None = None

    def compile(self, backend: Backend = "auto", *, tune: bool = False) -> Trained[Any, Any, Any]:
        """A training handle."""
        handle: Trained[Any, Any, Any] = compile_module(
            self.model, self.loss, optimizer=self.optimizer, dims=self.dims, seed=0, backend=backend, tune=tune
        )
        return handle


def _points(rng: np.random.Generator) -> Arrays:
    x = rng.uniform(-3, 3, (256, 1)).astype(np.float32)
    return {"x": x, "y": np.sin(x)}


def _digits(rng: np.random.Generator) -> Arrays:
    return {
        "x": rng.standard_normal((128, 784)).astype(np.float32),
        "y": rng.integers(0, 10, 128, dtype=np.int32),
    }


def _images(rng: np.random.Generator) -> Arrays:
    return {
        "x": rng.standard_normal((64, 1, 28, 28)).astype(np.float32),
        "y": rng.integers(0, 10, 64, dtype=np.int32),
    }


def _gpt(
    name: str,
    sizes: tuple[int, int, int, int],
    t: int,
    b: int,
    budget: int,
    ancestor: int | None,
    *,
    clip: float | None = None,
    budget_bytes: int | None = None,
) -> Reference:
    vocab, dim, heads, depth = sizes

    def batch(rng: np.random.Generator) -> Arrays:
        tokens = rng.integers(0, vocab, (b, t + 1), dtype=np.int32)
        return {"tokens": np.ascontiguousarray(tokens[:, :-1]), "targets": np.ascontiguousarray(tokens[:, 1:])}

    optimizer = AdamW(3e-4, weight_decay=0.01, clip_grad_norm=clip)
    model = GPT(vocab, t, dim, heads, depth)
    return Reference(name, model, _text_loss(vocab), optimizer, {"B": b, "T": t}, batch, budget, ancestor, budget_bytes)


def references() -> dict[str, Reference]:
    """The seven reference graphs by name."""
    made = [
        Reference("mlp_sin", MLP(1, 64, 1), sine_loss, Adam(1e-3), {"B": 256}, _points, 9, 63),
        Reference("mlp_mnist", MLP(784, 256, 10), digits_loss, Adam(1e-3), {"B": 128}, _digits, 11, 73, 12_000_000),
        _gpt("gpt_ref", (12, 64, 4, 3), 32, 32, 95, 987, clip=1.0, budget_bytes=90_000_000),
        _gpt("gpt_small", (16, 32, 2, 2), 16, 16, 68, 529),
        _gpt("gpt_char", (65, 128, 4, 4), 64, 8, 120, 1002),
        Reference("cnn", CNN(), images_loss, Adam(1e-3), {"B": 64}, _images, 17, 74),
        _gpt("gpt_mid", (256, 384, 6, 6), 256, 16, 175, None),
    ]
    return {r.name: r for r in made}
