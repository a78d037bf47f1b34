# ruff: noqa
# fmt: off
"""Every line marked `# E name` is a mistake that both checkers must report.

`# E name (pyright)` is one that pyright alone reports, `# E name (neither)` one that is found
when the declaration runs. The project's own checks leave this file out; test_misuse.py runs them.
"""
from __future__ import annotations
import math
import numpy as np
from hypothesis import given
from numpy.typing import NDArray
from tgdsl import SGD, Adam, Arg, Embedding, F32, I32, IntTensor, LayerNorm, Linear, Tensor, arg, build, compile_forward, compile_module, f32, forward, i32, init, inputs, lr, module, param, param_if, repeat
from tgdsl.ops import argmax, cross_entropy, embedding, mean, relu, softmax, square, where
from tgdsl.testing import batches, check_grads
from tests.typing.models import MLP, Batch, Point, Tokens, Transformer, loss, next_token, predict
x = np.zeros((4, 1), np.float32); ids = np.zeros((4, 1), np.int32); wide = np.zeros((4, 1))
train = compile_module(MLP(), loss, optimizer=Adam(1e-3), dims={"B": 4})
infer = train.compile_forward(predict)
train.step(x=x)  # E step.missing
train.step(x=x, y=x, z=x)  # E step.extra
train.step(x=x, yy=x)  # E step.misspelt
train.step(x=ids, y=x)  # E step.i32-for-f32
train.step(x=wide, y=x)  # E step.f64-for-f32
train.step(x=[[0.0]], y=x)  # E step.list
train.step(x, x)  # E step.positional
train.step({"x": x, "y": x})  # E step.dict
train.steps([Point(x=x)])  # E steps.wrong-batch-class
infer.run(x=x, y=x)  # E run.extra
infer.run(x=x).outputs  # E run.result-attr
train.step(x=x, y=x).losss  # E step.result-attr
out: NDArray[np.int32] = infer.run(x=x).output  # E run.output-dtype
compile_module(Transformer(3, 4), loss, optimizer=Adam(1e-3))  # E compile.wrong-model
compile_module(MLP, loss, optimizer=Adam(1e-3))  # E compile.class-not-instance
compile_module(Transformer(3, 4), next_token, optimizer=Adam(1e-3))  # E compile.int-loss
compile_module(MLP(), loss, optimizer=1e-3)  # E compile.optimizer
compile_module(MLP(), loss, optimizer=Adam("x"))  # E optimizer.lr
train.compile_forward(next_token)  # E attach.wrong-model
compile_module(MLP(), loss, optimizer=Adam(1e-3), dims={"Q": 4})  # E compile.unknown-dim (neither)
Adam(lr.LinearDecay(peak=1.0, final=0.1))  # E lr.missing
train.with_captures.step(x=x)  # E captures.step-missing
infer.with_captures.run(y=x)  # E captures.run-misspelt
train.evaluate([Point(x=x)])  # E evaluate.wrong-batch-class
train.fit(Point(x=x))  # E fit.wrong-data-class
train.fit({"x": x, "y": x})  # E fit.dict
train.fit(Batch(x=x, y=x), batch_size=2)  # E fit.misspelt
train.fit(Batch(x=x, y=x), callback=lambda r: r.losss)  # E fit.callback-attr
train.upload_params({"l1.w": wide})  # E upload.f64
train.step(x=x, y=x)["loss"]  # E step.subscript
compile_forward(MLP(), next_token)  # E compile_forward.wrong-model
compile_module(MLP(), loss, optimizer=Adam(1e-3), backend="cuda")  # E compile.backend
compile_module(MLP(), loss, optimizer=Adam(1e-3), precision="bf16")  # E compile.precision
@forward(inputs=Batch)  # E forward.two-tensors
def f1(m: MLP, x: Tensor, y: Tensor) -> Tensor: return mean(x - y)
@forward(inputs=Batch)  # E forward.wrong-inputs-class
def f2(m: MLP, b: Point) -> Tensor: return m(b.x)
@forward(inputs=Batch)  # E forward.returns-float
def f3(m: MLP, b: Batch) -> float: return 1.0
@forward(inputs=3)  # E forward.not-inputs
def f4(m: MLP, b: Batch) -> Tensor: return m(b.x)
@forward(inputs=Linear)  # E forward.module-as-inputs
def f5(m: MLP, b: Batch) -> Tensor: return m(b.x)
@forward(inputs=Batch)
def f6(m: MLP, b: Batch) -> Tensor:
    return m(b.xx)  # E body.unknown-input
@forward(inputs=Tokens)
def f7(m: Transformer, b: Tokens) -> Tensor:
    t = m(b.tokens)
    embedding(b.tokens, m.tok)  # E body.swapped-embedding
    b.tokens + 1.0  # E body.int-arith
    relu(b.tokens)  # E body.relu-int
    cross_entropy(t, t)  # E body.float-targets
    where(t, t, t)  # E body.float-cond
    t @ 3.0  # E body.matmul-scalar
    t @ b.tokens  # E body.matmul-int
    if t > 0: pass  # E body.truth (pyright)
    np.ones(3) + t  # E body.numpy
    m.blocks[0].attn.qq(t)  # E body.unknown-child
    m.lnn(t)  # E body.unknown-child2
    m.tok = t  # E body.assign-param
    b.tokens = b.tokens  # E body.assign-input
    return t
Linear(64)  # E ctor.missing
Linear(64, "32")  # E ctor.type
Linear(64, 32, biass=False)  # E ctor.unknown
Linear(64, 32, w=3)  # E ctor.param
Linear(64, 32).din = 5  # E frozen.arg
Linear(64, 32).w = 5  # E frozen.param
MLP().l1 = Linear(1, 64)  # E frozen.child
@module
class H:
    d: Arg[int] = arg()
    e: Arg[int] = 64  # E body.plain-default
    l0: Linear = LayerNorm(d)  # E body.child-type
    l1: Linear = Linear(d, dd)  # E body.typo
    l2: Linear = Linear(d, math.sqrt(d))  # E body.sqrt-symbol
    l3: Linear = Linear(d, d / 2)  # E body.truediv-symbol
    l4: tuple[Linear, ...] = tuple(Linear(3, 3) for _ in range(d))  # E body.range-symbol
    l5: tuple[Linear, ...] = tuple(Linear(d, 3) for _ in range(3))  # E body.comprehension-scope
    l6: Linear = Linear(3, 3) if d else Linear(4, 4)  # E body.if-symbol (pyright)
    l7: Linear = Linear(3, 3) if d > 3 else Linear(4, 4)  # E body.compare-symbol
    w0: Tensor = param(d, d, init=init.Zeros())  # E param.init-name
    w1: Tensor = param_if(True, d)  # E param_if.optional
    w2: Tensor = param(d, 3.5)  # E param.float-dim
    l8: list[Linear] = repeat(3, Linear(d, d))  # E repeat.type
    @build
    def head(self) -> Linear: return Linear(self.d, self.ddd)  # E build.typo
    @build
    def tail(self) -> Linear: return LayerNorm(self.d)  # E build.type
@module
class H2:
    n: int = 64  # E body.plain-int (neither)
    l1: Linear = Linear(1, n)
@inputs
class I1:
    x: F32 = i32("B", 1)  # E inputs.dtype-mismatch
    z: I32 = i32("B", below="x")  # E inputs.below
    y: F32  # E inputs.no-shape (neither)
    t: F32 = f32(1.5)  # E inputs.float-dim
@given(batches(Point))
def t1(batch: Batch) -> None: ...  # E given.wrong-type (neither)
def t2(b: Point) -> None:
    check_grads(loss, MLP(), b)  # E check_grads.wrong-batch
