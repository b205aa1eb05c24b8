"""The search, against brute force on curves that real GPUs have."""

from __future__ import annotations

import math
import random

import pytest

from nsysalign.addons.measure import search

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


def test_the_best_is_good_and_the_advice_not_much_larger_than_needed():
    for gpu in map(Gpu, range(60)):
        rates = {b: gpu.rate(b) for b in search.climb(None) if b <= gpu.most}
        assert max(rates) <= gpu.most < 2 * max(rates)
        best = gpu.rate(search.best(rates))
        # blocks that run at once: a batch that fills the last wave can be anywhere
        everything = range(1, gpu.most + 1)
        assert best >= (0.93 if gpu.wave == 1 else 0.7) * max(map(gpu.rate, everything))
        if gpu.wave == 1:
            nearly = next(b for b in everything if gpu.rate(b) >= 0.95 * best)
            assert search.advised(rates) <= 2 * nearly


@pytest.mark.parametrize(("most", "end"), [(50, (32, 50)), (64, (32, 64))])
def test_a_highest_batch_is_tried_and_never_passed(most, end):
    assert search.climb(most)[-2:] == end and search.climb(None)[-1] == search.LARGEST


def test_the_advice_is_the_smallest_within_five_percent():
    rates = {1: 10, 8: 96, 32: 98, 64: 100, 128: 99.5}
    assert (search.best(rates), search.advised(rates)) == (64, 8)
    assert search.reported(rates) == [1, 8, 64, 128]
