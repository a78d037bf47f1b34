"""The WebGPU backend as the rest of the package sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from numpy.typing import NDArray

from tgdsl.program import Program

from .dataset import DeviceDataset
from .device import Device, Limits
from .executable import DeviceExecutable
from .store import DeviceStore


class WgpuEngine:
    """Runs programs on a GPU through wgpu."""

    name: Literal["wgpu"] = "wgpu"

    def __init__(self, *, hardware_only: bool = False) -> None:
        """Open a device.

        Args:
            hardware_only: Refuse software adapters, which are slower than NumPy.

        Raises:
            DeviceError: If there is no adapter.
        """
        self.device = Device(hardware_only=hardware_only)

    @property
    def description(self) -> str:
        """The adapter, its driver, and which shortcuts are in force."""
        return self.device.description

    @property
    def limits(self) -> Limits:
        """What the adapter can do."""
        return self.device.limits

    def allocate(self, arenas: Mapping[str, int]) -> DeviceStore:
        """Zeroed arenas of that many f32 elements each."""
        with self.device.lock:
            return DeviceStore(self.device, arenas)

    def keep(self, rows: Mapping[str, NDArray[Any]], whole: Mapping[str, NDArray[Any]]) -> DeviceDataset:
        """A data set in device memory: arrays of which steps pick rows, and arrays that every step reads."""
        with self.device.lock:
            return DeviceDataset(self.device, rows, whole)

    def load(self, program: Program, store: DeviceStore, slots: int = 8) -> DeviceExecutable:
        """Make a program ready to run; up to `slots` steps go into one submission."""
        with self.device.lock:
            return DeviceExecutable(self.device, program, store, slots)
