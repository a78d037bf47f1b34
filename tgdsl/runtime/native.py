"""Two ways below the binding's public API, for the versions of it that were tested.

Shader modules without run-time checks make matrix products 1.2 to 2.5 times faster; that is
sound because every index is in range by construction or clamped.

The calls of a step go to the native library on raw handles while the interpreter lock is
kept. A call through the binding releases the lock, and beside a busy Python thread each one
then waits about 10 ms to get it back; kept, a submission costs the same as on a quiet
machine. Keeping it is safe: whoever calls holds the lock of the device, so no call waits for
a native lock whose holder waits for the interpreter.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tgdsl.errors import DeviceError
from tgdsl.program import Kernel

from .calls import Arrival, Command, Copy, Words

TESTED: Final = ("0.32.",)
"""Beginnings of the versions of the binding that this was tested with."""

_P, _W, _L, _N = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_size_t


class _Callback(ctypes.Structure):
    _fields_ = (("next", _P), ("mode", _W), ("callback", _P), ("userdata1", _P), ("userdata2", _P))


_SIGNATURES: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "DeviceCreateCommandEncoder": (_P, (_P, _P)),
    "CommandEncoderBeginComputePass": (_P, (_P, _P)),
    "CommandEncoderCopyBufferToBuffer": (None, (_P, _P, _L, _P, _L, _L)),
    "CommandEncoderFinish": (_P, (_P, _P)),
    "CommandEncoderRelease": (None, (_P,)),
    "CommandBufferRelease": (None, (_P,)),
    "ComputePassEncoderSetPipeline": (None, (_P, _P)),
    "ComputePassEncoderSetBindGroup": (None, (_P, _W, _P, _N, _P)),
    "ComputePassEncoderDispatchWorkgroups": (None, (_P, _W, _W, _W)),
    "ComputePassEncoderEnd": (None, (_P,)),
    "ComputePassEncoderRelease": (None, (_P,)),
    "QueueSubmit": (None, (_P, _N, _P)),
    "QueueWriteBuffer": (None, (_P, _P, _L, _P, _N)),
    "BufferMapAsync": (_L, (_P, _L, _N, _N, _Callback)),
    "BufferGetMappedRange": (_P, (_P, _N, _N)),
    "BufferUnmap": (None, (_P,)),
    "DevicePoll": (_W, (_P, _W, _P)),
}
"""Of the functions `wgpu...`: what they return and take. A one-word struct returns as its word."""

_MAP_READ: Final = 1


class NativeCalls:
    """`Calls` on raw handles."""

    def __init__(self, api: Any, path: str, device: Any) -> None:
        """Load the library that the binding has loaded already.

        Args:
            api: The module of the binding that holds `ffi`, `lib` and `error_handler`.
            path: The library.
            device: A device of the binding.

        Raises:
            AttributeError: If the library or the module is not as expected.
            OSError: If the library cannot be loaded.
        """
        self._api, self._errors = api, api.error_handler
        library = ctypes.PyDLL(path)
        self._call: dict[str, Any] = {}
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, f"wgpu{name}")
            function.restype, function.argtypes = result, list(arguments)
            self._call[name] = function
        self._device, self._queue = self.handle(device), self.handle(device.queue)
        self._modes = api.lib.WGPUCallbackMode_AllowProcessEvents, api.lib.WGPUMapAsyncStatus_Success
        self._coming: dict[int, _NativeArrival] = {}
        self._keys = 0
        self._mapped = api.ffi.callback("void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)", self._on_mapped)
        self._mapped_address = int(api.ffi.cast("uintptr_t", self._mapped))

    def handle(self, thing: Any) -> int:
        """The native handle of an object of the binding."""
        return int(self._api.ffi.cast("uintptr_t", thing._internal))

    @contextmanager
    def _raising(self, what: str = "a submission") -> Iterator[None]:
        """Raise what the device reports meanwhile, as the binding does around each call."""
        self._errors.capture("tgdsl")
        try:
            yield
        finally:
            found = self._errors.release("tgdsl")
        if found is not None:
            raise DeviceError(f"the device refused {what}: {found[0]}: {found[1]}")

    def command(self, pipeline: Any, bind_group: Any, groups: tuple[int, int, int]) -> Command:
        """See `Calls`."""
        return Command(self.handle(pipeline), self.handle(bind_group), groups, pipeline, bind_group)

    def encode(self, before: Sequence[Copy], commands: Iterable[Command], after: Sequence[Copy]) -> int:
        """See `Calls`."""
        call = self._call
        with self._raising():
            encoder = call["DeviceCreateCommandEncoder"](self._device, None)
            try:
                self._copy(encoder, before)
                self._dispatch(encoder, commands)
                self._copy(encoder, after)
                return int(call["CommandEncoderFinish"](encoder, None))
            finally:
                call["CommandEncoderRelease"](encoder)

    def run(self, recorded: int) -> None:
        """See `Calls`."""
        with self._raising():
            self._call["QueueSubmit"](self._queue, 1, (_P * 1)(recorded))
            self.forget(recorded)

    def forget(self, recorded: int) -> None:
        """See `Calls`."""
        self._call["CommandBufferRelease"](recorded)

    def _copy(self, encoder: int, copies: Sequence[Copy]) -> None:
        copy_buffer = self._call["CommandEncoderCopyBufferToBuffer"]
        for source, at, target, to, nbytes in copies:
            copy_buffer(encoder, self.handle(source), at, self.handle(target), to, nbytes)

    def _dispatch(self, encoder: int, commands: Iterable[Command]) -> None:
        call = self._call
        set_pipeline = call["ComputePassEncoderSetPipeline"]
        set_bind_group = call["ComputePassEncoderSetBindGroup"]
        dispatch = call["ComputePassEncoderDispatchWorkgroups"]
        compute = call["CommandEncoderBeginComputePass"](encoder, None)
        last = 0
        try:
            for pipeline, group, (x, y, z), _, _ in commands:
                if pipeline != last:
                    set_pipeline(compute, pipeline)
                    last = pipeline
                set_bind_group(compute, 0, group, 0, None)
                dispatch(compute, x, y, z)
            call["ComputePassEncoderEnd"](compute)
        finally:
            call["ComputePassEncoderRelease"](compute)

    def write(self, buffer: Any, offset: int, data: NDArray[Any]) -> None:
        """See `Calls`."""
        with self._raising():
            self._call["QueueWriteBuffer"](self._queue, self.handle(buffer), offset, data.ctypes.data, data.nbytes)

    def map(self, staging: Any, nbytes: int) -> Arrival:
        """See `Calls`."""
        self._keys += 1
        arrival = _NativeArrival(self, staging, nbytes)
        self._coming[self._keys] = arrival  # until the callback, whatever becomes of the caller
        info = _Callback(None, self._modes[0], self._mapped_address, self._keys, None)
        with self._raising("a mapping"):
            self._call["BufferMapAsync"](self.handle(staging), _MAP_READ, 0, nbytes, info)
        return arrival

    def _on_mapped(self, status: int, message: Any, key: Any, _: Any) -> None:
        arrival = self._coming.pop(int(self._api.ffi.cast("uintptr_t", key)))
        if status == self._modes[1]:
            arrival.state = "there"
        else:
            text = self._api.ffi.string(message.data, message.length) if message.length else b"no reason given"
            arrival.state = f"lost ({text.decode(errors='replace')})"

    def poll(self) -> None:
        """Let the device report what is done; never waits."""
        self._call["DevicePoll"](self._device, 0, None)

    def copy_out(self, staging: Any, nbytes: int) -> Words:
        """The words of a mapped buffer; unmaps it."""
        handle = self.handle(staging)
        address = self._call["BufferGetMappedRange"](handle, 0, nbytes)
        mapped = memoryview((ctypes.c_char * nbytes).from_address(address))
        # Not ndarray.copy: it lets go of the interpreter lock, and a busy thread would keep it for 5 ms.
        words = np.frombuffer(bytearray(mapped), np.uint32)
        self._call["BufferUnmap"](handle)
        return words


class _NativeArrival:
    def __init__(self, calls: NativeCalls, staging: Any, nbytes: int) -> None:
        self._calls, self._staging, self._nbytes = calls, staging, nbytes
        self.state = "coming"

    def done(self) -> bool:
        if self.state == "coming":
            self._calls.poll()
        return self.state != "coming"

    def pause(self, seconds: float) -> None:
        if seconds:
            time.sleep(seconds)

    def take(self) -> Words:
        if self.state != "there":
            raise DeviceError(f"results could not be read back: {self.state}", hint="was the device lost?")
        self.state = "taken"
        return self._calls.copy_out(self._staging, self._nbytes)


def trusted_module(api: Any, device: Any, kernel: Kernel) -> Any:
    """A shader module without bounds checks and loop bounds; otherwise as the public call makes it.

    Raises:
        AttributeError: If the library has no such function.
    """
    source = api.new_struct_p("WGPUShaderSourceWGSL *", code=api.to_c_string_view(kernel.wgsl))
    source[0].chain.next = api.ffi.NULL
    source[0].chain.sType = api.lib.WGPUSType_ShaderSourceWGSL
    descriptor = api.new_struct_p(
        "WGPUShaderModuleDescriptor *",
        nextInChain=api.ffi.cast("WGPUChainedStruct *", source),
        label=api.to_c_string_view(kernel.name),
    )
    checks = api.lib.WGPUShaderRuntimeChecks_None
    made = api.libf.wgpuDeviceCreateShaderModuleTrusted(device._internal, descriptor, checks)
    return api.GPUShaderModule(kernel.name, made, device)
