"""Sampled Python stacks: from nsys's report to `stacks.jsonl` in the run directory.

nsys stores each sample as an NVTX mark with a binary payload, which its SQLite export leaves out
(the mark's time is there, its frames are not).  The JSON export has them:

    u32 state, u32 source, u32 frames, u32 -, then per frame, the innermost first: u64 function, u64
    file, u32 line, u32 -

Functions and files are positions in the report's list of strings.  The layout was read from reports
of nsys 2024.2; samples with another layout are counted and left out.
"""

from __future__ import annotations

import base64
import html
import json
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from nsysalign.errors import NsysError
from nsysalign.files import write_lines
from nsysalign.model import process_of
from nsysalign.record import processes
from nsysalign.record.convert import shorten
from nsysalign.record.nsys import Nsys, export_json

#: Samples per second and thread; nsys's own default.
FREQUENCY_HZ = 1000
FORMAT, VERSION = "nsysalign-stacks", 1
_HEAD, _FRAME = struct.Struct("<IIII"), struct.Struct("<QQII")
_MOST_FRAMES = 32  # of a stack, the innermost
_AT_ONCE = 4096  # samples in a line
_HOLDER = processes.__file__
#: Code that is not the program's own: the standard library, installed packages, modules frozen into
#: the interpreter.
_NOT_OWN = re.compile(r"^<frozen |/lib(64)?/python3\.\d+/|/(site|dist)-packages/|/lib/python3/")


def keep_stacks(nsys: Nsys, report: Path, out: Path, cwd: Path) -> list[str]:
    """Write the report's Python samples to `out`; notes say what is missing.  Nothing is written if
    there are no samples."""
    exported = out.with_name("stacks.partial.json")
    try:
        export_json(nsys, report, exported)
        with exported.open(encoding="utf-8", errors="replace") as lines:
            samples = Samples(lines, lambda file: shorten(file, cwd))
    except (NsysError, OSError) as error:
        return [f"the sampled Python stacks could not be read: {error}"]
    finally:
        exported.unlink(missing_ok=True)
    notes = []
    if samples.bad:
        notes.append(
            f"{samples.bad:,} Python samples have a layout that is not known: they were left out"
        )
    if not samples.count:
        return [*notes, "nsys recorded no Python stacks (no Python process, or one older than 3.9)"]
    write_lines(out, (json.dumps(line, separators=(",", ":")) for line in samples.lines()))
    return notes


class Samples:
    """The samples of a JSON export, by process and thread."""

    def __init__(self, lines: Iterable[str], shorten_file: Callable[[str], str]) -> None:
        self.bad = 0
        self._shorten = shorten_file
        self._strings: list[Any] = []
        self._stacks: dict[bytes, int] = {}
        #: (thread, number) -> (time, stack)
        self._of: dict[tuple[int, int], list[tuple[int, int]]] = {}
        holders: set[int] = set()
        for line in lines:
            if '"BinaryData"' in line:
                self._add(line, holders)
            elif not self._strings and line.startswith('{"data":["'):
                self._strings = json.loads(line)["data"]
        self._of = {k: v for k, v in self._of.items() if process_of(k[0]) not in holders}
        self.count = sum(map(len, self._of.values()))

    def _add(self, line: str, holders: set[int]) -> None:
        try:
            event = json.loads(line)["NvtxEvent"]
            data = base64.b64decode(event["Payload"]["BinaryData"][0]["Data"])
            t_ns, thread = int(event["Timestamp"]), int(event["GlobalTid"])
            number, frames = int(event.get("Category", 0)), _HEAD.unpack_from(data)[2]
        except (ValueError, KeyError, TypeError, IndexError, struct.error):
            return  # a payload of the program's own
        if len(data) != _HEAD.size + frames * _FRAME.size:
            self.bad += 1
            return
        if any(self._text(frame[1]) == _HOLDER for frame in _FRAME.iter_unpack(data[_HEAD.size :])):
            holders.add(process_of(thread))  # not the script, but what nsys took for it
        key = data[_HEAD.size : _HEAD.size + _MOST_FRAMES * _FRAME.size]
        # the padding of a frame is not zero: equal stacks would differ
        stack = b"".join(_FRAME.pack(*f[:3], 0) for f in _FRAME.iter_unpack(key))
        self._of.setdefault((thread, number), []).append(
            (t_ns, self._stacks.setdefault(stack, len(self._stacks)))
        )

    def lines(self) -> Iterator[dict[str, Any] | list[Any]]:
        """The file's lines: a header, the stacks, the samples of each thread in time."""
        yield {"format": FORMAT, "version": VERSION, "frequency_hz": FREQUENCY_HZ}
        for stack, number in self._stacks.items():
            yield {"stack": number, "frames": [self._frame(f) for f in _FRAME.iter_unpack(stack)]}
        first: dict[int, int] = {}  # a process's main thread exists before all others
        for (thread, _), samples in self._of.items():
            first[thread] = min(first.get(thread, samples[0][0]), min(samples)[0])
        for (thread, number), samples in self._of.items():
            samples.sort()
            main = samples[0][0] == first[thread]
            for begin in range(0, len(samples), _AT_ONCE):
                times, stacks = zip(*samples[begin : begin + _AT_ONCE], strict=True)
                line = {"process": process_of(thread), "thread": number, "main": main}
                yield line | {"t_ns": [*times], "stack_of": [*stacks]}

    def _frame(self, frame: tuple[int, ...]) -> list[Any]:
        """[function, file, line, whether it is the program's own code]."""
        function, file = self._text(frame[0]), self._text(frame[1])
        return [function, self._shorten(file), frame[2], int(_NOT_OWN.search(file) is None)]

    def _text(self, number: int) -> str:
        text = self._strings[number] if number < len(self._strings) else "?"
        return html.unescape(text) if isinstance(text, str) else "?"  # nsys writes &lt;module&gt;
