"""When a program counts as warm."""

from __future__ import annotations

import random

import pytest

from nsysalign.addons.measure import warmup


class Program:
    """Calls of so many ns on a clock of its own."""

    def __init__(self, duration):
        self.now, self.calls, self.duration, self.loaded = 0, 0, duration, 0
        self.random = random.Random(3)

    def timed(self):
        ns = int(self.duration(self))
        self.now += ns
        self.calls += 1
        return self.now, ns

    def warm(self):
        return warmup.warm_up(self.timed, lambda: self.loaded, precision=0.005)


def noisy(level):
    return lambda p: level * (1 + 0.01 * p.random.gauss(0, 1))


def test_a_steady_program_is_warm_after_the_window():
    w = Program(noisy(1e6)).warm()
    assert w.settled and 0.5e9 <= w.took_ns < 1.5e9


def test_a_slow_first_call_is_reported_by_itself():
    w = Program(lambda p: 2e9 if p.calls == 0 else 1e6).warm()
    assert w.first_ns == 2_000_000_000 and w.settled and w.call_ns == pytest.approx(1e6)


def test_while_it_gets_faster_it_is_not_warm():
    """20 % faster over the first three seconds."""
    w = Program(
        lambda p: 1e6 * (1 + 0.2 * max(0, 1 - p.now / 3e9)) * (1 + 0.001 * p.random.gauss(0, 1))
    ).warm()
    assert w.settled and w.took_ns > 2.5e9


def test_what_never_settles_is_said_after_the_limit():
    w = Program(lambda p: 1e6 * (1 + p.now / 1e10)).warm()
    assert (
        not w.settled
        and w.why == "the duration of a call still changed"
        and 10e9 <= w.took_ns < 10.1e9
    )


def test_loading_starts_the_window_again():
    def duration(p):
        p.loaded = min(5, int(p.now / 0.4e9))  # something new until 2 s
        return 1e6

    w = Program(duration).warm()
    assert w.settled and w.took_ns >= 2.4e9


def test_long_calls_are_made_twenty_times_or_until_the_limit():
    assert Program(noisy(1e8)).warm().calls >= 20
    w = Program(noisy(1e9)).warm()
    assert not w.settled and w.why == "too few calls"


def test_single_slow_calls_are_no_trend_and_a_slope_is_one():
    """Theil and Sen's slope: the median of pairwise slopes does not see one point far off."""
    flat = [1e6] * 200
    assert warmup.steady([*flat[:150], 30e6, *flat[151:]], 0.005)
    assert not warmup.steady([1e6 + 200 * k for k in range(200)], 0.005)
    assert warmup.steady([1e6 + 5 * k for k in range(200)], 0.005)  # half of what matters
