"""Graphs to WGSL programs."""

from .generate import Target as Target
from .generate import generate as generate
