"""Error bars of what a program does not show: how long records take, copies, waits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from nsysalign.intervals import FAR
from nsysalign.place.bounded import Surroundings
from nsysalign.place.event_clock import fit_line
from nsysalign.place.latency import PARAMETERS, assumed, place_pairs

BUSY, AHEAD, EACH_NS = 925, 1_540, 1_000_000


def queued(gaps, **more):
    """Records, all queued long before, one between two kernels each: `gaps` apart (ns), at every
    millisecond."""
    gaps = np.asarray(gaps)
    ends = EACH_NS * (1 + np.arange(len(gaps)))
    none = np.zeros(len(gaps), np.int64)
    known = {"call_start": ends - 900_000, "call_end": ends - 898_000, "previous_end": ends,
             "next_start": ends + gaps, "next_issued": ends - 800_000, "next_is_kernel": none == 0}  # fmt: skip
    known |= dict.fromkeys(("behind", "ahead", "stamp"), none) | more
    columns = Surroundings.__dataclass_fields__
    return Surroundings(**{c: known.get(c, none.astype(bool)) for c in columns})


@pytest.mark.parametrize(("scatter", "shown"), [(100, True), (3_000, False)])
def test_gaps_tell_how_long_a_record_takes_where_they_crowd(scatter, shown):
    """A floor at 4 us is a record of 2.84 us, long gaps of all sizes are nothing."""
    met = queued(4_000 + np.linspace(0, scatter, 40).astype(np.int64))
    spacing = assumed("off", met).vector[PARAMETERS.index("spacing_ns")]
    assert spacing == pytest.approx(4_000 - AHEAD + 380 if shown else 1_295, abs=30)
    assert assumed("on", met).unshown == (not shown)


def placed(s, tracing="off"):
    """(start after the end of the operation before, error bar) of the pair of the last two
    records."""
    pairs = pd.DataFrame({"start": [20], "end": [21], "elapsed_ns": [EACH_NS]})
    start, error = place_pairs(pairs, assumed(tracing, s).likely(s))
    return int(start[0] - s.previous_end[20]), int(error[0])


def test_bars_grow_with_what_is_not_known():
    tight = queued([2_465] * 22)
    after, bar = placed(tight)
    assert after == pytest.approx(BUSY, abs=30) and bar == pytest.approx(2_500, abs=50)
    none = np.zeros(22, dtype=bool)
    for unknown, more in (("copying", 5_500), ("previous_is_node", 2_500)):
        assert placed(replace(tight, **{unknown: ~none}))[1] == bar + more
    # nothing queued behind: no gap shows how long a record takes, and it may have been traced
    unshown = replace(tight, next_is_kernel=none)
    assert placed(unshown)[1] == bar and placed(unshown, "on")[1] == bar + 2_500


def test_the_record_that_is_known_better_decides():
    tight = queued([2_465] * 22)
    late, last = np.zeros(22, np.int64), np.arange(22) == 21
    late[21] = 10_000
    held_up = replace(tight, previous_end=tight.previous_end + late)
    assert placed(held_up)[0] > BUSY + 1_000, "of two known alike the later one"
    assert placed(replace(held_up, waits=last))[0] == pytest.approx(BUSY, abs=30)


def test_a_kernel_queued_behind_limits_how_late_a_record_is():
    tight = queued([2_465] * 20 + [1_600, 1_600])
    assert placed(tight)[0] == pytest.approx((BUSY + 1_600 - AHEAD) // 2, abs=30)


def test_calls_on_idle_streams_may_be_slow_together():
    """400 records do not know the line 20 times better than one does."""
    at = np.arange(400) * 10_000_000
    none = np.zeros(400, np.int64)
    slow = np.random.default_rng(5).exponential(500, 400).astype(np.int64)
    far, calls = none + FAR, {"call_start": at - 4_000 - slow, "call_end": at - 2_500}
    s = queued(far, **calls, next_start=far, next_issued=far, previous_end=none)
    spread = fit_line(s, none, at, "off", np.array([0]), np.array([np.inf])).place(at, none)[1]
    assert spread.min() > 200
