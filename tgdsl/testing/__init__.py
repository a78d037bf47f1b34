"""Property tests of your own declarations: strategies for inputs, and checks of gradients.

Needs the extra `testing`; importing `tgdsl` never imports this.
"""

from .checks import check_grads as check_grads
from .strategies import batches as batches
