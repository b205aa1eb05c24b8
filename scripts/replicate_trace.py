"""A trace and its event log, N times over: the same work again and again, later on the same clocks.

    python scripts/replicate_trace.py big.sqlite big.events.jsonl 10 OUT_DIR
                                        -> OUT_DIR/big-x10.sqlite, big-x10.events.jsonl

Times are shifted by the trace's own length, correlation ids and record numbers by their own range,
so that nothing of one copy can be taken for another's; rows of one copy follow those of the copy
before, as nsys writes them.  Growth curves (`bench_analysis.py`) are measured on such traces.  The
original is opened read-only.
"""

from __future__ import annotations

import json
import re
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

#: Tables whose rows are events of the timeline: everything else is copied once.
TIMELINE = ("CUPTI_ACTIVITY_KIND_", "NVTX_EVENTS", "PROFILER_OVERHEAD", "OSRT_API")
TIMES = ("start", "end", "timestamp")
GAP_NS = 1_000_000
#: Keys of the log that are times.
CLOCKS = ("t0_ns", "t1_ns", "monotonic_ns", "realtime_ns", "trace_ns")


def replicate(trace: Path, events: Path, copies: int, out: Path) -> tuple[Path, Path]:
    """Write both files; returns their paths.  They are made anew where they exist."""
    out.mkdir(parents=True, exist_ok=True)
    new_trace = out / f"{trace.stem}-x{copies}.sqlite"
    new_events = out / f"{trace.stem}-x{copies}.events.jsonl"
    new_trace.unlink(missing_ok=True)
    shift_ns = _trace(trace, copies, new_trace)
    _log(events, copies, shift_ns, new_events)
    return new_trace, new_events


def _trace(trace: Path, copies: int, out: Path) -> int:
    with closing(sqlite3.connect(out, uri=True)) as db:
        db.executescript("pragma journal_mode = off; pragma synchronous = off")
        db.execute("attach ? as old", (trace.resolve().as_uri() + "?mode=ro",))
        tables = dict(db.execute("select name, sql from old.sqlite_master where type = 'table'"))
        columns = {
            name: [
                c for (c,) in db.execute("select name from pragma_table_info(?, 'old')", (name,))
            ]
            for name in tables
        }
        busy = [
            name
            for name in tables
            if name.startswith(TIMELINE) and {"start", "correlationId"} & set(columns[name])
        ]
        begins, ends, ids = [], [], [0]
        for name in busy:
            if "start" in columns[name]:
                end = "end" if "end" in columns[name] else "start"
                span = f'select min(start), max("{end}") from old."{name}" where start > 0'
                begin, last = db.execute(span).fetchone()
                begins += [begin] if begin is not None else []
                ends += [last] if last is not None else []
            if "correlationId" in columns[name]:
                ids += db.execute(f'select max(correlationId) from old."{name}"').fetchone()
        shift_ns = max(ends) - min(begins) + GAP_NS
        step = 1 + max(filter(None, ids), default=0)
        for name, sql in tables.items():
            db.execute(sql)
            db.execute(f'insert into main."{name}" select * from old."{name}"')
            for copy in range(1, copies) if name in busy else ():
                moved = [_moved(column, copy * shift_ns, copy * step) for column in columns[name]]
                rows = f'select {", ".join(moved)} from old."{name}" order by rowid'
                db.execute(f'insert into main."{name}" {rows}')
        db.commit()
    return shift_ns


def _moved(column: str, shift_ns: int, ids: int) -> str:
    if column in TIMES:  # 0 and NULL stand for "no time"
        return f'case when "{column}" > 0 then "{column}" + {shift_ns} else "{column}" end'
    return f'"{column}" + {ids}' if column == "correlationId" else f'"{column}"'


def _log(events: Path, copies: int, shift_ns: int, out: Path) -> None:
    items = [json.loads(line) for line in events.read_text("utf-8").splitlines() if line.strip()]
    numbers = [i[k] for i in items for k in ("seq", "start", "end") if isinstance(i.get(k), int)]
    sequence = 1 + max(numbers, default=0)
    runs: dict[str, int] = {}
    for item in items:
        name, number = _repetition(item.get("region"))
        runs[name] = max(runs.get(name, 0), number + 1)
    with out.open("w", encoding="utf-8") as file:
        for copy in range(copies):
            for item in items:
                if copy and item["type"] in ("header", "sync", "note"):
                    continue
                later = dict(item)
                for key, value in item.items():
                    if not isinstance(value, int) or isinstance(value, bool):
                        continue
                    if key in CLOCKS and value >= 0:
                        later[key] = value + copy * shift_ns
                    elif key in ("seq", "record", "start", "end"):
                        later[key] = value + copy * sequence
                name, number = _repetition(item.get("region"))
                if name:
                    later["region"] = f"{name}#{number + copy * runs[name]}"
                file.write(json.dumps(later) + "\n")


def _repetition(region: object) -> tuple[str, int]:
    found = re.fullmatch(r"(.*)#(\d+)", region) if isinstance(region, str) else None
    return (found[1], int(found[2])) if found else ("", 0)


if __name__ == "__main__":
    trace, events, copies, out = sys.argv[1:]
    print(*replicate(Path(trace), Path(events), int(copies), Path(out)), sep="\n")
