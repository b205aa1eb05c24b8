"""The meter of the host's speed: the same work in every run, read where nothing is timed, and cheap."""

from __future__ import annotations

import sys
import types
from itertools import pairwise

import pytest

import nsysalign
from nsysalign.collect.probe import meter, runtime
from nsysalign.collect.probe.layout import METER

from .user import read_log, refuse_a_broken_nsys

#: Pairs for a fifth of a second, each compared as soon as it is over.
COMPARED = """
import time, torch
a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
end = time.monotonic() + 0.25
while time.monotonic() < end:
    a.record()
    b.record()
    a.elapsed_time(b)
    time.sleep(0.001)
"""


def times(lines):
    return [(line["t0_ns"], line["t1_ns"]) for line in lines]


def test_it_is_read_every_50_ms_and_never_inside_a_pair(probed):
    run = probed(COMPARED)
    assert (run.status, run.err, run.errors) == (0, "", "")
    read = times(run.lines("meter"))
    assert len(read) >= 2 and all(line["work"] == meter.WORK for line in run.lines("meter"))
    apart = [b[0] - a[0] for a, b in pairwise(read)]
    assert min(apart) >= meter.EVERY_NS
    records = {r["seq"]: r for r in run.lines("record")}
    for pair in run.lines("elapsed"):
        opened, closed = records[pair["start"]]["t0_ns"], records[pair["end"]]["t1_ns"]
        assert not any(t1 > opened and t0 < closed for t0, t1 in read)


def test_calibration_reads_it_often(probed):
    run = probed(COMPARED, calibrate=True)
    (known,) = (line for line in run.lines("note") if "calibration_ns" in line)
    inside = [t for t in times(run.lines("meter")) if known["t0_ns"] <= t[0] and t[1] <= known["t1_ns"]]
    assert len(inside) == 20 and min(t1 - t0 for t0, t1 in inside) > 0


def test_not_while_another_thread_is_timing(probed):
    """Its start was recorded, its end was not: whoever compares a pair meanwhile takes no time for the meter."""
    run = probed(
        """
import threading, time, torch
a, b, c = (torch.cuda.Event(enable_timing=True) for _ in range(3))
threading.Thread(target=c.record).start()
time.sleep(0.01)
for _ in range(3):
    a.record()
    b.record()
    a.elapsed_time(b)
"""
    )
    assert (run.status, run.err, run.errors) == (0, "", "") and run.lines("meter") == []


def test_pairs_compared_at_the_end_leave_one_reading(probed):
    """While they are open nobody knows that nothing is timed."""
    run = probed(
        """
import torch
events = [torch.cuda.Event(enable_timing=True) for _ in range(10)]
for e in events:
    e.record()
for a, b in zip(events, events[1:]):
    a.elapsed_time(b)
"""
    )
    assert (run.status, run.errors) == (0, "") and len(run.lines("meter")) == 1
    last = max(r["t1_ns"] for r in run.lines("record"))
    assert run.lines("meter")[0]["t0_ns"] > last


def test_the_program_may_replace_what_it_sums_with(probed):
    run = probed("import builtins, torch\nbuiltins.sum = None\n" + COMPARED)
    assert (run.status, run.err, run.errors) == (0, "", "") and run.lines("meter")


def test_a_tracer_does_not_slow_it():
    """No line of Python runs between its two readings of the clock."""
    seen = []
    before = sys.gettrace()
    sys.settrace(lambda frame, event, _: seen.append(frame.f_code.co_name))
    try:
        meter._sum(meter._numbers)
    finally:
        sys.settrace(before)
    assert seen == []


def test_the_shortest_of_three_tries_counts(monkeypatch):
    clock = iter([0, 90, 100, 130, 200, 250])
    monkeypatch.setattr(meter.time, "perf_counter_ns", lambda: next(clock))
    written = []
    rt = types.SimpleNamespace(count=iter([7]), write=lambda *a, **k: written.append((a, k)))
    assert meter.read(rt) == 100
    assert written == [((METER, 0, 7), {"t0": 100, "t1": 130, "a": meter.WORK})]


def test_housekeeping_reads_it_when_it_is_due(monkeypatch):
    """`now` stands still: one reading, and the next one 50 ms later."""
    read = []
    now = [1_000_000]
    monkeypatch.setattr(runtime.time, "perf_counter_ns", lambda: now[0])
    monkeypatch.setattr(runtime.meter, "read", lambda rt: read.append(now[0]) or now[0])
    rt = runtime.Runtime("/nowhere", "/")
    rt.chunks.update(dict.fromkeys(range(10)))
    rt.next_sync = 1 << 62
    for step in (0, 1, meter.EVERY_NS - 2, 1, 1):
        now[0] += step
        rt.housekeeping(0)
    assert read == [1_000_000, 1_000_000 + meter.EVERY_NS]


#: The host seems a third as fast under nsys: the probe's meter has three times the work there.
SLOWER = """
import os, sys
import torch
if "NSYS_PROFILING_SESSION_ID" in os.environ:
    sys.modules["_nsysalign_probe.meter"]._numbers = range(1500)
"""


@pytest.mark.nsys
@pytest.mark.parametrize("slower", [False, True], ids=["equal", "slower"])
def test_it_reads_the_same_under_nsys_and_a_slower_host_is_said(whole, slower):
    """The fastest readings: other processes of a busy machine slow some of them."""
    process = whole.run(COMPARED, "--baseline", "-o", "run", begin=SLOWER if slower else "")
    out, err = process.communicate(timeout=240)
    folder = whole.folder / "run"
    refuse_a_broken_nsys(folder)
    assert process.returncode == 0, err
    fastest = []
    for log in (next(folder.glob("events-*.jsonl")), next((folder / "baseline").glob("events-*.jsonl"))):
        lines = [line for line in read_log(log) if line["type"] == "meter"]
        assert len(lines) >= 20, "those of the calibration, and one every 50 ms"
        fastest.append(min(line["t1_ns"] - line["t0_ns"] for line in lines))
    ratio = fastest[0] / fastest[1]
    assert 1.7 < ratio < 6 if slower else 0.6 < ratio < 1.7, "such a host was met: 1.5 from run to run"
    table = nsysalign.load(folder).baseline
    known = table["host_slowdown"].dropna()
    assert len(known) and ("slower under nsys than without" in " ".join(out.split())) >= slower
    if slower:
        assert (known > 1.5).all() and table["remark"].str.contains("the host was").all()
