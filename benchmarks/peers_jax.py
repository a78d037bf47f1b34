"""The reference graphs in plain JAX: functions of a dict of weights, one jitted training step.

The weights have the names and shapes that tgdsl gives them, so both can start from the same ones.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.graphs import Arrays, Reference

Weights = Mapping[str, Any]
Loss = Callable[[Weights, Any], Any]


def available() -> bool:
    """Whether JAX is installed."""
    return importlib.util.find_spec("jax") is not None


def jax_facts() -> str:
    """Which JAX."""
    import jax

    return f"JAX {jax.__version__} on {jax.default_backend()}, fp32"


def jax_step(
    reference: Reference, batch: Arrays, weights: Arrays, *, gpu: bool
) -> tuple[Callable[[], Any], Callable[[], None]]:
    """A training step from these weights on this batch, and what waits for it.

    Weights and moments are donated; matrix products are fp32, which is not JAX's default on a GPU.
    """
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    jax.config.update("jax_default_matmul_precision", "highest")
    device = (jax.devices() if gpu else jax.devices("cpu"))[0]
    start = {name: jax.device_put(w, device) for name, w in weights.items()}
    held = {name: jax.device_put(a, device) for name, a in batch.items()}
    zeros = [{name: jax.numpy.zeros_like(w) for name, w in start.items()} for _ in range(2)]
    state = [start, zeros[0], zeros[1], jax.device_put(0, device)]
    train = jax.jit(_training(_loss(reference), reference.optimizer), donate_argnums=(0,))

    def step() -> Any:
        state[:], loss = train(state, held)
        return loss

    return step, lambda: jax.block_until_ready(state)


def _training(loss: Loss, optimizer: Any) -> Callable[[Any, Any], tuple[Any, Any]]:
    import jax
    from jax import numpy as jnp

    b1, b2, clip = optimizer.b1, optimizer.b2, optimizer.clip_grad_norm

    def train(state: Any, batch: Any) -> tuple[Any, Any]:
        weights, m, v, count = state
        value, grads = jax.value_and_grad(loss)(weights, batch)
        if clip is not None:
            norm = jnp.sqrt(sum(jnp.sum(g * g) for g in grads.values()))
            grads = {k: g * jnp.minimum(1.0, clip / (norm + 1e-6)) for k, g in grads.items()}
        t = count + 1
        m = {k: b1 * m[k] + (1 - b1) * g for k, g in grads.items()}
        v = {k: b2 * v[k] + (1 - b2) * g * g for k, g in grads.items()}
        new = {}
        for k, w in weights.items():
            move = m[k] / (1 - b1**t) / (jnp.sqrt(v[k] / (1 - b2**t)) + optimizer.eps)
            decay = optimizer.weight_decay if w.ndim > 1 else 0.0
            new[k] = w - optimizer.lr * (move + decay * w)
        return [new, m, v, t], value

    return train


def _loss(reference: Reference) -> Loss:
    if reference.name == "mlp_sin":
        return lambda w, b: ((_mlp(w, b["x"]) - b["y"]) ** 2).mean()
    if reference.name == "mlp_mnist":
        return lambda w, b: _cross_entropy(_mlp(w, b["x"]), b["y"])
    if reference.name == "cnn":
        return lambda w, b: _cross_entropy(_cnn(w, b["x"]), b["y"])
    model = reference.model
    return lambda w, b: _cross_entropy(_gpt(w, b["tokens"], model.heads, model.depth), b["targets"])


def _cross_entropy(logits: Any, targets: Any) -> Any:
    import jax
    from jax import numpy as jnp

    return -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1).mean()


def _linear(w: Weights, name: str, x: Any) -> Any:
    y = x @ w[f"{name}.w"]
    return y + w[f"{name}.b"] if f"{name}.b" in w else y


def _mlp(w: Weights, x: Any) -> Any:
    import jax

    return _linear(w, "l3", jax.nn.relu(_linear(w, "l2", jax.nn.relu(_linear(w, "l1", x)))))


def _cnn(w: Weights, x: Any) -> Any:
    import jax

    for name in ("conv1", "conv2"):
        x = jax.lax.conv_general_dilated(x, w[f"{name}.w"], (1, 1), "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW"))
        x = jax.nn.relu(x + w[f"{name}.b"])
        x = jax.lax.reduce_window(x, -float("inf"), jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    return _linear(w, "fc", x.reshape(x.shape[0], -1))


def _norm(w: Weights, name: str, x: Any) -> Any:
    from jax import numpy as jnp

    centred = x - x.mean(-1, keepdims=True)
    return centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * w[f"{name}.g"] + w[f"{name}.b"]


def _attention(w: Weights, name: str, x: Any, heads: int) -> Any:
    import jax
    from jax import numpy as jnp

    b, t, d = x.shape
    q, k, v = (_linear(w, f"{name}.{n}", x).reshape(b, t, heads, d // heads).swapaxes(1, 2) for n in "qkv")
    scores = q @ k.swapaxes(-1, -2) / (d // heads) ** 0.5
    seen = jnp.tril(jnp.ones((t, t), bool))
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf))
    return _linear(w, f"{name}.o", (weights @ v).swapaxes(1, 2).reshape(b, t, d))


def _gpt(w: Weights, tokens: Any, heads: int, depth: int) -> Any:
    import jax

    x = w["tok"][tokens] + w["pos"][: tokens.shape[1]]
    for i in range(depth):
        block = f"blocks.{i}"
        x = x + _attention(w, f"{block}.attn", _norm(w, f"{block}.ln1", x), heads)
        up = jax.nn.gelu(_linear(w, f"{block}.up", _norm(w, f"{block}.ln2", x)), approximate=False)
        x = x + _linear(w, f"{block}.down", up)
    return _linear(w, "head", _norm(w, "ln", x))
