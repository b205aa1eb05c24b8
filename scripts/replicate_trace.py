"""A trace and its event log, N times over: the same work again and again, later on the same clocks.

    python scripts/replicate_trace.py big.sqlite big.events.jsonl 10 OUT_DIR     -> OUT_DIR/big-x10.sqlite, .events.jsonl

Times are shifted by the trace's own length, correlation ids and record numbers by their own range,
so that nothing of one copy can be taken for another's; rows of one copy follow those of the copy
before, as nsys writes them.  Growth curves (`bench_analysis.py`) are measured on such traces.  The
original is opened read-only.
"""

from __future__ import annotations

import argparse
import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

#: Tables whose rows are events of the timeline: everything else is copied once.
_TIMELINE = ("CUPTI_ACTIVITY_KIND_", "NVTX_EVENTS", "PROFILER_OVERHEAD", "OSRT_API")
_TIMES = ("start", "end", "timestamp")
_GAP_NS = 1_000_000


def replicate(trace: Path, events: Path, copies: int, out: Path) -> tuple[Path, Path]:
    """Write both files; returns their paths.  They are made anew where they exist."""
    out.mkdir(parents=True, exist_ok=True)
    new_trace, new_events = (
        out / f"{trace.stem}-x{copies}.sqlite",
        out / f"{trace.stem}-x{copies}.events.jsonl",
    )
    for path in (new_trace, new_events):
        path.unlink(missing_ok=True)
    shift = _trace(trace, copies, new_trace)
    _log(events, copies, shift, new_events)
    return new_trace, new_events


def _trace(trace: Path, copies: int, out: Path) -> int:
    with closing(sqlite3.connect(out, uri=True)) as db:
        db.executescript(
            "pragma journal_mode = off; pragma synchronous = off; pragma locking_mode = exclusive"
        )
        db.execute("attach ? as old", (trace.resolve().as_uri() + "?mode=ro",))
        tables = db.execute(
            "select name, sql from old.sqlite_master where type = 'table'"
        ).fetchall()
        columns = {
            name: [
                c for (c,) in db.execute("select name from pragma_table_info(?, 'old')", (name,))
            ]
            for name, _ in tables
        }
        busy = [
            n
            for n, _ in tables
            if n.startswith(_TIMELINE) and {"start", "correlationId"} & set(columns[n])
        ]
        shift = _span(db, busy, columns) + _GAP_NS
        ids = (
            max(
                (
                    db.execute(f'select coalesce(max(correlationId), 0) from old."{n}"').fetchone()[
                        0
                    ]
                    for n in busy
                    if "correlationId" in columns[n]
                ),
                default=0,
            )
            + 1
        )
        for name, sql in tables:
            db.execute(sql)
            db.execute(f'insert into main."{name}" select * from old."{name}"')
            for copy in range(1, copies) if name in busy else ():
                moved = ", ".join(_moved(c, copy * shift, copy * ids) for c in columns[name])
                db.execute(
                    f'insert into main."{name}" select {moved} from old."{name}" order by rowid'
                )
        db.commit()
    return shift


def _span(db: sqlite3.Connection, tables: list[str], columns: dict[str, list[str]]) -> int:
    ends = [
        db.execute(
            f'select min(start), max("{"end" if "end" in columns[n] else "start"}") from old."{n}" where start > 0'
        ).fetchone()
        for n in tables
        if "start" in columns[n]
    ]
    ends = [(a, b) for a, b in ends if a is not None]
    return max(b for _, b in ends) - min(a for a, _ in ends)


def _moved(column: str, time: int, ids: int) -> str:
    if column in _TIMES:  # 0 and NULL stand for "no time"
        return f'case when "{column}" > 0 then "{column}" + {time} else "{column}" end'
    return f'"{column}" + {ids}' if column == "correlationId" else f'"{column}"'


def _log(events: Path, copies: int, shift: int, out: Path) -> None:
    items = [json.loads(line) for line in events.read_text("utf-8").splitlines() if line.strip()]
    sequence = 1 + max(
        (i[k] for i in items for k in ("seq", "start", "end") if isinstance(i.get(k), int)),
        default=0,
    )
    runs: dict[str, int] = {}
    for item in items:
        name, number = _repetition(item.get("region"))
        if name:
            runs[name] = max(runs.get(name, 0), number + 1)
    with out.open("w", encoding="utf-8") as file:
        for copy in range(copies):
            for item in items:
                if copy and item["type"] in ("header", "sync", "note"):
                    continue
                file.write(json.dumps(_later(item, copy, shift, sequence, runs)) + "\n")


def _later(item: dict, copy: int, shift: int, sequence: int, runs: dict[str, int]) -> dict:
    out = dict(item)
    for key, value in item.items():
        if not isinstance(value, int) or isinstance(value, bool):
            continue
        if key in ("t0_ns", "t1_ns", "monotonic_ns", "realtime_ns", "trace_ns") and value >= 0:
            out[key] = value + copy * shift
        elif key in ("seq", "record", "start", "end"):
            out[key] = value + copy * sequence
    name, number = _repetition(item.get("region"))
    if name:
        out["region"] = f"{name}#{number + copy * runs[name]}"
    return out


def _repetition(region: object) -> tuple[str, int]:
    found = re.fullmatch(r"(.*)#(\d+)", region) if isinstance(region, str) else None
    return (found[1], int(found[2])) if found else ("", 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("events", type=Path)
    parser.add_argument("copies", type=int)
    parser.add_argument("out", type=Path)
    a = parser.parse_args()
    for made in replicate(a.trace, a.events, a.copies, a.out):
        print(made)
