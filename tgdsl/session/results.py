"""What a call returns before it has run: results that wait only when they are looked at."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator, Mapping
from threading import Lock
from typing import Any, Generic, TypeVar

import attrs
import numpy as np
from numpy.typing import NDArray

from tgdsl.errors import CaptureError
from tgdsl.program import Ticket

S = TypeVar("S", bound=np.generic)
CAPTURE = "capture:"


@attrs.frozen(eq=False)
class Captures:
    """Arrays published by `capture(name, t)` in a forward, by name.

    Attributes:
        shapes: The shape of every capture of the forward, read or not.
        arrays: The captures that the call copied out; None for a plain `step` or `run`.
    """

    shapes: Mapping[str, tuple[int, ...]]
    arrays: Mapping[str, NDArray[Any]] | None = attrs.field(default=None, repr=False)

    def get(self, name: str) -> NDArray[Any]:
        """The array `name`."""
        self.shape_of(name)
        if self.arrays is None:
            raise CaptureError(
                f"capture {name!r} was not read by this call",
                hint="call handle.with_captures.step(...) or handle.with_captures.run(...)",
            )
        return self.arrays[name]

    def shape_of(self, name: str) -> tuple[int, ...]:
        """The shape of `name`, known even where it was not read."""
        if name not in self.shapes:
            raise CaptureError(f"no capture {name!r}; there are: {', '.join(self.names()) or 'none'}")
        return self.shapes[name]

    def has(self, name: str) -> bool:
        """Whether `name` was read."""
        return self.arrays is not None and name in self.arrays

    def names(self) -> list[str]:
        """Every capture of the forward, sorted."""
        return sorted(self.shapes)

    def per_head(self, name: str) -> list[NDArray[Any]]:
        """The array `[..., heads, m, n]` as one matrix per head; leading axes must have size 1."""
        array = self.get(name)
        if array.ndim < 3 or any(n != 1 for n in array.shape[:-3]):
            raise CaptureError(f"per_head: capture {name!r} has shape {list(array.shape)}, not [heads, m, n]")
        return list(array.reshape(array.shape[-3:]))

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.get(name)

    def __contains__(self, name: object) -> bool:
        return self.arrays is not None and name in self.arrays

    def __iter__(self) -> Iterator[str]:
        return iter(self.names() if self.arrays is not None else [])

    def __len__(self) -> int:
        return 0 if self.arrays is None else len(self.arrays)


class Pending:
    """A call that was submitted."""

    __slots__ = ("__weakref__", "_check", "_lock", "_outcome", "_shapes", "_ticket")

    def __init__(
        self,
        ticket: Ticket,
        shapes: Mapping[str, tuple[int, ...]],
        check: Callable[[], None] | None = None,
    ) -> None:
        """Wrap a ticket; `check` raises what is wrong although the ticket is fine."""
        self._ticket: Ticket | None = ticket
        self._shapes = shapes
        self._check = check
        self._lock = Lock()
        self._outcome: Mapping[str, NDArray[Any]] | BaseException | None = None

    def done(self) -> bool:
        """Whether the results can be read without waiting."""
        ticket = self._ticket
        return ticket is None or ticket.done()

    def settle(self) -> None:
        """Wait until it has run; what went wrong is raised when the results are read."""
        with self._lock:
            if self._ticket is None:
                return
            try:
                self._outcome = self._ticket.read()
            except Exception as error:  # kept, and raised to whoever reads
                self._outcome = error
            self._ticket = None

    def unchecked(self) -> Mapping[str, NDArray[Any]]:
        """The results, by name, of a step that may not have been finite: to read many and then ask once."""
        self.settle()
        outcome = self._outcome
        if isinstance(outcome, BaseException):
            raise outcome
        assert outcome is not None
        return outcome

    def _values(self) -> Mapping[str, NDArray[Any]]:
        outcome = self.unchecked()
        if self._check is not None:
            # Not inside settle: the check takes the lock of the device, which a caller of settle may hold.
            self._check()
        return outcome

    @property
    def captures(self) -> Captures:
        """The captures of this call; empty unless it went through `with_captures`."""
        values = self._values()
        read = {k.removeprefix(CAPTURE): v for k, v in values.items() if k.startswith(CAPTURE)}
        return Captures(self._shapes, read if read or not self._shapes else None)

    def _shown(self, name: str) -> str:
        if not self.done():
            return "..."
        try:
            return repr(getattr(self, name))
        except Exception as error:  # a repr must not raise what the result is there to raise
            return type(error).__name__

    def _wait(self) -> Generator[Any]:
        if not self.done():
            yield from asyncio.get_running_loop().run_in_executor(None, self.settle).__await__()
        self._values()


class StepResult(Pending):
    """One training step, returned as soon as it is submitted.

    Attributes:
        step: Its number; the first is 1.
    """

    __slots__ = ("step",)

    def __init__(
        self,
        ticket: Ticket,
        shapes: Mapping[str, tuple[int, ...]],
        step: int,
        check: Callable[[], None] | None = None,
    ) -> None:
        """Wrap the ticket of a step."""
        super().__init__(ticket, shapes, check)
        self.step = step

    @property
    def loss(self) -> float:
        """The loss before the update; waits until the step has run."""
        return float(self._values()["loss"])

    def __float__(self) -> float:
        return self.loss

    def __await__(self) -> Generator[Any, None, StepResult]:
        yield from self._wait()
        return self

    def __repr__(self) -> str:
        return f"StepResult(step={self.step}, loss={self._shown('loss')})"


class RunResult(Pending, Generic[S]):
    """One evaluation, returned as soon as it is submitted."""

    __slots__ = ()

    @property
    def output(self) -> NDArray[S]:
        """What the forward returned; waits until it has run."""
        values = self._values()
        return values["output"] if "output" in values else values["loss"]

    def __await__(self) -> Generator[Any, None, RunResult[S]]:
        yield from self._wait()
        return self

    def __repr__(self) -> str:
        return f"RunResult(output={self._shown('output')})"
