"""Builtins of our own, and code that runs where Python cannot: a few instructions put together at run time.

A function of C may be known to C code as one: time-machine exchanges the function inside `time.time`, others ask for its
type.  So what stands in a builtin's place is a builtin: made of a method definition like its model's, whose function is a
short piece of machine code that calls what we want.  x86-64 and aarch64 on Linux, the two that nsys runs on; elsewhere,
and where no memory may become executable, OSError, and the caller leaves things as they are.

What is made here is never freed: other code may hold it for as long as the process lives.
"""

from __future__ import annotations

import os
import struct

# not ctypes: that would cost every Python process of the run 1.5 ms
from _ctypes import FUNCFLAG_CDECL, FUNCFLAG_PYTHONAPI, CFuncPtr, _SimpleCData, dlopen, dlsym
from typing import Any

_PAGE = 1 << 16  # the largest page in use
_READ, _WRITE, _EXECUTE, _PRIVATE_ANONYMOUS = 1, 2, 4, 0x22
_METHOD_DEFINITION = struct.Struct("<QQi4xQ")  # PyMethodDef: name, function, flags, doc


class Pointer(_SimpleCData):
    """An address."""

    _type_ = "P"


class _Object(_SimpleCData):
    _type_ = "O"


class _Int(_SimpleCData):
    _type_ = "i"


class Function(CFuncPtr):
    """A C function by its address, called with the GIL held; arguments are objects of this module's types."""

    _flags_ = FUNCFLAG_CDECL | FUNCFLAG_PYTHONAPI
    _restype_ = Pointer


class _ToObject(Function):
    _flags_ = FUNCFLAG_CDECL | FUNCFLAG_PYTHONAPI
    _restype_ = _Object


_everything = dlopen(None, 0)


def address(name: str) -> int:
    """Where a function of Python or of the C library lies.  Raises OSError."""
    return dlsym(_everything, name)


def call(name: str, *arguments: Any) -> int:
    """Call a C function with whole numbers and bytes; its result as an address (0: NULL)."""
    return Function(address(name))(*(Pointer(a) if isinstance(a, int) else a for a in arguments)) or 0


def allocate(content: bytes) -> int:
    """The address of a copy of `content`, with a zero behind it."""
    place = call("malloc", len(content) + 1)
    call("memcpy", place, content + b"\0", len(content) + 1)
    return place


def executable(code: bytes) -> int:
    """The address of `code`, ready to run.  Raises OSError where no memory may become executable."""
    place = call("mmap", 0, _PAGE, _READ | _WRITE, _PRIVATE_ANONYMOUS, (1 << 64) - 1, 0)
    if place == (1 << 64) - 1:
        raise OSError("no memory for code")
    call("memcpy", place, code, len(code))
    if call("mprotect", place, _PAGE, _READ | _EXECUTE):
        raise OSError("memory may not become executable here")
    return place


class Slot:
    """A place in memory that holds the callable that a builtin of ours calls.  It can be exchanged at any time."""

    def __init__(self, function: Any) -> None:
        self.address = allocate(bytes(8))
        self.set(function)

    def set(self, function: Any) -> None:
        Function(address("Py_IncRef"))(_Object(function))
        call("memcpy", self.address, id(function).to_bytes(8, "little"), 8)


def builtin_calling(model: Any, slot: Slot) -> Any:
    """A builtin that looks like `model`, one without arguments, and returns what the callable in `slot` does."""
    return _builtin(model, _machine().call_slot(slot.address, address("PyObject_CallNoArgs")))


def _builtin(model: Any, code: bytes) -> Any:
    flags = Function(address("PyCFunction_GetFlags"))(_Object(model)) or 0
    text = (model.__doc__ or "").encode()
    if model.__text_signature__ is not None:
        text = f"{model.__name__}{model.__text_signature__}\n--\n\n".encode() + text
    definition = allocate(
        _METHOD_DEFINITION.pack(
            allocate(model.__name__.encode()), executable(code), flags, allocate(text) if text else 0
        )
    )
    make = _ToObject(address("PyCFunction_NewEx"))
    return make(Pointer(definition), _Object(model.__self__), _Object(model.__module__))


class _X86:
    """The instructions of x86-64, by the System V calling convention."""

    _ENTRY = b"\xf3\x0f\x1e\xfa"  # endbr64

    @classmethod
    def call_slot(cls, slot: int, function: int) -> bytes:
        """function(*slot)"""
        load = b"\x48\xb8" + slot.to_bytes(8, "little") + b"\x48\x8b\x38"  # mov rax, slot; mov rdi, [rax]
        return cls._ENTRY + load + b"\x48\xb8" + function.to_bytes(8, "little") + b"\xff\xe0"  # jmp rax


class _Arm:
    """The instructions of aarch64, by its standard calling convention."""

    @classmethod
    def call_slot(cls, slot: int, function: int) -> bytes:
        """function(*slot)"""
        # ldr x0, [x0]; br x16
        return cls._load(0, slot) + _words(0xF9400000) + cls._load(16, function) + _words(0xD61F0200)

    @staticmethod
    def _load(register: int, value: int) -> bytes:
        """movz, then movk for the upper three quarters."""
        return _words(
            *(
                (0xF2800000 if quarter else 0xD2800000)
                | quarter << 21
                | (value >> 16 * quarter & 0xFFFF) << 5
                | register
                for quarter in range(4)
            )
        )


def _words(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def _machine() -> Any:
    kinds = {"x86_64": _X86, "aarch64": _Arm}
    kind = kinds.get(os.uname().machine)
    if kind is None or struct.calcsize("P") != 8:
        raise OSError(f"not known on {os.uname().machine}")
    return kind
