"""Whether a host timer waited for the GPU before and after what it times.  Everything in
microseconds.

s: launch, y: synchronisation, |: a reading; the kernel of a launch runs 2 us after it
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cases.drawing import MAIN, OTHER, in_nanoseconds, kernel, side_by_side
from simulator.world import LEGACY, NON_BLOCKING, HostInterval, World

from nsysalign.split.host_timers import AFTER, BEFORE, IDLE

ALL = (BEFORE, AFTER, IDLE)


#: name -> (what happened, the windows, the flags of each)
DRAWINGS: dict[str, tuple[Callable[[World], None], tuple[tuple[float, float], ...], list[set]]] = {}
WINDOW = ((0, 40),)


def launch(w: World, at: float, length: float = 5, thread: int = MAIN, stream: int = 7) -> None:
    kernel(w, (at, at + 2), (at + 4, at + 4 + length), stream, thread)


def drawn(*flags: set, windows: tuple[tuple[float, float], ...] = WINDOW, name: str = ""):
    def keep(draw: Callable[[World], None]):
        DRAWINGS[name or draw.__name__] = draw, windows, list(flags)
        return draw

    return keep


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[str, list[set]]:
    """The flags of the windows of every drawing."""
    worlds = {}
    for name, (draw, windows, _) in DRAWINGS.items():
        w = World(streams={7: LEGACY, 13: NON_BLOCKING})
        draw(w)
        for n, (start, end) in enumerate(windows):
            w.host_intervals.append(HostInterval(f"case#{n}", start, end, MAIN))
        worlds[name] = in_nanoseconds(w)
    failed = 1_000 + list(worlds).index("a_synchronisation_that_failed_waited_for_nothing")
    statement = f"""update CUPTI_ACTIVITY_KIND_RUNTIME set returnValue = 719
        where correlationId = 4 and (globalTid >> 24 & 0xFFFFFF) = {failed}"""
    folder = tmp_path_factory.mktemp("drawn")
    _, rows = side_by_side(worlds, folder, statement=statement)
    return {
        name: [set(flags) & set(ALL) for flags in of.sort_values("start_ns")["flags"]]
        for name, of in rows.items()
    }


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


for _name, (_launches, _syncs, _flags) in CASES.items():

    @drawn(set(_flags), name=_name)
    def _(w, launches=_launches, syncs=_syncs):
        for at in launches:
            launch(w, at)
        for start, end in syncs:
            w.sync(start, end)
        w.call("other", 100, 101)


for _length, _idle in ((33, True), (33.5, True), (36, True), (36.1, False), (80, False)):

    @drawn({IDLE} if _idle else set(), name=f"idle before: issued at -40, runs {_length} from -36")
    def _(w, length=_length):
        launch(w, -40, length)
        launch(w, 12)
        w.sync(120, 130)


@drawn(set())
def the_longest_of_what_was_issued_decides(w):
    """
    7    #-36---------------4      13   #-26--21
    """
    launch(w, -40, 40)
    launch(w, -30, stream=13)
    w.sync(120, 130)


@drawn({BEFORE, AFTER})
def work_that_another_thread_issued_counts_for_idle_only(w):
    """
    H    y-30--20  |0   s12    y20-30  |40        the other thread's launch at -10 runs until 20
    H2          s-10
    """
    launch(w, -40)
    w.sync(-30, -20)
    launch(w, -10, 26, OTHER, 13)
    launch(w, 12)
    w.sync(20, 30)


@drawn({AFTER, IDLE}, {AFTER, IDLE}, windows=((0, 35), (40, 75)))
def a_wait_inside_the_window_before_is_not_one_before_this(w):
    """
    |0 s y30 |35   |40 s y70 |75         a loop that synchronises only at the end of each repetition
    """
    for at in (0, 40):
        launch(w, at + 5)
        w.sync(at + 20, at + 30)


@drawn({AFTER, IDLE}, {BEFORE, AFTER, IDLE}, windows=((0, 35), (35, 75)))
def of_windows_that_share_a_reading_both_have_the_wait(w):
    """
    |0 s y30 |35 s y70 |75
    """
    for at in (0, 40):
        launch(w, at + 5)
        w.sync(at + 20, at + 30)


@drawn({BEFORE, IDLE})
def a_synchronisation_that_failed_waited_for_nothing(w):
    launch(w, -40)
    w.sync(-30, -20)
    launch(w, 12)
    w.sync(20, 30)


@drawn(set(), windows=())
def intervals_of_events_have_no_such_flag(w):
    launch(w, -40)
    w.sync(-30, -20)
    first = w.record(6, 0, 2)
    launch(w, 12)
    w.pair(first, w.record(30, 15, 17))
    w.sync(40, 50)


@pytest.mark.parametrize("name", DRAWINGS)
def test_flags_of_every_window(found, name):
    assert found[name] == DRAWINGS[name][2]
