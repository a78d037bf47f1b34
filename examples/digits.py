"""Classify handwritten digits (scikit-learn's bundled set) with an MLP: the demo of the README."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from tgdsl import (
    F32,
    I32,
    AdamW,
    Arg,
    IntTensor,
    Linear,
    StepResult,
    Tensor,
    Trained,
    arg,
    compile_module,
    f32,
    forward,
    i32,
    init,
    inputs,
    lr,
    minibatches,
    module,
)
from tgdsl.ops import argmax, cross_entropy, relu
from tgdsl.pipeline import Backend

BATCH = 64
STEPS_PER_EPOCH = 22  # of 1437 images


@module
class MLP:
    """Two hidden layers of relu."""

    hidden: Arg[int] = arg(default=128)
    l1: Linear = Linear(64, hidden, initial=init.Kaiming())
    l2: Linear = Linear(hidden, hidden, initial=init.Kaiming())
    l3: Linear = Linear(hidden, 10)

    def __call__(self, x: Tensor) -> Tensor:
        """`[B, 64] -> [B, 10]`."""
        return self.l3(relu(self.l2(relu(self.l1(x)))))


@inputs
class Images:
    """Flat images of 8 x 8 pixels in [0, 1]."""

    x: F32 = f32("B", 64)


@inputs
class Labeled:
    """Images with their digits."""

    x: F32 = f32("B", 64)
    y: I32 = i32("B", below=10)


@forward(inputs=Labeled)
def loss(m: MLP, b: Labeled) -> Tensor:
    """Mean cross-entropy."""
    return cross_entropy(m(b.x), b.y)


@forward(inputs=Images)
def classify(m: MLP, b: Images) -> IntTensor:
    """The most likely digit."""
    return argmax(m(b.x))


@attrs.frozen
class Split:
    """The data set, shuffled once: what is trained on and what is held out."""

    train: Labeled
    x: NDArray[np.float32]
    y: NDArray[np.int32]


def data() -> Split:
    """scikit-learn's digits: 1437 to train on, 360 held out."""
    found: Any = importlib.import_module("sklearn.datasets").load_digits()  # untyped: Any keeps checkers from guessing
    x: NDArray[np.float32] = (found.data / 16.0).astype(np.float32)
    y: NDArray[np.int32] = found.target.astype(np.int32)
    order = np.random.default_rng(0).permutation(len(x))
    train, held = order[360:], order[:360]
    return Split(Labeled(x=x[train], y=y[train]), x[held], y[held])


def batches(steps: int) -> Iterator[Labeled]:
    """The batches of `fit`, for those who go step by step: shuffled, epoch after epoch."""
    loader = minibatches(data().train, BATCH, seed=0)
    done = 0
    while done < steps:
        for batch in loader:
            yield batch
            done += 1
            if done == steps:
                return


def build(backend: Backend = "auto", steps: int = 880) -> Trained[MLP, Labeled, ...]:
    """The training handle."""
    schedule = lr.cosine_decay(peak=3e-3, final=1e-4, steps=steps)
    return compile_module(
        MLP(), loss, optimizer=AdamW(schedule, weight_decay=0.05), dims={"B": BATCH}, seed=0, backend=backend
    )


@attrs.frozen
class Result:
    """What the demo reports."""

    loss: float
    accuracy: float
    curve: list[float]


def main(*, short: bool = False, backend: Backend = "auto", picture: Path | None = None) -> Result:
    """Train with a live display, and return loss and held-out accuracy."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console()
    steps = 220 if short else 880
    split = data()
    train = build(backend, steps)
    infer = train.compile_forward(classify)
    console.print(f"[bold]{train.model}[/bold] on {train.device}")
    curve: list[float] = []
    columns = (
        TextColumn("step {task.completed:>4.0f}/{task.total:.0f}"),
        BarColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        bar = progress.add_task("loss ...", total=steps)

        def show(result: StepResult) -> None:
            curve.append(result.loss)
            progress.update(bar, completed=result.step, description=f"loss {result.loss:.4f}")

        train.fit(split.train, epochs=steps // STEPS_PER_EPOCH, read_every=10, callback=show)
    predicted = infer.run(x=split.x).output
    accuracy = float(np.mean(np.equal(predicted, split.y)))
    final = train.evaluate([Labeled(x=split.train.x.numpy()[:BATCH], y=split.train.y.numpy()[:BATCH])])
    console.print(f"training loss {final:.4f}, held-out accuracy [bold]{accuracy:.1%}[/bold] on {len(split.y)} digits")
    if picture is not None:
        draw(picture, curve, split, predicted)
        console.print(f"picture: {picture}")
    assert accuracy >= (0.9 if short else 0.97), f"held-out accuracy {accuracy:.1%}"
    return Result(final, accuracy, curve)


def draw(path: Path, curve: list[float], split: Split, predicted: NDArray[np.int32]) -> None:
    """Save the learning curve and some predictions; mistakes are red."""
    importlib.import_module("matplotlib").use("Agg")
    plt: Any = importlib.import_module("matplotlib.pyplot")
    figure = plt.figure(figsize=(9, 4))
    axes = figure.add_axes((0.08, 0.14, 0.42, 0.78))
    axes.plot(10 * np.arange(1, len(curve) + 1), curve)
    axes.set(yscale="log", xlabel="step", ylabel="training loss", title="learning curve")
    wrong = np.flatnonzero(predicted != split.y)[:8]
    shown = np.concatenate([wrong, np.flatnonzero(predicted == split.y)[: 24 - len(wrong)]])
    for place, i in enumerate(shown):
        row, column = divmod(place, 6)
        cell = figure.add_axes((0.54 + 0.076 * column, 0.72 - 0.23 * row, 0.066, 0.15))
        cell.imshow(split.x[i].reshape(8, 8), cmap="gray_r")
        cell.set_title(str(predicted[i]), fontsize=9, color="red" if predicted[i] != split.y[i] else "black", pad=2)
        cell.axis("off")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="stop early")
    parser.add_argument("--backend", default="auto", choices=["auto", "wgpu", "numpy"])
    parser.add_argument("--picture", type=Path, default=Path("out/digits.png"))
    args = parser.parse_args()
    main(short=args.short, backend=args.backend, picture=args.picture)
