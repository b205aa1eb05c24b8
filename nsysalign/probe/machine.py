"""Builtins of our own, and code that runs where Python cannot: a few instructions put together at run time.

C code may rely on a builtin being one: time-machine exchanges the C function inside `time.time`, others check its type.  So a
builtin is replaced by another builtin: it has a method definition like the original's, and its function is a short piece of
machine code that calls what we want.  This works for x86-64 and aarch64 on Linux, the two that nsys runs on; elsewhere, and if
no memory may become executable, OSError is raised and the caller leaves things as they are.

What is made here is never freed: other code may hold it for as long as the process lives.
"""

from __future__ import annotations

import os
import struct

# not ctypes: that would cost every Python process of the run 1.5 ms
from _ctypes import (  # noqa: F401
    FUNCFLAG_CDECL,
    FUNCFLAG_PYTHONAPI,
    CFuncPtr,
    _SimpleCData,
    addressof,
    dlopen,
    dlsym,
)
from typing import Any, NamedTuple

_PAGE = 1 << 16  # the largest page in use
_READ, _WRITE, _EXECUTE, _PRIVATE_ANONYMOUS = 1, 2, 4, 0x22
_KEYWORDS = 2  # METH_KEYWORDS
_METHOD_DEFINITION = struct.Struct("<QQi4xQ")  # PyMethodDef: name, function, flags, doc


class Pointer(_SimpleCData):
    """An address."""

    _type_ = "P"


class _Object(_SimpleCData):
    _type_ = "O"


class _Int(_SimpleCData):
    _type_ = "i"


class Function(CFuncPtr):
    """A C function by its address, called with the GIL held; it takes Pointers and bytes, and returns an address."""

    _flags_ = FUNCFLAG_CDECL | FUNCFLAG_PYTHONAPI
    _restype_ = Pointer


class Status(Function):
    """The same for one that returns an int."""

    _flags_ = FUNCFLAG_CDECL | FUNCFLAG_PYTHONAPI
    _restype_ = _Int


class ToObject(Function):
    """The same for one that returns an object."""

    _flags_ = FUNCFLAG_CDECL | FUNCFLAG_PYTHONAPI
    _restype_ = _Object


_everything = dlopen(None, 0)


def address(name: str) -> int:
    """The address of a function of Python or of the C library.  Raises OSError."""
    return dlsym(_everything, name)


def call(name: str, *arguments: int | bytes, kind: type[Function] = Function) -> Any:
    """Call a C function by its name; its result has the kind's type, usually an address (0: NULL)."""
    return kind(address(name))(*(Pointer(a) if isinstance(a, int) else a for a in arguments)) or 0


def succeed(name: str, *arguments: int | bytes) -> None:
    """Call a C function that must return 0.  Raises OSError if it does not."""
    if call(name, *arguments, kind=Status):
        raise OSError(f"{name} failed")


def allocate(content: bytes) -> int:
    """The address of a copy of `content`, with a zero behind it."""
    place = call("malloc", len(content) + 1)
    call("memcpy", place, content + b"\0", len(content) + 1)
    return place


def executable(code: bytes) -> int:
    """The address of `code`, ready to run.  Raises OSError if no memory may become executable."""
    place = call("mmap", 0, _PAGE, _READ | _WRITE, _PRIVATE_ANONYMOUS, (1 << 64) - 1, 0)
    if place == (1 << 64) - 1:
        raise OSError("no memory for code")
    call("memcpy", place, code, len(code))
    if call("mprotect", place, _PAGE, _READ | _EXECUTE, kind=Status):
        raise OSError("this system does not allow executable memory")
    return place


class Call(NamedTuple):
    """A call of a C function with up to four whole numbers or addresses."""

    function: int
    arguments: tuple[int, ...] = ()
    indirect: bool = False  # `function` is where the function's address lies
    until_zero: bool = False  # again until it returns 0
    if_zero: int = 0  # only if the eight bytes at this address are 0


def keep(thing: Any) -> None:
    """Keep this object alive for ever."""
    Function(address("Py_IncRef"))(_Object(thing))


class Slot:
    """A place in memory that holds the callable which one of our builtins calls.  It can be exchanged at any time."""

    def __init__(self, function: Any) -> None:
        self.address = allocate(bytes(8))
        self.set(function)

    def set(self, function: Any) -> None:
        keep(function)
        call("memcpy", self.address, id(function).to_bytes(8, "little"), 8)


def builtin_calling(model: Any, slot: Slot) -> Any:
    """A builtin that looks like `model`, takes no arguments, and returns what the callable in `slot` returns."""
    return _builtin(model, _machine().call_slot(slot.address, address("PyObject_CallNoArgs")))


def builtin_after(model: Any, calls: list[Call]) -> Any:
    """A builtin that looks like `model`, makes these calls and then does what `model` does."""
    function = Function(address("PyCFunction_GetFunction"))(_Object(model))
    return _builtin(model, _machine().before(_machine().calls(calls), function))


def builtin_told_first(model: Any, slot: Slot) -> Any:
    """A builtin that looks like `model`, one that takes its arguments as an array (METH_FASTCALL): it calls the callable in
    `slot` with its arguments and, unless that raises, does what `model` does.  No frame or traceback shows it.
    """
    function = Function(address("PyCFunction_GetFunction"))(_Object(model))
    keywords = bool((Function(address("PyCFunction_GetFlags"))(_Object(model)) or 0) & _KEYWORDS)
    told = _machine().tell(slot.address, address("PyObject_Vectorcall"), keywords)
    return _builtin(model, _machine().before(told, function))


def builtin_before(model: Any, calls: list[Call]) -> Any:
    """A builtin that looks like `model`, does what `model` does and then makes these calls."""
    function = Function(address("PyCFunction_GetFunction"))(_Object(model))
    return _builtin(model, _machine().after(calls, function))


def function_of(calls: list[Call]) -> int:
    """The address of a C function that makes these calls and needs nothing of Python: a signal handler, a thread."""
    return executable(_machine().function(calls))


def _builtin(model: Any, code: bytes) -> Any:
    flags = Function(address("PyCFunction_GetFlags"))(_Object(model)) or 0
    text = (model.__doc__ or "").encode()
    if model.__text_signature__ is not None:
        text = f"{model.__name__}{model.__text_signature__}\n--\n\n".encode() + text
    definition = allocate(
        _METHOD_DEFINITION.pack(
            allocate(model.__name__.encode()),
            executable(code),
            flags,
            allocate(text) if text else 0,
        )
    )
    make = ToObject(address("PyCFunction_NewEx"))
    return make(Pointer(definition), _Object(model.__self__), _Object(model.__module__))


class _X86:
    """The instructions of x86-64, by the System V calling convention."""

    _ENTRY = b"\xf3\x0f\x1e\xfa"  # endbr64
    _LOAD = (b"\x48\xbf", b"\x48\xbe", b"\x48\xba", b"\x48\xb9")  # mov rdi, rsi, rdx, rcx
    _LOAD_RAX, _JUMP = b"\x48\xb8", b"\xff\xe0"
    # push rdi, rsi, rdx, rcx, and eight bytes, so that the stack is aligned
    _SAVE, _RESTORE = b"\x57\x56\x52\x51\x48\x83\xec\x08", b"\x48\x83\xc4\x08\x59\x5a\x5e\x5f"

    @classmethod
    def call_slot(cls, slot: int, function: int) -> bytes:
        """function(*slot)"""
        load = cls._LOAD_RAX + _eight(slot) + b"\x48\x8b\x38"  # mov rdi, [rax]
        return cls._ENTRY + load + cls._LOAD_RAX + _eight(function) + cls._JUMP

    @classmethod
    def function(cls, calls: list[Call]) -> bytes:
        # push rbx, so that the stack is aligned as calls want it; pop rbx; ret
        return cls._ENTRY + b"\x53" + cls.calls(calls) + b"\x5b\xc3"

    @classmethod
    def before(cls, first: bytes, function: int) -> bytes:
        """What `calls` or `tell` gave, then function(the arguments that came in)."""
        return (
            cls._ENTRY
            + cls._SAVE
            + first
            + cls._RESTORE
            + cls._LOAD_RAX
            + _eight(function)
            + cls._JUMP
        )

    @classmethod
    def tell(cls, slot: int, vectorcall: int, keywords: bool) -> bytes:
        """vectorcall(*slot, the last three arguments that came in); back to the caller at once if that returned 0."""
        load = cls._LOAD_RAX + _eight(slot) + b"\x48\x8b\x38"  # mov rdi, [rax]
        load += b"" if keywords else b"\x31\xc9"  # xor ecx, ecx
        back = cls._RESTORE + b"\xc3"
        # call rax; test rax, rax; jnz
        asked = (
            cls._LOAD_RAX + _eight(vectorcall) + b"\xff\xd0\x48\x85\xc0\x75" + bytes([len(back)])
        )
        return load + asked + back

    @classmethod
    def after(cls, calls: list[Call], function: int) -> bytes:
        """function(the arguments that came in), then the calls; what the function returned."""
        # push rbx; call rax; mov rbx, rax; ...; mov rax, rbx; pop rbx; ret
        first = b"\x53" + cls._LOAD_RAX + _eight(function) + b"\xff\xd0\x48\x89\xc3"
        return cls._ENTRY + first + cls.calls(calls) + b"\x48\x89\xd8\x5b\xc3"

    @classmethod
    def calls(cls, calls: list[Call]) -> bytes:
        code = b""
        for call in calls:
            one = b"".join(o + _eight(a) for o, a in zip(cls._LOAD, call.arguments, strict=False))
            one += cls._LOAD_RAX + _eight(call.function)
            one += b"\x48\x8b\x00" * call.indirect + b"\xff\xd0"  # mov rax, [rax]; call rax
            if call.until_zero:  # test eax, eax; jnz
                one += b"\x85\xc0\x75" + struct.pack("<b", -len(one) - 4)
            if call.if_zero:  # mov rax, address; cmp qword [rax], 0; jne
                test = cls._LOAD_RAX + _eight(call.if_zero) + b"\x48\x83\x38\x00\x75"
                one = test + struct.pack("<b", len(one)) + one
            code += one
        return code


class _Arm:
    """The instructions of aarch64, by its standard calling convention."""

    # of x29 and x30, x0 and x1, x2 and x3
    _PUSH, _POP = (0xA9BF7BFD, 0xA9BF07E0, 0xA9BF0FE2), (0xA8C10FE2, 0xA8C107E0, 0xA8C17BFD)
    _JUMP, _RETURN = 0xD61F0200, 0xD65F03C0  # br x16; ret

    @classmethod
    def call_slot(cls, slot: int, function: int) -> bytes:
        """function(*slot)"""
        # ldr x0, [x0]
        return cls._load(0, slot) + _words(0xF9400000) + cls._load(16, function) + _words(cls._JUMP)

    @classmethod
    def function(cls, calls: list[Call]) -> bytes:
        return _words(cls._PUSH[0]) + cls.calls(calls) + _words(cls._POP[2], cls._RETURN)

    @classmethod
    def before(cls, first: bytes, function: int) -> bytes:
        """What `calls` or `tell` gave, then function(the arguments that came in)."""
        return (
            _words(*cls._PUSH)
            + first
            + _words(*cls._POP)
            + cls._load(16, function)
            + _words(cls._JUMP)
        )

    @classmethod
    def tell(cls, slot: int, vectorcall: int, keywords: bool) -> bytes:
        """vectorcall(*slot, the last three arguments that came in); back to the caller at once if that returned 0."""
        load = cls._load(0, slot) + _words(
            0xF9400000, *([] if keywords else [0xD2800003])
        )  # mov x3, 0
        # blr x16; cbnz x0; add sp, sp, 32
        asked = _words(0xD63F0200, 0xB5000080, 0x910083FF, cls._POP[2], cls._RETURN)
        return load + cls._load(16, vectorcall) + asked

    @classmethod
    def after(cls, calls: list[Call], function: int) -> bytes:
        """function(the arguments that came in), then the calls; what the function returned."""
        # stp x19, x20; ...; blr x16; mov x19, x0; ...; mov x0, x19; ldp x19, x20
        first = (
            _words(cls._PUSH[0], 0xA9BF53F3)
            + cls._load(16, function)
            + _words(0xD63F0200, 0xAA0003F3)
        )
        return first + cls.calls(calls) + _words(0xAA1303E0, 0xA8C153F3, cls._POP[2], cls._RETURN)

    @classmethod
    def calls(cls, calls: list[Call]) -> bytes:
        code = b""
        for call in calls:
            one = b"".join(cls._load(number, value) for number, value in enumerate(call.arguments))
            one += cls._load(16, call.function)
            one += _words(0xF9400210) * call.indirect + _words(
                0xD63F0200
            )  # ldr x16, [x16]; blr x16
            if call.until_zero:  # cbnz w0
                one += _words(0x35000000 | (-len(one) // 4 & 0x7FFFF) << 5)
            if call.if_zero:  # ldr x16, [x16]; cbnz x16
                test = cls._load(16, call.if_zero) + _words(0xF9400210)
                one = test + _words(0xB5000010 | (len(one) // 4 + 1) << 5) + one
            code += one
        return code

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


def _eight(value: int) -> bytes:
    return value.to_bytes(8, "little")


def _words(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def _machine() -> Any:
    kinds = {"x86_64": _X86, "aarch64": _Arm}
    kind = kinds.get(os.uname().machine)
    if kind is None or struct.calcsize("P") != 8:
        raise OSError(f"not known on {os.uname().machine}")
    return kind
