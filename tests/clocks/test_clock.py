"""CLOCK_MONOTONIC on the trace's clock, where only record calls join the two."""

from __future__ import annotations

import numpy as np
import pytest

from nsysalign.place.clocks import ClockMap, Times, refine

START = 1_700_000_000_000_000_000


def calls(rng, seconds: float, offset, count: int = 400):
    """Python calls in monotonic time and the record calls inside them in trace time; `offset` of a
    moment."""
    t0 = np.sort(rng.integers(0, int(seconds * 1e9), count)) + 5_000_000_000
    before, inside, after = (
        rng.integers(low, high, count) for low, high in ((700, 3_000), (1_500, 4_000), (600, 2_000))
    )
    t1 = t0 + before + inside + after
    at = offset(t0)
    return t0, t1, t0 + before + at, t0 + before + inside + at


def rough(error: int) -> ClockMap:
    return ClockMap(np.array([5_000_000_000]), np.array([START + error]), 50_000)


@pytest.mark.parametrize("ppm", [-4.0, 0.0, 12.0])
def test_record_calls_sharpen_the_clock(ppm):
    def offset(t):
        return START + np.rint(ppm * 1e-6 * (t - 5_000_000_000)).astype(np.int64)

    t0, t1, c0, c1 = calls(np.random.default_rng(2), 3.0, offset)
    clock = refine(rough(7_300), [Times(t0, t1, c0, c1)])
    error = np.abs(clock.to_trace(t0) - t0 - offset(t0))
    assert error.max() <= clock.width_ns == 2_000


@pytest.mark.parametrize("set_by", [9_000, -30_000])
def test_a_clock_that_was_set(set_by):
    def offset(t):
        return START + np.where(t > 6_500_000_000, set_by, 0)

    t0, t1, c0, c1 = calls(np.random.default_rng(3), 3.0, offset)
    clock = refine(rough(0), [Times(t0, t1, c0, c1)])
    error = np.abs(clock.to_trace(t0) - t0 - offset(t0))
    assert (error[np.abs(t0 - 6_500_000_000) > 260_000_000] <= 2_000).all()


def test_a_loop_fits_a_period_away_as_well():
    """A third of the calls have no record call in the trace; those that have one fit 100 us later, too."""
    t0 = np.arange(20) * 100_300
    record = t0[4:17] + 3_900
    clock = refine(rough(0), [Times(t0, t0 + 11_500, record + START, record + START + 3_000)])
    assert np.abs(clock.to_trace(t0) - t0 - START).max() <= clock.width_ns == 2_000


def test_a_long_run_whose_rate_changes():
    """A rate that changes by 0.2 ppm from minute to minute: 12 us in all."""

    def offset(t):
        return START + np.rint(0.1e-6 / 60 * ((t - 5_000_000_000) / 1e9) ** 2 * 1e9).astype(
            np.int64
        )

    t0, t1, c0, c1 = calls(np.random.default_rng(5), 80.0, offset, 4_000)
    clock = refine(rough(0), [Times(t0, t1, c0, c1)])
    error = np.abs(clock.to_trace(t0) - t0 - offset(t0))
    assert error.max() <= clock.width_ns == 2_000
