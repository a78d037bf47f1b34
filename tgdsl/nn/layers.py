"""Layers with parameters. Each is a value that says what it is made of."""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray

from tgdsl import ops
from tgdsl.frontend.arg import Arg, arg
from tgdsl.frontend.init import Init, Kaiming, Normal, Ones, Zeros
from tgdsl.frontend.module import module
from tgdsl.frontend.slots import param, param_if
from tgdsl.ir import IntTensor, Tensor


@module
class Linear:
    """`x @ w + b`.

    Args:
        din: Size of the last axis of the input.
        dout: Size of the last axis of the result.
        bias: Whether to add `b`.
        initial: How `w` starts.

    Shape:
        `[..., din] -> [..., dout]`, rank 2 or more.
    """

    din: Arg[int] = arg()
    dout: Arg[int] = arg()
    bias: Arg[bool] = arg(default=True)
    initial: Arg[Init] = arg(default=Normal())
    w: Tensor = param(din, dout, initial=initial, fan_in=din)
    b: Tensor | None = param_if(bias, dout, initial=Zeros())

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the layer."""
        y = x @ self.w
        return y if self.b is None else y + self.b

    def fwd(self, x: Tensor) -> Tensor:
        """The call under tensorgrad's name."""
        return self(x)


@module
class LayerNorm:
    """Rows shifted to mean 0, scaled to variance 1, then by `g` and `b` (Ba, Kiros & Hinton 2016).

    Args:
        dim: Size of the last axis.
        eps: Added to the variance.
        bias: Whether to add `b`.

    Shape:
        `[..., dim] -> [..., dim]`.
    """

    dim: Arg[int] = arg()
    eps: Arg[float] = arg(default=1e-5)
    bias: Arg[bool] = arg(default=True)
    g: Tensor = param(dim, initial=Ones())
    b: Tensor | None = param_if(bias, dim, initial=Zeros())

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the layer."""
        return ops.layer_norm(x, self.g, self.b, eps=self.eps)

    def fwd(self, x: Tensor) -> Tensor:
        """The call under tensorgrad's name."""
        return self(x)


@module
class Embedding:
    """Vectors of a learned table by id.

    Args:
        vocab: How many ids there are.
        dim: Size of a vector.
        initial: How the table starts.

    Shape:
        `[...] -> [..., dim]`.
    """

    vocab: Arg[int] = arg()
    dim: Arg[int] = arg()
    initial: Arg[Init] = arg(default=Normal())
    w: Tensor = param(vocab, dim, initial=initial)

    def __call__(self, ids: IntTensor) -> Tensor:
        """Look the ids up."""
        return ops.embedding(self.w, ids)

    def fwd(self, ids: IntTensor) -> Tensor:
        """The call under tensorgrad's name."""
        return self(ids)


@module
class Conv2d:
    """A convolution with a square kernel (cross-correlation), NCHW.

    Args:
        cin: Channels of the image.
        cout: Channels of the result.
        kernel: Size of the kernel.
        stride: Step of the window.
        padding: Zeros around the image.
        bias: Whether to add `b`.
        initial: How `w` starts; the fan-in is `cin * kernel * kernel`.

    Shape:
        `[B, cin, H, W] -> [B, cout, Ho, Wo]` with `Ho = (H + 2 * padding - kernel) // stride + 1`.
    """

    cin: Arg[int] = arg()
    cout: Arg[int] = arg()
    kernel: Arg[int] = arg()
    stride: Arg[int] = arg(default=1)
    padding: Arg[int] = arg(default=0)
    bias: Arg[bool] = arg(default=True)
    initial: Arg[Init] = arg(default=Kaiming())
    w: Tensor = param(cout, cin, kernel, kernel, initial=initial, fan_in=cin * kernel * kernel)
    b: Tensor | None = param_if(bias, cout, 1, 1, initial=Zeros())

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the layer."""
        y = ops.conv2d(x, self.w, stride=self.stride, padding=self.padding)
        return y if self.b is None else y + self.b

    def fwd(self, x: Tensor) -> Tensor:
        """The call under tensorgrad's name."""
        return self(x)


class _HasHeads(Protocol):
    def per_head(self, name: str) -> list[NDArray[Any]]: ...


def unsplit_heads(captures: _HasHeads, name: str) -> list[NDArray[Any]]:
    """A captured `[..., heads, m, n]` as one matrix per head; see `Captures.per_head`."""
    return captures.per_head(name)
