"""Lines of a file of JSON Lines, gzipped or not, in bounded memory: it may come from anyone.

A few kilobytes of gzip can unpack to gigabytes, and one line can be as long as the file.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from nsysalign.errors import EventLogError
from nsysalign.untrusted import open_regular

#: No line of ours comes near this many characters; a longer one is passed over, up to a length that
#: holes left by a crash do not have.
LONGEST_LINE, LONGEST_HOLE = 1 << 20, 256 << 20
#: Limits on what a gzip file may unpack to, in characters: event logs compress to between a fifth
#: and a twentieth.
_FREE, _PER_BYTE, _MOST = 16 << 20, 100, 8 << 30
#: Each line counts as at least this many (none of ours is shorter): 4 MB of gzip can hold 4 billion
#: blank lines.
_LEAST_LINE = 64
#: Stands for a line that could not be read; it is not JSON.
UNUSABLE = "(not usable)\n"


def lines_of(path: Path) -> Iterator[str]:
    """Lines as text; `UNUSABLE` for one that is too long, and at the end of a truncated or damaged
    gzip file.  Raises EventLogError if the file cannot be opened, or unpacks to more than a log can
    hold.
    """
    text: dict[str, Any] = {"encoding": "utf-8-sig", "errors": "replace", "newline": "\n"}
    try:
        raw = open_regular(path)
    except OSError as error:
        raise EventLogError(
            f"{path.name}: cannot be read ({error.strerror or error})",
            "name the events-PID.jsonl of the run with --events",
        ) from error
    with raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        granted = min(_FREE + _PER_BYTE * path.stat().st_size, _MOST)
        unpacked = gzip.GzipFile(fileobj=raw) if packed else raw
        file = io.TextIOWrapper(unpacked, **text)
        left, passed = granted, 0  # `passed`: of a line that is too long
        try:
            for piece in iter(partial(file.readline, LONGEST_LINE), ""):
                left -= max(len(piece), _LEAST_LINE)
                if packed and left < 0:
                    raise EventLogError(
                        f"{path.name}: unpacks to more than {granted >> 20} MB, more than any event log of this size",
                        "if it is one, unpack it with gunzip and name the unpacked file",
                    )
                whole = len(piece) < LONGEST_LINE or piece.endswith("\n")
                if not passed and whole:
                    yield piece
                    continue
                passed += len(piece)
                if passed > LONGEST_HOLE:
                    raise EventLogError(
                        f"{path.name}: has a line of more than {LONGEST_HOLE >> 20} MB: this is no event log",
                        "name an events-PID.jsonl of nsysalign",
                    )
                if whole:
                    passed = 0
                    yield UNUSABLE
            if passed:
                yield UNUSABLE
        except (EOFError, zlib.error, gzip.BadGzipFile):
            yield UNUSABLE


def json_or_none(line: str) -> Any:
    """The parsed line, None if it is not JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def is_natural(value: object) -> bool:
    """Whether it is a whole number that can be a time in nanoseconds, a position or a count."""
    return type(value) is int and 0 <= value < 1 << 62
