"""Both ways of calling the device: every test of the runtime runs on each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tgdsl.runtime.wgpu_engine import WgpuEngine


@pytest.fixture(scope="session", params=["native calls", "public calls"])
def wgpu_engine(engine: Any, request: pytest.FixtureRequest) -> Iterator[WgpuEngine]:
    """The engine of the process, and one that keeps to the public API of the binding."""
    if request.param == "native calls":
        yield engine
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TGDSL_PUBLIC_ENCODING", "1")
        made = WgpuEngine()
    yield made  # not inside: the variable would reach the devices that other tests open
