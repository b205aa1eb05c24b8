"""What was asked for changes the answer, or is refused: nothing is ignored in silence."""

from __future__ import annotations

import errno
import json
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from handmade import build

from nsysalign import untrusted
from nsysalign.cli import cli
from nsysalign.commands import doctor
from nsysalign.errors import Interrupted, NsysError, UsageError
from nsysalign.store import database
from tests.trace.tiny_export import write_export

pytestmark = pytest.mark.usefixtures("remembered")


def invoked(*arguments: object):
    return CliRunner().invoke(cli, [str(a) for a in arguments])


@pytest.fixture
def stored(tmp_path) -> Path:
    path = tmp_path / "stored"
    path.mkdir()
    database.write(build(), path / "analysis.db")
    return path


#: Options of commands with --brief that choose what is shown.
CHOOSING = [
    ("show", "--label", "t2"), ("show", "--interval", "t1#2"), ("show", "--label", "no such label"), ("show", "--interval", "t1#99"),
    ("show", "--all"), ("show", "--markdown"), ("analyze", "--kernels"), ("analyze", "-v"), ("diff", "--fail-on", "missing"), ("diff", "--threshold", "101"),
    ("demo", "--kernels"), ("demo", "-v"),
]  # fmt: skip


@pytest.mark.parametrize("asked", CHOOSING, ids=" ".join)
def test_with_brief_every_choice_changes_the_answer_or_is_refused(asked, stored, tmp_path):
    command, *options = asked
    other = tmp_path / "other"
    other.mkdir()
    database.write(build(build_without_t2()), other / "analysis.db")
    paths = {"show": [stored], "analyze": [stored], "diff": [stored, other], "demo": []}[command]
    output = ["-o", tmp_path / "demo"] if command == "demo" else []
    asked_for = invoked(command, *paths, "--brief", *options, *output)
    if asked_for.exit_code == 0:
        plain = invoked(command, *paths, "--brief", *output)
        assert json.loads(plain.stdout) != json.loads(asked_for.stdout)
    else:
        assert asked_for.exception is not None


#: Options that with --brief still say what is recorded, read or written: not what is shown of it.
RECORDED = {
    "--nsys", "--output", "--accurate", "--no-calibrate", "--graph-trace", "--timeout", "--lock-clocks", "--no-clocks",
    "--no-host-timers", "--sample-python", "--no-nsys", "--recorder", "--baseline", "--untraced", "--marks", "--batch", "--mode", "--processes",
    "--budget", "--clocks", "--backend",
}  # fmt: skip
READ_OR_WRITTEN = {
    "--events",
    "--ranks",
    "--json",
    "--all-segments",
    "--jobs",
    "--dask",
    "--quiet",
    "--brief",
}
#: Tested elsewhere: the gates' statuses (test_commands.py, compare), here `--anyway`.
GATES = {"--fail-on", "--anyway"}
#: Other views, of which a command shows one.
VIEWS = {"--verbose", "--kernels"}


def commands_with_brief() -> dict[str, list[str]]:
    context = click.Context(cli)
    commands = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    options = {
        name: [p.opts[-1] for p in command.params if isinstance(p, click.Option)]
        for name, command in commands.items()
    }
    return {name: known for name, known in options.items() if "--brief" in known}


@pytest.mark.parametrize("command", commands_with_brief())
def test_of_every_option_it_is_known_what_it_does_to_brief(command):
    tried = {option for name, option, *_ in CHOOSING if name == command}
    known = RECORDED | READ_OR_WRITTEN | GATES | VIEWS | tried
    assert set(commands_with_brief()[command]) <= known


@pytest.mark.parametrize(
    ("command", "view"),
    [(c, v) for c, options in commands_with_brief().items() for v in sorted(VIEWS & {*options})],
)
def test_two_views_are_refused_before_anything_is_done(command, view, tmp_path):
    place = [] if command == "demo" else [tmp_path / "no such thing.py"]
    result = invoked(command, "--brief", view, *place)
    assert result.exit_code == 2 and "printed at a time" in result.output
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "option", [["--accurate"], ["--recorder", "cupti"], ["--timeout", "3"], ["-o", "elsewhere"]]
)
def test_check_of_a_recording_refuses_what_says_how_to_record(option, stored):
    result = invoked("check", *option, stored)
    assert result.exit_code == 2 and "recorded already" in result.output


def build_without_t2():
    from handmade import CASES

    return [case for case in CASES if case[0] != "t2"]


def test_brief_of_an_interval_is_that_interval(stored):
    answer = json.loads(invoked("show", stored, "--brief", "--interval", "t1#2").stdout)
    assert answer["command"] == "show" and answer["sentence"].startswith("t1#2 takes")
    assert answer["verdict"] == "gpu_bound" and "--interval 't1#2'" in answer["next"]


def test_a_diff_that_judged_nothing_is_no_success(stored, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    analysis = build()
    database.write(
        replace(analysis, trace=replace(analysis.trace, devices=("another GPU",))),
        other / "analysis.db",
    )
    assert invoked("diff", stored, stored, "--brief").exit_code == 0
    assert invoked("diff", stored, other, "--brief").exit_code == 3
    assert invoked("diff", stored, other, "--brief", "--anyway").exit_code == 0


def test_the_scripts_own_options_before_it_are_put_behind_it():
    error = invoked("run", "--epochs", "3", "x.py", "--lr", "1").exception
    assert isinstance(error, UsageError)
    assert error.next_step == "nsysalign run x.py --epochs 3 --lr 1"


def test_doctor_without_nsys_does_not_say_that_nothing_can_be_recorded(monkeypatch):
    def absent(explicit):
        raise NsysError("there is no nsys", "install it")

    monkeypatch.setattr("nsysalign.record.nsys.find_nsys", absent)
    (row,) = (row for row in doctor.look_at_machine({}) if row.subject == "nsys")
    assert row.state in (doctor.MISSING, doctor.WARNING) and row.cost and "nothing" not in row.cost


def test_ctrl_c_in_an_analysis_says_how_to_start_it_again(tmp_path, monkeypatch):
    def interrupted(*_args, **_more):
        raise KeyboardInterrupt

    trace = write_export(tmp_path / "t.sqlite")
    monkeypatch.setattr("nsysalign.engine.analyze_inputs", interrupted)
    error = invoked("analyze", trace).exception
    assert isinstance(error, Interrupted) and error.next_step == f"nsysalign analyze {trace}"


def test_what_could_not_be_written_is_not_printed_as_written(tmp_path, monkeypatch):
    def full(*_args, **_more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("nsysalign.store.database.write", full)
    result = invoked("analyze", write_export(tmp_path / "t.sqlite"))
    assert isinstance(result.exception, OSError) and "report.html" not in result.stdout


def test_a_copy_for_which_there_is_no_room_is_no_damaged_trace(tmp_path, monkeypatch):
    @contextmanager
    def in_little_room(*arguments, copying=untrusted.copying):
        with copying(*arguments) as db:
            db.set_authorizer(None)
            db.execute("pragma main.max_page_count = 3")
            yield db

    monkeypatch.setattr(untrusted, "copying", in_little_room)
    trace = write_export(tmp_path / "t.sqlite")
    error = invoked("redact", trace, tmp_path / "copy.sqlite").exception
    assert isinstance(error, OSError) and error.errno == errno.ENOSPC
    assert {*tmp_path.iterdir()} == {trace}


@pytest.mark.parametrize(("script", "status", "said"), [
    ("print(1)", 0, "recorded no CUDA event: "), ("def (", 1, "ended with status 1"),
])  # fmt: skip
def test_a_run_without_nsys_says_that_nothing_of_cuda_happened(script, status, said, tmp_path):
    (tmp_path / "x.py").write_text(script)
    command = ["run", "--no-nsys", "--no-clocks", "-o", tmp_path / "run", tmp_path / "x.py"]
    result = invoked(*command)
    assert result.exit_code == status and said in result.stderr
    assert said not in invoked(*command[:4], tmp_path / "quiet", "-q", command[-1]).stderr
