"""Whether the end of an interval is ordered behind the work on other streams that was issued inside: a
correct timing of several streams is accused of nothing.  Everything in microseconds.

    H    r0-2  s(13)10-14   ...   r40-42
    7      |6                          |
    13            #16---------90
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cases.drawing import OTHER, analysed, in_nanoseconds, kernel, side_by_side
from simulator.world import BLOCKING, LEGACY, NON_BLOCKING, Record, World


def side_work(w: World, end: float = 90, *, logged: bool = True) -> Record:
    """The kernel on stream 13, and a record behind it."""
    kernel(w, (10, 14), (16, end), 13)
    return w.record(end + 1, 16, 18, 13, logged=logged)


def wait_stream(w: World) -> None:
    w.wait(side_work(w), 20, 22, 7)


def work_wait(w: World) -> None:
    """A library's record and wait: no line of the log names them."""
    w.wait(side_work(w, logged=False), 20, 22, 7, logged=False)


def through_a_third_stream(w: World) -> None:
    w.wait(side_work(w), 20, 22, 14)
    w.wait(w.record(92, 24, 26, 14), 28, 30, 7)


def warm_up_of_a_graph(w: World) -> None:
    """side.wait_stream(current); work on side; current.wait_stream(side)"""
    w.wait(w.record(7, 3, 4, 7), 5, 6, 13)
    wait_stream(w)


def gradients_of_ddp(w: World) -> None:
    """Work on the timed stream, a bucket behind it on the collectives' stream, a wait for it."""
    kernel(w, (3, 5), (7, 30))
    w.wait(w.record(31, 6, 7, 7, logged=False), 8, 9, 13, logged=False)
    kernel(w, (10, 14), (33, 90), 13)
    w.wait(w.record(91, 16, 18, 13, logged=False), 20, 22, 7, logged=False)


def synchronised(w: World) -> None:
    side_work(w, 25)
    w.sync(20, 30, stream=13)


def default_stream(w: World) -> None:
    kernel(w, (10, 14), (16, 90), 15)


def nothing(w: World) -> None:
    side_work(w)


def ended_by_chance(w: World) -> None:
    side_work(w, 25)


def a_wait_for_what_was_before(w: World) -> None:
    before = w.record(7, 3, 5, 13)
    side_work(w)
    w.wait(before, 20, 22, 7)


def a_wait_of_the_other_stream(w: World) -> None:
    w.wait(w.record(7, 3, 5, 7), 6, 8, 13)
    side_work(w)


def the_record_after_the_end(w: World) -> None:
    kernel(w, (10, 14), (16, 90), 13)
    w.wait(w.record(91, 44, 46, 13), 48, 50, 7)


ORDERED = (
    wait_stream, work_wait, through_a_third_stream, warm_up_of_a_graph, gradients_of_ddp,
    synchronised, default_stream,
)  # fmt: skip
NOT_ORDERED = (
    nothing, ended_by_chance, a_wait_for_what_was_before, a_wait_of_the_other_stream,
    the_record_after_the_end,
)  # fmt: skip


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """(analysis, the interval of each drawing), all drawings in one trace."""
    worlds = {}
    for draw in (*ORDERED, *NOT_ORDERED):
        world = World(streams={7: LEGACY, 13: NON_BLOCKING, 14: NON_BLOCKING, 15: BLOCKING})
        start = world.record(6, 0, 2)
        draw(world)
        held = draw in ORDERED and draw is not synchronised
        world.pair(start, world.record(95 if held else 46, 40, 42), draw.__name__)
        worlds[draw.__name__] = in_nanoseconds(world)
    return side_by_side(worlds, tmp_path_factory.mktemp("drawn"))


@pytest.mark.parametrize("draw", [*ORDERED, *NOT_ORDERED], ids=lambda draw: draw.__name__)
def test_the_end_is_ordered_behind_other_streams(drawn, draw: Callable):
    analysis, rows = drawn
    (interval,) = rows[draw.__name__].itertuples()
    others = analysis.other_streams
    (other,) = others[others["interval"] == interval.interval].itertuples()
    assert other.stream in (13, 15) and bool(other.ordered) is (draw in ORDERED)
    rules = analysis.findings["rule"][analysis.findings["label"] == interval.label]
    assert ("wrong-stream" in rules.tolist()) is (draw in NOT_ORDERED)


def test_a_batch_fetched_ahead_is_no_mistake(tmp_path):
    """The copy of the next batch on a stream of its own, for which nothing waits yet."""
    world = World(streams={7: LEGACY, 13: NON_BLOCKING})
    start = world.record(6, 0, 2)
    world.copy(12, 90, world.call("memcpy", 8, 9), 13, pageable=False)
    kernel(world, (10, 14), (16, 38))
    world.pair(start, world.record(42, 20, 22))
    analysis = analysed(world, tmp_path)
    assert analysis.other_streams["ordered"].tolist() == [False]
    assert "wrong-stream" not in analysis.findings["rule"].tolist()


def test_any_thread_that_waited_knows_it(tmp_path):
    """The host has seen the work end, whichever of its threads waited."""
    world = World(streams={7: LEGACY, 13: NON_BLOCKING})
    start = world.record(6, 0, 2)
    side_work(world, 25)
    world.sync(20, 30, OTHER, stream=13)
    world.pair(start, world.record(46, 40, 42))
    assert analysed(world, tmp_path).other_streams["ordered"].tolist() == [True]
