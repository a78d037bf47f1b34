"""A character transformer trained on the sources of Python's own standard library.

Token embedding and head are one tensor; attention is captured and drawn; at the end the
model writes some "Python" of its own.
"""

from __future__ import annotations

import argparse
import importlib
import math
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tgdsl import (
    I32,
    AdamW,
    Arg,
    Inference,
    IntTensor,
    LayerNorm,
    Linear,
    Tensor,
    Trained,
    arg,
    capture,
    compile_module,
    forward,
    i32,
    inputs,
    lr,
    module,
    param,
    repeat,
)
from tgdsl.ops import arange, cross_entropy, embedding, gelu, merge_heads, softmax_causal, split_heads
from tgdsl.pipeline import Backend

CHARACTERS = "\n" + "".join(chr(c) for c in range(32, 127))
VOCAB, CONTEXT, BATCH = len(CHARACTERS), 64, 16


@module
class Attention:
    """Causal self-attention whose weights can be captured."""

    dim: Arg[int] = arg()
    heads: Arg[int] = arg()
    q: Linear = Linear(dim, dim, bias=False)
    k: Linear = Linear(dim, dim, bias=False)
    v: Linear = Linear(dim, dim, bias=False)
    o: Linear = Linear(dim, dim)

    def __call__(self, x: Tensor, name: str) -> Tensor:
        """`[B, T, D] -> [B, T, D]`."""
        q, k, v = (split_heads(f(x), self.heads) for f in (self.q, self.k, self.v))
        scores = q @ k.mT / math.sqrt(self.dim // self.heads)
        return self.o(merge_heads(capture(name, softmax_causal(scores)) @ v))


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

    def __call__(self, x: Tensor, name: str) -> Tensor:
        """`[B, T, D] -> [B, T, D]`."""
        x = x + self.attn(self.ln1(x), name)
        return x + self.down(gelu(self.up(self.ln2(x))))


@module
class Transformer:
    """Tied embedding, blocks, final norm."""

    dim: Arg[int] = arg(default=64)
    heads: Arg[int] = arg(default=4)
    depth: Arg[int] = arg(default=2)
    tok: Tensor = param(VOCAB, dim)
    pos: Tensor = param(CONTEXT, dim)
    blocks: tuple[Block, ...] = repeat(depth, Block(dim, heads))
    ln: LayerNorm = LayerNorm(dim)

    def __call__(self, tokens: IntTensor) -> Tensor:
        """`[B, T] -> [B, T, VOCAB]`."""
        x = embedding(self.tok, tokens) + embedding(self.pos, arange(tokens.shape[1]))
        for i, block in enumerate(self.blocks):
            x = block(x, f"attention.{i}")
        return self.ln(x) @ self.tok.mT


@inputs
class Text:
    """Characters by number."""

    tokens: I32 = i32("B", "T", below=VOCAB)


@inputs
class Batch:
    """Characters, and for each the one that follows."""

    tokens: I32 = i32("B", "T", below=VOCAB)
    targets: I32 = i32("B", "T", below=VOCAB)


@forward(inputs=Batch)
def loss(m: Transformer, b: Batch) -> Tensor:
    """Mean cross-entropy per character, in nats."""
    return cross_entropy(m(b.tokens), b.targets)


@forward(inputs=Text)
def next_scores(m: Transformer, b: Text) -> Tensor:
    """Scores of the next character after each position."""
    return m(b.tokens)


def corpus() -> NDArray[np.int32]:
    """Modules of the standard library that every installation has, as numbers."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    names = ("argparse", "ast", "dataclasses", "functools", "inspect", "pathlib", "subprocess", "textwrap", "typing")
    files = [f for n in names for f in (folder / f"{n}.py", folder / n / "__init__.py") if f.exists()]
    text = "\n".join(f.read_text(encoding="utf-8") for f in files)
    number = {c: i for i, c in enumerate(CHARACTERS)}
    return np.array([number[c] for c in text if c in number], np.int32)


def batches(steps: int, seed: int = 0) -> Iterator[Batch]:
    """Random windows of the corpus."""
    text = corpus()
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        starts = rng.integers(0, len(text) - CONTEXT - 1, BATCH)
        windows = text[starts[:, None] + np.arange(CONTEXT + 1)]
        yield Batch(tokens=windows[:, :-1].copy(), targets=windows[:, 1:].copy())


def build(backend: Backend = "auto", steps: int = 1500) -> Trained[Transformer, Batch, ...]:
    """The training handle."""
    schedule = lr.warmup(peak_lr=3e-3, warmup_steps=20, after=lr.cosine_decay(peak=3e-3, final=3e-4, steps=steps))
    optimizer = AdamW(schedule, weight_decay=0.01, clip_grad_norm=1.0)
    dims = {"B": BATCH, "T": CONTEXT}
    return compile_module(Transformer(), loss, optimizer=optimizer, dims=dims, seed=0, backend=backend)


def sample(infer: Inference[Transformer, Text, Any, np.float32], length: int, seed: int = 0) -> str:
    """Text drawn from the model, one character at a time."""
    rng = np.random.default_rng(seed)
    text = [CHARACTERS.index(c) for c in "def "]
    for _ in range(length):
        window = text[-CONTEXT:]
        padded = np.zeros((1, CONTEXT), np.int32)
        padded[0, : len(window)] = window
        scores = infer.run(tokens=padded).output[0, len(window) - 1].astype(np.float64) / 0.7
        p = np.exp(scores - scores.max())
        text.append(int(rng.choice(VOCAB, p=p / p.sum())))
    return "".join(CHARACTERS[i] for i in text)


def draw_attention(path: Path, weights: NDArray[np.float32], text: str) -> None:
    """Save the attention of one layer, one picture per head."""
    importlib.import_module("matplotlib").use("Agg")
    plt: Any = importlib.import_module("matplotlib.pyplot")
    shown = 24  # more characters than this cannot be read
    weights, text = weights[:, :shown, :shown], text[:shown]
    heads = weights.shape[0]
    figure, axes = plt.subplots(1, heads, figsize=(3.2 * heads, 3.6))
    for h, cell in enumerate(axes):
        cell.imshow(weights[h], cmap="magma")
        cell.set_title(f"head {h}", fontsize=9)
        cell.set_xticks(range(len(text)), list(text), fontsize=6)
        cell.set_yticks(range(len(text)), list(text), fontsize=6)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main(*, short: bool = False, backend: Backend = "auto", picture: Path | None = None) -> float:
    """Train, draw the attention, write a sample, and return the last losses' mean."""
    steps = 60 if short else 1500
    train = build(backend, steps)
    print(f"{train.model} on {train.device}: {len(train.param_names)} parameters, {train.kernel_count} kernels a step")
    losses: list[float] = []
    for result in train.steps(batches(steps), read_every=10):
        losses.append(result.loss)
        if result.step % (20 if short else 100) == 0:
            print(f"step {result.step:5}  loss {result.loss:.3f}")
    infer = train.compile_forward(next_scores)
    window = next(iter(batches(1, seed=1))).tokens.numpy()[:1]
    weights = infer.with_captures.run(tokens=window).captures["attention.0"]
    assert np.allclose(weights.sum(-1), 1.0, atol=1e-4), "attention does not sum to 1"
    if picture is not None:
        draw_attention(picture, weights[0], "".join(CHARACTERS[i] for i in window[0]).replace("\n", "|"))
        print(f"picture: {picture}")
    print(sample(infer, 20 if short else 400))
    final = float(np.mean(losses[-3:]))
    assert final < (3.4 if short else 2.0), f"the loss is still {final:.2f}"
    return final


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="stop early")
    parser.add_argument("--backend", default="auto", choices=["auto", "wgpu", "numpy"])
    parser.add_argument("--picture", type=Path, default=Path("out/attention.png"))
    args = parser.parse_args()
    main(short=args.short, backend=args.backend, picture=args.picture)
