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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from nsysalign.files import write_lines
from nsysalign.paths import HOMES, short_path, without_paths
from nsysalign.probe import slots
from nsysalign.probe.slots import SLOT, SLOT_SIZE
from nsysalign.record.readings import clock_lines
from nsysalign.rundir import event_logs

_NAME = re.compile(r"(\d+)-(\d+)\.rec$")
#: Logs with at least this many bytes of slots (32,768 lines) are compressed: 35 bytes a record
#: instead of 270.
PACKED_FROM = 2 << 20
_TIMED = (slots.RECORD, slots.WAIT, slots.ELAPSED, slots.REFERENCE)  # kinds whose t0 is a time
_AHEAD = 3 * slots.CHUNK_BYTES  # mapped ahead of time (probe.runtime): not used yet
_FULL_BURST = 50  # marks kept of the first burst; of later bursts only the tightest
_LATER_BURST = 12
_FLAGS = (("captured", slots.CAPTURED), ("intervened", slots.INTERVENED))
#: What a distance slot holds (slots.SLOT); of t0 and t1 the lower halves are float32.
_DISTANCE = np.dtype(
    {
        "names": ["kind", "start_ms", "end_ms", "seq", "reference", "again"],
        "formats": ["u1", "<f4", "<f4", "<i8", "<i8", "u1"],
        "offsets": [0, 16, 24, 32, 40, SLOT_SIZE - 1],
        "itemsize": SLOT_SIZE,
    }
)
#: Of lines of code that are kept: characters of one, most of one process; the largest file that is
#: read.
LONGEST, MOST_LINES, LARGEST_BYTES = 200, 2_000, 4 << 20


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
        write = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
        write_lines(log, map(write, lines))
        logs.append(log)
    return logs


def errors(raw_dir: Path) -> list[str]:
    """What the probe itself could not do, one text per process: the type of the last exception.
    Its message may contain the user's data (from a `__eq__`, a path, a token); only the system's
    own message is kept.
    """
    paths = [path for path in sorted(raw_dir.glob("*.errors")) if path.is_file()]
    return [_kind(text) for path in paths if (text := path.read_text(errors="replace").strip())]


#: The line of an exception: below its traceback, or after our own prefix; its text may span several
#: lines.
_EXCEPTION = re.compile(
    r"^(?:Traceback .*\n(?: .*\n)*|(probe did not start: ))([\w.]+)(: \[Errno \d+\] [A-Za-z ]+)?",
    re.MULTILINE,
)


def _kind(text: str) -> str:
    """`probe did not start: OSError: [Errno 28] No space left on device: '/home/me/x'` without the
    path."""
    exceptions = _EXCEPTION.findall(text)
    return "".join(exceptions[-1]) if exceptions else "an exception"


def _lines(path: Path, cwd: Path, header: Mapping[str, Any], source: bool) -> Iterator[dict]:
    """The log of one start of a process."""
    texts = _Texts(path.with_suffix(".txt"), int(_NAME.search(path.name)[1]))
    regions: dict[int, tuple[int, int]] = {}  # seq of a record -> its region

    def short(file: str) -> str:
        return shorten(file, cwd)

    yield {**texts.header, **header}
    yield from texts.lines
    yield from _slot_lines(path.read_bytes(), texts, short, regions)
    for line in clock_lines(path.with_suffix(".clk"), texts, set(regions.values()), short):
        if line.get("t1_ns", line.get("t_ns", 0)) <= texts.until_ns:
            yield line
    for number, readings in texts.silenced.items():
        frames = texts.clock_contexts.get(number, {}).get("frames")
        where = f"{short(frames[0][0])}:{frames[0][1]}" if frames else "an unknown place"
        text = f"{where} read the clock more than about {readings:,} times: its later readings are not in the log"
        yield {"type": "note", "text": text}
    if source:
        yield from _source_lines(texts, short)
    if texts.end is not None:
        yield {"type": "end", **texts.end}


@dataclass
class _Texts:
    """What the text file of one process says."""

    path: Path
    pid: int
    header: dict[str, Any] = field(default_factory=dict)
    first_seq: int = 0
    strings: dict[int, str] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    contexts: dict[int, dict[str, Any]] = field(default_factory=dict)
    #: Clock, sync and note lines, in order.
    lines: list[dict[str, Any]] = field(default_factory=list)
    clock_contexts: dict[int, dict[str, Any]] = field(default_factory=dict)
    threads: dict[int, int] = field(default_factory=dict)
    #: Clock context -> readings until it was left out.
    silenced: dict[int, int] = field(default_factory=dict)
    #: How the process ended, if the profiler listened; from when on it collected nothing more.
    end: dict[str, Any] | None = None
    until_ns: float = math.inf

    def __post_init__(self) -> None:
        self.header |= {"type": "header", "format": "nsysalign-events", "version": 1}
        self.header["pid"] = self.pid
        # not a pipe or a link in somebody else's folder
        whole = self.path.is_file() and not self.path.is_symlink()
        # zeros in between: an exception in the user's code came after a line's place was taken and
        # before it was written
        for raw in re.split(rb"\n|\0+", self.path.read_bytes().rstrip(b"\0") if whole else b""):
            try:
                self._add(json.loads(raw))
            except ValueError:
                continue  # cut short by a kill

    def _add(self, line: dict[str, Any]) -> None:
        match line:
            case {"header": header}:
                self.header.update({k: v for k, v in header.items() if v is not None})
                self.first_seq = line.get("first_seq", 0)
            case {"str": number, "text": text}:
                self.strings[number] = without_paths(str(text))
            case {"err": number, "text": text}:
                self.errors[number] = without_paths(str(text))
            case {"ctx": number}:
                self.contexts[number] = line
            case {"clk": number}:
                self.clock_contexts[number] = line
            case {"thread": number, "tid": tid}:
                self.threads[number] = tid
            case {"silenced": number, "readings": readings}:
                self.silenced[number] = readings
            case {"clock": clock}:
                self.lines.append({"type": "clock", **clock})
            case {"note": note}:
                self.lines.append({"type": "note", **note})
            case {"end": end}:
                how, _, number = end.partition(" ")
                self.end = {"how": how or "killed"} | ({"signal": int(number)} if number else {})
                if how not in ("", "exit"):
                    self.until_ns = line.get("ns", math.inf)
            case {"sync": marks}:
                first = not any(other["type"] == "sync" for other in self.lines)
                keep = _FULL_BURST if first else _LATER_BURST
                tightest = sorted(sorted(marks, key=lambda m: m[1] - m[0])[:keep])
                self.lines += [
                    {"type": "sync", "payload": b, "before_ns": b, "after_ns": a}
                    for b, a in tightest
                ]


def _slot_lines(
    data: bytes, texts: _Texts, short: Callable[[str], str], regions: dict[int, tuple[int, int]]
) -> Iterator[dict[str, Any]]:
    """Lines of the slots that began before the end; fills `regions`: the seq of each record -> its
    region."""
    data = data[: len(data) - len(data) % SLOT_SIZE]
    distances = _distances(data)
    places = {number: _place(context, short) for number, context in texts.contexts.items()}
    for index, slot in enumerate(SLOT.iter_unpack(data)):
        kind, flags, device, context, *named, t0, t1, a, b, x, tid, error, _, again = slot
        late = kind in _TIMED and t0 > texts.until_ns
        if kind == 0 or kind != again or late or kind == slots.DISTANCE:
            continue
        if kind == slots.BETWEEN:
            if a in regions and b in regions:
                yield {"type": "distance", "start": a, "end": b, "ms": x}
            continue
        seq, region = texts.first_seq + index, tuple(named)
        line: dict[str, Any] = {"seq": seq, "tid": tid}
        stream = {"stream_handle": a, "stream_id": b}
        if kind == slots.RECORD:
            regions[seq] = region
            line = {"type": "record", **line, "device": device, **stream}
        elif kind == slots.WAIT:
            record = int(x) if int(x) in regions else None
            line = {"type": "wait", "seq": seq, "record": record, "tid": tid, **stream}
        elif kind == slots.ELAPSED:
            # a record made by another process (before a fork) has no line in this log
            start, end = (n if n in regions else None for n in (a, b))
            # not "elapsed": the program never compared these two, and no reader may count them as
            # the program's
            line = {"type": "calibration" if flags & slots.CALIBRATION else "elapsed"}
            line |= {"start": start, "end": end, "ms": None if math.isnan(x) else x}
            first, *more = distances(seq) or [{}]
            line |= first
            yield from ({"type": "distance", "start": start, "end": end, **d} for d in more)
            if error:
                line["error"] = texts.errors.get(error, "unknown")
            both = {regions[n] for n in (start, end) if n is not None}
            if len(both) == 1 and (own := both.pop())[0] in texts.strings:
                region = own
        else:
            line = {"type": "reference", "id": a, "record": a, "device": device, "tid": tid}
            if b >= 0 and not math.isnan(x):
                line |= {"previous": b, "ms": x}
        line |= {"t0_ns": t0, "t1_ns": t1}
        if region[0] in texts.strings:
            line["region"] = f"{texts.strings[region[0]]}#{region[1]}"
        unknown = [k for k in ("device", "stream_handle", "stream_id") if line.get(k) == -1]
        line = {k: v for k, v in line.items() if k not in unknown} | places.get(context, {})
        if kind == slots.WAIT:
            line.pop("library", None)
        calibration = slots.CALIBRATION if kind == slots.RECORD else 0
        for name, flag in (*_FLAGS, ("calibration", calibration)):
            if flags & flag:
                line[name] = True
        yield line


def _distances(data: bytes) -> Callable[[int], list[dict[str, Any]]]:
    """What finds the distances to references by the seq of the `elapsed` slot they belong to."""
    every = np.frombuffer(data, dtype=_DISTANCE)
    every = every[(every["kind"] == slots.DISTANCE) & (every["again"] == slots.DISTANCE)]
    every = every[np.argsort(every["seq"], kind="stable")]
    seqs = np.ascontiguousarray(every["seq"])

    def of(seq: int) -> list[dict[str, Any]]:
        first, stop = np.searchsorted(seqs, [seq, seq + 1])
        names = ("reference", "start_ms", "end_ms")
        return [{name: slot[name].item() for name in names} for slot in every[first:stop]]

    return of


def _place(context: dict[str, Any], short: Callable[[str], str]) -> dict[str, Any]:
    """`site`, `callers` and `library` of a context, without empty ones."""
    frames = [f"{short(file)}:{number}" for file, number in context.get("frames", ())]
    place = {"site": frames[:1] and frames[0], "callers": frames[1:]}
    place["library"] = bool(context.get("library"))
    return {key: value for key, value in place.items() if value}


def shorten(file: str, cwd: Path) -> str:
    """A file's name for a log: relative if inside `cwd`, else its folder's name and its own.
    Relative to a folder that contains home directories (`/`, `/home`) it would begin with a user's
    name.
    """
    if file.startswith("<"):
        return file
    home = os.path.expanduser("~")
    for base in (str(cwd), os.path.realpath(cwd)):
        inside = base.rstrip(os.sep) + os.sep
        if os.path.basename(base) in ("", *HOMES) or home.startswith(inside):
            continue
        for name in (file, os.path.realpath(file)):
            if name.startswith(inside):
                return PurePath(name).relative_to(base).as_posix()
    return short_path(file)


def _source_lines(texts: _Texts, short: Callable[[str], str]) -> Iterator[dict[str, Any]]:
    """Log lines of type `source`: the text of "bench.py:31", for reports.

    They are read after the program has ended, in another process: one line per place in the user's
    own code, never a whole file, and none from a file that was changed since the program began.
    """
    began_ns = texts.header.get("clock", {}).get("realtime_ns", 0)
    wanted: dict[str, dict[int, None]] = {}
    for context in (*texts.contexts.values(), *texts.clock_contexts.values()):
        for file, number, *_ in context.get("frames", ()):
            if not file.startswith("<") and not re.search("/(site|dist)-packages/", file):
                wanted.setdefault(file, {})[number] = None
    left = MOST_LINES
    for file, numbers in wanted.items():
        try:
            status = os.stat(file)
            small = stat.S_ISREG(status.st_mode) and status.st_size <= LARGEST_BYTES
            if not small or status.st_mtime_ns > began_ns:
                continue
            with tokenize.open(file) as text:
                lines = text.read().splitlines()
        except (OSError, SyntaxError, ValueError):  # gone, not readable, not UTF-8
            continue
        for number in numbers:
            line = without_paths(lines[number - 1].strip()) if 0 < number <= len(lines) else ""
            if line and left:
                left -= 1
                line = line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"
                yield {"type": "source", "site": f"{short(file)}:{number}", "text": line}
