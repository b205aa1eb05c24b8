"""Marks in Triton kernels: one for each program, by its first thread.

    from nsysalign.addons.marks import triton as nm

    @triton.jit
    def kernel(x, n, marks):
        w = nm.enter(marks)                  # marks: buffer.address, 0 is off
        w = nm.begin(marks, w, "load")
        ...
        w = nm.end(marks, w, "load")
        w = nm.mark(marks, w, "computed")
        nm.leave(marks, w)

`w` is the position of the next mark: pass it on, also from one iteration of a loop to the next.
With NSYSALIGN_MARKS=0 none of this is compiled in.  Imports triton.
"""

from __future__ import annotations

import triton
import triton.language as tl

from nsysalign.addons.marks import layout
from nsysalign.addons.marks.buffers import on

try:  # where Triton keeps it changed
    from triton import constexpr_function
except ImportError:
    from triton.runtime.jit import constexpr_function

__all__ = ["begin", "end", "enter", "leave", "mark"]

_ON = tl.constexpr(on())
# Inline assembly: $0 is what `w` becomes, $1 what it was (_ENTER: 0), $2 the buffer's address and
# $3 a mark's number.
#: What `w` is: in a program's first warp the address of the slot that was used last, or FULL where
#: there is no room for more; OFF in all other warps, and where nothing is marked.
_LAST, _OFF, _FULL = 0x3F0, 0x3F1, 0x7F0
#: A fresh chunk from one of the regions in turn: its head is written, $0 becomes the slot before
#: its first mark, or FULL; see marks.cuh.  A whole warp passes here, and what only one lane does is
#: predicated: a branch of one lane would hold up all.
_CLAIM = f"""
  ld.global.v2.u32 {{lines, first}}, [$2+16]; mov.u32 sm, %smid; mov.u32 tried, 0; mov.u32 a, %laneid; setp.eq.u32 lead, a, 0;
  REGION: add.u32 a, sm, tried; and.b32 a, a, {layout.REGIONS - 1}; mad.wide.u32 at, a, {layout.LINE}, $2;
  mov.u32 b, 0; mov.u32 d, 0; @lead ld.volatile.global.v2.u32 {{b, d}}, [at+{layout.LINE}]; mad.lo.u32 b, b, {layout.LINES}, d;
  setp.lt.and.u32 q, b, lines, lead; mov.u64 given, 1; @q atom.global.add.u64 given, [at+{layout.LINE}], given;
  mov.b64 {{b, d}}, given; shl.b32 b, b, 4; add.u32 d, d, b; add.u32 d, d, {layout.LINES}; setp.le.and.u32 q, d, lines, q;
  mad.lo.u32 a, a, lines, first; add.u32 a, a, b; selp.u32 a, a, 0, q;
  shfl.sync.idx.b32 a, a, 0, 31, 0xffffffff; setp.ne.u32 q, a, 0; @q bra.uni CLAIMED;
  add.u32 tried, tried, 1; setp.lt.u32 q, tried, {layout.REGIONS}; @q bra.uni REGION;
  mov.u64 $0, {_FULL}; bra.uni FULL;
  CLAIMED: mad.wide.u32 at, a, {layout.LINE}, $2; add.u64 $0, at, {layout.LINE - 16};
  @lead st.global.v2.u64 [at+32], {{t, cycles}};
  mov.u32 a, %ctaid.y; mov.u32 b, %ctaid.z; shl.b32 b, b, 16; or.b32 b, a, b; mov.u32 a, %ctaid.x;
  mov.u32 d, 0; @lead st.global.v4.u32 [at+16], {{a, b, d, sm}};
  mov.u32 a, 0xffffffff; mov.u32 b, 32; @lead st.global.v4.u32 [at+48], {{a, before, b, d}};
  mov.u64 given, %gridid; @lead st.global.u64 [at+8], given; mov.u64 given, {layout.HEAD | layout.VERSION}; @lead st.global.u64 [at], given;
  FULL:"""
_REGISTERS = (
    ".reg .pred p, q, r, lead; .reg .u32 a, b, c, d, n, lines, first, sm, tried, before; .reg .u64 "
    "t, at, given, cycles;"
)
_ENTER = f"""{{ {_REGISTERS}
  mov.u64 $0, {_OFF}; mov.u32 a, %tid.x; setp.ge.u32 p, a, 32; setp.eq.or.u64 p, $2, 0, p; vote.sync.any.pred p, p, 0xffffffff;
  @p bra.uni DONE; ld.global.v2.u32 {{a, b}}, [$2]; setp.ne.u32 p, a, {layout.MAGIC}; vote.sync.any.pred p, p, 0xffffffff;
  @p bra.uni DONE; setp.ne.u32 p, b, {layout.VERSION}; vote.sync.any.pred p, p, 0xffffffff; mov.u32 a, {layout.VERSION};
  @p st.global.u32 [$2+8], a; @p bra.uni DONE; mov.u64 t, %globaltimer; mov.u64 cycles, %clock64; mov.u32 before, $1;
  {_CLAIM} DONE: }}"""
#: Two instructions where there is nothing to mark, and in a program's other warps.  What a claim
#: takes lies outside of ranges.
_MARK = f"""{{ {_REGISTERS} .reg .u32 low, high;
  mov.b64 {{low, high}}, $1; mov.b64 $0, {{low, high}};
  and.b32 b, low, 1; setp.ne.u32 r, b, 0; @r bra.uni DONE;
  lop3.b32 a, low, {_LAST}, 0, 0x0c; setp.ne.u32 p, a, 0;
  mov.u64 t, %globaltimer; mov.u32 c, %clock; mov.u32 n, $3; mov.b64 {{a, b}}, t; @!p bra.uni RARE;
  add.u32 low, low, 16; mov.b64 $0, {{low, high}}; st.global.cs.v4.u32 [$0], {{a, b, c, n}}; bra.uni DONE;
  RARE: setp.eq.u64 q, $0, {_FULL}; vote.sync.any.pred q, q, 0xffffffff; mov.u32 before, 1; @q bra.uni DROPPED;
  mov.u64 cycles, %clock64; {_CLAIM}
  setp.eq.u64 q, $0, {_FULL}; vote.sync.any.pred q, q, 0xffffffff; @q bra.uni DROPPED; AGAIN
  add.u64 $0, $0, 16; mov.b64 {{a, b}}, t; st.global.cs.v4.u32 [$0], {{a, b, c, n}}; bra.uni DONE;
  DROPPED: mov.u32 a, %smid; and.b32 a, a, {layout.SM_LINES - 1}; mad.wide.u32 at, a, {layout.LINE}, $2;
  mov.u32 a, %laneid; setp.eq.u32 lead, a, 0; mov.u64 given, 1; @lead red.global.add.u64 [at+{layout.LINE + 8}], given; DONE: }}"""
#: A mark or the end of a range, and the beginning of one.
_POINT = _MARK.replace("AGAIN", "")
_BEGINS = _MARK.replace("AGAIN", "mov.u64 t, %globaltimer; mov.u32 c, %clock;")
_ENTER, _POINT, _BEGINS = (tl.constexpr(text) for text in (_ENTER, _POINT, _BEGINS))
_AT, _BEGIN, _END, _EXIT = (
    tl.constexpr(n) for n in (layout.AT, layout.BEGIN, layout.END, layout.EXIT)
)


@constexpr_function
def _id(name, kind):
    """The same as `layout.name_hash`: at compile time Triton does not let a function call another
    one."""
    if not name:
        return kind
    h = 2166136261
    for byte in name.encode():
        h = (h ^ byte) * 16777619 & 0xFFFFFFFF
    number = ((h >> 30) ^ (h & 0x3FFFFFFF) or 1) << 2 | kind
    return number - (1 << 32) if number >= 1 << 31 else number


@triton.jit
def enter(marks):
    """Call this first in the kernel; returns the position for the program's marks."""
    w = tl.full([], 0, tl.int64)
    if _ON:
        zero = tl.full([], 0, tl.int32)
        w = tl.inline_asm_elementwise(
            _ENTER,
            "=&l,r,l",
            [zero, tl.cast(marks, tl.int64)],
            dtype=tl.int64,
            is_pure=False,
            pack=1,
        )
    return w


@triton.jit
def _made(marks, w, number: tl.constexpr, how: tl.constexpr):
    if _ON:
        arguments = [w, tl.cast(marks, tl.int64), tl.full([], number, tl.int32)]
        w = tl.inline_asm_elementwise(
            how, "=&l,l,l,r", arguments, dtype=tl.int64, is_pure=False, pack=1
        )
    return w


@triton.jit
def mark(marks, w, name: tl.constexpr):
    """A point in time."""
    return _made(marks, w, _id(name, _AT), _POINT)


@triton.jit
def begin(marks, w, name: tl.constexpr):
    """A range begins."""
    return _made(marks, w, _id(name, _BEGIN), _BEGINS)


@triton.jit
def end(marks, w, name: tl.constexpr):
    """It ends."""
    return _made(marks, w, _id(name, _END), _POINT)


@triton.jit
def leave(marks, w):
    """Call this last in the kernel."""
    return _made(marks, w, _id("", _EXIT), _POINT)
