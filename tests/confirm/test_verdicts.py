"""Predictions from the budget of a plain run, and what a re-run says about them: simulated
machines, whose truth is known."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from handmade import build
from hypothesis import given
from hypothesis import strategies as st
from recordings import unpack

import nsysalign
from nsysalign.addons.confirm.experiment import (
    Level,
    Plan,
    Refused,
    choose,
    confirmable,
    gpu_time,
    parts_of,
    plan,
    rows_of,
)
from nsysalign.addons.confirm.verdicts import decide, judge, statuses
from nsysalign.model import NONE_IF_AHEAD
from nsysalign.split.budget import _intervened

from . import runs

PLAIN: dict = {}  # what a plain run of a program is, it stays


def planned(folder, body, intervention=None, **more):
    key = (body, *more.items())
    if key not in PLAIN:
        PLAIN[key] = runs.analysed(runs.run(folder, body, **more))
    analysis, log = PLAIN[key]
    chosen = intervention or choose(analysis, "t1")
    return plan(analysis, "t1", chosen, log)


def refused(*arguments, **more) -> str:
    with pytest.raises(Refused) as error:
        planned(*arguments, **more)
    return str(error.value)


def retried(tmp_path, body, intervention=None, after=None, **more):
    made = planned(tmp_path / "before", body, intervention)
    again = runs.run(tmp_path / "after", after or body, made.change, **more)
    return said_of(made, runs.analysed(again)[0])


def said_of(made, after):
    (row,) = judge(made, after, "").itertuples(index=False)
    return row


@pytest.mark.parametrize("body", [runs.host_gap, runs.many_launches])
def test_a_host_gap_is_confirmed_by_a_delay(tmp_path, body):
    said = retried(tmp_path, body)
    assert (said.intervention, said.verdict) == ("delay", "confirmed"), said
    assert said.before_ns > 1.8 * said.after_ns
    low, high = said.predicted_low_ns, said.predicted_high_ns
    assert low <= said.after_ns <= high and high - low < said.before_ns / 3
    assert said.after_count == runs.COUNT and "delay kernel of 1,000.0 us" in said.changed


def test_the_delay_is_as_long_as_the_host_needs(tmp_path):
    steps = [runs.Record("a"), runs.Sleep(2_000_000), runs.Launch(9_000), runs.Record("b")]
    made = planned(tmp_path, lambda k: steps)
    assert 4_000_000 < made.delay_ns < 4_500_000


def test_a_wrong_cause_is_refuted(tmp_path):
    """The kernel is slow by itself when the host does not come late: the delay hides the host and
    nothing is gained."""

    def slow(k):
        return [runs.Record("a"), runs.Launch(180_000), runs.Record("b")]

    said = retried(tmp_path, runs.host_gap, after=slow)
    assert said.verdict == "refuted" and said.reason.startswith("the change had no effect"), said


def test_half_a_cause_is_refuted_with_its_share(tmp_path):
    def half(k):
        return [runs.Record("a"), runs.Launch(100_000 + 50 * k), runs.Record("b")]

    said = retried(tmp_path, runs.host_gap, after=half)
    assert said.verdict == "refuted" and "% of the predicted change" in said.reason, said


def test_waiting_for_earlier_work_is_confirmed_by_a_synchronise(tmp_path):
    said = retried(tmp_path, runs.behind_earlier_work)
    assert (said.intervention, said.verdict) == ("synchronize", "confirmed"), said
    assert said.before_ns > 900_000 > 100_000 > said.after_ns


def test_waiting_for_ones_own_work_is_refuted(tmp_path):
    said = retried(tmp_path, runs.behind_own_work)
    assert (said.intervention, said.verdict) == ("synchronize", "refuted"), said


def test_the_few_that_the_delay_did_not_hold_are_left_out_and_counted(tmp_path):
    """The first run loads code for 3 ms, the delay takes 1 ms."""

    def first(k):
        loads = runs.Sleep(3_000_000 if k == 0 else 150_000)
        return [runs.Record("a"), loads, runs.Launch(25_000), runs.Record("b")]

    said = retried(tmp_path, first)
    assert (said.verdict, said.after_count) == ("confirmed", runs.COUNT - 1)
    assert said.reason.endswith(
        "; 1 of 8 left out, because the delay ended before the host had issued everything"
    )


def test_a_delay_that_does_not_outlast_the_host_says_nothing(tmp_path):
    said = retried(tmp_path, runs.host_gap, before=[runs.Launch(60_000)])
    assert said.verdict == "unclear" and "did not outlast the host" in said.reason, said


def test_a_rerun_on_another_machine_says_nothing(tmp_path):
    made = planned(tmp_path / "before", runs.host_gap)
    after, _ = runs.analysed(runs.run(tmp_path / "after", runs.host_gap, "delay"))
    other = replace(after, trace=replace(after.trace, devices=("NVIDIA A100",)))
    assert said_of(made, after).verdict == "confirmed"
    reason = "the second run was made on NVIDIA A100 instead of Simulated H200"
    assert said_of(made, other).reason == reason


def test_a_synchronisation_that_was_not_seen_before_is_named(tmp_path):
    def after(k):
        return [runs.Record("a"), runs.Sync(), *runs.host_gap(k)[1:]]

    said = retried(tmp_path, runs.host_gap, after=after)
    assert said.verdict == "unclear" and "did not outlast the host" in said.reason, said


def test_only_intervals_with_the_intervention_count(tmp_path):
    said = retried(tmp_path, runs.host_gap, flagged=False)
    assert said.verdict == "unclear" and "found no start record of t1" in said.reason


def test_another_label_or_other_work_says_nothing(tmp_path):
    assert "no interval t1" in retried(tmp_path / "1", runs.host_gap, label="t2").reason
    other = retried(tmp_path / "2", runs.host_gap, after=runs.many_launches)
    assert "different work" in other.reason
    assert "at least 3" in retried(tmp_path / "3", runs.host_gap, count=2).reason


REFUSED = [
    (runs.synchronises, "delay", "synchronises inside"),
    (runs.item, "delay", "pageable"),
    (runs.too_many, "delay", "1,005 operations"),
    (runs.busy_gpu, "delay", "could not decide anything"),
    (runs.host_gap, "synchronize", "no time queued"),
]


@pytest.mark.parametrize(
    ("body", "intervention", "why"), REFUSED, ids=[f"{b.__name__}-{i}" for b, i, _ in REFUSED]
)
def test_what_cannot_answer_is_refused_with_the_reason(tmp_path, body, intervention, why):
    count = 3 if body is runs.too_many else runs.COUNT
    assert why in refused(tmp_path, body, intervention, count=count)


def test_few_intervals_and_unknown_places_are_refused(tmp_path):
    assert "at least 3" in refused(tmp_path / "1", runs.host_gap, count=2)
    assert "start record is made" in refused(tmp_path / "2", runs.host_gap, site=False)


def test_a_chain_of_records_is_refused(tmp_path):
    """The start record of one interval is the end record of the one before: a delay would lie
    inside that one."""
    from simulator import export, machine
    from simulator.program import Elapsed, Program

    steps = []
    for k in range(6):
        steps += [runs.Record(f"e{k}"), runs.Sleep(150_000), runs.Launch(20_000)]
    steps += [runs.Sync(), *[Elapsed(f"e{k}", f"e{k + 1}", f"t1#{k}") for k in range(5)]]
    sqlite, logs = export.write(machine.run(Program({500: steps})), tmp_path)
    analysis = nsysalign.analyze(sqlite, events=logs)
    with pytest.raises(Refused, match="the end record of the interval before"):
        plan(analysis, "t1", "delay", None)


def test_what_is_chosen_by_default(tmp_path):
    synchronised = (runs.behind_earlier_work, "synchronize")
    for body, intervention in (
        (runs.host_gap, "delay"), synchronised, (runs.many_launches, "delay"),
    ):  # fmt: skip
        analysis, _ = runs.analysed(runs.run(tmp_path / body.__name__, body))
        assert confirmable(analysis) == ["t1"] and choose(analysis, "t1") == intervention


def test_the_prediction_holds_for_programs_drawn_at_random(tmp_path):
    """Whatever the host does between the operations, a delay leaves what the budget predicts."""
    random = np.random.default_rng(5)
    for number in range(3):
        pieces = []
        for _ in range(int(random.integers(1, 8))):
            pieces.append(runs.Sleep(int(random.integers(0, 60_000))))
            pieces.append(runs.Launch(int(random.integers(1_000, 90_000))))
        body = [runs.Record("a"), runs.Sleep(150_000), *pieces, runs.Record("b")]
        said = retried(tmp_path / str(number), lambda k, body=body: body, "delay")
        assert said.verdict == "confirmed", (said, body)


NS = st.integers(1_000, 10**9)


@given(NS, NS, NS, st.floats(0, 0.3), st.floats(0, 0.3), st.floats(0, 0.3))
def test_a_verdict_follows_from_what_meets_what(before, predicted, after, a, b, c):
    def verdict(factor):
        levels = [
            Level(factor * ns, factor * ns * (1 - share), factor * ns * (1 + share))
            for ns, share in ((before, a), (predicted, b), (after, c))
        ]
        return decide(Plan("t1", "delay", *levels[:2]), levels[2])

    meets = after * (1 - c) <= predicted * (1 + b) and predicted * (1 - b) <= after * (1 + c)
    unchanged = after * (1 - c) <= before * (1 + a) and before * (1 - a) <= after * (1 + c)
    word, reason = verdict(1)
    assert word == ("unclear" if meets and unchanged else "confirmed" if meets else "refuted")
    assert "predicted" in reason
    assert verdict(2)[0] == word  # a clock that counts twice as fast changes nothing


def test_predictions_hold_on_a_recorded_h200_where_the_host_had_run_ahead(tmp_path):
    """There the interval already is what a delay would make of it.  And 50 tiny launches behind a
    delay took 89.0 and 93.6 us in other runs on an H200 (this one reads 414 us): within the
    prediction."""
    trace, log = unpack("demo", tmp_path)
    analysis = nsysalign.analyze(trace, events=[log])
    measured = analysis.labels.set_index("label")["median_ns"]
    rows = np.flatnonzero(analysis.measured["label"].str.match("dev_t|flush_t"))
    ahead = rows[parts_of(analysis, rows, *NONE_IF_AHEAD) == 0]
    expected, error = gpu_time(analysis, ahead)
    elapsed = analysis.measured["elapsed_ns"].to_numpy()[ahead]
    assert len(ahead) > 20 and (abs(elapsed - expected) <= error).all()
    assert np.median(abs(elapsed - expected)) < 250  # latencies are those of a table
    tiny, error = gpu_time(analysis, rows_of(analysis, "small50"))
    low, high = np.median(tiny - error), np.median(tiny + error)
    assert low < 89_000 and 93_600 < high < measured["small50"] / 3
    first, _ = gpu_time(analysis, rows_of(analysis, "h2d_t1"))
    assert (
        np.median(first) == pytest.approx(measured["dev_t1"], abs=1_500)
        and measured["h2d_t1"] > 200_000
    )


def test_a_re_run_is_offered_where_the_probe_could_intervene():
    """A pair of a Python program's own code; not what two runs measured, a library's label, a pair
    that was read from the trace, a range, or a program that no probe runs in."""
    run = [[("host", 10_000, "it")]] * 3
    labels = [("mine", "event"), ("read", "event"), ("theirs", "event"), ("range", "nvtx")]
    rows = [(name, kind, "a.py:1", name == "theirs", run) for name, kind in labels]
    a = build(rows)
    a = replace(
        a,
        calibration={"collected_with": [{"pid": 1, "python": "3.11.7"}]},
        intervals=a.intervals.assign(
            method=["inferred" if label == "read" else "clock" for label in a.intervals["label"]]
        ),
        findings=pd.DataFrame(
            {
                "label": ["mine", *(name for name, _ in labels)],
                "rule": ["profiler-inflation", *["host-gap"] * 4],
            }
        ),
    )
    measured, *others = statuses(a)
    assert measured.verdict == "measured" and {o.verdict for o in others} == {"not confirmed"}
    assert [o.text for o in others] == ["nsysalign confirm --label mine SCRIPT.py", "", "", ""]
    for without in ({}, {"collected_with": [{"pid": 1}]}):
        assert not any(status.text for status in statuses(replace(a, calibration=without))[1:])


def test_a_host_timer_beside_the_intervened_record_is_not_intervened():
    """It has no start record; the label's first record is number 1, and the next one was left as it
    is."""
    windows = pd.DataFrame({"start": [-1, 0, 1], "log_process": [0, 0, 0]})
    alignment = SimpleNamespace(windows=windows, records=pd.DataFrame({"seq": [1, 2]}))
    records = pd.DataFrame({"process": [0, 0], "seq": [1, 2], "intervened": [True, False]})
    assert _intervened(alignment, SimpleNamespace(records=records)) == [False, True, False]
    assert _intervened(alignment, None) == [False, False, False]
