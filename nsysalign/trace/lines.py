"""Lines of a file of JSON Lines, gzipped or not, in bounded memory: it may come from anyone.

A few kilobytes of gzip can unpack to gigabytes, and one line can be as long as the file.  A file
that unpacks to more than an event log of its size can hold is refused; a line longer than any
program writes is skipped like a truncated one.
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

#: No line of an event log or of clock samples comes near this many characters; longer ones are not
#: kept.
LONGEST_LINE = 1 << 20
#: A line of up to this length is skipped: holes left by a crash are smaller.
LONGEST_HOLE = 256 << 20
#: Limits on what a gzip file may unpack to, in characters: event logs compress to between a fifth
#: and a twentieth.
_FREE, _PER_BYTE, _MOST = 16 << 20, 100, 8 << 30
#: Each line counts as at least this many (none of ours is shorter): 4 MB of gzip can hold 4 billion
#: blank lines.
_LEAST_LINE = 64
_LATEST_NS = 1 << 62
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
        if not packed:
            yield from _bounded(path.name, io.TextIOWrapper(raw, **text))
            return
        left = min(_FREE + _PER_BYTE * path.stat().st_size, _MOST)
        with gzip.open(raw, "rt", **text) as file:
            try:
                yield from _bounded(path.name, _Counted(path.name, file, left))
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
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LATEST_NS


class _Counted:
    """A text file that raises an error once more has been read from it than is allowed."""

    def __init__(self, name: str, file: Any, granted: int) -> None:
        self._name, self._file, self._left, self._granted = name, file, granted, granted

    def readline(self, size: int) -> str:
        line = self._file.readline(size)
        self._left -= max(len(line), _LEAST_LINE)
        if self._left < 0:
            raise EventLogError(
                f"{self._name}: unpacks to more than {self._granted >> 20} MB, more than any event log of this size",
                "if it is one, unpack it with gunzip and name the unpacked file",
            )
        return line


def _bounded(name: str, file: Any) -> Iterator[str]:
    """Lines of a text file, each at most LONGEST_LINE long."""
    for line in iter(partial(file.readline, LONGEST_LINE), ""):
        if len(line) < LONGEST_LINE or line.endswith("\n"):
            yield line
            continue
        passed = len(line)
        while line and not line.endswith("\n"):
            line = file.readline(LONGEST_LINE)
            passed += len(line)
            if passed > LONGEST_HOLE:
                raise EventLogError(
                    f"{name}: has a line of more than {LONGEST_HOLE >> 20} MB: this is no event log",
                    "name an events-PID.jsonl of nsysalign",
                )
        yield UNUSABLE
