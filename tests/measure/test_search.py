"""The search, against brute force on curves that real GPUs have."""

from __future__ import annotations

import math
import random

import pytest

from nsysalign.addons.measure import search
from nsysalign.addons.measure.search import Trial

GIB = 1 << 30


class Gpu:
    """Time of a batch: launches, or waves of blocks over the SMs; memory: a line."""

    def __init__(self, seed: int, total: int = 72 * GIB):
        r = random.Random(seed)
        self.launch_ns = r.uniform(0.2e6, 4e6)
        self.item_ns = r.uniform(2e4, 3e5)
        self.wave = r.choice([1, 3, 8, 33, 132])
        self.falls = r.uniform(0, 0.04)  # per doubling above 256: clocks and caches
        self.base, self.item = r.uniform(0.2, 9) * GIB, r.uniform(0.005, 0.4) * GIB
        self.most = int((total - self.base) / self.item)
        self.failures = 0

    def rate(self, batch: int) -> float:
        waves = math.ceil(batch / self.wave) * self.wave
        gpu = waves * self.item_ns * (1 + self.falls * max(0.0, math.log2(batch / 256)))
        return batch / max(self.launch_ns, gpu) * 1e9

    def run(self, batches, trials) -> int | None:
        """One process of the search; the batch at which its memory ended."""
        for batch in batches:
            if batch > self.most:
                self.failures += 1
                return batch
            trials.append(Trial(batch, self.rate(batch), batch / self.rate(batch) * 1e9))
        return None

    def search(self, most=None, latency_ns=None) -> tuple[list[Trial], int | None]:
        trials: list[Trial] = []
        failed = self.run(search.climb(most), trials)
        failed = self.run(search.refined(trials, failed, most, latency_ns), trials) or failed
        return trials, failed


@pytest.mark.parametrize("seed", range(60))
def test_the_best_and_the_largest_are_known_within_a_factor_of_one_and_a_half(seed):
    gpu = Gpu(seed)
    trials, failed = gpu.search()
    best, largest = search.best(trials), max(t.batch for t in trials)
    everything = range(1, gpu.most + 1)
    truth = max(everything, key=gpu.rate)
    assert largest <= gpu.most < failed <= 1.6 * largest + 1
    # 33 and 132 blocks at once: a batch that fills the last wave can be anywhere
    assert best.rate >= (0.93 if gpu.wave < 33 else 0.75) * gpu.rate(truth)
    assert gpu.failures <= 2 and len(trials) <= math.log2(gpu.most) + 4
    if gpu.wave == 1:
        nearly = next(b for b in everything if gpu.rate(b) >= 0.95 * best.rate)
        assert search.advised(trials).batch <= 2 * nearly


def test_a_highest_batch_is_tried_and_never_passed():
    trials, _ = Gpu(3).search(most=50)
    assert max(t.batch for t in trials) == 50
    assert search.climb(64)[-2:] == (32, 64) and search.climb(None)[-1] == search.LARGEST


def test_what_is_known_already_is_not_tried_again():
    assert search.refined([Trial(1, 1.0, 1.0)], 2, None, None) == ()
    assert search.refined([Trial(1, 1.0, 1.0)], None, 1, None) == ()


@pytest.mark.parametrize("seed", range(5))
def test_the_best_below_a_latency_lies_near_the_limit(seed):
    gpu = Gpu(seed)
    limit = 3 * gpu.launch_ns
    trials, _ = gpu.search(latency_ns=limit)
    best = search.below(trials, limit)
    under = [b for b in range(1, gpu.most + 1) if b / gpu.rate(b) * 1e9 <= limit]
    assert best.latency_ns <= limit
    assert gpu.rate(best.batch) >= 0.75 * max(map(gpu.rate, under))
    assert search.below(trials, 1.0) is None and search.below(trials, None) is None


def test_the_advice_is_the_smallest_within_five_percent():
    trials = [Trial(b, r, 0.0) for b, r in ((1, 10), (8, 96), (64, 100), (128, 99.5))]
    assert (search.best(trials).batch, search.advised(trials).batch) == (64, 8)
    assert search.reported(trials, None) == (1, 8, 64, 128)
