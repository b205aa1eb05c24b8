"""The quick reader gives what the ordinary one gives, or nothing; and leaves the file alone."""

from __future__ import annotations

import hashlib
import sqlite3

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsysalign.errors import TraceError
from nsysalign.trace import schema
from nsysalign.trace import sqlite as reading
from nsysalign.trace.sqlite import Gathered

ROWS = 70_000  # more than one batch
for package in ("adbc_driver_sqlite", "nanoarrow"):
    pytest.importorskip(package, reason="the quick reader is not installed")


@pytest.fixture
def table(tmp_path):
    """`table(rows)`: an export whose RUNTIME table has them; numbers of every size, one missing
    row."""

    def write(change=None, journal="delete"):
        path = tmp_path / "trace.sqlite"
        db = sqlite3.connect(path)
        db.execute(f"pragma journal_mode = {journal}")
        db.execute(f'create table "{schema.RUNTIME.name}" (start integer, "end" integer, globalTid integer, '
                   "correlationId integer, nameId integer, returnValue integer)")  # fmt: skip
        n = range(ROWS)
        rows = [(10 * i, 10 * i + 5, (1 << 56) + 7, None if i == 9 else i, 5_000_000_000 if i == ROWS - 1 else 3, 0) for i in n]  # fmt: skip
        db.executemany(f'insert into "{schema.RUNTIME.name}" values (?, ?, ?, ?, ?, ?)', rows)
        if change:
            db.executescript(change.format(table=f'"{schema.RUNTIME.name}"'))
        db.commit()
        db.close()
        return path

    return write


def read(path, monkeypatch, *, quick: bool):
    with monkeypatch.context() as patched, reading.opened(path) as source:
        patched.setattr(reading, "_arrow_is_there", lambda: quick)
        if quick:
            patched.setattr(source, "_slow", lambda query: pytest.fail("the ordinary reader"))
        (columns,) = source.columns_of(schema.RUNTIME)
    return columns


@pytest.mark.parametrize(
    "change, known",
    [
        ("", 7 | 1 << 56),
        ("delete from {table} where rowid = 40000", -1),
        ("update {table} set returnValue = 600 where rowid % 999 = 7", 600),
        ("update {table} set globalTid = null where rowid = 33000", -1),  # a needed column
        ("update {table} set globalTid = 5, nameId = null where rowid in (1, 70000)", 5),
        ("delete from {table} where rowid % 50 = 9; update {table} set returnValue = -3 where rowid % 60 = 1", -3),
        ("create index all_of_it on {table} (nameId, start, end, globalTid, correlationId, returnValue)", -1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_both_readers_give_the_same_and_leave_the_file_alone(
    table, monkeypatch, change, known, journal
):
    path = table(change, journal)
    before = hashlib.sha256(path.read_bytes()).digest()
    quick, slow = (read(path, monkeypatch, quick=which) for which in (True, False))
    assert quick.keys() == slow.keys()
    for name, values in quick.items():
        assert values.dtype == slow[name].dtype and np.array_equal(values, slow[name]), name
    assert any((values == known).any() for values in quick.values())
    assert quick["start_ns"].dtype == np.int64 and (np.diff(quick["row"]) > 0).all()
    assert change or not any(quick["thread"].strides)
    assert hashlib.sha256(path.read_bytes()).digest() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("row", [5, ROWS - 5])
@pytest.mark.parametrize("value", ["'nothing'", "x'00'"])
def test_what_is_no_number_is_left_to_the_ordinary_reader(table, row, value):
    path = table(f"update {{table}} set nameId = {value} where rowid = {row}")
    with pytest.raises(TraceError, match="holds something else"), reading.opened(path) as source:
        source.columns_of(schema.RUNTIME)


BATCHES = st.lists(
    st.lists(st.sampled_from([0, 7, -5, 2**31 - 1, 2**31, -(2**63), 2**63 - 1]), max_size=5),
    max_size=6,
)


@given(BATCHES, st.booleans())
def test_a_gathered_column_is_its_batches(batches, wide):
    column = Gathered(wide=wide)
    for batch in batches:
        column.add(np.array(batch, dtype=np.int64))
    values, whole = [v for b in batches for v in b], column.column()
    assert whole.tolist() == values
    one = len(set(values)) <= 1
    small = all(-(2**31) <= v < 2**31 for v in values)
    assert whole.dtype == (np.int32 if small and not one and not wide else np.int64)
    assert any(whole.strides) == (not one) or not values
