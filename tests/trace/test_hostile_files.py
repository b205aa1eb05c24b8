"""Prepared SQLite files cannot run, write, hang or eat the memory; what is locked or being written
is said."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest
from click.testing import CliRunner
from hostile_files import KERNEL, PREPARED, multiply, prepare
from tiny_export import tiny

import nsysalign
from nsysalign import untrusted
from nsysalign.cli import cli
from nsysalign.errors import AnalysisError, TraceError
from nsysalign.store import database
from nsysalign.trace.read import read_trace
from nsysalign.trace.sqlite import opened


@pytest.mark.parametrize("name", list(PREPARED))
def test_a_prepared_export_is_refused_or_read_as_ever(export, log, name):
    change, said = PREPARED[name]
    if name in ("too long name", "bytes for numbers") and not hasattr(
        sqlite3.Connection, "setlimit"
    ):
        pytest.skip("Python 3.10 cannot limit the length of values")
    path = export(tiny())
    plain = nsysalign.analyze(path, [log])
    prepare(path, change)
    if said is not None:
        with pytest.raises(TraceError, match=said) as error:
            read_trace(path)
        assert "nsys export" in error.value.next_step and "\n" not in error.value.message
        return
    found = nsysalign.analyze(path, [log])
    assert found.parts.equals(plain.parts)
    notes = [n for n in found.trace.notes if "were cut short" in n]
    assert notes == (["7 names of more than 16 KB were cut short"] if name == "long name" else [])


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
def demo(tmp_path_factory) -> bytes:
    """The stored analysis of the demo."""
    folder = tmp_path_factory.mktemp("demo") / "out"
    assert CliRunner().invoke(cli, ["demo", "-q", "-o", str(folder)]).exit_code == 0
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
        ("update unprofiled set lower_ns = null", "an end of its error bar"),
        ("update meta set value = '[3]' where key = 'notes'", "beside the tables"),
        (
            "update meta set value = replace(value, '\"devices\":[', '\"devices\":[3,')",
            "beside the tables",
        ),
    ],
)
def test_an_edited_analysis_is_refused_when_it_is_read(demo, tmp_path, change, said):
    path = tmp_path / "analysis.db"
    path.write_bytes(demo)
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


# --- what other programs do with the file
# ------------------------------------------------------------------------


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
