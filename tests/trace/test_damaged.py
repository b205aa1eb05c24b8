"""What the command line says of inputs that cannot be used: a line or two, exit code 3, inputs
untouched."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tiny_export import tiny

from nsysalign.cli import main
from nsysalign.commandline.present import exported

#: What is done to trace.sqlite -> words of the message.
DAMAGES = {
    "empty": (lambda data: b"", "is empty; an nsys SQLite export was expected"),
    "text": (lambda data: b"hello\n", "is not an SQLite database"),
    "gzip": (lambda data: b"\x1f\x8b" + data[:100], "is a damaged gzip file"),
    "cut": (lambda data: data[: len(data) // 2], "damaged SQLite file"),
    "zeroed": (lambda data: data[:4096] + bytes(len(data) - 4096), "damaged SQLite file"),
}


@pytest.fixture
def refused(capsys):
    """`refused(*arguments)`: what is said of them, in two lines; the exit code is 3."""

    def run(*arguments: object) -> str:
        with pytest.raises(SystemExit) as end:
            main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        said, step = err.splitlines()
        assert (end.value.code, out) == (3, "") and "\x1b" not in err, arguments
        assert said.startswith("nsysalign: ") and step.startswith("  next: ")
        assert len(said) < 1000
        return said

    return run


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_export_is_two_lines_and_exit_code_3(export, tmp_path, refused, name):
    damage, words = DAMAGES[name]
    path = export(tiny())
    path.write_bytes(damage(path.read_bytes()))
    before = path.read_bytes()
    assert words in refused("analyze", path, "-q")
    assert path.read_bytes() == before
    assert not any(p.name.endswith(("-wal", "-shm", "-journal")) for p in tmp_path.iterdir())


def test_damaged_logs_and_analyses_are_as_short(export, tmp_path, refused):
    """And what they quote is harmless: the end, which says what was expected, is kept."""
    trace = export(tiny())
    bad, header = tmp_path / "bad.jsonl", tmp_path / "bad\x1b[31m.jsonl"
    bad.write_text('{"type":"record"}\n')
    header.write_text(json.dumps({"type": "header", "format": "x\x1b" * 5000}) + "\n")
    (tmp_path / "bad.db").write_bytes(b"SQLite format 3\0" + bytes(5000))
    (tmp_path / "bad.json").write_text("[" * 100_000)
    for arguments in (
        ("analyze", trace, "--events", bad, "-q"),
        ("analyze", trace, "--events", tmp_path / "absent.jsonl", "-q"),
        ("analyze", tmp_path / "absent.sqlite"),
        ("report", tmp_path / "bad.db"),
        ("report", tmp_path / "bad.json"),
        ("diff", tmp_path / "bad.json", tmp_path / "bad.db"),
        ("redact", bad, tmp_path / "out"),
    ):
        refused(*arguments)
    said = refused("analyze", trace, "--events", header, "-q")
    assert "expected 'nsysalign-events'" in said
    with closing(sqlite3.connect(trace)) as db:
        db.execute("update CUPTI_ACTIVITY_KIND_KERNEL set streamId = ?", ("n\x1b" * 20_000,))
        db.commit()
    assert "a column of numbers holds something else" in refused("analyze", trace, "-q")


def test_an_export_older_than_its_report_is_made_anew_and_never_overwritten(
    export, tmp_path, monkeypatch
):
    trace, made, report = export(tiny()), [], tmp_path / "trace.nsys-rep"
    report.write_bytes(b"report")
    os.utime(trace, (1, 1))
    good = trace.read_bytes()

    def export_sqlite(nsys: object, source: Path, target: Path, progress: object = None) -> Path:
        made.append(target)
        target.write_bytes(good)
        return target

    monkeypatch.setattr("nsysalign.record.nsys.find_nsys", lambda explicit=None: None)
    monkeypatch.setattr("nsysalign.record.nsys.export_sqlite", export_sqlite)
    output = tmp_path / "out"
    output.mkdir()
    assert exported(report, output, nsys=None) == output / "trace.sqlite" == made[0]
    in_run = exported(report, tmp_path, nsys=None)
    assert in_run == made[1] != trace, "in the run directory under another name"
    assert exported(report, tmp_path, nsys=None) == made[1] and len(made) == 2, "once"
    assert trace.read_bytes() == good
    os.utime(report, (0, 0))
    assert exported(report, tmp_path, nsys=None) == trace, "an export that is newer is good"
    shutil.copy(report, tmp_path / "old.qdrep")
    assert exported(tmp_path / "old.qdrep", output, nsys=None) == output / "old.sqlite"
