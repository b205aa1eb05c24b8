"""The probe's own calls to the CUDA driver, through ctypes: which stream this is, whether it is
capturing, whether an event is complete (the runtime's own query would clear the program's last
error); and a stream for the probe.
"""

from __future__ import annotations

import ctypes

from . import failed

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_HANDLE, _UNKNOWN = ctypes.c_void_p, 1
_FUNCTIONS = {
    "cuStreamGetId": (_HANDLE, ctypes.POINTER(ctypes.c_ulonglong)),  # 12.0 or newer
    "cuStreamIsCapturing": (_HANDLE, ctypes.POINTER(ctypes.c_int)),
    "cuStreamCreate": (ctypes.POINTER(_HANDLE), ctypes.c_uint),
    "cuEventQuery": (_HANDLE,),
    "cuEventElapsedTime": (ctypes.POINTER(ctypes.c_float), _HANDLE, _HANDLE),
    "cuCtxGetDevice": (ctypes.POINTER(ctypes.c_int),),
    "cuDeviceGetCount": (ctypes.POINTER(ctypes.c_int),),
    "cuDevicePrimaryCtxGetState": (
        ctypes.c_int,
        ctypes.POINTER(ctypes.c_uint),
        ctypes.POINTER(ctypes.c_int),
    ),
    "cuDriverGetVersion": (ctypes.POINTER(ctypes.c_int),),
}


def _absent(*arguments: object) -> int:
    return _UNKNOWN


class Driver:
    """All answers are "unknown" where there is no driver, or one without the function.

    Ids are cached per handle only for torch's own streams, which are never destroyed; the handle of
    an external stream can be reused by another stream, so it is queried every time (0.4 us).
    """

    def __init__(self) -> None:
        self.ids: dict[int, int] = {}
        library = None
        try:
            library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            if "cannot open shared object" not in str(error):  # not absent: damaged
                failed(error)
        self._calls = {}
        for name, types in _FUNCTIONS.items():
            call = self._calls[name] = getattr(library, name, _absent)
            call.argtypes = types

    def current_device(self) -> int:
        """The device of the current context, -1 if there is none."""
        out = ctypes.c_int(-1)
        self._calls["cuCtxGetDevice"](out)
        return out.value

    def has_context(self) -> bool:
        """Whether the process has a context on any device, as every library makes one that uses
        CUDA.  Asking makes none."""
        count, flags, active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
        if self._calls["cuDeviceGetCount"](count):  # nobody has initialised the driver
            return False
        state = self._calls["cuDevicePrimaryCtxGetState"]
        return any(
            not state(device, flags, active) and active.value for device in range(count.value)
        )

    def version(self) -> int:
        """The newest CUDA that the driver knows, 13030 for 13.3; 0 without a driver."""
        out = ctypes.c_int()
        self._calls["cuDriverGetVersion"](out)
        return out.value

    def elapsed_ms(self, start: int, end: int) -> float:
        """The time between two complete events, by their handles.  Raises RuntimeError."""
        out = ctypes.c_float()
        if self._calls["cuEventElapsedTime"](out, start, end):
            raise RuntimeError("the driver cannot compare these events")
        return out.value

    def new_stream(self) -> int | None:
        """The handle of a new stream of the current context that the legacy default stream does not
        wait for."""
        out = _HANDLE()
        return None if self._calls["cuStreamCreate"](out, _NON_BLOCKING) else out.value

    def is_complete(self, event: int) -> bool:
        """Whether the latest record of the event (its handle) is complete."""
        return self._calls["cuEventQuery"](event) == 0

    def stream_id(self, stream: object, handle: int) -> int:
        """The driver's number of the stream, -1 unknown."""
        if handle in self.ids:
            return self.ids[handle]
        get_id, out = self._calls["cuStreamGetId"], ctypes.c_ulonglong()
        if get_id is _absent:
            self.ids[handle] = -1
            return -1
        answer = -1 if handle < 0 or get_id(handle, out) else int(out.value)
        # torch gives an external stream its handle as stream_id; its own have small odd numbers, 0
        # is the default
        if answer >= 0 and (handle == 0 or getattr(stream, "stream_id", handle) != handle):
            self.ids[handle] = answer
        return answer

    def is_capturing(self, handle: int) -> bool:
        out = ctypes.c_int()
        failed = handle < 0 or self._calls["cuStreamIsCapturing"](handle, out)
        return not failed and out.value != 0
