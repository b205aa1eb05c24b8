"""In which order an export has its rows makes no difference: nsys promises none since 2025.6."""

from __future__ import annotations

import lzma
import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tiny_export import tiny

import nsysalign
from nsysalign import frames
from nsysalign.trace.read import read_trace

DATA = Path(__file__).parents[1] / "data"


def shuffle(path: Path) -> None:
    """Every table of the file, with other row numbers."""
    with closing(sqlite3.connect(path)) as db:
        names = [n for (n,) in db.execute("select name from sqlite_master where type = 'table'")]
        for name in names:
            rows = db.execute(f'select * from "{name}"').fetchall()
            columns = [row[1] for row in db.execute(f'pragma table_info("{name}")')]
            db.execute(f'drop table "{name}"')
            db.execute(f'create table "{name}" ({", ".join(f"""{c!r}""" for c in columns)})')
            random.Random(name).shuffle(rows)
            db.executemany(f'insert into "{name}" values ({", ".join("?" * len(columns))})', rows)
        db.commit()


@pytest.mark.parametrize("name", ["graph_loop_h100", "threads_h200", "cpp/cudaGraphsPerfScaling"])
def test_a_recording(tmp_path, name):
    trace, packed = tmp_path / "trace.sqlite", DATA / f"{name}.events.jsonl.xz"
    trace.write_bytes(lzma.decompress((DATA / f"{name}.sqlite.xz").read_bytes()))
    logs = [tmp_path / "events-7.jsonl"] if packed.exists() else []
    for log in logs:
        log.write_bytes(lzma.decompress(packed.read_bytes()))
    before = nsysalign.analyze(trace, logs)
    shuffle(trace)
    after = nsysalign.analyze(trace, logs)
    assert len(before.measured) > 5
    assert (after.trace, after.notes) == (before.trace, before.notes)
    for spec in frames.ANALYSIS_SPECS:
        names = [n for n in spec.names if n not in ("ref_id", "link")]  # numbers of rows
        a, b = (getattr(analysis, spec.name)[names] for analysis in (before, after))
        assert b.equals(a), spec.name


@pytest.mark.parametrize(("stamps", "unusable"), [
    ((None, None), 0), ((11_000, 181_000), 0), ((0, 0), 2), ((0, 181_000), 1), ((181_000, 181_000), 2),
])  # fmt: skip
def test_time_stamps_that_are_zero_or_equal_are_said_and_not_used(export, log, stamps, unusable):
    """CUPTI before 13.4 leaves such of events that the hardware times."""
    tables = tiny()
    for row, stamp in zip(tables["CUPTI_ACTIVITY_KIND_CUDA_EVENT"], stamps, strict=True):
        row["timestamp"] = stamp
    path = export(tables)
    trace = read_trace(path)
    used = [s or 0 for s in stamps] if unusable == 0 else [0, 181_000 if unusable == 1 else 0]
    assert trace.event_rows["timestamp_ns"].tolist() == used
    notes = [note for note in trace.info.notes if "zero or equal" in note]
    assert notes == (
        [f"{unusable} GPU timestamps of events are zero or equal to another's (as nsys with a CUPTI before 13.4 records them) and were not used"]
        if unusable else []
    )  # fmt: skip
    (method,) = nsysalign.analyze(path, [log]).measured["method"]
    assert method == ("event-trace" if 181_000 in used else "bounds")


def test_a_null_in_a_column_that_is_declared_to_have_none(export):
    """Damaged, or edited: SQLite itself believes the declaration, `is not null` is always true."""
    path = export(tiny())
    with closing(sqlite3.connect(path)) as db:
        db.execute("update StringIds set value = null where id in (2, 7)")
        db.execute("pragma writable_schema = on")
        text = '"value" TEXT NOT NULL'
        db.execute("update sqlite_master set sql = replace(sql, '\"value\" TEXT', ?)", (text,))
        db.commit()
    trace = read_trace(path)
    assert {2, 7} & trace.names.keys() == set() and len(trace.calls) == 7
