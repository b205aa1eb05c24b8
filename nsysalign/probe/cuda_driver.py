"""The probe's own calls to the CUDA driver, through ctypes: which stream this is, whether it is
capturing, whether an event is complete (the runtime's own query would clear the program's last
error); and a stream for the probe.
"""

from __future__ import annotations

import ctypes
import struct

from . import failed

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_ACCESS_POLICY, _PERSISTING = 1, 2  # CU_STREAM_ATTRIBUTE_..._WINDOW, CU_ACCESS_PROPERTY_...
#: CUaccessPolicyWindow in a CUstreamAttrValue of 64 bytes: address, size, ratio, hit, miss.
_WINDOW = struct.Struct("@PNfii")


class Driver:
    """cuStreamGetId (12.0 or newer) and cuStreamIsCapturing; both say "unknown" if there is no
    driver.

    Ids are cached per handle only for torch's own streams, which are never destroyed; the handle of
    an external stream can be reused by another stream, so it is queried every time (0.4 us).
    """

    def __init__(self) -> None:
        self.ids: dict[int, int] = {}
        self._get_id = self._is_capturing = self._query = self._create = self._library = None
        try:
            library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            if "cannot open shared object" not in str(error):  # not absent: damaged
                failed(error)
            return
        self._get_id = getattr(library, "cuStreamGetId", None)
        if self._get_id is not None:
            self._get_id.argtypes = (ctypes.c_void_p, ctypes.POINTER(ctypes.c_ulonglong))
        self._is_capturing = getattr(library, "cuStreamIsCapturing", None)
        if self._is_capturing is not None:
            self._is_capturing.argtypes = (ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))
        self._query = getattr(library, "cuEventQuery", None)
        if self._query is not None:
            self._query.argtypes = (ctypes.c_void_p,)
        self._library = library
        self._create = getattr(library, "cuStreamCreate", None)
        if self._create is not None:
            self._create.argtypes = (ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint)

    def current_device(self) -> int:
        """The device of the current context, -1 if there is none."""
        out = ctypes.c_int(-1)
        if self._library is not None:
            self._library.cuCtxGetDevice(ctypes.byref(out))
        return out.value

    def persisting(self) -> int:
        """How many bytes of the L2 the access policy of one of torch's streams keeps, at most."""
        sizes, ask = [0], getattr(self._library, "cuStreamGetAttribute", None)
        for handle in list(self.ids) if ask is not None else ():
            value = ctypes.create_string_buffer(64)
            if not ask(ctypes.c_void_p(handle), _ACCESS_POLICY, value):
                _, size, _, hit, _ = _WINDOW.unpack_from(value)
                sizes.append(size * (hit == _PERSISTING))
        return max(sizes)

    def version(self) -> int:
        """The newest CUDA that the driver knows, 13030 for 13.3; 0 without a driver."""
        out = ctypes.c_int()
        if self._library is not None:
            self._library.cuDriverGetVersion(ctypes.byref(out))
        return out.value

    def elapsed_ms(self, start: int, end: int) -> float:
        """The time between two complete events, by their handles.  Raises RuntimeError."""
        out = ctypes.c_float()
        handles = ctypes.c_void_p(start), ctypes.c_void_p(end)
        if self._library is None or self._library.cuEventElapsedTime(ctypes.byref(out), *handles):
            raise RuntimeError("the driver cannot compare these events")
        return out.value

    def new_stream(self) -> int | None:
        """The handle of a new stream of the current context that the legacy default stream does not
        wait for."""
        out = ctypes.c_void_p()
        if self._create is None or self._create(ctypes.byref(out), _NON_BLOCKING) != 0:
            return None
        return out.value

    def is_complete(self, event: int) -> bool:
        """Whether the latest record of the event (its handle) is complete."""
        return self._query is not None and self._query(event) == 0

    def stream_id(self, stream: object, handle: int) -> int:
        """The driver's number of the stream, -1 unknown."""
        if self._get_id is None:
            self.ids[handle] = -1
        if self._get_id is None or handle < 0:
            return -1
        out = ctypes.c_ulonglong()
        answer = out.value if self._get_id(handle, ctypes.byref(out)) == 0 else -1
        # torch gives an external stream its handle as stream_id; its own have small odd numbers, 0
        # is the default
        if answer >= 0 and (handle == 0 or getattr(stream, "stream_id", handle) != handle):
            self.ids[handle] = answer
        return answer

    def is_capturing(self, handle: int) -> bool:
        if self._is_capturing is None or handle < 0:
            return False
        out = ctypes.c_int()
        return self._is_capturing(handle, ctypes.byref(out)) == 0 and out.value != 0
