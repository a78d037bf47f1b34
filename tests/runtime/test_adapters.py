"""Which adapter is chosen, of made-up ones."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from tgdsl.errors import DeviceError
from tgdsl.runtime import device as module
from tgdsl.runtime.device import find_adapter


def adapter(kind: str, backend: str = "Vulkan") -> Any:
    return SimpleNamespace(info={"adapter_type": kind, "backend_type": backend})


@pytest.fixture
def offered(monkeypatch: Any) -> Any:
    """Lets a test say which adapters each look finds."""

    def offer(*looks: list[Any]) -> list[float]:
        slept: list[float] = []
        rounds = iter(looks)
        gpu = SimpleNamespace(enumerate_adapters_sync=lambda: next(rounds))
        monkeypatch.setattr(module, "wgpu", SimpleNamespace(gpu=gpu))
        monkeypatch.setattr(time, "sleep", slept.append)
        return slept

    return offer


def test_hardware_comes_before_software_and_discrete_before_integrated(offered: Any) -> None:
    offered([adapter("CPU"), adapter("IntegratedGPU"), adapter("DiscreteGPU")])
    assert find_adapter(hardware_only=False).info["adapter_type"] == "DiscreteGPU"
    offered([adapter("CPU"), adapter("DiscreteGPU", "OpenGL")])
    assert find_adapter(hardware_only=False).info["adapter_type"] == "CPU"


def test_driver_that_starts_late_is_waited_for(offered: Any) -> None:
    slept = offered([], [], [adapter("IntegratedGPU")])
    assert find_adapter(hardware_only=True).info["adapter_type"] == "IntegratedGPU"
    assert slept == [0.0, 0.1, 0.4]


def test_missing_adapter_is_told_with_what_to_install(offered: Any) -> None:
    offered([], [], [])
    with pytest.raises(DeviceError, match=r"no WebGPU adapter was found[\s\S]*mesa-vulkan-drivers"):
        find_adapter(hardware_only=False)
    offered([adapter("CPU")])
    with pytest.raises(DeviceError, match="no GPU was found"):
        find_adapter(hardware_only=True)
