"""What is refused says what it is and what to do, and leaves nothing behind."""

from __future__ import annotations

import json
import shlex
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from handmade import build
from tiny_export import LOG, write_export, write_lines

import nsysalign
from nsysalign.answer import answer
from nsysalign.cli import cli
from nsysalign.commandline.present import printed
from nsysalign.errors import NsysError, TraceError

pytestmark = pytest.mark.usefixtures("remembered")


def invoked(*arguments: object):
    return CliRunner().invoke(cli, [str(a) for a in arguments])


def refused(*arguments: object) -> Exception:
    result = invoked(*arguments)
    assert result.exit_code and result.exception is not None
    return result.exception


def without_cuda(path: Path) -> Path:
    with closing(sqlite3.connect(path)) as db:
        db.execute("create table StringIds (id integer primary key, value text)")
        db.execute("create table DIAGNOSTIC_EVENT (severity integer, text text)")
        said = "Installed CUDA driver version (13.1) is not supported by this build."
        rows = [(2, said), (2, "Number of IP samples"), (1, "CUDA ok")]
        db.executemany("insert into DIAGNOSTIC_EVENT values (?, ?)", rows)
        db.commit()
    return path


def test_the_profilers_own_diagnosis_is_passed_on_and_no_folder_is_left(tmp_path):
    error = refused("analyze", without_cuda(tmp_path / "x.sqlite"))
    assert isinstance(error, TraceError)
    assert "nsys says: Installed CUDA driver version (13.1) is not supported" in error.message
    assert "IP samples" not in error.message and "CUDA ok" not in error.message
    assert [p.name for p in tmp_path.iterdir()] == ["x.sqlite"]


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


@pytest.mark.parametrize(
    ("name", "said", "instead"),
    [
        ("events-484.jsonl", "is an event log", "nsysalign analyze TRACE.sqlite --events {}"),
        ("events-484.jsonl.gz", "is an event log", "nsysalign analyze TRACE.sqlite --events {}"),
        ("ok.py", "is a program", "nsysalign run {}"),
    ],
)
def test_what_is_no_trace_says_what_it_is(name, said, instead, tmp_path):
    log = b'{"type":"header","format":"nsysalign-events","version":1,"pid":7}\n'
    (tmp_path / name).write_bytes(b"import torch\n" if name.endswith(".py") else log)
    error = refused("analyze", tmp_path / name)
    assert said in error.message and error.next_step == instead.format(tmp_path / name)


def test_a_misspelt_option_is_no_command():
    result = invoked("run", "--acurate", "x.py")
    assert result.exit_code == 2 and "--accurate" in result.output


def test_the_hint_for_two_processes_is_the_whole_command(tmp_path):
    analysis = build()
    analysis.intervals.loc[0, "pid"] = 485
    again = [tmp_path / "my trace.sqlite", "--events", "a.jsonl"]
    text = printed(analysis, answer(analysis), tmp_path, again=again)
    command = f"nsysalign analyze --ranks '{tmp_path}/my trace.sqlite' --events a.jsonl"
    assert command in " ".join(text.replace("\\\n", " ").split())


@pytest.fixture
def run(tmp_path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    write_export(folder / "trace.sqlite")
    write_lines(folder / "events-7.jsonl", LOG)
    return folder


def test_a_log_beside_a_trace_is_not_left_out_in_silence(run, tmp_path):
    done = invoked("analyze", run / "trace.sqlite", "-o", tmp_path / "out")
    assert "note: events-7.jsonl beside it is not read" in done.stderr
    assert f"nsysalign analyze {run}" in done.stderr
    given = invoked("analyze", run / "trace.sqlite", "--events", run / "events-7.jsonl", "-o", tmp_path / "out")  # fmt: skip
    assert given.exit_code == 0 and "is not read" not in given.stderr


def test_check_takes_its_options_behind_a_recording(run):
    trace, log = run / "trace.sqlite", run / "events-7.jsonl"
    before, behind = (
        invoked("check", "--events", log, trace),
        invoked("check", trace, "--events", log),
    )
    assert before.stdout == behind.stdout and before.exit_code == behind.exit_code != 2
    assert invoked("check", trace, run).exit_code == 2


@pytest.mark.parametrize(("recorded", "said"), [(True, "until then was analysed"), (False, "was not analysed")])  # fmt: skip
def test_a_script_that_failed_is_one_line(run, tmp_path, capsys, recorded, said):
    """ "What was recorded is analysed", "not analysed" and a reason contradicted each other."""
    from nsysalign.commandline.present import finish

    (tmp_path / "empty").mkdir()
    folder = run if recorded else tmp_path / "empty"
    finish(folder, exit_status=5, quiet=False, json_out=None)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("the script ended with status 5") and said in line


@pytest.mark.parametrize(
    ("written", "status"), [('{"exit_status": 143}', 143), ('{"exit_status": "1"}', 0), ("[", 0)]
)
def test_an_analysis_knows_how_the_script_ended(run, written, status):
    (run / "run.json").write_text(written)
    done = invoked("analyze", run)
    assert nsysalign.load(run).known.exit_status == status
    assert ("SIGTERM" in done.output) == (status == 143)


def test_brief_of_all_commands_is_valid(run, tmp_path, monkeypatch):
    """One line, at most 2,000 bytes, by the schema; its next command runs."""
    monkeypatch.chdir(tmp_path)
    assert invoked("analyze", run, "-q").exit_code == 0
    schema = Path(__file__).resolve().parents[2] / "docs" / "answer.schema.json"
    first, other = json.loads(schema.read_text("utf-8"))["oneOf"]
    bare = tmp_path / "bare"
    bare.mkdir()
    write_lines(bare / "events-7.jsonl", LOG)
    (bare / "run.json").write_text('{"format": "nsysalign-run", "version": 1, "trace": null}')
    for arguments, kind in (
        (["analyze", run], first), (["show", run], first), (["show", bare], first),
        (["check", run], other), (["diff", run, run], other),
    ):  # fmt: skip
        done = invoked(*arguments, "--brief")
        (line,) = done.stdout.splitlines()
        said = json.loads(line)
        assert len(line.encode()) <= 2_000 and set(said) == set(kind["required"])
        assert said["verdict"] in kind["properties"]["verdict"]["enum"]
        assert said["command"] == arguments[0]
        after = invoked(*shlex.split(said["next"])[1:])
        assert after.exit_code == 0, said["next"]


def test_the_run_directory_keeps_the_answer(run):
    invoked("analyze", run, "-q")
    kept = json.loads((run / "answer.json").read_text("utf-8"))
    assert kept["format"] == "nsysalign-answer" and kept["version"] == 4
    assert kept["sentence"] == answer(nsysalign.load(run)).sentence
    row = next(row for row in kept["labels"] if row["label"] == kept["proof"]["label"])
    assert sum(row["parts_ns"].values()) == kept["proof"]["elapsed_ns"]
    assert invoked("diff", run, run, "--json", run / "answer.json").exit_code != 0
