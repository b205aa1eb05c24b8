"""Sampled Python stacks: from nsys's report to `stacks.jsonl` in the run directory.

nsys stores each sample as an NVTX mark with a binary payload, which its SQLite export leaves out
(the mark's time is there, its frames are not).  The JSON export has them:

    u32 state, u32 source, u32 frames, u32 -, then per frame, the innermost first: u64 function, u64
    file, u32 line, u32 -

Functions and files are positions in the report's list of strings.  The layout was read from reports
of nsys 2024.2; samples with another layout are left out.
"""

from __future__ import annotations

import base64
import html
import json
import re
import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from nsysalign.errors import NsysError
from nsysalign.files import write_lines
from nsysalign.model import process_of
from nsysalign.record import processes
from nsysalign.record.convert import shorten
from nsysalign.record.nsys import Nsys, export_json

FORMAT, VERSION = "nsysalign-stacks", 1
_HEAD, _FRAME = struct.Struct("<IIII"), struct.Struct("<QQII")
_HOLDER = processes.__file__
_MOST_FRAMES = 32  # of a stack, the innermost
#: Code that is not the program's own: the standard library, installed packages, modules frozen into
#: the interpreter.
_NOT_OWN = re.compile(r"^<frozen |/lib(64)?/python3\.\d+/|/(site|dist)-packages/|/lib/python3/")


def keep_stacks(nsys: Nsys, report: Path, out: Path, cwd: Path) -> list[str]:
    """Write the report's Python samples to `out`; a note says if there are none, and no file is
    written then."""
    exported = out.with_name("stacks.partial.json")
    try:
        export_json(nsys, report, exported)
        with exported.open(encoding="utf-8", errors="replace") as lines:
            kept = list(stack_lines(lines, lambda file: shorten(file, cwd)))
    except (NsysError, OSError) as error:
        return [f"the sampled Python stacks could not be read: {error}"]
    finally:
        exported.unlink(missing_ok=True)
    if not kept:
        return [
            "nsys recorded no Python stacks: it saw no Python, or one of a version that it cannot "
            "sample (nsys 2024.2 can sample 3.9 to 3.12)"
        ]
    write_lines(out, (json.dumps(line, separators=(",", ":")) for line in kept))
    return []


def stack_lines(
    lines: Iterable[str], shorten_file: Callable[[str], str]
) -> Iterator[dict[str, Any]]:
    """Of a JSON export: a header, the stacks, the samples of each thread in time; nothing if there
    are no samples."""
    strings: list[Any] = []
    stacks: dict[bytes, int] = {}
    threads: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)  # (time, stack)
    for line in lines:
        if '"BinaryData"' in line and (sample := _sample(line)) is not None:
            thread, number, t_ns, stack = sample
            threads[thread, number].append((t_ns, stacks.setdefault(stack, len(stacks))))
        elif not strings and line.startswith('{"data":["'):
            strings = json.loads(line)["data"]

    def text(number: int) -> str:
        string = strings[number] if number < len(strings) else "?"
        return (
            html.unescape(string) if isinstance(string, str) else "?"
        )  # nsys writes &lt;module&gt;

    # of the process that nsys takes for the script
    ours = {
        n for s, n in stacks.items() if any(text(f[1]) == _HOLDER for f in _FRAME.iter_unpack(s))
    }
    threads = {k: v for k, v in threads.items() if ours.isdisjoint(stack for _, stack in v)}
    if not threads:
        return
    yield {"format": FORMAT, "version": VERSION}
    for stack, number in stacks.items():
        frames = []
        for function, file, line, _ in _FRAME.iter_unpack(stack):
            of_program = int(_NOT_OWN.search(text(file)) is None)
            frames.append([text(function), shorten_file(text(file)), line, of_program])
        yield {"stack": number, "frames": frames}
    first: dict[int, int] = {}  # a process's main thread exists before all others
    for (thread, _), samples in threads.items():
        samples.sort()
        first[thread] = min(first.get(thread, samples[0][0]), samples[0][0])
    for (thread, number), samples in threads.items():
        main = samples[0][0] == first[thread]
        times, stack_of = zip(*samples, strict=True)
        line = {"process": process_of(thread), "thread": number, "main": main}
        yield line | {"t_ns": [*times], "stack_of": [*stack_of]}


def _sample(line: str) -> tuple[int, int, int, bytes] | None:
    """(globalTid, thread's number, time, frames) of one; None for a payload of the program's own."""
    try:
        event = json.loads(line)["NvtxEvent"]
        data = base64.b64decode(event["Payload"]["BinaryData"][0]["Data"])
        t_ns, thread = int(event["Timestamp"]), int(event["GlobalTid"])
        number, count = int(event.get("Category", 0)), _HEAD.unpack_from(data)[2]
    except (ValueError, KeyError, TypeError, IndexError, struct.error):
        return None
    if len(data) != _HEAD.size + count * _FRAME.size:
        return None
    frames = _FRAME.iter_unpack(data[_HEAD.size :][: _MOST_FRAMES * _FRAME.size])
    # the padding of a frame is not zero: equal stacks would differ
    return thread, number, t_ns, b"".join(_FRAME.pack(*frame[:3], 0) for frame in frames)
