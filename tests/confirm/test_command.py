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
from nsysalign.addons.confirm import command as module
from nsysalign.commandline.present import present
from nsysalign.engine import load
from nsysalign.errors import UsageError
from nsysalign.record import session
from nsysalign.show import html
from nsysalign.store.document import pieces

from . import runs

pytestmark = pytest.mark.usefixtures("remembered")


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """`collect` replaced by a simulated machine; `machine.calls` are the commands and variables it
    was given."""
    state = types.SimpleNamespace(
        body=runs.host_gap, calls=[], status=[0, 0, 0], folder=tmp_path / "R"
    )
    monkeypatch.chdir(tmp_path)

    def collect(command, options, progress=None):
        told = json.loads(options.environment.get("NSYSALIGN_CONFIRM", "{}"))
        state.calls.append(told)
        folder = options.output or state.folder
        assert not folder.exists()
        runs.run(folder, state.body, told.get("intervention", ""))
        status = state.status[len(state.calls) - 1]
        return session.CollectResult(folder, status, folder / "trace.sqlite", (), ())

    monkeypatch.setattr(session, "collect", collect)
    return state


@pytest.fixture
def no_page(monkeypatch):
    monkeypatch.setattr(html, "write", lambda analysis, path, *more, **named: path.write_text(""))


def confirm(*args: str, raises: type[Exception] | None = None):
    result = CliRunner().invoke(module.confirm, [*args, "s.py"])
    if raises is None and isinstance(result.exception, Exception):
        raise result.exception
    assert raises is None or isinstance(result.exception, raises)
    return result


def stored(folder: Path) -> dict:
    (one,) = json.loads((folder / "confirm.json").read_text())["confirmations"]
    return one


def test_a_run_then_one_with_the_change_and_the_verdict_everywhere(machine):
    Path("bench.py").write_text("")
    result = confirm("--label", "t1")
    told = machine.calls[1]
    assert Path(told.pop("code")).is_file()
    assert told == {
        "intervention": "delay", "label": "t1", "region": "t1", "delay_ns": 1_000_000,
        "starts": [[[str(Path.cwd() / "bench.py"), 10]]],
    }  # fmt: skip
    assert "confirmed: t1 (host-gap):" in result.output
    assert "Changed: a delay kernel of 1,000.0 us" in result.output
    one, folder = stored(machine.folder), machine.folder
    assert (one["verdict"], one["rules"], one["run"]) == (
        "confirmed", ["host-gap"], "confirm/t1-delay-1",
    )  # fmt: skip
    assert one["predicted_high_ns"] < one["before_ns"] / 3
    document = json.loads(b"".join(pieces(load(folder))))
    (finding,) = (f for f in document["findings"] if f["rule"] == "host-gap")
    assert finding["confirmation"]["verdict"] == "confirmed"
    assert document["confirmations"] == [one]
    with sqlite3.connect(folder / "analysis.db") as db:
        kept = db.execute("SELECT label, verdict, rules FROM confirmations").fetchall()
    assert kept == [("t1", "confirmed", '["host-gap"]')]
    assert '"confirmation":"confirmed: ' in (folder / "report.html").read_text()
    assert nsysalign.load(folder).confirmations["rules"].tolist() == [("host-gap",)]
    after = nsysalign.load(folder / "confirm" / "t1-delay-1")
    assert set(after.measured["flags"]) == {()}
    assert "changed by nsysalign confirm: something" in after.notes


@pytest.mark.usefixtures("no_page")
def test_from_an_earlier_run_and_again_without_overwriting(machine):
    runs.run(machine.folder, runs.host_gap)
    before = json.loads(b"".join(pieces(present(machine.folder, quiet=True))))
    assert {f["confirmation"]["verdict"] for f in before["findings"]} == {"not confirmed"}
    for number in (1, 2):
        result = confirm("--from", str(machine.folder), "--label", "t1", "--json", "-")
        assert json.loads(result.output)["confirmations"][0]["verdict"] == "confirmed"
        assert (machine.folder / "confirm" / f"t1-delay-{number}" / "analysis.db").is_file()
        assert stored(machine.folder)["run"] == f"confirm/t1-delay-{number}"
    assert len(machine.calls) == 2 and all(machine.calls)
    # a new analysis of the run directory keeps what was confirmed
    assert present(machine.folder, quiet=True).confirmations["verdict"].tolist() == ["confirmed"]


@pytest.mark.usefixtures("no_page")
def test_what_cannot_be_tested_costs_no_second_run(machine):
    machine.body = runs.synchronises
    result = confirm("--label", "t1", raises=UsageError)
    assert "t1: delay is not possible: the host synchronises inside" in result.output
    result = confirm("--from", str(machine.folder), "--label", "t2", raises=UsageError)
    assert "some labels: t1" in str(result.exception) and len(machine.calls) == 1


@pytest.mark.usefixtures("no_page")
@pytest.mark.parametrize("status", [[3], [0, 130]])
def test_a_script_that_fails(machine, status):
    machine.status = status
    result = confirm("--label", "t1")
    assert result.exit_code == (3 if len(status) == 1 else 0) and len(machine.calls) == len(status)
    if len(status) == 1:
        assert "status 3, so it is not run again" in result.output
    else:
        assert stored(machine.folder)["verdict"] == "unclear"
        assert "status 130 in the second run" in stored(machine.folder)["reason"]
