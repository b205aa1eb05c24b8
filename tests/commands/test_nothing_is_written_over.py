"""Nothing of a run, no input and no file that we did not make is ever written over; what we made
is, again and again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from tiny_export import LOG, write_export, write_lines

from nsysalign.cli import cli
from nsysalign.errors import OutputError, UsageError

pytestmark = pytest.mark.usefixtures("remembered")


def invoke(*arguments: object):
    return CliRunner().invoke(cli, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def analysed(tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("made") / "run"
    run.mkdir()
    write_export(run / "trace.sqlite")
    write_lines(run / "events-7.jsonl", LOG)
    write_lines(run / "clocks.jsonl", [{"format": "nsysalign-clocks"}])
    (run / "run.json").write_text('{"format": "nsysalign-run"}')
    (run / "notes.html").write_text("<!DOCTYPE html>\n<title>mine, of nsys</title>")
    (run / "notes.txt").write_text("mine")
    assert invoke("analyze", run, "-q").exit_code == 0
    return run


@pytest.fixture
def run(analysed, tmp_path) -> Path:
    return Path(shutil.copytree(analysed, tmp_path / "run"))


@pytest.mark.parametrize(
    "name",
    ["trace.sqlite", "events-7.jsonl", "clocks.jsonl", "run.json", "analysis.db",
     "notes.html", "notes.txt"],
)  # fmt: skip
def test_no_command_writes_over_it(run, name):
    before = {p.name: p.read_bytes() for p in run.iterdir()}
    out, trace = run / name, run / "trace.sqlite"
    for command in (
        ("report", run, "-o", out), ("export", run, "-o", out), ("export", run, "-f", "json", "-o", out),
        ("analyze", trace, "--json", out), ("analyze", run, "--json", out),
        ("diff", run, run, "--json", out), ("diff", run, run, "-o", out), ("redact", trace, out),
        ("analyze", "--ranks", run, "--json", out),
    ):  # fmt: skip
        error = invoke(*command).exception
        assert isinstance(error, OutputError | UsageError), command
        assert error.next_step or "another name" in error.message, command
        assert {p.name: p.read_bytes() for p in run.iterdir()} == before, command


def test_a_folder_with_files_of_the_users_own(run):
    (run / "report.html").write_text("mine")
    for command in (
        ("analyze", run / "trace.sqlite", "-o", run),
        ("report", run),
    ):
        assert isinstance(invoke(*command).exception, OutputError), command
    assert (run / "report.html").read_text() == "mine"


def test_what_we_made_is_made_again(run, tmp_path):
    for _ in range(2):
        for command in (
            ("analyze", run, "-q"), ("report", run), ("report", run, "-o", tmp_path / "p.html"),
            ("analyze", run, "-q", "-o", tmp_path / "out", "--json", tmp_path / "analysis.json"),
            ("export", run), ("export", run, "-o", tmp_path / "p.json.gz"), ("export", run, "-f", "json"),
            ("diff", run, run, "--json", tmp_path / "d.json", "-o", tmp_path / "d.html"),
        ):  # fmt: skip
            done = invoke(*command)
            assert done.exit_code == 0, (command, done.exception)
    (tmp_path / "empty").write_text("")  # as mktemp makes it
    assert invoke("analyze", run, "-q", "--json", tmp_path / "empty").exit_code == 0
    assert invoke("analyze", run, "-q", "--json", "/dev/null").exit_code == 0


def test_a_link_is_replaced_and_what_it_leads_to_stays(run, tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "link.json").symlink_to(tmp_path / "mine")
    assert invoke("analyze", run, "-q", "--json", tmp_path / "link.json").exit_code == 0
    assert (tmp_path / "mine").read_text() == "mine"
