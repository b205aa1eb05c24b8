"""Raw probe files -> `events-PID.jsonl` (docs/design.md, section 5).

The raw files may come from processes that were killed in the middle of a write: a slot counts only
if it was finished, a text line only if it is whole JSON, a number that refers to a lost string
means "unknown". Paths become relative to the run's working directory; files outside it keep their
name and their folder's name only, so that no log carries a home directory.
"""

from __future__ import annotations

import itertools
import json
import linecache
import math
import os
import re
import struct
from collections import namedtuple
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

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
_TABLES = ("str", "err", "ctx", "clk", "silenced")
_FLOATS, _INTEGERS = struct.Struct("<ff"), struct.Struct("<ii")
#: Of lines of code that are kept: characters of one, places of one process; the largest file that is
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
    converted = set() if anew else {path.name.split(".")[0] for path in event_logs(out_dir)}
    write = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
    logs = []
    for pid, files in sorted(parts.items()):
        if f"events-{pid}" in converted:
            continue
        packed = sum(path.stat().st_size - _AHEAD for _, path in files) >= PACKED_FROM
        log = out_dir / (f"events-{pid}.jsonl" + ".gz" * packed)
        starts = (_Start(path, pid, cwd) for _, path in sorted(files))  # one after another
        write_lines(log, (write(line) for start in starts for line in start.log(header, source)))
        logs.append(log)
    return logs


def errors(raw_dir: Path) -> list[str]:
    """What the probe itself could not do, one text per process: the kind of the last exception,
    whose message and traceback may hold the user's data and stay in the file."""
    named = [*raw_dir.glob("*.errors"), *raw_dir.glob("*.later")]  # probe.store.page_of_last_words
    files = [path for path in sorted(named) if path.is_file()]
    texts = [path.read_text(errors="replace").rstrip("\0").splitlines() for path in files]
    kinds = [[line[1:] for line in lines if line.startswith("!")] for lines in texts]
    return [messages[-1] for messages in kinds if messages]


#: The fields of `slots.SLOT`, which says what they mean for each kind.
_Slot = namedtuple("_Slot", "kind flags device context region repetition t0 t1 a b x tid again")


class _Start:
    """One start of a process: what its text file says, and the lines of its log."""

    def __init__(self, path: Path, pid: int, cwd: Path) -> None:
        self.path, self.cwd = path, cwd
        self.header: dict[str, Any] = {"type": "header", "format": "nsysalign-events", "version": 2}
        self.header["pid"] = pid
        self.first_seq = 0
        #: Kind of line -> number -> line (slots.py): what other lines and slots refer to.
        self.tables: dict[str, dict[int, dict[str, Any]]] = {kind: {} for kind in _TABLES}
        self.places: dict[int, dict[str, Any]] = {}  # of contexts, as they are written
        self.lines: list[
            dict[str, Any]
        ] = []  # of types clock, sync, gc, off_cpu, fork and note, in order
        #: How the process ended, if the profiler listened; from when on it collected nothing more.
        self.end: dict[str, Any] | None = None
        self.until_ns = math.inf
        self.regions: dict[int, tuple[int, int]] = {}  # seq of a record -> its region
        texts = path.with_suffix(".txt")
        # not a pipe or a link in somebody else's folder
        data = texts.read_bytes() if texts.is_file() and not texts.is_symlink() else b""
        # zeros in between: an exception in the user's code came after a line's place was taken and
        # before it was written
        for raw in re.split(rb"\n|\0+", data.rstrip(b"\0")):
            try:
                line = json.loads(raw)
            except ValueError:
                continue  # cut short by a kill
            if not isinstance(line, dict):
                continue
            if "text" in line:
                line["text"] = without_paths(str(line["text"]))
            if kind := next((kind for kind in _TABLES if kind in line), None):
                self.tables[kind][line[kind]] = line
            else:
                self._add(line)

    def _add(self, line: dict[str, Any]) -> None:
        match line:
            case {"header": header}:
                self.header.update({k: v for k, v in header.items() if v is not None})
                self.first_seq = line.get("first_seq", 0)
            case {"clock": clock}:
                self.lines.append({"type": "clock", **clock})
            case {"gc": [start, stop, generation, collected]}:
                times = {"t0_ns": start, "t1_ns": stop}
                counts = {"generation": generation, "collected": collected}
                self.lines.append({"type": "gc", **times, **counts})
            case {"off": [tid, start, end, thread_ns, process_ns]}:
                ran = {"thread_ns": thread_ns, "process_ns": process_ns}
                self.lines.append(
                    {"type": "off_cpu", "tid": tid, "t0_ns": start, "t1_ns": end, **ran}
                )
            case {"fork": [tid, start, end]}:
                self.lines.append({"type": "fork", "tid": tid, "t0_ns": start, "t1_ns": end})
            case {"note": note}:
                self.lines.append({"type": "note", **note})
            case {"end": end}:
                how, _, number = end.partition(" ")
                self.end = {"how": how or "killed"} | ({"signal": int(number)} if number else {})
                if how not in ("", "exit"):
                    self.until_ns = line.get("ns", math.inf)
            case {"sync": marks}:
                first = not any(added["type"] == "sync" for added in self.lines)
                keep = _FULL_BURST if first else _LATER_BURST
                for before, after in sorted(sorted(marks, key=lambda m: m[1] - m[0])[:keep]):
                    times = {"payload": before, "before_ns": before, "after_ns": after}
                    self.lines.append({"type": "sync", **times})

    def log(self, header: Mapping[str, Any], source: bool) -> Iterator[dict[str, Any]]:
        """All lines of the log."""
        yield {**self.header, **header}
        yield from self.lines
        yield from self._slots(self.path.read_bytes())
        regions = set(self.regions.values())
        for line in clock_lines(self.path.with_suffix(".clk"), self.tables, regions, self._short):
            if line.get("t1_ns", line.get("t_ns", 0)) <= self.until_ns:
                yield line
        for number, line in self.tables["silenced"].items():
            frames = self.tables["clk"].get(number, {}).get("frames")
            where = f"{self._short(frames[0][0])}:{frames[0][1]}" if frames else "an unknown place"
            text = f"{where} read the clock more than about {line['readings']:,} times: its later readings are not in the log"
            yield {"type": "note", "text": text}
        if source:
            yield from self._sources()
        if self.end is not None:
            yield {"type": "end", **self.end}

    def _short(self, file: str) -> str:
        return shorten(file, self.cwd)

    def _slots(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Lines of the slots that began before the end."""
        regions, first_seq = self.regions, self.first_seq
        for index in range(len(data) // SLOT_SIZE):
            slot = self._slot(data, index)
            if slot is None:
                continue
            if slot.kind == slots.BETWEEN:
                if slot.a in regions and slot.b in regions:
                    yield {"type": "distance", "start": slot.a, "end": slot.b, "ms": slot.x}
            elif slot.kind != slots.DISTANCE:
                after = self._slot(data, index + 1)
                yield self._line(first_seq + index, slot, after)
            elif slot.a != first_seq + index - 1:  # else it is in the line of its pair
                pair = self._slot(data, slot.a - first_seq)
                if pair is not None and pair.kind == slots.ELAPSED:
                    ends = {"start": self._known(pair.a), "end": self._known(pair.b)}
                    yield {"type": "distance", **ends, **_distances(slot)}

    def _slot(self, data: bytes, index: int) -> _Slot | None:
        """One slot; None for one that was not finished, or began after the end."""
        if not 0 <= index < len(data) // SLOT_SIZE:
            return None
        slot = _Slot._make(SLOT.unpack_from(data, index * SLOT_SIZE))
        late = slot.kind in _TIMED and slot.t0 > self.until_ns
        return None if slot.kind == 0 or slot.kind != slot.again or late else slot

    def _known(self, record: int) -> int | None:
        """A record's number; None for one of another process (before a fork), which has no line in
        this log."""
        return record if record in self.regions else None

    def _line(self, seq: int, slot: _Slot, after: _Slot | None) -> dict[str, Any]:
        """The line of a record, wait, comparison or reference; `after`: the slot behind it."""
        region, strings = (slot.region, slot.repetition), self.tables["str"]
        line: dict[str, Any] = {"seq": seq, "tid": slot.tid}
        stream = {"stream_handle": slot.a, "stream_id": slot.b}
        if slot.kind == slots.RECORD:
            self.regions[seq] = region
            line = {"type": "record", **line, "device": slot.device, **stream}
        elif slot.kind == slots.WAIT:
            record = self._known(int(slot.x))
            line = {"type": "wait", "seq": seq, "record": record, "tid": slot.tid, **stream}
        elif slot.kind == slots.ELAPSED:
            start, end = self._known(slot.a), self._known(slot.b)
            # not "elapsed": the program never compared these two, and no reader may count them as
            # the program's
            line = {"type": "calibration" if slot.flags & slots.CALIBRATION else "elapsed"}
            line |= {"start": start, "end": end, "ms": None if math.isnan(slot.x) else slot.x}
            if after is not None and after.kind == slots.DISTANCE and after.a == seq:
                line |= _distances(after)
            if math.isnan(slot.x):
                line["error"] = self.tables["err"].get(seq, {}).get("text", "unknown")
            regions = {self.regions[n] for n in (start, end) if n is not None}
            if len(regions) == 1 and (shared := regions.pop())[0] in strings:
                region = shared
        else:
            line = {"type": "reference", "id": slot.a, "record": slot.a, "device": slot.device}
            line["tid"] = slot.tid
            if slot.b >= 0 and not math.isnan(slot.x):
                line |= {"previous": slot.b, "ms": slot.x}
        line |= {"t0_ns": slot.t0, "t1_ns": slot.t1}
        if region[0] in strings:
            line["region"] = f"{strings[region[0]]['text']}#{region[1]}"
        for name in ("device", "stream_handle", "stream_id"):
            if line.get(name) == -1:
                del line[name]
        line |= self._place(slot.context)
        if slot.kind == slots.WAIT:
            line.pop("library", None)
        calibration = slots.CALIBRATION if slot.kind == slots.RECORD else 0
        flags = {"captured": slots.CAPTURED, "intervened": slots.INTERVENED}
        flags["calibration"] = calibration
        return line | {name: True for name, flag in flags.items() if slot.flags & flag}

    def _place(self, context: int) -> dict[str, Any]:
        """`site`, `callers` and `library` of a context, without empty ones."""
        if context not in self.places:
            value = self.tables["ctx"].get(context, {})
            frames = [f"{self._short(file)}:{number}" for file, number in value.get("frames", ())]
            place = {"site": frames[:1] and frames[0], "callers": frames[1:]}
            place["library"] = bool(value.get("library"))
            self.places[context] = {key: value for key, value in place.items() if value}
        return self.places[context]

    def _sources(self) -> Iterator[dict[str, Any]]:
        """Log lines of type `source`: the text of "bench.py:31", for reports.  Of places in the
        user's own code alone, and of no file that was changed since the program began."""
        began_ns = self.header.get("clock", {}).get("realtime_ns", 0)
        contexts = (*self.tables["ctx"].values(), *self.tables["clk"].values())
        frames = ((file, n) for c in contexts for file, n, *_ in c.get("frames", ()))
        for file, number in itertools.islice(dict.fromkeys(frames), MOST_LINES):
            if file.startswith("<") or re.search("/(site|dist)-packages/", file):
                continue
            status = os.stat(file) if os.path.isfile(file) else None
            if status is None or status.st_mtime_ns > began_ns or status.st_size > LARGEST_BYTES:
                continue
            linecache.checkcache(file)
            line = without_paths(linecache.getline(file, number).strip())
            if line:
                line = line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"
                yield {"type": "source", "site": f"{self._short(file)}:{number}", "text": line}


def _distances(slot: _Slot) -> dict[str, Any]:
    """What a distance slot holds; of t0 and t1 the lower halves are float32."""
    start_ms, end_ms = _FLOATS.unpack(_INTEGERS.pack(slot.t0, slot.t1))
    return {"reference": slot.b, "start_ms": start_ms, "end_ms": end_ms}


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
