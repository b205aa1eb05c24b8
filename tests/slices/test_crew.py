"""Slices shared with other processes, and an analysis from its file to its findings."""

from __future__ import annotations

import dataclasses
import os
from concurrent.futures.process import BrokenProcessPool
from functools import partial

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from unprofiled.recordings import unpack

import nsysalign
from nsysalign import engine
from nsysalign.cli import cli
from nsysalign.effort import threads
from nsysalign.errors import TraceError
from nsysalign.slices import rounds as run
from nsysalign.slices.pool import worker_pool
from nsysalign.store.document import dumps
from nsysalign.trace.index import sampled


def squared(number: int) -> tuple[int, int]:
    return number * number, os.getpid()


def dying(job: tuple[int, int]) -> int:
    number, parent = job
    if number == 5 and os.getpid() != parent:  # the others take the last ones
        os._exit(9)
    return number


def failing(number: int) -> int:
    raise TraceError(f"slice {number} is damaged")


@pytest.mark.parametrize("count", [1, 2])
def test_all_jobs_are_done_in_their_order(count):
    with worker_pool(count) as others:
        told = []
        found = others.map(squared, [partial(int, n) for n in range(20)], told.append)
    assert [square for square, _ in found] == [n * n for n in range(20)]
    assert threads() == 2, "as before"
    if count == 1:
        assert {pid for _, pid in found} == {os.getpid()} and told == list(range(1, 21))


def test_a_process_that_dies_takes_no_slice_with_it():
    with worker_pool(2) as others:
        others._others[0].submit(squared, 1).result()  # it is there, and will be asked first
        jobs = [partial(lambda n: (n, os.getpid()), n) for n in range(6)]
        assert others.map(dying, jobs, lambda done: None) == list(range(6))


def test_nothing_is_prepared_in_a_process_that_died():
    with worker_pool(2) as others:
        with pytest.raises(BrokenProcessPool):
            others._others[0].submit(os._exit, 9).result()
        others.prepare(squared, [(1,)])


@pytest.mark.parametrize("count", [1, 2])
def test_what_is_wrong_with_a_slice_is_said(count):
    with worker_pool(count) as others, pytest.raises(TraceError, match="is damaged"):
        others.map(failing, [partial(int, n) for n in range(4)], lambda done: None)


@pytest.fixture
def small_slices(monkeypatch):
    monkeypatch.setattr(engine, "SLICED_FROM_ROWS", 1_000)
    monkeypatch.setattr(engine, "SLICE_ROWS", 10_000)
    monkeypatch.setattr(engine, "sampled", partial(sampled, block_rows=512))
    monkeypatch.setattr(engine, "MOST_PIECES", 2_000)


def placed_alike(one: nsysalign.Analysis, other: nsysalign.Analysis) -> None:
    """The same intervals within their error bars (each learned how long records take from other pairs), exact budgets."""
    a, b = one.measured, other.measured
    for column in ("name", "label", "elapsed_ns", "start_stream", "operations", "flags", "site"):
        assert a[column].tolist() == b[column].tolist(), column
    assert (np.abs(a["start_ns"] - b["start_ns"]) <= a["error_ns"] + b["error_ns"]).all()
    for analysis in (one, other):
        parts = analysis.parts.groupby("interval")["ns"].sum()
        assert (parts.to_numpy() == analysis.intervals["elapsed_ns"].to_numpy()).all()
        assert (analysis.parts["ns"] >= 0).all()
        s = analysis.segments.sort_values(["interval", "start_ns"])
        ends = s.groupby("interval").agg(start=("start_ns", "first"), end=("end_ns", "last"))
        rows = analysis.intervals.set_index("interval").loc[ends.index]
        assert (ends["start"] == rows["start_ns"]).all() and (ends["end"] == rows["end_ns"]).all()
        inner = s["interval"].to_numpy()[1:] == s["interval"].to_numpy()[:-1]
        assert (s["start_ns"].to_numpy()[1:][inner] == s["end_ns"].to_numpy()[:-1][inner]).all()
    assert one.findings["rule"].tolist() == other.findings["rule"].tolist()
    assert one.trace == other.trace


def test_an_analysis_in_slices_is_the_analysis(puzzle, small_slices, monkeypatch):
    trace, logs = puzzle("clocks")
    cut = []
    monkeypatch.setattr(engine, "measure", lambda *a: cut.append(run.measure(*a)) or cut[-1])
    told = []
    arguments = {"clocks": trace.with_name("clocks.jsonl"), "draw": ["stop#7"]}
    in_slices = nsysalign.analyze(
        trace, logs, progress=lambda *said: told.append(said), **arguments
    )
    assert cut and cut[0] is not None
    monkeypatch.setattr(engine, "SLICED_FROM_ROWS", 1 << 60)
    whole = nsysalign.analyze(trace, logs, **arguments)
    placed_alike(in_slices, whole)
    assert not in_slices.segments.empty and in_slices.gpu_clocks.equals(whole.gpu_clocks)
    predicted = [a.unprofiled.set_index("interval") for a in (in_slices, whole)]
    assert predicted[0].index.tolist() == predicted[1].index.tolist() and len(predicted[0])
    apart = (predicted[0]["predicted_ns"] - predicted[1]["predicted_ns"]).abs()
    assert (apart <= (predicted[1]["upper_ns"] - predicted[1]["lower_ns"]) / 4).all()
    lanes = ["interval", "lane_kind", "lane", "kind", "name"]
    assert set(map(tuple, in_slices.timeline[lanes].to_numpy())) == set(
        map(tuple, whole.timeline[lanes].to_numpy())
    )
    percents = [percent for _, percent in told]
    assert percents == sorted(percents) and percents[-1] <= 100


def test_the_command_shares_the_work(puzzle, small_slices, tmp_path):
    trace, logs = puzzle("clocks")
    events = [part for log in logs for part in ("--events", str(log))]
    results = []
    for jobs in ("1", "2"):
        out = tmp_path / f"out{jobs}"
        done = CliRunner().invoke(
            cli, ["analyze", str(trace), *events, "-q", "-o", str(out), "--jobs", jobs]
        )
        assert done.exit_code == 0, done.output
        results.append((out / "analysis.json").read_text())
    assert results[0] == results[1]


def test_clocks_that_nothing_connects_are_left_to_the_whole(
    puzzle, small_slices, tmp_path, monkeypatch
):
    trace, logs = puzzle("clean")
    bare = tmp_path / "bare.jsonl"
    lines = [line for line in logs[0].read_text().splitlines() if '"type":"clock"' not in line]
    lines[0] = lines[0].replace('"clock":', '"no_clock":')
    bare.write_text("\n".join(line for line in lines if '"mark' not in line) + "\n")
    read = []
    logs_of = engine.read_event_logs
    monkeypatch.setattr(
        engine, "read_event_logs", lambda paths: read.append(paths) or logs_of(paths)
    )
    found = nsysalign.analyze(trace, [bare])
    assert len(found.measured) + len(found.unaligned) > 0 and len(read) == 1
    monkeypatch.setattr(engine, "SLICED_FROM_ROWS", 1 << 60)
    assert dumps(found) == dumps(nsysalign.analyze(trace, [bare]))


def settled(analysis: nsysalign.Analysis) -> dict:
    """All that no option may change."""
    skipped = {"segments", "timeline", "notes", "baseline", "unprofiled", "unprofiled_parts"}
    fields = (f.name for f in dataclasses.fields(analysis) if f.name not in skipped)
    found = {name: getattr(analysis, name) for name in fields}
    ours = (
        found["findings"]["rule"] != "profiler-inflation"
    )  # which compares with a run without nsys
    return {**found, "findings": found["findings"][ours].reset_index(drop=True)}


@pytest.mark.parametrize("cut", [True, False])
def test_options_change_what_is_kept_and_no_number(puzzle, small_slices, monkeypatch, cut):
    trace, logs = puzzle("clocks")
    if not cut:
        monkeypatch.setattr(engine, "SLICED_FROM_ROWS", 1 << 60)
    plain = nsysalign.analyze(trace, logs)
    name = plain.measured["name"].iloc[3]
    for options in (
        {"all_segments": True},
        {"draw": [name]},
        {"baseline": logs},  # a log is as good as one without nsys: the labels are the same
        {"all_segments": True, "jobs": 2},
    ):
        found = nsysalign.analyze(trace, logs, **options)
        for field, value in settled(plain).items():
            other = settled(found)[field]
            assert value.equals(other) if isinstance(value, pd.DataFrame) else value == other, (
                options,
                field,
            )


def test_all_segments_of_slices_cover_every_interval_and_the_run(puzzle, small_slices):
    trace, logs = puzzle("clocks")
    found = nsysalign.analyze(trace, logs, all_segments=True)
    s = found.segments
    assert set(s["interval"]) == set(
        found.intervals.loc[found.intervals["elapsed_ns"] > 0, "interval"]
    )
    sums = s.assign(ns=s["end_ns"] - s["start_ns"]).groupby(["interval", "cause"])["ns"].sum()
    parts = found.parts[found.parts["ns"] > 0].set_index(["interval", "cause"])["ns"]
    pd.testing.assert_series_equal(sums.sort_index(), parts.sort_index(), check_names=False)
    inner = s["interval"].to_numpy()[1:] == s["interval"].to_numpy()[:-1]
    assert (s["start_ns"].to_numpy()[1:][inner] == s["end_ns"].to_numpy()[:-1][inner]).all()


def test_a_long_run_is_put_beside_the_one_without_nsys_in_slices(
    tmp_path, small_slices, monkeypatch
):
    files = unpack("unprofiled_linears", tmp_path)
    logs, plain = [files["events.jsonl"]], [files["baseline.jsonl"]]
    cut = []
    monkeypatch.setattr(engine, "measure", lambda *a: cut.append(run.measure(*a)) or cut[-1])
    in_slices = nsysalign.analyze(files["sqlite"], logs, baseline=plain)
    assert cut and cut[0] is not None
    monkeypatch.setattr(engine, "SLICED_FROM_ROWS", 1 << 60)
    whole = nsysalign.analyze(files["sqlite"], logs, baseline=plain)
    a, b = (x.baseline.set_index("label") for x in (in_slices, whole))
    assert a.index.tolist() == b.index.tolist()
    assert a["baseline_ns"].equals(b["baseline_ns"]) and a["profiled_ns"].equals(b["profiled_ns"])
    # predicted from what surrounds the replayed intervals instead of from the whole trace
    assert np.allclose(
        a["predicted_ns"].astype(float), b["predicted_ns"].astype(float), rtol=0.02, equal_nan=True
    )
    sums = in_slices.unprofiled_parts.groupby("interval")["ns"].sum()
    predicted = in_slices.unprofiled.dropna().set_index("interval")["predicted_ns"].astype("int64")
    assert len(predicted) and sums.equals(predicted.rename("ns"))
