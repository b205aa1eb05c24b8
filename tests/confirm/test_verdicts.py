"""Predictions from the budget of a plain run, and what a re-run says about them: simulated
machines, whose truth is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from handmade import build
from hypothesis import given
from hypothesis import strategies as st
from thorough import part

import nsysalign
from nsysalign.addons.confirm.experiment import (
    Level,
    Plan,
    Refused,
    changed_records,
    choose,
    decide,
    gpu_time,
    judge,
    parts_of,
    plan,
    rows_of,
)
from nsysalign.addons.confirm.verdicts import statuses
from nsysalign.causes import NONE_IF_AHEAD
from nsysalign.model import Known

from . import runs

PLAIN: dict = {}  # what a plain run of a program is, it stays


def planned(folder, body, intervention=None, **more):
    key = (body, *more.items())
    if key not in PLAIN:
        PLAIN[key] = runs.analysed(runs.run(folder, body, **more))
    analysis, log = PLAIN[key]
    chosen = intervention or choose(analysis, "t1")
    return plan(analysis, "t1", chosen, log)


def retried(tmp_path, body, intervention=None, after=None, **more):
    made = planned(tmp_path / "before", body, intervention)
    again = runs.run(tmp_path / "after", after or body, made.change, **more)
    return said_of(made, again)


def said_of(made, folder):
    after, _ = runs.analysed(folder)
    changed = changed_records(folder.glob("events-*.jsonl"))
    (row,) = judge(made, after, "", changed).itertuples(index=False)
    return row


def pair(*steps):
    """A body with these steps between its records."""
    return lambda k: [
        runs.Record("a"),
        *[s(k) if callable(s) else s for s in steps],
        runs.Record("b"),
    ]


def loads(k):
    """The first run loads code for 3 ms, the delay takes 1 ms."""
    return runs.Sleep(3_000_000 if k == 0 else 150_000)


DELAY, SYNC = "delay", "synchronize"
#: What runs, what runs in its second run ("" the same), its change, the verdict, what is said.
CASES = {
    "a host gap": (runs.host_gap, None, DELAY, "confirmed", "predicted"),
    "many launches": (runs.many_launches, None, DELAY, "confirmed", "predicted"),
    "earlier work": (runs.behind_earlier_work, None, SYNC, "confirmed", "predicted"),
    "its own work": (runs.behind_own_work, None, SYNC, "refuted", ""),
    "the kernel is slow by itself, the delay only hides the host": (
        runs.host_gap, pair(runs.Launch(180_000)), DELAY, "refuted", "predicted",
    ),
    "half a cause": (
        runs.host_gap, pair(lambda k: runs.Launch(100_000 + 50 * k)), DELAY, "refuted",
        "predicted",
    ),
    "the few that the delay did not hold are left out and counted": (
        pair(loads, runs.Launch(25_000)), None, DELAY, "confirmed",
        "; 1 of 8 left out, because the delay ended before the host had issued everything",
    ),
    "a synchronisation that was not seen before": (
        runs.host_gap, pair(runs.Sync(), runs.Sleep(150_000), runs.Launch(25_000)), DELAY,
        "unclear", "did not outlast the host",
    ),
    "a copy back to pageable memory holds up the host": (
        runs.item, None, DELAY, "unclear", "did not outlast the host",
    ),
    "more than the launch queue holds": (
        runs.too_many, None, DELAY, "unclear", "did not outlast the host",
    ),
    "other work": (runs.host_gap, runs.many_launches, DELAY, "unclear", "different work"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_verdict_and_its_words(tmp_path, name):
    body, after, change, verdict, words = CASES[name]
    few = {"count": 3} if body is runs.too_many else {}  # a thousand launches each
    said = retried(tmp_path, body, after=after, **few)
    assert (said.intervention, said.verdict) == (change, verdict), said
    assert words in said.reason
    if verdict == "confirmed":
        assert said.before_ns > 1.5 * said.after_ns
        assert said.predicted_low_ns <= said.after_ns <= said.predicted_high_ns
        assert said.after_count == runs.COUNT - ("left out" in words)


def test_the_delay_is_as_long_as_the_host_needs(tmp_path):
    made = planned(tmp_path, pair(runs.Sleep(2_000_000), runs.Launch(9_000)))
    assert 4_000_000 < made.delay_ns < 4_500_000


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"before": [runs.Launch(60_000)]}, "did not outlast the host"),
        ({"flagged": False}, "no interval t1 at which the probe intervened"),
        ({"label": "t2"}, "no interval t1"),
        ({"count": 2}, "at least 3"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_second_run_that_says_nothing(tmp_path, more, words):
    said = retried(tmp_path, runs.host_gap, **more)
    assert said.verdict == "unclear" and words in said.reason


def test_a_rerun_on_another_machine_says_nothing(tmp_path):
    made = replace(planned(tmp_path / "before", runs.host_gap), devices=("NVIDIA A100",))
    after = runs.run(tmp_path / "after", runs.host_gap, "delay")
    reason = "the second run was made on Simulated H200 instead of NVIDIA A100"
    assert said_of(made, after).reason == reason


REFUSED = {
    "synchronises inside": (runs.synchronises, DELAY, {}),
    "could not decide anything": (runs.busy_gpu, DELAY, {}),
    "no time queued": (runs.host_gap, SYNC, {}),
    "at least 3": (runs.host_gap, DELAY, {"count": 2}),
    "where its start record is made": (runs.host_gap, DELAY, {"site": False}),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_cannot_answer_is_refused_with_the_reason(tmp_path, why):
    body, change, more = REFUSED[why]
    with pytest.raises(Refused, match=why):
        planned(tmp_path, body, change, **more)


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
    with pytest.raises(Refused, match="overlap or share records"):
        plan(analysis, "t1", "delay", None)


def test_the_prediction_holds_for_programs_drawn_at_random(tmp_path):
    """Whatever the host does between the operations, a delay leaves what the budget predicts."""
    random = np.random.default_rng(5)
    for number in range(part(1, 3)):
        pieces = []
        for _ in range(int(random.integers(1, 8))):
            pieces.append(runs.Sleep(int(random.integers(0, 60_000))))
            pieces.append(runs.Launch(int(random.integers(1_000, 90_000))))
        said = retried(tmp_path / str(number), pair(runs.Sleep(150_000), *pieces), "delay")
        assert said.verdict == "confirmed", (said, pieces)


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


def test_predictions_hold_on_a_recorded_h200_where_the_host_had_run_ahead(recorded):
    """There the interval already is what a delay would make of it.  And 50 tiny launches behind a
    delay took 89.0 and 93.6 us in other runs on an H200 (this one reads 414 us): within the
    prediction."""
    analysis = recorded("probe").analysis
    measured = analysis.labels.set_index("label")["median_ns"]
    rows = np.flatnonzero(analysis.measured["label"].str.match("dev_t|flush_t"))
    ahead = rows[parts_of(analysis, rows, *NONE_IF_AHEAD) == 0]
    expected, error = gpu_time(analysis, ahead)
    elapsed = analysis.measured["elapsed_ns"].to_numpy()[ahead]
    assert len(ahead) > 20 and (abs(elapsed - expected) <= error).all()
    tiny, error = gpu_time(analysis, rows_of(analysis, "small50"))
    low, high = np.median(tiny - error), np.median(tiny + error)
    assert low < 89_000 and 93_600 < high < measured["small50"] / 3
    first, _ = gpu_time(analysis, rows_of(analysis, "h2d_t1"))
    assert (
        np.median(first) == pytest.approx(measured["dev_t1"], abs=1_500)
        and measured["h2d_t1"] > 200_000
    )


def test_a_re_run_is_offered_where_the_probe_could_intervene():
    """A pair of a Python program's own code; not a library's label, a pair that was read from the
    trace, a range, or a program that no probe runs in."""
    run = [[("host", 10_000, "it")]] * 3
    labels = [("mine", "event"), ("read", "event"), ("theirs", "event"), ("range", "nvtx")]
    rows = [(name, kind, "a.py:1", name == "theirs", run) for name, kind in labels]
    a = build(rows)
    a = replace(
        a,
        known=Known(python="3.11.7"),
        intervals=a.intervals.assign(
            method=["inferred" if label == "read" else "clock" for label in a.intervals["label"]]
        ),
        findings=pd.DataFrame(
            {
                "label": [name for name, _ in labels],
                "rule": ["host-gap"] * 4,
            }
        ),
    )
    found = statuses(a)
    assert {status.verdict for status in found} == {"not confirmed"}
    assert [s.text for s in found] == ["nsysalign confirm --label mine SCRIPT.py", "", "", ""]
    assert not any(status.text for status in statuses(replace(a, known=Known())))
