"""Prepared SQLite files cannot run, write, hang or eat the memory; what is locked or being written
is said."""

from __future__ import annotations

import os
import sqlite3
import struct
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from tiny_export import LOG, tiny, write_export, write_lines

import nsysalign
from nsysalign import untrusted
from nsysalign.errors import AnalysisError, TraceError
from nsysalign.store import database
from nsysalign.trace.read import read_trace
from nsysalign.trace.sqlite import opened

KERNEL, STRINGS = "CUPTI_ACTIVITY_KIND_KERNEL", "StringIds"
_VIEW = (
    f"drop table {KERNEL}; create view {KERNEL} as with recursive n(i) as (select 1 union all select i + 1 from n) "
    "select i as start, i + 1 as end, 7 as streamId, i as correlationId, 1 as deviceId from n;"
)


def without_rowid(db: sqlite3.Connection) -> str:
    names = ", ".join(row[1] for row in db.execute(f"pragma table_info({KERNEL})"))
    return (
        f"alter table {KERNEL} rename to was;"
        f"create table {KERNEL} ({names}, primary key (correlationId)) without rowid;"
        f"insert into {KERNEL} select * from was"
    )


#: name -> (what is done to an export, what the error says; None where the analysis is the same)
PREPARED = {
    "endless view": (_VIEW, "KERNEL is a view"),
    "virtual table": (
        f"drop table {KERNEL}; create virtual table {KERNEL} using rtree(id, start, end, streamId, correlationId)",
        "KERNEL is a virtual table",
    ),
    "computed column": (  # megabytes for every row that is looked at
        f"alter table {STRINGS} rename to was;"
        f"create table {STRINGS} (id integer, value text as (hex(zeroblob(4000000 + id))));"
        f"insert into {STRINGS} (id) select id from was",
        "StringIds computes its column value",
    ),
    "without rowid": (without_rowid, "KERNEL has no row numbers"),
    "long name": (f"update {STRINGS} set value = value || hex(zeroblob(1000000))", None),
    "too long name": (
        f"update {STRINGS} set value = hex(zeroblob(20000000)) where id = 7", "a text of more than 16 MB"
    ),
    "bytes for numbers": (f"update {KERNEL} set start = zeroblob(30000000)", "where a number belongs"),
    "renamed in the schema": (  # the catalogue says `table` beside the text of a view
        f"{_VIEW} pragma writable_schema = on; update sqlite_master set type = 'table' where name = '{KERNEL}'",
        "malformed database schema",
    ),
}  # fmt: skip


def multiply(path: Path, table: str, *, levels: int = 5, fan: int = 200) -> None:
    """Let the rows of a one-page table be read `fan ** levels` times: pages that all point at the
    same page.

    root -> page a, a, a, ... -> page b, b, b, ... -> the leaf with the rows
    """
    with closing(sqlite3.connect(path)) as db:
        found = db.execute("select rootpage from sqlite_master where name = ?", (table,))
        (root,) = found.fetchone()
        (size,) = db.execute("pragma page_size").fetchone()
    data = bytearray(path.read_bytes())
    leaf = data[(root - 1) * size : root * size]
    assert leaf[0] == 0x0D, "the table does not fit on one page"
    pages = [leaf]
    for _ in range(levels):
        child = len(data) // size + len(pages)
        cells = [struct.pack(">IB", child, 1 + k % 120) for k in range(fan)]
        content = size - 5 * fan
        pointers = b"".join(struct.pack(">H", content + 5 * k) for k in range(fan))
        head = struct.pack(">BHHHBI", 5, 0, fan, content, 0, child)
        page = bytearray(size)
        page[: len(head) + len(pointers)] = head + pointers
        page[content:] = b"".join(cells)
        pages.append(page)
    data[(root - 1) * size : root * size] = pages.pop()
    for page in pages:
        data += page
    data[28:32] = struct.pack(">I", len(data) // size)
    path.write_bytes(data)


@pytest.mark.parametrize("name", PREPARED)
def test_a_prepared_export_is_refused_or_read_as_ever(export, log, name):
    change, said = PREPARED[name]
    limits = hasattr(sqlite3.Connection, "setlimit")
    if name in ("too long name", "bytes for numbers") and not limits:
        pytest.skip("Python 3.10 cannot limit the length of values")
    path = export(tiny())
    plain = nsysalign.analyze(path, [log]) if said is None else None
    with closing(sqlite3.connect(path)) as db:
        db.executescript(change(db) if callable(change) else change)
        db.commit()
    if said is not None:
        with pytest.raises(TraceError, match=said) as error:
            read_trace(path)
        assert "nsys export" in error.value.next_step and "\n" not in error.value.message
        return
    found = nsysalign.analyze(path, [log])
    assert found.parts.equals(plain.parts)
    notes = [n for n in found.trace.notes if "were cut short" in n]
    assert notes == ["7 names of more than 16 KB were cut short"]


def test_pages_that_point_at_each_other_end_in_an_error(export, tmp_path):
    """A few kilobytes that stand for 320 billion rows, read in a process whose memory is
    counted."""
    paths = []
    for table in (KERNEL, "StringIds", "NVTX_EVENTS", "TARGET_INFO_SYSTEM_ENV"):
        path = export(tiny())
        multiply(path, table)
        paths.append(path.rename(tmp_path / f"{table}.sqlite"))
        assert paths[-1].stat().st_size < 200_000
    code = (
        "import sys, pathlib, resource, nsysalign, nsysalign.errors\n"
        "for path in sys.argv[1:]:\n"
        "    try: nsysalign.analyze(pathlib.Path(path))\n"
        "    except nsysalign.errors.NsysAlignError as error: print(error.message)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *paths], capture_output=True, text=True, timeout=120
    )
    *said, megabytes = done.stdout.splitlines()
    assert done.returncode == 0 and len(said) == 4, done.stderr
    assert all("than a file of its size" in line for line in said)
    assert int(megabytes) < 1000


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> bytes:
    """A stored analysis of few rows."""
    folder = tmp_path_factory.mktemp("stored")
    trace, log = write_export(folder / "trace.sqlite"), write_lines(folder / "events-7.jsonl", LOG)
    database.write(nsysalign.analyze(trace, [log]), folder / "analysis.db")
    return (folder / "analysis.db").read_bytes()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("update findings set severity = 'event'", "findings.severity holds an unknown word"),
        ("update labels set kind = 'x'", "labels.kind holds an unknown word"),
        ("update intervals set label = null", "label holds something other than texts"),
        ("update intervals set elapsed_ns = 1.5", "elapsed_ns holds something other than whole"),
        ("update intervals set flags = '[3]'", "flags holds something other than declared"),
        ("update timeline set detail = '[]'", "detail holds something other than declared"),
        ("update parts set interval = 99999 where rowid = 1", "do not add up|is not there"),
        ("update groups set typical = 99999", "typical interval is not among"),
        ("update unprofiled set lower_ns = 1, upper_ns = null", "an end of its error bar"),
        ("update meta set value = '[3]' where key = 'notes'", "beside the tables"),
        (
            "update meta set value = replace(value, '\"devices\":[', '\"devices\":[3,')",
            "beside the tables",
        ),
    ],
)
def test_an_edited_analysis_is_refused_when_it_is_read(stored, tmp_path, change, said):
    path = tmp_path / "analysis.db"
    path.write_bytes(stored)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute(change).rowcount, "there is nothing to change"
        db.commit()
    with pytest.raises(AnalysisError, match=said):
        database.load(path)


def test_nothing_but_reading_is_authorised(export):
    with opened(export(tiny())) as source:
        connection = source.connection
        assert connection.execute(f"select max(start), length('x') from {KERNEL}").fetchone()
        for sql in (
            "insert into StringIds values (99, 'x')",
            "attach ':memory:' as other",
            "create temp table t (a)",
            "pragma query_only = off",
            "pragma writable_schema = on",
            "vacuum into '/tmp/never'",
            "select randomblob(10)",
            "select load_extension('x')",
            "select hex(zeroblob(1000000))",
            "with recursive n(i) as (select 1 union all select i + 1 from n) select count(i) from n",
        ):
            with pytest.raises(sqlite3.DatabaseError):
                connection.execute(sql).fetchall()


def test_a_locked_export_is_said(export, monkeypatch):
    path = export(tiny())
    monkeypatch.setattr(untrusted, "_LOCK_TIMEOUT_S", 0.1)
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("begin exclusive")
        with pytest.raises(TraceError, match="is locked: another program is writing it"):
            read_trace(path)
    assert len(read_trace(path).calls) == 7


def test_an_export_that_is_being_written_is_said(export, tmp_path):
    """Its writer was killed in the middle: what the file holds is neither the old nor the new."""
    path = export(tiny())
    code = (
        "import os, sqlite3, sys\n"
        "db = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "db.execute('pragma cache_size = 1')\n"
        "db.execute('begin')\n"
        "db.execute('update StringIds set value = hex(zeroblob(9000))')\n"
        "os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code, path], check=True)
    before = path.read_bytes(), (tmp_path / "trace.sqlite-journal").read_bytes()
    with pytest.raises(TraceError, match="being written, or its writer was stopped half-way"):
        read_trace(path)
    assert before == (path.read_bytes(), (tmp_path / "trace.sqlite-journal").read_bytes())


def test_a_file_in_wal_mode_is_read_and_nothing_is_left_beside_it(export, tmp_path):
    path = export(tiny())
    with closing(sqlite3.connect(path)) as db:
        db.execute("pragma journal_mode = wal")
        db.execute("update StringIds set value = 'again' where id = 7")
        db.commit()
        with pytest.raises(TraceError, match=r"part of it is still in trace\.sqlite-wal"):
            read_trace(path)
    before = path.read_bytes(), sorted(os.listdir(tmp_path))
    assert "again" in read_trace(path).names.values()
    assert before == (path.read_bytes(), sorted(os.listdir(tmp_path)))
