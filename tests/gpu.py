"""The fixture of every test that needs an adapter."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tgdsl.errors import DeviceError
from tgdsl.pipeline import choose_engine


def expected() -> bool:
    """Whether a missing adapter is a failure: a skip in CI would look like a pass."""
    return os.environ.get("TGDSL_EXPECT_GPU") == "1" or os.environ.get("CI", "").lower() in ("1", "true")


@pytest.fixture(scope="session")
def engine() -> Any:
    """The WebGPU engine of this process, on any adapter; without one tests are skipped, or fail if one is expected."""
    try:
        return choose_engine("wgpu")
    except (DeviceError, ImportError, OSError) as error:
        if expected():
            pytest.fail(f"no WebGPU adapter, though one is expected: {error}")
        pytest.skip(f"NO WEBGPU ADAPTER, WGSL IS NOT TESTED: {error}")
