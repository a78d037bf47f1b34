"""Optimizers: frozen values with one element-wise rule, told apart by `kind`."""

from .adam import Adam as Adam
from .adam import AdamW as AdamW
from .base import DecayFilter as DecayFilter
from .base import Optimizer as Optimizer
from .base import decays as decays
from .sgd import SGD as SGD
from .step import ArenaLayout as ArenaLayout
from .step import Segment as Segment
from .step import StepGraphs as StepGraphs
from .update import Update as Update
from .update import build_update as build_update
