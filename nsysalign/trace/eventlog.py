"""Event logs (JSON Lines; docs/design.md, section 5) as an `EventLog`.

Any program may write one, and be killed while it does.  What cannot be used becomes a note, never a
guess.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from os.path import realpath  # which does not fail on a link that leads to itself
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
import pandas as pd

from nsysalign import frames
from nsysalign.errors import EventLogError
from nsysalign.intervals import MOST_NESTED, too_deep
from nsysalign.memory import keeping_everything
from nsysalign.model import EventLog
from nsysalign.paths import presentable, short_path, shortened, without_paths
from nsysalign.rundir import event_logs
from nsysalign.untrusted import lines_of

FORMAT, VERSION = "nsysalign-events", 2
_HEADER_NUMBERS = ("pid", "exit_status", "profiled_exit_status")  # else the value is unknown
_LONGEST_MS = 1e12  # 30 years: anything beyond is not a measurement, and its nanoseconds do not fit
_TIME_BITS = 62  # so that the difference of two times fits into int64


class Line(NamedTuple):
    """A type of line that is a row of a table: its keys are the table's columns, but for the
    process.  What it needs: times, and other whole numbers."""

    spec: frames.Spec
    times: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    also: tuple[str, ...] = ()  # numbers that other code uses

    def keys(self, *dtypes: str) -> set[str]:
        """Its keys whose values are of these types."""
        return {column.name for column in self.spec.columns[1:] if column.dtype in dtypes}


_CALL = ("t0_ns", "t1_ns")
#: By type.  `calibration` is a comparison by the harness.
LINES = {
    "record": Line(frames.RECORDS, _CALL, ("seq",)),
    "wait": Line(frames.WAITS, _CALL),
    "elapsed": Line(frames.ELAPSED, also=("t0_ns",)),
    "calibration": Line(frames.ELAPSED, also=("t0_ns",)),
    "reference": Line(frames.REFERENCES, _CALL, ("id",), also=("tid", "stream_id")),
    "distance": Line(frames.DISTANCES),
    "host": Line(frames.HOSTS, _CALL),
    "clock_site": Line(frames.CLOCK_SITES, numbers=("number",)),
    "clock_reading": Line(frames.CLOCK_READINGS, ("t_ns",), ("site",)),
    "clock": Line(frames.CLOCKS, ("monotonic_ns",)),
    "sync": Line(frames.MARKED, ("payload", "before_ns", "after_ns")),
    "gc": Line(frames.COLLECTIONS, _CALL),
    "off_cpu": Line(frames.OFF_CPU, _CALL, ("tid", "thread_ns", "process_ns")),
    "fork": Line(frames.FORKS, _CALL, ("tid",)),
}
#: What analysis reads of each type of line: numbers and flags, and texts.  (`callers` and `clock`
#: are both.)
PLAIN_KEYS = {
    **{kind: line.keys("int64", "float64", "bool") | {*line.also} for kind, line in LINES.items()},
    "header": {"version", "calibration_ns", "baseline", "stopped", *_HEADER_NUMBERS},
    "note": set(),
    "end": {"signal"},
}
TEXT_KEYS = {
    **{kind: line.keys("str") for kind, line in LINES.items()},
    "header": {"format", "device_name", "torch", "libraries", "python", "nvtx"},
    "note": {"text"},
    "end": {"how"},
}


def read_event_logs(paths: Sequence[Path]) -> EventLog:
    """Read and merge logs; a folder stands for those in it.  Raises EventLogError if a file is not an event log or holds no usable
    line."""
    reader = _Reader()
    with keeping_everything():
        logs = [log for path in paths for log in (event_logs(path) or [path])]
        for path in {realpath(p): p for p in logs}.values():  # a log named twice is read once
            reader.read(path)
        return reader.log()


class _Reader:
    """Collects the lines of several logs, which become one: process n is that of the n-th header."""

    def __init__(self) -> None:
        self.headers: list[dict[str, Any]] = []
        specs = {line.spec.name: line.spec for line in LINES.values()}
        self.tables = {name: _Table(spec) for name, spec in specs.items()}
        self.sources: list[tuple[str, str]] = []
        self.notes: list[str] = []

    def read(self, path: Path) -> None:
        """Add the lines of one log: a header, then rows of tables (`LINES`), source lines and notes.  A line that cannot
        be used is counted.  Raises EventLogError if the file is no event log, or empty."""
        name, headers_before = path.name, len(self.headers)
        unusable = 0
        for number, line in enumerate(lines_of(path), 1):
            if not line.strip():
                continue
            try:
                item = _parsed(line)
                kind = item.get("type")
            except (ValueError, AttributeError, RecursionError):
                unusable += 1
                if number == 1:
                    raise EventLogError(
                        f"{name}: line 1 is not JSON; an event log starts with its header",
                        "name an events-PID.jsonl",
                    ) from None
                continue
            if kind == "header":
                self._header(name, item)
            elif len(self.headers) == headers_before:
                raise EventLogError(
                    f"{name}: no header before line {number}",
                    "name an events-PID.jsonl of nsysalign",
                )
            elif not self._line(kind, item):
                unusable += 1
        if len(self.headers) == headers_before:
            raise EventLogError(f"{name}: the event log is empty", "run nsysalign run again")
        if unusable:
            self.notes.append(f"{name}: {unusable} lines could not be used (cut or malformed)")

    def _line(self, kind: object, item: dict[str, Any]) -> bool:
        """Add a line that is no header; whether it can be used.  A kind of line that is not known here is passed over."""
        if isinstance(kind, str) and kind in LINES:
            return self._row(kind, item)
        if kind == "end":
            self.headers[-1]["ended"] = _str(item.get("how"))
        elif kind == "source":
            self.sources.append((_site(item.get("site")), _str(item.get("text"))))
        elif kind == "note":
            self.notes.append(without_paths(_str(item.get("text"))))
        return True

    def _header(self, name: str, item: dict[str, Any]) -> None:
        if item.get("format") != FORMAT:
            raise EventLogError(
                f"{name}: format {item.get('format')!r}, expected {FORMAT!r}",
                "name an events-PID.jsonl of nsysalign",
            )
        if isinstance(item.get("version"), int) and item["version"] > VERSION:
            self.notes.append(
                f"{name}: event log version {item['version']} is newer than this nsysalign knows ({VERSION})"
            )
        unknown = {key for key in _HEADER_NUMBERS if not _whole(item.get(key))}
        self.headers.append({key: value for key, value in item.items() if key not in unknown})
        if isinstance(clock := item.get("clock"), dict):
            self._row("clock", clock)

    def _row(self, kind: str, item: dict[str, Any]) -> bool:
        """Store a line, if it has all that its type needs."""
        line = LINES[kind]
        if not all(_whole(item.get(key), _TIME_BITS) for key in line.times):
            return False
        if not all(_whole(item.get(key)) for key in line.numbers):
            return False
        if line.spec is frames.ELAPSED:
            ms, reason = item.get("ms"), ""
            if math.isnan(_ms(ms)):
                reason = without_paths(_str(item.get("error"))) or f"elapsed_time gave {ms!r:.40}"
            item["error"] = reason
            item["calibration"] = kind == "calibration" or item.get("calibration")
        elif kind == "clock_reading" and not _whole(item.get("value_ns"), _TIME_BITS):
            item["value_ns"] = item["t_ns"]  # of clocks that read CLOCK_MONOTONIC
        if "reference" in item or "start_ms" in item:  # it and both distances from it, or nothing
            distances = _ms(item.get("start_ms")), _ms(item.get("end_ms"))
            if _int(item.get("reference")) < 0 or any(map(math.isnan, distances)):
                item |= {"reference": -1, "start_ms": None, "end_ms": None}
        self.tables[line.spec.name].add(len(self.headers) - 1, item)
        return True

    def log(self) -> EventLog:
        """Return what was read, without host timers that lie inside too many others."""
        tables = {name: table.frame() for name, table in self.tables.items()}
        hosts = tables["hosts"]
        thread = hosts.groupby(["process", "tid"]).ngroup().to_numpy()
        deep = too_deep(thread, hosts["t0_ns"].to_numpy(), hosts["t1_ns"].to_numpy())
        if deep.any():
            tables["hosts"] = hosts[~deep].reset_index(drop=True)
            self.notes.append(
                f"{int(deep.sum()):,} host timers lie inside {MOST_NESTED} others of their thread, or more, and were left out"
            )
        return EventLog(
            headers=tuple(self.headers),
            notes=tuple(n for n in self.notes if n),
            source_lines=frames.of_rows([s for s in self.sources if all(s)], frames.SOURCE_LINES),
            **tables,
        )


class _Table:
    """The rows of a table, column by column: numbers without objects of their own."""

    def __init__(self, spec: frames.Spec) -> None:
        self.spec = spec
        self.columns: list[Any] = [
            array(_CODES[dtype]) if dtype in _CODES else [] for _, dtype, _ in spec.columns
        ]
        self.process, *appends = (column.append for column in self.columns)
        read = [
            _site if (name, dtype) == ("site", "str") else _READ[dtype]
            for name, dtype, _ in spec.columns[1:]
        ]
        self.fields = [*zip(spec.names[1:], read, appends, strict=True)]

    def add(self, process: int, item: dict[str, Any]) -> None:
        self.process(process)
        for name, read, append in self.fields:
            append(read(item.get(name)))

    def frame(self) -> pd.DataFrame:
        """All rows, once: each column is freed as soon as the table has it."""
        self.fields.clear()
        del self.process
        made = {}
        for name, dtype, _ in self.spec.columns:
            values = self.columns.pop(0)
            if len(values) and dtype in _CODES:
                values = np.frombuffer(values, values.typecode)
            elif dtype == "object":
                values = pd.Series(values, dtype=object)
            made[name], count = values, len(values)
        if self.spec in (frames.RECORDS, frames.ELAPSED):
            return frames.lean(made, self.spec, count)
        columns = {n: pd.Series(made[n], dtype=dtype) for n, dtype, _ in self.spec.columns}
        return frames.check(pd.DataFrame(columns, copy=False), self.spec)


def _parsed(line: str) -> Any:
    """A line of JSON.  Raises ValueError or RecursionError if it is not JSON."""
    try:
        return orjson.loads(line)
    except ValueError:  # what json accepts in addition: NaN, lone surrogates
        item = json.loads(line)
    if "\\u" in line:  # UTF-8 and pandas cannot hold half a character
        text = json.dumps(item, ensure_ascii=False).encode("utf-8", "surrogatepass")
        item = json.loads(text.decode("utf-8", "replace"))
    return item


def _whole(value: object, bits: int = 63) -> bool:
    """Whether it is a whole number of so many bits and a sign."""
    return type(value) is int and -1 << bits <= value < 1 << bits  # bool is an int, too


def _int(value: object) -> int:
    return value if _whole(value) else -1  # type: ignore[return-value]


def _ms(value: Any) -> float:
    return float(value) if type(value) in (int, float) and abs(value) < _LONGEST_MS else math.nan


def _str(value: object) -> str:
    return presentable(value) if isinstance(value, str) else ""


def _site(value: object) -> str:
    return short_path(shortened(value)) if isinstance(value, str) else ""


@lru_cache(maxsize=1 << 12)  # a log names the same few places again and again: one tuple for each
def _sites(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(_site, texts))


#: Of columns that are arrays, the code of their items.
_CODES = {"int64": "q", "float64": "d", "bool": "b"}
_READ: dict[str, Callable[[Any], Any]] = {
    "int64": _int,
    "float64": _ms,
    # only numbers and booleans can be true: a redacted log keeps no text here
    "bool": lambda value: isinstance(value, int | float) and bool(value),
    "str": _str,
    "object": lambda value: _sites(tuple(map(str, value))) if isinstance(value, list) else (),
}


def source_lines(log: EventLog | None) -> pd.DataFrame:
    """The lines of code that the log names, each once.  If processes saw different lines at a
    place, none is shown."""
    if log is None:
        return frames.empty(frames.SOURCE_LINES)
    lines = log.source_lines.drop_duplicates()
    return lines[~lines["site"].duplicated(keep=False)].reset_index(drop=True)


def torch_is_alone(log: EventLog | None) -> bool:
    """Whether every process of the log imported torch, and no other library for GPUs that the probe names; False where
    one of them does not say which it imported."""
    headers = log.headers if log else ()
    return bool(headers) and all(h.get("torch") and h.get("libraries") == "" for h in headers)


def named_by_probe(log: EventLog | None, key: str) -> str:
    """What the probe's processes named in their headers ("torch", "python"), each value once."""
    values = [str(h[key]) for h in (log.headers if log else ()) if h.get(key)]
    return ", ".join(dict.fromkeys(values))
