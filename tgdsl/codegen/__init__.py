"""Graphs to WGSL programs."""

from .generate import Target as Target
from .generate import generate as generate
from .problems import Problem as Problem
from .problems import Race as Race
from .problems import problems as problems
from .tiling import Tiling as Tiling
