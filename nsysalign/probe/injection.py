"""NVTX by a direct call into the profiler's injection library, with ctypes alone.

nsys sets NVTX_INJECTION64_PATH in the profiled process.  The library asks for two export tables:
callbacks (id 1) and version (id 3), and fills the function slots of the modules that we show it.
nsys insists on CORE (1); what is called here is CORE2 (5).  This works with no nvtx package, no
compiler, and whatever nvtx version the user has (nvtx >= 0.2.12 loses its ranges under nsys
2024.2.3).

Functions are called through PYFUNCTYPE, which keeps the GIL: cheaper, and no other thread can
change the shared attribute structure in the middle of a call. Layout: NVTX v3, nvtxTypes.h and
nvtxDetail/nvtxTypes.h (https://github.com/NVIDIA/NVTX).
"""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, c_int, c_int32, c_uint32, c_uint64, c_void_p

_CALLBACKS, _VERSION_INFO = 1, 3
_CORE, _CORE2, _SLOTS = 1, 5, 16
_MARK, _START, _END, _REGISTER, _CREATE = 1, 2, 3, 10, 12
_NVTX_VERSION = 3
_PAYLOAD_INT64, _MESSAGE_REGISTERED = 2, 3


class _Attributes(ctypes.Structure):
    """nvtxEventAttributes_t, 48 bytes."""

    _fields_ = (
        ("version", ctypes.c_uint16),
        ("size", ctypes.c_uint16),
        ("category", c_uint32),
        ("color_type", c_int32),
        ("color", c_uint32),
        ("payload_type", c_int32),
        ("reserved", c_int32),
        ("payload", ctypes.c_int64),
        ("message_type", c_int32),
        ("message", c_void_p),
    )


_GetTable = ctypes.CFUNCTYPE(c_int, c_int, POINTER(c_void_p), POINTER(c_uint32))
_SetVersion = ctypes.CFUNCTYPE(None, c_uint32)
_GetExport = ctypes.CFUNCTYPE(c_void_p, c_uint32)


class Injection:
    """Marks and start/end ranges in the NVTX domain `nsysalign`.  Raises OSError if no profiler
    listens."""

    def __init__(self) -> None:
        # per module: the functions, and the addresses of their slots (none for 0, a NULL at the
        # end)
        self._functions = {module: (c_void_p * _SLOTS)() for module in (_CORE, _CORE2)}
        self._tables = {module: (c_void_p * (_SLOTS + 1))() for module in self._functions}
        for module, table in self._tables.items():
            first = ctypes.addressof(self._functions[module])
            table[1:_SLOTS] = [first + i * ctypes.sizeof(c_void_p) for i in range(1, _SLOTS)]
        self._called = _GetTable(self._get_table), _SetVersion(lambda _: None)
        get_table, set_version = (ctypes.cast(call, c_void_p).value for call in self._called)
        # structures: size and function; size, version and a reserved half of a word, function
        self._exports = {
            _CALLBACKS: (c_uint64 * 2)(16, get_table),
            _VERSION_INFO: (c_uint64 * 3)(24, _NVTX_VERSION, set_version),
        }
        self._export = _GetExport(self._get_export)
        initialise = ctypes.CDLL(os.environ["NVTX_INJECTION64_PATH"]).InitializeInjectionNvtx2
        initialise.argtypes, initialise.restype = (_GetExport,), c_int
        if initialise(self._export) == 0:
            raise OSError("the profiler's NVTX library refused to start")
        create = self._function(_CREATE, c_void_p, ctypes.c_char_p)
        self._register = self._function(_REGISTER, c_void_p, c_void_p, ctypes.c_char_p)
        self._domain = c_void_p(create(b"nsysalign"))
        self._mark = self._function(_MARK, None, c_void_p, POINTER(_Attributes))
        self._start = self._function(_START, c_uint64, c_void_p, POINTER(_Attributes))
        self._end = self._function(_END, None, c_void_p, c_uint64)
        self._texts: dict[str, _Attributes] = {}

    def _get_table(self, module: int, table: object, size: object) -> int:
        if module not in self._tables:
            return 0
        table[0] = ctypes.addressof(self._tables[module])
        if size:
            size[0] = _SLOTS
        return 1

    def _get_export(self, number: int) -> int | None:
        table = self._exports.get(number)
        return None if table is None else ctypes.addressof(table)

    def _function(self, slot: int, *signature: object) -> object:
        address = self._functions[_CORE2][slot]
        if not address:
            raise OSError(f"the profiler's NVTX library did not fill slot {slot}")
        return ctypes.PYFUNCTYPE(*signature)(address)

    def text(self, message: str) -> _Attributes:
        """A registered message, registered once: they are never freed."""
        text = self._texts.get(message)
        if text is None:
            data = message.encode("utf-8", "replace").replace(b"\0", b" ")
            text = self._texts[message] = _Attributes(
                version=_NVTX_VERSION,
                size=ctypes.sizeof(_Attributes),
                payload_type=_PAYLOAD_INT64,
                message_type=_MESSAGE_REGISTERED,
                message=self._register(self._domain, data),
            )
        return text

    def mark(self, text: _Attributes, payload: int) -> None:
        text.payload = payload
        self._mark(self._domain, text)

    def start(self, message: str, payload: int = 0) -> int:
        text = self.text(message)
        text.payload = payload
        return self._start(self._domain, text)

    def end(self, range_id: int) -> None:
        self._end(self._domain, range_id)
