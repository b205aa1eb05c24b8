"""The GPU's clock in the page, in the stored forms, and where there is none."""

import json as stdlib_json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from recordings import unpack

from nsysalign import frames
from nsysalign.answer import reason_words
from nsysalign.commandline.present import present
from nsysalign.commands.report import with_timeline
from nsysalign.engine import load
from nsysalign.explain.facts import Facts
from nsysalign.show.clock_chart import MOST_DRAWN, page_clocks
from nsysalign.split.timeline import clock_rows
from nsysalign.store import database

MS = 1_000_000


def clocks(*stretches, device=0):
    """(from ms, to ms, MHz, reasons)"""
    rows = [
        (device, a * MS, b * MS, 1 + (b - a) // 25, mhz, mhz, 3201, why, 690_000, -1)
        for a, b, mhz, why in stretches
    ]
    return frames.check(pd.DataFrame(rows, columns=frames.GPU_CLOCKS.names), frames.GPU_CLOCKS)


@pytest.fixture
def sampled(analysis):
    """Six intervals, from 10 ms on, 1 ms apart; the clock falls at 12 ms."""
    table = clocks((0, 11, 1980, 0), (12, 13, 1755, 4), (13, 40, 1740, 4))
    drawn = analysis.timeline[analysis.timeline["lane_kind"] != "clock"]
    v = analysis.intervals
    lane = clock_rows(
        table,
        v["interval"].to_numpy(),
        v["device"].to_numpy(),
        v["start_ns"].to_numpy(),
        v["end_ns"].to_numpy(),
    )
    timeline = frames.check(pd.concat([drawn, lane], ignore_index=True), frames.TIMELINE)
    return replace(analysis, gpu_clocks=table, timeline=timeline)


def test_a_picture_has_the_samples_around_it():
    table = clocks((0, 10, 1000, 0), (20, 30, 1100, 0), (40, 50, 1200, 0), (60, 70, 1300, 0))
    at = np.array([0, 1, 2])
    rows = clock_rows(
        table, at, np.array([0, 0, -1]), np.array([22, 32, 80]) * MS, np.array([23, 35, 81]) * MS
    )
    seen = {i: [d["mhz"] for d in g["detail"]] for i, g in rows.groupby("interval")}
    # inside a stretch: it and its neighbours; between two: these; after the last: that one
    assert seen == {0: [1000, 1100, 1200], 1: [1100, 1200], 2: [1300]}
    two = pd.concat([table, clocks((0, 90, 500, 0), device=1)], ignore_index=True)
    rows = clock_rows(
        two, at, np.array([1, 2, -1]), np.array([22, 32, 80]) * MS, np.array([23, 35, 81]) * MS
    )
    assert rows["interval"].tolist() == [0] and rows["lane"].tolist() == ["GPU 1"]


def test_words():
    assert reason_words(0x24) == "software power cap, software thermal slowdown"
    assert reason_words(0x1000) == "reason 0x1000" and reason_words(0) == reason_words(-1) == ""


def test_the_page_holds_a_bounded_number_of_stretches(sampled):
    stretches = [(k, k, 1980 - 15 * (k % 2), 4 * (k == 777)) for k in range(3 * MOST_DRAWN)]
    gpu = page_clocks(replace(sampled, gpu_clocks=clocks(*stretches)))["devices"][0]
    assert len(gpu["x"]) <= MOST_DRAWN and gpu["joined"] == 3 and gpu["samples"] == 3 * MOST_DRAWN
    assert set(gpu["low"]) == {1965} and sum(gpu["why"]) == 4


def test_samples_of_a_real_run_meet_its_intervals(tmp_path):
    """The demo's recording with samples made up in its CLOCK_MONOTONIC: those of the middle third
    say 1500 MHz."""
    unpack("demo", tmp_path)
    log = [
        stdlib_json.loads(line) for line in (tmp_path / "events-1.jsonl").read_text().splitlines()
    ]
    began = {line["seq"]: line["t0_ns"] for line in log if line["type"] == "record"}
    first, last = min(began.values()), max(began.values())
    low, high = first + (last - first) // 3, first + 2 * (last - first) // 3
    columns = ["monotonic_ns", "device", "sm_mhz", "reasons"]
    lines = [{"format": "nsysalign-clocks", "columns": columns}]
    for t in range(first - 10 * MS, last + 10 * MS, MS):
        lines.append([t, 0, 1500 if low <= t < high else 1980, 0])
    (tmp_path / "clocks.jsonl").write_text("\n".join(map(stdlib_json.dumps, lines)))
    analysis = present(tmp_path, quiet=True)
    clocks = Facts(analysis, lambda numbers: None).clocks
    measured = analysis.measured
    event = (measured["kind"] == "event").to_numpy()
    assert clocks.known[event].all()
    start = np.array([began.get(seq, low) for seq in measured["start_record"]])
    sure = (abs(start - low) > 2 * MS) & (abs(start - high) > 2 * MS)
    expected = np.where((start >= low) & (start < high), 1500, 1980)
    assert sure.sum() > 20 and len(set(expected[sure])) == 2
    assert (clocks.sm_mhz[sure] == expected[sure]).all()
    assert (analysis.timeline["lane_kind"] == "clock").any()
    assert "1500 to 1980 MHz" in (tmp_path / "report.html").read_text()


def test_an_interval_without_its_trace_has_its_clock_all_the_same(sampled, tmp_path):
    database.write(
        replace(sampled, timeline=frames.empty(frames.TIMELINE)), tmp_path / "analysis.db"
    )
    loaded, said = with_timeline(load(tmp_path), 3, "t2#0", tmp_path)
    assert "no trace beside" in said
    clock = loaded.timeline[loaded.timeline["lane_kind"] == "clock"]
    assert (
        clock["interval"].tolist() == [3] * len(clock)
        and [d["mhz"] for d in clock["detail"]][-1] == 1740
    )
