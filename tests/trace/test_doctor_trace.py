"""`nsysalign doctor TRACE`: each thing that a trace can lack, what that costs, and what to run."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing

import pytest
from click.testing import CliRunner
from tiny_export import P, Tables, tiny

from nsysalign.cli import cli
from nsysalign.commands.doctor_trace import look_at_trace


def whole() -> Tables:
    """The tiny export with what it lacks: GPU timestamps of both records; less the graph and the
    profiler's remark."""
    tables = tiny()
    tables[P + "CUDA_EVENT"] = [
        row | {"timestamp": 50_000 + k} for k, row in enumerate(tables[P + "CUDA_EVENT"])
    ]
    del tables[P + "GRAPH_TRACE"], tables["DIAGNOSTIC_EVENT"]
    return tables


def rows_of(path) -> dict:
    rows = look_at_trace(path)
    assert all(r.cost and r.fix for r in rows if r.state != "ok"), (
        "what is not well has a cost and a fix"
    )
    return {r.what: r for r in rows}


def test_a_trace_that_has_everything(export, log):
    trace = export(whole())
    rows = rows_of(trace)
    assert {r.state for r in rows.values()} == {"ok"}, rows
    assert (
        "2 event records" in rows["runtime"].found
        and "1 elapsed_time calls" in rows["event logs"].found
    )
    done = CliRunner().invoke(cli, ["doctor", str(trace)])
    assert done.exit_code == 0 and "costs:" not in done.output


def _row(table: str, **values):
    return lambda tables: tables.setdefault(table, []).append(values)


def _no_timestamps(tables):
    for row in tables[P + "CUDA_EVENT"]:
        row["timestamp"] = None


def _wait(tables):
    tables["StringIds"].append({"id": 40, "value": "cudaStreamWaitEvent_v3020"})
    tables[P + "RUNTIME"].append(tables[P + "RUNTIME"][0] | {"nameId": 40, "correlationId": 40})


#: what is wrong -> (row, words in what was found, words in the fix)
WRONG = {
    "no timestamps": (_no_timestamps, "events", "0 of 2 records", "--accurate"),
    "no event rows": (lambda t: t.pop(P + "CUDA_EVENT"), "events", "no GPU timestamps", "--accurate"),
    "no ranges": (lambda t: t.pop("NVTX_EVENTS"), "nvtx", "no ranges", "-t cuda,nvtx"),
    "graphs as one row": (
        lambda t: t.update({P + "GRAPH_TRACE": tiny()[P + "GRAPH_TRACE"]}), "graphs", "1 executions", "--graph-trace node",
    ),
    "records lost": (
        _row("DIAGNOSTIC_EVENT", severity=2, text="Not all events might have been collected."), "losses", "Not all events", "let the script finish",
    ),
    "launches lost": (
        lambda t: t.update({P + "RUNTIME": [r for r in t[P + "RUNTIME"] if r["correlationId"] != 2]}), "kernel", "1 without their launch", "from the program's start",
    ),
    "waits unnamed": (_wait, "waits", "1 waits, none says", "nsys 2025.1"),
    "newer schema": (_row("META_DATA_EXPORT", name="EXPORT_SCHEMA_VERSION", value="9.1"), "schema", "9.1", "pip install -U"),
    "environment": (_row("META_DATA_CAPTURE", name="ENV", value="TOKEN=x"), "private", "the command line and environment", "nsysalign redact"),
    "host name": (_row("META_DATA_EXPORT", name="EXPORT_HOST", value="box"), "private", "host and user name", "nsysalign redact"),
}  # fmt: skip


@pytest.mark.parametrize("what", list(WRONG))
def test_what_a_trace_lacks_costs_something_and_has_a_fix(export, log, what):
    change, row, found, fix = WRONG[what]
    tables = whole()
    change(tables)
    rows = rows_of(export(tables))
    assert rows[row].state == "warning" and found in rows[row].found and fix in rows[row].fix, rows[
        row
    ]
    assert {name for name, r in rows.items() if r.state != "ok"} == {row}


def test_nvtx_that_did_not_fit_nsys(export, log):
    tables = whole()
    del tables["NVTX_EVENTS"]
    text = "NVTX payload extension is incompatible. Provided compatibility ID 260 != 259."
    tables["DIAGNOSTIC_EVENT"] = [{"severity": 2, "text": text}]
    assert "nvtx==0.2.11" in rows_of(export(tables))["nvtx"].fix


def test_event_logs_beside_the_trace(export, log, tmp_path):
    trace = export(whole())
    log.rename(tmp_path / "kept")
    assert "none beside" in rows_of(trace)["event logs"].found
    lines = (tmp_path / "kept").read_text().splitlines()
    log.write_text(
        lines[0].replace("1700000000", "1800000000").replace('"trace_ns": 0', '"x": 0')
        + "\n"
        + lines[1]
    )
    assert "belongs to another run" in rows_of(trace)["event logs"].found
    log.write_text("no log\n")
    assert "line 1 is not JSON" in rows_of(trace)["event logs"].found


def test_run_directories_and_reports(export, log, tmp_path):
    trace = export(whole())
    assert {r.state for r in look_at_trace(tmp_path)} == {"ok"}
    report = tmp_path / "trace.nsys-rep"
    report.write_bytes(b"x")
    os.utime(trace, (1, 1))
    row = rows_of(tmp_path)["export"]
    assert row.state == "warning" and "is older than" in row.found and "analyze" in row.fix
    os.utime(report, (0, 0))
    assert rows_of(report)["export"].state == "ok"
    trace.unlink()
    assert rows_of(tmp_path)["trace"].state == "missing", "no report at all"


def test_a_report_without_an_export_is_looked_into(export, tmp_path):
    source = export(whole()).rename(tmp_path / "kept.db")
    nsys, report = tmp_path / "nsys", tmp_path / "other.nsys-rep"
    says = 'case $1 in --version) echo "NVIDIA Nsight Systems version 2024.2.3.38-0";; export) cp'
    nsys.write_text(f'#!/bin/sh\n{says} {source} "$5";; esac\n')
    nsys.chmod(0o755)
    report.write_bytes(b"x")
    rows = {row.what: row for row in look_at_trace(report, str(nsys))}
    assert "is not exported yet" in rows["export"].found and rows["kernel"].state == "ok"
    assert sorted(p.name for p in tmp_path.glob("other*")) == ["other.nsys-rep"], (
        "nothing is left beside it"
    )


def test_what_cannot_be_read_is_one_row_and_exit_code_3(export, tmp_path):
    (tmp_path / "not.sqlite").write_text("text")
    done = CliRunner().invoke(cli, ["doctor", str(tmp_path / "not.sqlite")])
    assert (
        done.exit_code == 3 and "is not an SQLite database" in done.output and "fix:" in done.output
    )
    path = export(whole())
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"drop table {P}RUNTIME")
    rows = look_at_trace(path)
    assert len(rows) == 1 and "-t cuda,nvtx" in rows[0].fix
