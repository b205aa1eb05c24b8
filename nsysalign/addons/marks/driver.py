"""The few libcuda calls that a buffer needs, through ctypes, without importing a framework."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator

from nsysalign.errors import NsysAlignError

_lock = threading.Lock()
_library: ctypes.CDLL | None = None
_NON_BLOCKING = 1
_SM_COUNT = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT


class NoDevice(NsysAlignError):
    """There is no GPU that this process can use, or the driver refuses."""


def _load() -> ctypes.CDLL:
    global _library
    with _lock:
        if _library is None:
            try:
                found = ctypes.CDLL("libcuda.so.1")
            except OSError as error:
                raise NoDevice(f"no CUDA driver: {error}", "marks need an NVIDIA GPU") from error
            _check(found, found.cuInit(0), "cuInit")
            _library = found
    return _library


def _check(library: ctypes.CDLL, status: int, what: str) -> None:
    if status:
        text = ctypes.c_char_p()
        library.cuGetErrorName(status, ctypes.byref(text))
        raise NoDevice(
            f"{what}: {(text.value or b'error').decode()} ({status})",
            "nvidia-smi shows the device and its free memory",
        )


class Device:
    """The primary context of a device, kept as long as this object."""

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self._cuda = _load()
        self._device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(self._device), ctypes.c_int(ordinal))
        self._context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._device)

    def _call(self, name: str, *arguments: object) -> None:
        _check(self._cuda, getattr(self._cuda, name)(*arguments), name)

    @contextlib.contextmanager
    def _current(self) -> Iterator[None]:
        self._call("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            self._cuda.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))

    def multiprocessors(self) -> int:
        """How many SMs the device has."""
        count = ctypes.c_int()
        self._call(
            "cuDeviceGetAttribute", ctypes.byref(count), ctypes.c_int(_SM_COUNT), self._device
        )
        return count.value

    def allocate(self, size: int, begins: bytes) -> int:
        """The address of zeroed memory of this size that begins with these bytes."""
        address = ctypes.c_uint64()
        with self._current():
            self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
            self._call("cuMemsetD8_v2", address, ctypes.c_ubyte(0), ctypes.c_size_t(size))
            self._call("cuMemcpyHtoD_v2", address, begins, ctypes.c_size_t(len(begins)))
            self._call("cuCtxSynchronize")  # a memset may still be on its way
        return address.value

    def wait(self, seconds: float) -> bool:
        """Wait until the device is idle, at most this long; returns whether it is.  A kernel that
        never ends must not hold up the end of its process."""
        done = threading.Event()

        def synchronize() -> None:
            with contextlib.suppress(NoDevice), self._current():
                self._call("cuCtxSynchronize")
            done.set()

        threading.Thread(target=synchronize, daemon=True).start()
        return done.wait(seconds)

    def stream(self) -> ctypes.c_void_p:
        """A stream that does not synchronise with others."""
        stream = ctypes.c_void_p()
        with self._current():
            self._call("cuStreamCreate", ctypes.byref(stream), ctypes.c_uint(_NON_BLOCKING))
        return stream

    def read(self, address: int, size: int, stream: ctypes.c_void_p) -> bytearray:
        """Bytes of the device's memory, copied on that stream: kernels may be running meanwhile."""
        into = bytearray(size)
        if size:
            place = (ctypes.c_char * size).from_buffer(into)
            with self._current():
                self._call(
                    "cuMemcpyDtoHAsync_v2",
                    place,
                    ctypes.c_uint64(address),
                    ctypes.c_size_t(size),
                    stream,
                )
                self._call("cuStreamSynchronize", stream)
            del place
        return into


def current_ordinal() -> int:
    """The device of the context that is current in this thread, 0 if there is none."""
    cuda = _load()
    context, device = ctypes.c_void_p(), ctypes.c_int()
    if cuda.cuCtxGetCurrent(ctypes.byref(context)) or not context.value:
        return 0
    return 0 if cuda.cuCtxGetDevice(ctypes.byref(device)) else device.value
