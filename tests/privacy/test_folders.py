"""Run directories that somebody sent: links in them lead nowhere, pipes never hang, labels are only
names."""

from __future__ import annotations

import gzip
import os
import shutil
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from tiny_export import write_export

from nsysalign.cli import cli
from nsysalign.engine import load
from nsysalign.errors import AnalysisError, EventLogError, NsysError, TraceError, UsageError
from nsysalign.files import write_lines
from nsysalign.trace.redaction import redact_lines

pytestmark = pytest.mark.usefixtures("remembered")

OURS = ("report.html", "analysis.db", "perfetto.json")


@pytest.fixture
def run(tmp_path, log) -> Path:
    """A run directory with a trace and its log."""
    folder = tmp_path / "run"
    folder.mkdir()
    write_export(folder / "trace.sqlite")
    shutil.move(log, folder / log.name)
    return folder


def invoke(*arguments: object):
    return CliRunner().invoke(cli, [str(a) for a in arguments])


def test_links_in_a_run_directory_are_replaced_and_never_followed(run, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in OURS:
        (outside / name).write_text("precious")
        (run / name).symlink_to(outside / name)
    before = {p.name: p.read_text() for p in outside.iterdir()}
    for arguments in (("analyze", run), ("report", run), ("export", run, "-f", "perfetto")):
        assert invoke(*arguments).exit_code == 0
    assert {p.name: p.read_text() for p in outside.iterdir()} == before
    assert not any((run / name).is_symlink() for name in OURS)
    assert len(load(run).intervals)


def test_a_file_that_is_half_written_is_no_way_out(tmp_path):
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "events-7.jsonl.partial").symlink_to(tmp_path / "precious")
    write_lines(tmp_path / "events-7.jsonl", ["line"])
    assert (tmp_path / "precious").read_text() == "precious"
    assert (tmp_path / "events-7.jsonl").read_text() == "line\n"


PIPES = (  # of those in one text, none stops the analysis before the next
    "trace.sqlite", "trace.sqlite-journal", "trace.sqlite-wal", "events-8.jsonl", "events-8.jsonl.gz", "analysis.db",
    "analysis.db-journal", "analysis.db-wal", "run.json clocks.jsonl confirm.json trace.nsys-rep baseline/events-7.jsonl",
    "raw/7-0.txt raw/7-0.clk raw/7.errors baseline/raw/7-0.txt", "raw/7-0.rec",
)  # fmt: skip


@pytest.mark.parametrize("names", PIPES)
def test_no_command_waits_for_a_pipe_in_a_folder(run, tmp_path, names):
    """Whatever file it stands for; what the answer is (most do not need the file) matters less than
    that there is one."""
    good = shutil.copytree(run, tmp_path / "good")
    commands = [["analyze", run, "-q"], ["redact", run, tmp_path / "out"]]
    if names.startswith("analysis"):  # show and export read them in the same way
        assert all(invoke("analyze", folder, "-q").exit_code == 0 for folder in (run, good))
        commands = [["report", run], ["diff", run, good]]
    for name in names.split():
        pipe = run / name
        pipe.parent.mkdir(parents=True, exist_ok=True)
        if "raw" in name:
            (run / "events-7.jsonl").unlink(missing_ok=True)
            (pipe.parent / "7-0.rec").write_bytes(bytes(256))
        pipe.unlink(missing_ok=True)
        os.mkfifo(pipe)
    before = signal.signal(signal.SIGALRM, waits)
    try:
        for command in commands:
            signal.alarm(60)
            error = invoke(*command).exception
            refused = AnalysisError | EventLogError | NsysError | TraceError | UsageError | None
            assert isinstance(error, refused), command
            if command[0] == "analyze" and (" " in names or name == "trace.sqlite-journal"):
                assert (error is None) == (" " in names), error
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def waits(*_: object) -> None:
    raise TimeoutError("it waits for ever")


def test_labels_that_look_like_paths_stay_in_the_folder(run, tmp_path):
    text = "../../../tmp/evil\x1b[31m/../x"
    with closing(sqlite3.connect(run / "trace.sqlite")) as db:
        db.execute(
            "update NVTX_EVENTS set text = ?, textId = null where eventType in (59, 60)", (text,)
        )
        db.commit()
    (run / "events-7.jsonl").unlink()
    before = sorted(p.name for p in tmp_path.iterdir())
    assert invoke("analyze", run).exit_code == 0
    names = load(run).intervals["name"].tolist()
    label = next(n for n in names if n.startswith(text))
    assert invoke("report", run, "--interval", label).exit_code == 0
    shown = invoke("export", run, "-f", "json")
    assert shown.exit_code == 0 and "\x1b" not in shown.output
    assert sorted(p.name for p in tmp_path.iterdir()) == before
    made = [p.name for p in run.iterdir()]
    assert all("/" not in n and "\x1b" not in n and not n.startswith("..") for n in made)
    assert len([n for n in made if n.startswith("report-")]) == 1


def test_a_gzipped_log_is_redacted_as_any_other(run, tmp_path):
    plain = run / "events-7.jsonl"
    packed = tmp_path / "events-7.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    redact_lines(plain, tmp_path / "a")
    redact_lines(packed, tmp_path / "b")
    assert (tmp_path / "a").read_text() == (tmp_path / "b").read_text() != ""
    packed.write_bytes(packed.read_bytes()[:-20])
    redact_lines(packed, tmp_path / "c")
    cut = (tmp_path / "c").read_text()
    assert cut.endswith("null\n"), "that its end is missing is known of the shared log as well"
    assert (tmp_path / "a").read_text().startswith(cut.removesuffix("null\n"))


def test_inputs_are_the_same_afterwards_and_on_a_disk_that_cannot_be_written(run, tmp_path):
    before = {p.name: p.read_bytes() for p in run.iterdir()}
    run.chmod(0o555)
    for path in run.iterdir():
        path.chmod(0o444)
    try:
        assert invoke("analyze", run, "-o", tmp_path / "out").exit_code == 0
        assert invoke("redact", run, tmp_path / "shared").exit_code == 0
    finally:
        run.chmod(0o755)
    assert {p.name: p.read_bytes() for p in run.iterdir()} == before
