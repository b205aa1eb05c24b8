"""The search, against brute force on curves that real GPUs have."""

from __future__ import annotations

import math
import random

import pytest

from nsysalign.measure.memory import Trial, largest
from nsysalign.measure.search import OutOfTime, Search, search

GIB = 1 << 30


class Gpu:
    """Time of a batch: launches, or waves of blocks over the SMs; memory: a line, rounded by the allocator."""

    def __init__(self, seed: int, total: int = 72 * GIB):
        r = random.Random(seed)
        self.launch_ns = r.uniform(0.2e6, 4e6)
        self.item_ns = r.uniform(2e4, 3e5)
        self.wave = r.choice([1, 3, 8, 33, 132])
        self.falls = r.uniform(0, 0.04)  # per doubling above 256: clocks and caches
        self.base, self.item = r.uniform(0.2, 9) * GIB, r.uniform(0.005, 0.4) * GIB
        self.limit, self.noise = total, random.Random(seed + 1)
        self.runs = self.failures = 0

    def rate(self, batch: int) -> float:
        waves = math.ceil(batch / self.wave) * self.wave
        gpu = waves * self.item_ns * (1 + self.falls * max(0.0, math.log2(batch / 256)))
        return batch / max(self.launch_ns, gpu) * 1e9

    def needed(self, batch: int) -> float:
        return self.base + self.item * batch * (1 + 0.004 * math.sin(batch))

    def most(self) -> int:
        """Up to here every batch fits."""
        return next(b for b in range(1, 40_000) if self.needed(b) > self.limit) - 1

    def __call__(self, batch: int) -> Trial:
        self.runs += 1
        need = self.needed(batch)
        if need > self.limit:
            self.failures += 1
            return Trial(batch, "memory")
        rate = self.rate(batch) * (1 + 0.001 * self.noise.gauss(0, 1))
        reserved = min(int(need * 1.06), self.limit)
        return Trial(
            batch,
            "",
            int(need),
            reserved,
            self.limit,
            rate,
            rate * 0.998,
            rate * 1.002,
            batch / rate * 1e9,
        )


def grid(most: int) -> list[int]:
    """Brute force: steps of an eighth of a doubling."""
    return sorted({round(2 ** (k / 8)) for k in range(int(8 * math.log2(most)) + 1)} | {most})


def test_nine_of_ten_searches_find_the_best_within_a_percent_in_two_fifths_of_the_runs():
    good, most_runs = 0, 0.0
    for seed in range(30):
        gpu = Gpu(seed)
        every = grid(gpu.most())
        found = search(gpu)
        good += gpu.rate(found.best.batch) >= 0.99 * max(map(gpu.rate, every))
        most_runs = max(most_runs, gpu.runs / len(every))
        assert gpu.failures <= 3
        assert gpu.most() / 1.02 - 1 <= found.largest <= 1.01 * gpu.most() and found.exact, seed
    assert good >= 27, good
    assert most_runs <= 0.4, most_runs


def test_what_is_not_memory_ends_the_climb_and_is_never_taken_for_it():
    def run(batch):
        return Trial(batch, "an exception: shapes do not match") if batch > 4 else Gpu(1)(batch)

    found = search(run)
    assert (
        found.largest == 4
        and not found.exact
        and found.limited == "an exception: shapes do not match"
    )


def test_nothing_fits():
    found = search(lambda batch: Trial(batch, "memory"))
    assert (found.best, found.largest, found.exact) == (None, 0, False)


def test_a_highest_batch_is_tried_and_never_passed():
    gpu = Gpu(3)
    tried = []

    def run(batch):
        tried.append(batch)
        return gpu(batch)

    found = search(run, most=50)
    assert max(tried) == 50 and found.limited == "--max-batch 50"


def test_when_time_is_out_what_is_known_stays():
    gpu = Gpu(4)

    def run(batch):
        if gpu.runs == 3:
            raise OutOfTime
        return gpu(batch)

    found = search(run)
    assert len(found.trials) == 3 and found.best is not None and "budget" in found.limited


@pytest.mark.parametrize("seed", range(5))
def test_the_best_below_a_latency_lies_at_the_limit(seed):
    gpu = Gpu(seed)
    limit = 3 * gpu.launch_ns
    found = search(gpu, latency_ns=limit)
    under = [b for b in grid(gpu.most()) if b / gpu.rate(b) * 1e9 <= limit]
    best = found.below(limit)
    assert best.latency_ns <= limit and gpu.rate(best.batch) >= 0.9 * max(map(gpu.rate, under))


def test_memory_that_does_not_grow_never_ends_a_search_by_memory():
    found = search(lambda b: Trial(b, "", GIB, GIB, 10 * GIB, float(b)))
    assert not found.exact and "memory does not limit the search" in found.limited


def test_the_largest_after_three_failures_is_what_ran():
    """Memory that jumps (another algorithm from 90 on): the line is wrong each time."""
    trials = [Trial(b, "", b * GIB, b * GIB, 200 * GIB) for b in (1, 2, 4, 16, 64)]
    tried = []

    def run(batch):
        tried.append(batch)
        return (
            Trial(batch, "memory")
            if batch > 66
            else Trial(batch, "", batch * GIB, batch * GIB, 200 * GIB)
        )

    good, exact = largest(trials, run, None)
    assert sum(b > 66 for b in tried) <= 3 and 64 <= good <= 66 and not exact


def test_knee_is_the_smallest_within_five_percent():
    s = Search([Trial(b, rate=r) for b, r in ((1, 10), (8, 96), (64, 100), (128, 99.5))])
    assert (s.best.batch, s.knee.batch) == (64, 8)
