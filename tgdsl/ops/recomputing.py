"""Values that are computed again for the gradient instead of being kept for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from tgdsl.errors import TraceError
from tgdsl.ir import AnyTensor, Cotangents, Draw, Sample, Source, Tensor, TensorType, View, current_graph, op, user_site

P = ParamSpec("P")
R = TypeVar("R", bound="AnyTensor[Any] | tuple[AnyTensor[Any], ...]")


def _sample(draw: Draw) -> Sample:
    return Sample.of(draw.array("x", draw.shape("shape")), draw.array("after", ()))


@op(name="recompute", ref=lambda x, after: x, lower=View(lambda ix, shape: Source(ix)), sample=_sample, analytic=True)
def recompute(x: AnyTensor[Any], after: AnyTensor[Any]) -> TensorType:
    """`x`, not to be looked at before `after` is there.

    What is computed from it is another node than what was computed from `x`, and no kernel
    can run it early, which would keep it as long as the value that it stands for.
    """
    return x.type


@recompute.vjp
def _(ct: Tensor, y: Tensor, x: Tensor, after: Tensor) -> Cotangents:
    return ct, None


def checkpoint(fn: Callable[P, R]) -> Callable[P, R]:
    """`fn`, whose intermediate values are not kept for the gradient but computed again for it.

    A long chain of blocks then needs the memory of its blocks' inputs and of one block, for about one
    more forward of work. Parameters that `fn` reads need not be among its arguments; random
    ops draw the same numbers both times; calls may be nested.

    Args:
        fn: Takes tensors, returns a tensor or a tuple of them; a module will do.

    Returns:
        A function of the same signature, for use while tracing.

    Shape:
        Those of `fn`.

    Dtype:
        Those of `fn`.

    Gradient:
        That of `fn`.

    Raises:
        TraceError: If `fn` cannot be called, or returns something else.

    Source:
        Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost"; `torch.utils.checkpoint`, `jax.checkpoint`.

    Example:
        >>> compute(lambda x: checkpoint(lambda y: y * y)(x), [2.0, 3.0])
        array([4., 9.])
    """
    if not callable(fn):
        raise TraceError(f"checkpoint: expected a function, got {type(fn).__name__}", site=user_site())

    def again(*args: P.args, **kwargs: P.kwargs) -> R:
        with current_graph("checkpoint").region():
            out = fn(*args, **kwargs)
        parts: tuple[object, ...] = out if isinstance(out, tuple) else (out,)
        if not parts or not all(isinstance(t, AnyTensor) for t in parts):
            kinds = ", ".join(type(t).__name__ for t in parts)
            raise TraceError(
                f"checkpoint: the function must return tensors, got {kinds or 'nothing'}", site=user_site()
            )
        return out

    return again
