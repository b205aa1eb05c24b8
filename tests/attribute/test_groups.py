"""Which intervals of a label belong together: one test per rule, on tables made by hand, then what is
issued and waited for, on drawings."""

from __future__ import annotations

import numpy as np
import pytest
from cases import drawing
from simulator.world import LEGACY, NON_BLOCKING, HostInterval, Range, World

from nsysalign.split.groups import Measured, _without_twins, grouped
from nsysalign.split.kind_names import _Kind, _names_that_differ
from nsysalign.split.paces import paces


def measured(
    us, *, idle=None, pid=1, content=1, grids=0, names=1, bits=1, graph=0, busy=0, main=1, count=1, size=0,
    new=(), frees=0, behind=0, waits=0,
):  # fmt: skip
    """A label's intervals: microseconds, and what each issued; single values are those of all.
    `new`: which of them launch a kernel that is new; `bits`: of which names."""
    us = np.asarray(us, dtype=float)

    def column(values):
        return np.broadcast_to(np.asarray(values, np.int64), len(us))

    idle = us if idle is None else np.broadcast_to(np.asarray(idle, float), len(us))
    return Measured(
        (us * 1000).astype(np.int64), (idle * 1000).astype(np.int64), column(pid), column(content),
        column(grids), column(names), column(bits), column(graph), 1000 * column(busy), column(main),
        column(count), column(size),
        np.isin(np.arange(len(us)), list(new)), *(column(v).astype(bool) for v in (frees, behind)), column(waits),
    )  # fmt: skip


def rows(m):
    """(positions, role) of each group, in the order of their first interval."""
    return sorted((part.at.tolist(), part.role) for part in grouped(m))


def noisy(count, us=50.0, spread=0.05, seed=0):
    return us * np.exp(np.random.default_rng(seed).normal(0, spread, count))


# --- kinds of work


def test_graphs_of_other_work_are_kinds_whatever_the_cpu_takes_beside_them():
    """Two captured decoders beneath the same 2 ms of CPU work (b13): one graph runs twice as long."""
    turn = np.arange(20) % 2
    two = [(list(range(0, 20, 2)), ""), (list(range(1, 20, 2)), "")]
    assert rows(measured(noisy(20, 2000), graph=5 + turn, busy=np.where(turn, 350, 690))) == two
    assert len(rows(measured(noisy(20, 2000), graph=5 + turn, busy=350))) == 1
    # a graph that is made anew for each timing is no kind
    assert len(rows(measured(noisy(20, 2000), graph=np.arange(1, 21), busy=350))) == 1


def test_graphs_whose_lengths_do_not_mix_are_kinds():
    """n05: 150 kernels of one size and 100 of the next took 2.47 and 2.64 ms, and were one row."""
    at_once = [np.arange(10), np.arange(10, 20)]
    us = np.concatenate([noisy(10, 2470, 0.003), noisy(10, 2640, 0.003, 1)])
    for graphs, kinds in (((1, 2), 2), ((1, 1), 1), ((0, 2), 1)):
        m = measured(us, graph=np.repeat(graphs, 10), content=np.repeat((1, 2), 10))
        assert len(_without_twins(m, at_once)) == kinds


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


def test_what_comes_late_is_no_first_call_even_if_it_runs_a_new_kernel():
    us = noisy(30)
    us[17] = 700
    assert ([17], "slow") in rows(measured(us, new=[17]))
    assert ([17], "slow") in rows(measured(us))


@pytest.mark.parametrize(
    ("odd", "role"),
    [
        (
            [10, 21, 32],
            "slow",
        ),  # p10: the last batch of each epoch is smaller, and compiled for at first
        ([10, 11, 12], "first"),  # a helper times something else from there on
        ([2, 21, 32], "first"),  # among the first repetitions of the label
    ],
)
def test_a_size_that_is_new_in_the_middle_of_others_is_no_first_call(odd, role):
    us = noisy(33)
    us[odd] = 900_000, 300, 310
    content = np.isin(np.arange(33), odd)
    found = rows(measured(us, content=content, names=content, count=1 + content, new=odd[:1]))
    assert (odd[:1], role) in found


def test_a_slow_one_among_the_first_is_followed_by_none():
    """The second is usual: the third is no first call, however slow."""
    us = noisy(40)
    us[2] = 900
    assert ([2], "slow") in rows(measured(us))


@pytest.mark.parametrize(("bits", "is_first"), [(0b111, True), (0b011, True), (0b101, False)])
def test_a_first_call_runs_what_the_others_run(bits, is_first):
    """It may run more than they do, such as what is tried once; one that runs something else is none."""
    m = measured([900, *noisy(20)], content=[7, *[1] * 20], bits=[bits, *[0b10] * 20], new=[0])
    assert (([0], "first") in rows(m)) == is_first


def test_of_others_that_have_nothing_in_common_none_is_the_first():
    turn = np.arange(21) % 2
    m = measured([900, *noisy(20)], content=np.arange(21), names=turn, bits=1 << turn, new=[0])
    assert ([0], "first") not in rows(m)


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
@pytest.mark.parametrize("spread", [0.02, 0.1, 0.2])
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


@pytest.mark.parametrize(("us", "told"), [(500, False), (1_500, True)])
def test_one_or_two_are_told_where_they_are_a_quarter_of_the_time(us, told):
    """What two of forty take longer is a sixth of the time, or 40 %."""
    times = noisy(40, us=50)
    times[[20, 30]] = us / 2
    assert (([20, 30], "slow") in rows(measured(times))) == told


def test_what_deviates_counts_with_one_less():
    """What three of fifty take longer is 12 % of the time; of two it would be under a tenth."""
    times = noisy(50, spread=0.01)
    times[[10, 20, 30]] *= 3.2
    assert rows(measured(times)) == [(list(range(50)), "")]


@pytest.mark.parametrize("share", [0.15, 0.19, 0.2, 0.21])
def test_what_a_mode_needs_changes_little_with_its_share(share):
    """Modes 1.5 apart with ordinary noise, at a share around that at which a side is rare."""
    times, slow = noisy(200, seed=3), np.arange(200) < share * 200
    times[slow] *= 1.5
    found = paces((times * 1000).astype(np.int64), np.arange(200), int(times.sum() * 1000))
    assert len(found) == 2


@pytest.mark.parametrize(("long_us", "kinds"), [(950, 2), (700, 1)])
def test_two_clear_heaps_are_two_paces_whatever_the_label_does_besides(long_us, kinds):
    """k03: 8 of 0.94 and 8 of 4.06 ms were one row of 1.67 ms, beside 8 of 207 ms."""
    us = [500, 505, 503, 507, long_us, long_us + 9, long_us + 4, long_us + 6, *[90_000] * 4]
    found = rows(measured(us, content=[1] * 8 + [2] * 4, count=[9] * 8 + [12] * 4))
    assert len(found) == 1 + kinds


def test_one_of_two_long_ones_among_few_is_no_first_call():
    """k04: two epochs with the DataLoader, two with slices; the first one was left out, the second had no row."""
    assert rows(measured([1_124, 1_011, 512, 508])) == [([0, 1], ""), ([2, 3], "")]
    assert rows(measured([1_124, 511, 512, 508])) == [([0], "first"), ([1, 2, 3], "")]


def test_fewer_than_six_are_one_row():
    assert rows(measured([50, 50, 50, 90, 90], content=1)) == [(list(range(5)), "")]


def test_less_than_a_microsecond_apart_is_one_row():
    turn = np.arange(20) % 2
    assert rows(measured(np.where(turn, 2.0, 2.9))) == [(list(range(20)), "")]


# --- what is issued, and what it is called


def drawn(tmp_path, draw, *, logs=False, streams=None):
    world = World(latency=dict.fromkeys(("kernel", "memcpy"), 1_000))
    world.streams = streams or world.streams
    draw(world)
    return drawing.analysed(world, tmp_path, logs=logs)


def test_what_ran_inside_is_not_what_was_issued(tmp_path):
    """Behind a long kernel the pairs issue one kernel, or two, in turn.

    H  s  r0 s r1  r2 s s r3 ...                all within 300 us
    G     #################### ## | ## ## | ## ...   the windows follow, a thousand us later
    """

    def draw(world):
        world.kernel(5, 1000, world.call("launch", -10, -5), name="long")
        end = 1000
        for k in range(12):
            at = 20 * k
            start = world.record(end, at, at + 1)
            for n in range(1 + k % 2):
                call = world.call("launch", at + 3 + 4 * n, at + 5 + 4 * n)
                world.kernel(end, end + 40, call, name="short")
                end += 40
            world.pair(start, world.record(end, at + 12, at + 13), f"step#{k}")
        world.sync(250, end)
        world.end = end + 10

    (label,) = drawn(tmp_path, draw, logs=True).grouped
    found = {group.work.name: (group.count, group.work.operations) for group in label.groups}
    assert found == {"1 operation": (6, 1), "2 operations": (6, 2)}
    assert all(group.late == 0 and group.empty == 0 for group in label.groups)


def test_what_its_own_work_takes_makes_no_first_call(tmp_path):
    """llm-community copies in line, then beside the kernels: 138 and 98.6 ms, and the first was left out.

    stream 7    r CC      CC      CC      w r   r CC      CC  CC      w r
    stream 13        KKKK    KKKK    KKKK            KKKK KKKK KKKK
    """

    def draw(world):
        for at, step, kernel in ((0, 45_600, 34_600), (500_000, 11_000, 29_200)):
            start = world.record(at + 10, at, at + 2)
            for k in range(3):
                begin = at + 20 + k * step
                copied = begin + 11_000
                call = world.call("memcpy", begin - 8, begin - 4)
                world.copy(begin, copied, call, pageable=False, nbytes=1 << 26)
                kernel_begin = max(copied, world.ops[-2].end if k else 0)
                call = world.call("launch", begin - 3, begin - 1)
                world.kernel(kernel_begin, kernel_begin + kernel, call, 13, name="busy")
            last = world.ops[-1].end
            done = world.record(last, begin, begin + 2, 13)
            world.wait(done, begin + 3, begin + 4, 7)
            world.pair(start, world.record(last + 3, begin + 5, begin + 6), f"pair#{at and 1}")
            world.sync(begin + 8, last + 20)

    (label,) = drawn(tmp_path, draw, logs=True, streams={7: NON_BLOCKING, 13: NON_BLOCKING}).grouped
    assert (label.first, label.usual.count) == ((), 2)


def test_work_that_ends_after_the_second_reading_and_none_at_all(tmp_path):
    """One range of host readings issues what runs later, the other issues nothing."""

    def draw(world):
        for k in range(6):
            at = 1000 * k
            world.host_intervals.append(HostInterval(f"enqueue#{k}", at, at + 20, world.pid))
            world.kernel(at + 100, at + 400, world.call("launch", at + 5, at + 10))
            world.host_intervals.append(HostInterval(f"nothing#{k}", at + 30, at + 50, world.pid))
        world.end = 7000

    labels = {label.name: label.groups for label in drawn(tmp_path, draw, logs=True).grouped}
    assert sum(group.late for group in labels["enqueue"]) == 6
    assert sum(group.empty for group in labels["nothing"]) == 6
    assert sum(group.empty for group in labels["enqueue"]) == 0


def test_what_was_waited_for_has_its_name_and_stream(tmp_path):
    """Stream 7 waits for a record on stream 13, behind a kernel there."""

    def draw(world):
        for k in range(3):
            at = 1000 * k
            start = world.record(at + 10, at, at + 2)
            world.kernel(at + 20, at + 320, world.call("launch", at + 3, at + 6), 13, name="other")
            done = world.record(at + 320, at + 7, at + 9, stream=13)
            world.wait(done, at + 10, at + 12, 7)
            world.kernel(at + 325, at + 400, world.call("launch", at + 13, at + 16), name="own")
            world.pair(start, world.record(at + 400, at + 17, at + 19), f"step#{k}")
            world.sync(at + 20, at + 420)
        world.end = 4000

    (label,) = drawn(tmp_path, draw, logs=True, streams={7: LEGACY, 13: NON_BLOCKING}).grouped
    (entry,) = (e for group in label.groups for e in group.of_cause("queued"))
    assert (entry.what, entry.why, entry.stream) == ("other", "dependency", 13)
    assert [group.work.waits for group in label.groups] == [0]


def test_waits_between_launches_are_counted(tmp_path):
    def draw(world):
        for k in range(4):
            at = 1000 * k
            world.ranges.append(Range("step", at, at + 900, world.pid))
            for n in range(3):
                begin = at + 200 * n
                call = world.call("launch", begin + 2, begin + 8)
                world.kernel(begin + 20, begin + 60, call)
                world.sync(begin + 30, begin + 62)

    (label,) = drawn(tmp_path, draw).grouped
    assert [group.work.waits for group in label.groups] == [2], "not the one behind the last"


def test_copies_are_told_apart_by_their_bytes(tmp_path):
    def draw(world):
        for k in range(12):
            at, size = 1000 * k, (4096, 1 << 20)[k % 2]
            world.ranges.append(Range("copy", at, at + 900, world.pid))
            call = world.call("memcpy", at + 2, at + 8)
            world.copy(at + 20, at + 40 + 100 * (k % 2), call, pageable=False, nbytes=size)

    (label,) = drawn(tmp_path, draw).grouped
    assert [(group.work.name, group.count) for group in label.groups] == [
        ("1.05 MB", 6),
        ("4.10 kB", 6),
    ]
    (entry,) = label.groups[0].of_cause("memcpy")
    assert (entry.what, entry.direction, entry.memory) == ("copy", "H2D", "pinned")
    assert entry.size == 6 << 20


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


def test_overlapping_pairs_are_counted_and_not_summed(tmp_path):
    """Each pair begins before the one before it has ended."""

    def draw(world):
        starts = []
        for k in range(4):
            at = 100 * k
            starts.append(world.record(at + 10, at, at + 2))
            world.kernel(at + 20, at + 90, world.call("launch", at + 4, at + 8))
            if k:
                world.pair(starts[-2], world.record(at + 95, at + 10, at + 12), f"step#{k}")
        world.sync(320, 500)
        world.end = 600

    (label,) = drawn(tmp_path, draw, logs=True).grouped
    assert label.overlapping and label.total_ns == 3 * 185_000 and label.span_ns == 385_000


def test_one_after_the_other_does_not_overlap(tmp_path):
    def draw(world):
        for k in range(3):
            world.ranges.append(Range("step", 100 * k, 100 * k + 50, world.pid))
            call = world.call("launch", 100 * k + 2, 100 * k + 8)
            world.kernel(100 * k + 20, 100 * k + 60, call)

    (label,) = drawn(tmp_path, draw).grouped
    assert not label.overlapping and label.span_ns == label.total_ns == 120_000


def spread_out(shortest_us, count=20):
    """Lengths without a heap: 20, 21.2, ... 44 us."""
    return shortest_us * np.linspace(1, 2.2, count)


def in_turn(first, second):
    return np.stack([first, second]).T.ravel()


def test_a_backlog_divides_a_kind_that_lengths_do_not_divide():
    """g18: behind a flush of the cache a launch is hidden; without it the GPU waits for it."""
    us = in_turn(spread_out(20), spread_out(55, 20))
    behind = np.arange(40) % 2 == 0
    sides = [(list(range(0, 40, 2)), ""), (list(range(1, 40, 2)), "")]
    assert rows(measured(us)) == [(list(range(40)), "")]
    assert rows(measured(us, behind=behind)) == sides
    assert {part.kind for part in grouped(measured(us, behind=behind))} == {0, 1}
    # lengths that overlap, or that hardly differ, are one kind, whatever ran before
    assert len(rows(measured(in_turn(spread_out(20), spread_out(35)), behind=behind))) == 1
    assert len(rows(measured(noisy(40), behind=behind))) == 1
    # two of them say nothing
    assert len(rows(measured(us, behind=np.arange(40) < 2))) == 1


def test_a_backlog_is_what_still_runs_when_the_range_opens(tmp_path):
    def draw(world):
        lengths = in_turn(spread_out(20), spread_out(55)).tolist()
        for k, us in enumerate(lengths):
            at = 1000 * k + 500
            ends = 10 if k % 2 == 0 else -10
            world.kernel(at - 60, at + ends, world.call("launch", at - 90, at - 80), name="flush")
            world.kernel(at + 20, at + 20 + us, world.call("launch", at + 2, at + 8), name="norm")
            world.ranges.append(Range("f", at, at + 300, world.pid))

    (label,) = drawn(tmp_path, draw).grouped
    named = {group.work.name: group.intervals.tolist() for group in label.groups}
    assert named == {
        "GPU busy before": list(range(0, 40, 2)),
        "GPU idle before": list(range(1, 40, 2)),
    }


def test_timings_that_wait_and_those_that_do_not_are_two_kinds():
    """j05: a step with nine read-backs and one with none took equally long, and were one row of nine waits."""
    turn = np.arange(40) % 2
    sides = [(list(range(0, 40, 2)), ""), (list(range(1, 40, 2)), "")]
    assert rows(measured(noisy(40), waits=9 * turn)) == sides
    assert {part.kind for part in grouped(measured(noisy(40), waits=9 * turn))} == {0, 1}
    # a decoder that waits once for each of its tokens is one kind, whatever their number
    assert len(rows(measured(noisy(40), waits=np.arange(40)))) == 1
    # so is a label that waits once or twice, or in which three of forty wait
    assert len(rows(measured(noisy(40), waits=1 + turn))) == 1
    assert len(rows(measured(noisy(40), waits=9 * (np.arange(40) < 3)))) == 1


def test_few_of_different_work_are_no_average():
    """g10: 7.3 ms of 630 operations and 5.8 ms of 420 were "2 x 5.81 ms (525 operations)"."""
    m = measured([268e3, 25.8e3, 115e3, 7.3e3, 5.8e3], count=[420, 630, 630, 630, 420],
                 content=range(5), names=range(5), main=1)  # fmt: skip
    assert [at for at, _ in rows(m)] == [[0], [1], [2], [3], [4]]
    assert {part.kind for part in grouped(m)} == set(range(5))


def test_few_that_are_far_from_alike_are_listed():
    """Three rows instead of a median that is none of them."""
    assert rows(measured([50, 52, 900, 20_000])) == [([0, 1], ""), ([2], ""), ([3], "")]


def test_a_kind_is_called_by_its_graph_or_by_how_much_it_launches_first():
    def named(*kinds):
        return _names_that_differ(
            [_Kind(*kind, main="", main_count=1, is_behind=False) for kind in kinds]
        )

    # eager, its graph, and the same of another size: one of them copies 64 bytes as well
    kinds = [(64, 536, 9, 0), (0, 1, 0, 2), (0, 520, 9, 0), (0, 1, 0, 1)]
    assert named(*kinds) == ["536 operations", "graph 2", "520 operations", "graph 1"]
    # as much launched, one of them copies
    assert named((0, 3, 0, 0), (64, 3, 0, 0), (0, 5, 0, 0)) == [
        "3 operations",
        "3 operations, 64 B",
        "5 operations",
    ]
    assert named((0, 3, 64, 0), (0, 3, 128, 0)) == ["64 blocks", "128 blocks"]


def test_kinds_that_only_their_length_tells_apart_have_no_name():
    """n08: '48.3 MB (1)', '48.2 MB (2)' and '48.2 MB (3)', which differed in 640 bytes."""
    alike = [_Kind(size, 9, 9, 0, "", 1, False) for size in (48_249_950, 48_249_822, 48_249_310)]
    assert _names_that_differ(alike) == ["", "", ""]


def test_kinds_are_told_apart_by_the_kernel_that_takes_their_time_before_their_copies():
    def named(count):
        kinds = [(0, 3, 9, 0, "align1"), (64, 3, 8, 0, "align2"), (8, 3, 7, 0, "wgmma")]
        return _names_that_differ([_Kind(*kind, count, is_behind=False) for kind in kinds])

    assert named(1) == ["align1", "align2", "wgmma"]
    assert named(3) == ["no copies", "64 B", "8 B"]  # one kernel of several says little


def test_bytes_that_are_set_are_not_copied(tmp_path):
    """nanoPALM#6: cuBLAS sets its counters, 8 or 14,656 bytes, and nothing is copied."""

    def draw(world):
        for k in range(20):
            at, odd = 1000 * k, k % 2
            world.ranges.append(Range("step", at, at + 400, world.pid))
            gemm = world.call("launch", at + 2, at + 8)
            world.kernel(at + 20, at + 120 + 40 * odd, gemm, name=f"gemm_align{1 + odd}")
            clears = world.call("memset", at + 10, at + 12)
            world.op("memset", at + 180, at + 181, clears, bytes=8 if odd else 14_656)

    (label,) = drawn(tmp_path, draw).grouped
    assert {group.work.name for group in label.groups} == {"gemm_align1", "gemm_align2"}


def test_kinds_of_one_length_are_one_only_if_the_gpu_works_as_long_on_them():
    """The CPU is late in both: their length is that of its launches, the work is not the same."""
    at_once = [np.arange(0, 10), np.arange(10, 20)]
    # half the work; nearly as much; and 2 us less, which are no share of 5 ms
    for first_us, second_us, kinds in ((858, 400, 2), (858, 820, 1), (12, 10, 1)):
        busy = [first_us] * 10 + [second_us] * 10
        m = measured([5_390] * 20, content=[1] * 10 + [2] * 10, busy=busy)
        assert len(_without_twins(m, at_once)) == kinds


def test_what_gives_memory_back_is_another_kind():
    """h08: with empty_cache() in each step 83 ms, without 71 ms; the lengths of both overlap, as batches vary."""
    with_calls = np.arange(60) < 30
    us = np.tile(np.linspace(55, 90, 30), 2) * np.where(with_calls, 1.18, 1)
    operations = np.tile(1_800 + 40 * np.arange(30), 2)
    work = {"content": operations, "names": np.arange(60), "count": operations}
    sides = [(list(range(30)), ""), (list(range(30, 60)), "")]
    assert len(rows(measured(us, **work))) == 1
    assert rows(measured(us, **work, frees=with_calls)) == sides
    # what is no longer with it, and what does it now and then, is the same work
    assert len(rows(measured(us[::-1], **work, frees=with_calls))) == 1
    assert len(rows(measured(us, **work, frees=np.arange(60) < 9))) == 1


def test_calls_of_memory_are_those_of_the_threads_that_work_for_it(tmp_path):
    """Every other step frees; another thread does in all of them, and the pool of a stream gives nothing back."""

    def draw(world):
        for k in range(20):
            at, odd = 1000 * k, k % 2
            world.ranges.append(Range("step", at, at + 400, world.pid))
            world.kernel(at + 20, at + 120 + 40 * odd, world.call("launch", at + 2, at + 8))
            world.call(
                "other", at + 10, at + 12, name="cudaFree" if odd else "cudaFreeAsync_v11020"
            )
            world.call("other", at + 14, at + 16, thread=world.pid + 1, name="cudaFree")

    (label,) = drawn(tmp_path, draw).grouped
    assert [(group.work.name, group.count) for group in label.groups] == [
        ("frees memory", 10),
        ("keeps memory", 10),
    ]


def test_kinds_of_a_growing_number_of_operations_are_not_cut_at_a_power_of_two():
    """h08: 1,794 to 2,739 and 2,955 to 3,075 operations were two kinds, without a gap between them."""
    operations = np.round(1_800 * 1.05 ** np.linspace(0, 12, 40)).astype(int)
    work = {"content": np.arange(40), "names": np.arange(40), "size": np.arange(40)}
    assert len(rows(measured(noisy(40), count=operations, **work))) == 1
    # with one, they are
    apart = np.where(operations < 2_400, operations, 2 * operations)
    us = np.where(operations < 2_400, 50, 100)
    assert len(rows(measured(us, count=apart, **work))) == 2


def test_timings_on_which_the_gpu_works_three_times_as_long_are_two_kinds():
    """j14: a solver's grid of 256 x 256 and one of 1024 x 1024, for both of which the CPU takes 140 ms."""
    sizes = {"grids": [1, 1, 1, 9, 9, 9], "content": 1}
    assert len(rows(measured([140] * 6, busy=[13] * 3 + [42] * 3, **sizes))) == 2
    # so few of each that no description of their work has three alike; of few each counts
    few = {"grids": [1, 2, 3], "content": 1}
    m = measured([143, 139, 145], busy=[13, 42, 14], **few)
    assert rows(m) == [([0, 2], ""), ([1], "")]
    assert {part.kind for part in grouped(m)} == {0, 1}
    # twice as long, and three times as long of so little that it is no share of the time
    assert len(rows(measured([143, 139, 145], busy=[13, 26, 14], **few))) == 1
    assert len(rows(measured([143, 139, 145], busy=[1, 3, 1], **few))) == 1
    # exactly the same work, which waits for memory in one of them
    assert len(rows(measured([143, 139, 145], busy=[13, 42, 14], grids=1))) == 1


def test_of_two_timings_of_other_work_neither_is_typical():
    """i18: 378 ms with 298 waits and 272 ms with 148 were one row of 272 ms."""
    m = measured([378, 272], content=[1, 2])
    assert rows(m) == [([0], ""), ([1], "")]
    assert {part.kind for part in grouped(m)} == {0, 1}
    # the same work, or about the same length: nobody can say what is noise
    assert rows(measured([378, 272])) == [([0, 1], "")]
    assert rows(measured([300, 272], content=[1, 2])) == [([0, 1], "")]
