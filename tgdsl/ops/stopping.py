"""Values that the gradient does not flow through."""

from __future__ import annotations

from typing import Any, TypeVar, cast

from tgdsl.ir import AnyTensor, Decompose, Tensor, TensorType, op

from . import samplers
from .arguments import tensors
from .rules import floating

A = TypeVar("A", bound=AnyTensor[Any])


@op(name="stop_gradient", ref=lambda x: x, lower=Decompose(lambda x: x), sample=samplers.unary())
def _stop_gradient(x: Tensor) -> TensorType:
    """`x`, without a gradient."""
    return floating("stop_gradient", x)


_stop_gradient.no_vjp("it is stopped on purpose")


def stop_gradient(x: A) -> A:
    """`x` itself, but a constant to the gradient: targets, running statistics, straight-through estimators.

    Kernels never see it: once gradients are taken it is replaced by `x`, so it costs nothing.
    Finite differences see through it; `check_grads` therefore finds a difference where it is used.

    Args:
        x: Any tensor.

    Returns:
        A tensor of the same values; `x` itself if that carries no gradient anyway.

    Shape:
        That of `x`.

    Dtype:
        Any, kept.

    Gradient:
        None.

    Source:
        `jax.lax.stop_gradient`; `torch.Tensor.detach`.

    Example:
        The gradient of this is `x`, not `2 * x`.

        >>> compute(lambda x: x * stop_gradient(x), [2.0, 3.0])
        array([4., 9.])
    """
    tensors("stop_gradient", x=x)
    return cast("A", _stop_gradient(x)) if isinstance(x, Tensor) else x
