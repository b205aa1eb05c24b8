"""What intervals issued, waited for and ran, read again from the export itself by SQL and plain loops.

For `check_claims.py`: nothing here is shared with `split` or `explain`.  Of event pairs the calls of
their records are found by the log's own times (marks that both hold say how far its clock is from the
trace's); of ranges by their work; host timers are their own times.  All times are nanoseconds on the
trace's clock.
"""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

#: Calls that wait for the GPU.
SYNC = re.compile(
    r"cuda(Device|Thread)Synchronize|cuCtxSynchronize|cu(da)?(Stream|Event)Synchronize"
)
#: Calls that load code.
LOADS = re.compile(r"cu(da)?(LibraryLoad|ModuleLoad|Link)")
#: A record's call begins this close to where the log has it.
NEAR_NS = 20_000
_TABLES = {
    "KERNEL": ("demangledName", "0", "0", "0"),
    "MEMCPY": ("copyKind", "srcKind", "dstKind", "bytes"),
    "MEMSET": ("0", "0", "0", "bytes"),
    "GRAPH_TRACE": ("0", "0", "0", "0"),
}


#: Whose it is; what an export does not have is 0.
_PLACE = ("globalPid", "deviceId", "streamId", "correlationId")


class Operation(NamedTuple):
    """A row of GPU work.  name: a kernel's; of copies (kind, memory from, memory to)."""

    start: int
    end: int
    table: str
    row: int
    stream: int
    device: int
    name: Any
    size: int

    @property
    def ns(self) -> int:
        return self.end - self.start


class Call(NamedTuple):
    """A CUDA call.  depth: how many calls of its thread hold it."""

    start: int
    end: int
    tid: int
    name: str
    correlation: int
    depth: int


class Process(NamedTuple):
    """Calls by start, and what each issued."""

    calls: list[Call]
    starts: list[int]
    issued: dict[int, list[Operation]]  # correlation -> operations
    by_stream: dict[tuple[int, int], list[Operation]]  # (device, stream) -> by start


class Work:
    """The GPU work and the CUDA calls of an export, by process; and the records of its logs."""

    def __init__(self, export: Path, logs: Iterable[Path] = ()) -> None:
        uri = f"{export.resolve().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True)) as db:
            self.tables = {name for (name,) in db.execute("select name from sqlite_master")}
            self.texts = dict(db.execute("select id, value from StringIds"))
            self.processes = self._processes(db)
            self.ranges = self._ranges(db)
            self.marks = self._marks(db)
        self.logs = list(logs)
        self._streams: dict[tuple[int, int], set[tuple[int, int]]] = {}

    def _processes(self, db: sqlite3.Connection) -> dict[int, Process]:
        calls: dict[int, list[Call]] = defaultdict(list)
        if "CUPTI_ACTIVITY_KIND_RUNTIME" in self.tables:
            rows = db.execute(
                "select start, end, globalTid, nameId, correlationId from CUPTI_ACTIVITY_KIND_RUNTIME "
                "order by start, end desc"
            )
            open_until: dict[int, list[int]] = defaultdict(list)
            for start, end, thread, name, correlation in rows:
                outer = open_until[thread]
                while outer and outer[-1] <= start:
                    outer.pop()
                text = re.sub(r"_v\d+$", "", self.texts.get(name, ""))
                calls[thread >> 24 & 0xFFFFFF].append(
                    Call(start, end, thread & 0xFFFFFF, text, correlation, len(outer))
                )
                outer.append(end)
        issued: dict[int, dict[int, list[Operation]]] = defaultdict(lambda: defaultdict(list))
        streams: dict[int, dict[tuple[int, int], list[Operation]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for table, columns in _TABLES.items():
            full = f"CUPTI_ACTIVITY_KIND_{table}"
            if full not in self.tables:
                continue
            kept = {row[1] for row in db.execute(f"pragma table_info({full})")} | {"0"}
            wanted = (*("rowid", "start", "end"), *_PLACE, *columns)
            found = ", ".join(c if c in kept or c == "rowid" else "0" for c in wanted)
            for row, start, end, process, device, stream, correlation, a, b, c, size in db.execute(
                f"select {found} from {full} order by start"
            ):
                name = self.texts.get(a, "") if table == "KERNEL" else (a, b, c)
                one = Operation(start, end, table, row, stream, device, name, size or 0)
                pid = process >> 24 & 0xFFFFFF
                issued[pid][correlation].append(one)
                streams[pid][device, stream].append(one)
        out = {}
        for pid in {*calls, *issued}:
            mine = calls[pid]
            for of_stream in streams[pid].values():
                of_stream.sort()
            out[pid] = Process(mine, [c.start for c in mine], issued[pid], streams[pid])
        return out

    def _ranges(self, db: sqlite3.Connection) -> dict[tuple[int, int], list[tuple[int, int, str]]]:
        """(start, end, text) of the ranges of a thread, by process and thread."""
        out: dict[tuple[int, int], list[tuple[int, int, str]]] = defaultdict(list)
        if "NVTX_EVENTS" in self.tables:
            for start, end, thread, text in db.execute(
                "select start, end, globalTid, coalesce(text, (select value from StringIds where id = textId)) "
                "from NVTX_EVENTS where end is not null and start is not null order by start"
            ):
                out[thread >> 24 & 0xFFFFFF, thread & 0xFFFFFF].append((start, end, text or ""))
        return out

    def _marks(self, db: sqlite3.Connection) -> dict[int, list[tuple[int, int]]]:
        """(time of the log, how far the trace's clock is ahead of it), by process: a mark's payload
        is the log's time just before it."""
        out: dict[int, list[tuple[int, int]]] = defaultdict(list)
        columns = {row[1] for row in db.execute("pragma table_info(NVTX_EVENTS)")}
        if {"int64Value", "textId"} <= columns:
            for start, thread, payload in db.execute(
                "select start, globalTid, int64Value from NVTX_EVENTS where int64Value is not null and end is null and "
                "coalesce(text, (select value from StringIds where id = textId)) = 'nsysalign:sync' order by int64Value"
            ):
                out[thread >> 24 & 0xFFFFFF].append((payload, start - payload))
        return out

    def _away(self, pid: int, t_ns: int) -> int | None:
        """How far the trace's clock is ahead of the log's at a time: the least of the nearest marks."""
        marks = self.marks.get(pid)
        if not marks:
            return None
        at = bisect_left(marks, (t_ns, 0))
        return min(away for _, away in marks[max(at - 20, 0) : at + 20])

    @cached_property
    def records(self) -> dict[tuple[int, int], tuple[int, int, int]]:
        """(pid, seq) -> thread, and between which times the record's call lies."""
        out, pid = {}, -1
        for line in (line for log in self.logs for line in _lines(log)):
            if line.get("type") == "header":
                alone = next(iter(self.processes)) if len(self.processes) == 1 else -1
                pid = int(line.get("pid") or alone)
            elif line.get("type") == "record":
                away = self._away(pid, line["t0_ns"])
                if away is not None:
                    times = line["t0_ns"] + away, line["t1_ns"] + away
                    out[pid, line["seq"]] = (line["tid"], *times)
        return out

    def opened(self, row: dict[str, Any]) -> tuple[int, int, int] | None:
        """(thread, begin, end) on the CPU of an interval; None where it cannot be told."""
        tid, pid = int(row["tid"]), int(row["pid"])
        if row["kind"] == "host":
            return tid, row["start_ns"], row["end_ns"]
        if row["kind"] == "nvtx":
            return self._range_of(row)
        ends = []
        for column in ("start_record", "end_record"):
            call = self._record_call(pid, int(row[column]))
            if call is None:
                return None
            ends.append(call)
        return ends[0].tid, ends[0].start, ends[1].start

    def _record_call(self, pid: int, seq: int) -> Call | None:
        if (pid, seq) not in self.records or pid not in self.processes:
            return None
        tid, low, high = self.records[pid, seq]
        process = self.processes[pid]
        first = bisect_left(process.starts, low - NEAR_NS)
        middle, nearest = (low + high) / 2, None
        for call in process.calls[first:]:
            if call.start > high + NEAR_NS:
                break
            if call.tid == tid and "EventRecord" in call.name and not call.depth:
                far = abs((call.start + call.end) / 2 - middle)
                if nearest is None or far < nearest[0]:
                    nearest = far, call
        return nearest[1] if nearest else None

    def _range_of(self, row: dict[str, Any]) -> tuple[int, int, int] | None:
        """The range of an interval's name whose work begins and ends where the interval does."""
        name, tid = re.sub(r"#\d+$", "", row["name"]), int(row["tid"])
        fits = []
        for start, end, text in self.ranges.get((int(row["pid"]), tid), ()):
            if start > row["start_ns"]:
                break
            if text and (
                text == name or name.startswith(text) or text.startswith(name.split(" (")[0])
            ):
                work = list(self.issued(int(row["pid"]), tid, start, end, set()))
                spans = [
                    (o.start, o.end) for _, some in work for o in some if o.device == row["device"]
                ]
                if spans and (min(spans)[0], max(e for _, e in spans)) == (
                    row["start_ns"],
                    row["end_ns"],
                ):
                    fits.append((tid, start, end))
        return fits[-1] if fits else None

    def issued(
        self, pid: int, tid: int, begin: int, end: int, lanes: set[tuple[int, int]]
    ) -> Iterator[tuple[Call, list[Operation]]]:
        """Calls that begin in this time and issued work: of the thread, or for these streams."""
        process = self.processes.get(pid)
        if process is None:
            return
        for call in process.calls[bisect_left(process.starts, begin) :]:
            if call.start >= end:
                return
            some = process.issued.get(call.correlation)
            if some and (call.tid == tid or (some[0].device, some[0].stream) in lanes):
                yield call, some

    def of_interval(self, row: dict[str, Any]) -> list[tuple[Call, list[Operation]]] | None:
        """What an interval issued."""
        window = self.opened(row)
        if window is None:
            return None
        pid, (tid, begin, end) = int(row["pid"]), window
        lanes = (
            {(int(row["device"]), int(row["start_stream"]))} if row["kind"] == "event" else set()
        )
        if row["kind"] == "host":  # backward passes are issued by a thread of autograd's
            lanes = self.streams_of(pid, tid)
        return list(self.issued(pid, tid, begin, end, lanes))

    def streams_of(self, pid: int, tid: int) -> set[tuple[int, int]]:
        """The streams on which a thread issues work itself."""
        process = self.processes.get(pid)
        calls = process.calls if process else ()
        if (pid, tid) not in self._streams:
            self._streams[pid, tid] = {
                (one.device, one.stream)
                for call in calls
                if call.tid == tid
                for one in process.issued.get(call.correlation, ())
            }
        return self._streams[pid, tid]

    def waits(self, row: dict[str, Any]) -> int | None:
        """Synchronisations of its thread between its first and its last issue."""
        work = self.of_interval(row)
        if work is None:
            return None
        if len(work) < 2:
            return 0
        process = self.processes[int(row["pid"])]
        threads = {call.tid for call, _ in work} | {int(row["tid"])}
        first, last = work[0][0].start, work[-1][0].start
        out = 0
        for call in process.calls[bisect_left(process.starts, first) :]:
            if call.start >= last:
                break
            out += call.tid in threads and not call.depth and bool(SYNC.match(call.name))
        return out

    def on_stream(self, row: dict[str, Any]) -> Iterator[tuple[Operation, int]]:
        """Operations of its end's stream, and for how long each ran inside."""
        stream = row["end_stream"] if row["end_stream"] >= 0 else row["start_stream"]
        process = self.processes.get(int(row["pid"]))
        for one in process.by_stream.get((int(row["device"]), int(stream)), ()) if process else ():
            if one.start >= row["end_ns"]:
                return
            inside = min(one.end, row["end_ns"]) - max(one.start, row["start_ns"])
            if inside > 0:
                yield one, inside

    def elsewhere(self, row: dict[str, Any]) -> Counter:
        """How long what it issued ran inside it on other streams, by stream."""
        own, out = int(row["end_stream"]), Counter()
        for _, some in self.of_interval(row) or ():
            for one in some:
                inside = min(one.end, row["end_ns"]) - max(one.start, row["start_ns"])
                if one.stream != own and inside > 0:
                    out[one.stream] += inside
        return out

    def worked(self, row: dict[str, Any]) -> int:
        """How long (ns) inside it any kernel or graph ran that it issued, on whatever stream."""
        begin, end = int(row["start_ns"]), int(row["end_ns"])
        return open_for(
            (max(one.start, begin), min(one.end, end))
            for _, some in self.of_interval(row) or ()
            for one in some
            if one.table in ("KERNEL", "GRAPH_TRACE")
            and "nccl" not in str(self.texts.get(one.name))
        )

    def captured(self, launches: re.Pattern[str]) -> set[int]:
        """How many launches of which nothing ran lie in each capture of a stream.

        launches: the names of their calls
        """
        counts = set()
        for process in self.processes.values():
            begun: dict[int, int] = {}
            for call in process.calls:
                if "StreamBeginCapture" in call.name:
                    begun[call.tid] = call.start
                elif "StreamEndCapture" in call.name and call.tid in begun:
                    within = [
                        c
                        for c in process.calls
                        if begun[call.tid] < c.start < call.start and not c.depth
                    ]
                    counts.add(
                        sum(
                            bool(launches.match(c.name)) and c.correlation not in process.issued
                            for c in within
                        )
                    )
        return counts

    def loading(self, row: dict[str, Any]) -> int:
        """How long (ns) between the first and the last work of a run a call was open that loads code."""
        begin = int(row["start_ns"])
        return open_for(
            (max(call.start, begin), call.end)
            for call in self.processes[int(row["pid"])].calls
            if LOADS.match(call.name) and call.start < row["end_ns"]
        )


def open_for(spans: Iterable[tuple[int, int]]) -> int:
    """How long at least one of them is open."""
    total, reach = 0, None
    for start, end in sorted(spans):
        begin = start if reach is None else max(start, reach)
        total += max(end - begin, 0)
        reach = end if reach is None else max(reach, end)
    return total


def _lines(log: Path) -> Iterator[dict[str, Any]]:
    opened = gzip.open if log.suffix == ".gz" else open
    with opened(log, "rt", encoding="utf-8", errors="replace") as file:
        for text in file:
            try:
                yield json.loads(text)
            except ValueError:  # a cut last line
                return
