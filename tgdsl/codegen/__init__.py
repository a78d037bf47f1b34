"""Graphs to WGSL programs."""

from .generate import Target as Target
from .generate import generate as generate
from .race import Problem as Problem
from .race import Race as Race
from .race import problems as problems
from .tiling import Tiling as Tiling
