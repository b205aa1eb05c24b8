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
from nsysalign.errors import NsysError

#: What is done to trace.sqlite -> words of the message.
DAMAGES = {
    "empty": (lambda data: b"", "is empty; an nsys SQLite export was expected"),
    "text": (lambda data: b"hello\n", "is not an SQLite database"),
    "gzip": (lambda data: b"\x1f\x8b" + data[:100], "is not an SQLite database"),
    "cut": (lambda data: data[: len(data) // 2], "damaged SQLite file"),
    "zeroed": (lambda data: data[:4096] + bytes(len(data) - 4096), "damaged SQLite file"),
}


def said(capsys, *arguments: object) -> tuple[int, list[str]]:
    with pytest.raises(SystemExit) as end:
        main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    assert out == ""
    return end.value.code, err.splitlines()


@pytest.mark.parametrize("name", list(DAMAGES))
def test_a_damaged_export_is_two_lines_and_exit_code_3(export, tmp_path, capsys, name):
    damage, words = DAMAGES[name]
    path = export(tiny())
    path.write_bytes(damage(path.read_bytes()))
    before = path.read_bytes()
    status, lines = said(capsys, "analyze", path, "-q")
    assert status == 3 and len(lines) == 2, lines
    assert (
        lines[0].startswith("nsysalign: ") and words in lines[0] and lines[1].startswith("  next: ")
    )
    assert path.read_bytes() == before
    assert not any(p.name.endswith(("-wal", "-shm", "-journal")) for p in tmp_path.iterdir())


def test_damaged_logs_and_analyses_are_as_short(export, log, tmp_path, capsys):
    trace = export(tiny())
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"type":"record"}\n')
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
        status, lines = said(capsys, *arguments)
        assert status == 3 and len(lines) == 2 and lines[1].startswith("  next: "), (
            arguments,
            lines,
        )


def test_what_an_error_quotes_is_short_and_harmless(export, tmp_path, capsys):
    trace, bad = export(tiny()), tmp_path / "bad\x1b[31m.jsonl"
    bad.write_text(json.dumps({"type": "header", "format": "x\x1b" * 5000}) + "\n")
    status, lines = said(capsys, "analyze", trace, "--events", bad, "-q")
    assert status == 3 and len(lines) == 2 and len(lines[0]) < 1000 and "\x1b" not in "".join(lines)
    assert "expected 'nsysalign-events'" in lines[0], (
        "the end, which says what was expected, is kept"
    )
    with closing(sqlite3.connect(trace)) as db:
        db.execute("update CUPTI_ACTIVITY_KIND_KERNEL set streamId = ?", ("n\x1b" * 20_000,))
        db.commit()
    status, lines = said(capsys, "analyze", trace, "-q")
    assert status == 3 and len(lines) == 2 and len(lines[0]) < 1000 and "\x1b" not in "".join(lines)
    assert "a column of numbers holds something else" in lines[0]


# --- an export that is older than its report
# -----------------------------------------------------------------------


@pytest.fixture
def stale(export, tmp_path, monkeypatch):
    """A report newer than the export beside it, and an nsys that notes what it was asked to
    export."""
    trace, made = export(tiny()), []
    report = tmp_path / "trace.nsys-rep"
    report.write_bytes(b"report")
    os.utime(trace, (1, 1))
    good = trace.read_bytes()

    def export_sqlite(nsys: object, source: Path, target: Path, progress: object = None) -> Path:
        made.append(target)
        target.write_bytes(good)
        return target

    monkeypatch.setattr("nsysalign.record.nsys.find_nsys", lambda explicit=None: None)
    monkeypatch.setattr("nsysalign.record.nsys.export_sqlite", export_sqlite)
    return report, trace, made


def test_a_stale_export_is_made_anew_and_never_overwritten(stale, tmp_path):
    report, trace, made = stale
    before = trace.read_bytes()
    output = tmp_path / "out"
    output.mkdir()
    assert exported(report, output, nsys=None) == output / "trace.sqlite" == made[0]
    assert exported(report, tmp_path, nsys=None) == made[1] != trace, (
        "in the run directory under another name"
    )
    assert exported(report, tmp_path, nsys=None) == made[1] and len(made) == 2, "once"
    assert trace.read_bytes() == before
    os.utime(report, (0, 0))
    assert exported(report, tmp_path, nsys=None) == trace, "an export that is newer is good"
    shutil.copy(report, tmp_path / "old.qdrep")
    assert exported(tmp_path / "old.qdrep", output, nsys=None) == output / "old.sqlite"


def test_a_stale_export_that_cannot_be_made_anew_is_no_answer(stale, tmp_path, monkeypatch):
    def absent(explicit=None):
        raise NsysError("nsys was not found", "install it")

    monkeypatch.setattr("nsysalign.record.nsys.find_nsys", absent)
    with pytest.raises(NsysError, match="nsys was not found"):
        exported(stale[0], tmp_path, nsys=None)
