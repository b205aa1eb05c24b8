"""What a path is, by its contents; every command says what it was given, and what to do with it."""

from __future__ import annotations

import gzip
import json
import pickle
import sqlite3
from contextlib import closing

import pytest
from click.testing import CliRunner
from handmade import build
from tiny_export import LOG, write_export, write_lines

from nsysalign.cli import cli
from nsysalign.errors import NsysAlignError
from nsysalign.inputkind import InputKind
from nsysalign.pathkind import kind_of
from nsysalign.store import database


def chrome(**about: object) -> bytes:
    return json.dumps(
        {**about, "traceEvents": [{"ph": "X", "ts": 1, "dur": 2, "pid": 1, "tid": 1}]}
    ).encode()


#: kind -> contents.
FILES = {
    InputKind.TORCH_PROFILER: chrome(schemaVersion=1, deviceProperties=[]),
    InputKind.CHROME: chrome(displayTimeUnit="ms"),
    InputKind.AMD: chrome(otherData={"tool": "rocprofv3"}),
    InputKind.SNAPSHOT: pickle.dumps({"segments": [], "device_traces": []}),
    InputKind.PICKLE: pickle.dumps([1, 2]),
    InputKind.NCU: b"NVR\0\1\0\0\0",
    InputKind.PERFETTO: b"\x0a\x12\x08\x00\x50\x01\x00",
    InputKind.CUT_REPORT: b"NVIDIA Tegra Profiler Report 2025" + bytes(500),
    InputKind.REPORT: b"NVIDIA Tegra Profiler Report 2025" + bytes(500) + b"[END]",
    InputKind.HTML: b"<!DOCTYPE html><html></html>",
    InputKind.EVENT_LOG: json.dumps(LOG[0]).encode() + b"\n",
    InputKind.OURS: b'{"format": "nsysalign-answer", "version": 2}',
    InputKind.EXECUTION: b'{"schema": "1.1.0-chakra.0.0.4", "pid": 7, "nodes": []}',
    InputKind.POINTER: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
    InputKind.ARCHIVE: b"PK\3\4....",
    InputKind.EMPTY: b"",
    InputKind.JSON: b'{"a": 1}',
    InputKind.TEXT: b"Time (%),Total Time (ns)\n",
}


def invoked(*arguments: object):
    return CliRunner().invoke(cli, [str(a) for a in arguments])


@pytest.mark.parametrize("kind", FILES, ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", ["trace", "trace.json", "trace.dat"])
def test_what_a_file_is_does_not_depend_on_its_name(kind, name, tmp_path):
    path = tmp_path / name
    path.write_bytes(FILES[kind])
    assert kind_of(path) is kind
    path.write_bytes(gzip.compress(FILES[kind]))
    assert kind_of(path) is kind or kind in (InputKind.REPORT, InputKind.CUT_REPORT)


def test_a_gzip_file_that_cannot_be_unpacked_is_damaged(tmp_path):
    packed = gzip.compress(FILES[InputKind.TORCH_PROFILER])
    (tmp_path / "t.json.gz").write_bytes(packed[:12] + bytes(9) + packed[21:])
    assert kind_of(tmp_path / "t.json.gz") is InputKind.DAMAGED_GZIP


@pytest.mark.parametrize("command", ["analyze", "show", "report", "export", "diff"])
@pytest.mark.parametrize("kind", FILES, ids=lambda kind: kind.name)
def test_a_file_is_named_for_what_it_is_with_the_next_step(kind, command, tmp_path):
    path = tmp_path / "trace.any"
    path.write_bytes(FILES[kind])
    result = invoked(command, path, *([path] if command == "diff" else []))
    error = result.exception
    assert isinstance(error, NsysAlignError) and error.next_step, result.output
    named = "nsys report" if kind in (InputKind.REPORT, InputKind.CUT_REPORT) else kind.value[0]
    assert named.split(" (")[0].split(":")[0] in error.message
    assert sorted(p.name for p in tmp_path.iterdir()) == ["trace.any"]


@pytest.mark.parametrize("command", ["show", "report", "export", "diff"])
def test_of_an_export_it_is_said_that_it_is_not_analysed_yet(command, tmp_path):
    trace = write_export(tmp_path / "t.sqlite")
    error = invoked(command, trace, *([trace] if command == "diff" else [])).exception
    assert isinstance(error, NsysAlignError)
    assert error.next_step == f"analyze it first: nsysalign analyze {trace}"


def test_of_a_stored_analysis_without_its_trace_what_is_stored_is_printed(tmp_path):
    stored = tmp_path / "demo"
    stored.mkdir()
    database.write(build(), stored / "analysis.db")
    before = (stored / "analysis.db").read_bytes()
    for path in (stored, stored / "analysis.db"):
        assert kind_of(path) is InputKind.STORED
        result = invoked("analyze", path)
        assert result.exit_code == 0 and "t1" in result.output and "no trace" in result.stderr
        assert json.loads(invoked("analyze", path, "--brief").stdout)["verdict"] == "gpu_bound"
    assert [p.name for p in stored.iterdir()] == ["analysis.db"]
    assert (stored / "analysis.db").read_bytes() == before
    for command in (("check", stored), ("redact", stored, tmp_path / "out")):
        error = invoked(*command).exception
        assert isinstance(error, NsysAlignError) and "stored analysis" in error.message
        assert "show" in error.next_step or "analysis.db" in error.next_step
    assert not (tmp_path / "out").exists()


def test_a_trace_of_rocprof(tmp_path):
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("create table rocpd_kernel_dispatch (id integer)")
    assert kind_of(path) is InputKind.AMD


@pytest.mark.parametrize("command", ["analyze", "show", "check", "diff"])
def test_with_brief_an_error_is_json_on_stdout_as_well(command, tmp_path):
    path = tmp_path / "trace"
    path.mkdir()
    result = invoked(command, path, *([path] if command == "diff" else []), "--brief")
    answer = json.loads(result.stdout.splitlines()[-1])
    assert result.exit_code and answer["verdict"] == "error" and answer["command"] == command
    assert answer["sentence"] and answer["next"]


def test_a_trace_of_torch_before_1_12(tmp_path):
    path = tmp_path / "old.json"
    event = {
        "ph": "X",
        "cat": "Operator",
        "name": "aten::add",
        "ts": 1,
        "dur": 2,
        "pid": 1,
        "tid": 1,
    }
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [event]}))
    assert kind_of(path) is InputKind.TORCH_PROFILER


def test_a_log_beside_its_trace_is_no_trace(tmp_path):
    assert kind_of(write_lines(tmp_path / "events-7.jsonl")) is InputKind.EVENT_LOG
