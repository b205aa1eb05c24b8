"""The proof: timed pairs as the event log of a run without nsys, and what is made of a run that fails."""

from __future__ import annotations

import math
from dataclasses import replace

from nsysalign.compare.side_by_side import measured
from nsysalign.measure import profile
from nsysalign.measure.plan import Job, Options, Target
from nsysalign.measure.profile import Profile
from nsysalign.measure.terminal import proof
from nsysalign.trace.eventlog import read_event_logs

from .conftest import CALLS, SIMULATED


def test_timed_pairs_become_a_log_that_the_analysis_takes_for_a_run_without_nsys(tmp_path):
    path = profile.without_nsys(
        tmp_path,
        "batch=4",
        {"warm": [1_000_032, 1_000_064], "cold": [2_000_000]},
        {"device": "GPU", "torch": "2"},
    )
    log = read_event_logs([path])
    assert log.headers[0]["baseline"] and path.parent.name == "baseline"
    found = measured(log)
    assert found["region"].tolist() == ["batch=4#0", "batch=4#1", "batch=4 cold#0"]
    assert (
        found["elapsed_ns"].tolist() == [1_000_032, 1_000_064, 2_000_000] and found["certain"].all()
    )


def test_the_error_of_the_prediction_decides():
    assert Profile(0, 1, "", measured_ns=100.0, predicted_ns=109.0).proven
    assert not Profile(0, 1, "", measured_ns=100.0, predicted_ns=111.0).proven
    nothing = Profile(0, 1, "")
    assert math.isnan(nothing.error) and not nothing.proven and math.isnan(nothing.idle_share())
    assert Profile(0, 1, "", parts_ns={"kernel": 30.0, "host": 70.0}).idle_share() == 0.7


def test_without_nsys_there_is_no_profile_and_the_reason_is_said(tmp_path):
    (tmp_path / "workers").mkdir()
    options = Options(
        (Target("default", f"{CALLS}:default"),), backend=SIMULATED, nsys=str(tmp_path / "no-nsys")
    )
    job = Job(0, 0, (None,), "profile", ("event",), ("warm",), 1.0, 30.0)
    found = profile.profile(job, options, tmp_path, {"warm": [1_000]}, {})
    assert "nsys" in found.problem and not found.parts_ns


def test_a_worker_that_fails_under_nsys_is_the_profiles_problem(tmp_path, nsys):
    (tmp_path / "workers").mkdir()
    options = Options(
        (Target("fails", f"{CALLS}:fails_in_warm_up"),), backend=SIMULATED, nsys=nsys or None
    )
    job = Job(0, 0, (None,), "profile", ("event",), ("warm",), 1.0, 60.0)
    found = profile.profile(job, options, tmp_path, {"warm": [1_000]}, {})
    assert "under nsys the worker failed: ValueError" in found.problem


def test_a_long_measurement_is_compared_as_a_whole():
    """Of 3,000 samples of three processes 500 stand for all: not those of the first process alone."""
    values = [*[1_000] * 1_000, *[2_000] * 1_000, *[3_000] * 1_000]
    chosen = profile._spread(values)
    assert (
        len(chosen) == 500
        and sorted(set(chosen)) == [1_000, 2_000, 3_000]
        and chosen.count(2_000) in (166, 167)
    )
    assert list(profile._spread([5, 6])) == [5, 6] and list(profile._spread([])) == []


def test_a_prediction_that_misses_is_said():
    missed = Profile(0, 1, "", measured_ns=100.0, predicted_ns=150.0, elapsed_ns=1.0)
    assert "NOT proven: the profile explains another number" in proof(missed)
    near = replace(missed, predicted_ns=101.0)
    assert proof(near).endswith("proven") and "NOT" not in proof(near)
