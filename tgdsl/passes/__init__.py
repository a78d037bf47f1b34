"""Graph to graph: every pass keeps what the graph means."""

from .attention import recognise_attention as recognise_attention
from .bounds import interval as interval
from .lower import lower as lower
from .split import split_folds as split_folds
