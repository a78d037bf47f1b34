"""Declarative models that train on any GPU, or on NumPy without one.

Declare a model with `@module`, what it reads with `@inputs`, what it computes with
`@forward`; `compile_module` gives a handle whose `step` trains it. Operations are in
`tgdsl.ops`, layers in `tgdsl.nn`, schedules in `tgdsl.lr`, initialisers in `tgdsl.init`.
"""

from . import lr as lr
from . import nn as nn
from . import ops as ops
from . import optim as optim
from .data import Minibatches as Minibatches
from .data import minibatches as minibatches
from .errors import CaptureError as CaptureError
from .errors import DeclarationError as DeclarationError
from .errors import DeviceError as DeviceError
from .errors import DimError as DimError
from .errors import DTypeError as DTypeError
from .errors import FrozenError as FrozenError
from .errors import GradientError as GradientError
from .errors import HandleError as HandleError
from .errors import InputError as InputError
from .errors import LoweringError as LoweringError
from .errors import NonFiniteError as NonFiniteError
from .errors import OpDefinitionError as OpDefinitionError
from .errors import OptionError as OptionError
from .errors import ParameterError as ParameterError
from .errors import ShapeError as ShapeError
from .errors import TgdslError as TgdslError
from .errors import TraceError as TraceError
from .frontend import F32 as F32
from .frontend import I32 as I32
from .frontend import Arg as Arg
from .frontend import Forward as Forward
from .frontend import Param as Param
from .frontend import arg as arg
from .frontend import build as build
from .frontend import capture as capture
from .frontend import f32 as f32
from .frontend import forward as forward
from .frontend import i32 as i32
from .frontend import init as init
from .frontend import inputs as inputs
from .frontend import module as module
from .frontend import param as param
from .frontend import param_if as param_if
from .frontend import parameters as parameters
from .frontend import repeat as repeat
from .frontend import state as state
from .frontend import tied as tied
from .frontend import trace as trace
from .frontend import trace_into as trace_into
from .frontend import update as update
from .ir import AnyTensor as AnyTensor
from .ir import BoolTensor as BoolTensor
from .ir import Graph as Graph
from .ir import IntTensor as IntTensor
from .ir import Tensor as Tensor
from .nn import Conv2d as Conv2d
from .nn import Embedding as Embedding
from .nn import LayerNorm as LayerNorm
from .nn import Linear as Linear
from .optim import SGD as SGD
from .optim import Adam as Adam
from .optim import AdamW as AdamW
from .session import Captures as Captures
from .session import FitResult as FitResult
from .session import Inference as Inference
from .session import RunResult as RunResult
from .session import StepResult as StepResult
from .session import Trained as Trained
from .session import compile_forward as compile_forward
from .session import compile_module as compile_module
