"""What is refused says what it is and what to do, and leaves nothing behind."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from handmade import build

from nsysalign.answer import answer
from nsysalign.cli import cli
from nsysalign.commandline.present import printed
from nsysalign.errors import NsysError, TraceError


def refused(*arguments: object) -> Exception:
    result = CliRunner().invoke(cli, [str(a) for a in arguments])
    assert result.exit_code and result.exception is not None
    return result.exception


def without_cuda(path: Path) -> Path:
    with closing(sqlite3.connect(path)) as db:
        db.execute("create table StringIds (id integer primary key, value text)")
        db.execute("create table DIAGNOSTIC_EVENT (severity integer, text text)")
        said = (
            "Installed CUDA driver version (13.1) is not supported by this build of Nsight Systems."
        )
        db.executemany(
            "insert into DIAGNOSTIC_EVENT values (?, ?)",
            [(2, said), (2, "Number of IP samples"), (1, "CUDA ok")],
        )
        db.commit()
    return path


def test_the_profilers_own_diagnosis_is_passed_on_and_no_folder_is_left(tmp_path):
    error = refused("analyze", without_cuda(tmp_path / "x.sqlite"))
    assert isinstance(error, TraceError)
    assert "nsys says: Installed CUDA driver version (13.1) is not supported" in error.message
    assert "IP samples" not in error.message and "CUDA ok" not in error.message
    assert [p.name for p in tmp_path.iterdir()] == ["x.sqlite"]


def test_a_folder_that_was_there_stays(tmp_path):
    (tmp_path / "out").mkdir()
    refused("analyze", without_cuda(tmp_path / "x.sqlite"), "-o", tmp_path / "out")
    assert (tmp_path / "out").is_dir()


def test_a_report_of_a_newer_nsys(tmp_path):
    nsys, report = tmp_path / "nsys", tmp_path / "r.nsys-rep"
    nsys.write_text(
        '#!/bin/sh\ncase $1 in --version) echo "NVIDIA Nsight Systems version 2024.2.3.38-0";;\nexport) echo "Exportation error: '
        "Report was created in Nsight Systems version (2026.2.1.210-262137639646v0), newer than "
        "your current version "
        '(2024.2.3.38-242334140272v0)." >&2; exit 1;; esac\n'
    )
    nsys.chmod(0o755)
    report.write_bytes(b"x")
    error = refused("analyze", report, "--nsys", nsys)
    assert isinstance(error, NsysError)
    assert "recorded by nsys 2026.2.1.210" in error.message and "2024.2.3.38" in error.message
    assert "--nsys PATH" in error.next_step and "space" not in error.next_step


@pytest.mark.parametrize("name", ["events-484.jsonl", "events-484.jsonl.gz"])
def test_an_event_log_is_no_trace(name, tmp_path):
    (tmp_path / name).write_bytes(b"{}")
    error = refused("analyze", tmp_path / name)
    assert "is an event log" in error.message and "--events" in error.next_step


def test_a_misspelt_option_is_no_command():
    result = CliRunner().invoke(cli, ["run", "--acurate", "x.py"])
    assert result.exit_code == 2 and "--accurate" in result.output


def test_the_hint_for_two_processes_is_the_whole_command(tmp_path):
    analysis = build()
    analysis.intervals.loc[0, "pid"] = 485
    text = printed(
        analysis,
        answer(analysis),
        tmp_path,
        again=[tmp_path / "my trace.sqlite", "--events", "a.jsonl"],
    )
    assert f"nsysalign analyze --ranks '{tmp_path}/my trace.sqlite' --events a.jsonl\n" in text
