"""Matching a profiled run with a run without nsys: by what names labels, never in silence."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pandas as pd
import pytest
from without_nsys.modelled import log_of

from nsysalign import frames
from nsysalign.compare.side_by_side import measured, side_by_side, turns
from nsysalign.place.host_timers import timed
from nsysalign.place.untraced import SetApart
from nsysalign.trace.eventlog import read_event_logs

HEADER = {"type": "header", "format": "nsysalign-events", "version": 1}


def log(folder: Path, name: str, *processes: list[tuple], **header) -> Path:
    """An event log.  Each process is a list of (region or site, us) pairs; a site has a colon."""
    lines = []
    for n, pairs in enumerate(processes):
        lines.append({**HEADER, "pid": 100 + n, "torch": "2", **header})
        for k, (place, us) in enumerate(pairs):
            at = {"site": place} if ":" in place else {"site": "bench.py:3", "region": place}
            for seq in (2 * k, 2 * k + 1):
                t = 1_000_000 * (k + 1) + seq
                call = {"type": "record", "seq": seq, "tid": 1, "device": n}
                lines.append(call | {"t0_ns": t, "t1_ns": t + 7} | at)
            pair = {"type": "elapsed", "start": 2 * k, "end": 2 * k + 1, "ms": us / 1e3}
            lines.append(pair | {"t0_ns": 1, "t1_ns": 2})
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(x) + "\n" for x in lines))
    return path


def beside(profiled, baseline, predicted: dict[int, int] | None = None):
    """The table and the notes of two logs, as if every interval of the first one had been
    placed."""
    one, two = read_event_logs([profiled]), read_event_logs([baseline])
    found = measured(one)
    windows = found.rename(columns={"process": "log_process", "order": "open_ns"})
    windows = windows.assign(start_ns=found["order"], end_ns=found["order"] + found["elapsed_ns"])
    labels = [(r.region.rpartition("#")[0] or r.site) for r in found.itertuples()]
    intervals = pd.DataFrame(
        {
            "interval": range(len(found)), "label": labels, "kind": found["kind"],
            "site": found["site"], "elapsed_ns": found["elapsed_ns"], "device": 0,
        }
    )  # fmt: skip
    rows = [(i, ns, ns - 1_000, ns + 1_000, "") for i, ns in (predicted or {}).items()]
    rows += [
        (i, pd.NA, pd.NA, pd.NA, "too long")
        for i in intervals["interval"]
        if i not in (predicted or {})
    ]
    unprofiled = frames.check(
        pd.DataFrame(rows, columns=frames.UNPROFILED.names), frames.UNPROFILED
    )
    table, notes = side_by_side(intervals, windows, one, two, unprofiled)
    return table.set_index("label"), notes


def runs(name: str, *times: float) -> list[tuple]:
    return [(f"{name}#{k}", us) for k, us in enumerate(times)]


def test_two_runs_of_the_same_work(tmp_path):
    table, notes = beside(
        log(tmp_path, "a", runs("x", 30, 31, 32, 30, 31)),
        log(tmp_path, "b", runs("x", 20, 21, 22, 20, 21)),
        {i: 22_000 for i in range(5)},
    )
    row = table.loc["x"]
    assert not notes and row["remark"] == ""
    assert (row["profiled_ns"], row["baseline_ns"]) == (31_000, 21_000)
    assert row["low_ns"] < 10_000 < row["high_ns"] and row["low_ns"] > 0
    assert row["inflation"] == pytest.approx(31 / 21) and row["error"] == pytest.approx(22 / 21 - 1)
    bar = row["predicted_lower_ns"], row["predicted_upper_ns"]
    assert row["predicted_ns"] == 22_000 and bar == pytest.approx((21_000, 23_000))


def test_a_label_in_one_run_only_is_said(tmp_path):
    table, _ = beside(
        log(tmp_path, "a", runs("x", *[30] * 5) + runs("under", *[9] * 5)),
        log(tmp_path, "b", runs("x", *[20] * 5) + runs("without", *[7] * 5)),
    )
    assert list(table.index) == ["x", "under", "without"]
    assert table.loc["under", "remark"].startswith("measured under nsys only")
    assert table.loc["without", "remark"] == "measured without nsys only"
    assert math.isnan(table.loc["under", "inflation"]) and math.isnan(
        table.loc["without", "profiled_ns"]
    )
    assert table.loc["x", "remark"] == "no prediction: too long"


def test_call_sites_match_without_a_region_and_few_intervals_have_no_confidence(tmp_path):
    table, _ = beside(
        log(tmp_path, "a", [("bench.py:7", 30)] * 4),
        log(tmp_path, "b", [("bench.py:7", 20)] * 3 + [("bench.py:9", 1)]),
    )
    row = table.loc["bench.py:7"]
    assert row["baseline_ns"] == 20_000 and row["inflation"] == pytest.approx(1.5)
    assert math.isnan(row["low_ns"]) and "fewer than 5" in row["remark"]
    assert "4 intervals under nsys, 3 without" in row["remark"]
    assert table.loc["bench.py:9", "profiled_count"] == 0


def test_one_pair_inside_a_region_and_one_in_none(tmp_path):
    """As categories, the regions of records and those in which times were asked for did not mix."""
    found = measured(read_event_logs([log(tmp_path, "a", [("x#0", 30), ("bench.py:7", 20)])]))
    assert found["region"].tolist() == ["x#0", ""] and found["elapsed_ns"].tolist() == [
        30_000,
        20_000,
    ]


def test_processes_that_measured_other_numbers_are_said(tmp_path):
    table, _ = beside(
        log(tmp_path, "c", runs("x", 30, 40, 50), runs("x", 130, 140, 150)),
        log(tmp_path, "d", runs("x", *[20] * 6)),
    )
    assert "3+3 intervals under nsys, 6 without" in table.loc["x", "remark"]


def test_what_differs_between_the_runs_is_noted(tmp_path):
    ended = {"exit_status": 3, "profiled_exit_status": 0, "stopped": True}
    _, notes = beside(
        log(tmp_path, "a", runs("x", 30), device_name="H200"),
        log(tmp_path, "b", runs("x", 20), device_name="H100", **ended),
    )
    assert [n.split(":")[0] for n in notes] == [
        "without nsys the script ended with status 3, under nsys with 0",
        "the run without nsys was stopped",
        "GPU differs",
    ]


def test_calibration_and_failed_pairs_are_no_measurements(tmp_path):
    path = log(tmp_path, "a", runs("x", 30, 31))
    lines = path.read_text().splitlines()
    last = json.loads(lines[-1])
    extra = [
        {**last, "type": "calibration"},
        {**last, "ms": None, "error": "not ready"},
        {**last, "start": 77},
    ]
    path.write_text("\n".join([*lines, *map(json.dumps, extra)]) + "\n")
    assert measured(read_event_logs([path]))["elapsed_ns"].tolist() == [30_000, 31_000]


def readings(folder: Path, name: str, lengths: list[int]) -> Path:
    """The log of `t0 = clock(); work(); d = clock() - t0` at a.py:3-5, and of the same around
    nothing at b.py."""
    lines = [{**HEADER, "pid": 7}]
    for n, file in ((1, "a.py"), (3, "b.py")):
        start = {"function": f"{file}:1:f", "use": "start", "stores": [f"{file}:1:t0"]}
        end = {"function": f"{file}:1:f", "use": "difference", "subtracts": [f"{file}:1:t0"]}
        lines.append(
            {"type": "clock_site", "number": n, "site": f"{file}:3", "position": 3, **start}
        )
        lines.append(
            {"type": "clock_site", "number": n + 1, "site": f"{file}:5", "position": 5, **end}
        )
        for k, ns in enumerate(lengths):
            at = 1_000_000 * (2 * k + n)
            for site, t in ((n, at), (n + 1, at + ns)):
                reading = {"type": "clock_reading", "site": site, "clock": "perf_counter"}
                lines.append(reading | {"t_ns": t, "tid": 9})
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_clock_readings_are_compared_where_the_trace_saw_cuda_work_inside(tmp_path):
    one, two = (
        read_event_logs([readings(tmp_path, name, ns)])
        for name, ns in (("under", [15_000] * 6), ("without", [10_000] * 6))
    )
    found = timed(one)
    assert len(found) == 12 and set(found["elapsed_ns"]) == {15_000}
    found = found[found["site"] == "a.py:3"].assign(
        kind="host"
    )  # b.py held no CUDA work: it has no window
    windows = found.rename(columns={"process": "log_process", "order": "open_ns"})
    windows = windows.assign(start_ns=found["order"], end_ns=found["order"] + found["elapsed_ns"])
    intervals = found[["kind", "site", "elapsed_ns"]].assign(
        interval=range(6), label="a.py:3-5", device=0
    )
    nothing = frames.empty(frames.UNPROFILED)
    table, _ = side_by_side(intervals, windows, one, two, nothing, timed(two))
    assert table[["label", "profiled_ns", "baseline_ns", "baseline_count"]].values.tolist() == [
        ["a.py:3-5", 15_000, 10_000, 6]
    ]


def test_a_label_that_nsys_alone_makes_cpu_bound_is_said(tmp_path):
    under = log_of(tmp_path / "a.jsonl", work_ns=0, gap_ns=150_000)
    without = log_of(tmp_path / "b.jsonl", work_ns=80_000, gap_ns=1_000, queued_ns=300_000)
    table, notes = beside(under, without)
    assert table.loc["work", "profiled_verdict"] == "cpu_bound"
    assert table.loc["work", "baseline_verdict"] == "gpu_bound"
    assert "nsys changes who limits 1 label (work)" in notes[-1]
    table, notes = beside(without, without)
    assert set(table[["profiled_verdict", "baseline_verdict"]].loc["work"]) == {"gpu_bound"}
    assert not notes
    table, notes = beside(under, log(tmp_path, "c", runs("work", *[20] * 8)))  # no references
    assert table.loc["work", "baseline_verdict"] == "cannot_tell"
    assert not any("limits" in note for note in notes)


def in_turns(folder, traced, untraced, kinds: dict[str, list[int]] | None = None, first: int = 0):
    """The table of a run whose recorder left in turns; `kinds`: how many intervals of labels with more than one
    kind of work are of each; `first`: how many intervals the recorder saw before it left for the first time."""
    one, two = (
        read_event_logs([log(folder, name, pairs)])
        for name, pairs in (("t", traced), ("u", untraced))
    )
    found = measured(one)
    windows = found.rename(columns={"process": "log_process", "order": "open_ns"})
    labels = [row.region.rpartition("#")[0] for row in found.itertuples()]
    intervals = found[["kind", "site", "elapsed_ns"]].assign(
        label=labels, interval=range(len(found))
    )
    groups = [
        {"label": label, "kind": kind, "role": "", "count": count}
        for label in dict.fromkeys(labels)
        for kind, count in enumerate((kinds or {}).get(label, [1]))
    ]
    left_at_ns = {0: int(windows["open_ns"].iloc[first - 1])} if first else {}
    apart = SetApart(one, two, timed(two), 0, left_at_ns)
    table, notes = turns(intervals, windows, one, apart, pd.DataFrame(groups))
    return table.set_index("label"), notes


def test_both_times_of_a_run_in_turns(tmp_path):
    table, notes = in_turns(
        tmp_path,
        runs("x", *[30, 31, 32] * 3) + runs("mixed", *[5, 50] * 4) + runs("traced", *[9] * 5),
        runs("x", *[20, 21, 22] * 3) + runs("mixed", *[5, 50] * 4) + runs("rare", *[9] * 2),
        {"mixed": [4, 4], "x": [199, 2]},  # two of 200 do not move the middle half
    )
    row = table.loc["x"]
    assert not notes and row["remark"] == ""
    assert row["low_ns"] < 10_000 < row["high_ns"] and row["inflation"] == pytest.approx(31 / 21)
    for label, words in (("mixed", "different work"), ("traced", "traced only"), ("rare", "untraced only")):  # fmt: skip
        assert words in table.loc[label, "remark"]
        assert math.isnan(table.loc[label, "low_ns"]) and math.isnan(table.loc[label, "inflation"])


@pytest.mark.parametrize(("later", "compared"), [(29, 89), (30, 30)])
def test_the_first_turn_is_left_out_where_later_ones_say_enough(tmp_path, later, compared):
    traced = runs("x", *[90] * 60, *[30] * later)
    table, _ = in_turns(tmp_path, traced, runs("x", *[20] * 40), first=60)
    row = table.loc["x"]
    assert row["profiled_count"] == compared
    assert (row["profiled_ns"] == 30_000) == (compared == 30)
