"""The two entry points that make handles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ParamSpec, TypeVar

import numpy as np

from tgdsl import frontend
from tgdsl.errors import DeclarationError
from tgdsl.frontend import Forward
from tgdsl.optim.base import Optimizer
from tgdsl.pipeline import Backend, Precision, check_precision, choose_engine
from tgdsl.program import Engine

from .inference import Inference
from .programs import log
from .seeds import check_seed
from .training import Trained
from .weights import Weights

M = TypeVar("M")
B = TypeVar("B")
P = ParamSpec("P")
S = TypeVar("S", bound=np.generic)


def compile_module(
    model: M,
    loss: Forward[M, B, P, np.float32],
    *,
    optimizer: Optimizer | None,
    dims: Mapping[str, int] | None = None,
    seed: int | None = None,
    backend: Backend = "auto",
    check_finite: bool = False,
    precision: Precision = "f32",
    tune: bool = False,
) -> Trained[M, B, P]:
    """Compile a training step.

    Args:
        model: An instance of a `@module` class; it is never changed.
        loss: A `@forward` that returns a scalar.
        optimizer: The update rule; with None a step computes gradients and changes nothing.
        dims: Sizes of named dims of the inputs; a dim left out takes its size from the
            arrays of each call.
        seed: What parameters and random ops are drawn from; random when omitted.
        backend: Where to run; see `choose_engine`.
        check_finite: Keep everything as it is from the first step whose loss or gradients
            are not finite, and raise `NonFiniteError` from that step's result on. With f16 that
            is the first such step at the smallest loss scale.
        precision: With "f16" the values between kernels (activations and their gradients) are
            stored as f16, also those of forwards compiled from the handle. Arithmetic, parameters,
            gradients of parameters, optimizer state and results stay f32. The loss is scaled
            dynamically as by PyTorch's `GradScaler`: a step whose gradients overflow changes no
            parameter, though it counts for schedules. Needs an adapter with `shader-f16`.
        tune: Time a few tilings of every contraction on the device, the first time that
            it meets them, and take the fastest. What was found is kept on disk, in
            `TGDSL_CACHE_DIR` or the user's cache folder. The NumPy backend has no tilings.

    Returns:
        A handle with initial parameters.
    """
    _check("compile_module", model, loss)
    engine = _engine("compile_module", backend, tune=tune)
    check_precision(precision, engine, trained=optimizer is not None)
    finite = check_finite and optimizer is not None
    weights = Weights.create(
        model,
        optimizer,
        check_seed(seed),
        engine,
        trained=True,
        check_finite=finite,
        precision=precision,
        tune=tune,
    )
    try:
        return Trained(loss, optimizer, dims, weights, check_finite=finite)
    except BaseException:
        weights.destroy()
        raise


def compile_forward(
    model: M,
    forward: Forward[M, B, P, S],
    *,
    dims: Mapping[str, int] | None = None,
    seed: int | None = None,
    backend: Backend = "auto",
    tune: bool = False,
) -> Inference[M, B, P, S]:
    """Compile a forward with parameters of its own; see `compile_module`."""
    _check("compile_forward", model, forward)
    engine = _engine("compile_forward", backend, tune=tune)
    weights = Weights.create(model, None, check_seed(seed), engine, trained=False, tune=tune)
    try:
        return Inference(forward, dims, weights, owner=True)
    except BaseException:
        weights.destroy()
        raise


def _engine(what: str, backend: Backend, *, tune: bool) -> Engine:
    engine = choose_engine(backend)
    if tune and engine.name == "numpy":
        log.warning("%s: tune=True changes nothing on the numpy backend, which has no tilings", what)
    return engine


def _check(what: str, model: object, forward: object) -> None:
    if not frontend.is_module(model):
        raise DeclarationError(f"{what}: model is a {type(model).__name__}, not an instance of a @module class")
    if not isinstance(forward, Forward):
        raise DeclarationError(f"{what}: expected a @forward function, got {type(forward).__name__}")
