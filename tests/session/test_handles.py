"""Handles: results, dims, captures, failures, and what stays unchanged."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tgdsl.ops as ops
from tests.session.models import MLP, Batch, Line, Point, batch, line, line_loss, mlp_loss, predict
from tgdsl import SGD, Adam, Tensor, compile_forward, compile_module, forward
from tgdsl.errors import (
    CaptureError,
    DimError,
    GradientError,
    HandleError,
    InputError,
    OptionError,
    ShapeError,
)
from tgdsl.pipeline import Backend


def trained(backend: Backend, **options: Any) -> Any:
    options = {"optimizer": Adam(0.01), "seed": 1, **options}
    return compile_module(MLP(), mlp_loss, backend=backend, **options)


def equal(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return list(a) == list(b) and all(np.array_equal(a[n], b[n]) for n in a)


def test_training_reduces_the_loss(engine_name: Backend) -> None:
    train = trained(engine_name)
    first = train.step(**batch(0, 64)).loss
    for i in range(300):
        result = train.step(**batch(i % 10, 64))
    assert result.step == 301
    assert result.loss < 0.05 * first


def test_a_result_can_be_awaited(engine_name: Backend) -> None:
    train = trained(engine_name)

    async def loop() -> list[float]:
        results = [train.step(**batch(i)) for i in range(3)]
        done = [await r for r in reversed(results)]
        assert done == results[::-1]
        assert results[0].done()
        return [float(r) for r in results]

    losses = asyncio.run(loop())
    again = trained(engine_name)
    assert losses == [again.step(**batch(i)).loss for i in range(3)]


def test_run_gives_the_loss_of_the_next_step_and_changes_nothing(engine_name: Backend) -> None:
    train = trained(engine_name)
    train.step(**batch(0))
    before = train.download_params()
    loss = train.run(**batch(1)).output
    assert loss.shape == ()
    assert equal(train.download_params(), before)
    assert train.steps_done == 1
    np.testing.assert_allclose(train.step(**batch(1)).loss, float(loss), rtol=1e-6)


def test_captures_are_read_only_where_they_are_asked_for(engine_name: Backend) -> None:
    train = compile_module(Line(), line_loss, optimizer=SGD(0.1), seed=0, backend=engine_name)
    plain = train.step(**batch(0)).captures
    assert (plain.names(), list(plain), len(plain), plain.has("line"), "line" in plain) == (
        ["line"],
        [],
        0,
        False,
        False,
    )
    assert plain.shape_of("line") == (8,)
    with pytest.raises(
        CaptureError,
        match=r"capture 'line' was not read by this call\n  hint: call handle.with_captures",
    ):
        plain["line"]
    read = train.with_captures.step(**batch(0)).captures
    assert (list(read), len(read), "line" in read, read["line"].shape) == (["line"], 1, True, (8,))
    with pytest.raises(CaptureError, match=r"^no capture 'lime'; there are: line$"):
        read.get("lime")
    want = train.compile_forward(line).run(x=batch(0)["x"]).output
    np.testing.assert_allclose(train.with_captures.run(**batch(0)).captures["line"], want, rtol=1e-6)


def test_a_forward_without_captures_has_empty_ones(engine_name: Backend) -> None:
    train = trained(engine_name)
    assert list(train.step(**batch(0)).captures) == list(train.with_captures.step(**batch(0)).captures) == []


def test_per_head_splits_a_capture() -> None:
    from tgdsl import Captures

    array = np.arange(24.0).reshape(1, 2, 3, 4)
    captures = Captures({"a": array.shape, "b": (2, 2)}, {"a": array, "b": np.zeros((2, 2))})
    assert [h.tolist() for h in captures.per_head("a")] == [
        array[0, 0].tolist(),
        array[0, 1].tolist(),
    ]
    with pytest.raises(CaptureError, match="per_head: capture 'b' has shape"):
        captures.per_head("b")


def test_unbound_dims_bind_at_the_call_and_eight_are_kept(
    engine_name: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    train = trained(engine_name)
    with pytest.raises(
        HandleError,
        match=r"kernel_count: dim 'B' of Batch not bound yet\n  hint: call compile\(B=...\)",
    ):
        train.kernel_count  # noqa: B018
    with pytest.raises(HandleError, match="ir: dim 'B'"):
        train.ir  # noqa: B018
    with caplog.at_level(logging.INFO, "tgdsl"):
        for size in [*range(1, 12), 3]:
            train.step(**batch(size, size))
    compiled = [r.message for r in caplog.records if "compiling" in r.message]
    assert compiled == [f"compiling mlp_loss for {{'B': {n}}}" for n in [*range(2, 12), 3]]
    assert len(train._programs._entries) == 8
    assert train.compile(B=4).kernel_count > 0
    assert train.ir.outputs[0].shape == ()
    other = trained(engine_name)
    for size in [*range(1, 12), 3]:
        loss = other.step(**batch(size, size)).loss
    assert np.isfinite(loss)
    assert equal(train.download_params(), other.download_params())


def test_bound_dims_are_enforced(engine_name: Backend) -> None:
    train = trained(engine_name, dims={"B": 8})
    assert train.kernel_count > 0
    assert train.bytes_moved > 0
    with pytest.raises(InputError, match="Batch: dim 'B' was compiled as 8, this batch has 3"):
        train.step(**batch(0, 3))
    with pytest.raises(DimError, match="Batch has no dim 'Q'; its dims are: B"):
        trained(engine_name, dims={"Q": 8})
    with pytest.raises(DimError, match="Batch: dim 'B' must be an int >= 1, got 0"):
        trained(engine_name, dims={"B": 0})


@forward(inputs=Batch)
def not_scalar(m: MLP, b: Batch) -> Tensor:
    return ops.square(m(b.x) - b.y)


@forward(inputs=Batch)
def without_model(m: MLP, b: Batch) -> Tensor:
    return ops.mean(b.x)


def test_a_loss_that_cannot_be_trained_is_refused_at_compile(engine_name: Backend) -> None:
    with pytest.raises(
        ShapeError,
        match=r"not_scalar must return a scalar loss, got \[B=4\]\n  hint: reduce it",
    ):
        compile_module(MLP(), not_scalar, optimizer=Adam(0.1), dims={"B": 4}, backend=engine_name)
    with pytest.raises(GradientError, match="without_model does not depend on any trainable parameter"):
        compile_module(MLP(), without_model, optimizer=Adam(0.1), dims={"B": 4}, backend=engine_name)


def test_a_call_that_fails_changes_nothing(engine_name: Backend) -> None:
    train, other = trained(engine_name), trained(engine_name)
    bad: dict[str, Any] = {**batch(0), "y": np.zeros(3, np.float32)}
    with pytest.raises(InputError, match="dim 'B' is 8 in x axis 0 and 3 in y axis 0"):
        train.step(**bad)
    assert train.steps_done == 0
    for handle in (train, other):
        handle.step(**batch(0))
    assert equal(train.download_params(), other.download_params())


def test_without_an_optimizer_a_step_only_computes_gradients(engine_name: Backend) -> None:
    train = trained(engine_name, optimizer=None)
    before = train.download_params()
    assert not any(g.any() for g in train.download_param_grads().values())
    train.step(**batch(0))
    assert equal(train.download_params(), before)
    assert list(train.download_param_grads("l2.b")) == ["l2.b"]
    assert train.download_param_grads("l2.b")["l2.b"].any()
    with pytest.raises(HandleError, match="compiled without an optimizer"):
        train.set_lr(0.1)


def test_steps_checks_its_arguments_at_once_and_its_batches_in_order(engine_name: Backend) -> None:
    train = trained(engine_name)
    with pytest.raises(OptionError, match="steps: read_every must be an int >= 1, got 0"):
        train.steps([], read_every=0)

    def source() -> Iterator[Any]:
        yield Batch(**batch(0))
        yield Batch(**batch(1))
        raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError, match="disk"):
        list(train.steps(source(), read_every=5))
    assert train.steps_done == 2
    with pytest.raises(InputError, match="steps: expected Batch values, got Point"):
        list(train.steps([Point(x=batch(0)["x"])]))
    with pytest.raises(InputError, match="evaluate: there are no batches"):
        train.evaluate([])


def test_sizes_may_change_between_the_batches_of_steps(engine_name: Backend) -> None:
    grouped, single = trained(engine_name), trained(engine_name)
    made = [batch(i, n) for i, n in enumerate([8, 8, 4, 4, 8])]
    results = list(grouped.steps((Batch(**b) for b in made), read_every=5, group=4))
    for b in made:
        last = single.step(**b)
    assert [r.loss for r in results] == [last.loss]
    assert equal(grouped.download_params(), single.download_params())


def test_calls_from_many_threads_are_steps_of_one_run(engine_name: Backend) -> None:
    train = trained(engine_name, optimizer=SGD(0.0))
    want = {i: train.run(**batch(i)).output for i in range(10)}
    seen: list[tuple[int, int, float]] = []

    def work(first: int) -> None:
        for i in range(first, 10, 2):
            result = train.step(**batch(i))
            seen.append((result.step, i, result.loss))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(step for step, _, _ in seen) == list(range(1, 11))
    for _, i, loss in seen:
        np.testing.assert_allclose(loss, float(want[i]), rtol=1e-6)


def test_destroy_ends_children_and_keeps_results(engine_name: Backend) -> None:
    with trained(engine_name) as train:
        infer = train.compile_forward(predict)
        short = train.compile_forward(predict)
        short.destroy()
        with pytest.raises(HandleError, match="the handle of predict was destroyed"):
            short.run(x=batch(0)["x"])
        step, run = train.step(**batch(0)), infer.run(x=batch(0)["x"])
    assert np.isfinite(step.loss)
    assert run.output.shape == (8,)
    for call in (
        lambda: train.step(**batch(0)),
        train.download_params,
        train.reset,
        lambda: infer.run(x=batch(0)["x"]),
    ):
        with pytest.raises(HandleError, match="destroyed"):
            call()


def test_a_forward_compiled_alone_owns_its_parameters(engine_name: Backend, tmp_path: Any) -> None:
    train = trained(engine_name)
    alone = compile_forward(MLP(), predict, seed=train.seed, backend=engine_name)
    x = batch(0)["x"]
    shared = train.compile_forward(predict)
    np.testing.assert_array_equal(alone.run(x=x).output, shared.run(x=x).output)
    train.step(**batch(0))
    assert not np.array_equal(alone.run(x=x).output, shared.run(x=x).output)
    train.save_params(tmp_path / "p.npz")
    alone.load_params(tmp_path / "p.npz")
    np.testing.assert_array_equal(alone.run(x=x).output, shared.run(x=x).output)
    assert alone.param_names == train.param_names == ("l1.w", "l1.b", "l2.w", "l2.b")
    assert alone.compile(B=5).output_shape == (5,)


def test_one_model_compiles_any_number_of_times_and_stays_as_it_is(engine_name: Backend) -> None:
    model = MLP()
    before = dict(vars(model))
    first = compile_module(model, mlp_loss, optimizer=Adam(0.1), dims={"B": 8}, seed=0, backend=engine_name)
    second = compile_module(model, mlp_loss, optimizer=Adam(0.1), dims={"B": 8}, seed=0, backend=engine_name)
    assert vars(model) == before
    assert [repr(n) for n in first.ir.nodes] == [repr(n) for n in second.ir.nodes]


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, True])
def test_seeds_have_32_bits(seed: Any) -> None:
    with pytest.raises(OptionError, match=r"seed must be an int in \[0, 2\*\*32\)"):
        trained("numpy", seed=seed)
