"""What replaced slower arithmetic between clocks, against that arithmetic."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nsysalign.place.host_clock import _fitting

TIMES = st.lists(st.integers(0, 300), min_size=1, max_size=12)


@settings(max_examples=80, derandomize=True, deadline=None, database=None)
@given(TIMES, TIMES, st.integers(-120, 60), st.integers(1, 7), st.integers(1, 40))
def test_shifts_are_scored_as_if_tried_one_by_one(calls, records, first, step, count):
    lo = np.sort(np.array(calls))
    hi = lo + 25
    c0 = np.unique(np.array(records))
    c1 = c0 + 6
    scores = []
    for shift in first + step * np.arange(count):
        i = np.searchsorted(c0, lo + shift)
        ok = i < len(c0)
        scores.append(int((c1[np.minimum(i, len(c0) - 1)] <= hi + shift)[ok].sum()))
    assert _fitting(lo, hi, c0, c1, first, step, count).tolist() == scores
