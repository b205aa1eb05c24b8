"""Error bars of what a program does not show: common delays, records on streams that nobody knows, how long records take."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from nsysalign.issue import FAR
from nsysalign.place.fit import Frames, fit_line, place_pairs
from nsysalign.place.latency import PARAMETERS, assumed
from nsysalign.place.surroundings import Surroundings

BUSY, AHEAD, EACH_NS = 925, 1_540, 1_000_000


def queued(gaps, **more):
    """Records, all queued long before, one between two kernels each: `gaps` apart (ns), at every millisecond."""
    gaps = np.asarray(gaps)
    ends = EACH_NS * (1 + np.arange(len(gaps)))
    none = np.zeros(len(gaps), np.int64)
    known = {"call_start": ends - 900_000, "call_end": ends - 898_000, "previous_end": ends,
             "next_start": ends + gaps, "next_issued": ends - 800_000, "next_is_kernel": none == 0}  # fmt: skip
    numbers = {"behind", "ahead", "unseen", "unseen_next", "stamp"}
    return Surroundings(
        **{
            c: (known | more)[c]
            if c in known | more
            else none
            if c in numbers
            else none.astype(bool)
            for c in Surroundings.__dataclass_fields__
        }
    )


def bars(s, elapsed):
    """Error bars of pairs of every two records that follow each other."""
    start = np.arange(0, len(s.call_start), 2)
    pairs = pd.DataFrame({"start": start, "end": start + 1, "elapsed_ns": elapsed})
    found = place_pairs(s, pairs, "off", None)
    return found.start_ns - s.previous_end[start], found.error_ns


@pytest.mark.parametrize(("gap", "open_"), [(2_465, False), (4_400, True), (40_000, False)])
def test_records_late_alike_may_lie_anywhere_in_their_gaps(gap, open_):
    """
    tight   KKKK|-busy-R-ahead-|KKKK      open   KKKK|-busy-   R?   -ahead-|KKKK
    """
    tight = [2_465] * 20  # these say how long a record takes
    after, bar = bars(queued([*tight, gap, gap]), EACH_NS)
    assert (after[-1] - bar[-1] <= BUSY) == (bar[-1] >= 800) or not open_
    reaches = after[-1] + bar[-1] >= gap - AHEAD
    assert reaches == (gap < 40_000)  # so late a start has other causes
    assert (bar[-1] > 1.5 * bar[0]) == open_


def test_a_record_of_an_unknown_stream_may_have_been_in_front():
    gaps = np.full(22, 2_465)
    unseen = np.zeros(22, np.int64)
    unseen[-2:] = 1
    free = np.zeros(22, dtype=bool)  # nothing queued after the last two
    alone, hidden = (
        queued(gaps, next_is_kernel=np.append(~free[:-2], free[-2:]), **m)
        for m in ({}, {"unseen": unseen})
    )
    (_, few), (_, more) = bars(alone, EACH_NS), bars(hidden, EACH_NS)
    assert more[-1] >= few[-1] + 1_000
    assert more[:-1] == pytest.approx(few[:-1], abs=20)


@pytest.mark.parametrize(("scatter", "known"), [(100, True), (3_000, False)])
def test_gaps_tell_how_long_a_record_takes_where_they_crowd(scatter, known):
    """Without spacings of records: a floor at 4 us is a record of 2.84 us, long gaps of all sizes are nothing."""
    model = assumed(
        "off", np.empty(0), queued(4_000 + np.linspace(0, scatter, 40).astype(np.int64))
    )
    spacing = model.vector[PARAMETERS.index("spacing_ns")]
    assert spacing == pytest.approx(4_000 - AHEAD + 380 if known else 1_295, abs=30)
    assert (model.unsure_ns < 500) == known


def test_calls_on_idle_streams_may_be_slow_together():
    """400 records do not know the line 20 times better than one does."""
    at = np.arange(400) * 10_000_000
    none = np.zeros(400, np.int64)
    slow = np.random.default_rng(5).exponential(500, 400).astype(np.int64)
    known = {
        "call_start": at - 4_000 - slow,
        "call_end": at - 2_500,
        "next_start": none + FAR,
        "next_issued": none + FAR,
    }
    s = queued(none + FAR, **known, previous_end=none)
    f = Frames(np.arange(400), none, at, np.zeros(400))
    spread = fit_line(s, f, "off", np.array([0]), np.array([np.inf])).place(at, none)[1]
    assert spread.min() > 200
