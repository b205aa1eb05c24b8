"""A Chrome trace (JSON) in pieces: the list `traceEvents` is cut between two events, and each piece parsed
by itself, so that a file of any length is read in the memory of one piece.

    { "schemaVersion": 1, ..., "traceEvents": [ {...}, {...}, | {...}, {...}, | {...} ], "traceName": ... }
    '------------ about -----------------------'   a piece        a piece       rest   '--- about -------'

A cut is right if what lies before it is JSON by itself: a wrong one (inside the arguments of an event)
is not, and another is tried.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from nsysalign.errors import TraceError
from nsysalign.untrusted import open_regular

#: Bytes that are read at once; a piece that ends nowhere may grow to so many.
_PIECE, _LONGEST_PIECE = 8 << 20, 256 << 20
#: Of the text before `traceEvents`, and behind it.
_LONGEST_HEAD = 64 << 20
#: How far a gzip file may unpack, as a multiple of its size: traces compress to a twentieth.
_MOST_UNPACKED = 200
#: How far from the end of a piece cuts are looked for first.
_TAIL = 1 << 20
#: Cuts that are tried from the end of a piece backwards before more is read.
_TRIED = 40
_CUT = re.compile(
    rb'\}(\s*,\s*)(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|args|id|bp|s|tts|cname)"\s*:)'
)
_END = re.compile(rb"(?:\}|\A)(\s*\]\s*)(?=,|\}|\Z)")
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
#: Times of more digits than a float keeps: they are read as text.
_LONG_TIME = re.compile(rb'("ts"\s*:\s*)(\d{13,}\.\d+)')
_BAD_ESCAPE = re.compile(r'\\(?![\\"/bfnrtu])')


class ChromeTrace:
    """One file: `about` (what stands beside the events) is whole when `events` has come to its end."""

    def __init__(self, path: Path) -> None:
        self.path, self.about = path, dict[str, Any]()
        self._events_read, self._begun = 0, False

    def events(self) -> Iterator[list[Any]]:
        """All events, in lists.  Raises TraceError for a file that cannot be read, is cut, is no JSON or
        has no events."""
        try:
            with closing(self._opened()) as file:
                yield from self._pieces(file)
        except (EOFError, zlib.error, gzip.BadGzipFile) as problem:
            raise self._cut_off() from problem
        except OSError as problem:
            raise TraceError(
                f"{self.path.name}: cannot be read ({problem.strerror or problem})",
                "check its permissions",
            ) from problem

    def _opened(self) -> BinaryIO:
        raw = open_regular(self.path)
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        most = _MOST_UNPACKED * self.path.stat().st_size + _PIECE
        return io.BufferedReader(_Bounded(gzip.GzipFile(fileobj=raw), most)) if packed else raw

    def _pieces(self, file: BinaryIO) -> Iterator[list[Any]]:
        rest = self._head(file)
        self._begun = True
        wanted = _PIECE
        while True:
            more = file.read(wanted)
            rest += more
            if len(more) < wanted:
                break
            cut, events = self._last_cut(rest)
            if events is None:
                if len(rest) > _LONGEST_PIECE:
                    raise self._damaged("an event that ends nowhere")
                wanted = max(_PIECE, len(rest))
                continue
            rest, wanted = rest[cut:], _PIECE
            self._events_read += len(events)
            yield events
        yield self._last(rest)

    def _head(self, file: BinaryIO) -> bytes:
        """What is read beyond the beginning of the events; `about` holds what stands before them."""
        head = b""
        while len(head) < _LONGEST_HEAD:
            more = file.read(1 << 20)
            head += more
            text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
            if text.startswith(b"["):
                return text[1:]
            if found := _EVENTS.search(text):
                before = text[: found.start()].rstrip().rstrip(b",")
                self.about |= _object(before + b"}") or {}
                return text[found.end() :]
            if not more:
                break
        if _object(head) is None:
            raise self._cut_off()
        snapshot = b'"device_traces"' in head or b'"segments"' in head[:200]
        what = (
            "a memory snapshot of torch"
            if snapshot
            else "JSON without a list of events (traceEvents)"
        )
        raise TraceError(
            f"{self.path.name}: is {what}, and no trace of what ran when",
            "name a trace of torch.profiler (export_chrome_trace), a .sqlite or .nsys-rep of nsys, or a run directory",
        )

    def _last_cut(self, text: bytes) -> tuple[int, list[Any] | None]:
        """Where the last event of the text ends that is whole, and the events until there."""
        tail = max(0, len(text) - _TAIL)
        while True:
            cuts = list(_CUT.finditer(text, tail))
            if cuts or not tail:
                break
            tail = max(0, tail - 4 * _TAIL)
        for parse in (_strict, _loose):
            for cut in reversed(cuts[-_TRIED:]):
                if (events := parse(text[: cut.start() + 1])) is not None:
                    return cut.end(), events
        return 0, None

    def _last(self, text: bytes) -> list[Any]:
        """The events up to the end of the list; what stands behind it is added to `about`."""
        if not text.strip():
            raise self._cut_off()
        for parse in (_strict, _loose):
            for end in islice(_END.finditer(text), _TRIED):
                if (events := parse(text[: end.start(1)])) is not None:
                    behind = text[end.end() :].strip().lstrip(b",").strip()
                    self.about |= _object(b"{" + behind) or {}
                    return events
        if text.rstrip().endswith(b"]") and (rest := _strict(text.rstrip()[:-1])) is not None:
            return rest  # a list of something else
        # a list of events without an end is allowed in the format, and what a killed program leaves
        raise self._cut_off()

    def _cut_off(self) -> TraceError:
        read = f" after {self._events_read:,} events" if self._events_read else ""
        where = "inside" if self._begun else "before"
        return TraceError(
            f"{self.path.name}: is cut{read}: the file ends {where} its list of events",
            "copy it again, whole; or record again and let the program end by itself",
        )

    def _damaged(self, what: str) -> TraceError:
        return TraceError(
            f"{self.path.name}: damaged ({what}, after {self._events_read:,} events)",
            "copy it again, or record again",
        )


class _Bounded(io.RawIOBase):
    """Bytes of a file that may not unpack to more than `most`."""

    def __init__(self, file: gzip.GzipFile, most: int) -> None:
        self.file, self.left = file, most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self.file.readinto(buffer)
        self.left -= count
        if self.left < 0:
            raise OSError("it unpacks to far more than a trace of its size can")
        return count

    def close(self) -> None:
        if not self.closed:
            self.file.close()
        super().close()


def _strict(text: bytes) -> list[Any] | None:
    """The objects of a part of a list; None if it is no JSON."""
    if _LONG_TIME.search(text):
        text = _LONG_TIME.sub(rb'\1"\2"', text)
    try:
        return orjson.loads(b"[" + text + b"]")
    except orjson.JSONDecodeError:
        return None


def _loose(text: bytes) -> list[Any] | None:
    """The same where names are no UTF-8 or hold backslashes as they are, or a number is NaN."""
    try:
        loose = _BAD_ESCAPE.sub(r"\\\\", text.decode("utf-8", "replace"))
        return list(json.loads(f"[{loose}]", strict=False))
    except (ValueError, RecursionError):
        return None


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(text.decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
