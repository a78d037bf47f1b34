"""Handles: what a user trains, runs, saves and resets."""

from .compiling import compile_forward as compile_forward
from .compiling import compile_module as compile_module
from .fit import FitResult as FitResult
from .inference import Inference as Inference
from .results import Captures as Captures
from .results import RunResult as RunResult
from .results import StepResult as StepResult
from .training import Trained as Trained
