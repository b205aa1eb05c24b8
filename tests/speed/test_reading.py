"""The quick reader gives what the ordinary one gives, or nothing; and leaves the file alone."""

from __future__ import annotations

import hashlib
import sqlite3

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsysalign.errors import TraceError
from nsysalign.trace import fast, schema
from nsysalign.trace import sqlite as reading
from nsysalign.trace.gathered import Gathered

ROWS = 70_000  # more than one batch
pytestmark = pytest.mark.skipif(
    not pytest.importorskip("adbc_driver_sqlite", reason="the quick reader is not installed"),
    reason="",
)


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


def read(path, *, quick: bool):
    with reading.open_readonly(path) as connection:
        (columns,) = reading.Source(connection, path if quick else None).columns_of(schema.RUNTIME)
    return columns


def used(monkeypatch) -> list[bool]:
    """Filled with what the quick reader answered."""
    answers, real = [], fast.gather
    monkeypatch.setattr(fast, "gather", lambda *a: answers.append(real(*a)) or answers[-1])
    return answers


@pytest.mark.parametrize("change", [None, "delete from {table} where rowid = 40000"])
def test_both_readers_give_the_same_and_leave_the_file_alone(table, monkeypatch, change):
    path, answers = table(change), used(monkeypatch)
    before = hashlib.sha256(path.read_bytes()).digest()
    quick, slow = read(path, quick=True), read(path, quick=False)
    assert answers and all(answers)
    assert quick.keys() == slow.keys()
    for name, values in quick.items():
        assert values.dtype == slow[name].dtype and np.array_equal(values, slow[name]), name
    assert quick["correlation"][9] == -1 and not any(quick["thread"].strides)
    assert quick["start_ns"].dtype == np.int64 and quick["name_id"][-1] == 5_000_000_000
    assert hashlib.sha256(path.read_bytes()).digest() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "change, known",
    [
        ("update {table} set returnValue = 600 where rowid % 999 = 7", 600),
        ("update {table} set globalTid = null where rowid = 33000", -1),  # a needed column
        ("update {table} set globalTid = 5, nameId = null where rowid in (1, 70000)", 5),
        ("update {table} set globalTid = 5 where rowid > 100", 5),
        ("delete from {table} where rowid % 50 = 9; update {table} set returnValue = -3 where rowid % 60 = 1", -3),
    ],
)  # fmt: skip
def test_rows_unlike_all_others_come_in_their_place(table, monkeypatch, change, known):
    path = table(change)
    with reading.open_readonly(path) as connection:
        assert reading.Source(connection, path)._plan(schema.RUNTIME).fast
    quick, slow = read(path, quick=True), read(path, quick=False)
    for name, values in quick.items():
        assert values.dtype == slow[name].dtype and np.array_equal(values, slow[name]), name
    assert any((values == known).any() for values in quick.values())
    assert (np.diff(quick["row"]) > 0).all()


@pytest.mark.parametrize("row", [5, ROWS - 5])
def test_a_text_among_the_numbers_is_left_to_the_ordinary_reader(table, monkeypatch, row):
    answers = used(monkeypatch)
    path = table("update {table} set nameId = 'nothing' where rowid = " + str(row))
    with pytest.raises(TraceError, match="holds something else"):
        read(path, quick=True)
    assert answers and not answers[-1]


def test_files_that_reading_could_change_are_left_to_the_ordinary_reader(table, monkeypatch):
    answers = used(monkeypatch)
    assert len(read(table(journal="wal"), quick=True)["row"]) == ROWS
    assert not answers


@pytest.mark.parametrize(
    "definition",
    [
        "create view {table} as select 1 as start",
        "create table {table} (start integer, twice integer as (2 * start))",
        "create table {table} (start integer primary key) without rowid",
        "create table {table} (start integer, rowid text)",
    ],
)
def test_only_plain_tables_are_read_quickly(tmp_path, definition):
    path = tmp_path / "trace.sqlite"
    with sqlite3.connect(path) as db:
        db.execute(definition.format(table=f'"{schema.RUNTIME.name}"'))
    db.close()
    connection = sqlite3.connect(path)
    try:
        assert not reading.Source(connection, path).plain_table(schema.RUNTIME.name)
    except TraceError as error:  # refused altogether
        assert schema.RUNTIME.name in str(error)
    connection.close()


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
