"""Tables of recordings emptied, one at a time, with the event log and without: an answer that adds
up, or an error that says what is missing.

`NSYSALIGN_FUZZ=1` empties every table of every recording, which takes long.
"""

from __future__ import annotations

import lzma
import os
import sqlite3
import time
from contextlib import closing
from dataclasses import fields
from pathlib import Path

import pandas as pd
import pytest
from recordings import DATA, untar
from simulator import check
from thorough import part
from tiny_export import P, tiny

import nsysalign
from nsysalign.errors import NsysAlignError
from nsysalign.model import Trace
from nsysalign.trace import schema
from nsysalign.trace.read import read_trace

TABLES = schema.NAMES if "NSYSALIGN_FUZZ" in os.environ else {schema.RUNTIME.name, "StringIds"}
RECORDED = [p for end in ("sqlite.xz", "tar.xz") for p in sorted(DATA.rglob(f"*.{end}"))]
#: One recording of each set of tables that have rows, with a log or without.
KINDS = {
    "StreamPriorities", "allocation", "asyncAPI", "behind_copies_h100", "captured", "cdpAdvancedQuicksort", "clean",
    "cudaGraphsPerfScaling", "ddp_slow_rank", "example_h100", "graph_events_h100", "graph_loop_h100", "host_timers",
    "mixed_work", "positions_h100", "probe", "reference_clock", "truth_event_timestamps", "unprofiled_micro",
}  # fmt: skip
ONE_OF_EACH = [path for path in RECORDED if path.name.partition(".")[0] in KINDS]
TRIED = RECORDED if "NSYSALIGN_FUZZ" in os.environ else part(ONE_OF_EACH, RECORDED)


def unpacked(packed: Path, folder: Path) -> list[tuple[Path, list[Path]]]:
    """Exports, each with its logs."""
    if packed.name.endswith(".tar.xz"):
        untar(packed, folder)
        traces = sorted(folder.rglob("*.sqlite"))
        return [(t, sorted(t.parent.glob("events-*.jsonl"))) for t in traces]
    trace, log = folder / "trace.sqlite", folder / "events-1.jsonl"
    trace.write_bytes(lzma.decompress(packed.read_bytes()))
    beside = packed.with_name(packed.name.replace(".sqlite.", ".events.jsonl."))
    if beside.exists():
        log.write_bytes(lzma.decompress(beside.read_bytes()))
    return [(trace, [log] * beside.exists())]


@pytest.mark.parametrize("packed", TRIED, ids=lambda p: p.name.removesuffix(".xz"))
def test_of_recordings(packed, tmp_path):
    for trace, logs in unpacked(packed, tmp_path):
        with closing(sqlite3.connect(trace)) as db:
            db.isolation_level = None
            there = {n for (n,) in db.execute("select name from sqlite_master")}
            for table in sorted(TABLES & there):
                db.execute("begin")
                db.execute(f"create table emptied as select * from {table}")
                db.execute(f"delete from {table}")
                db.execute("commit")
                for given in [logs, []][not logs :]:
                    analysed(trace, given, table)
                db.execute(f"insert into {table} select * from emptied")
                db.execute("drop table emptied")


def analysed(trace: Path, logs: list[Path], table: str) -> None:
    began = time.monotonic()
    try:
        check.invariants(nsysalign.analyze(trace, logs))
    except NsysAlignError as error:
        assert error.message, table
    assert time.monotonic() - began < 20, table


@pytest.mark.parametrize("table", sorted(tiny()))
def test_an_empty_table_is_an_absent_one(table, export, log, tmp_path):
    """`nsys export --lazy=false` writes both; an empty table of API calls ended in an error of
    pandas.  What is read is the same; what follows from it says test_read.py of the absent table,
    but for what is read of a kernel or a graph when it is asked for."""
    tables = tiny()
    full = tables.pop(table)
    absent = read_or_refused(export(tables))
    path = export(tables | {table: full})
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"delete from {table}")
        db.commit()
    empty = read_or_refused(path)
    if isinstance(empty, str):
        assert empty == absent
    else:
        for column in fields(empty):
            here, there = (getattr(trace, column.name) for trace in (empty, absent))
            if isinstance(here, pd.DataFrame):
                pd.testing.assert_frame_equal(here, there, obj=f"{table}, {column.name}")
            elif column.name not in ("shapes", "graphs"):  # read when they are asked for
                assert here == there, column.name
        if table in (P + "KERNEL", P + "GRAPH_TRACE"):
            analysed(path, [log], table)
    if table == P + "RUNTIME":
        assert "absent or empty" in empty


def read_or_refused(path: Path) -> Trace | str:
    try:
        return read_trace(path)
    except NsysAlignError as error:
        return str(error)
