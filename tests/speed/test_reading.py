"""The quick reader gives what the ordinary one gives, or nothing; and leaves the file alone."""

from __future__ import annotations

import sqlite3

import numpy as np
import pytest

from nsysalign import frames
from nsysalign.errors import TraceError
from nsysalign.trace import schema
from nsysalign.trace import sqlite as reading

ROWS = 70_000  # more than one batch
TABLE = f'"{schema.RUNTIME.name}"'
for package in ("adbc_driver_sqlite", "nanoarrow"):
    pytest.importorskip(package, reason="the quick reader is not installed")


@pytest.fixture
def table(tmp_path):
    """`table(change)`: an export whose RUNTIME table has numbers of every size, one missing."""

    def write(change="", journal="delete"):
        path = tmp_path / "trace.sqlite"
        db = sqlite3.connect(path)
        db.execute(f"pragma journal_mode = {journal}")
        db.execute(f"create table {TABLE} (start integer, end integer, globalTid integer, "
                   "correlationId integer, nameId integer, returnValue integer)")  # fmt: skip
        n = range(ROWS)
        rows = [(10 * i, 10 * i + 5, (1 << 56) + 7, None if i == 9 else i, 5_000_000_000 if i == ROWS - 1 else 3, 0) for i in n]  # fmt: skip
        db.executemany(f"insert into {TABLE} values (?, ?, ?, ?, ?, ?)", rows)
        db.executescript(change)
        db.close()
        return path

    return write


def read(path, monkeypatch, *, quick: bool):
    def unused(*_):
        pytest.fail("the other reader")
        yield

    with monkeypatch.context() as patched, reading.opened(path) as source:
        if quick:
            patched.setattr(reading.Source, "_batches", unused)
        else:
            patched.setattr(reading, "_WORTH_BYTES", 1 << 40)
            patched.setattr(reading, "_arrow_batches", unused)
        return source.columns_of(schema.RUNTIME)


@pytest.mark.parametrize(
    "change, known",
    [
        ("", 7 | 1 << 56),
        (f"delete from {TABLE} where rowid = 40000", -1),
        (f"update {TABLE} set globalTid = null where rowid = 33000", -1),  # a needed column
        (f"update {TABLE} set globalTid = 5, nameId = null where rowid in (1, 70000)", 5),
        (f"update {TABLE} set rowid = -5, globalTid = 5 where rowid = 40000", 5),
        (f"create index all_of_it on {TABLE} (nameId, start, end, globalTid, correlationId, returnValue)", -1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_both_readers_give_the_same_and_leave_the_file_alone(
    table, monkeypatch, change, known, journal
):
    path = table(change, journal)
    before = path.read_bytes()
    quick, slow = (read(path, monkeypatch, quick=which) for which in (True, False))
    assert quick.keys() == slow.keys()
    for name, values in quick.items():
        assert values.dtype == slow[name].dtype and np.array_equal(values, slow[name]), name
    assert any((values == known).any() for values in quick.values())
    assert quick["start_ns"].dtype == np.int64 and (np.diff(quick["row"]) > 0).all()
    assert change or not any(quick["thread"].strides)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("row", [5, ROWS - 5])
@pytest.mark.parametrize("value", ["'nothing'", "x'00'"])
def test_what_is_no_number_is_left_to_the_ordinary_reader(table, row, value):
    path = table(f"update {TABLE} set nameId = {value} where rowid = {row}")
    with pytest.raises(TraceError, match="holds something else"), reading.opened(path) as source:
        source.columns_of(schema.RUNTIME)


def test_a_column_takes_little_memory_and_a_time_stays_whole():
    for values in ([], [7, 7], [-5, 2**31 - 1], [0, 2**31], [-(2**63), 2**63 - 1]):
        whole = frames.narrow(np.array(values, np.int64), "stream")
        assert whole.tolist() == values
        assert (not any(whole.strides)) == (values in ([], [7, 7]))
        assert whole.dtype == (np.int32 if values == [-5, 2**31 - 1] else np.int64)
    assert frames.narrow(np.arange(3), "start_ns").dtype == np.int64
