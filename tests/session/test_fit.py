"""`fit`: the batches of `minibatches` and the training of `steps`, from a data set that was uploaded once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tgdsl.ops as ops
from tests.helpers import spied
from tests.session.models import MLP, Batch, Line, Point, batch, mlp_loss
from tgdsl import (
    F32,
    I32,
    SGD,
    Adam,
    Arg,
    FitResult,
    Linear,
    StepResult,
    Tensor,
    arg,
    compile_module,
    f32,
    forward,
    i32,
    inputs,
    minibatches,
    module,
    param,
)
from tgdsl.errors import HandleError, InputError, NonFiniteError, OptionError
from tgdsl.pipeline import Backend
from tgdsl.session import fit as fit_module

Arrays = dict[str, np.ndarray]


def trained(backend: Backend, **options: Any) -> Any:
    return compile_module(MLP(), mlp_loss, backend=backend, **{"optimizer": Adam(0.01), "seed": 1, **options})


def data(size: int = 100) -> Batch:
    return Batch(**batch(0, size))


def equal(a: Arrays, b: Arrays) -> bool:
    return list(a) == list(b) and all(np.array_equal(a[n], b[n]) for n in a)


def by_steps(train: Any, values: Any, batch: int, epochs: int, **options: Any) -> np.ndarray:
    """The losses of the same training with `minibatches` and `steps`."""
    split = minibatches(values, batch, **options)
    results = [r for _ in range(epochs) for r in train.steps(split)]
    return np.array([r.loss for r in results], np.float32)


@module
class Reader:
    """Ids, pictures, a mask for all batches, and a random op."""

    dim: Arg[int] = arg(default=4)
    table: Tensor = param(7, dim)
    out: Linear = Linear(dim, 3)


@inputs
class Pages:
    tokens: I32 = i32("N", "T", below=7)
    image: F32 = f32("N", 2, 3)
    label: I32 = i32("N", below=3)
    scale: F32 = f32("T")


@forward(inputs=Pages)
def read_loss(m: Reader, b: Pages) -> Tensor:
    h = ops.sum(ops.embedding(m.table, b.tokens) * b.scale[:, None], 1)
    h = ops.dropout(h, 0.25) + ops.sum(b.image, (1, 2))[:, None]
    return ops.cross_entropy(m.out(h), b.label)


def pages(size: int) -> Pages:
    rng = np.random.default_rng(2)
    return Pages(
        tokens=rng.integers(0, 7, (size, 5), dtype=np.int32),
        image=rng.normal(size=(size, 2, 3)).astype(np.float32),
        label=rng.integers(0, 3, size, dtype=np.int32),
        scale=rng.normal(size=5).astype(np.float32),
    )


@pytest.mark.parametrize(
    ("options", "epochs"), [({}, 3), ({"seed": 9}, 2), ({"shuffle": False}, 2), ({"drop_last": False}, 3)]
)
def test_training_equals_steps_over_minibatches_to_the_bit(
    engine_name: Backend, options: dict[str, Any], epochs: int
) -> None:
    for model, loss, values in ((MLP(), mlp_loss, data(101)), (Reader(), read_loss, pages(33))):
        made = [compile_module(model, loss, optimizer=Adam(0.01), seed=1, backend=engine_name) for _ in range(2)]
        result = made[0].fit(values, epochs=epochs, batch=8, **options)
        assert np.array_equal(result.losses, by_steps(made[1], values, 8, epochs, **options))
        assert equal(made[0].download_params(), made[1].download_params())
        assert made[0].steps_done == made[1].steps_done == len(result.losses)
        for train in made:
            train.destroy()


def test_the_batch_may_be_bound_and_the_optimizer_absent(engine_name: Backend) -> None:
    train = trained(engine_name, dims={"B": 16}, optimizer=None)
    before = train.download_params()
    result = train.fit(data(), seed=3)
    assert np.array_equal(result.losses, by_steps(train, data(), 16, 1, seed=3))
    assert equal(train.download_params(), before)
    assert np.array_equal(train.fit(data(), batch=16, seed=3).losses, result.losses)


def test_the_result_has_every_loss_and_means_by_rows(engine_name: Backend) -> None:
    train = trained(engine_name)
    result = train.fit(data(10), epochs=2, batch=4, drop_last=False)
    assert isinstance(result, FitResult)
    assert result.losses.shape == (6,)
    assert result.losses.dtype == np.float32
    wanted = [np.average(result.losses[i : i + 3].astype(np.float64), weights=[4, 4, 2]) for i in (0, 3)]
    assert result.epoch_losses == tuple(wanted)
    assert result.loss == wanted[1]
    assert repr(result) == f"FitResult(epochs=2, steps=6, loss={wanted[1]})"


def test_losses_are_gathered_while_training_goes_on(engine_name: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit_module, "BEHIND", 20)
    first, second = trained(engine_name), trained(engine_name)
    result = first.fit(data(), epochs=9, batch=10)
    assert np.array_equal(result.losses, by_steps(second, data(), 10, 9))


def test_short_epochs_share_submissions(engine_name: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    train = trained(engine_name)
    sizes: list[int] = []
    launch = train._launch
    monkeypatch.setattr(train, "_launch", spied(launch, lambda *args: sizes.append(len(args[1]))))
    train.fit(data(10), epochs=10, batch=3)
    assert sizes == [16, 14]


def test_the_callback_comes_between_the_steps(engine_name: Backend) -> None:
    train = trained(engine_name)
    train.step(**batch(0))
    seen: list[tuple[int, float, int]] = []

    def callback(result: StepResult) -> None:
        seen.append((result.step, result.loss, train.steps_done))
        if result.step == 12:
            train.set_lr(0.0)

    result = train.fit(data(), epochs=2, batch=10, read_every=6, callback=callback)
    assert [(step, done) for step, _, done in seen] == [(6, 6), (12, 12), (18, 18)]
    assert [loss for _, loss, _ in seen] == [float(result.losses[i - 2]) for i in (6, 12, 18)]
    frozen = train.download_params()
    train.fit(data(), batch=10)
    assert equal(train.download_params(), frozen), "the learning rate was set to zero by then"


def test_by_default_the_callback_ends_epochs_and_it_may_end_the_training(engine_name: Backend) -> None:
    train = trained(engine_name)
    ends: list[int] = []
    held = data(30)

    def callback(result: StepResult) -> bool:
        ends.append(result.step)
        return train.evaluate([held]) < 100.0 and len(ends) == 2

    result = train.fit(data(50), epochs=5, batch=20, drop_last=False, callback=callback)
    assert ends == [3, 6]
    assert (len(result.losses), len(result.epoch_losses), train.steps_done) == (6, 2, 6)
    stopped = train.fit(data(50), batch=10, read_every=4, callback=lambda r: True)
    assert len(stopped.losses) == 2, "step 8 is the first that is a multiple of 4"
    assert stopped.loss == pytest.approx(float(np.mean(stopped.losses)))


@pytest.fixture
def kept(engine_name: Backend, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The data sets that were uploaded; all of them must have been freed in the end."""
    made: list[Any] = []
    engine = type(trained(engine_name)._weights.engine)
    keep = engine.keep

    def kept(*args: Any) -> Any:
        made.append(keep(*args))
        return made[-1]

    monkeypatch.setattr(engine, "keep", kept)
    yield made
    for dataset in made:
        with pytest.raises(HandleError, match="the data set was freed"):
            dataset.require_alive()


def test_an_error_of_the_callback_leaves_the_steps_before_it(engine_name: Backend, kept: list[Any]) -> None:
    train, other = trained(engine_name), trained(engine_name)

    def callback(result: StepResult) -> None:
        raise KeyError(result.step)

    with pytest.raises(KeyError, match="7"):
        train.fit(data(), batch=10, read_every=7, callback=callback)
    assert train.steps_done == 7
    assert len(kept) == 1
    other.fit(data(), batch=10, read_every=7, callback=lambda r: True)
    assert equal(train.download_params(), other.download_params())


def test_changing_the_arrays_meanwhile_changes_nothing(engine_name: Backend, kept: list[Any]) -> None:
    train, other = trained(engine_name), trained(engine_name)
    arrays = batch(0, 100)

    def callback(result: StepResult) -> None:
        arrays["x"][:] = np.nan

    result = train.fit(Batch(**arrays), epochs=2, batch=10, callback=callback)
    assert np.array_equal(result.losses, other.fit(data(), epochs=2, batch=10).losses)


def test_a_step_that_is_not_finite_ends_the_fit(engine_name: Backend, kept: list[Any]) -> None:
    train, other = (trained(engine_name, check_finite=True) for _ in range(2))
    arrays = batch(0, 40)
    arrays["x"][25] = np.inf
    with pytest.raises(NonFiniteError, match="step 6: a gradient or the loss is not finite"):
        train.fit(Batch(**arrays), epochs=100, batch=5, shuffle=False)
    with pytest.raises(NonFiniteError, match="step 6"):
        train.fit(data(), batch=5)
    other.fit(Batch(x=arrays["x"][:25], y=arrays["y"][:25]), batch=5, shuffle=False)
    assert equal(train.download_params(), other.download_params()), "those before the bad step"
    assert len(kept) == 2, "nothing is uploaded for a handle that refuses"
    train.reset()
    assert np.isfinite(train.fit(data(), batch=5).loss)


@inputs
class Square:
    x: F32 = f32("B", "B")


@inputs
class Fixed:
    x: F32 = f32(8, 3)


@forward(inputs=Square)
def square_loss(m: Line, b: Square) -> Tensor:
    return ops.sum(b.x) * ops.sum(m.w) * ops.sum(m.b)


@forward(inputs=Fixed)
def fixed_loss(m: Line, b: Fixed) -> Tensor:
    return ops.mean(m(b.x))


@pytest.mark.parametrize(
    ("dims", "values", "options", "error", "text"),
    [
        (None, lambda: data(), {}, OptionError, r"fit: batch is missing, and dim 'B' of Batch was not bound\n  hint"),
        (None, lambda: data(), {"batch": 0}, OptionError, "fit: batch must be an int >= 1, got 0"),
        (None, lambda: data(), {"batch": 5, "epochs": 0}, OptionError, "fit: epochs must be an int >= 1, got 0"),
        (None, lambda: data(), {"batch": 5, "seed": -1}, OptionError, "fit: seed must be an int >= 0, got -1"),
        (None, lambda: data(), {"batch": 5, "read_every": 3}, OptionError, "there is no callback"),
        (
            None,
            lambda: data(),
            {"batch": 5, "read_every": 0, "callback": print},
            OptionError,
            "fit: read_every must be an int >= 1, got 0",
        ),
        (
            None,
            lambda: data(7),
            {"batch": 8},
            OptionError,
            r"fit: batch 8 is larger than the data \(7\)\n  hint: pass drop_last=False",
        ),
        (8, lambda: data(7), {}, OptionError, r"fit: batch 8 is larger than the data \(7\)$"),
        (8, lambda: data(), {"batch": 9}, OptionError, "fit: batch is 9, but dim 'B' of Batch was compiled as 8"),
        (
            8,
            lambda: data(),
            {"drop_last": False},
            OptionError,
            "fit: the last batch has 4 rows, but dim 'B' of Batch was compiled as 8",
        ),
        (None, lambda: Point(x=batch(0)["x"]), {"batch": 4}, InputError, "fit: expected a Batch value, got Point$"),
        (
            None,
            lambda: batch(0),
            {"batch": 4},
            InputError,
            r"fit: expected a Batch value, got dict\n  hint: Batch\(\*\*arrays\) checks the arrays and holds them",
        ),
    ],
)
def test_what_cannot_be_trained_on_is_refused_before_the_upload(
    engine_name: Backend, kept: list[Any], dims: int | None, values: Any, options: Any, error: Any, text: str
) -> None:
    train = trained(engine_name, dims=None if dims is None else {"B": dims})
    before = train.download_params()
    with pytest.raises(error, match=text):
        train.fit(values(), **options)
    assert kept == []
    assert train.steps_done == 0
    assert equal(train.download_params(), before)


def test_arrays_that_disagree_are_refused_where_the_data_set_is_made() -> None:
    arrays = batch(0, 10)
    with pytest.raises(InputError, match="Batch: dim 'B' is 10 in x axis 0 and 9 in y axis 0"):
        Batch(x=arrays["x"], y=arrays["y"][:9])


def test_inputs_without_rows_are_refused(engine_name: Backend, kept: list[Any]) -> None:
    square = compile_module(Line(), square_loss, optimizer=SGD(0.1), backend=engine_name)
    with pytest.raises(InputError, match=r"fit: Square.x, declared as f32\('B', 'B'\), has dim 'B' beyond axis 0"):
        square.fit(Square(x=np.ones((9, 9), np.float32)), batch=3)
    fixed = compile_module(Line(), fixed_loss, optimizer=SGD(0.1), backend=engine_name)
    with pytest.raises(InputError, match="fit: the first input of Fixed does not begin with a named dim"):
        fixed.fit(Fixed(x=np.ones((8, 3), np.float32)), batch=8)
    other = compile_module(Reader(), read_loss, optimizer=None, dims={"T": 6}, backend=engine_name)
    with pytest.raises(InputError, match="Pages: dim 'T' was compiled as 6, this batch has 5"):
        other.fit(pages(20), batch=4)
    assert kept == []


def test_a_destroyed_handle_refuses(engine_name: Backend, kept: list[Any]) -> None:
    train = trained(engine_name)
    with pytest.raises(HandleError):
        train.fit(data(), epochs=2, batch=10, callback=lambda r: train.destroy())
    assert len(kept) == 1
    with pytest.raises(HandleError):
        train.fit(data(), batch=10)
    assert len(kept) == 1


def test_the_model_may_be_replaced_in_between(engine_name: Backend) -> None:
    train = trained(engine_name)
    wider = MLP(hidden=9)

    def callback(result: StepResult) -> None:
        if result.step == 10 and train.model.hidden != 9:
            train.replace_model(wider, seed=4)

    result = train.fit(data(), epochs=2, batch=10, callback=callback)
    fresh = compile_module(wider, mlp_loss, optimizer=Adam(0.01), seed=4, backend=engine_name)
    split = minibatches(data(), 10)
    list(split)  # the first epoch is over
    assert result.losses[10:].tolist() == [r.loss for r in fresh.steps(split)]
    assert train.steps_done == 10


def test_fits_of_several_threads_interleave(engine_name: Backend, kept: list[Any]) -> None:
    train = trained(engine_name)
    found: list[FitResult] = []
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            found.append(train.fit(data(), epochs=4, batch=10, seed=seed))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for t in threads:
        t.start()
    train.step(**batch(1))
    for t in threads:
        t.join()
    assert not errors
    assert train.steps_done == 121
    assert [len(r.losses) for r in found] == [40] * 3
    assert train.evaluate([data()]) < 0.5 * max(r.losses[0] for r in found)
    assert len(kept) == 3


@pytest.mark.gpu
def test_a_step_uploads_no_more_than_its_row_numbers(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    train = trained("wgpu", dims={"B": 20})
    train.fit(data(), epochs=4)
    written: list[int] = []
    write = engine.device.write
    monkeypatch.setattr(engine.device, "write", spied(write, lambda b, at, x: written.append(x.nbytes)))
    train.fit(data(), epochs=80)
    scalars = 4 * len(train._programs.current("").variant("step", train._weights).program.scalars)
    whole = 100 * 4 * 4
    assert sum(written) == whole + 400 * (20 * 4 + scalars)
    assert scalars <= 32
