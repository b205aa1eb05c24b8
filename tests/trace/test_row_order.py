"""In which order an export has its rows makes no difference: nsys promises none since 2025.6."""

from __future__ import annotations

import lzma
import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from recordings import DATA, unpack
from tiny_export import tiny

import nsysalign
from nsysalign import frames
from nsysalign.trace.read import read_trace


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


@pytest.mark.parametrize("name", ["threads_h200", "cpp/cudaGraphsPerfScaling"])
def test_a_recording(tmp_path, name):
    trace = tmp_path / "trace.sqlite"
    if name.startswith("cpp/"):
        trace.write_bytes(lzma.decompress((DATA / f"{name}.sqlite.xz").read_bytes()))
        logs = []
    else:
        logs = [unpack(name, tmp_path)[1]]
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
