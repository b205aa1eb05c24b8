"""What marks.cuh and the host share: the layout of a buffer (a test compares the two), and names,
of which a mark carries only the hash."""

from __future__ import annotations

import contextlib
import os
import re
import struct
import sys
from collections.abc import Iterable
from typing import NamedTuple

from nsysalign.errors import UsageError

#: The header of another version is refused, by the kernel and here.
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
#: Magic, version, refused, 0, lines of a region, first line, slots.
HEADER = struct.Struct("<IIIIIII36x")

#: What a dump file begins with; then its own version, the length of its JSON, and the JSON.
FILE_MAGIC = b"NSYSALIGN-MARKS\n"
FILE_VERSION = 1
COUNTS = 2 * REGIONS + 16  # u32: slots that follow, 15 unused, chunks and strays of every region

_CALL = re.compile(
    r"NSYSALIGN_(?:RANGE|MARK|MARK_AFTER|COUNT|COUNT_WARPS)\s*\(\s*[\w.>\-]+\s*,\s*"
    r'"((?:[^"\\\n]|\\.){1,200})"'
)
_TRITON = re.compile(r"""\b(?:mark|begin|end)\s*\([^()\n]*?["']([^"'\\\n]{1,200})["']""")
_SOURCES = (".py", ".cu", ".cuh", ".h", ".hpp", ".cpp", ".cc", ".cxx")
_MOST_FILES, _LARGEST_FILE = 400, 4 << 20
#: Kept from the import on: Python takes __main__.__file__ away before the functions of atexit run.
_SCRIPT = getattr(sys.modules.get("__main__"), "__file__", None)


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
    first = -(-(TABLE + slots * (LINE + TAG)) // CHUNK) * LINES
    return Sizes(size, (size // LINE - first) // REGIONS // LINES * LINES, first, slots)


def name_hash(name: str) -> int:
    """30 bits of FNV-1a over the literal's bytes, as `nsysalign::hash` computes them."""
    h = 2166136261
    for byte in name.encode():
        h = (h ^ byte) * 16777619 & 0xFFFFFFFF
    return (h >> 30) ^ (h & 0x3FFFFFFF) or 1


def by_hash(names: Iterable[str]) -> dict[int, str]:
    """Hash -> name.  Raises UsageError if two names have the same hash: their marks could not be
    told apart."""
    known: dict[int, str] = {}
    for name in sorted(set(names)):
        earlier = known.setdefault(name_hash(name), name)
        if earlier != name:
            raise UsageError(
                f"the marks {earlier!r} and {name!r} cannot be told apart: their hashes are the same",
                "rename one of them",
            )
    return known


def names_in(text: str) -> set[str]:
    """The literals of marks in a source text."""
    names = _CALL.findall(text) + (_TRITON.findall(text) if "nsysalign" in text else [])
    return {name for name in names if "\\" not in name}


def names_of_program() -> set[str]:
    """The literals in the sources beside the program's script, in the current directory, and
    beside modules that were imported from below these."""
    homes = [os.getcwd(), *([os.path.dirname(os.path.abspath(_SCRIPT))] if _SCRIPT else [])]
    folders, names = dict.fromkeys(homes), set()
    for module in list(sys.modules.values()):
        path = os.path.abspath(getattr(module, "__file__", None) or os.sep)
        if path.startswith(tuple(os.path.join(home, "") for home in homes)):
            folders.setdefault(os.path.dirname(path))
    for folder in (f for f in folders if not re.search("(site|dist)-packages", f)):
        with contextlib.suppress(OSError):
            files = [e.path for e in os.scandir(folder) if e.name.endswith(_SOURCES)]
            for path in files[:_MOST_FILES]:
                with (
                    contextlib.suppress(OSError),
                    open(path, encoding="utf-8", errors="replace") as file,
                ):
                    names |= names_in(file.read(_LARGEST_FILE))
    return names
