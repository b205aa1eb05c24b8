"""Marks in Triton kernels: one for each program, by its first thread.

    from nsysalign.marks import triton as nm

    @triton.jit
    def kernel(x, n, marks):
        w = nm.enter(marks)                  # marks: buffer.address, 0 is off
        w = nm.begin(marks, w, "load")
        ...
        w = nm.end(marks, w, "load")
        w = nm.mark(marks, w, "computed")
        nm.leave(marks, w)

`w` is the position of the next mark: pass it on, also from one iteration of a loop to the next.  With NSYSALIGN_MARKS=0 none of
this is compiled in.  Imports triton.
"""

from __future__ import annotations

import triton
import triton.language as tl

from nsysalign.marks import layout
from nsysalign.marks.buffers import on

try:  # where Triton keeps it changed
    from triton import constexpr_function
except ImportError:
    from triton.runtime.jit import constexpr_function

__all__ = ["begin", "end", "enter", "leave", "mark"]

_ON = tl.constexpr(on())
_CHUNK, _LINE, _LINES, _REGIONS, _SM_LINES = (
    tl.constexpr(n) for n in (layout.CHUNK, layout.LINE, layout.LINES, layout.REGIONS, layout.SM_LINES)
)
_MAGIC, _VERSION, _HEAD = (
    tl.constexpr(n) for n in (layout.MAGIC, layout.VERSION, layout.HEAD | layout.VERSION)
)
_FULL = tl.constexpr(layout.CHUNK)
_AT, _BEGIN, _END, _EXIT = (tl.constexpr(n) for n in (layout.AT, layout.BEGIN, layout.END, layout.EXIT))
#: The first thread writes {timer, clock, id}; the result is the address behind it.
_WRITE = tl.constexpr(
    "{ .reg .pred p; .reg .u32 t, c; .reg .u64 g; .reg .b32 a, b; "
    "mov.u32 t, %tid.x; setp.eq.u32 p, t, 0; add.u64 $0, $1, 16; "
    "mov.u64 g, %globaltimer; mov.u32 c, %clock; mov.b64 {a, b}, g; @p st.global.cs.v4.u32 [$0+-16], {a, b, c, $2}; }"
)
_TIMER, _CLOCK, _GRID, _SM = (
    tl.constexpr(f"mov.{kind} $0, %{name};")
    for kind, name in (("u64", "globaltimer"), ("u64", "clock64"), ("u64", "gridid"), ("u32", "smid"))
)


@constexpr_function
def _id(name, kind):
    """The same as `layout.name_hash`: at compile time Triton does not let a function call another one."""
    if not name:
        return kind
    h = 2166136261
    for byte in name.encode():
        h = (h ^ byte) * 16777619 & 0xFFFFFFFF
    h = (h >> 30) ^ (h & 0x3FFFFFFF)
    number = ((h if h < 0x3FFFFF00 else h - 0x1000) if h else 1) << 2 | kind
    return number - (1 << 32) if number >= 1 << 31 else number


@triton.jit
def _read64(what: tl.constexpr):
    return tl.inline_asm_elementwise(what, "=l", [], dtype=tl.int64, is_pure=False, pack=1)


@triton.jit
def _put32(address, value):
    tl.store(address.to(tl.pointer_type(tl.int32)), value)


@triton.jit
def _put64(address, value):
    tl.store(address.to(tl.pointer_type(tl.int64)), value)


@triton.jit
def _get32(address):
    return tl.load(address.to(tl.pointer_type(tl.int32)), volatile=True)


@triton.jit
def _next_chunk(buffer, first):
    """Claim a chunk in one of the regions and write its head; FULL if there is no room.  See marks.cuh."""
    lines = _get32(buffer + 16)
    start = _get32(buffer + 20)
    sm = tl.inline_asm_elementwise(_SM, "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    found = tl.full([], _FULL, tl.int64)
    tried = 0
    while tried < _REGIONS:
        region = (sm + tried) % _REGIONS
        cursor = buffer + _LINE + _LINE * region
        used = _get32(cursor) * _LINES + _get32(cursor + 4)
        tried += 1
        if used < lines:
            given = tl.atomic_add(cursor.to(tl.pointer_type(tl.int64)), 1, sem="relaxed")
            chunks = (given & 0xFFFFFFFF).to(tl.int32)
            if chunks * _LINES + (given >> 32).to(tl.int32) + _LINES <= lines:
                found = buffer + (start + lines * region + chunks * _LINES).to(tl.uint32).to(tl.int64) * _LINE
                tried = tl.full([], _REGIONS, tl.int32)
    if found != _FULL:
        _put64(found + 32, _read64(_TIMER))
        _put64(found + 40, _read64(_CLOCK))
        _put32(found + 16, tl.program_id(0))
        _put32(found + 20, tl.program_id(1) | tl.program_id(2) << 16)
        _put64(found + 24, sm.to(tl.int64) << 32)
        _put64(found + 48, (tl.where(first, 0, 1).to(tl.int64) << 32) | 0xFFFFFFFF)
        _put64(found + 56, 32)  # one warp stands for the program
        _put64(found + 8, _read64(_GRID))
        _put64(found, _HEAD)
        found += _LINE
    return found


@triton.jit
def enter(marks):
    """Call this first in the kernel; returns the position for the program's marks."""
    w = tl.full([], 0, tl.int64)
    if _ON:
        buffer = tl.cast(marks, tl.int64)
        if buffer != 0:
            if (_get32(buffer) == _MAGIC) & (_get32(buffer + 4) == _VERSION):
                w = _next_chunk(buffer, True)
            else:
                _put32(buffer + 8, _VERSION)
    return w


@triton.jit
def _long_way(marks, w, number: tl.constexpr):
    if w != 0:
        buffer = tl.cast(marks, tl.int64)
        if w != _FULL:
            w = _next_chunk(buffer, False)
        if w != _FULL:
            w = _write(w, number)
        else:
            sm = tl.inline_asm_elementwise(_SM, "=r", [], dtype=tl.int32, is_pure=False, pack=1)
            dropped = buffer + _LINE + _LINE * (sm % _SM_LINES).to(tl.int64) + 8
            tl.atomic_add(dropped.to(tl.pointer_type(tl.int64)), 1, sem="relaxed")
    return w


@triton.jit
def _write(w, number: tl.constexpr):
    return tl.inline_asm_elementwise(
        _WRITE, "=l,l,r", [w, tl.full([], number, tl.int32)], dtype=tl.int64, is_pure=False, pack=1
    )


@triton.jit
def _made(marks, w, number: tl.constexpr):
    if _ON:
        w = _write(w, number) if w & _CHUNK - 1 != 0 else _long_way(marks, w, number)
    return w


@triton.jit
def mark(marks, w, name: tl.constexpr):
    """A point in time."""
    return _made(marks, w, _id(name, _AT))


@triton.jit
def begin(marks, w, name: tl.constexpr):
    """A range begins."""
    return _made(marks, w, _id(name, _BEGIN))


@triton.jit
def end(marks, w, name: tl.constexpr):
    """It ends."""
    return _made(marks, w, _id(name, _END))


@triton.jit
def leave(marks, w):
    """Call this last in the kernel."""
    return _made(marks, w, _id("", _EXIT))
