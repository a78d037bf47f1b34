"""The one door to wgpu: adapters, buffers, pipelines, and waiting.

What a step calls is in `calls` (the binding's public API) and `native` (the same, below it).
Both that and shader modules without run-time checks are used with tested versions of the
binding; `TGDSL_PUBLIC_ENCODING=1` and `TGDSL_CHECKED_SHADERS=1` turn them off.

Waits poll and never block in the driver: a blocking wait takes 50 us more on an NVIDIA GPU,
holds up submissions of other threads, and can deadlock on Metal.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, Literal, TypeAlias
from weakref import WeakValueDictionary

import attrs
import numpy as np
import wgpu
from numpy.typing import NDArray

from tgdsl.errors import DeviceError
from tgdsl.program import Kernel

from .calls import Arrival, Calls, Command, Copy, PublicCalls, Words
from .native import TESTED, NativeCalls, trusted_module

log = logging.getLogger("tgdsl")

LONGEST_WAIT: Final = 120.0
"""Seconds after which a device that does not answer counts as lost."""

SPIN: Final = 0.002
"""Seconds that a wait polls before it begins to sleep: a sleep is longer than most steps of a small model."""

IN_FLIGHT: Final = 32
"""Submissions that may be on their way."""

POOLED: Final = 64 << 20
"""Bytes of staging buffers that are kept for reuse."""

STORAGE: Final = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
STAGING: Final = wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST

_Key: TypeAlias = tuple[str, tuple[bool, ...], bool]
"""What makes two kernels one pipeline."""

_OWN: Final = (
    "max-storage-buffer-binding-size",
    "max-buffer-size",
    "max-compute-invocations-per-workgroup",
    "max-compute-workgroup-size-x",
    "max-compute-workgroup-size-y",
    "max-compute-workgroup-storage-size",
    "max-compute-workgroups-per-dimension",
)
"""Limits that are raised to what the adapter offers."""

_OPTIONAL: Final = ("timestamp-query", "shader-f16", "subgroup")


@attrs.frozen
class Limits:
    """What an adapter can do, as the compiler needs it.

    Attributes:
        max_bindings: Storage buffers of one kernel.
        max_binding_bytes: Bytes of one binding.
        max_buffer_bytes: Bytes of one buffer.
        max_workgroup_invocations: Threads of one workgroup.
        max_workgroup_storage: Bytes of workgroup memory.
        max_groups_per_dim: Workgroups along one axis of a dispatch.
        software: Whether a CPU plays the GPU.
        half: Whether kernels may store f16.
    """

    max_bindings: int
    max_binding_bytes: int
    max_buffer_bytes: int
    max_workgroup_invocations: int
    max_workgroup_storage: int
    max_groups_per_dim: int
    software: bool
    half: bool


def find_adapter(*, hardware_only: bool) -> Any:
    """The adapter to use: a GPU if there is one; asked for again with back-off, as drivers may be starting."""
    found: list[Any] = []
    for delay in (0.0, 0.1, 0.4):
        time.sleep(delay)
        found = [a for a in wgpu.gpu.enumerate_adapters_sync() if a.info["backend_type"] != "OpenGL"]
        if found:
            break
    hardware = [a for a in found if a.info["adapter_type"] != "CPU"]
    if hardware:
        return min(hardware, key=lambda a: a.info["adapter_type"] != "DiscreteGPU")
    if found and not hardware_only:
        return found[0]
    what = "no GPU was found" if hardware_only else "no WebGPU adapter was found, not even a software one"
    raise DeviceError(what, hint="install a Vulkan driver (on Debian: mesa-vulkan-drivers), or use backend='numpy'")


def open_device(name: Literal["auto", "wgpu"] = "wgpu") -> Device:
    """Open the best adapter; `auto` refuses software adapters, which are slower than NumPy."""
    return Device(hardware_only=name == "auto")


class Device:
    """A WebGPU device and its queue.

    Attributes:
        lock: Held by whoever talks to the device, so that all calls have one order.
        limits: For the compiler.
        features: Optional features that are enabled.
        native: The device of the binding.
    """

    def __init__(self, *, hardware_only: bool = False, max_bindings: int = 8) -> None:
        """Open the best adapter; eight bindings are what every adapter and browser offers."""
        adapter = find_adapter(hardware_only=hardware_only)
        self.info: dict[str, Any] = dict(adapter.info)
        self.lock = threading.RLock()
        self.features = frozenset(f for f in _OPTIONAL if f in adapter.features)
        self.native = _request(adapter, self.features, max_bindings)
        software, half = self.info["adapter_type"] == "CPU", "shader-f16" in self.features
        self.limits = _limits(self.native.limits, max_bindings, software=software, half=half)
        self.calls, self.trusted = _shortcuts(self.native)
        self._layouts: dict[tuple[bool, ...], tuple[Any, Any]] = {}
        self._pipelines: WeakValueDictionary[_Key, Any] = WeakValueDictionary()
        self._pool: dict[int, list[Any]] = {}
        self._pooled = 0
        self._submitted = 0
        self._fence: Arrival | None = None
        self._fence_buffer = self.buffer("fence", 4, staging=True)

    @property
    def fast(self) -> bool:
        """Whether steps are encoded below the public API."""
        return isinstance(self.calls, NativeCalls)

    @property
    def description(self) -> str:
        """The adapter, its driver, and which shortcuts are not in force."""
        notes = [f"wgpu {wgpu.__version__}"]
        notes += ["software adapter"] if self.limits.software else []
        notes += [] if self.trusted else ["checked shaders"]
        notes += [] if self.fast else ["public encoding"]
        i = self.info
        return f"{i['device']} ({i['backend_type']}; {i['description']}; {', '.join(notes)})"

    @property
    def identity(self) -> dict[str, str]:
        """What measurements on this device depend on."""
        return {name: str(self.info[name]) for name in ("device", "description", "backend_type")} | {
            "wgpu": str(wgpu.__version__)
        }

    # -- buffers ------------------------------------------------------------

    def buffer(self, name: str, nbytes: int, *, staging: bool = False) -> Any:
        """A zeroed buffer."""
        if nbytes > self.limits.max_buffer_bytes:
            most = f"{self.limits.max_buffer_bytes:,} of one buffer on {self.info['device']}"
            raise DeviceError(f"{name} needs {nbytes:,} bytes, more than the {most}")
        usage = STAGING if staging else STORAGE
        try:
            return self.native.create_buffer(label=name, size=max(4, -(-nbytes // 4) * 4), usage=usage)
        except Exception as error:
            raise DeviceError(f"{name}: no memory for {nbytes:,} bytes: {error}") from error

    def staging(self, nbytes: int) -> Any:
        """A buffer that can be mapped, of at least that size; new or used before."""
        size = max(4096, 1 << (nbytes - 1).bit_length())
        free = self._pool.get(size)
        if free:
            self._pooled -= size
            return free.pop()
        return self.buffer("results", size if size <= self.limits.max_buffer_bytes else nbytes, staging=True)

    def recycle(self, staging: Any) -> None:
        """Give an unmapped staging buffer back."""
        if self._pooled + staging.size > POOLED:
            staging.destroy()
            return
        self._pooled += staging.size
        self._pool.setdefault(staging.size, []).append(staging)

    def write(self, buffer: Any, offset: int, data: NDArray[Any] | bytes) -> None:
        """Write after everything submitted so far."""
        # The queue's own staging was at least as fast as a buffer mapped at creation, up to 32 MiB.
        words = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else np.ascontiguousarray(data)
        if not words.nbytes:
            return
        try:
            self.calls.write(buffer, offset, words)
        except DeviceError:
            raise
        except Exception as error:
            raise DeviceError(f"the device refused a write: {error}") from error

    def read(self, buffer: Any, offset: int, nbytes: int) -> Words:
        """Read after everything submitted so far; waits."""
        staging = self.staging(nbytes)
        self.submit([Copy(buffer, offset, staging, 0, nbytes)], (), ())
        arrival = self.calls.map(staging, nbytes)
        self.wait(arrival)
        words = arrival.take()
        self.recycle(staging)
        return words

    def query_buffer(self, nbytes: int) -> Any:
        """A buffer that timestamps can be resolved into."""
        usage = wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC
        return self.native.create_buffer(label="timestamps", size=nbytes, usage=usage)

    @property
    def nanoseconds_per_tick(self) -> float:
        """The unit of timestamps."""
        library = _internals().lib
        return float(library.wgpuQueueGetTimestampPeriod(self.native.queue._internal))

    # -- kernels ------------------------------------------------------------

    def pipelines(self, kernels: Sequence[Kernel]) -> list[Any]:
        """Their pipelines; kernels of equal text share one, as long as somebody holds it."""
        keys = [(k.wgsl, k.bindings, k.trusted) for k in kernels]
        found = {key: self._pipelines.get(key) for key in keys}  # held, or a collection in between could drop one
        missing = {key: k for key, k in zip(keys, kernels, strict=True) if found[key] is None}
        for kernel in missing.values():
            self._layout(kernel.bindings)
        # Drivers spend most of a compilation outside of any lock, the interpreter's too.
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            made = dict(zip(missing, pool.map(self._pipeline, missing.values()), strict=True))
        self._pipelines.update(made)
        return [made[key] if key in made else found[key] for key in keys]

    def _pipeline(self, kernel: Kernel) -> Any:
        _, layout = self._layout(kernel.bindings)
        try:
            if self.trusted and kernel.trusted:
                module = trusted_module(_internals(), self.native, kernel)
            else:
                module = self.native.create_shader_module(label=kernel.name, code=kernel.wgsl)
            compute = {"module": module, "entry_point": "main"}
            return self.native.create_compute_pipeline(label=kernel.name, layout=layout, compute=compute)
        except Exception as error:
            lines = _excerpt(kernel.wgsl, str(error))
            raise DeviceError(f"kernel {kernel.name} was refused by the driver: {error}\n{lines}") from error

    @property
    def pipeline_count(self) -> int:
        """How many distinct pipelines are held."""
        return len(self._pipelines)

    def _layout(self, bindings: tuple[bool, ...]) -> tuple[Any, Any]:
        if bindings not in self._layouts:
            kinds = ["storage" if writable else "read-only-storage" for writable in bindings]
            stage = wgpu.ShaderStage.COMPUTE
            entries = [{"binding": i, "visibility": stage, "buffer": {"type": kind}} for i, kind in enumerate(kinds)]
            group = self.native.create_bind_group_layout(entries=entries)
            self._layouts[bindings] = group, self.native.create_pipeline_layout(bind_group_layouts=[group])
        return self._layouts[bindings]

    def command(
        self, kernel: Kernel, pipeline: Any, ranges: Sequence[tuple[Any, int, int]], groups: tuple[int, int, int]
    ) -> Command:
        """A dispatch made ready, over ranges `(buffer, offset, nbytes)`."""
        layout, _ = self._layout(kernel.bindings)
        entries = [
            {"binding": i, "resource": {"buffer": buffer, "offset": offset, "size": size}}
            for i, (buffer, offset, size) in enumerate(ranges)
        ]
        try:
            bind_group = self.native.create_bind_group(label=kernel.name, layout=layout, entries=entries)
        except Exception as error:
            raise DeviceError(f"kernel {kernel.name}: its buffers cannot be bound: {error}") from error
        return self.calls.command(pipeline, bind_group, groups)

    # -- work ---------------------------------------------------------------

    def submit(self, before: Sequence[Copy], commands: Iterable[Command], after: Sequence[Copy]) -> None:
        """Copies, one pass of commands, and copies, as one submission; waits while too many are on their way."""
        self.run(self.encode(before, commands, after))

    def encode(self, before: Sequence[Copy], commands: Iterable[Command], after: Sequence[Copy]) -> Any:
        """Record a submission, to `run` it once."""
        with _refusing():
            return self.calls.encode(before, commands, after)

    def run(self, recorded: Any) -> None:
        """Submit what was recorded; waits while too many submissions are on their way."""
        with _refusing():
            self.calls.run(recorded)
        self._submitted += 1
        if self._submitted % (IN_FLIGHT // 2) == 0:
            self._await_fence()
            self._fence = self.calls.map(self._fence_buffer, 4)

    def _await_fence(self) -> None:
        if self._fence is not None:
            self.wait(self._fence)
            self._fence.take()
            self._fence = None

    def finish(self) -> None:
        """Wait for everything submitted so far."""
        self._await_fence()
        self._fence = self.calls.map(self._fence_buffer, 4)
        self._await_fence()

    def wait(self, arrival: Arrival) -> None:
        """Poll until a staging buffer is there; others may use the device meanwhile, unless the caller holds it."""
        start = time.perf_counter()
        pause = 5e-5
        while True:
            with self.lock:
                if arrival.done():
                    return
            waited = time.perf_counter() - start
            if waited > LONGEST_WAIT:
                raise DeviceError(f"the device has not answered for {LONGEST_WAIT:.0f} seconds", hint="was it lost?")
            arrival.pause(pause if waited > SPIN else 0.0)
            pause = min(1e-3, pause * 1.2) if waited > SPIN else pause


@contextmanager
def _refusing() -> Iterator[None]:
    """Errors of the binding as ours."""
    try:
        yield
    except DeviceError:
        raise
    except Exception as error:
        raise DeviceError(f"the device refused a submission: {error}") from error


def _request(adapter: Any, features: frozenset[str], max_bindings: int) -> Any:
    limits = {name: adapter.limits[name] for name in _OWN if name in adapter.limits}
    limits["max-storage-buffers-per-shader-stage"] = max_bindings
    try:
        return adapter.request_device_sync(required_features=sorted(features), required_limits=limits)
    except Exception as error:
        raise DeviceError(f"{adapter.summary}: the device could not be opened: {error}") from error


def _limits(of: Any, max_bindings: int, *, software: bool, half: bool) -> Limits:
    return Limits(
        max_bindings=max_bindings,
        max_binding_bytes=int(of["max-storage-buffer-binding-size"]) // 4 * 4,
        max_buffer_bytes=int(of["max-buffer-size"]) // 4 * 4,
        max_workgroup_invocations=int(of["max-compute-invocations-per-workgroup"]),
        max_workgroup_storage=int(of["max-compute-workgroup-storage-size"]),
        max_groups_per_dim=int(of["max-compute-workgroups-per-dimension"]),
        software=software,
        half=half,
    )


def _shortcuts(device: Any) -> tuple[Calls, bool]:
    """How steps are encoded, and whether shader modules go unchecked."""
    calls: Calls = PublicCalls(device)
    tested = wgpu.__version__.startswith(TESTED)
    if tested and os.environ.get("TGDSL_PUBLIC_ENCODING") != "1":
        try:
            from wgpu.backends.wgpu_native import lib_path  # the import is the shortcut

            calls = NativeCalls(_internals(), lib_path, device)
        except (ImportError, OSError, AttributeError) as error:
            log.info("native encoding is not available: %s", error)
    trusted = tested and os.environ.get("TGDSL_CHECKED_SHADERS") != "1"
    trusted = trusted and hasattr(_internals().libf, "wgpuDeviceCreateShaderModuleTrusted")
    for name, there in (("unchecked shader modules", trusted), ("native encoding", isinstance(calls, NativeCalls))):
        if not there:
            log.info("%s are not used with wgpu %s", name, wgpu.__version__)
    return calls, trusted


def _internals() -> Any:
    """The module of the binding that the shortcuts reach into."""
    from wgpu.backends.wgpu_native import _api  # the import is the shortcut

    return _api


def _excerpt(text: str, message: str) -> str:
    """The lines around the place that a compiler's message names, numbered; else the first ones."""
    found = re.search(r"wgsl:(\d+):\d+", message)
    middle = int(found[1]) if found else 1
    lines = text.splitlines()
    shown = range(max(1, middle - 4), min(len(lines), middle + (4 if found else 30)) + 1)
    return "\n".join(f"{'>' if found and i == middle else ' '}{i:4} {lines[i - 1]}" for i in shown)
