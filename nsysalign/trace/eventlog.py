"""Event logs (JSON Lines, design section 5) as an `EventLog`.

Any program may write one.  Unknown types and keys are ignored, a cut last line is normal, a file may hold several
headers (each starts a process).  What cannot be used becomes a note, never a guess.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pandas as pd

from nsysalign import frames
from nsysalign.errors import EventLogError
from nsysalign.memory import keeping_everything
from nsysalign.model import EventLog
from nsysalign.private import short_path, without_paths
from nsysalign.trace.lines import lines_of
from nsysalign.trace.names import shortened

FORMAT = "nsysalign-events"
VERSION = 1
_FROM_REFERENCE = ("reference", "start_ms", "end_ms")
#: What analysis reads of each type of line: numbers and flags, and texts.  (`callers` and `clock` are both.)
PLAIN_KEYS = {
    "header": {
        "version",
        "pid",
        "calibration_ns",
        "meter_usual_ns",
        "meter_least_ns",
        "meter_most_ns",
        "meter_work",
        "baseline",
        "exit_status",
        "profiled_exit_status",
        "stopped",
    },
    "record": {
        "seq",
        "tid",
        "device",
        "stream_handle",
        "stream_id",
        "t0_ns",
        "t1_ns",
        "library",
        "captured",
        "calibration",
        "intervened",
    },
    "wait": {"seq", "record", "tid", "stream_handle", "stream_id", "t0_ns", "t1_ns"},
    "elapsed": {"start", "end", "ms", "t0_ns", "t1_ns", "calibration", *_FROM_REFERENCE},
    "calibration": {"start", "end", "ms", "t0_ns", "t1_ns", "calibration", *_FROM_REFERENCE},
    "reference": {"id", "device", "tid", "stream_id", "t0_ns", "t1_ns", "previous", "ms", "record"},
    "distance": {"start", "end", "ms", *_FROM_REFERENCE},
    "meter": {"work", "t0_ns", "t1_ns", "tid"},
    "host": {"t0_ns", "t1_ns", "tid", "implicit"},
    "clock_site": {"number", "position", "interleaved"},
    "clock_reading": {"site", "t_ns", "value_ns", "tid", "count"},
    "clock": {"monotonic_ns", "realtime_ns", "trace_ns"},
    "sync": {"payload", "before_ns", "after_ns"},
    "note": set(),
    "end": {"signal"},
}
TEXT_KEYS = {
    "header": {"format", "device_name", "torch", "python", "nvtx", "meter_python"},
    "record": {"region", "site"},
    "wait": set(),
    "elapsed": {"region", "site", "error"},
    "calibration": {"region", "site", "error"},
    "reference": set(),
    "distance": set(),
    "meter": set(),
    "host": {"region", "site"},
    "clock_site": {"site", "function", "use"},
    "clock_reading": {"clock", "region"},
    "clock": set(),
    "sync": set(),
    "note": {"text"},
    "end": {"how"},
}
_HEADER_NUMBERS = ("pid", "exit_status", "profiled_exit_status")  # what is no number there is not known
_LONGEST_MS = 1e12  # 30 years: what lies beyond is no measurement, and its nanoseconds do not fit
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
_NUMBERS = (bool, int, float)  # made once: `bool | int` would be made for every value
_DEEPEST = 100  # host timers around a host timer
_LATEST_NS = 1 << 62  # so that the difference of two times fits into int64


def read_event_logs(paths: Sequence[Path]) -> EventLog:
    """Read and merge logs.  EventLogError where a file is not an event log or holds no usable line."""
    reader = _Reader()
    with keeping_everything():
        for path in {p.resolve(): p for p in paths}.values():  # a log named twice is one log
            reader.read(path)
        return reader.log()


def decorated_regions(paths: Sequence[Path]) -> frozenset[str]:
    """Regions that the program used as decorators, as its logs say."""
    found = set()
    for path in paths:
        for line in lines_of(path):
            if '"decorated"' in line:
                try:
                    found.add(str(json.loads(line)["decorated"]))
                except (ValueError, KeyError, TypeError, RecursionError):
                    continue  # cut short, or a text of the user's
    return frozenset(found)


class _Reader:
    def __init__(self) -> None:
        self.headers: list[dict[str, Any]] = []
        self.rows: dict[str, list[tuple]] = {spec.name: [] for spec in frames.LOG_SPECS}
        self.notes: list[str] = []

    def read(self, path: Path) -> None:
        name, process, bad, headers_before = path.name, -1, 0, len(self.headers)
        for number, line in enumerate(lines_of(path), 1):
            if not line.strip():
                continue
            try:
                item = _parsed(line)
                kind = item.get("type")
            except (ValueError, AttributeError, RecursionError):
                bad += 1
                if number == 1:
                    raise EventLogError(
                        f"{name}: line 1 is not JSON; an event log starts with its header",
                        "name an events-PID.jsonl",
                    ) from None
                continue
            if kind == "header":
                process = self._header(name, item)
            elif process < 0:
                raise EventLogError(
                    f"{name}: no header before line {number}", "name an events-PID.jsonl of nsysalign"
                )
            else:
                bad += not self._item(process, kind, item)
        if len(self.headers) == headers_before:
            raise EventLogError(f"{name}: the event log is empty", "run nsysalign run again")
        if bad:
            self.notes.append(f"{name}: {bad} lines could not be used (cut or malformed)")

    def _header(self, name: str, item: dict[str, Any]) -> int:
        if item.get("format") != FORMAT:
            raise EventLogError(
                f"{name}: format {item.get('format')!r}, expected {FORMAT!r}",
                "name an events-PID.jsonl of nsysalign",
            )
        if isinstance(item.get("version"), int) and item["version"] > VERSION:
            self.notes.append(
                f"{name}: event log version {item['version']} is newer than this nsysalign knows ({VERSION})"
            )
        self.headers.append({k: v for k, v in item.items() if k not in _HEADER_NUMBERS or _is_int(v)})
        process = len(self.headers) - 1
        clock = item.get("clock")
        if isinstance(clock, dict) and _has_times(clock, "monotonic_ns"):
            self.rows["clocks"].append(
                (process, clock["monotonic_ns"], _int(clock.get("realtime_ns")), _int(clock.get("trace_ns")))
            )
        return process

    def _item(self, process: int, kind: object, item: dict[str, Any]) -> bool:
        """Store one line; False where it lacks what its type needs."""
        if kind == "record":
            if not (_is_int(item.get("seq")) and _has_times(item, "t0_ns", "t1_ns")):
                return False
            self.rows["records"].append(
                (
                    process,
                    item["seq"],
                    _int(item.get("tid")),
                    _int(item.get("device")),
                    _int(item.get("stream_handle")),
                    _int(item.get("stream_id")),
                    item["t0_ns"],
                    item["t1_ns"],
                    _str(item.get("region")),
                    short_path(_str(item.get("site"))),
                    _paths(item.get("callers")),
                    _flag(item.get("library")),
                    _flag(item.get("captured")),
                    _flag(item.get("calibration")),
                    _flag(item.get("intervened")),
                )
            )
        elif kind == "wait":
            if not _has_times(item, "t0_ns", "t1_ns"):
                return False
            self.rows["waits"].append(
                (
                    process,
                    _int(item.get("seq")),
                    _int(item.get("record")),
                    _int(item.get("tid")),
                    _int(item.get("stream_handle")),
                    _int(item.get("stream_id")),
                    item["t0_ns"],
                    item["t1_ns"],
                )
            )
        elif kind in ("elapsed", "calibration"):  # calibration: compared by the harness, never by the program
            ms = item.get("ms")
            placed = _ms(ms)
            good = not math.isnan(placed)
            error = "" if good else without_paths(_str(item.get("error"))) or f"elapsed_time gave {ms!r:.40}"
            self.rows["elapsed"].append(
                (
                    process,
                    _int(item.get("start")),
                    _int(item.get("end")),
                    placed,
                    error,
                    _str(item.get("region")),
                    short_path(_str(item.get("site"))),
                    _int(item.get("t1_ns")),
                    kind == "calibration" or _flag(item.get("calibration")),
                    *_from_reference(item),
                )
            )
        elif kind == "reference":
            if not (_is_int(item.get("id")) and _has_times(item, "t0_ns", "t1_ns")):
                return False
            self.rows["references"].append(
                (
                    process,
                    item["id"],
                    _int(item.get("device")),
                    item["t0_ns"],
                    item["t1_ns"],
                    _int(item.get("previous")),
                    _ms(item.get("ms")),
                    _int(item.get("record")),
                )
            )
        elif kind == "distance":
            self.rows["distances"].append(
                (
                    process,
                    _int(item.get("start")),
                    _int(item.get("end")),
                    _ms(item.get("ms")),
                    *_from_reference(item),
                )
            )
        elif kind == "meter":
            if not (_is_int(item.get("work")) and _has_times(item, "t0_ns", "t1_ns")):
                return False
            if item["t1_ns"] > item["t0_ns"]:
                self.rows["meters"].append((process, item["work"], item["t0_ns"], item["t1_ns"]))
        elif kind == "host":
            if not _has_times(item, "t0_ns", "t1_ns"):
                return False
            self.rows["hosts"].append(
                (
                    process,
                    _str(item.get("region")),
                    item["t0_ns"],
                    item["t1_ns"],
                    _int(item.get("tid")),
                    short_path(_str(item.get("site"))),
                    _flag(item.get("implicit")),
                )
            )
        elif kind == "clock_site":
            if not _is_int(item.get("number")):
                return False
            self.rows["clock_sites"].append(
                (
                    process,
                    item["number"],
                    short_path(_str(item.get("site"))),
                    _paths(item.get("callers")),
                    _str(item.get("function")),
                    _int(item.get("position")),
                    _str(item.get("use")),
                    _texts(item.get("stores")),
                    _texts(item.get("subtracts")),
                    _flag(item.get("interleaved")),
                )
            )
        elif kind == "clock_reading":
            if not (_has_times(item, "t_ns") and _is_int(item.get("site"))):
                return False
            own = item["value_ns"] if _has_times(item, "value_ns") else item["t_ns"]
            count = max(_int(item.get("count")), 0)
            self.rows["clock_readings"].append(
                (
                    process,
                    item["site"],
                    _str(item.get("clock")),
                    item["t_ns"],
                    own,
                    _int(item.get("tid")),
                    _str(item.get("region")),
                    count,
                )
            )
        elif kind == "clock":
            if not _has_times(item, "monotonic_ns"):
                return False
            self.rows["clocks"].append(
                (process, item["monotonic_ns"], _int(item.get("realtime_ns")), _int(item.get("trace_ns")))
            )
        elif kind == "sync":
            if not _has_times(item, "payload", "before_ns", "after_ns"):
                return False
            self.rows["marked"].append((process, item["payload"], item["before_ns"], item["after_ns"]))
        elif kind == "end":
            self.headers[process]["ended"] = _str(item.get("how"))
        elif kind == "source":
            site, text = short_path(_str(item.get("site"))), _str(item.get("text"))
            if site and text:
                self.rows["source_lines"].append((site, text))
        elif kind == "note":
            self.notes.append(without_paths(_str(item.get("text"))))
        return True

    def log(self) -> EventLog:
        tables = {}
        for spec in frames.LOG_SPECS:
            rows = self.rows[spec.name]
            columns = (
                {name: list(values) for name, values in zip(spec.names, zip(*rows, strict=True), strict=True)}
                if rows
                else None
            )
            frame = (
                frames.empty(spec)
                if columns is None
                else pd.DataFrame({c.name: pd.Series(columns[c.name], dtype=c.dtype) for c in spec.columns})
            )
            tables[spec.name] = frames.check(frame, spec)
        deep = _too_deep(tables["hosts"])
        if deep.any():
            tables["hosts"] = tables["hosts"][~deep].reset_index(drop=True)
            self.notes.append(
                f"{int(deep.sum()):,} host timers lie inside {_DEEPEST} others of their thread, or more, and were left out"
            )
        return EventLog(headers=tuple(self.headers), notes=tuple(n for n in self.notes if n), **tables)


def _too_deep(hosts: pd.DataFrame) -> np.ndarray:
    """Bool, per row: whether _DEEPEST others of the same thread were begun before and are not over.  Each of n timers
    inside each other holds the calls of all that it contains: work that would grow with the square."""
    out = np.zeros(len(hosts), dtype=bool)
    for rows in hosts.groupby(["process", "tid"]).indices.values():
        start, end = (hosts[c].to_numpy()[rows] for c in ("t0_ns", "t1_ns"))
        order = np.lexsort((-end, start))
        over = np.searchsorted(np.sort(np.maximum(start, end)), start[order], side="right")
        out[rows[order]] = np.arange(len(rows)) - over >= _DEEPEST
    return out


def _parsed(line: str) -> Any:
    """A line of JSON.  ValueError or RecursionError where it is none."""
    try:
        return orjson.loads(line)
    except ValueError:  # what json takes besides: NaN, half a character; and what none takes
        return _slowly_parsed(line)


def _slowly_parsed(line: str) -> Any:
    if line[:1] == "{":
        try:  # what json.loads does, without looking for blanks before every line
            item, end = _scan(line, 0)
        except StopIteration as error:
            raise ValueError("not JSON") from error
        if line[end:].strip(" \t\n\r"):
            raise ValueError("more than one value")
    else:
        item = json.loads(line)
    return _encodable(item) if "\\u" in line else item


_scan: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


def _encodable(value: Any) -> Any:
    """The same without lone surrogates: JSON can spell them (`\\ud800`), but UTF-8 and pandas cannot hold them."""
    if isinstance(value, str):
        return re.sub("[\ud800-\udfff]", "\ufffd", value)
    if isinstance(value, list):
        return [_encodable(v) for v in value]
    if isinstance(value, dict):
        return {_encodable(k): _encodable(v) for k, v in value.items()}
    return value


def _has_times(item: dict[str, Any], *keys: str) -> bool:
    """Whether all of these are there and can be times in nanoseconds."""
    for key in keys:
        value = item.get(key)
        if type(value) is not int or not -_LATEST_NS < value < _LATEST_NS:
            return False
    return True


def _is_int(value: object) -> bool:
    return type(value) is int and _LEAST <= value <= _MOST  # type: bool is an int, too


def _int(value: object) -> int:
    return value if type(value) is int and _LEAST <= value <= _MOST else -1


def _ms(value: Any) -> float:
    return float(value) if type(value) in (int, float) and abs(value) < _LONGEST_MS else math.nan


def _from_reference(item: dict[str, Any]) -> tuple[int, float, float]:
    """Number of a reference and both distances from it; (-1, NaN, NaN) where one of them is missing."""
    start, end = _ms(item.get("start_ms")), _ms(item.get("end_ms"))
    number = _int(item.get("reference"))
    return (number, start, end) if number >= 0 and start == start and end == end else (-1, math.nan, math.nan)


def _flag(value: object) -> bool:
    """Only numbers and truth values can be true: a text is nothing that a redacted log keeps here."""
    return value is not None and isinstance(value, _NUMBERS) and bool(value)


def _paths(value: object) -> tuple[str, ...]:
    return _short_paths(_texts(value))


@lru_cache(maxsize=1 << 12)  # records of one place share their callers
def _short_paths(files: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(short_path, files))


def _texts(value: object) -> tuple[str, ...]:
    return tuple(shortened(str(v)) for v in value) if isinstance(value, list) else ()


def _str(value: object) -> str:
    return shortened(value) if isinstance(value, str) else ""
