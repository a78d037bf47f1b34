"""Every test of handles runs on each backend that this machine has."""

from __future__ import annotations

import os

import pytest

from tgdsl.errors import DeviceError
from tgdsl.pipeline import Backend, choose_engine


@pytest.fixture(params=["numpy", pytest.param("wgpu", marks=pytest.mark.gpu)])
def engine_name(request: pytest.FixtureRequest) -> Backend:
    """The name of a backend; a missing adapter skips, or fails where one is expected."""
    name: Backend = request.param
    try:
        choose_engine(name)
    except (DeviceError, ImportError) as error:
        if os.environ.get("TGDSL_EXPECT_GPU") == "1" or os.environ.get("CI"):
            raise
        pytest.skip(f"no {name}: {error}")
    return name
