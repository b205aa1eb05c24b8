"""What the replay of one interval takes from the trace, drawn by hand: everything in microseconds.

host    [L0   [sync      ]    r0  L10  L15  L20  G25  r35     [sync        ]
7         #-94---50             |6   #16-30 #31-50 G52-60 |63
13                                        #26------------90
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from cases.drawing import MAIN, OTHER, ZERO, in_nanoseconds, kernel
from simulator import export
from simulator.world import LEGACY, NON_BLOCKING, HostInterval, World

from nsysalign.place.align import align
from nsysalign.place.streams import lane_operations
from nsysalign.predict import unprofiled
from nsysalign.predict.replay import HIDDEN, NOTHING
from nsysalign.trace.eventlog import read_event_logs
from nsysalign.trace.read import read_trace


def world() -> World:
    return World(streams={7: LEGACY, 13: NON_BLOCKING})


def before(w: World) -> None:
    """Kernels on an idle stream, each 2 us after its call; the last with a synchronisation that
    returns 2 us after it."""
    for t in range(-900, -200, 100):
        kernel(w, (t, t + 4), (t + 6, t + 20))
    kernel(w, (-100, -96), (-94, -50))
    w.sync(-90, -48)


def ordinary() -> World:
    w = world()
    before(w)
    start = w.record(6, 0, 2)
    kernel(w, (10, 14), (16, 30))
    kernel(w, (15, 19), (31, 50))
    kernel(w, (20, 24), (26, 90), 13)
    w.op("graph", 52, 60, w.call("graph_launch", 25, 30))
    w.pair(start, w.record(63, 35, 38))
    w.sync(100, 150)
    return w


class Found(SimpleNamespace):
    """Numbers in us: `calls` (start), `items` (lane, start, end, call, latency, gap, behind, trim),
    `device`, `trim`."""


def scene(w: World, folder: Path, kind: str = "event") -> Found:
    path, logs = export.write(in_nanoseconds(w), folder)
    trace = read_trace(path)
    alignment = align(trace, read_event_logs(logs))
    lanes = lane_operations(trace, alignment.operation_lane)
    predictor = unprofiled.Predictor(trace, alignment, lanes)
    (window,) = alignment.windows[alignment.windows["kind"] == kind].itertuples(index=False)
    s = predictor.scene(window)
    items = [
        (
            i.lane,
            (i.start - ZERO) / 1000,
            (i.end - ZERO) / 1000,
            i.call,
            i.latency / 1000,
            i.gap / 1000,
            i.behind,
            0,
        )
        for i in s.items
    ]
    return Found(calls=[(c.start - ZERO) / 1000 for c in s.calls], items=items, device=[i.device for i in s.items], trim=[i.trim for i in s.items], start=s.start,
                 end=s.end, reason=s.reason, back=predictor.back)  # fmt: skip


def test_an_ordinary_interval(tmp_path):
    """Launches of kernels take 2 us on an idle stream: most show it.  No graph was launched on one:
    3 us."""
    s = scene(ordinary(), tmp_path)
    assert s.reason == "" and s.back == 2_000
    assert s.calls == [0, 10, 15, 20, 25, 35], "after the wait, up to the end record"
    assert s.items == [
        # lane start end call latency gap
        (0, 6, 6, 0, 6, 0, NOTHING, 0),  # nothing before it on the stream
        (0, 16, 30, 1, 6, 1.25, NOTHING, 0),  # its call decides: 4 in it, 2 after it; the usual gap
        (0, 31, 50, 2, 6, 1, NOTHING, 0),  # its predecessor decides: 1 behind it; the usual latency
        (0, 52, 60, 4, 8, 2, NOTHING, 0),  # a graph: 5 in the call and 3
        (0, 63, 63, 5, 4, 3, NOTHING, 0),  # a record: 4
        (1, 26, 90, 3, 6, 0, NOTHING, 0),
    ]
    assert (s.start, s.end) == (0, 4)
    assert s.device == [0, 280, 100, 0, 0, 0], (
        "of a gap what is more than 0.9 us, at most 0.28, and before kernels only"
    )
    assert s.trim == [0, 0, 0, 1_200, 0, 0], "around a graph"


@pytest.mark.parametrize(
    ("at", "device"), [(30.9, 0), (31, 100), (32, 280), (32.4, 280), (32.5, 0), (35, 0)]
)
def test_what_nsys_does_before_a_kernel_that_follows_closely(tmp_path, at, device):
    """Its predecessor ends at 30; a gap of 2.5 us and more is no close following."""
    w = world()
    before(w)
    start = w.record(6, 0, 2)
    kernel(w, (10, 14), (16, 30))
    kernel(w, (15, 19), (at, 50))
    w.pair(start, w.record(53, 35, 38))
    w.sync(100, 150)
    s = scene(w, tmp_path)
    assert s.items[2][5] == pytest.approx(at - 30) and s.device[2] == device


def test_a_host_timer_takes_the_calls_that_end_in_it(tmp_path):
    """
    host  [L-3    |0  [L2  [other 10-40 ...
                                  |30
    """
    w = world()
    kernel(w, (-3, -1), (1, 4))
    kernel(w, (2, 6), (8, 20))
    w.call("other", 10, 40)
    w.sync(50, 60)
    w.host_intervals.append(HostInterval("case#0", 0, 30, MAIN))
    s = scene(w, tmp_path, "host")
    assert s.calls == [2]
    # what was unfinished when it begins is there, issued before all
    assert s.items == [(0, 1, 4, -1, 0, 0, NOTHING, 0), (0, 8, 20, 0, 6, 1.25, NOTHING, 0)]


def test_what_starts_late_waited_for_another_stream(tmp_path):
    """
    7    |6                           #65-80 |84      10 us later than its launch: behind what ended just before
    13       #26-----------------64
    """
    w = world()
    before(w)
    start = w.record(6, 0, 2)
    kernel(w, (3, 7), (26, 64), 13)
    kernel(w, (10, 14), (65, 80))
    w.pair(start, w.record(84, 16, 18))
    w.sync(100, 150)
    s = scene(w, tmp_path)
    late = s.items[1]
    assert late[1:4] == (65, 80, 2) and late[6] == 3, "the kernel of the other stream"
    assert late[4:6] == (6, 1.25), "as launches and gaps usually are"
    assert s.items[3][:3] == (1, 26, 64) and s.items[3][6] == HIDDEN, (
        "of 19 us nobody knows what it waited for"
    )
    assert s.device == [0, 0, 0, 0]


def test_threads_that_compete_are_not_replayed(tmp_path):
    def competing(count: int, kind: str) -> World:
        w = world()
        before(w)
        start = w.record(6, 0, 2)
        for k in range(count):
            w.call(kind, 10 + 20 * k, 18 + 20 * k)
            kernel(w, (15 + 20 * k, 19 + 20 * k), (21 + 20 * k, 24 + 20 * k), thread=OTHER)
        w.pair(start, w.record(206, 200, 202))
        w.sync(300, 350)
        return w

    assert scene(competing(2, "other"), tmp_path / "a").reason == ""
    assert scene(competing(3, "other"), tmp_path / "b").reason == "threads"
    assert scene(competing(3, "sync_device"), tmp_path / "c").reason == "", (
        "one that waits does not compete"
    )


def test_an_interval_of_very_many_calls_is_not_replayed(tmp_path, monkeypatch):
    monkeypatch.setattr(unprofiled, "MOST_CALLS", 6)
    assert scene(ordinary(), tmp_path / "a").reason == ""
    monkeypatch.setattr(unprofiled, "MOST_CALLS", 5)
    s = scene(ordinary(), tmp_path / "b")
    assert s.reason == "long" and not s.items and s.start == s.end == -1
