"""The reference graphs in JAX, one jitted function per training step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from benchmarks.graphs import Arrays, Reference

Params = dict[str, Any]
Loss = Callable[[Params, Arrays], Any]
B1, B2, EPS = 0.9, 0.999, 1e-8


def jax_step(reference: Reference, batch: Arrays) -> Callable[[], Any]:
    """A training step of the same graph on the same batch; returns the loss."""
    import jax
    import jax.numpy as jnp

    params, loss = _model(reference)
    optimizer = reference.optimizer
    decay = getattr(optimizer, "weight_decay", 0.0) or 0.0
    clip = getattr(optimizer, "clip_grad_norm", None)
    held = {k: jnp.asarray(v) for k, v in batch.items()}

    def one(state: Any) -> Any:
        p, m, v, t = state
        value, g = jax.value_and_grad(loss)(p, held)
        if clip is not None:
            norm = jnp.sqrt(sum(jnp.vdot(x, x) for x in g.values()))
            g = {k: x * jnp.minimum(1.0, clip / (norm + 1e-6)) for k, x in g.items()}
        m = {k: B1 * m[k] + (1 - B1) * g[k] for k in p}
        v = {k: B2 * v[k] + (1 - B2) * g[k] * g[k] for k in p}
        a, b = 1 - B1**t, 1 - B2**t
        p = {k: p[k] * (1 - 1e-3 * decay) - 1e-3 * (m[k] / a) / (jnp.sqrt(v[k] / b) + EPS) for k in p}
        return (p, m, v, t + 1.0), value

    jitted = jax.jit(one, donate_argnums=0)
    zeros = {k: jnp.zeros_like(x) for k, x in params.items()}
    state: Any = (params, zeros, {k: jnp.zeros_like(x) for k, x in params.items()}, jnp.float32(1.0))

    def step() -> Any:
        nonlocal state
        state, value = jitted(state)
        return value

    return step


def _model(reference: Reference) -> tuple[Params, Loss]:
    if reference.name.startswith("mlp"):
        return _mlp(reference)
    return _cnn() if reference.name == "cnn" else _gpt(reference.model)


def _normal(shapes: dict[str, tuple[int, ...]]) -> Params:
    """Weights by fan-in; gains are one, biases zero."""
    import jax
    import jax.numpy as jnp

    made: Params = {}
    for i, (name, shape) in enumerate(shapes.items()):
        if len(shape) == 1:
            made[name] = jnp.ones(shape) if name.endswith("g") else jnp.zeros(shape)
        else:
            fan = shape[0] if len(shape) == 2 else math.prod(shape[1:])
            made[name] = jax.random.normal(jax.random.key(i), shape) / math.sqrt(fan)
    return made


def _cross_entropy(logits: Any, targets: Any) -> Any:
    import jax
    import jax.numpy as jnp

    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), targets[:, None], 1))


def _mlp(reference: Reference) -> tuple[Params, Loss]:
    import jax
    import jax.numpy as jnp

    m = reference.model
    sizes = [m.din, m.hidden, m.hidden, m.dout]
    shapes: dict[str, tuple[int, ...]] = {}
    for i in range(3):
        shapes |= {f"w{i}": (sizes[i], sizes[i + 1]), f"b{i}": (sizes[i + 1],)}

    def loss(p: Params, b: Arrays) -> Any:
        h: Any = b["x"]
        for i in range(3):
            h = h @ p[f"w{i}"] + p[f"b{i}"]
            h = jax.nn.relu(h) if i < 2 else h
        return jnp.mean((h - b["y"]) ** 2) if reference.name == "mlp_sin" else _cross_entropy(h, b["y"])

    return _normal(shapes), loss


def _cnn() -> tuple[Params, Loss]:
    import jax
    from jax import lax

    shapes: dict[str, tuple[int, ...]] = {"w1": (16, 1, 3, 3), "b1": (16,), "w2": (32, 16, 3, 3), "b2": (32,)}
    shapes |= {"w3": (32 * 49, 10), "b3": (10,)}

    def layer(x: Any, w: Any, b: Any) -> Any:
        x = jax.nn.relu(lax.conv(x, w, (1, 1), "SAME") + b[:, None, None])
        return lax.reduce_window(x, -math.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")

    def loss(p: Params, b: Arrays) -> Any:
        x = layer(layer(b["x"], p["w1"], p["b1"]), p["w2"], p["b2"])
        return _cross_entropy(x.reshape(x.shape[0], -1) @ p["w3"] + p["b3"], b["y"])

    return _normal(shapes), loss


def _gpt(m: Any) -> tuple[Params, Loss]:
    import jax
    import jax.numpy as jnp

    d = m.dim
    shapes: dict[str, tuple[int, ...]] = {"tok": (m.vocab, d), "pos": (m.context, d), "ln.g": (d,), "ln.b": (d,)}
    for i in range(m.depth):
        shapes |= {f"{i}.{n}.{part}": (d,) for n in ("ln1", "ln2") for part in "gb"}
        shapes |= {f"{i}.{n}": (d, d) for n in "qkvo"}
        shapes |= {f"{i}.o.b": (d,), f"{i}.up": (d, 4 * d), f"{i}.up.b": (4 * d,)}
        shapes |= {f"{i}.down": (4 * d, d), f"{i}.down.b": (d,)}
    shapes["head"] = (d, m.vocab)

    def norm(p: Params, name: str, x: Any) -> Any:
        x = x - x.mean(-1, keepdims=True)
        return x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * p[f"{name}.g"] + p[f"{name}.b"]

    def block(p: Params, i: int, x: Any) -> Any:
        b, t, _ = x.shape
        h = norm(p, f"{i}.ln1", x)
        q, k, v = ((h @ p[f"{i}.{n}"]).reshape(b, t, m.heads, -1).transpose(0, 2, 1, 3) for n in "qkv")
        scores = q @ k.swapaxes(-1, -2) / math.sqrt(d // m.heads)
        weights = jax.nn.softmax(jnp.where(jnp.tri(t, dtype=bool), scores, -jnp.inf))
        x = x + (weights @ v).transpose(0, 2, 1, 3).reshape(b, t, d) @ p[f"{i}.o"] + p[f"{i}.o.b"]
        h = jax.nn.gelu(norm(p, f"{i}.ln2", x) @ p[f"{i}.up"] + p[f"{i}.up.b"], approximate=False)
        return x + h @ p[f"{i}.down"] + p[f"{i}.down.b"]

    def loss(p: Params, b: Arrays) -> Any:
        x = p["tok"][b["tokens"]] + p["pos"][: b["tokens"].shape[1]]
        for i in range(m.depth):
            x = block(p, i, x)
        logits = norm(p, "ln", x) @ p["head"]
        return _cross_entropy(logits.reshape(-1, logits.shape[-1]), b["targets"].reshape(-1))

    return _normal(shapes), loss
