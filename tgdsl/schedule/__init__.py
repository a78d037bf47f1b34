"""From a graph of primitives to kernels: what is computed together, and in which order."""

from .bundle import Bundle as Bundle
from .bundle import bundle as bundle
from .group import Group as Group
from .partition import Schedule as Schedule
from .partition import partition as partition
