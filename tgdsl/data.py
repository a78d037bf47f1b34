"""Minibatches: shuffled slices of arrays, without a loader, threads or files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from tgdsl import frontend
from tgdsl.errors import InputError, OptionError, int_option

B = TypeVar("B")
Arrays = Mapping[str, NDArray[Any]]
_BY_NAME = "pass the arrays by name: minibatches({...}, batch=...)"


class Minibatches(Generic[B]):
    """Batches of a data set; each `for` over it is one epoch, in an order of its own.

    The order of an epoch depends on the seed and on how many epochs were begun before.
    """

    def __init__(self, data: Any, batch: int, *, shuffle: bool, seed: int, drop_last: bool) -> None:
        """Made by `minibatches`."""
        int_option("minibatches: batch", batch, 1)
        by_name = isinstance(data, Mapping)
        self._make: Any = dict if by_name else type(data)
        self._sliced: dict[str, NDArray[Any]] = dict(data) if by_name else {}
        self._whole: dict[str, NDArray[Any]] = {}
        if not by_name:
            _, self._sliced, self._whole = split_rows("minibatches", data, hint=_BY_NAME)
        sizes = {name: len(array) for name, array in self._sliced.items()}
        if len(set(sizes.values())) != 1:
            raise InputError(f"minibatches: arrays differ in length: {sizes or 'there are none'}")
        self._size = next(iter(sizes.values()))
        if drop_last and batch > self._size:
            raise OptionError(
                f"minibatches: batch {batch} is larger than the data ({self._size})",
                hint="pass drop_last=False to get one short batch",
            )
        self._batch, self._shuffle, self._seed, self._drop_last = batch, shuffle, seed, drop_last
        self._epoch = 0

    def __len__(self) -> int:
        """Batches per epoch."""
        return self._size // self._batch if self._drop_last else -(-self._size // self._batch)

    def __iter__(self) -> Iterator[B]:
        """Begin the next epoch."""
        epoch, self._epoch = self._epoch, self._epoch + 1
        return self._run(epoch)

    def _run(self, epoch: int) -> Iterator[B]:
        order = epoch_order(self._size, epoch, shuffle=self._shuffle, seed=self._seed)
        for start in range(0, len(self) * self._batch, self._batch):
            rows = order[start : start + self._batch]
            yield self._make(**{n: a[rows] for n, a in self._sliced.items()}, **self._whole)


@overload
def minibatches(
    data: Mapping[str, NDArray[Any]],
    batch: int,
    *,
    shuffle: bool = True,
    seed: int = 0,
    drop_last: bool = True,
) -> Minibatches[dict[str, NDArray[Any]]]: ...
@overload
def minibatches(
    data: B, batch: int, *, shuffle: bool = True, seed: int = 0, drop_last: bool = True
) -> Minibatches[B]: ...
def minibatches(
    data: Any, batch: int, *, shuffle: bool = True, seed: int = 0, drop_last: bool = True
) -> Minibatches[Any]:
    """Split a data set into batches.

    Args:
        data: The whole data set as one value of an `@inputs` class, which gives batches of
            that class; or arrays by name, which gives dicts. Of an `@inputs` value, the
            arrays that begin with the same named dim as the first one are split; the others
            go into every batch.
        batch: Rows per batch.
        shuffle: Draw the rows of an epoch in random order.
        seed: What the order is drawn from.
        drop_last: Leave out the rest that does not fill a batch.

    Example:
        >>> data = minibatches({"x": np.arange(10)}, batch=4, shuffle=False)
        >>> [b["x"].tolist() for b in data]
        [[0, 1, 2, 3], [4, 5, 6, 7]]
    """
    return Minibatches(data, batch, shuffle=shuffle, seed=seed, drop_last=drop_last)


def epoch_order(size: int, epoch: int, *, shuffle: bool, seed: int) -> NDArray[np.int64]:
    """The order in which an epoch, the first being 0, goes through the rows."""
    return np.random.default_rng((seed, epoch)).permutation(size) if shuffle else np.arange(size)


def split_rows(
    what: str, data: Any, *, hint: str | None = None
) -> tuple[str, dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """Take an `@inputs` value apart: the named dim that counts rows, the arrays that begin with it, the others."""
    if not frontend.is_inputs(type(data)):
        raise InputError(f"{what}: expected an @inputs value or arrays by name, got {type(data).__name__}")
    arrays = frontend.batch_arrays(data)
    leading = {n: spec.dims[0] if spec.dims else None for n, spec in frontend.specs(type(data)).items()}
    dim = next(iter(leading.values()))
    if not isinstance(dim, str):
        raise InputError(f"{what}: the first input of {type(data).__name__} does not begin with a named dim", hint=hint)
    rows = {n: a for n, a in arrays.items() if leading[n] == dim}
    return dim, rows, {n: a for n, a in arrays.items() if n not in rows}
