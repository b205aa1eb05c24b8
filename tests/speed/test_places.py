"""What replaced slower arithmetic in alignment, against that arithmetic."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nsysalign.align import place
from nsysalign.clocks.host import _fitting

STEP = place._STEP_NS


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.integers(0, 4))
def test_the_half_width_holds_95_percent_around_the_median(weights, more):
    p = np.array([*weights, *[0.0] * more]) + np.array([*[1e-9] * len(weights), *[0.0] * more])
    p /= p.sum()
    at, half = place._median_and_half_width(p[None, :], np.array([100]), np.array([len(weights)]))
    grid = 100 + STEP * np.arange(len(p))
    below = np.cumsum(p)
    k = int((below >= 0.5).argmax())
    median = grid[k] + ((0.5 - (below[k] - p[k])) / p[k] - 0.5) * STEP
    assert abs(at[0] - median) <= 1
    order = np.argsort(np.abs(grid - median), kind="stable")
    mass = np.cumsum(p[order])
    n = int((mass >= 0.95 - 1e-12).argmax())
    m = int((mass >= 0.95 + 1e-12).argmax()) if mass[-1] >= 0.95 + 1e-12 else len(p) - 1
    wanted = np.abs(grid - median)[order] + STEP / 2
    assert wanted[n] - 1e-6 <= half[0] <= wanted[max(n, m)] + STEP + 1e-6  # whole steps on both sides


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
