"""Recordings of real GPUs (`tests/data/recorder`): no compiler and no GPU is needed to read them."""

import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner
from recordings import unpack_cupti as unpacked

from nsysalign import recorder
from nsysalign.cli import cli
from nsysalign.engine import analyze
from nsysalign.errors import TraceError
from nsysalign.record.cupti import gathered
from nsysalign.trace import cupti
from nsysalign.trace.cupti import write_export
from nsysalign.trace.read import read_trace

NAMES = {"linears_h100": 60, "linears_h200": 60, "graph_h200": 25}  # pairs


@pytest.mark.parametrize("name", NAMES)
def test_every_pair_lies_on_the_event_clock_and_adds_up(recorded, name):
    _, path, _, analysis = recorded(name)
    pairs = analysis.measured[analysis.measured["kind"] == "event"]
    assert len(pairs) == NAMES[name] and set(pairs["method"]) == {"clock"}
    assert analysis.unaligned.empty
    parts = analysis.parts.groupby("interval")["ns"].sum().loc[pairs["interval"]]
    assert (parts.to_numpy() == pairs["elapsed_ns"].to_numpy()).all()
    assert analysis.trace.driver_version == "580.159.04"
    assert analysis.trace.devices[0].startswith("NVIDIA H")
    # the recorder's clock is the log's: a record call lies inside its Python call
    trace, log = read_trace(path), analysis
    assert trace.info.monotonic and not log.trace.failed_calls
    assert (trace.operations["call"] >= 0).all()


def test_the_linears_say_what_they_say_under_nsys(recorded):
    """The first one waits for the CPU, not for a copy (`tests/data`: truth_linears, the demo)."""
    for name in ("linears_h100", "linears_h200"):
        analysis = recorded(name).analysis
        parts = analysis.parts[analysis.parts["ns"] > 0]
        rows = analysis.labels
        first = parts[parts["interval"] == rows["row_interval"].iloc[0]].set_index("cause")["ns"]
        assert 20_000 < first["kernel"] < 40_000
        assert first["host"] > 150_000 and "memcpy" not in first.index
        assert ("host-gap", rows["label"].iloc[0]) in zip(analysis.findings["rule"], analysis.findings["label"], strict=True)  # fmt: skip


def test_graphs_are_traced_whole(recorded):
    analysis = recorded("graph_h200").analysis
    assert analysis.parts.groupby("cause")["ns"].sum()["graph"] > 0


def test_pairs_of_a_program_in_cpp_are_known_from_the_trace(tmp_path):
    analysis = analyze(unpacked("pairs_cpp_h200", tmp_path / "run") / "trace.cupti")
    assert analysis.measured["method"].tolist() == ["inferred"] * 20


@pytest.mark.parametrize("name", ["linears_h200", "graph_h200"])
def test_nsyss_layout_gives_the_same_analysis(recorded, tmp_path, name):
    _, trace, logs, own = recorded(name)
    write_export(trace, tmp_path / "trace.sqlite")
    same = analyze(tmp_path / "trace.sqlite", logs)
    for table in ("intervals", "parts", "labels", "details"):
        pd.testing.assert_frame_equal(getattr(own, table), getattr(same, table))
    assert own.trace.missing == same.trace.missing and same.trace.monotonic


def test_what_is_shared_is_in_nsyss_layout(recorded, tmp_path):
    run = unpacked("linears_h200", tmp_path / "run")
    done = CliRunner().invoke(cli, ["redact", str(run), str(tmp_path / "shared"), "--hash-names"])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "shared" / "trace.sqlite").is_file()
    own, same = recorded("linears_h200").analysis, analyze(tmp_path / "shared")
    columns = ["elapsed_ns", "start_ns", "kernel_only_ns", "error_ns"]
    pd.testing.assert_frame_equal(own.intervals[columns], same.intervals[columns])
    done = CliRunner().invoke(cli, ["export", str(run), "-f", "nsys-sqlite"])
    assert done.exit_code == 0, done.output
    assert len(read_trace(run / "nsys-layout.sqlite").operations) == len(read_trace(run / "trace.cupti").operations)  # fmt: skip


def test_what_is_cut_or_none_of_ours_is_said(tmp_path):
    run = unpacked("linears_h200", tmp_path / "run")
    whole = (run / "trace.cupti").read_bytes()
    cut = tmp_path / "cut.cupti"
    cut.write_bytes(whole[: len(whole) * 2 // 3])
    trace = read_trace(cut)
    assert 0 < len(trace.operations) < 222
    assert any("cut off" in note for note in trace.info.notes)
    cut.write_bytes(b"something else")
    with pytest.raises(TraceError):
        read_trace(cut)
    cut.write_bytes(whole[:16] + b"{" * 40 + whole[56:])
    with pytest.raises(TraceError, match="damaged"):
        read_trace(cut)
    cut.write_bytes(whole.replace(b'"version":1', b'"version":7', 1))
    with pytest.raises(TraceError, match="newer nsysalign"):
        read_trace(cut)


def test_processes_are_put_together_without_what_was_cut(tmp_path):
    raw = tmp_path / "raw"
    raw.mkdir()
    whole = (unpacked("linears_h200", tmp_path / "run") / "trace.cupti").read_bytes()
    other = (unpacked("pairs_cpp_h200", tmp_path / "other") / "trace.cupti").read_bytes()
    (raw / "1-0.cupti").write_bytes(whole[:-1_001])
    (raw / "2-0.cupti").write_bytes(other)
    path, messages = gathered(raw, tmp_path / "trace.cupti")
    assert not messages
    trace = read_trace(path)
    assert trace.operations["process"].nunique() == 2
    assert any("cut off" in note for note in trace.info.notes)
    assert len(trace.operations[trace.operations["process"] == trace.operations["process"].max()]) >= 40  # fmt: skip


@pytest.mark.nvcc
def test_kinds_of_records_have_the_numbers_of_cuptis_header():
    """The fake library has our own numbers, so that it would not find a wrong one."""
    nvcc = Path(shutil.which("nvcc")).resolve()
    headers = [*nvcc.parents[1].glob("**/include/cupti_activity.h")]
    if not headers:
        pytest.skip("this CUDA has no cupti_activity.h")
    text = headers[0].read_text()
    numbers = dict(re.findall(r"CUPTI_ACTIVITY_KIND_(\w+)\s*=\s*(\d+)", text))
    for ours, cuptis in {
        "KERNEL": "CONCURRENT_KERNEL",
        "EVENT": "CUDA_EVENT",
        "SYNC": "SYNCHRONIZATION",
        "GRAPH": "GRAPH_TRACE",
    }.items():
        numbers[ours] = numbers[cuptis]
    library = Path(recorder.__file__).with_name("library.c").read_text()
    kinds = re.search(r"enum \{ (MEMCPY = [^}]*) \};", library)[1]
    in_library = dict(re.findall(r"(\w+) = (\d+)", kinds))
    assert len(in_library) == 12
    for name, number in in_library.items():
        assert number == numbers[name] == str(getattr(cupti, name)), name
