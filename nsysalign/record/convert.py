"""Raw probe files -> `events-PID.jsonl` (docs/design.md, section 5).

The raw files may come from processes that were killed in the middle of a write: a slot counts only
if it was finished, a text line only if it is whole JSON, a number that refers to a lost string
means "unknown". Paths become relative to the run's working directory; files outside it keep their
name and their folder's name only, so that no log carries a home directory.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from nsysalign.files import write_lines
from nsysalign.paths import HOMES, short_path, without_paths
from nsysalign.probe.slots import (
    BETWEEN,
    CALIBRATION,
    CAPTURED,
    CHUNK_BYTES,
    DISTANCE,
    ELAPSED,
    INTERVENED,
    RECORD,
    REFERENCE,
    SLOT,
    SLOT_SIZE,
    WAIT,
)
from nsysalign.record.readings import clock_lines
from nsysalign.rundir import event_logs

_NAME = re.compile(r"(\d+)-(\d+)\.rec$")
#: Logs with at least this many bytes of slots (32,768 lines) are compressed: 35 bytes a record
#: instead of 270.
PACKED_FROM = 2 << 20
_TIMED = (RECORD, WAIT, ELAPSED, REFERENCE)  # kinds whose t0 is a time
_AHEAD = 3 * CHUNK_BYTES  # mapped ahead of time (probe.runtime): not used yet
_FULL_BURST = 50  # marks kept of the first burst; of later bursts only the tightest
_LATER_BURST = 12


@dataclass
class _Texts:
    """What the text file of one process says."""

    header: dict[str, Any] = field(default_factory=dict)
    first_seq: int = 0
    strings: dict[int, str] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    contexts: dict[int, dict[str, Any]] = field(default_factory=dict)
    lines: list[dict[str, Any]] = field(
        default_factory=list
    )  # clock, sync and note lines, in order
    clock_contexts: dict[int, dict[str, Any]] = field(default_factory=dict)
    threads: dict[int, int] = field(default_factory=dict)
    # clock context -> readings until it was left out
    silenced: dict[int, int] = field(default_factory=dict)
    # how the process ended, if the profiler listened; from when on it collected nothing more
    end: dict[str, Any] | None = None
    until_ns: float = math.inf


def convert(
    raw_dir: Path,
    out_dir: Path,
    cwd: Path,
    header: Mapping[str, Any] = {},
    *,
    anew: bool = True,
    source: bool = False,
) -> list[Path]:
    """Turn every process's raw files into event logs; returns their paths, sorted by pid.

    `header` is added to every process's own header.  Without `anew` an existing log stays as it is:
    a file with its final name is complete.  `source`: also keep the lines of code that call sites
    name; only for raw files that this process has just seen written, since others may name any
    file.
    """
    parts: dict[int, list[tuple[int, Path]]] = {}
    for path in raw_dir.glob("*.rec"):
        # never through a link in somebody else's folder; empty: the disk was full
        if (match := _NAME.search(path.name)) and not path.is_symlink() and path.stat().st_size:
            parts.setdefault(int(match[1]), []).append((int(match[2]), path))
    logs = []
    there = set() if anew else {path.name.split(".")[0] for path in event_logs(out_dir)}
    for pid, files in sorted(parts.items()):
        if f"events-{pid}" in there:
            continue
        packed = sum(path.stat().st_size - _AHEAD for _, path in files) >= PACKED_FROM
        log = out_dir / (f"events-{pid}.jsonl" + ".gz" * packed)
        lines = (line for _, path in sorted(files) for line in _lines(path, cwd, header, source))
        write_lines(
            log, (json.dumps(line, separators=(",", ":"), ensure_ascii=False) for line in lines)
        )
        logs.append(log)
    return logs


def errors(raw_dir: Path) -> list[str]:
    """What the probe itself could not do, one text per process: the type of the last exception.
    Its message may contain the user's data (from a `__eq__`, a path, a token); only the system's
    own message is kept.
    """
    texts = [
        p.read_text(errors="replace").strip()
        for p in sorted(raw_dir.glob("*.errors"))
        if p.is_file()
    ]
    return [_kind(text) for text in texts if text]


#: The line of an exception: below its traceback, or after our own prefix; its text may span several
#: lines.
_EXCEPTION = re.compile(
    r"^(?:Traceback .*\n(?: .*\n)*|(probe did not start: ))([\w.]+)(: \[Errno \d+\] [A-Za-z ]+)?",
    re.MULTILINE,
)


def _kind(text: str) -> str:
    """`probe did not start: OSError: [Errno 28] No space left on device: '/home/me/x'` without the
    path."""
    found = _EXCEPTION.findall(text)
    return "".join(found[-1]) if found else "an exception"


def _lines(
    slots: Path, cwd: Path, header: Mapping[str, Any], source: bool
) -> Iterator[dict[str, Any]]:
    texts = _read_texts(slots.with_suffix(".txt"), int(_NAME.search(slots.name)[1]))
    yield {**texts.header, **header}
    yield from texts.lines
    regions: dict[int, tuple[int, int]] = {}  # seq of a record -> its region
    yield from _slot_lines(slots.read_bytes(), texts, cwd, regions, texts.until_ns)
    clocks = slots.with_suffix(".clk")
    readings = clock_lines(
        clocks,
        texts.clock_contexts,
        texts.threads,
        texts.strings,
        set(regions.values()),
        lambda file: shorten(file, cwd),
    )
    yield from (
        line for line in readings if line.get("t1_ns", line.get("t_ns", 0)) <= texts.until_ns
    )
    yield from _silenced(texts, cwd)
    if source:
        began_ns = texts.header.get("clock", {}).get("realtime_ns", 0)
        contexts = [*texts.contexts.values(), *texts.clock_contexts.values()]
        yield from source_lines(contexts, lambda file: shorten(file, cwd), began_ns)
    if texts.end is not None:
        yield {"type": "end", **texts.end}


def _silenced(texts: _Texts, cwd: Path) -> Iterator[dict[str, Any]]:
    for number, readings in texts.silenced.items():
        frames = texts.clock_contexts.get(number, {}).get("frames")
        where = f"{shorten(frames[0][0], cwd)}:{frames[0][1]}" if frames else "an unknown place"
        yield {
            "type": "note",
            "text": f"{where} read the clock more than about {readings:,} times: its later readings are not in the log",
        }


def _read_texts(path: Path, pid: int) -> _Texts:
    texts = _Texts(
        header={"type": "header", "format": "nsysalign-events", "version": 1, "pid": pid}
    )
    # not a pipe or a link in somebody else's folder
    data = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
    bursts = 0
    # zeros in between: an exception in the user's code came after a line's place was taken and
    # before it was written
    for raw in re.split(rb"\n|\0+", data.rstrip(b"\0")):
        try:
            line = json.loads(raw)
        except ValueError:
            continue  # cut short by a kill
        if "header" in line:
            texts.header.update({k: v for k, v in line["header"].items() if v is not None})
            texts.first_seq = line.get("first_seq", 0)
        elif "str" in line:
            texts.strings[line["str"]] = without_paths(str(line["text"]))
        elif "err" in line:
            texts.errors[line["err"]] = without_paths(str(line["text"]))
        elif "ctx" in line:
            texts.contexts[line["ctx"]] = line
        elif "clk" in line:
            texts.clock_contexts[line["clk"]] = line
        elif "thread" in line:
            texts.threads[line["thread"]] = line["tid"]
        elif "silenced" in line:
            texts.silenced[line["silenced"]] = line["readings"]
        elif "clock" in line:
            texts.lines.append({"type": "clock", **line["clock"]})
        elif "note" in line:
            texts.lines.append({"type": "note", **line["note"]})
        elif "end" in line:
            how, _, number = line["end"].partition(" ")
            texts.end = {"how": how or "killed"} | ({"signal": int(number)} if number else {})
            if how not in ("", "exit"):
                texts.until_ns = line.get("ns", math.inf)
        elif "sync" in line:
            keep = _FULL_BURST if bursts == 0 else _LATER_BURST
            bursts += 1
            tightest = sorted(sorted(line["sync"], key=lambda m: m[1] - m[0])[:keep])
            texts.lines += [
                {"type": "sync", "payload": b, "before_ns": b, "after_ns": a} for b, a in tightest
            ]
    return texts


def _slot_lines(
    data: bytes, texts: _Texts, cwd: Path, regions: dict[int, tuple[int, int]], until: float
) -> Iterator[dict[str, Any]]:
    """Lines of the slots that began before `until`; fills `regions`: the seq of each record -> its
    region."""
    usable = len(data) - len(data) % SLOT_SIZE
    distances = _Distances(data[:usable])
    places = {number: _place(context, cwd) for number, context in texts.contexts.items()}
    for index, slot in enumerate(SLOT.iter_unpack(data[:usable])):
        kind, flags, device, context, region, repetition, t0, t1, a, b, x, tid, error, _, again = (
            slot
        )
        if kind == 0 or kind != again or (t0 > until and kind in _TIMED):
            continue
        seq, named = texts.first_seq + index, (region, repetition)
        line: dict[str, Any]
        if kind == RECORD:
            regions[seq] = named
            line = {"type": "record", "seq": seq, "tid": tid, "device": device}
            line |= {"stream_handle": a, "stream_id": b}
        elif kind == WAIT:
            record = int(x) if int(x) in regions else None
            line = {"type": "wait", "seq": seq, "record": record, "tid": tid}
            line |= {"stream_handle": a, "stream_id": b}
        elif kind == ELAPSED:
            # not "elapsed": the program never compared these two, and no reader may count them as
            # the program's
            line = {"type": "calibration" if flags & CALIBRATION else "elapsed"}
            # a record made by another process (before a fork) has no line in this log
            start, end = (n if n in regions else None for n in (a, b))
            line |= {"start": start, "end": end, "ms": None if math.isnan(x) else x}
            first, *more = distances.of(seq) or [{}]
            line |= first
            for other in more:
                yield {"type": "distance", "start": start, "end": end, **other}
            if error:
                line["error"] = texts.errors.get(error, "unknown")
            both = {regions[n] for n in (start, end) if n is not None}
            if len(both) == 1 and (own := both.pop())[0] in texts.strings:
                named = own
        elif kind == REFERENCE:
            line = {"type": "reference", "id": a, "record": a, "device": device, "tid": tid}
            if b >= 0 and not math.isnan(x):
                line |= {"previous": b, "ms": x}
        else:
            if kind == BETWEEN and a in regions and b in regions:
                yield {"type": "distance", "start": a, "end": b, "ms": x}
            continue
        line |= {"t0_ns": t0, "t1_ns": t1}
        if named[0] in texts.strings:
            line["region"] = f"{texts.strings[named[0]]}#{named[1]}"
        yield _finished(line, places.get(context, {}), kind, flags)


def _finished(
    line: dict[str, Any], place: Mapping[str, Any], kind: int, flags: int
) -> dict[str, Any]:
    """What is unknown left out; then what every kind of slot can say."""
    for key in ("device", "stream_handle", "stream_id"):
        if line.get(key) == -1:
            del line[key]
    line |= place
    if kind == WAIT:
        line.pop("library", None)
    if flags & CAPTURED:
        line["captured"] = True
    if flags & INTERVENED:
        line["intervened"] = True
    if flags & CALIBRATION and kind == RECORD:
        line["calibration"] = True
    return line


class _Distances:
    """Distances to references, by the seq of the `elapsed` slot they belong to."""

    def __init__(self, data: bytes) -> None:
        slots = np.frombuffer(data, dtype=_DISTANCE_SLOT)
        slots = slots[(slots["kind"] == DISTANCE) & (slots["again"] == DISTANCE)]
        slots = slots[np.argsort(slots["seq"], kind="stable")]
        self._seq, self._reference = slots["seq"], slots["reference"]
        self._start, self._end = slots["start_ms"].astype(float), slots["end_ms"].astype(float)

    def of(self, seq: int) -> list[dict[str, Any]]:
        first, stop = np.searchsorted(self._seq, [seq, seq + 1]).tolist()
        return [
            {
                "reference": int(self._reference[k]),
                "start_ms": float(self._start[k]),
                "end_ms": float(self._end[k]),
            }
            for k in range(first, stop)
        ]


#: What a distance slot holds (layout.SLOT); of t0 and t1 the lower halves are float32.
_DISTANCE_SLOT = np.dtype(
    {
        "names": ["kind", "start_ms", "end_ms", "seq", "reference", "again"],
        "formats": ["u1", "<f4", "<f4", "<i8", "<i8", "u1"],
        "offsets": [0, 16, 24, 32, 40, SLOT_SIZE - 1],
        "itemsize": SLOT_SIZE,
    }
)


def _place(context: dict[str, Any], cwd: Path) -> dict[str, Any]:
    """`site`, `callers` and `library` of a context, without empty ones."""
    frames = [f"{shorten(file, cwd)}:{number}" for file, number in context.get("frames", ())]
    place: dict[str, Any] = {}
    if frames:
        place["site"] = frames[0]
    if frames[1:]:
        place["callers"] = frames[1:]
    if context.get("library"):
        place["library"] = True
    return place


def shorten(file: str, cwd: Path) -> str:
    """A file's name for a log: relative if inside `cwd`, else its folder's name and its own.
    Relative to a folder that contains home directories (`/`, `/home`) it would begin with a user's
    name.
    """
    if file.startswith("<"):
        return file
    home = os.path.expanduser("~")
    for base in (str(cwd), os.path.realpath(cwd)):
        if os.path.basename(base) in ("", *HOMES) or home.startswith(base.rstrip(os.sep) + os.sep):
            continue
        for name in (file, os.path.realpath(file)):
            if name.startswith(base.rstrip(os.sep) + os.sep):
                return PurePath(name).relative_to(base).as_posix()
    return short_path(file)


#: Longest line kept, in characters; most lines of one process; largest file that is read.
LONGEST, MOST_LINES, LARGEST_BYTES = 200, 2_000, 4 << 20
_LIBRARIES = ("site-packages", "dist-packages")


def source_lines(
    contexts: Iterable[Mapping[str, Any]], shorten: Callable[[str], str], began_ns: int
) -> Iterator[dict[str, Any]]:
    """Log lines of type `source`: the text of "bench.py:31", for reports.

    They are read after the program has ended, in another process: one line per place in the user's
    own code, never a whole file, and none from a file that was changed since the program began.
    `contexts`: with `frames`, a list of (file, line number, ...), where clock readings say more
    than events do; `began_ns`: when the program began, realtime.
    """
    wanted: dict[str, dict[int, None]] = {}
    for context in contexts:
        for file, number, *_ in context.get("frames", ()):
            if not file.startswith("<") and not any(f"/{name}/" in file for name in _LIBRARIES):
                wanted.setdefault(file, {})[number] = None
    left = MOST_LINES
    for file, numbers in wanted.items():
        for number, text in _picked(file, numbers, began_ns):
            if left:
                left -= 1
                yield {"type": "source", "site": f"{shorten(file)}:{number}", "text": text}


def _picked(file: str, numbers: Mapping[int, None], began_ns: int) -> Iterator[tuple[int, str]]:
    """(number, text) of some lines; nothing if the file cannot be read, or is no longer the one
    that ran."""
    try:
        found = os.stat(file)
        if (
            not stat.S_ISREG(found.st_mode)
            or found.st_size > LARGEST_BYTES
            or found.st_mtime_ns > began_ns
        ):
            return
        with tokenize.open(file) as text:
            lines = text.read().splitlines()
    except (OSError, SyntaxError, ValueError):  # gone, not readable, not UTF-8
        return
    for number in numbers:
        if 0 < number <= len(lines) and (line := without_paths(lines[number - 1].strip())):
            yield number, line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"
