"""Doctor: rows with a cost and a fix, for machines and for traces."""

from __future__ import annotations

import sqlite3

from click.testing import CliRunner

from nsysalign.collect.nsys import Nsys
from nsysalign.commands import doctor


def test_what_is_missing_has_a_cost_and_a_fix(tmp_path):
    rows = doctor.look_at_machine(
        {"PATH": "/nonexistent", "NSYS_PROFILING_SESSION_ID": "1"}, "/nonexistent/nsys"
    )
    states = {r.what: r for r in rows}
    assert states["nsys"].state == "missing" and "/nonexistent/nsys" in states["nsys"].found
    assert states["session"].state == "missing" and states["python"].state == "ok"
    assert all(r.cost and r.fix for r in rows if r.state != "ok")


def test_nvtx_that_does_not_fit_nsys_is_told(monkeypatch):
    from importlib import metadata

    monkeypatch.setattr(metadata, "version", lambda name: "0.2.17")
    old = Nsys("x", "2024.2.3.38", frozenset())
    new = Nsys("x", "2025.3.1", frozenset({"cuda-event-trace"}))
    assert doctor._nvtx(old).state == "warning" and doctor._nvtx(new).state == "ok"
    assert doctor._event_trace(old).state == "warning" and doctor._event_trace(new).state == "ok"
    monkeypatch.setattr(metadata, "version", lambda name: "0.2.11")
    assert doctor._nvtx(old).state == "ok"


def test_a_trace_is_looked_at(tmp_path):
    path = tmp_path / "trace.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER)")
        db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1)")
    db.close()
    rows = {r.what: r for r in doctor.look_at_trace(tmp_path)}
    assert rows["runtime"].state == "ok" and rows["kernel"].state == "warning"
    assert rows["event logs"].state == "warning"
    result = CliRunner().invoke(doctor.doctor, [str(path)])
    assert result.exit_code == 0 and "fix:" in result.output
    (tmp_path / "not.sqlite").write_text("text")
    assert CliRunner().invoke(doctor.doctor, [str(tmp_path / "not.sqlite")]).exit_code == 3


def test_the_command_prints_every_row():
    result = CliRunner().invoke(doctor.doctor, [])
    assert result.exit_code in (0, 3) and "python" in result.output and "nsys" in result.output
