"""The proof: timed pairs as the event log of a run without nsys, and what is made of a run that
fails."""

from __future__ import annotations

import math
from dataclasses import replace

from nsysalign.addons.measure import profile
from nsysalign.addons.measure.plan import Job, Options, Target
from nsysalign.addons.measure.profile import Profile
from nsysalign.addons.measure.terminal import proof

from .conftest import CALLS, SIMULATED


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
    found = profile.profile(job, options, tmp_path, 1_000.0)
    assert "nsys" in found.problem and not found.parts_ns


def test_a_worker_that_fails_under_nsys_is_the_profiles_problem(tmp_path, nsys):
    (tmp_path / "workers").mkdir()
    options = Options(
        (Target("fails", f"{CALLS}:fails_in_warm_up"),), backend=SIMULATED, nsys=nsys or None
    )
    job = Job(0, 0, (None,), "profile", ("event",), ("warm",), 1.0, 60.0)
    found = profile.profile(job, options, tmp_path, 1_000.0)
    assert "under nsys the worker failed: ValueError" in found.problem


def test_a_prediction_that_misses_is_said():
    missed = Profile(0, 1, "", measured_ns=100.0, predicted_ns=150.0, elapsed_ns=1.0)
    assert "NOT proven: the profile explains another number" in proof(missed)
    near = replace(missed, predicted_ns=101.0)
    assert proof(near).endswith("proven") and "NOT" not in proof(near)
