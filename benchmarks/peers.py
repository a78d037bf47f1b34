"""The reference graphs in PyTorch, written as its users write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.graphs import Arrays, Reference


def torch_step(reference: Reference, batch: Arrays, device: str) -> tuple[Callable[[], Any], Callable[[], None]]:
    """A training step of the same graph on the same batch, and what waits for the device.

    fp32 without TF32; fused AdamW on CUDA.
    """
    values = _on(batch, device)
    train, wait = _training(reference, device)
    return lambda: train(values), wait


def torch_epoch(reference: Reference, data: Arrays, batch: int, device: str) -> Callable[[int], None]:
    """So many epochs of the same graph, with the data on the device and indexed there in a shuffled order."""
    import torch

    values = _on(data, device)
    size = len(next(iter(data.values())))
    train, wait = _training(reference, device)

    def run(epochs: int) -> None:
        for _ in range(epochs):
            for rows in torch.randperm(size, device=device)[: size // batch * batch].split(batch):
                train({k: v[rows] for k, v in values.items()})
        wait()

    return run


def _on(arrays: Arrays, device: str) -> dict[str, Any]:
    import torch

    made = {k: torch.from_numpy(v).to(device) for k, v in arrays.items()}
    return {k: v.long() if arrays[k].dtype.kind == "i" else v for k, v in made.items()}


def _training(reference: Reference, device: str) -> tuple[Callable[[dict[str, Any]], Any], Callable[[], None]]:
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    model, loss = _model(reference)
    model.to(device)
    kind = torch.optim.AdamW if reference.name.startswith("gpt") else torch.optim.Adam
    optimizer = kind(model.parameters(), lr=1e-3, fused=device == "cuda")
    clip = getattr(reference.optimizer, "clip_grad_norm", None)

    def train(values: dict[str, Any]) -> Any:
        optimizer.zero_grad(set_to_none=True)
        out = loss(model, values)
        out.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        return out

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    return train, wait


def _model(reference: Reference) -> tuple[Any, Any]:
    import torch
    from torch import nn
    from torch.nn import functional

    m = reference.model
    if reference.name.startswith("mlp"):
        net = nn.Sequential(
            nn.Linear(m.din, m.hidden), nn.ReLU(), nn.Linear(m.hidden, m.hidden), nn.ReLU(), nn.Linear(m.hidden, m.dout)
        )
        if reference.name == "mlp_sin":
            return net, lambda f, b: functional.mse_loss(f(b["x"]), b["y"])
        return net, lambda f, b: functional.cross_entropy(f(b["x"]), b["y"])
    if reference.name == "cnn":
        net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 49, 10),
        )
        return net, lambda f, b: functional.cross_entropy(f(b["x"]), b["y"])

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            d = m.dim
            self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
            self.q, self.k, self.v = (nn.Linear(d, d, bias=False) for _ in range(3))
            self.o, self.up, self.down = nn.Linear(d, d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

        def forward(self, x: Any) -> Any:
            b, t, d = x.shape
            h = self.ln1(x)
            q, k, v = (f(h).view(b, t, m.heads, d // m.heads).transpose(1, 2) for f in (self.q, self.k, self.v))
            a = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.o(a.transpose(1, 2).reshape(b, t, d))
            return x + self.down(functional.gelu(self.up(self.ln2(x))))

    class GPT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tok, self.pos = nn.Embedding(m.vocab, m.dim), nn.Embedding(m.context, m.dim)
            self.blocks = nn.ModuleList(Block() for _ in range(m.depth))
            self.ln, self.head = nn.LayerNorm(m.dim), nn.Linear(m.dim, m.vocab, bias=False)

        def forward(self, tokens: Any) -> Any:
            x = self.tok(tokens) + self.pos(torch.arange(tokens.shape[1], device=tokens.device))
            for block in self.blocks:
                x = block(x)
            return self.head(self.ln(x))

    return GPT(), lambda f, b: functional.cross_entropy(f(b["tokens"]).flatten(0, 1), b["targets"].flatten())
