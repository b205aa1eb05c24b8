"""`nsysalign confirm`: what runs, in which order, with which change, and what is stored and
said."""

from __future__ import annotations

import json
import sqlite3
import types
from pathlib import Path

import pytest
from click.testing import CliRunner

import nsysalign
from nsysalign.addons.confirm.command import confirm
from nsysalign.engine import load
from nsysalign.errors import AnalysisError, NsysAlignError, UsageError
from nsysalign.record import session
from nsysalign.show import html
from nsysalign.store.document import dumps

from . import runs


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """`collect` replaced by a simulated machine; `machine.calls` are the commands and variables it
    was given."""
    state = types.SimpleNamespace(
        body=runs.host_gap, after=None, page=False, pairs=(), calls=[], status=[0, 0, 0],
        folder=tmp_path / "R",
    )  # fmt: skip
    monkeypatch.chdir(tmp_path)

    def collect(command, options, progress=None):
        given = options.environment.get("NSYSALIGN_CONFIRM")
        told = json.loads(given) if given else {}
        state.calls.append((list(command), told))
        folder = options.output or state.folder
        assert not folder.exists()
        body = (state.after or state.body) if told else state.body
        runs.run(folder, body, told.get("intervention", ""), pairs=state.pairs)
        return session.CollectResult(
            folder, state.status[len(state.calls) - 1], folder / "trace.sqlite", (), ()
        )

    def page(analysis, path, *focus, **more):  # 5 MB each: only where a test looks at it
        return (
            whole_page(analysis, path, *focus, **more) if state.page else path.write_text("a page")
        )

    whole_page = html.write
    monkeypatch.setattr(html, "write", page)
    monkeypatch.setattr(session, "collect", collect)
    return state


def invoke(command, *args: str):
    result = CliRunner().invoke(command, list(args))
    if result.exception and not isinstance(result.exception, SystemExit | NsysAlignError):
        raise result.exception
    return result


def test_a_run_then_one_with_the_change_and_the_verdict_everywhere(machine):
    Path("bench.py").write_text("")
    machine.page = True
    result = invoke(confirm, "--label", "t1", "s.py")
    told = machine.calls[1][1]
    assert Path(told.pop("code")).is_file()
    assert told == {
        "intervention": "delay", "label": "t1", "region": "t1", "delay_ns": 1_000_000,
        "starts": [[str(Path.cwd() / "bench.py"), 10, []]],
    }  # fmt: skip
    assert "confirmed: t1 (host-gap):" in result.output
    assert "Changed: a delay kernel of 1,000.0 us" in result.output
    stored = json.loads((machine.folder / "confirm.json").read_text())
    (one,) = stored["confirmations"]
    assert (stored["format"], stored["version"]) == ("nsysalign-confirm", 1)
    told = one["verdict"], one["rules"], one["run"]
    assert told == ("confirmed", ["host-gap"], "confirm/t1-delay-1")
    low, high = one["predicted_low_ns"], one["predicted_high_ns"]
    assert low <= one["after_ns"] <= high < one["before_ns"] / 3
    document = json.loads(dumps(load(machine.folder)))
    (finding,) = (f for f in document["findings"] if f["rule"] == "host-gap")
    assert finding["confirmation"]["verdict"] == "confirmed"
    assert document["confirmations"] == stored["confirmations"]
    with sqlite3.connect(machine.folder / "analysis.db") as db:
        kept = db.execute("SELECT label, verdict, rules FROM confirmations").fetchall()
    assert kept == [("t1", "confirmed", '["host-gap"]')]
    page = (machine.folder / "report.html").read_text()
    assert '"confirmation":"confirmed: ' in page
    again = nsysalign.load(machine.folder)
    assert again.confirmations["rules"].tolist() == [("host-gap",)]
    for path in (machine.folder / "analysis.db", machine.folder / "confirm" / "t1-delay-1"):
        assert len(nsysalign.load(path).measured) == runs.COUNT
    after = nsysalign.load(machine.folder / "confirm" / "t1-delay-1")
    assert set(after.measured["flags"]) == {("intervened",)}
    assert "changed by nsysalign confirm: something" in after.notes


def test_from_an_earlier_run_and_again_without_overwriting(machine):
    runs.run(machine.folder, runs.host_gap)
    for number in (1, 2):
        result = invoke(confirm, "--from", str(machine.folder), "--label", "t1", "-q", "s.py")
        assert result.exit_code == 0, result.output
        assert (machine.folder / "confirm" / f"t1-delay-{number}" / "analysis.db").is_file()
        (one,) = json.loads((machine.folder / "confirm.json").read_text())["confirmations"]
        assert one["run"] == f"confirm/t1-delay-{number}"
    assert len(machine.calls) == 2 and all(told for _, told in machine.calls)
    # a new analysis of the run directory keeps what was confirmed
    from nsysalign.commandline.present import present

    assert present(machine.folder, quiet=True).confirmations["verdict"].tolist() == ["confirmed"]


def test_a_refusal_costs_no_second_run(machine):
    machine.body = runs.synchronises
    result = invoke(confirm, "--label", "t1", "--intervention", "delay", "s.py")
    assert len(machine.calls) == 1 and isinstance(result.exception, UsageError)
    assert "t1: delay is not possible: the host synchronises inside" in result.output


def test_a_label_that_is_not_there(machine):
    result = invoke(confirm, "--label", "t2", "s.py")
    assert isinstance(result.exception, UsageError) and "some labels: t1" in str(result.exception)


def test_a_script_that_fails(machine):
    machine.status = [3, 0]
    result = invoke(confirm, "--label", "t1", "s.py")
    assert result.exit_code == 3 and len(machine.calls) == 1
    assert "status 3, so it is not run again" in result.output
    machine.calls, machine.folder = [], machine.folder.with_name("R2")
    machine.status = [0, 3]
    assert invoke(confirm, "--label", "t1", "s.py").exit_code == 0
    (one,) = json.loads((machine.folder / "confirm.json").read_text())["confirmations"]
    assert one["verdict"] == "unclear" and "status 3 in the second run" in one["reason"]


def test_json_on_stdout_is_only_that(machine):
    result = invoke(confirm, "--label", "t1", "--json", "-", "s.py")
    assert json.loads(result.output)["confirmations"][0]["verdict"] == "confirmed"


def test_more_labels_than_are_worth_a_run_each_are_said(machine, monkeypatch):
    from nsysalign.addons.confirm import command as module

    monkeypatch.setattr(module, "MOST_LABELS", 1)
    machine.body, machine.pairs = runs.two_gaps, (("a", "b", "t1"), ("c", "d", "t2"))
    result = invoke(confirm, "s.py")
    tested = machine.calls[1][1]["label"]
    assert len(machine.calls) == 2 and f"own: {({'t1', 't2'} - {tested}).pop()} (" in result.output


def test_a_second_label_is_not_tried_after_a_failure(machine):
    machine.body, machine.pairs = runs.two_gaps, (("a", "b", "t1"), ("c", "d", "t2"))
    assert invoke(confirm, "s.py").exit_code == 0 and len(machine.calls) == 3
    machine.calls, machine.folder, machine.status = [], machine.folder.with_name("R2"), [0, 130, 0]
    assert invoke(confirm, "s.py").exit_code == 0 and len(machine.calls) == 2


def test_what_was_set_up_around_the_run_is_in_the_report(machine):
    runs.run(machine.folder, runs.host_gap)
    (machine.folder / "run.json").write_text(
        '{"conditions": ["SM clocks were locked at 1500 MHz"]}'
    )
    from nsysalign.commandline.present import present

    assert present(machine.folder, quiet=True).notes[0] == "SM clocks were locked at 1500 MHz"


def test_nothing_is_confirmed_that_was_not_tested(machine):
    runs.run(machine.folder, runs.host_gap)
    from nsysalign.commandline.present import present

    present(machine.folder, quiet=True)
    document = json.loads(dumps(load(machine.folder)))
    assert {f["confirmation"]["verdict"] for f in document["findings"]} == {"not confirmed"}


def test_a_damaged_confirm_json_is_said(machine):
    runs.run(machine.folder, runs.host_gap)
    (machine.folder / "confirm.json").write_text('{"format":"other"}')
    result = invoke(confirm, "--from", str(machine.folder), "--label", "t1", "s.py")
    assert isinstance(result.exception, AnalysisError) and "confirm.json" in str(result.exception)
