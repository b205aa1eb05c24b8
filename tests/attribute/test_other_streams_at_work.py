"""What other streams do to an interval and to the run as a whole.  Everything in microseconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cases.drawing import analysed, in_nanoseconds, kernel, side_by_side
from simulator import check
from simulator.world import LEGACY, NON_BLOCKING, World

from nsysalign.model import OTHERS_WORKED


def world() -> World:
    return World(streams={7: LEGACY, 13: NON_BLOCKING, 14: NON_BLOCKING})


# --- while its stream was idle
# -----------------------------------------------------------------------------------


WORKED = [
    ([(10, 20)], None, False),            # half of 20 us is not most
    ([(10, 20.1)], None, True),
    ([(0, 16)], None, False),             # what ran before the window does not count
    ([(0, 16.1)], None, True),
    ([(16, 60)], None, False),            # nor what ran after it
    ([(15.9, 60)], None, True),
    ([(0, 60)], None, True),
    ([(8, 12), (13, 17), (20, 22.1)], None, True),
    ([(8, 12), (13, 17), (20, 22)], None, False),
    ([(0, 5), (30, 40)], None, False),
    ([(8, 16)], (8, 16), False),          # 12 us idle, in which nobody worked
    ([(8, 22)], (8, 16), False),          # 6 of 12
    ([(8, 22.1)], (8, 16), True),
]  # fmt: skip


@pytest.fixture(scope="module")
def worked(tmp_path_factory) -> list:
    """
    7     |6 ------------ 26|
    13       #10----20
    """
    worlds = {}
    for number, (others, own, _) in enumerate(WORKED):
        worlds[str(number)] = w = world()
        for k, (start, end) in enumerate(others):
            kernel(w, (-40 + 3 * k, -38 + 3 * k), (start, end), 13)
        if own:
            kernel(w, (-20, -18), own)
        first = w.record(6, 0, 2)
        w.pair(first, w.record(26, 3, 5))
        kernel(w, (200, 202), (204, 210), 14)
        w.sync(300, 310)
        in_nanoseconds(w)
    _, rows = side_by_side(worlds, tmp_path_factory.mktemp("worked"))
    return [OTHERS_WORKED in flags for of in rows.values() for flags in of["flags"]]


@pytest.mark.parametrize("number", range(len(WORKED)))
def test_others_worked_through_most_of_the_idle_time(worked, number):
    assert worked[number] is WORKED[number][2] and len(worked) == len(WORKED)


# --- between two operations of the interval
# ----------------------------------------------------------------------


def inner(w: World, folder: Path) -> Iterator:
    """
    H    r0  s8-10  (something 11-12)  s13-15                     r16-18
    7      |6    #12-20      ... 20-63 ...            #65-80            |84       a gap that no end of the window cuts
    13   #1------------------------------------60 |63

    The record at 63 first, to be waited for; then the parts.
    """
    kernel(w, (-8, -5), (1, 60), 13)
    record = w.record(63, -4, -2, 13)
    start = w.record(6, 0, 2)
    kernel(w, (8, 10), (12, 20))
    yield record
    kernel(w, (13, 15), (65, 80))
    w.pair(start, w.record(84, 16, 18))
    w.sync(100, 110)
    analysis = analysed(w, folder)
    yield {
        cause: ns // 1_000
        for cause, ns in check.parts(analysis, int(analysis.measured["interval"].iloc[0])).items()
    }


def test_a_wait_between_two_operations(tmp_path):
    w = world()
    steps = inner(w, tmp_path)
    w.wait(next(steps), 11, 12, 7)
    assert next(steps) == {
        "kernel": 23,
        "queued": 43,
        "launch_latency": 4,
        "host": 2,
        "api_launch": 2,
        "event": 4,
    }


@pytest.mark.parametrize(("at", "unknown"), [(11, 45), (5, 2), (20, 0)])
def test_a_host_function_between_two_operations(tmp_path, at, unknown):
    """Nobody knows how long it held up what was launched next: from 20 to 65, or from 10 to 12; the
    end record launches nothing."""
    w = world()
    steps = inner(w, tmp_path)
    next(steps)
    w.call("host_function", at, at + 0.5)
    assert next(steps).get("unknown", 0) == unknown


# --- for the interval, whatever the CPU did


@pytest.mark.parametrize(
    ("waits", "copied", "before", "expected"),
    [
        ((13, 14), False, False, 62),  # 13's 8-40 and 14's 30-70, once where both ran
        ((13,), False, False, 32),  # the end does not wait for 14
        ((), False, False, 0),
        ((13, 14), True, False, 40),  # a copy on 13 does not compute
        ((13, 14), False, True, 40),  # what 13 runs was launched before
    ],
)
def test_how_long_the_gpu_worked_for_it_on_other_streams(waits, copied, before, expected, tmp_path):
    """
    H    r0 s3-5 s6-7                                             s30-34 still launches        r36-38
    7      |6                                                                    #74-80       |90
    13          #8-----------------40  (42|)
    14                           #30------------------70 (72|)
    """
    w = world()
    call = (-5, -3) if before else (3, 5)
    if copied:
        w.copy(8, 40, w.call("memcpy", *call), 13, pageable=False)
    else:
        kernel(w, call, (8, 40), 13)
    start = w.record(6, 0, 2)
    kernel(w, (6, 7), (30, 70), 14)
    for number, stream in enumerate((13, 14)):
        record = w.record(42 + 30 * number, 20 + 2 * number, 21 + 2 * number, stream)
        if stream in waits:
            w.wait(record, 25 + 2 * number, 26 + 2 * number, 7)
    kernel(w, (30, 34), (74, 80))
    w.pair(start, w.record(90, 36, 38))
    w.sync(100, 110)
    (group,) = analysed(w, tmp_path).groups.itertuples()
    assert group.elsewhere_ns == 1_000 * expected


# --- the run as a whole
# ------------------------------------------------------------------------------------------


def test_idle_time_of_a_device_waits_for_what_the_next_operations_stream_waits_for(tmp_path):
    """
    H    s13 r13  s7  w7   s14 s7                              s80-82 (14)
    7             #3-10                  .. |50 |52   #60-70
    13    #1------------------------------50 |52                              a record of 13 that 7 waits for, until 52
    14                    #20-22                                  #90-95
    device  idle          50-60 queued 2, latency 8                70-90 host 10, call 2, latency 8
    """
    w = world()
    kernel(w, (-20, -18), (1, 50), 13)
    r = w.record(52, -16, -14, 13)
    kernel(w, (0, 2), (3, 10))
    w.wait(r, 4, 5, 7)
    kernel(w, (6, 8), (20, 22), 14)
    kernel(w, (10, 12), (60, 70))
    kernel(w, (80, 82), (90, 95), 14)
    w.sync(100, 110)
    analysis = analysed(w, tmp_path)
    device = analysis.runs.set_index("label")["interval"]["run"]
    assert check.parts(analysis, device) == {
        "kernel": 64_000, "queued": 2_000, "launch_latency": 16_000, "host": 10_000, "api_launch": 2_000,
    }  # fmt: skip
    (queued,) = analysis.details[
        (analysis.details["interval"] == device) & (analysis.details["cause"] == "queued")
    ].itertuples()
    assert (queued.detail, queued.stream) == ("dependency", 13)


def test_a_run_counts_operations_that_others_hide(tmp_path):
    """
    7    #0-------20          #30-40
    13       #5-10     #20-25
    """
    w = world()
    for call, run, stream in (
        ((-20, -18), (0, 20), 7),
        ((-16, -14), (5, 10), 13),
        ((-12, -10), (20, 25), 13),
        ((-8, -6), (30, 40), 7),
    ):
        kernel(w, call, run, stream)
    w.sync(50, 60)
    runs = analysed(w, tmp_path).runs.set_index("label")
    assert runs["operations"].to_dict() == {"run": 4, "run (stream 7)": 2, "run (stream 13)": 2}


# --- host timers
# ---------------------------------------------------------------------------------------------------
