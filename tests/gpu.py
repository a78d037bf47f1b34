"""The fixture of every test that needs an adapter."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tgdsl.errors import DeviceError


@pytest.fixture(scope="session")
def engine() -> Iterator[Any]:
    """The WebGPU engine; without an adapter the test is skipped, in CI it fails."""
    from tgdsl.pipeline import choose_engine

    try:
        yield choose_engine("wgpu")
    except DeviceError as error:
        if os.environ.get("TGDSL_EXPECT_GPU") == "1" or os.environ.get("CI"):
            pytest.fail(f"no WebGPU adapter in CI: {error}")
        pytest.skip(f"NO WEBGPU ADAPTER, WGSL IS NOT TESTED: {error}")
