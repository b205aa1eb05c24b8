"""Clocks of ranks joined on their collectives, against jobs whose true times are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made import common, results, summary
from simulator.ranks import ALL_GATHER, ALL_REDUCE, run

from nsysalign.addons.ranks.collectives import join
from nsysalign.addons.ranks.compare import compare


def uneven(rank: int, step: int) -> int:
    """Ranks think differently long from step to step: which one is last changes."""
    return 50_000 + (7_919 * (rank + 1) * (step + 3)) % 300_000


def test_three_milliseconds_between_two_hosts_are_found():
    """rank 1's machine is 3 ms fast: its session start says so, its collectives do not."""
    job = run(3, 30, think=uneven)
    ranks = [
        summary(job, r, session=10_000_000 * r, wrong=3_000_000 if r == 1 else 0) for r in range(3)
    ]
    clocks, _ = join(ranks)
    assert [c.method for c in clocks] == ["reference", "collectives", "collectives"]
    assert abs(clocks[1].correction_ns + 3_000_000) < 1_000
    assert abs(clocks[2].correction_ns) < 1_000
    for rank, clock in enumerate(clocks):
        found = common(clock, ranks[rank].collectives["start_ns"].to_numpy())
        true = np.array([step[rank] for step in job.arrivals])
        assert np.abs(found - true).max() < 1_000
        assert clock.method == "reference" or (
            clock.collectives == 30 and 500 < clock.error_ns < 2_100
        )


def test_a_drifting_clock_is_followed():
    """20 us per second over 8 s are 160 us: constant would be wrong by 80."""
    job = run(2, 80, think=lambda rank, step: 100_000_000 + uneven(rank, step))

    def fast(t):
        return t + np.rint(t * 20e-6).astype(np.int64)

    ranks = [summary(job, 0), summary(job, 1, clock=fast, wrong=-5_000_000)]
    clock = join(ranks)[0][1]
    assert clock.drift == pytest.approx(-20e-6, abs=0.5e-6)
    found = common(clock, ranks[1].collectives["start_ns"].to_numpy())
    assert np.abs(found - [step[1] for step in job.arrivals]).max() < 3_000
    assert clock.error_ns < 4_000


def test_a_chain_of_communicators_joins_all():
    """0 and 1 share all-reduces, 1 and 2 all-gathers: rank 2 reaches rank 0 through rank 1, errors
    add up.  Where 1 and 2 are of one machine, they are as far from rank 0."""
    first = run(2, 20, think=uneven)
    second = run(2, 20, think=uneven, names=(ALL_GATHER,), seed=2, begin=1_030_000_000)
    a, b = summary(first, 0), summary(first, 1, wrong=2_000_000, host="b")
    middle = summary(second, 0, wrong=2_000_000)
    both = pd.concat([b.collectives, middle.collectives], ignore_index=True)
    b = replace(b, collectives=both)
    for wrong, host in ((-4_000_000, "c"), (2_000_000, "b")):
        c = summary(second, 1, wrong=wrong, source="rank2", host=host)
        clocks, _ = join([a, b, c])
        assert [c.method for c in clocks] == ["reference", "collectives", "collectives"]
        assert clocks[2].correction_ns == pytest.approx(-wrong, abs=2_500)
        assert clocks[2].error_ns > clocks[1].error_ns


def test_other_jobs_are_refused():
    """Same names, same sizes, but not the same collectives: nothing is corrected, and no wait is
    invented."""
    one, other = (
        run(2, 30, think=uneven),
        run(2, 30, think=lambda r, s: uneven(r + 5, 2 * s), seed=3),
    )
    comparison = compare(results(summary(one, 0), summary(other, 1)))
    assert comparison.clocks[1].method == "session start"
    assert comparison.clocks[1].correction_ns == 0 and comparison.clocks[1].error_ns is None
    assert "not the same collectives" in comparison.clocks[1].reason
    assert comparison.waits == () and comparison.labels[0].collectives == 0


@pytest.mark.parametrize(
    ("steps", "skip", "reason"),
    [(2, 0, "2 collectives are fewer than 3"), (40, 7, "33 collectives where another has 40")],
)
def test_too_few_collectives_or_not_the_same_number_prove_nothing(steps, skip, reason):
    job = run(2, steps)
    clock = join([summary(job, 0), summary(job, 1, skip=skip)])[0][1]
    assert clock.method == "session start" and reason in clock.reason


def test_without_a_session_start_the_order_tells():
    job = run(2, 40, grid=lambda step: 1)
    ranks = [summary(job, 0), summary(job, 1, session=77_000_000, known=False)]
    clocks, _ = join(ranks)
    assert clocks[1].method == "collectives"
    found = common(clocks[1], ranks[1].collectives["start_ns"].to_numpy())
    assert np.abs(found - [s[1] for s in job.arrivals]).max() < 1_500
    alone = join([ranks[0], replace(ranks[1], collectives=ranks[1].collectives[:2])])[0][1]
    assert alone.method == "none"


def test_one_machine_has_one_clock():
    """Traces of one machine whose ends are 3 ms apart did not meet in those collectives."""
    job = run(2, 20, think=uneven)
    ranks = [summary(job, r, wrong=3_000_000 * r, host="same") for r in range(2)]
    assert "one machine" in join(ranks)[0][1].reason
    near = [summary(job, r, wrong=15_000 * r, host="same") for r in range(2)]
    assert join(near)[0][1].correction_ns == pytest.approx(-15_000, abs=1_500)


def test_two_pairs_of_ranks_with_equal_collectives_are_two_communicators():
    """Tensor-parallel pairs run the same kernels at other times: rank 2 and 3 do not wait for 0 and
    1."""
    left, right = (
        run(2, 30, think=uneven),
        run(2, 30, think=lambda r, s: uneven(r + 3, s * s), seed=9),
    )
    ranks = [
        summary(left, 0),
        summary(left, 1),
        summary(right, 0, source="rank2"),
        summary(right, 1, source="rank3"),
    ]
    groups = join(ranks)[1]
    assert [tuple(s.rank for s in group) for group in groups] == [(0, 1), (2, 3)]
    comparison = compare(results(*ranks))
    assert {frozenset((w.rank, w.waits_for)) for w in comparison.waits} == {
        frozenset((0, 1)),
        frozenset((2, 3)),
    }


def test_a_broadcast_binds_nobody():
    job = run(2, 20, names=(ALL_REDUCE.replace("AllReduce", "Broadcast"),))
    assert join([summary(job, 0), summary(job, 1)])[1] == []


@settings(max_examples=25, deadline=None)
@given(
    offsets=st.lists(st.integers(-10_000_000, 10_000_000), min_size=3, max_size=3),
    seed=st.integers(0, 1000),
    order=st.permutations(range(3)),
)
def test_whatever_the_clocks_say(offsets, seed, order):
    """Errors of the clocks and the order of the traces change no finding: waits are the true ones,
    less those that could be the clocks' error."""
    job = run(3, 15, think=lambda r, s: uneven(r + seed, s), seed=seed)
    ranks = [summary(job, r, wrong=offsets[r], session=1_000 * r) for r in range(3)]
    comparison = compare(results(*(ranks[r] for r in order)))
    assert all(c.method in ("reference", "collectives") for c in comparison.clocks)
    last = [max(range(3), key=step.__getitem__) for step in job.arrivals]
    for row in comparison.labels[0].ranks:
        truth = job.waits(row.rank)
        assert 0 <= row.wait_ns <= sum(truth) + 15 * 2_000 and row.collectives == 15
        assert row.wait_ns >= sum(w for w in truth if w > 5_000) - 15 * 2_000
        assert sum(row.waits_for_ns.values()) == row.wait_ns and row.rank not in row.waits_for_ns
        assert row.arrived_last <= last.count(row.rank)


@pytest.mark.parametrize("operation", ["SendRecv", "AllToAll"])
def test_a_kernel_that_begins_early_waits(operation):
    """The rank whose kernel is the longest is not the slow one: it waits, in an exchange as in an
    all-reduce."""
    exchange = f"ncclDevKernel_{operation}(ncclDevKernelArgsStorage<4096ul>)"
    job = run(2, 20, think=lambda rank, step: 50_000 + 900_000 * rank, names=(exchange,))
    found = compare(results(*(summary(job, n, source="one") for n in range(2))))
    assert [(w.rank, w.waits_for) for w in found.waits] == [(0, 1)]
    (label,) = found.labels
    assert (label.verdict, label.waiting) == ("waits", 0)
    longest = max(label.ranks, key=lambda row: row.wait_ns)
    assert longest.rank == 0, "its kernel is the longest, and it is not the slow one"


def test_kernels_that_nobody_can_match_name_nobody_the_slowest():
    job = run(
        2,
        20,
        think=lambda rank, step: 50_000 + 900_000 * rank,
        names=(ALL_REDUCE.replace("AllReduce", "Broadcast"),),
    )
    ranks = [summary(job, n, source="one") for n in range(2)]
    (times,) = ranks[1].labels
    longer = replace(times, windows=times.windows + np.array([0, 500_000]))
    slow = replace(ranks[1], labels=(longer,))
    (label,) = compare(results(ranks[0], slow)).labels
    assert (label.verdict, label.slow) == ("unclear", None)
