"""The one door to wgpu: adapters, buffers, pipelines, encoding, mapping.

Two shortcuts live here, each with a switch, because they reach below the binding's public
API: shader modules without run-time checks (1.2 to 2.5 times faster matrix products; sound
because every index is in range by construction), and encoding through the native library
while the interpreter lock is kept (a hundred times faster beside a busy Python thread).
`TGDSL_CHECKED_SHADERS=1` and `TGDSL_PUBLIC_ENCODING=1` turn them off.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import numpy as np
import wgpu
from numpy.typing import NDArray

from tgdsl.errors import DeviceError
from tgdsl.program import ALIGN, Kernel

from .calls import Arrival, Calls, Command, Copy, PublicCalls, Words
from .native import TESTED, NativeCalls, trusted_module

log = logging.getLogger("tgdsl")

LONGEST_WAIT = 120.0
"""Seconds after which a device that does not answer counts as lost."""

SPINS = 2000
"""Polls before a wait begins to sleep."""

STORAGE = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
STAGING = wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST


@attrs.frozen
class Limits:
    """What an adapter can do, as the compiler needs it."""

    max_bindings: int
    max_binding_bytes: int
    max_buffer_bytes: int
    max_invocations: int
    max_workgroup_bytes: int
    software: bool


def find_adapter(*, hardware_only: bool) -> Any:
    """The adapter to use: a GPU if there is one; asked for again with back-off, as drivers may be starting."""
    for delay in (0.0, 0.1, 0.4):
        time.sleep(delay)
        adapters = [a for a in wgpu.gpu.enumerate_adapters_sync() if a.info["backend_type"] != "OpenGL"]
        hardware = [a for a in adapters if a.info["adapter_type"] != "CPU"]
        if hardware:
            return min(hardware, key=lambda a: a.info["adapter_type"] != "DiscreteGPU")
        if adapters and not hardware_only:
            return adapters[0]
        if adapters:
            break
    what = "no GPU was found" if hardware_only else "no WebGPU adapter was found, not even a software one"
    raise DeviceError(what, hint="install a Vulkan driver (on Debian: mesa-vulkan-drivers), or use backend='numpy'")


class Device:
    """A WebGPU device and its queue.

    Attributes:
        lock: Held by whoever talks to the device, so that all calls have one order.
        limits: For the compiler.
    """

    def __init__(self, *, hardware_only: bool = False) -> None:
        """Open the best adapter."""
        adapter = find_adapter(hardware_only=hardware_only)
        self.info: dict[str, Any] = dict(adapter.info)
        wanted = (
            "max-storage-buffer-binding-size",
            "max-buffer-size",
            "max-compute-invocations-per-workgroup",
            "max-compute-workgroup-size-x",
            "max-compute-workgroup-storage-size",
            "max-storage-buffers-per-shader-stage",
        )
        offered = adapter.limits
        features = [f for f in ("timestamp-query",) if f in adapter.features]
        try:
            self.native = adapter.request_device_sync(
                required_features=features, required_limits={k: offered[k] for k in wanted if k in offered}
            )
        except Exception as error:
            raise DeviceError(f"{adapter.summary}: the device could not be opened: {error}") from error
        limits = self.native.limits
        self.limits = Limits(
            max_bindings=8,  # what every adapter and browser offers
            max_binding_bytes=int(limits["max-storage-buffer-binding-size"]),
            max_buffer_bytes=int(limits["max-buffer-size"]),
            max_invocations=int(limits["max-compute-invocations-per-workgroup"]),
            max_workgroup_bytes=int(limits["max-compute-workgroup-storage-size"]),
            software=self.info["adapter_type"] == "CPU",
        )
        self.lock = threading.RLock()
        self.timestamps = "timestamp-query" in features
        self._layouts: dict[tuple[bool, ...], tuple[Any, Any]] = {}
        self._pipelines: dict[str, Any] = {}
        tested = wgpu.__version__.startswith(TESTED)
        self.trusted = tested and os.environ.get("TGDSL_CHECKED_SHADERS") != "1"
        native = tested and os.environ.get("TGDSL_PUBLIC_ENCODING") != "1"
        self.calls: Calls = (_native_calls(self.native) if native else None) or PublicCalls(self.native)
        self.fast = not isinstance(self.calls, PublicCalls)
        for name, there in (("unchecked shader modules", self.trusted), ("native encoding", self.fast)):
            if not there:
                log.info("%s are not used with wgpu %s", name, wgpu.__version__)

    @property
    def description(self) -> str:
        """The adapter, its driver, and which shortcuts are in force."""
        notes = [f"wgpu {wgpu.__version__}"]
        notes += ["software adapter"] if self.limits.software else []
        notes += [] if self.trusted else ["checked shaders"]
        notes += [] if self.fast else ["public encoding"]
        i = self.info
        return f"{i['device']} ({i['backend_type']}; {i['description']}; {', '.join(notes)})"

    # -- resources ----------------------------------------------------------

    def buffer(self, name: str, nbytes: int, *, staging: bool = False) -> Any:
        """A zeroed buffer."""
        if nbytes > self.limits.max_buffer_bytes:
            raise DeviceError(
                f"{name} needs {nbytes:,} bytes, more than the {self.limits.max_buffer_bytes:,} "
                f"of one buffer on {self.info['device']}"
            )
        try:
            return self.native.create_buffer(
                label=name, size=-(-nbytes // 4) * 4, usage=STAGING if staging else STORAGE
            )
        except Exception as error:
            raise DeviceError(f"{name}: no memory for {nbytes:,} bytes: {error}") from error

    def write(self, buffer: Any, offset: int, data: NDArray[Any] | bytes) -> None:
        """Write after everything submitted so far."""
        words = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else np.ascontiguousarray(data)
        self.calls.write(buffer, offset, words)

    def read(self, buffer: Any, offset: int, nbytes: int) -> memoryview:
        """Read after everything submitted so far; waits."""
        return self.native.queue.read_buffer(buffer, offset, nbytes)  # type: ignore[no-any-return]

    def pipeline(self, kernel: Kernel) -> Any:
        """The pipeline of a kernel; kernels of equal text share one."""
        found = self._pipelines.get(kernel.wgsl)
        if found is None:
            _, layout = self._layout(kernel.bindings)
            try:
                module = self._module(kernel)
                found = self.native.create_compute_pipeline(
                    label=kernel.name, layout=layout, compute={"module": module, "entry_point": "main"}
                )
            except Exception as error:
                raise DeviceError(
                    f"kernel {kernel.name} was refused by the driver: {error}\n{_numbered(kernel.wgsl)}"
                ) from error
            self._pipelines[kernel.wgsl] = found
        return found

    @property
    def pipeline_count(self) -> int:
        """How many distinct pipelines were made."""
        return len(self._pipelines)

    def _layout(self, bindings: tuple[bool, ...]) -> tuple[Any, Any]:
        if bindings not in self._layouts:
            entries = [
                {
                    "binding": i,
                    "visibility": wgpu.ShaderStage.COMPUTE,
                    "buffer": {"type": "storage" if writable else "read-only-storage"},
                }
                for i, writable in enumerate(bindings)
            ]
            group = self.native.create_bind_group_layout(entries=entries)
            self._layouts[bindings] = group, self.native.create_pipeline_layout(bind_group_layouts=[group])
        return self._layouts[bindings]

    def _module(self, kernel: Kernel) -> Any:
        if self.trusted and kernel.trusted:
            return trusted_module(_internals(), self.native, kernel)
        return self.native.create_shader_module(label=kernel.name, code=kernel.wgsl)

    def bind_group(self, kernel: Kernel, ranges: Sequence[tuple[Any, int, int]]) -> Any:
        """A bind group over ranges `(buffer, offset, nbytes)`."""
        group, _ = self._layout(kernel.bindings)
        entries = [
            {"binding": i, "resource": {"buffer": buffer, "offset": offset, "size": size}}
            for i, (buffer, offset, size) in enumerate(ranges)
        ]
        try:
            return self.native.create_bind_group(label=kernel.name, layout=group, entries=entries)
        except Exception as error:
            raise DeviceError(f"kernel {kernel.name}: its buffers cannot be bound: {error}") from error

    # -- work ---------------------------------------------------------------

    def command(self, pipeline: Any, bind_group: Any, groups: tuple[int, int, int]) -> Command:
        """One dispatch made ready."""
        return self.calls.command(pipeline, bind_group, groups)

    def submit(self, commands: Iterable[Command], copies: Sequence[Copy]) -> None:
        """Run commands in one pass, then copies, in one submission."""
        try:
            self.calls.submit((), commands, copies)
        except DeviceError:
            raise
        except Exception as error:
            raise DeviceError(f"the device refused a submission: {error}") from error

    def map(self, staging: Any, nbytes: int) -> Mapping:
        """Begin to map the start of a staging buffer, after everything submitted so far."""
        return Mapping(self.calls.map(staging, nbytes))


class Mapping:
    """A staging buffer on its way to the host."""

    def __init__(self, arrival: Arrival) -> None:
        """Made by `Device.map`."""
        self._arrival = arrival

    def done(self) -> bool:
        """Whether it has arrived; never waits."""
        return self._arrival.done()

    def read(self) -> Words:
        """Wait, copy the words out and unmap."""
        deadline = time.monotonic() + LONGEST_WAIT
        spins = 0
        while not self._arrival.done():
            # Short waits spin, because a sleep is longer than most steps of a small model.
            spins += 1
            if spins > SPINS:
                time.sleep(5e-5 if spins < 50 * SPINS else 1e-3)
            if time.monotonic() > deadline:
                raise DeviceError(f"the device has not answered for {LONGEST_WAIT} seconds", hint="was it lost?")
        return self._arrival.take()


def _internals() -> Any:
    """The module of the binding that the shortcuts reach into."""
    from wgpu.backends.wgpu_native import _api  # the import is the shortcut

    return _api


def _native_calls(device: Any) -> NativeCalls | None:
    try:
        from wgpu.backends.wgpu_native import lib_path  # the import is the shortcut

        return NativeCalls(_internals(), lib_path, device)
    except (ImportError, OSError, AttributeError) as error:
        log.info("native encoding is not available: %s", error)
        return None


def _numbered(text: str) -> str:
    return "\n".join(f"{i:4} {line}" for i, line in enumerate(text.splitlines(), 1))


def aligned_slot(nbytes: int) -> int:
    """Bytes that one step's part of a buffer takes, so that each part can be bound."""
    return -(-nbytes // ALIGN) * ALIGN
