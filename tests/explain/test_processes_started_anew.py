"""A DataLoader whose workers start anew in each epoch: the first step waits for them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from cases.drawing import MAIN, ZERO, in_nanoseconds, kernel
from simulator import check, export
from simulator.world import LEGACY, World

from nsysalign.answer import answer
from nsysalign.explain.runs.forks import Forks
from nsysalign.explain.runs.gaps import Forking, IdleTime
from nsysalign.model import Known
from nsysalign.text import ordinal

from .drawing import analysis, diagnose, interval, issued_table

EPOCHS, STEPS = 6, 24
SLOW_US, USUAL_US = 310_000, 4_000


def told(slow, *, forking=(), processes=4, torch="2.11", others=USUAL_US):
    """The answer of 144 steps of which the slow ones (their numbers) take 310 ms, and those that fork start processes at
    once."""
    lengths = [SLOW_US if n in slow else others for n in range(EPOCHS * STEPS)]
    drawn, forks, at = [], [], 0
    for n, us in enumerate(lengths):
        pieces = [("host", us - 105), ("api_launch", 5), ("kernel", 100)]
        drawn.append(interval("step", *pieces, start=at, tid=7))
        forks += [1_000 * (at + 10 * k) for k in range(1, processes + 1) if n in forking]
        at += us + 50
    drawn = analysis(drawn)
    number = len(drawn.groups)
    issued = issued_table([(g, "kernel", "at::native::add", 1, 0, 9) for g in range(number)])
    known = Known(torch=torch, python="3.12")
    of_runs = (Forks(1, np.array(forks, np.int64)),) if forks else ()
    return answer(diagnose(replace(drawn, issued=issued, known=known, of_runs=of_runs)))


FIRST_STEPS = range(0, EPOCHS * STEPS, STEPS)


def keeps_workers(said):
    return any("persistent_workers" in fix.code for fix in said.fixes)


def test_the_first_step_of_each_epoch_forks_workers():
    said = told(FIRST_STEPS, forking=FIRST_STEPS)
    text = said.labels[0].sentence
    assert "Every 24th timing, from the first on, is such a slow one: it forks 4 times" in text
    assert "starts its workers anew" in text and keeps_workers(said)


def test_without_a_fork_only_the_distance_is_said():
    said = told(FIRST_STEPS)
    text = said.labels[0].sentence
    assert "Every 24th timing, from the first on, is such a slow one." in text
    assert "DataLoader" not in text and not keeps_workers(said)


def test_the_distance_begins_anywhere():
    text = told(range(9, EPOCHS * STEPS, STEPS)).labels[0].sentence
    assert "Every 24th timing is such" in text and "from the first" not in text


@pytest.mark.parametrize(
    "slow", [(0, 24, 49, 72, 96, 120), (0, 24), (0, 24, 48), range(0, EPOCHS * STEPS, 2)]
)
def test_nothing_is_said_of_slow_timings_at_other_distances(slow):
    """One of them comes a step later, they are two, they end in the middle, every second one is."""
    assert "such a slow" not in told(slow).labels[0].sentence


def test_forks_in_other_timings_too_explain_nothing():
    said = told(FIRST_STEPS, forking=range(EPOCHS * STEPS))
    assert "fork" not in said.labels[0].sentence and not keeps_workers(said)


def test_an_epoch_that_forks_each_time():
    said = told((), forking=range(EPOCHS * STEPS), others=SLOW_US)
    text = said.labels[0].sentence
    assert "Each of the 144 forks 4 times" in text and keeps_workers(said)


@pytest.mark.parametrize(
    ("forking", "says"),
    [(Forking(620_000, 5, 20), True), (Forking(620_000, 1, 20), False), (Forking(90_000, 5, 20), False)],
)  # fmt: skip
def test_gaps_of_the_run_in_which_workers_start(forking, says):
    pieces = [("kernel", 100), ("host", 800), ("kernel", 100)]
    drawn = analysis(interval("run", *pieces, kind="run"))
    known = Known(torch="2.11", python="3.12")
    drawn = replace(drawn, known=known, of_runs=(IdleTime(1, 0, forking=forking),))
    (found,) = (row for row in diagnose(drawn).findings.itertuples() if row.rule == "whole-run")
    assert ("persistent_workers" in found.faster) == says
    assert ("lie in 5 gaps in which it forks (20 times in all)" in found.title) == says


def test_forks_of_the_log_lie_in_gaps_of_the_trace(tmp_path):
    """
    H  r0-2     y10-12                                                  r96-98
    fork             20-22 25-27          60-62                90
    G    |6  #6-10        [      idle     ] #40-50   [ idle  ] #84-95       |100
    """
    world = World(streams={7: LEGACY})
    first = world.record(6, 0, 2)
    kernel(world, (3, 4), (6, 10))
    kernel(world, (38, 39), (40, 50))
    kernel(world, (82, 83), (84, 95))
    world.pair(first, world.record(100, 96, 98))
    trace, (log,) = export.write(in_nanoseconds(world), tmp_path)
    shift = export.Style().monotonic + ZERO
    with log.open("a") as lines:
        for start, end in ((60, 62), (20, 22), (25, 27), (90, 91)):
            times = {"t0_ns": 1_000 * start + shift, "t1_ns": 1_000 * end + shift}
            lines.write(json.dumps({"type": "fork", "tid": MAIN & 0xFFFFFF, **times}) + "\n")
    made = check.analyze(trace, [log])
    check.invariants(made)
    (idle,) = made.of_runs_by(IdleTime)
    assert idle.forking == Forking((30 + 34) * 1_000, 2, 3)
    (forks,) = made.of_runs_by(Forks)
    assert np.diff(forks.start_ns).tolist() == [5_000, 35_000, 30_000]


@pytest.mark.parametrize(
    ("number", "text"), [(1, "1st"), (2, "2nd"), (3, "3rd"), (11, "11th"), (24, "24th"), (112, "112th"), (1_021, "1,021st")]
)  # fmt: skip
def test_ordinals(number, text):
    assert ordinal(number) == text
