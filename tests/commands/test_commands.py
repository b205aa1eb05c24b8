"""What commands read, write and return: every part of a run, no output that cannot be written, exit
codes that mean one thing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from handmade import build
from tiny_export import LOG, write_export, write_lines

import nsysalign
from nsysalign import cli as command_line
from nsysalign.addons.confirm import verdicts as confirmations
from nsysalign.cli import cli, main
from nsysalign.commandline import present
from nsysalign.errors import AnalysisError, OutputError, TraceError
from nsysalign.record import session
from nsysalign.store import database, document

pytestmark = pytest.mark.usefixtures("remembered")

VERDICT = {
    "label": "event interval", "rules": ["host-gap"], "intervention": "delay",
    "verdict": "confirmed", "reason": "as predicted", "before_ns": 9e4, "predicted_ns": 2e4,
    "predicted_low_ns": 1e4, "predicted_high_ns": 3e4, "after_ns": 2e4, "after_low_ns": 1e4, "after_high_ns": None,
    "before_count": 4, "after_count": 4, "changed": "a delay kernel", "run": "confirm/x-delay-1",
}  # fmt: skip


HELD = "SM clocks held at 1980 MHz"


@pytest.fixture
def run(tmp_path) -> Path:
    """A run directory with everything a run leaves: verdicts, conditions, the run without nsys,
    clock samples."""
    folder = tmp_path / "run"
    folder.mkdir()
    write_export(folder / "trace.sqlite")
    write_lines(folder / "events-7.jsonl", LOG)
    without = [{**LOG[0], "baseline": True, "exit_status": 0}, *LOG[1:]]
    write_lines(folder / "baseline" / "events-7.jsonl", without)
    write_lines(folder / "clocks.jsonl", [{"format": "nothing of ours"}])
    manifest = {"format": "nsysalign-run", "trace": "trace.sqlite", "conditions": [HELD]}
    (folder / "run.json").write_text(json.dumps(manifest))
    verdicts = {"format": confirmations.FORMAT, "version": 1, "confirmations": [VERDICT]}
    (folder / "confirm.json").write_text(json.dumps(verdicts))
    return folder


@pytest.fixture(scope="session")
def _stored(tmp_path_factory) -> Path:
    """A plain run directory with its results: analysed once."""
    folder = tmp_path_factory.mktemp("stored") / "run"
    folder.mkdir()
    write_export(folder / "trace.sqlite")
    write_lines(folder / "events-7.jsonl", LOG)
    assert invoke("analyze", folder, "-q").exit_code == 0
    return folder


@pytest.fixture
def stored(_stored, tmp_path) -> Path:
    """A copy of it."""
    return shutil.copytree(_stored, tmp_path / "run")


def invoke(*arguments: object):
    return CliRunner().invoke(cli, [str(a) for a in arguments])


def status_of(*arguments: object) -> int:
    """The exit status of the program: what `main` makes of an exception."""
    with pytest.raises(SystemExit) as end:
        main([str(a) for a in arguments])
    return end.value.code or 0


def said_of(analysis) -> tuple:
    noted = " ".join(analysis.notes)
    samples = "clocks.jsonl holds no clock samples" in noted
    return len(analysis.confirmations), len(analysis.baseline), HELD in noted, samples


def test_each_of_several_runs_is_analysed_with_all_that_belongs_to_it(run, tmp_path):
    shutil.copytree(run, tmp_path / "other")
    assert invoke("analyze", run, "-q", "-o", tmp_path / "alone").exit_code == 0
    alone = nsysalign.load(tmp_path / "alone")
    assert said_of(alone) == (1, 1, True, True)
    done = invoke("analyze", run, tmp_path / "other", "--jobs", 1, "-q", "-o", tmp_path / "out")
    assert done.exit_code == 0, done.output
    for name in ("run", "other"):
        assert said_of(nsysalign.load(tmp_path / "out" / name)) == said_of(alone)
    # a folder of several traces says nothing of one of them
    shutil.copy(run / "trace.sqlite", run / "rank0.sqlite")
    (run / "trace.sqlite").rename(run / "rank1.sqlite")
    assert invoke("analyze", run, "--jobs", 1, "-q", "-o", tmp_path / "ranks").exit_code == 0
    assert said_of(nsysalign.load(tmp_path / "ranks" / "rank0")) == (0, 0, False, False)


@pytest.fixture
def nsys(monkeypatch, run):
    """An nsys that notes what it was asked to export."""
    made, good = [], (run / "trace.sqlite").read_bytes()

    def export_sqlite(nsys: object, source: Path, target: Path, progress: object = None) -> Path:
        made.append(target)
        target.write_bytes(good)
        return target

    monkeypatch.setattr("nsysalign.record.nsys.find_nsys", lambda explicit=None: None)
    monkeypatch.setattr("nsysalign.record.nsys.export_sqlite", export_sqlite)
    return made


def test_a_report_is_exported_once(nsys, tmp_path):
    report, out = tmp_path / "x.nsys-rep", tmp_path / "x.nsysalign"
    report.write_bytes(b"report")
    assert invoke("analyze", report, "-q").exit_code == 0
    assert present.exported(report, out, nsys=None) == out / "x.sqlite"
    assert nsys == [out / "x.sqlite"]
    report.write_bytes(b"another report")
    os.utime(report, (1, 1))
    for _ in range(2):
        assert present.exported(report, out, nsys=None).name.startswith("x-")
    assert len(nsys) == 2


def test_a_run_says_which_export_is_its_reports_whatever_the_copys_times_are(nsys, run):
    report = run / "trace.nsys-rep"
    report.write_bytes(b"report")
    os.utime(run / "trace.sqlite", (1, 1))
    assert present.exported(report, run, nsys=None) == run / "trace.sqlite" and nsys == []
    (run / "run.json").unlink()
    assert present.exported(report, run, nsys=None) != run / "trace.sqlite" and len(nsys) == 1


def test_outputs_that_cannot_be_written_are_refused_before_the_work(stored, tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    for module, work in (
        (nsysalign.engine, "analyze_inputs"), (nsysalign.engine, "load"), (session, "collect"),
    ):  # fmt: skip
        monkeypatch.setattr(module, work, lambda *a, **k: pytest.fail("the work was done"))
    files = [("report", stored, "-o"), ("export", stored, "-o")]
    copies = [
        ("analyze", stored, "--json"),
        ("analyze", stored / "trace.sqlite", "--json"),
        ("diff", stored, stored, "--json"), ("analyze", stored, stored, "--json"),
    ]  # fmt: skip
    for target in ("absent/x.json", "folder", "file/x.json"):
        commands = [*(files if target != "folder" else ()), *copies]
        commands = [(*command, tmp_path / target) for command in commands]
        commands += [(name, "--json", tmp_path / target, "x.py") for name in ("run", "confirm")]
        for command in commands:
            done = invoke(*command)
            assert isinstance(done.exception, OutputError), command
            assert done.exception.exit_code == 3 and done.exception.next_step
    for trace in (stored, stored / "trace.sqlite"):  # a folder that cannot be made
        done = invoke("analyze", trace, "-o", tmp_path / "file" / "x")
        assert isinstance(done.exception, OutputError)


def test_exit_codes_of_what_nobody_expected(monkeypatch, capsys):
    """1 is a finding of --fail-on, and nothing else."""

    def raising(error):
        def run(*a, **k):
            raise error

        return run

    for error, status, said in (
        (OSError(28, "No space left on device", "x.json"), 3, "x.json: No space left on device"),
        (ZeroDivisionError("oops"), 70, "internal error"),
    ):
        monkeypatch.setattr(command_line.cli, "main", raising(error))
        assert status_of("demo") == status
        assert said in capsys.readouterr().err


@pytest.mark.parametrize("brief", [True, False])
def test_an_internal_error_is_json_with_brief(monkeypatch, capsys, brief):
    """Its reader reads stdout alone; the traceback is for whoever mends it."""
    monkeypatch.setattr("nsysalign.commandline.present.console", lambda: {}["gone"])
    assert status_of("demo", *["--brief"] * brief) == 70
    printed = capsys.readouterr()
    assert "Traceback" in printed.err and "internal error" in printed.err
    if not brief:
        return
    answer = json.loads(printed.out.splitlines()[-1])
    assert (answer["verdict"], answer["command"]) == ("error", "demo") and answer["next"]
    assert "KeyError: 'gone'" in answer["sentence"]


def test_a_missing_label_of_a_library_fails_no_build(tmp_path):
    database.write(build(), tmp_path / "a.db")  # do_bench is a library's
    case = [("t1", "event", "puzzle.py:14", False, [[("kernel", 1_000, "gemm")]])]
    database.write(
        build([*case, ("t2", *case[0][1:]), ("replay", *case[0][1:])]), tmp_path / "b.db"
    )
    command = ("diff", tmp_path / "a.db", tmp_path / "b.db", "--fail-on", "missing")
    assert invoke(*command).exit_code == 0
    database.write(build(case), tmp_path / "b.db")
    assert invoke(*command).exit_code == 1


def test_runs_with_no_label_in_common_pass_no_gate(tmp_path):
    database.write(build(), tmp_path / "a.db")
    other = [("other", "event", "other.py:1", False, [[("kernel", 1_000, "gemm")]])]
    database.write(build(other), tmp_path / "b.db")
    pair = (tmp_path / "a.db", tmp_path / "b.db")
    assert invoke("diff", *pair).exit_code == 0
    assert invoke("diff", *pair, "--fail-on", "slower").exit_code == 3
    assert invoke("diff", *pair, "--fail-on", "missing").exit_code == 1


def test_what_is_known_beside_the_tables_is_refused_if_edited(tmp_path):
    for name in ("a.db", "b.db"):
        database.write(build(), tmp_path / name)
    for edited in (None, [1], 3, {"idle": 3}, {"idle": [3]}, {"torch": 3}, {"more": ""}):
        with closing(sqlite3.connect(tmp_path / "b.db")) as db:
            db.execute("update meta set value = ? where key = 'known'", (json.dumps(edited),))
            db.commit()
        done = invoke("diff", tmp_path / "a.db", tmp_path / "b.db")
        assert isinstance(done.exception, AnalysisError), edited


def test_a_run_directory_brings_what_belongs_to_it(run):
    """Python and the command put the same run together: logs, the run without nsys, verdicts,
    conditions."""
    assert invoke("analyze", run, "-q").exit_code == 0
    found, stored = nsysalign.analyze(run), nsysalign.load(run)
    assert [*document.pieces(found)] == [*document.pieces(stored)]
    assert len(found.baseline) == 1 and found.notes


def test_a_folder_without_a_trace_or_without_its_export_says_so(run):
    (run / "trace.nsys-rep").write_bytes(b"report")
    (run / "trace.sqlite").unlink()
    with pytest.raises(TraceError, match="not exported yet") as error:
        nsysalign.analyze(run)
    assert f"nsysalign analyze {run}" in error.value.next_step
    (run / "trace.nsys-rep").unlink()
    with pytest.raises(TraceError, match="holds one trace"):
        nsysalign.analyze(run)


def test_a_file_of_a_run_means_the_run(stored):
    """`show RUN/analysis.db` finds the trace that lies beside it, as `show RUN` does."""
    run = stored
    for what in (run, run / "analysis.db"):
        page = run / "page.html"
        name = nsysalign.load(run).measured["name"].iloc[0]
        done = invoke("report", what, "--interval", name, "-o", page)
        assert done.exit_code == 0 and "no trace beside" not in done.output, what
        page.unlink()


def test_a_system_without_what_only_unix_has(run, tmp_path):
    """README: analysing works on any system with Python."""
    code = (
        "import json, sys, signal, os\n"
        "os.supports_dir_fd.clear()\n"  # before shutil looks into it
        "sys.modules.pop('shutil', None)\n"
        "for name in ('fcntl', 'pwd', 'grp', 'resource', 'termios', 'tty', 'pty'): "
        "sys.modules[name] = None\n"
        "for name in ('SIGHUP', 'SIGKILL', 'SIGUSR1', 'SIGQUIT', 'SIGCHLD', 'SIGPIPE', "
        "'pthread_sigmask'):\n"
        "    hasattr(signal, name) and delattr(signal, name)\n"
        "for name in ('fork', 'killpg', 'setsid', 'getuid', 'geteuid', 'getpgid', 'O_NONBLOCK', "
        "'sched_getaffinity', 'mkfifo'):\n"
        "    hasattr(os, name) and delattr(os, name)\n"
        "from nsysalign.cli import main\n"
        "for command in json.loads(sys.argv[1]):\n"
        "    try: main(command)\n"
        "    except SystemExit as end: assert not end.code, command\n"
    )
    commands = (
        ("analyze", run), ("show", run), ("report", run), ("diff", run, run), ("export", run),
        ("redact", run, tmp_path / "shared"), ("analyze", "--ranks", run, "--jobs", "1", "-o", tmp_path / "ranks"),
    )  # fmt: skip
    words = json.dumps([[str(word) for word in command] for command in commands])
    done = subprocess.run([sys.executable, "-c", code, words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-600:]


def test_a_ctrl_c_while_modules_are_loaded_shows_no_traceback(tmp_path):
    """From the first line of ours on: here while `nsysalign.cli` is imported."""
    (tmp_path / "sitecustomize.py").write_text("""
import os, signal, sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "nsysalign.cli":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
""")
    command = [sys.executable, "-m", "nsysalign", "--help"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
