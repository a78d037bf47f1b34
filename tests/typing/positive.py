"""What the checkers must infer; nothing here may be reported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, assert_type

import numpy as np
from numpy.typing import NDArray

from tests.typing.models import (
    MLP,
    Batch,
    Block,
    Point,
    Transformer,
    loss,
    next_token,
    predict,
)
from tgdsl import (
    Adam,
    Arg,
    BoolTensor,
    FitResult,
    Graph,
    Inference,
    IntTensor,
    Linear,
    Param,
    StepResult,
    Tensor,
    Trained,
    arg,
    build,
    compile_forward,
    compile_module,
    init,
    lr,
    minibatches,
    module,
    param,
    param_if,
    parameters,
    repeat,
    state,
    tied,
    trace,
    update,
)
from tgdsl.ops import argmax, capture, cast, checkpoint, concat, full, mean, stop_gradient, where

x = np.zeros((4, 1), np.float32)


def modules() -> None:
    model = Transformer(12, 8)
    assert_type(model.dim, int)
    assert_type(model.tok, Tensor)
    assert_type(model.blocks, tuple[Block, ...])
    assert_type(model.blocks[0].attn.q.b, Tensor | None)
    assert_type(Transformer(vocab=12, context=8, depth=1), Transformer)
    assert_type(parameters(model), dict[str, Param])
    assert_type(MLP(8, l1=Linear(1, 8)), MLP)


@module
class Everything:
    dim: Arg[int] = arg()
    first: Arg[init.Init] = arg(default=init.Normal())
    on: Arg[bool] = arg(default=True)
    name: Arg[str] = arg(default="x", kw_only=True)
    inner = 4 * dim
    twice: Arg[int] = dim * 2
    w: Tensor = param(dim, 2 * dim - 1, inner, initial=first, fan_in=dim, decay=on, trainable=on)
    b: Tensor | None = param_if(on, dim // 2)
    mean: Tensor = state(dim, initial=init.Zeros())
    same: Tensor = tied("w")
    layers: tuple[Linear, ...] = repeat(dim, Linear(dim, dim))
    pair: tuple[Linear, Linear] = (Linear(dim, 1), Linear(1, dim))

    @build
    def tail(self) -> dict[str, Linear]:
        return {str(i): Linear(i, i) for i in range(self.dim)}

    def __call__(self, x: Tensor) -> Tensor:
        update(self.mean, self.mean * 0.5)
        assert_type(self.tail, dict[str, Linear])
        assert_type(self.inner, int)
        assert_type(self.twice, int)
        assert_type(self.name, str)
        return self.tail["1"](x)


def tensors(t: Tensor, i: IntTensor) -> None:
    assert_type(t > 0, BoolTensor)
    assert_type(i[0], IntTensor)
    assert_type(2.0 * t + 1, Tensor)
    assert_type(t @ t.mT, Tensor)
    assert_type(argmax(t), IntTensor)
    assert_type(capture("i", i), IntTensor)
    assert_type(concat([i, i], 0), IntTensor)
    assert_type(where(t > 0, t, 0.0), Tensor)
    assert_type(mean(t, -1, keepdims=True), Tensor)
    assert_type(stop_gradient(t), Tensor)
    assert_type(stop_gradient(i), IntTensor)
    assert_type(checkpoint(mean)(t), Tensor)
    assert_type(cast(t, "i32"), IntTensor)
    assert_type(full(shape=(2,), value=0.5), Tensor)
    assert_type(full(shape=[2], value=3, dtype="i32"), IntTensor)
    assert_type(full(shape=(2,), value=True, dtype="bool"), BoolTensor)
    assert_type(t.shape, tuple[int, ...])


def batches() -> Iterator[Batch]:
    batch = Batch(x=x, y=x)
    assert_type(batch.x, Tensor)
    assert_type(batch.x.numpy(), NDArray[np.float32])
    yield batch


def handles() -> None:
    train = compile_module(MLP(), loss, optimizer=Adam(lr.LinearDecay(peak=1e-2, final=0.0, steps=9)), dims={"B": 4})
    assert_type(train.model, MLP)
    half = compile_module(MLP(), loss, optimizer=Adam(1e-3), precision="f16")
    assert_type(half.precision, Literal["f32", "f16"])
    assert_type(half.loss_scale, float)
    result = train.step(x=x, y=x)
    assert_type(result, StepResult)
    assert_type(result.loss, float)
    assert_type(train.with_captures.step(x=x, y=x).captures["h"].ndim, int)
    assert_type(train.steps(batches(), read_every=2), Iterator[StepResult])
    fitted = train.fit(Batch(x=x, y=x), epochs=2, batch=2, callback=lambda r: r.loss < 0.1)
    assert_type(fitted, FitResult)
    assert_type(fitted.losses, NDArray[np.float32])
    assert_type(fitted.epoch_losses, tuple[float, ...])
    train.fit(Batch(x=x, y=x), read_every=5, callback=lambda r: print(r.step, r.loss))
    assert_type(train.evaluate(minibatches(Batch(x=x, y=x), 2)), float)
    assert_type(train.run(x=x, y=x).output, NDArray[np.float32])
    assert_type(train.download_params(), dict[str, NDArray[np.float32]])
    infer = train.compile_forward(predict)
    assert_type(infer.run(x=x).output, NDArray[np.float32])
    solo = compile_forward(Transformer(12, 8), next_token, dims={"T": 8}, tune=True)
    assert_type(solo.run(tokens=np.zeros((1, 8), np.int32)).output, NDArray[np.int32])


def generic(train: Trained[MLP, Batch, ...], infer: Inference[MLP, Point, ..., np.float32]) -> None:
    assert_type(train.model, MLP)
    assert_type(infer.run(x=x).output, NDArray[np.float32])


async def awaited() -> None:
    train = compile_module(MLP(), loss, optimizer=None, tune=True)
    assert_type(await train.step(x=x, y=x), StepResult)


def graphs() -> None:
    assert_type(trace(MLP(), loss, dims={"B": 4}), Graph)
    assert_type(trace(lambda: [None]), Graph)
