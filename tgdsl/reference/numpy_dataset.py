"""A data set in host memory, from which the steps of the NumPy backend take their rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tgdsl.errors import HandleError
from tgdsl.program import Pick

Arrays = Mapping[str, NDArray[Any]]


class NumpyDataset:
    """Copies of the arrays: as on a device, what the caller does to them later changes nothing."""

    def __init__(self, rows: Arrays, whole: Arrays) -> None:
        """Copy arrays of which steps pick rows, and arrays that every step reads."""
        self.rows = {name: array.copy(order="C") for name, array in rows.items()}
        self.whole = {name: array.copy() for name, array in whole.items()}
        self._alive = True

    def require_alive(self) -> None:
        """Refuse what comes after `destroy`."""
        if not self._alive:
            raise HandleError("the data set was freed")

    def destroy(self) -> None:
        """Forget the arrays."""
        self._alive = False
        self.rows.clear()
        self.whole.clear()


def gather(pick: Pick, into: Arrays) -> None:
    """Copy the picked rows into the inputs of a step."""
    dataset: Any = pick.dataset
    dataset.require_alive()
    for name, array in into.items():
        if name in dataset.whole:
            np.copyto(array, dataset.whole[name], casting="no")
        else:
            # Every row exists; `raise` would check that again, by way of a second buffer.
            np.take(dataset.rows[name], pick.rows, axis=0, out=array, mode="clip")
