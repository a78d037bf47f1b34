"""Record what PyTorch's optimizers do: `python record_torch.py > torch_values.json`.

PyTorch is no dependency; run this where it is installed when a case is added.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

CASES: dict[str, tuple[str, dict[str, Any], float | None]] = {
    "adam": ("Adam", {"lr": 0.01}, None),
    "adam_l2": ("Adam", {"lr": 0.01, "weight_decay": 0.1, "betas": (0.8, 0.9), "eps": 1e-3}, None),
    "adamw": ("AdamW", {"lr": 0.01, "weight_decay": 0.1}, None),
    "adamw_clipped": ("AdamW", {"lr": 0.01, "weight_decay": 0.1}, 0.5),
    "sgd": ("SGD", {"lr": 0.1}, None),
    "sgd_momentum": ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05}, None),
    "sgd_nesterov": ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}, 1.0),
}
STEPS = 5


def start_and_gradients() -> tuple[list[float], list[list[float]]]:
    """Numbers of different sizes, the same wherever this is run."""
    start = [((7 * i) % 11 - 5) / 4 for i in range(6)]
    grads = [[((5 * i + 3 * t) % 13 - 6) * 10.0 ** ((i % 3) - 2) for i in range(6)] for t in range(STEPS)]
    return start, grads


def schedules(torch: Any) -> dict[str, list[float]]:
    """The learning rate of each of 12 steps under PyTorch's schedulers."""
    kinds = torch.optim.lr_scheduler
    made: dict[str, Callable[[Any], Any]] = {
        "linear": lambda o: kinds.LinearLR(o, start_factor=1.0, end_factor=0.1, total_iters=8),
        "cosine_annealing": lambda o: kinds.CosineAnnealingLR(o, T_max=11, eta_min=0.05),
        "staircase": lambda o: kinds.StepLR(o, step_size=3, gamma=0.5),
        "multi_step": lambda o: kinds.MultiStepLR(o, milestones=[2, 7], gamma=0.1),
    }
    out: dict[str, list[float]] = {}
    for name, make in made.items():
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
        schedule = make(optimizer)
        out[name] = []
        for _ in range(12):
            out[name].append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
    return out


def main() -> None:
    """Print the parameters after each step of each case."""
    import torch

    out: dict[str, Any] = {}
    for name, (cls, options, clip) in CASES.items():
        start, grads = start_and_gradients()
        p = torch.tensor(start, dtype=torch.float64, requires_grad=True)
        optimizer = getattr(torch.optim, cls)([p], **options)
        rows = []
        for g in grads:
            p.grad = torch.tensor(g, dtype=torch.float64)
            if clip is not None:
                torch.nn.utils.clip_grad_norm_([p], clip)
            optimizer.step()
            rows.append(p.detach().tolist())
        out[name] = rows
    out["schedules"] = schedules(torch)
    json.dump(out, sys.stdout)


if __name__ == "__main__":
    main()
