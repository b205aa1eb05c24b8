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
        base, item = r.uniform(0.2, 9) * GIB, r.uniform(0.005, 0.4) * GIB
        self.most = int((total - base) / item)

    def rate(self, batch: int) -> float:
        waves = math.ceil(batch / self.wave) * self.wave
        gpu = waves * self.item_ns * (1 + self.falls * max(0.0, math.log2(batch / 256)))
        return batch / max(self.launch_ns, gpu) * 1e9


def test_the_best_is_good_and_the_largest_known_within_a_factor_of_one_and_a_half():
    for gpu in map(Gpu, range(60)):
        climbed = search.climb(None)
        failed = next(b for b in climbed if b > gpu.most)
        trials = [Trial(b, gpu.rate(b)) for b in climbed if b < failed]
        (halfway,) = set(search.reported(trials, failed)) - set(climbed)
        largest = halfway if halfway <= gpu.most else max(t.batch for t in trials)
        failed = failed if halfway <= gpu.most else halfway
        assert largest <= gpu.most < failed <= 1.6 * largest
        trials += [Trial(halfway, gpu.rate(halfway))] * (halfway <= gpu.most)
        best = gpu.rate(search.best(trials))
        # blocks that run at once: a batch that fills the last wave can be anywhere
        everything = range(1, gpu.most + 1)
        assert best >= (0.93 if gpu.wave == 1 else 0.7) * max(map(gpu.rate, everything))
        if gpu.wave == 1:
            nearly = next(b for b in everything if gpu.rate(b) >= 0.95 * best)
            assert search.advised(trials) <= 2 * nearly


@pytest.mark.parametrize(("most", "end"), [(50, (32, 50)), (64, (32, 64))])
def test_a_highest_batch_is_tried_and_never_passed(most, end):
    assert search.climb(most)[-2:] == end and search.climb(None)[-1] == search.LARGEST


def test_the_advice_is_the_smallest_within_five_percent():
    trials = [Trial(b, r) for b, r in ((1, 10), (8, 96), (64, 100), (128, 99.5))]
    assert (search.best(trials), search.advised(trials)) == (64, 8)
    assert search.reported(trials, None) == (1, 8, 64, 128)
    assert search.reported(trials, 256) == (1, 8, 64, 128, 192)
    assert search.reported([Trial(1, 1.0)], 2) == (1,)
