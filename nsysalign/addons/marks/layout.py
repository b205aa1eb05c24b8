"""Constants shared by marks.cuh and the host: the layout of a buffer, and how a name becomes a
number.

`include/nsysalign/marks.cuh` describes the fields; a test compares the two.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

#: Of the buffer's layout: the header of another version is refused, by the kernel and here.
VERSION = 2
#: Version 1 had no records of counters behind a warp's marks.
READS = (1, VERSION)
MAGIC = 0x4D41534E
LINE, CHUNK, REGIONS, SM_LINES = 64, 1024, 64, 256
LINES = CHUNK // LINE
TABLE = LINE + LINE * SM_LINES
TAG = 8  # bytes of a slot's tag; the tags precede all slots
HEAD, STRAY = 0x4B434E00, 0x41525400
#: Kinds of marks, the two lowest bits of an id.
AT, BEGIN, END, EXIT = range(4)
#: Names of __prof_trigger(0), (1), ..., which are not hashed.
TRIGGER = 0x3FFFFF00
#: Magic, version, refused, 0, lines of a region, first line, slots.
HEADER = struct.Struct("<IIIIIII36x")

#: What a dump file begins with; then its own version, the length of its JSON, and the JSON.
FILE_MAGIC = b"NSYSALIGN-MARKS\n"
FILE_VERSION = 1
COUNTS = 2 * REGIONS + 16  # u32: slots that follow, 15 unused, chunks and strays of every region


def name_hash(name: str) -> int:
    """30 bits of FNV-1a over the literal's bytes, as `nsysalign::hash` computes them."""
    h = 2166136261
    for byte in name.encode():
        h = (h ^ byte) * 16777619 & 0xFFFFFFFF
    h = (h >> 30) ^ (h & 0x3FFFFFFF)
    return (h if h < TRIGGER else h - 0x1000) if h else 1


class Sizes(NamedTuple):
    """Of a buffer: bytes, lines of a region, the line at which the regions begin, slots of the
    table."""

    size: int
    lines: int
    first: int
    slots: int


def sizes(mib: int) -> Sizes:
    """Of a buffer of this many MiB."""
    size, slots = mib << 20, 1024
    while slots * 2 * (LINE + TAG) * 16 <= size:
        slots *= 2
    first = -(-(TABLE + slots * (LINE + TAG)) // CHUNK) * (CHUNK // LINE)
    return Sizes(size, (size // LINE - first) // REGIONS // LINES * LINES, first, slots)
