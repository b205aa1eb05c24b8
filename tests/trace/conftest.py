"""Files of the tests: an export from given rows, and the event log that goes with the tiny one."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from tiny_export import EPOCH, OFFSET, PID, TEXT, US


@pytest.fixture
def export(tmp_path):
    """`export(tables)`: the path of an SQLite file with these tables."""

    def write(tables: Mapping[str, Sequence[Mapping]]) -> Path:
        path = tmp_path / "trace.sqlite"
        path.unlink(missing_ok=True)
        db = sqlite3.connect(path)
        for table, rows in tables.items():
            columns = list(dict.fromkeys(c for row in rows for c in row)) or ["start"]
            declared = ", ".join(f'"{c}" {"TEXT" if c in TEXT else "INTEGER"}' for c in columns)
            db.execute(f'create table "{table}" ({declared})')
            marks = ", ".join("?" * len(columns))
            db.executemany(
                f'insert into "{table}" values ({marks})',
                [tuple(r.get(c) for c in columns) for r in rows],
            )
        db.commit()
        db.close()
        return path

    return write


@pytest.fixture
def log(tmp_path) -> Path:
    """The event log of the program above: 170 us between its two records."""
    times = {"tid": PID, "device": 0, "stream_handle": 0, "stream_id": 7}
    clock = {"monotonic_ns": OFFSET, "realtime_ns": EPOCH, "trace_ns": 0}
    lines = [
        {"type": "header", "format": "nsysalign-events", "version": 1, "pid": PID, "clock": clock},
        {"type": "record", "seq": 0, **times, "t0_ns": OFFSET + 4 * US, "t1_ns": OFFSET + 11 * US},
        {"type": "record", "seq": 1, **times, "t0_ns": OFFSET + 64 * US, "t1_ns": OFFSET + 71 * US},
        {"type": "elapsed", "start": 0, "end": 1, "ms": 0.170, "t1_ns": OFFSET + 210 * US},
    ]
    path = tmp_path / "events-7.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
