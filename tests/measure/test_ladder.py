"""One call by every clock: the rows, what nsys adds, and what cannot be measured."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest

from nsysalign.addons.measure import page, profile, terminal
from nsysalign.addons.measure.plan import Job, Options, Target
from nsysalign.addons.measure.profile import Profile
from nsysalign.addons.measure.result import load
from nsysalign.addons.measure.session import Session

from .conftest import CALLS, SIMULATED
from .test_page import made, said

CLOCKS = {"clocks": True, "processes": 1}


def of(measure, l2):
    (point,) = measure.points
    return {r.way: r for r in measure.rungs(point, l2)}


def test_the_rows_of_a_known_call(measured):
    """A kernel of 50 us (65 with a cold L2): the distances of tests/measure/simulated.py."""
    m = load(measured("with_inputs", **CLOCKS).folder)
    warm, cold = of(m, "warm"), of(m, "cold")
    assert list(warm) == ["latency", "event", "device", "do_bench_cudagraph", "graph"]
    assert list(cold) == ["latency", "event", "device", "do_bench", "graph"]
    us = {way: r.value_ns / 1e3 for way, r in warm.items()}
    expected = {"latency": 62, "event": 58.3, "device": 52.6, "do_bench_cudagraph": 50}
    assert us == pytest.approx(expected | {"graph": 61.3}, abs=0.2)
    assert cold["do_bench"].value_ns == pytest.approx(cold["device"].value_ns, abs=200)
    assert cold["device"].value_ns - warm["device"].value_ns == pytest.approx(15_000, abs=400)
    document = json.loads((m.folder / "measure.json").read_text())
    assert [r["way"] for r in document["ladder"]] == [*warm, *cold]


@pytest.mark.parametrize(
    ("call", "ways", "words"),
    [
        (
            "waits",
            ["latency", "event"],
            [
                "device is not measured: the call waits for the GPU",
                "graph is not measured: not capturable",
            ],
        ),
        (
            "without_triton",
            ["latency", "event", "device", "graph"],
            ["triton is not installed", "no profile: "],
        ),
    ],
)
def test_what_a_call_cannot_be_timed_by_is_left_out_and_said(measured, call, ways, words, tmp_path):
    more = {"profile": call == "without_triton", "nsys": str(tmp_path / "none")}
    m = load(measured(call, **CLOCKS, **more).folder)
    assert list(of(m, "warm")) == ways and not m.failed
    assert all(any(each in n for n in m.notes) for each in words)


def with_profile(**gpu_ns):
    m = made(batches=(None,))
    found = Profile(0, None, "profile-default", {"warm": {"sum": 740e3, "span": 760e3} | gpu_ns})
    return replace(m, profiles=(found,), options={**m.options, "clocks": True})


def test_rows_and_verdicts_are_the_same_on_terminal_and_page():
    m = with_profile()
    rows = of(m, "warm")
    assert list(rows)[-2:] == ["span", "sum"] and rows["sum"].value_ns == 740e3
    verdict = terminal.clocks_verdict(m, m.points[0])
    assert verdict[0] == "how long one caller waits: 1.15 ms (host timer + synchronise)"
    assert "in a model that keeps the GPU busy: 770 us (event pair behind a delay)" in verdict[2]
    assert not any("that nsys saw" in line for line in verdict)
    text = said(m)
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "span of its kernels, nsys" in text and verdict[0] in text
    data = page.payload(m)
    assert [r["cells"][0] for r in data["ladder"]] == [r.name for r in rows.values()]
    assert data["points"][0]["clocks"] == verdict and page.payload(made())["ladder"] == []


def test_a_trace_that_contradicts_the_timing_is_said():
    m = with_profile(sum=900e3, span=910e3)
    assert any(
        "warm L2: the kernels that nsys saw take 900 us, longer than the call" in line
        for line in terminal.clocks_verdict(m, m.points[0])
    )


def test_a_worker_that_fails_under_nsys_is_the_profiles_problem(tmp_path, nsys):
    (tmp_path / "workers").mkdir()
    target = Target("fails", f"{CALLS}:fails_in_warm_up")
    options = Options((target,), backend=SIMULATED, nsys=nsys or None)
    job = Job(0, 0, (None,), "profile", ("event",), ("warm", "cold"), 1.0, 60.0)
    found = profile.profile(job, options, tmp_path)
    assert "under nsys the worker failed: ValueError" in found.problem


@pytest.mark.parametrize(("profile", "low", "high"), [(True, 14.0, 16.0), (False, 30.0, 32.0)])
def test_a_budget_leaves_time_for_the_profile(tmp_path, profile, low, high):
    """Of 40 s, 8 to start a process and 16 for the one under nsys."""
    target = Target("default", f"{CALLS}:default")
    options = Options((target,), clocks=True, budget_s=40.0, profile=profile, backend=SIMULATED)
    session = Session(replace(options, output=tmp_path / "out"))
    assert low < session._share_s(1, planned=True) < high


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["call"], {"sum": 90.0}),  # gaps on an idle GPU are waits for launches
        (["call", "call device"], {"span": 110.0, "sum": 90.0}),
        (["call cold device"], {}),
    ],
)
def test_what_nsys_says_is_of_the_interval_with_the_median_span(labels, expected):
    """Three intervals of two kernels each, 20 apart: spans of 100, 110 and 120; `host` is no work.

    [ 40 ]....[ 40, 50, 60 ]
    """
    intervals, segments = [], []
    for label in labels:
        for second in (40, 60, 50):
            number = len(intervals)
            intervals.append({"label": label, "interval": number})
            for cause, start, end in (
                ("kernel", 0, 40),
                ("host", 40, 60),
                ("kernel", 60, 60 + second),
            ):
                segments.append(
                    {"interval": number, "cause": cause, "start_ns": start, "end_ns": end}
                )
    analysis = SimpleNamespace(intervals=pd.DataFrame(intervals), segments=pd.DataFrame(segments))
    assert profile._gpu_ns(analysis, "call", "warm") == expected
