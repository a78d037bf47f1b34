"""Layers, and the functions that tensorgrad keeps beside them."""

from tgdsl.ops.attention import merge_heads as merge_heads
from tgdsl.ops.attention import split_heads as split_heads
from tgdsl.ops.losses import cross_entropy_last as cross_entropy_last

from .heads import unsplit_heads as unsplit_heads
from .layers import Conv2d as Conv2d
from .layers import Embedding as Embedding
from .layers import LayerNorm as LayerNorm
from .layers import Linear as Linear
