"""What the profiler does to a number: with and without the run that tells."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from nsysalign import frames

from .drawing import analysis, diagnose, repeat

HOST_BOUND = (("host", 60), ("api_launch", 30), ("kernel", 10), ("event", 2))


def with_baseline(
    label: str, profiled_us: float, baseline_us: float, *, low_us: float | None = None, flags=()
):
    drawn = analysis(repeat(10, label, *HOST_BOUND, flags=flags))
    row = dict.fromkeys(frames.BASELINE.names, 0) | {
        "label": label,
        "kind": "event",
        "site": "bench.py:7",
        "remark": "",
    }
    row |= {
        "profiled_ns": profiled_us * 1e3, "baseline_ns": baseline_us * 1e3, "predicted_ns": baseline_us * 1e3 + 500,
        "low_ns": ((profiled_us - baseline_us) * 0.8 if low_us is None else low_us) * 1e3,
        "high_ns": (profiled_us - baseline_us) * 1.2e3, "inflation": profiled_us / baseline_us,
    }  # fmt: skip
    table = frames.check(pd.DataFrame([row]), frames.BASELINE)
    result = diagnose(replace(drawn, baseline=table))
    return {f.rule: f for f in result.findings.itertuples(index=False)}


def test_a_label_that_the_profiler_makes_longer():
    found = with_baseline("x", 102, 70)["profiler-inflation"]
    assert (
        found.severity == "warning"
        and found.title == "x is 1.46 times as long under nsys: 102 us profiled, 70 us without."
    )
    assert (
        found.evidence["under_nsys_ns"] == 102_000 and found.evidence["without_nsys_ns"] == 70_000
    )
    assert found.evidence["predicted_without_nsys_ns"] == 70_500
    assert with_baseline("x", 102, 90)["profiler-inflation"].severity == "info"


def test_no_inflation_no_finding():
    assert "profiler-inflation" not in with_baseline("x", 102, 101)
    assert "profiler-inflation" not in with_baseline(
        "x", 102, 70, low_us=-5
    )  # the runs scatter too much to tell
    assert "profiler-inflation" not in with_baseline("x", 70, 102)
    plain = diagnose(analysis(repeat(10, "x", *HOST_BOUND)))
    assert "profiler-inflation" not in set(plain.findings["rule"])
