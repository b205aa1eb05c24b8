"""The replay by hand: times in nanoseconds, small enough to check."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nsysalign.causes import CAUSES
from nsysalign.parts import scale_budget
from nsysalign.predict.replay import HIDDEN, Call, Item, replay


def test_queued_behind_another_stream_moves_with_it():
    calls = [Call(0, 10, 5, 0, False), Call(20, 30, 5, 0, False)]
    other, waiting = Item(1, 12, 200, 0, 12, 0), Item(0, 202, 210, 1, 12, 0, behind=0)
    assert replay(calls, [other, waiting]).items == [5, 5]
    assert replay(calls, [other, waiting._replace(behind=HIDDEN)]).items == [5, 0]


def test_a_graph_is_shorter_by_what_the_profiler_does_around_it():
    calls = [Call(0, 10, 0, 0, False)]
    assert replay(
        calls, [Item(0, 12, 100, 0, 12, 0, trim=7), Item(0, 101, 110, 0, 12, 1)]
    ).items == [7, 7]


@st.composite
def scenes(draw):
    """Calls one after the other, operations on two streams, waits; every operation starts when
    something allows it."""
    # a stream that nothing ran on yet holds nothing up, however tight
    calls, items, at, free = [], [], 0, {0: -10, 1: -10}
    for number in range(draw(st.integers(1, 12))):
        length = draw(st.integers(1, 40))
        waits = draw(st.integers(0, 4)) == 0
        end = at + length
        if waits:
            end = max(end, max(free.values()) + draw(st.integers(0, 20)))
        inside = draw(st.integers(0, length if not waits else 1))
        gap = draw(st.integers(0, 60))
        calls.append(Call(at, end, inside, draw(st.integers(0, gap)), waits))
        if not waits:
            lane, latency, tight = (
                draw(st.integers(0, 1)),
                length + draw(st.integers(0, 10)),
                draw(st.integers(0, 3)),
            )
            start = max(at + latency, free[lane] + tight)
            free[lane] = start + draw(st.integers(1, 100))
            items.append(Item(lane, start, free[lane], number, latency, tight))
        at = end + gap
    return calls, items


@given(scenes())
def test_nothing_comes_later_and_streams_keep_their_order(scene):
    calls, items = scene
    played = replay(calls, items)
    total = sum(c.inside + c.after for c in calls)
    assert all(0 <= shift <= total for shift in [*played.items, played.host])
    for lane in (0, 1):
        ends = [i.end - s for i, s in zip(items, played.items, strict=True) if i.lane == lane]
        assert ends == sorted(ends)
    free = replay([c._replace(inside=0, after=0) for c in calls], items)
    assert not any(free.items) and free.host == 0


parts = st.lists(st.integers(0, 10**9), min_size=len(CAUSES), max_size=len(CAUSES)).map(np.array)


@given(parts, st.floats(0, 1.3))
def test_a_scaled_budget_adds_up_and_has_no_negative_part(before, factor):
    predicted = round(int(before.sum()) * factor)
    after = scale_budget(before, predicted)
    assert after.sum() == predicted and (after >= 0).all()
    assert np.array_equal(scale_budget(before, int(before.sum())), before)


def test_the_profilers_own_work_goes_first_then_what_the_host_decides():
    before = np.zeros(len(CAUSES), np.int64)
    for cause, ns in (
        ("kernel", 100),
        ("host", 60),
        ("api_launch", 30),
        ("profiler", 20),
        ("queued", 40),
    ):
        before[CAUSES.index(cause)] = ns
    kept = dict(zip(CAUSES, scale_budget(before, 200).tolist(), strict=True))
    assert kept == dict.fromkeys(CAUSES, 0) | {
        "kernel": 100,
        "host": 40,
        "api_launch": 20,
        "queued": 40,
    }
    waited = dict(zip(CAUSES, scale_budget(before, 260).tolist(), strict=True))
    assert (
        waited["queued"] == 50 and waited["host"] == 60
    )  # longer than profiled: it waited for something
