"""Training steps of the NumPy backend beside PyTorch eager and JAX jit, all on the CPU.

    python -m benchmarks.cpu [--graphs mlp_sin,cnn] [--threads 2] [--rounds 15] [--seconds 0.2]

The peers that are installed take part. All run in one process, in turns, the loss is read
in every step, and medians over the rounds are printed with their ratios. Nothing is written.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

REST = 0.1
"""Seconds between turns: idle threads of BLAS and OpenMP spin for a while, on the next one's cores."""

GRAPHS = "mlp_sin,mlp_mnist,gpt_small,gpt_char,cnn"
Step = Callable[[], Any]


def limit_threads(threads: int) -> None:
    """Tell every library, before any of them is imported, how many threads it may use."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    os.environ["XLA_FLAGS"] = f"--xla_cpu_multi_thread_eigen={str(threads > 1).lower()}"
    os.environ["JAX_PLATFORMS"] = "cpu"


def steps_of(name: str, threads: int) -> dict[str, Step]:
    """A step of a reference graph in each framework that is installed; each reads its loss."""
    import numpy as np

    from benchmarks.graphs import references

    reference = references()[name]
    batch = reference.batch(np.random.default_rng(0))
    train = reference.compile("numpy")
    made: dict[str, Step] = {"tgdsl": lambda: float(train.step(**batch))}
    if find_spec("torch"):
        import torch

        from benchmarks.peers import torch_step

        torch.set_num_threads(threads)
        eager, _ = torch_step(reference, batch, "cpu")
        made["PyTorch"] = lambda: eager().item()
    if find_spec("jax"):
        from benchmarks.peers_jax import jax_step

        jitted, _ = jax_step(reference, batch, train.download_params(), gpu=False)
        made["JAX"] = lambda: float(jitted())
    return made


def milliseconds(step: Step, seconds: float) -> float:
    """The mean time of a step over about `seconds`, at least two of them, after one to warm up."""
    time.sleep(REST)
    step()
    start = time.perf_counter()
    n = 0
    while n < 2 or time.perf_counter() - start < seconds:
        step()
        n += 1
    return (time.perf_counter() - start) / n * 1e3


def measure(name: str, threads: int, rounds: int, seconds: float) -> dict[str, float]:
    """Median milliseconds per step of each framework, taken in turns."""
    steps = steps_of(name, threads)
    times: dict[str, list[float]] = {peer: [] for peer in steps}
    for _ in range(rounds):
        for peer, step in steps.items():
            times[peer].append(milliseconds(step, seconds))
    return {peer: statistics.median(t) for peer, t in times.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", default=GRAPHS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.2)
    args = parser.parse_args()
    limit_threads(args.threads)
    print("| graph | tgdsl, ms | PyTorch eager, ms | ratio | JAX jit, ms | ratio |")
    print("|---|---|---|---|---|---|")
    for name in args.graphs.split(","):
        took = measure(name, args.threads, args.rounds, args.seconds)
        cells = [f"{took['tgdsl']:.2f}"]
        for peer in ("PyTorch", "JAX"):
            cells += [f"{took[peer]:.2f}", f"{took[peer] / took['tgdsl']:.2f}x"] if peer in took else ["-", "-"]
        print(f"| `{name}` | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
