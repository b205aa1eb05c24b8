"""The statistics of a comparison, by hand and by simulation."""

import numpy as np
import pytest

from nsysalign.compare.bootstrap import change, middle_half, midmean


def test_the_middle_half_by_hand():
    kept = {12: [3, 4, 5, 6, 7, 8], 6: [2, 3], 5: [2], 1: [0], 2: [0, 1]}  # the median of few
    assert {count: middle_half(np.arange(count)).tolist() for count in kept} == kept


def test_a_cold_run_does_not_count_and_the_causes_add_up():
    #                 total  host  kernel: the cold run is mostly host
    runs = np.array(
        [[9_000, 8_900, 100], [200, 100, 100], [210, 110, 100], [190, 90, 100], [205, 105, 100]]
    )
    total, host, kernel = midmean(runs)
    assert (total, host, kernel) == (205, 105, 100)
    values = np.random.default_rng(3).integers(100, 200, (20, 4))
    assert (change(values, values + 5, 7) == change(values, values + 5, 7)).all()


def log_normal(random, count):
    return random.lognormal(0, 0.2, (count, 1)) * 1e5


def one_cold(random, count):
    runs = log_normal(random, count)
    runs[0] *= 100
    return runs


def two_modes(random, count):
    slow = random.random((count, 1)) < 0.3
    return np.where(slow, 2, 1) * 1e5 * (1 + 0.01 * random.standard_normal((count, 1)))


@pytest.mark.parametrize("runs", [log_normal, one_cold, two_modes])
@pytest.mark.parametrize("count", [5, 6, 10, 30])
def test_the_same_program_is_rarely_told_apart(runs, count):
    random = np.random.default_rng(count)
    wrong = 0
    for seed in range(200):
        low, high = change(runs(random, count), runs(random, count), seed)[0, 3:]
        wrong += low > 0 or high < 0
    assert wrong <= 18  # 5 % of 200 are 10; 18 is what a true rate of 5 % exceeds once in 100


def test_a_large_change_is_seen_with_enough_runs():
    random = np.random.default_rng(1)
    pairs = [(log_normal(random, 30), 1.5 * log_normal(random, 30)) for _ in range(50)]
    assert sum(change(*pair, k)[0, 3] > 0 for k, pair in enumerate(pairs)) >= 49
