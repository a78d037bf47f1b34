"""Results of calls that are still running, or that failed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tgdsl import DeviceError, RunResult, StepResult


class Slow:
    """A step that is done when it is told so."""

    def __init__(self, results: Mapping[str, Any] | Exception) -> None:
        self.results = results
        self.finished = threading.Event()
        self.reads = 0

    def done(self) -> bool:
        return self.finished.is_set()

    def read(self) -> Mapping[str, Any]:
        assert self.finished.wait(10)
        self.reads += 1
        if isinstance(self.results, Exception):
            raise self.results
        return self.results


def test_a_result_waits_only_when_it_is_looked_at() -> None:
    ticket = Slow({"loss": np.float32(0.5)})
    result = StepResult(ticket, {}, 3)
    assert (result.done(), repr(result)) == (False, "StepResult(step=3, loss=...)")
    threading.Timer(0.05, ticket.finished.set).start()
    assert result.loss == float(result) == 0.5
    assert (result.done(), repr(result), ticket.reads) == (True, "StepResult(step=3, loss=0.5)", 1)


def test_awaiting_a_result_leaves_the_loop_to_others() -> None:
    ticket = Slow({"output": np.arange(3)})
    result: RunResult[Any] = RunResult(ticket, {})
    assert repr(result) == "RunResult(output=...)"

    async def finish() -> None:
        ticket.finished.set()

    async def both() -> None:
        got, _ = await asyncio.gather(result, finish())
        assert got is result

    asyncio.run(both())
    assert result.output.tolist() == [0, 1, 2]
    assert repr(result) == "RunResult(output=array([0, 1, 2]))"


def test_what_went_wrong_is_raised_at_every_look() -> None:
    ticket = Slow(DeviceError("the device was lost"))
    result = StepResult(ticket, {"a": (2,)}, 1)
    ticket.finished.set()
    for _ in range(2):
        with pytest.raises(DeviceError, match="lost"):
            result.loss  # noqa: B018
    with pytest.raises(DeviceError, match="lost"):
        result.captures  # noqa: B018
    assert repr(result) == "StepResult(step=1, loss=DeviceError)"

    async def wait() -> None:
        await result

    with pytest.raises(DeviceError, match="lost"):
        asyncio.run(wait())
