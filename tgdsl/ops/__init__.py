"""The operations: typed free functions, one file per family."""

from .elementwise import add as add
from .elementwise import div as div
from .elementwise import exp as exp
from .elementwise import full as full
from .elementwise import mul as mul
from .elementwise import neg as neg
from .elementwise import sub as sub
from .movement import broadcast_to as broadcast_to
from .movement import permute as permute
from .movement import reshape as reshape
from .reduce import sum as sum
