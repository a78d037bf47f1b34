"""The one door to wgpu: adapters, buffers, pipelines, encoding, mapping.

Two shortcuts live here, each with a switch, because they reach below the binding's public
API: shader modules without run-time checks (1.2 to 2.5 times faster matrix products; sound
because every index is in range by construction), and encoding through the native library
while the interpreter lock is kept (a hundred times faster beside a busy Python thread).
`TGDSL_CHECKED_SHADERS=1` and `TGDSL_PUBLIC_ENCODING=1` turn them off.
"""

from __future__ import annotations

import ctypes
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

log = logging.getLogger("tgdsl")

TESTED = ("0.32.",)
"""Versions of the binding whose internals the shortcuts were tested with."""

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
        self._fast = None if os.environ.get("TGDSL_PUBLIC_ENCODING") == "1" or not tested else _native_library()
        for name, there in (("unchecked shader modules", self.trusted), ("native encoding", self._fast is not None)):
            if not there:
                log.info("%s are not used with wgpu %s", name, wgpu.__version__)

    @property
    def description(self) -> str:
        """The adapter, its driver, and which shortcuts are in force."""
        notes = [f"wgpu {wgpu.__version__}"]
        notes += ["software adapter"] if self.limits.software else []
        notes += [] if self.trusted else ["checked shaders"]
        notes += [] if self._fast is not None else ["public encoding"]
        i = self.info
        return f"{i['device']} ({i['backend_type']}; {i['description']}; {', '.join(notes)})"

    # -- resources ----------------------------------------------------------

    def buffer(self, name: str, nbytes: int, *, staging: bool = False) -> Any:
        """A zeroed buffer."""
        if nbytes > self.limits.max_buffer_bytes:
            raise DeviceError(
                f"{name} needs {nbytes:,} bytes, more than the {self.limits.max_buffer_bytes:,} of one buffer on {self.info['device']}"
            )
        try:
            return self.native.create_buffer(label=name, size=-(-nbytes // 4) * 4, usage=STAGING if staging else STORAGE)
        except Exception as error:
            raise DeviceError(f"{name}: no memory for {nbytes:,} bytes: {error}") from error

    def write(self, buffer: Any, offset: int, data: NDArray[Any] | bytes) -> None:
        """Write after everything submitted so far."""
        self.native.queue.write_buffer(buffer, offset, data)

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
                raise DeviceError(f"kernel {kernel.name} was refused by the driver: {error}\n{_numbered(kernel.wgsl)}") from error
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
            return _trusted_module(self.native, kernel)
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

    def submit(self, commands: Iterable[Command], copies: Sequence[tuple[Any, int, Any, int, int]]) -> None:
        """Run commands in one pass, then copies `(source, offset, target, offset, nbytes)`, in one submission."""
        encoder = self.native.create_command_encoder()
        pass_ = encoder.begin_compute_pass()
        if self._fast is None:
            for c in commands:
                pass_.set_pipeline(c.pipeline)
                pass_.set_bind_group(0, c.bind_group)
                pass_.dispatch_workgroups(*c.groups)
        else:
            _encode(self._fast, pass_, commands)
        pass_.end()
        for source, at, target, to, nbytes in copies:
            encoder.copy_buffer_to_buffer(source, at, target, to, nbytes)
        try:
            self.native.queue.submit([encoder.finish()])
        except Exception as error:
            raise DeviceError(f"the device refused a submission: {error}") from error

    def copy(self, copies: Sequence[tuple[Any, int, Any, int, int]]) -> None:
        """Copies in a submission of their own."""
        encoder = self.native.create_command_encoder()
        for source, at, target, to, nbytes in copies:
            encoder.copy_buffer_to_buffer(source, at, target, to, nbytes)
        self.native.queue.submit([encoder.finish()])

    def map(self, staging: Any) -> Mapping:
        """Begin to map a staging buffer, after everything submitted so far."""
        return Mapping(self, staging, staging.map_async("READ"))


@attrs.frozen
class Mapping:
    """A staging buffer on its way to the host."""

    device: Device
    staging: Any
    promise: Any

    def done(self) -> bool:
        """Whether it has arrived; never waits."""
        if self.promise._state == "pending":  # noqa: SLF001  (the binding has no public test)
            self.device.native._poll()  # noqa: SLF001
        return bool(self.promise._state != "pending")  # noqa: SLF001

    def read(self) -> NDArray[np.uint32]:
        """Wait, copy the words out and unmap."""
        try:
            self.promise.sync_wait()
            words = np.frombuffer(self.staging.read_mapped(copy=True), np.uint32)
            self.staging.unmap()
        except Exception as error:
            raise DeviceError(f"results could not be read back: {error}", hint="was the device lost?") from error
        return words


class Command:
    """One dispatch made ready: pipeline, bind group, grid, and their native handles."""

    __slots__ = ("bind_group", "groups", "native", "pipeline")

    def __init__(self, pipeline: Any, bind_group: Any, groups: tuple[int, int, int]) -> None:
        """Keep the objects alive beside their handles."""
        self.pipeline, self.bind_group, self.groups = pipeline, bind_group, groups
        self.native = (_handle(pipeline), _handle(bind_group))


def _handle(thing: Any) -> int:
    from wgpu.backends.wgpu_native._api import ffi  # noqa: PLC0415

    return int(ffi.cast("uintptr_t", thing._internal))  # noqa: SLF001


def _native_library() -> Any:
    """The three calls of encoding, through a loader that keeps the interpreter lock during them."""
    try:
        from wgpu.backends.wgpu_native import lib_path  # noqa: PLC0415

        library = ctypes.PyDLL(lib_path)
        pointer, word = ctypes.c_void_p, ctypes.c_uint32
        library.wgpuComputePassEncoderSetPipeline.argtypes = [pointer, pointer]
        library.wgpuComputePassEncoderSetBindGroup.argtypes = [pointer, word, pointer, ctypes.c_size_t, pointer]
        library.wgpuComputePassEncoderDispatchWorkgroups.argtypes = [pointer, word, word, word]
        for name in ("SetPipeline", "SetBindGroup", "DispatchWorkgroups"):
            getattr(library, f"wgpuComputePassEncoder{name}").restype = None
    except (ImportError, OSError, AttributeError) as error:
        log.info("native encoding is not available: %s", error)
        return None
    return library


def _encode(library: Any, pass_: Any, commands: Iterable[Command]) -> None:
    set_pipeline = library.wgpuComputePassEncoderSetPipeline
    set_bind_group = library.wgpuComputePassEncoderSetBindGroup
    dispatch = library.wgpuComputePassEncoderDispatchWorkgroups
    handle, last = _handle(pass_), 0
    for c in commands:
        pipeline, group = c.native
        if pipeline != last:
            set_pipeline(handle, pipeline)
            last = pipeline
        set_bind_group(handle, 0, group, 0, None)
        dispatch(handle, *c.groups)


def _trusted_module(device: Any, kernel: Kernel) -> Any:
    """A shader module without bounds checks and loop bounds; otherwise as the public call makes it."""
    from wgpu.backends.wgpu_native import _api as native  # noqa: PLC0415

    source = native.new_struct_p("WGPUShaderSourceWGSL *", code=native.to_c_string_view(kernel.wgsl))
    source[0].chain.next = native.ffi.NULL
    source[0].chain.sType = native.lib.WGPUSType_ShaderSourceWGSL
    chain = native.ffi.cast("WGPUChainedStruct *", source)
    descriptor = native.new_struct_p(
        "WGPUShaderModuleDescriptor *", nextInChain=chain, label=native.to_c_string_view(kernel.name)
    )
    made = native.libf.wgpuDeviceCreateShaderModuleTrusted(device._internal, descriptor, 0)  # noqa: SLF001
    return native.GPUShaderModule(kernel.name, made, device)


def _numbered(text: str) -> str:
    return "\n".join(f"{i:4} {line}" for i, line in enumerate(text.splitlines(), 1))


def aligned_slot(nbytes: int) -> int:
    """Bytes that one step's part of a buffer takes, so that each part can be bound."""
    return -(-nbytes // ALIGN) * ALIGN
