"""Whether a host timer waited for the GPU before and after what it times.  Everything in
microseconds.

s: launch, y: synchronisation, |: a reading; the kernel of a launch runs 2 us after it
"""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from cases.drawing import MAIN, OTHER, in_nanoseconds, kernel
from simulator import check, export
from simulator.world import LEGACY, NON_BLOCKING, HostInterval, World

from nsysalign.split.host_windows import AFTER, BEFORE, IDLE

ALL = (BEFORE, AFTER, IDLE)


def launch(w: World, at: float, length: float = 5, thread: int = MAIN, stream: int = 7) -> None:
    kernel(w, (at, at + 2), (at + 4, at + 4 + length), stream, thread)


def flags(w: World, *windows: tuple[float, float], folder, statement: str = "") -> list[set[str]]:
    """Of the windows, in their order."""
    for n, (start, end) in enumerate(windows):
        w.host_intervals.append(HostInterval(f"case#{n}", start, end, MAIN))
    path, logs = export.write(in_nanoseconds(w), folder)
    if statement:
        with closing(sqlite3.connect(path)) as db:
            db.execute(statement)
            db.commit()
    found = check.analyze(path, logs).measured.sort_values("start_ns")["flags"]
    return [set(row) & set(ALL) for row in found]


CASES = {
    #                          launches  syncs (start, end)      flags
    "y |s y|": ([-40, 12], [(-30, -20), (20, 30)], {BEFORE, AFTER, IDLE}),
    "y |s |": ([-40, 12], [(-30, -20)], {BEFORE, IDLE}),
    "|s y|": ([12], [(20, 30)], {AFTER, IDLE}),
    "|s |": ([12], [], {IDLE}),
    "y s |s y| the launch came after the wait": (
        [-40, -12, 12],
        [(-30, -20), (20, 30)],
        {AFTER, IDLE},
    ),
    "|y s|": ([18], [(12, 16)], {IDLE}),
    "|y s y|": ([18], [(12, 16), (24, 30)], {AFTER, IDLE}),
    "s |y| nothing but a wait": ([-40], [(12, 20)], {AFTER, IDLE}),
    "| | nothing at all": ([-40], [], {IDLE}),
    "y |  | nothing at all, waited before": ([-40], [(-30, -20)], {BEFORE, IDLE}),
    "|s  y ends after the reading": ([12], [(20, 45)], {IDLE}),
    "y ends as the first reading is taken, the last as the second is": (
        [-40, 12],
        [(-5, 0), (20, 40)],
        ALL,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_one_window_from_0_to_40(tmp_path, name):
    launches, syncs, expected = CASES[name]
    w = World(streams={7: LEGACY})
    for at in launches:
        launch(w, at)
    for start, end in syncs:
        w.sync(start, end)
    w.call("other", 100, 101)
    assert flags(w, (0, 40), folder=tmp_path) == [set(expected)]


@pytest.mark.parametrize(
    ("length", "idle"), [(33, True), (33.5, True), (36, True), (36.1, False), (80, False)]
)
def test_idle_before_is_when_all_that_was_issued_had_ended(tmp_path, length, idle):
    """Issued at -40, it runs from -36."""
    w = World(streams={7: LEGACY})
    launch(w, -40, length)
    launch(w, 12)
    w.sync(120, 130)
    assert (IDLE in flags(w, (0, 40), folder=tmp_path)[0]) is idle


def test_the_longest_of_what_was_issued_decides(tmp_path):
    """
    7    #-36---------------4      13   #-26--21
    """
    w = World(streams={7: LEGACY, 13: NON_BLOCKING})
    launch(w, -40, 40)
    launch(w, -30, stream=13)
    w.sync(120, 130)
    assert flags(w, (0, 40), folder=tmp_path) == [set()]


def test_work_that_another_thread_issued_counts_for_idle_only(tmp_path):
    """
    H    y-30--20  |0   s12    y20-30  |40        the other thread's launch at -10 runs until 20
    H2          s-10
    """
    w = World(streams={7: LEGACY, 13: NON_BLOCKING})
    launch(w, -40)
    w.sync(-30, -20)
    launch(w, -10, 26, OTHER, 13)
    launch(w, 12)
    w.sync(20, 30)
    assert flags(w, (0, 40), folder=tmp_path) == [{BEFORE, AFTER}]


def test_a_wait_inside_the_window_before_is_not_one_before_this(tmp_path):
    """
    |0 s y30 |35   |40 s y70 |75         a loop that synchronises only at the end of each repetition
    """
    w = World(streams={7: LEGACY})
    for at in (0, 40):
        launch(w, at + 5)
        w.sync(at + 20, at + 30)
    assert flags(w, (0, 35), (40, 75), folder=tmp_path) == [{AFTER, IDLE}, {AFTER, IDLE}]


def test_of_windows_that_share_a_reading_both_have_the_wait(tmp_path):
    """
    |0 s y30 |35 s y70 |75
    """
    w = World(streams={7: LEGACY})
    for at in (0, 40):
        launch(w, at + 5)
        w.sync(at + 20, at + 30)
    assert flags(w, (0, 35), (35, 75), folder=tmp_path) == [{AFTER, IDLE}, {BEFORE, AFTER, IDLE}]


def test_a_synchronisation_that_failed_waited_for_nothing(tmp_path):
    w = World(streams={7: LEGACY})
    launch(w, -40)
    w.sync(-30, -20)
    launch(w, 12)
    w.sync(20, 30)
    failed = "update CUPTI_ACTIVITY_KIND_RUNTIME set returnValue = 719 where correlationId = 4"
    assert flags(w, (0, 40), folder=tmp_path, statement=failed) == [{BEFORE, IDLE}]


def test_intervals_of_events_have_no_such_flag(tmp_path):
    w = World(streams={7: LEGACY})
    launch(w, -40)
    w.sync(-30, -20)
    first = w.record(6, 0, 2)
    launch(w, 12)
    w.pair(first, w.record(30, 15, 17))
    w.sync(40, 50)
    assert flags(w, folder=tmp_path) == [set()]
