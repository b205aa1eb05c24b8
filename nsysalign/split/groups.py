"""Groups of a label: its intervals that did the same kind of work at the same pace, and a ledger of
each group, which adds up to what was measured.

    label's intervals   x x X x o o x x x X x o        elapsed times; what each issued
    kinds of work       x x X x     x x x X x          the same operations between the two records
                                o o           o
    first calls         x                              the first ones of a kind, where they are slower
    pace                  x   x     x x x   x          a kind with a slow side: two rows, not one median
                            X             X

label     all intervals that the same code measured
kind      intervals of a label that issued the same work
pace      intervals of a kind of about the same length; a kind has several where its lengths lie in
          heaps that are far apart
group     what is reported as one row: the first calls of a kind, or one of its paces
ledger    the time of a group by cause and name: its lines add up to the group's total
issued    what the host launched between an interval's two records (`split.issued`)
part      how long an interval spent on one cause

`grouped` decides which intervals belong together.  The tables `groups`, `ledger`, `issued` and
`group_parts` say it; `nsysalign.label` makes of them the records that everything else reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import batches, group, ragged
from nsysalign.label import ALIKE, FIRST, SLOW, is_even
from nsysalign.model import KIND, OPERATION_KINDS
from nsysalign.split.budget import Executed, SplitTrace
from nsysalign.split.captures import CapturedLaunches, captured_launches
from nsysalign.split.elsewhere import elsewhere_ns
from nsysalign.split.issued import Issues, Work, blocks_of, grids_of, issued_in, issues_of, work_of
from nsysalign.split.kind_names import main_names, names_of_kinds
from nsysalign.split.labels import Ran
from nsysalign.split.paces import (
    APART_NS,
    FEW,
    FEWEST_PACED,
    GAP,
    RARE,
    RATIO,
    SHARE,
    paces,
)
from nsysalign.split.pieces import DETAILS

#: The same for a first call that runs no new kernel: nothing but its length says so, and it has to say it louder.
RATIO_NOTHING_NEW = 2.0
#: Of the earliest repetitions of a kind at most this many are first calls.
MOST_FIRST_CALLS = 3
#: If the kinds of a description cover less than this share of the time, a coarser one is tried.
COVERED = 0.8
#: If no description does, the coarsest one counts where it makes at most MOST_KINDS of FEWEST_DIVIDED repetitions or
#: more: as many rows can be read.
FEWEST_DIVIDED, MOST_KINDS = 5, 12
#: Kinds are weighed by time, in which a repetition counts with at most this many times the median: no single one is to
#: outweigh all others.
MOST_MEDIANS = 3
#: Two kinds are one if they differ by at most ALIKE in the number of their operations, and in length
#: by the same or by ALIKE_NS.
ALIKE_NS = 500
#: Two kinds that launch different CUDA graphs, of which no timing of one is as long as those of the other, are one up to
#: this ratio of their lengths: clocks differ by more than nothing.
GRAPHS_ALIKE = 1.04
#: Two kinds differ in their waits for the GPU, or in how long it works, if one has this many times as much as the other;
#: each has at least this share of the intervals.
MORE, RARELY = 3, 0.1
#: A sweep has at most this many repetitions, each of which is a row.
LONGEST_SWEEP = 64
#: Pairs of a window and a block in it that are held at once.
_AT_ONCE = 1 << 20
#: The grids of a label's kernels are read if their time varies by at least this share.
_VARIED = 0.05
#: Bytes times this and other numbers of a kind of work rarely make the same sum.
_ODD = 1_000_003
#: Two lines of a ledger differ in at least one of these columns.
_KEY = ["group", "cause", "what", "why", "direction", "memory", "stream"]


class Measured(NamedTuple):
    """The intervals of one label, sorted by start: arrays of equal length.

    elapsed_ns: how long each took
    idle_ns:    for how long of that none of the work ran that it issued, on any stream
    pid:        the process of each
    the others: what each issued, as in `issued.Work`
    """

    elapsed_ns: np.ndarray
    idle_ns: np.ndarray
    pid: np.ndarray
    content: np.ndarray
    grids: np.ndarray
    names: np.ndarray
    name_bits: np.ndarray
    graph: np.ndarray
    busy_ns: np.ndarray
    main: np.ndarray
    operations: np.ndarray
    size: np.ndarray
    new: np.ndarray
    frees: np.ndarray
    behind: np.ndarray
    waits: np.ndarray

    @classmethod
    def of_work(
        cls, elapsed_ns: np.ndarray, idle_ns: np.ndarray, pid: np.ndarray, work: Work
    ) -> Measured:
        """Return intervals with what they issued.  All arrays have a value per interval."""
        columns = {name: getattr(work, name) for name in cls._fields if name in Work._fields}
        return cls(elapsed_ns=elapsed_ns, idle_ns=idle_ns, pid=pid, **columns)

    def take(self, index: np.ndarray) -> Measured:
        """Return the intervals at these positions."""
        return Measured(*(column[index] for column in self))


class Part(NamedTuple):
    """The intervals of a label that become one group.

    at:   their positions among the label's intervals, rising
    kind: the number of their kind of work
    pace: the number of their pace among those of the kind, 0 for the fastest
    role: FIRST, SLOW or ''
    pid:  the process of a rank that is reported apart, -1 for all
    """

    at: np.ndarray
    kind: int = 0
    pace: int = 0
    role: str = ""
    pid: int = -1


class WorkOfIntervals(NamedTuple):
    """What rules may ask about each interval's work.

    key:      a number that is equal for the same operations with the same grids and as many bytes; 0 where that is not
              known
    range_ns: of an NVTX range that ends behind its work on the GPU, how long it lasted on its thread; 0 for all others
    """

    key: np.ndarray
    range_ns: np.ndarray


class Groups(NamedTuple):
    """The tables of all groups, and `of_interval`: the group of each interval, -1 for runs; `works`: what rules may ask
    about each interval's work."""

    of_interval: np.ndarray
    groups: pd.DataFrame
    ledger: pd.DataFrame
    issued: pd.DataFrame
    group_parts: pd.DataFrame
    works: tuple[WorkOfIntervals | CapturedLaunches, ...] = ()

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        """The tables by the names that they have in an analysis."""
        return {
            "groups": self.groups,
            "ledger": self.ledger,
            "issued": self.issued,
            "group_parts": self.group_parts,
        }


# --- which intervals belong together


def grouped(m: Measured) -> list[Part]:
    """Return the groups of one label, as sets of its intervals: of each kind of work its first calls, then its other
    intervals by pace.

    m: the label's intervals, sorted by start

    The ranks of a label are grouped apart if one of them is slower than another as a whole.

    What would be a first call, but comes late, is a slow pace of its kind.

    lengths 900, 20, 20, 21, 60, 20, 20, 20, 20, 20, 60, 20 us of one kind, the first mostly idle:
        [900] are first calls; the nine of about 20 are pace 0; [60, 60] are pace 1, which is slow
    """
    ranks = list(dict.fromkeys(m.pid.tolist()))
    if len(ranks) > 1:
        of_ranks = [np.flatnonzero(m.pid == pid) for pid in ranks]
        if _ranks_differ(m.elapsed_ns, of_ranks):
            return _grouped_by_rank(m, dict(zip(ranks, of_ranks, strict=True)))
    # shares of the label's time: of all of it for what makes a kind or a first call; of what first calls leave for paces,
    # as a first call of 900 us would outweigh that 20 us became 60 us
    total_ns = m.elapsed_ns.sum()
    kinds_of_work = _kinds_of_work(m, total_ns)
    slow_starts = [_first_of(m, at, total_ns) for at in kinds_of_work]
    late = _late_ones(m, kinds_of_work, slow_starts)
    first_of_kind = [np.setdiff1d(slow, late) for slow in slow_starts]
    steady_ns = total_ns - sum(m.elapsed_ns[first].sum() for first in first_of_kind)
    out, kind = list[Part](), 0
    for at, first, slow in zip(kinds_of_work, first_of_kind, slow_starts, strict=True):
        if len(first):
            out.append(Part(np.sort(first), kind, role=FIRST))
        pace = -1
        usual = np.setdiff1d(at, slow)
        for number, alike in enumerate(_by_length(m, usual) if len(usual) else []):
            kind += number > 0
            for pace, at_pace in enumerate(paces(m.elapsed_ns, alike, steady_ns)):
                is_slow = pace > 0 and len(at_pace) < RARE * len(alike)
                out.append(Part(np.sort(at_pace), kind, pace, SLOW if is_slow else ""))
        if len(after_others := np.intersect1d(slow, late)):
            out.append(Part(after_others, kind, pace + 1, SLOW))
        kind += 1
    return out


def _grouped_by_rank(m: Measured, of_ranks: dict[int, np.ndarray]) -> list[Part]:
    """Return the groups of each rank by itself.  Each rank numbers its kinds from 0: `pid` tells them apart.

    of_ranks: pid -> the positions of the rank's intervals
    """
    out = list[Part]()
    for pid, at in of_ranks.items():
        for part in grouped(m.take(at)):
            # a position among the rank's intervals becomes one among the label's
            out.append(part._replace(at=at[part.at], pid=pid))
    return out


def _kinds_of_work(m: Measured, total_ns: int) -> list[np.ndarray]:
    """Return the intervals of a label by the kind of work that they did: for each kind their positions.

    total_ns: the time of the label
    """
    out = list[np.ndarray]()
    # those that give memory back to the driver, where that takes time
    for side in _by_memory(m):
        # what they issued
        for kind in kinds(m.take(side)):
            # how much they issued, where few of a kind are far from alike
            for alike in _by_operations(m, side[kind]):
                # how long the GPU works on it, and how often they wait for the GPU
                for working in _by_gpu_time(m, alike):
                    for waiting in _by_waits(m, working):
                        # whether earlier work still ran at their start, where that changes their length
                        out += _by_backlog(m, waiting, total_ns)
    return out


def _ranks_differ(elapsed_ns: np.ndarray, of_ranks: Sequence[np.ndarray]) -> bool:
    """Return whether the slowest rank is slower than the fastest one by RATIO in all quartiles.

    Not in the median alone: if all ranks have the same two paces, it may lie in either of them.

    of_ranks: the positions of each rank's intervals
    """
    quartiles = np.array([np.quantile(elapsed_ns[at], [0.25, 0.5, 0.75]) for at in of_ranks])
    median = quartiles[:, 1]
    slowest = quartiles[median.argmax()]
    fastest = quartiles[median.argmin()]
    return bool((slowest > RATIO * fastest).all())


def kinds(m: Measured) -> list[np.ndarray]:
    """Return the kinds of work of a label: for each kind the positions of its intervals, rising.

    m: the label's intervals, sorted by start

    Several descriptions of the work are tried, the finest first, until the kinds that have at least FEW
    intervals and SHARE of the time cover most of the time.  If none does, the coarsest one counts
    if it has few kinds, or else those that launch a CUDA graph are a kind, and the others.

    A label is a sweep if most of its time goes to intervals whose main kernel is the main kernel of
    no other interval: then each main kernel is a kind.  (No kind has FEW intervals then, and all would be one.)
    """
    count = len(m.elapsed_ns)
    if count == 1 or all(
        (column[0] == column).all() for column in (m.content, m.grids, m.size, m.graph)
    ):
        return [np.arange(count)]
    capped_ns = np.minimum(m.elapsed_ns, MOST_MEDIANS * np.median(m.elapsed_ns))
    total_ns = capped_ns.sum()
    if count <= LONGEST_SWEEP and capped_ns[_is_only_one(m.main)].sum() > COVERED * total_ns:
        return _without_twins(m, _alike(m.main))
    # which intervals are alike: each description leaves out something that the one before it tells apart
    descriptions: Sequence[tuple[np.ndarray, ...]] = (
        (m.content, m.size, m.grids, m.graph),  # alike in all
        (m.content, m.size, m.grids),  # but for the graph that launches it
        (m.content, m.size),  # but for the grids of kernels
        (m.content,),  # but for the sizes of copies
        (m.names, m.operations),  # but for how often each name occurs
        (m.operations,),  # but for the names
        (_without_gaps(m.operations),),  # but for some operations more or less
    )
    for description in descriptions:
        alike = _alike(*description)
        # the time of each kind that has FEW intervals
        ns_of_kinds = [capped_ns[members].sum() for members in alike if len(members) >= FEW]
        covered_ns = sum(ns for ns in ns_of_kinds if ns >= SHARE * total_ns)
        if covered_ns >= COVERED * total_ns:
            return _without_twins(m, alike)
    coarsest = _alike(*descriptions[-1])
    has_few_kinds = count >= FEWEST_DIVIDED and len(coarsest) <= MOST_KINDS
    return _without_twins(m, coarsest) if has_few_kinds else _by_graph(m)


def _by_graph(m: Measured) -> list[np.ndarray]:
    """Return the intervals of a label in two sets, those that launch a CUDA graph and the others; in one if all or none
    do."""
    sides = np.flatnonzero(m.graph == 0), np.flatnonzero(m.graph)
    return [side for side in sides if len(side)]


def _by_memory(m: Measured) -> list[np.ndarray]:
    """Return the intervals of a label in two sets if those that give memory back to the driver are longer than the others
    as another kind of work would be; else all in one.

    m: the label's intervals

    step with empty_cache()    cudaMalloc, cudaFree    12 ms longer: another row, though the kernels are the same
    step without it
    """
    count = len(m.elapsed_ns)
    sides = [np.flatnonzero(m.frees), np.flatnonzero(~m.frees)]
    if min(map(len, sides)) < max(FEW, RARE * count):
        return [np.arange(count)]
    slower_ns, faster_ns = (float(np.median(m.elapsed_ns[side])) for side in sides)
    excess_ns = m.elapsed_ns[sides[0]].sum() - len(sides[0]) * faster_ns
    is_enough = excess_ns >= SHARE * m.elapsed_ns.sum()
    if is_enough and slower_ns >= max(ALIKE * faster_ns, faster_ns + APART_NS):
        return sides
    return [np.arange(count)]


def _without_gaps(operations: np.ndarray) -> np.ndarray:
    """Return a number for each interval by about how many operations it has, to a factor of two; those of two such
    numbers are one if no gap lies between them: no place is the right one for a cut.

    operations 10, 11, 40, 41, 45, 46:      sizes 3, 4, 5, 5, 6, 6 become 0, 0, 1, 1, 1, 1
    """
    rising = np.unique(operations)
    size = np.round(np.log2(rising + 1))
    begins = (np.diff(size) > 0) & (rising[1:] > ALIKE * rising[:-1])
    number = np.append(0, np.cumsum(begins))
    return number[np.searchsorted(rising, operations)]


def _by_backlog(m: Measured, at: np.ndarray, total: int) -> list[np.ndarray]:
    """Return a kind of work as two, or whole: the intervals that began behind earlier work, and those that began on an
    idle GPU.  It is divided if the two differ in length as two paces do.  Where the lengths alone show two paces, it
    stays whole, as `paces` divides it later.

    at:    the positions of the kind's intervals
    total: the time (ns) of the label

    stream   ..BBB.....BBB.....BBB   62 us each: the GPU waits for each launch
    stream   AAAABBBAAAABBBAAAABBB   25 us each: A is not timed, and hides the launch
    """
    sides = [at[m.behind[at]], at[~m.behind[at]]]
    if min(map(len, sides)) < max(FEW, RARE * len(at)):
        return [at]
    faster, slower = sorted(sides, key=lambda side: float(np.median(m.elapsed_ns[side])))
    # the gap lies between nearly the longest of the faster side and nearly the shortest of the slower one
    faster_ns, gap_begin_ns = np.quantile(m.elapsed_ns[faster], [0.5, 0.9])
    gap_end_ns, slower_ns = np.quantile(m.elapsed_ns[slower], [0.1, 0.5])
    apart = slower_ns >= max(RATIO * faster_ns, faster_ns + APART_NS)
    # the gap need not be wider than noise, as that of paces (`paces._best_cut`): which interval is on which side is
    # known, and not read off the lengths
    if not apart or gap_end_ns < GAP * gap_begin_ns:
        return [at]
    excess_ns = m.elapsed_ns[slower].sum() - len(slower) * faster_ns
    if excess_ns < SHARE * total:
        return [at]
    # first calls are not known yet: they are among these intervals, and in the total
    has_one_pace = len(paces(m.elapsed_ns, at, total)) == 1
    return sides if has_one_pace else [at]


def _by_operations(m: Measured, at: np.ndarray) -> list[np.ndarray]:
    """Return the intervals of a kind, if they are too few for paces and far from alike in length, in sets of about
    equally many operations: where one has more than ALIKE times as many as the next fewer ones, another set begins.
    Other kinds are returned whole.

    at: the positions of the kind's intervals

    5.8, 25.8, 115, 268 ms of 420, 630, 630, 420 operations: [0, 3], [1, 2]
    """
    times = np.sort(m.elapsed_ns[at])
    if len(at) >= FEWEST_PACED or is_even(len(at), times[(len(at) - 1) // 2], times.sum()):
        return [at]
    # one operation is more than none
    return _in_steps(at, m.operations[at], ALIKE, least=0.5)


def _by_gpu_time(m: Measured, at: np.ndarray) -> list[np.ndarray]:
    """Return the intervals of a kind in sets for which the GPU works about equally long: where it works MORE times as long
    as for the next, which is a share of their length, another set begins.  What issued exactly the same is the same work,
    however long it took.

    at: the positions of the kind's intervals

    Where the CPU is late, sizes do not show in the length, and what is said of the GPU would be so of one size only:

    solver, 256 x 256        143 ms, of which the GPU works for 13 ms
    solver, 1024 x 1024      139 ms, 42 ms: as many operations, another row
    """
    usual_ns = float(np.median(m.elapsed_ns[at]))
    # from half a share on, three times as much differs by a share
    least_ns = SHARE / 2 * usual_ns
    # one of few counts, as nothing else divides them
    fewest = max(FEW, RARELY * len(at)) if len(at) >= FEWEST_PACED else 1
    sets = _in_steps(at, m.busy_ns[at], MORE, least_ns, fewest)
    return _of_other_work(m, sets)


def _by_length(m: Measured, at: np.ndarray) -> list[np.ndarray]:
    """Return the intervals of a kind, first calls apart, in sets of about the same length that issued other work, if they
    are too few for paces; others whole.  How far lengths of the same work spread by chance, so few do not say.

    at: the positions of the kind's intervals

    378 and 272 ms, one waits 298 times and one 148 times:      two kinds, and no median
    """
    if len(at) >= FEWEST_PACED:
        return [at]
    # from this length on, RATIO times as much is APART_NS more
    least_ns = APART_NS / (RATIO - 1)
    return _of_other_work(m, _in_steps(at, m.elapsed_ns[at], RATIO, least_ns))


def _of_other_work(m: Measured, sets: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return these sets of positions, each joined with the one before it if an interval of both issued exactly the same:
    that is the same work, however long it took."""
    work = _same_work(m)
    out = list(sets[:1])
    for members in sets[1:]:
        if np.isin(work[members], work[out[-1]]).any():
            out[-1] = np.sort(np.append(out[-1], members))
        else:
            out.append(members)
    return out


def _by_waits(m: Measured, at: np.ndarray) -> list[np.ndarray]:
    """Return the intervals of a kind in sets that wait for the GPU about equally often: where one waits MORE times as often
    as the next, and neither side is rare, another set begins.

    at: the positions of the kind's intervals

    A row says how often one of its intervals waits, which is to be so in nearly all of them, however equally long they are:

    nonzero()   launch w launch w launch w launch       3.4 ms, 9 waits
    a mask      launch launch launch launch launch      3.2 ms, none: the same number of operations, another row
    """
    return _in_steps(at, m.waits[at], MORE, least=1, fewest=max(FEW, RARELY * len(at)))


def _same_work(work: Measured | Work) -> np.ndarray:
    """Return, per interval, a number that is equal for the same operations with the same grids and as many bytes."""
    # sums that wrap around: they are only compared with each other
    return work.content + work.grids + _ODD * work.size


def _in_steps(
    at: np.ndarray, values: np.ndarray, ratio: float, least: float, fewest: float = 1
) -> list[np.ndarray]:
    """Return positions in sets of about equal values, each set rising: where a value is at least `ratio` times the next
    smaller one, another set begins.

    values: per position
    least:  smaller values count as this one
    fewest: neither side of such a step has fewer positions

    values 5, 1, 6, 30 with a ratio of 3:      [1], [0, 2], [3]
    """
    by_value = np.argsort(values, kind="stable")
    rising = values[by_value]
    steps = np.flatnonzero(rising[1:] >= ratio * np.maximum(rising[:-1], least)) + 1
    kept = [step for step in steps.tolist() if min(step, len(at) - step) >= fewest]
    return [np.sort(at[alike]) for alike in np.split(by_value, kept)]


def _is_only_one(values: np.ndarray) -> np.ndarray:
    """Return, per value, whether no other one is equal to it."""
    _, number, uses = np.unique(values, return_inverse=True, return_counts=True)
    return uses[number] == 1


def _alike(*columns: np.ndarray) -> list[np.ndarray]:
    """Return sets of positions at which all columns have the same values, by the first of each.

    columns 5, 5, 6 and 1, 1, 1:      [0, 1], [2]
    """
    table = pd.DataFrame(dict(enumerate(columns)))
    return list(table.groupby(list(table), sort=False).indices.values())


def _without_twins(m: Measured, kinds_of_work: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the kinds after merging those that take about as long with about as many operations.

    m: the label's intervals
    kinds_of_work: the kinds, each the positions of its intervals

    Another kernel of the same cost counts as the same work, and so does another CUDA graph; but only if the GPU works for
    about as long on it.  The length of the intervals does not say that: where the GPU waits for the CPU, or for another
    stream, work of very different cost takes equally long.
    """
    medians = [float(np.median(m.elapsed_ns[members])) for members in kinds_of_work]
    last = list[np.ndarray]()  # of each merged kind, the longest kind in it
    merged = list[np.ndarray]()
    # of each merged kind, the work of the longest kind in it
    longest = list[_Cost]()
    for number in np.argsort(medians, kind="stable").tolist():
        members = kinds_of_work[number]
        first = members[0]
        busy_ns = float(np.median(m.busy_ns[members]))
        # all of a kind issue as many operations, but for the coarsest description
        work = _Cost(medians[number], int(m.operations[first]), busy_ns)
        twins = (
            n
            for n, shorter in enumerate(longest)
            if _alike_work(shorter, work) and not _graphs_differ(m, last[n], members)
        )
        twin = next(twins, -1)
        if twin < 0:
            merged.append(members)
            longest.append(work)
            last.append(members)
        else:
            merged[twin] = np.concatenate([merged[twin], members])
            # the next kind is compared with this one: a series of kinds that grows in small steps becomes one as a
            # whole, as no place in it is the right one for a cut
            longest[twin] = work
            last[twin] = members
    return [np.sort(members) for members in merged]


def _graphs_differ(m: Measured, shorter: np.ndarray, longer: np.ndarray) -> bool:
    """Return whether two kinds launch different CUDA graphs whose lengths do not mix: what is in a graph is not known, and
    one of 150 short kernels may take about as long as one of 100 longer ones.

    10 x 2.44 to 2.52 ms of one graph, 10 x 2.62 to 2.66 ms of another
    """
    graphs = m.graph[shorter[0]], m.graph[longer[0]]
    if graphs[0] == graphs[1] or 0 in graphs or min(len(shorter), len(longer)) < FEW:
        return False
    end_ns = np.quantile(m.elapsed_ns[shorter], 0.9)
    begin_ns = np.quantile(m.elapsed_ns[longer], 0.1)
    medians = [float(np.median(m.elapsed_ns[kind])) for kind in (shorter, longer)]
    return bool(begin_ns > end_ns and medians[1] >= GRAPHS_ALIKE * medians[0] + ALIKE_NS)


class _Cost(NamedTuple):
    """What one kind of work costs: its median length, its operations, and for how long the GPU works on it."""

    ns: float
    operations: int
    busy_ns: float


def _alike_work(shorter: _Cost, longer: _Cost) -> bool:
    """Return whether two kinds are about the same work."""
    low_ns, high_ns = sorted((shorter.busy_ns, longer.busy_ns))
    # as long as that is a share of the length that somebody would look for
    matters = high_ns - low_ns >= SHARE * longer.ns
    if matters and high_ns >= max(ALIKE * low_ns, low_ns + ALIKE_NS):
        return False
    same_length = longer.ns < max(ALIKE * shorter.ns, shorter.ns + ALIKE_NS)
    counts = shorter.operations, longer.operations
    return same_length and max(counts) - min(counts) <= (ALIKE - 1) * max(counts)


def _first_of(m: Measured, at: np.ndarray, total: int) -> np.ndarray:
    """Return the positions of the first calls of a kind; none may be one.

    A kind of a single interval is a first call as a whole if it is early, long and mostly idle and
    ran what all others ran.

    at:    the positions of the kind's intervals
    total: the time (ns) of the label
    """
    if len(at) > 1 or len(m.elapsed_ns) < 3:
        return first_calls(m, at, total)
    only = int(at[0])
    early = m.new[only] or only == 0
    excess_ns = m.elapsed_ns[only] - np.median(m.elapsed_ns)
    mostly_idle = m.idle_ns[only] > 0.5 * m.elapsed_ns[only]
    all_others = np.delete(np.arange(len(m.elapsed_ns)), only)
    is_first = early and mostly_idle and excess_ns > SHARE * total
    return at if is_first and _runs_what_they_run(m, only, all_others) else at[:0]


def _late_ones(
    m: Measured, kinds_of_work: Sequence[np.ndarray], slow_starts: Sequence[np.ndarray]
) -> np.ndarray:
    """Return which of the intervals that would be first calls come late: the positions of those behind usual intervals of
    their process, of which there are more than MOST_FIRST_CALLS and more than of these.  They are not late where a row of
    their kind begins with them.

    kinds_of_work: for each kind the positions of its intervals
    slow_starts:   for each kind those that would be first calls

    kinds   A A A A A b A A A A A b      the first b is late: another size in the middle of the work, for which code is compiled
    kinds   A A A A A A B B B B B B      the first B is a first call, as the first A
    """
    kind = np.zeros(len(m.pid), np.int64)
    slow = np.zeros(len(m.pid), bool)
    begins = np.zeros(len(m.pid), bool)  # the earliest of a kind
    for number, (at, starts) in enumerate(zip(kinds_of_work, slow_starts, strict=True)):
        kind[at] = number
        slow[starts] = True
        begins[at[: _earliest(at)]] = True
    late = np.zeros(len(m.pid), bool)
    for pid in np.unique(m.pid):
        of_process = np.flatnonzero(m.pid == pid)
        usual_before = np.cumsum(~slow[of_process])
        slow_before = np.maximum(np.cumsum(slow[of_process]), MOST_FIRST_CALLS)
        goes_on = np.append(np.diff(kind[of_process]) == 0, False) & begins[of_process]
        late[of_process] = (usual_before > slow_before) & ~goes_on
    return np.flatnonzero(slow & late)


def _earliest(at: np.ndarray) -> int:
    """Return how many intervals of a kind are its earliest ones: a tenth, to the nearest (2 of 15 to 24), but one at least."""
    return min(max(1, (len(at) + 5) // 10), MOST_FIRST_CALLS)


def _runs_what_they_run(m: Measured, number: int, remaining: np.ndarray) -> bool:
    """Return whether an interval launched all kernels that the others have in common, at least one.

    Such an interval can be the first call of the others, whatever else it did.  True also if nothing
    is known of its kernels or theirs.  Names share bits, so that it may be true by accident.

    number:    the position of the interval
    remaining: the positions of the others

    others launched {gemm, relu} and {gemm, add}; the interval {compile, gemm}:      True
    """
    bits = m.name_bits[remaining]
    known = bits[bits != 0]
    if not len(known) or not m.name_bits[number]:  # graphs do not tell their kernels
        return True
    common = np.bitwise_and.reduce(known)
    return bool(common and m.name_bits[number] & common == common)


def first_calls(m: Measured, at: np.ndarray, total: int) -> np.ndarray:
    """Return the positions of the first calls of a kind.

    These are the earliest intervals of the kind, up to one that is no first call and runs nothing new, and later ones
    that run a kernel that is new to their process; `_is_first` decides for each.

    at:    the positions of the kind's intervals, rising
    total: the time (ns) of the label
    """
    earliest = _earliest(at)
    first = list[int]()
    for number in at[:earliest].tolist():
        if _is_first(m, at, number, first, total):
            first.append(number)
        elif not m.new[number]:
            break
    later = at[earliest:]
    for number in later[m.new[later]].tolist():
        if _is_first(m, at, number, first, total):
            first.append(number)
    return np.array(first, dtype=np.int64)


def _is_first(m: Measured, at: np.ndarray, number: int, known: list[int], total: int) -> bool:
    """Return whether an interval of a kind is a first call.

    It takes 900 us, of which its own work does not run for 850 us; the others 20 us and 5 us: a first call.

    It is slower than the others by RATIO, or by RATIO_NOTHING_NEW if no kernel is new to its
    process; one of the others may be slower still, if there are enough for paces: of few that is another kind.  Its excess over
    their median is at least SHARE of the label's time without the first calls that are known, which may be most of it,
    and at least half of this excess passes while none of its work runs.  It launched what all others did (`_runs_what_they_run`).

    at:     the positions of the kind's intervals
    number: the position of the interval
    known:  the positions of the first calls that are known already; they are left out
    total:  the time (ns) of the label
    """
    remaining = at[~np.isin(at, [*known, number])]
    if not len(remaining):
        return False
    if len(remaining) == 1 and not m.new[number]:
        return False  # which of the two is the usual one is not known
    times = np.sort(m.elapsed_ns[remaining])
    slowest_ns = times[-2] if len(remaining) >= FEWEST_PACED else times[-1]
    ratio = RATIO if m.new[number] else RATIO_NOTHING_NEW
    excess_ns = m.elapsed_ns[number] - np.median(m.elapsed_ns[remaining])
    idle_excess_ns = m.idle_ns[number] - np.median(m.idle_ns[remaining])
    total_without_known = total - m.elapsed_ns[known].sum()
    return bool(
        m.elapsed_ns[number] > ratio * slowest_ns
        and excess_ns >= SHARE * total_without_known
        and idle_excess_ns >= 0.5 * excess_ns
        and _runs_what_they_run(m, number, remaining)
    )


# --- the tables


def groups_of(split: SplitTrace, ran: Ran, intervals: pd.DataFrame) -> Groups:
    """Return all groups of an analysis, with their tables.

    intervals: `frames.INTERVALS`, a row per window in the order of the windows
    """
    is_run = intervals["kind"] == "run"  # a run is all of a program on a device: nobody measured it
    if is_run.all():  # also where there is no interval
        specs = (frames.GROUPS, frames.LEDGER, frames.ISSUED, frames.GROUP_PARTS)
        return Groups(np.full(len(intervals), -1), *map(frames.empty, specs))
    issues = issues_of(ran, split.alignment)
    work = work_of(split.trace, split.alignment, issues)
    # grids are costly to read: only where they can tell kinds apart, as the same names do not take equally long
    varied = np.flatnonzero(_work_varies(intervals, work.busy_ns))
    grids, blocks = grids_of(split.trace, split.alignment, issues, varied)
    work = work._replace(grids=grids, blocks=blocks)
    of_interval, table = group_table(intervals, work)
    issued = _issued(split, issues, table)
    table = table.assign(
        work=names_of_kinds(table, of_interval, work, issues.names, issued),
        main=main_names(table["typical"].to_numpy(), work, issues.names),
        elsewhere_ns=elsewhere_ns(split, table["typical"].to_numpy()),
    )
    parts = _parts(split.parts, of_interval, len(table))
    named_time = pd.concat(
        [_details(split.details, of_interval), _kernels(split, ran, of_interval)], ignore_index=True
    )
    ledger = _ledger(named_time, parts)
    key = np.where(grids == 0, 0, _same_work(work))
    works = WorkOfIntervals(key, _lasting_ns(split.alignment.windows))
    typical = table["typical"].to_numpy()
    captured = captured_launches(split.trace, split.alignment, issues, typical)
    return Groups(of_interval, table, ledger, issued, parts, (works, captured))


def _lasting_ns(windows: pd.DataFrame) -> np.ndarray:
    """Return `WorkOfIntervals.range_ns`.  windows: `frames.WINDOWS`"""
    opened, closed = windows["open_ns"].to_numpy(), windows["close_ns"].to_numpy()
    waited = (windows["kind"] == "nvtx").to_numpy() & (closed >= windows["end_ns"].to_numpy())
    return np.where(waited, closed - opened, 0)


def without_trace(intervals: pd.DataFrame, parts: pd.DataFrame, details: pd.DataFrame) -> Groups:
    """Return all groups of an analysis that has these tables only, and no trace.

    Intervals with equally many operations then count as the same work, and kernels have no names.

    intervals: `frames.INTERVALS`, numbered from 0 without a gap
    parts:     `frames.PARTS`
    details:   `frames.DETAILS`
    """
    operations = intervals["operations"].to_numpy()
    zero = np.zeros(len(intervals), np.int64)
    no = np.zeros(len(intervals), bool)
    work = Work(
        operations=operations, graphs=zero, size=zero, content=operations, names=zero, name_bits=zero,
        graph=zero, grids=zero, blocks=zero, main=zero - 1,
        busy_ns=intervals["gpu_busy_ns"].to_numpy(), waits=zero, late=no, new=no,
        frees=no, behind=no,
    )  # fmt: skip
    of_interval, table = group_table(intervals, work)
    of_groups = _parts(parts, of_interval, len(table))
    ledger = _ledger(_details(details, of_interval), of_groups)
    return Groups(of_interval, table, ledger, frames.empty(frames.ISSUED), of_groups)


def group_table(intervals: pd.DataFrame, work: Work) -> tuple[np.ndarray, pd.DataFrame]:
    """Return (the group of each interval, -1 for runs; `frames.GROUPS`, a row per group).

    The columns `work`, `main` and `elsewhere_ns` need the trace: they are empty here, and `groups_of` fills them.

    intervals: `frames.INTERVALS`
    work:      what each interval issued
    """
    elapsed_ns = intervals["elapsed_ns"].to_numpy()
    # what ended later says nothing of this time
    idle_ns = elapsed_ns - np.where(work.late, 0, np.minimum(work.busy_ns, elapsed_ns))
    start = intervals["start_ns"].to_numpy()
    pid = intervals["pid"].to_numpy()
    # it issued nothing, and nothing ran in it
    empty = (work.operations == 0) & (intervals["operations"].to_numpy() == 0)
    two_streams = (intervals["start_stream"] != intervals["end_stream"]).to_numpy()
    of_interval = np.full(len(intervals), -1, np.int64)
    rows = list[dict[str, Any]]()
    of_all = Measured.of_work(elapsed_ns, idle_ns, pid, work)
    for label, of_label in _of_labels(intervals).items():
        by_start = of_label[np.argsort(start[of_label], kind="stable")]
        groups_of_label = [
            (part, np.sort(by_start[part.at])) for part in grouped(of_all.take(by_start))
        ]
        # the group that took most time comes first
        groups_of_label.sort(key=lambda pair: -elapsed_ns[pair[1]].sum())
        for part, members in groups_of_label:
            of_interval[members] = len(rows)
            rows.append({
                "group": len(rows), "label": label, "kind": part.kind, "pace": part.pace,
                "role": part.role, "work": "", "pid": part.pid, "count": len(members),
                **_lengths(elapsed_ns, members, part.role), **_usual_work(work, members),
                "late": int(work.late[members].sum()), "empty": int(empty[members].sum()),
                "two_streams": int(two_streams[members].sum()), "elsewhere_ns": 0, "main": "",
                "mains": len(np.unique(work.main[members])),
            })  # fmt: skip
    if not rows:
        return of_interval, frames.empty(frames.GROUPS)
    return of_interval, frames.check(pd.DataFrame(rows), frames.GROUPS)


def _lengths(elapsed_ns: np.ndarray, numbers: np.ndarray, role: str) -> dict[str, int]:
    """Return the columns of a group that say how long its intervals are.

    elapsed_ns: of all intervals
    numbers:    the intervals of the group, rising
    role:       the role of the group; a group of first calls shows its shortest and longest one,
                all others show their 10 % and 90 % quantiles
    """
    times = elapsed_ns[numbers]
    by_length = np.argsort(times, kind="stable")
    typical = int(numbers[by_length[(len(times) - 1) // 2]])  # the lower median
    ends = (0, 1) if role == FIRST else (0.1, 0.9)
    low, high = (int(np.quantile(times, end)) for end in ends)
    return {
        "total_ns": int(times.sum()),
        "typical": typical,
        "typical_ns": int(elapsed_ns[typical]),
        "low_ns": low,
        "high_ns": high,
    }


def _usual_work(work: Work, numbers: np.ndarray) -> dict[str, int]:
    """Return the columns of a group that say what its intervals (`numbers`) issue: medians.

    Of operations it is the lower median, which is that of one of them, with the 10 % and 90 % quantiles.
    """
    columns = {"graphs": work.graphs, "bytes": work.size, "waits": work.waits}
    medians = {name: int(np.median(column[numbers])) for name, column in columns.items()}
    operations = np.sort(work.operations[numbers])
    last = len(operations) - 1
    return medians | {
        "operations": int(operations[last // 2]),
        "fewest_operations": int(operations[last // 10]),
        "most_operations": int(operations[last - last // 10]),
    }


def _work_varies(intervals: pd.DataFrame, busy_ns: np.ndarray) -> np.ndarray:
    """Return, per interval, whether the work that its label issues takes long in one interval and
    short in another, as it does if its sizes differ.  False for runs.

    busy_ns: per interval, how long the work ran that it issued
    """
    measured = (intervals["kind"] != "run").to_numpy()
    label, _ = pd.factorize(intervals["label"])
    by_label = pd.Series(busy_ns).groupby(label)
    low = by_label.quantile(0.1).to_numpy()[label]
    high = by_label.quantile(0.9).to_numpy()[label]
    return measured & (high - low > _VARIED * high)


def _of_labels(intervals: pd.DataFrame) -> dict[str, np.ndarray]:
    """Return label -> the positions of its intervals, without runs."""
    measured = np.flatnonzero((intervals["kind"] != "run").to_numpy())
    code, labels = pd.factorize(intervals["label"].iloc[measured])
    return {str(labels[number]): rows for number, rows in group(code, measured).items()}


def _parts(parts: pd.DataFrame, of_interval: np.ndarray, count: int) -> pd.DataFrame:
    """Return `frames.GROUP_PARTS`: a row per group and cause that occurs in it, with the parts of all its
    intervals added up.

    parts:       `frames.PARTS`, a row per interval and cause
    of_interval: per interval, its group, -1 for none
    count:       how many groups there are
    """
    group_of_row = of_interval[parts["interval"].to_numpy()]
    rows = np.flatnonzero(group_of_row >= 0)
    cause_of_row = parts["cause"].astype("category").cat
    causes = cause_of_row.categories
    # sums in one array per column: the groups one after the other, each with a place per cause
    place = group_of_row[rows] * len(causes) + cause_of_row.codes.to_numpy()[rows]
    sums = {}
    for column in ("ns", "lower_ns", "upper_ns"):
        sums[column] = np.zeros(count * len(causes), np.int64)
        np.add.at(sums[column], place, parts[column].to_numpy()[rows])
    occurs = np.flatnonzero(sums["upper_ns"])
    number, cause = np.divmod(occurs, max(len(causes), 1))
    table = {"group": number, "cause": causes.to_numpy(dtype=object)[cause]}
    table |= {column: total[occurs] for column, total in sums.items()}
    return frames.check(pd.DataFrame(table), frames.GROUP_PARTS)


def _details(details: pd.DataFrame, of_interval: np.ndarray) -> pd.DataFrame:
    """Return the details of all intervals of a group added up: columns `_KEY`, ns and bytes.

    details:     `frames.DETAILS`
    of_interval: the group of each interval, -1 for none
    """
    details = details.assign(group=of_interval[details["interval"].to_numpy()])
    texts = ["cause", "detail", "operation", "direction", "memory"]
    by_name = details[details["group"] >= 0].groupby(["group", *texts, "stream"], observed=True)
    sums = by_name[["ns", "bytes"]].sum().reset_index().astype(dict.fromkeys(texts, object))
    # a detail is a reason (`why`) or the name of something (`what`); "copy" is listed as a reason,
    # but names something
    is_reason = sums["detail"].isin(DETAILS) & (sums["detail"] != "copy")
    sums["why"] = sums["detail"].where(is_reason, "")
    sums["what"] = sums["detail"].where(~is_reason, sums["operation"])
    sums.loc[sums["cause"] == "memcpy", "what"] = "copy"
    return sums[[*_KEY, "ns", "bytes"]]


def _ledger(with_names: pd.DataFrame, parts: pd.DataFrame) -> pd.DataFrame:
    """Return `frames.LEDGER`: for each group its time by cause and name, and for each cause the rest of its time, without
    a name.  The lines of a group add up to its parts; an AssertionError says that more has a name than was measured.

    with_names: the time that has a name: columns `_KEY`, ns and bytes
    parts:      `frames.GROUP_PARTS`
    """
    explained = with_names.groupby(["group", "cause"])["ns"].sum()
    measured = parts.set_index(["group", "cause"])["ns"]
    unnamed = measured.sub(explained, fill_value=0).astype(np.int64)
    if (unnamed < 0).any():
        first = unnamed[unnamed < 0].head(1).to_dict()
        raise AssertionError(f"more is named than was measured: {first}")
    without_names = unnamed[unnamed > 0].reset_index()
    without_names = without_names.assign(
        what="", why="", direction="", memory="", stream=-1, bytes=0
    )
    lines = pd.concat([with_names, without_names], ignore_index=True)
    lines = lines.groupby(_KEY, as_index=False).sum()
    lines = lines[lines["ns"] > 0]
    lines = lines.sort_values(["group", "ns"], ascending=[True, False], kind="stable")
    return frames.check(lines.reset_index(drop=True), frames.LEDGER)


def _kernels(split: SplitTrace, ran: Ran, of_interval: np.ndarray) -> pd.DataFrame:
    """Return how long kernels ran, a row per group and kernel name: columns `_KEY`, ns and bytes.

    A kernel counts where it ran on the stream of an interval's end, or while a host timer waited
    for it; kernels that overlap on a stream count once.

    of_interval: per interval, its group, -1 for none
    """
    is_kernel = split.trace.operations["kind"].to_numpy() == KIND["kernel"]
    name_count = max(len(ran.names), 1)
    pairs, sums = list[np.ndarray](), list[np.ndarray]()
    for window, operation, ns in _executed_in(split, of_interval):
        kernels = np.flatnonzero(is_kernel[operation])
        # a group and a name as one number
        pair = of_interval[window[kernels]] * name_count + ran.name[operation[kernels]]
        row, distinct_pairs = pd.factorize(pair)
        ns_of_pair = np.zeros(len(distinct_pairs), np.int64)
        np.add.at(ns_of_pair, row, ns[kernels])
        pairs.append(distinct_pairs)
        sums.append(ns_of_pair)
    number, name = np.divmod(np.concatenate(pairs), name_count)
    table = pd.DataFrame(
        {
            "group": number,
            "cause": "kernel",
            "what": ran.names["kernel"].to_numpy()[name],
            "ns": np.concatenate(sums),
        }
    )
    by_name = table.groupby(["group", "cause", "what"], as_index=False).sum()
    return by_name.assign(why="", direction="", memory="", stream=-1, bytes=0)


def _executed_in(split: SplitTrace, of_interval: np.ndarray) -> Iterator[Executed]:
    """Yield, in batches, for how long operations executed in windows that belong to a group.

    Where operations of a stream overlap, they are one block, and the operation that names it has all of its time.  Last
    come the operations that host timers waited for.

    of_interval: the group of each interval, -1 for none

    window   [         )
    lane   AAAA   BBBBBBBB       (window, A, 2) and (window, B, 3)
    """
    windows, streams = split.alignment.windows, split.explainer.streams
    lane = windows["end_lane"].to_numpy()
    start = windows["start_ns"].to_numpy()
    end = windows["end_ns"].to_numpy()
    is_host = (windows["kind"] == "host").to_numpy()
    on_stream = np.flatnonzero((of_interval >= 0) & ~is_host & (end > start))
    for number, on_lane in group(lane[on_stream], on_stream).items():
        blocks = streams.blocks(number)
        first = np.searchsorted(blocks.end, start[on_lane], side="right")
        stop = np.searchsorted(blocks.start, end[on_lane])
        count = np.maximum(stop - first, 0)
        for rows in batches(count, _AT_ONCE):
            # a row for each window and each block that touches it
            owner, block = ragged(first[rows], count[rows])
            window = on_lane[rows[owner]]
            begin = np.maximum(blocks.start[block], start[window])
            over = np.minimum(blocks.end[block], end[window])
            yield Executed(window, blocks.ref[block], over - begin)
    yield split.waited_for


def _issued(split: SplitTrace, issues: Issues, groups: pd.DataFrame) -> pd.DataFrame:
    """Return `frames.ISSUED`: what the typical interval of each group issued: a row per name, the most frequent
    first.

    groups: `frames.GROUPS`
    """
    typical = groups["typical"].to_numpy()
    batches = list(issued_in(split.alignment, issues, typical))
    if not batches:
        return frames.empty(frames.ISSUED)
    row_of_operation = split.trace.operations["row"].to_numpy()
    is_kernel = issues.kinds[issues.name] == KIND["kernel"]  # per issue
    rows = [row_of_operation[issues.first[issue[is_kernel[issue]]]] for _, issue in batches]
    tables = []
    for (window, issue), blocks in zip(batches, blocks_of(split.trace, rows), strict=True):
        blocks_of_issues = np.zeros(len(issue), np.int64)
        blocks_of_issues[is_kernel[issue]] = blocks
        tables.append(_by_name(issues, window, issue, blocks_of_issues))
    table = pd.concat(tables, ignore_index=True)
    name = table["name"].to_numpy()
    group_of_window = pd.Series(groups["group"].to_numpy(), index=typical)
    table = table.assign(
        group=group_of_window[table["window"]].to_numpy(),
        kind=np.array(OPERATION_KINDS, dtype=object)[issues.kinds[name]],
        name=np.array(issues.names, dtype=object)[name],
        blocks=np.where(table["blocks"] > 0, table["blocks"], -1),
    )
    table = table.sort_values(["group", "count"], ascending=[True, False], kind="stable")
    return frames.check(table.reset_index(drop=True), frames.ISSUED)


def _by_name(
    issues: Issues, window: np.ndarray, issue: np.ndarray, blocks: np.ndarray
) -> pd.DataFrame:
    """Return what windows issued by name: a row per window and name, with how many there are (`count`), their bytes,
    the blocks of kernels' grids (0: not known), and how long they ran (`ns`).

    window, issue: pairs of a window and an issue in it
    blocks: per pair, the blocks of the issue's grid, 0 if it is no kernel or its grid is not known
    """
    columns = {
        "window": window,
        "name": issues.name[issue],
        "bytes": issues.size[issue],
        "blocks": blocks,
    }
    columns["ns"] = issues.busy_ns[issue].astype(np.int64)
    by_name = pd.DataFrame(columns).groupby(["window", "name"], sort=False)
    count = by_name.size().rename("count")
    return by_name[["bytes", "blocks", "ns"]].sum().join(count).reset_index()
