"""Which intervals of a label belong together: one test per rule, on tables made by hand, then what is
issued and waited for, on drawings."""

from __future__ import annotations

import numpy as np
import pytest
from cases import drawing
from simulator.world import Range, World

from nsysalign.split.groups import Measured, grouped, paces


def measured(us, *, idle=None, pid=1, content=1, grids=0, names=1, main=1, count=1, size=0, new=()):
    """A label's intervals: microseconds, and what each issued; single values are those of all.
    `new`: which of them launch a kernel that is new."""
    us = np.asarray(us, dtype=float)

    def column(values):
        return np.broadcast_to(np.asarray(values, np.int64), len(us))

    idle = us if idle is None else np.broadcast_to(np.asarray(idle, float), len(us))
    return Measured(
        (us * 1000).astype(np.int64), (idle * 1000).astype(np.int64), column(pid), column(content),
        column(grids), column(names), column(main), column(count), column(size),
        np.isin(np.arange(len(us)), list(new)),
    )  # fmt: skip


def rows(m):
    """(positions, role) of each group, in the order of their first interval."""
    return sorted((part.at.tolist(), part.role) for part in grouped(m))


def noisy(count, us=50.0, spread=0.05, seed=0):
    return us * np.exp(np.random.default_rng(seed).normal(0, spread, count))


# --- kinds of work


def test_other_operations_are_another_kind():
    """One helper times two things in turn."""
    turn = np.arange(20) % 2
    m = measured(np.where(turn, 35, 50), content=turn, names=turn, count=1 + turn)
    assert rows(m) == [(list(range(0, 20, 2)), ""), (list(range(1, 20, 2)), "")]
    assert {part.kind for part in grouped(m)} == {0, 1}


def test_another_kernel_of_the_same_cost_is_the_same_kind():
    turn = np.arange(20) % 2
    assert rows(measured(np.where(turn, 50, 52), content=turn)) == [(list(range(20)), "")]


@pytest.mark.parametrize("column", ["size", "grids"])
def test_other_sizes_of_the_same_operations_are_kinds(column):
    turn = np.arange(30) % 3
    found = rows(measured(10 * 2.0**turn, **{column: 1000 * turn}))
    assert [at for at, _ in found] == [list(range(k, 30, 3)) for k in range(3)]


def test_work_that_the_data_decides_is_one_kind():
    """Every repetition issues something else: as many kinds as repetitions are none."""
    m = measured(noisy(40), content=np.arange(40), grids=np.arange(40), size=np.arange(40))
    assert rows(m) == [(list(range(40)), "")]


def test_a_kind_is_described_as_coarsely_as_needed():
    """Copies of any size, but two kinds of kernels."""
    turn = np.arange(40) % 2
    m = measured(np.where(turn, 20, 50), content=turn, names=turn, size=np.arange(40))
    assert [at for at, _ in rows(m)] == [list(range(0, 40, 2)), list(range(1, 40, 2))]


def test_a_sweep_has_a_row_per_repetition():
    """Each repetition runs another kernel, as an autotuner's do."""
    configurations = np.arange(6)
    m = measured(10.0 * 1.5**configurations, content=configurations, main=configurations)
    assert rows(m) == [([k], "") for k in range(6)]


def test_ranks_whose_medians_differ_are_kinds():
    turn = np.arange(40) % 2
    assert [at for at, _ in rows(measured(50 + turn, pid=turn))] == [list(range(40))]
    apart = grouped(measured(50 * (1 + turn), pid=turn))
    assert [(part.at.tolist(), part.pid) for part in apart] == [
        (list(range(0, 40, 2)), 0),
        (list(range(1, 40, 2)), 1),
    ]


# --- first calls


def test_a_first_call_is_taken_out():
    assert rows(measured([900, *noisy(20)], new=[0])) == [([0], "first"), (list(range(1, 21)), "")]


@pytest.mark.parametrize(
    ("us", "new", "is_first"),
    [(80, True, True), (80, False, False), (120, False, True), (60, True, False)],
)
def test_without_a_new_kernel_it_has_to_be_twice_as_long(us, new, is_first):
    found = rows(measured([us, *[50] * 9], new=[0] * new))
    assert (([0], "first") in found) == is_first


def test_a_first_call_whose_kernels_take_longer_is_none():
    """Other work that is called a warm-up: what it takes longer for is its kernels."""
    assert ([0], "first") not in rows(measured([100, *[50] * 9], idle=[5, *[5] * 9], new=[0]))


def test_a_later_call_that_runs_a_new_kernel_is_one_too():
    us = noisy(30)
    us[17] = 700
    assert ([17], "first") in rows(measured(us, new=[17]))
    assert ([17], "first") not in rows(measured(us))


def test_a_slow_one_among_the_first_is_followed_by_none():
    """The second is usual: the third is no first call, however slow."""
    us = noisy(40)
    us[2] = 900
    assert ([2], "slow") in rows(measured(us))


def test_shares_are_of_what_first_calls_leave():
    """30 % of the rest, and 1 % of it all."""
    us = np.concatenate([[500_000], noisy(40), [600, 600, 600]])
    assert ([41, 42, 43], "slow") in rows(measured(us, new=[0]))


# --- pace


@pytest.mark.parametrize("count", [20, 100, 1000])
@pytest.mark.parametrize("share", [0.2, 0.5])
def test_two_modes_are_told_apart(count, share):
    us, slow = noisy(count, seed=count), np.arange(count) < share * count
    us[slow] *= 1.5
    found = paces((us * 1000).astype(np.int64), np.arange(count), int(us.sum() * 1000))
    assert [sorted(side.tolist()) for side in found] == [
        np.flatnonzero(~slow).tolist(),
        np.flatnonzero(slow).tolist(),
    ]


@pytest.mark.parametrize("count", [6, 10, 20, 100, 1000])
@pytest.mark.parametrize("spread", [0.02, 0.1, 0.3])
def test_noise_is_one_pace(count, spread):
    """Over 200 draws 3 % may be two."""
    split = 0
    for seed in range(200):
        us = noisy(count, spread=spread, seed=seed)
        split += (
            len(paces((us * 1000).astype(np.int64), np.arange(count), int(us.sum() * 1000))) > 1
        )
    assert split <= 6


def test_a_few_very_long_ones_are_a_slow_group():
    """Half of the time is 5 of 600."""
    us = noisy(600, us=1460)
    us[100::100] = 150_000
    assert ([100, 200, 300, 400, 500], "slow") in rows(measured(us))


def test_what_takes_little_of_the_time_is_no_group():
    us = noisy(600)
    us[300] = 500
    assert rows(measured(us)) == [(list(range(600)), "")]


def test_fewer_than_six_are_one_row():
    assert rows(measured([50, 50, 50, 90, 90], content=1)) == [(list(range(5)), "")]


def test_less_than_a_microsecond_apart_is_one_row():
    turn = np.arange(20) % 2
    assert rows(measured(np.where(turn, 2.0, 2.9))) == [(list(range(20)), "")]


# --- what is issued, and what it is called


def drawn(tmp_path, draw, *, logs=False, streams=None):
    world = World(latency=dict.fromkeys(("kernel", "memcpy"), 1_000), **(streams or {}))
    draw(world)
    return drawing.analysed(world, tmp_path, logs=logs)


def test_what_ran_inside_is_not_what_was_issued(tmp_path):
    """Behind a long kernel the pairs issue one kernel, or two, in turn; what runs in them is shifted."""

    def draw(world):
        world.kernel(5, 900, world.call("launch", -10, -5), name="long")
        end = 900
        for k in range(6):
            at, count = 100 * k, 1 + k % 2
            start = world.record(end, world.call("record", at, at + 2))
            for n in range(count):
                call = world.call("launch", at + 10 + 10 * n, at + 15 + 10 * n)
                world.kernel(end, end + 40, call, name="short")
                end += 40
            stop = world.record(end, world.call("record", at + 50, at + 52))
            world.pair(start, stop, "step")
            world.sync(end)

    (label,) = drawn(tmp_path, draw, logs=True).grouped
    assert {group.count: group.work.operations for group in label.groups} == {3: 1} or sorted(
        (group.count, group.work.operations) for group in label.groups
    ) == [(3, 1), (3, 2)]


def test_a_kernel_and_a_call_have_their_names(tmp_path):
    def draw(world):
        for k in range(4):
            at = 1000 * k
            world.ranges.append(Range("step", at, at + 900, world.pid))
            world.kernel(at + 20, at + 60, world.call("launch", at + 2, at + 8), name="gemm")
            world.kernel(at + 160, at + 260, world.call("launch", at + 100, at + 150), name="add")

    analysis = drawn(tmp_path, draw)
    (label,) = analysis.grouped
    (group,) = label.groups
    named = {(entry.cause, entry.what): entry.ns for entry in group.entries}
    assert named["kernel", "add"] == 400_000 and named["kernel", "gemm"] == 160_000
    assert named["api_launch", "cudaLaunchKernel"] == 200_000
    assert [(one.kind, one.name, one.count) for one in group.work.issued] == [
        ("kernel", "gemm", 1),
        ("kernel", "add", 1),
    ] and group.work.operations == 2


def test_nested_ranges_with_the_same_operations_name_each_other(tmp_path):
    def draw(world):
        for k in range(4):
            at = 1000 * k
            world.ranges.append(Range("outer", at, at + 900, world.pid))
            world.ranges.append(Range("inner", at + 1, at + 100, world.pid))
            world.kernel(at + 20, at + 60, world.call("launch", at + 2, at + 8))
            world.ranges.append(Range("more", at - 1, at + 950, world.pid))
            world.kernel(at + 920, at + 930, world.call("launch", at + 910, at + 915))

    inside = {label.name: label.inside for label in drawn(tmp_path, draw).grouped}
    assert inside == {"more": "", "outer": "", "inner": "outer"}


def test_overlapping_ranges_say_so(tmp_path):
    def draw(world):
        for k in range(3):
            world.ranges.append(Range("step", 100 * k, 100 * k + 50, world.pid + k))
            world.kernel(100 * k + 20, 100 * k + 60, world.call("launch", 100 * k + 2, 100 * k + 8))

    (label,) = drawn(tmp_path, draw).grouped
    assert not label.overlapping and label.span_ns == label.total_ns
