"""One label and its groups: what all timings of one piece of code consist of.

    label    train.py:21-24                600 timings, 1.65 s
    group      595 x 1.46 ms               0.87 s     its ledger: kernel gemm 0.41 s, CPU 0.30 s, ...
    group        5 x  150 ms    slow       0.78 s                 CPU garbage collection 0.77 s, ...

A group holds intervals that did the same kind of work at the same pace.  Its ledger adds up, to the
nanosecond, to what its intervals measured together, and the groups of a label to what the label
measured.  These records are read off the tables `groups`, `ledger`, `issued`, `group_parts`, `labels` and
`intervals.group`, so that a stored analysis has the same ones as a fresh one.  All times are int64
nanoseconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from nsysalign import frames

if TYPE_CHECKING:
    import pandas as pd

#: Count times typical may miss a total by this share of it.
_EVEN = 0.25
#: Intervals do about as many operations if their numbers differ by at most this ratio.
ALIKE = 1.1
#: Roles of a group: first calls, and the slower side of one pace.
FIRST, SLOW = "first", "slow"
#: Kinds of work that differ in whether they give memory of the GPU back to the driver are called so.
FREES, KEEPS = MEMORY = "frees memory", "keeps memory"
#: Calls that give memory of the GPU back to the driver, and that take it; those of a stream's order ask a pool.
GIVES_BACK = re.compile(r"cu(da)?(Free|MemFree|MemRelease)(?!\w*(Async|Host))")
TAKES = re.compile(r"cu(da)?(Malloc|MemAlloc|MemCreate)(?!\w*(Async|Host))")


@dataclass(frozen=True)
class Entry:
    """A line of a group's ledger: the time of one cause that goes by one name, over all intervals of
    the group.

    what: the best name that the recording has for it: kernel, call, innermost range, operation that
    was waited for, 'copy'; '' where it has none.  why: how it came about, where the cause does not say
    it: dependency, contention, full-queue, staging, ..., else ''.  stream: the stream that was waited
    for, -1 for none.
    direction, memory: of copies, else ''.  size: bytes that the copies moved, else 0.
    """

    cause: str
    what: str
    ns: int
    why: str = ""
    stream: int = -1
    direction: str = ""
    memory: str = ""
    size: int = 0


@dataclass(frozen=True)
class Issued:
    """What one interval of a group issued of one kind and name, the group's typical interval.

    kind: kernel, graph, memcpy or memset.  name: of the kernel; direction and memory of copies.
    count: how many.  size: bytes of copies and memsets, all together.
    blocks: blocks of their grids, all together; -1: the trace does not say.
    ns: how long they ran, added up, whenever that was: no part of what is the same work.
    """

    kind: str
    name: str
    count: int
    size: int = 0
    blocks: int = -1
    ns: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Work:
    """The kind of work of a group: what its typical interval issued between its two records, by its
    thread or for its stream; never what happened to run meanwhile.

    name: in what it differs from the label's other kinds ("64 blocks", "two_ops"), '' where the
    label has one kind.  operations: how many were issued, of a graph launch one.  graphs: graph
    launches.  size: bytes of all copies.  waits: synchronisations between its first and its last
    operation.  fewest_operations, most_operations: from how many operations to how many the group's intervals issue (10 % and
    90 % quantiles).  main: which of them ran longest.  mains: how many different ones ran longest in the group's
    intervals.
    """

    name: str
    issued: tuple[Issued, ...]
    operations: int
    graphs: int
    size: int
    waits: int
    fewest_operations: int
    most_operations: int
    main: str
    mains: int

    @property
    def varies(self) -> bool:
        """Whether its intervals issue so differently many operations that no one count is theirs."""
        return self.most_operations > ALIKE * self.fewest_operations

    def of_kind(self, kind: str) -> tuple[Issued, ...]:
        """What was issued of a kind of operation, the most frequent first."""
        return tuple(one for one in self.issued if one.kind == kind)


@dataclass(frozen=True, eq=False)
class Group:
    """Intervals of one label with one kind of work and one pace.

    number: the key of the tables.  kind: which of the label's kinds of work; pace: which pace of that
    kind, 0 for the fastest and for first calls.  role: FIRST, SLOW (a slower pace that is rare) or
    ''.  pid: the process where the ranks of a label are kinds of their own, else -1.
    intervals: numbers of its intervals, rising: int64 (count).
    typical: the interval with the lower-median elapsed time; typical_ns: that time.
    low_ns, high_ns: 10 % and 90 % quantiles of the elapsed times; of first calls least and most.
    entries: the ledger, the largest first; adds up to total_ns.
    bounds_ns: per cause the least and most over the error bars of the windows' places.
    late: intervals of which over half of the issued work ended after the second reading.
    empty: intervals in which nothing was issued and nothing ran.
    two_streams: intervals that begin on one stream and end on another.
    elsewhere_ns: of the typical interval, how long other streams ran kernels that it launched itself and
    that its end waits for, while its own stream ran nothing.
    """

    number: int
    label: str
    work: Work
    kind: int
    pace: int
    role: str
    pid: int
    intervals: np.ndarray
    count: int
    total_ns: int
    typical: int
    typical_ns: int
    low_ns: int
    high_ns: int
    entries: tuple[Entry, ...]
    bounds_ns: Mapping[str, tuple[int, int]]
    late: int
    empty: int
    two_streams: int
    elsewhere_ns: int

    @property
    def elsewhere(self) -> float:
        """`elsewhere_ns` as a share (0 to 1) of the typical interval."""
        return self.elsewhere_ns / max(self.typical_ns, 1)

    @cached_property
    def causes(self) -> Mapping[str, int]:
        """Nanoseconds per cause, the largest first; adds up to total_ns."""
        sums: dict[str, int] = {}
        for entry in self.entries:
            sums[entry.cause] = sums.get(entry.cause, 0) + entry.ns
        return dict(sorted(sums.items(), key=lambda item: -item[1]))

    @property
    def even(self) -> bool:
        """Whether "595 x 1.46 ms" says how much it is in all.  If not, its intervals are of all
        lengths: say its total and from what to what they reach."""
        return is_even(self.count, self.typical_ns, self.total_ns)

    def ns(self, *causes: str) -> int:
        """Nanoseconds of these causes together, over all its intervals."""
        return sum(self.causes.get(cause, 0) for cause in causes)

    def share(self, *causes: str) -> float:
        """Which part of its time these causes take together, 0 to 1."""
        return self.ns(*causes) / max(self.total_ns, 1)

    def of_cause(self, cause: str) -> tuple[Entry, ...]:
        """The entries of a cause, the largest first."""
        return tuple(entry for entry in self.entries if entry.cause == cause)


@dataclass(frozen=True, eq=False)
class Label:
    """What one piece of code measured, all of it.

    kind: event, host or nvtx.  total_ns: sum over its intervals, which is no stretch of time where
    they overlap; span_ns: how long at least one of them lasted.  groups: by their total, the
    largest first; there is at least one.  inside: the label of a range around each of its
    intervals with the same operations, '' for none: the two are one row.
    """

    name: str
    kind: str
    site: str
    library: bool
    count: int
    total_ns: int
    span_ns: int
    overlapping: bool
    inside: str
    groups: tuple[Group, ...]

    @property
    def first(self) -> tuple[Group, ...]:
        """Its groups of first calls."""
        return tuple(group for group in self.groups if group.role == FIRST)

    @property
    def steady(self) -> tuple[Group, ...]:
        """All others; of a label that consists of first calls, these."""
        return tuple(group for group in self.groups if group.role != FIRST) or self.groups

    @property
    def cold(self) -> tuple[Group, ...]:
        """Its groups of first calls, where it has others as well; else none."""
        return self.first if any(group.role != FIRST for group in self.groups) else ()

    @property
    def kinds(self) -> tuple[tuple[Group, ...], ...]:
        """The steady groups by kind of work, of each all paces, the kind with most time first."""
        kinds: dict[tuple[int, int], list[Group]] = {}
        for group in self.steady:
            kinds.setdefault((group.pid, group.kind), []).append(group)
        return tuple(map(tuple, kinds.values()))

    @property
    def steady_ns(self) -> int:
        """What shares are of: the time of all but first calls."""
        return sum(group.total_ns for group in self.steady)

    @property
    def usual(self) -> Group:
        """The group with most intervals, first calls apart."""
        return max(self.steady, key=lambda group: group.count)


def pace_words(roles: Sequence[str]) -> list[str]:
    """Return a word for each pace of a kind of work; '' where there is one.

    roles: the role of each pace, the fastest first: a rare slower one (SLOW) is "slow"
    """
    slow = list(roles).count(SLOW)
    usual = len(roles) - slow
    words = {1: [""], 2: ["faster", "slower"], 3: ["fastest", "medium", "slowest"]}.get(usual)
    of_usual = iter(words or [f"speed {number} of {usual}" for number in range(1, usual + 1)])
    of_slow = iter(["slow"] if slow == 1 else [f"slow {number}" for number in range(1, slow + 1)])
    return [next(of_slow if role == SLOW else of_usual) for role in roles]


def is_even(count: int, typical_ns: float, total_ns: float) -> bool:
    """Whether count times typical is about the total."""
    return abs(count * typical_ns - total_ns) <= _EVEN * total_ns


def labels_of(analysis: Any) -> tuple[Label, ...]:
    """Return the labels of an analysis or of its evidence, in the order of its table `labels`.

    One pass over each table; of a million intervals only their numbers are kept, as arrays.
    """
    intervals = members(analysis.intervals)
    ledger, issued = _rows(analysis.ledger), _rows(analysis.issued)
    parts = _rows(analysis.group_parts)
    groups: dict[str, list[Group]] = {}
    for row in frames.rows_of(analysis.groups):
        group = _group(
            row,
            intervals[row.group],
            ledger.get(row.group, []),
            issued.get(row.group, []),
            parts.get(row.group, []),
        )
        groups.setdefault(group.label, []).append(group)
    return tuple(
        Label(
            name=row.label,
            kind=row.kind,
            site=row.site,
            library=bool(row.library),
            count=row.count,
            total_ns=row.total_ns,
            span_ns=row.span_ns,
            overlapping=bool(row.overlapping),
            inside=row.inside,
            groups=tuple(groups[row.label]),
        )
        for row in frames.rows_of(analysis.labels)
    )


def _group(
    row: Any, intervals: np.ndarray, ledger: list[Any], issued: list[Any], parts: list[Any]
) -> Group:
    """Return one group.

    row: of `frames.GROUPS`
    intervals: the numbers of its intervals
    ledger, issued, parts: its rows of `frames.LEDGER`, `frames.ISSUED` and `frames.GROUP_PARTS`
    """
    work = Work(
        name=row.work,
        issued=tuple(Issued(i.kind, i.name, i.count, i.bytes, i.blocks, i.ns) for i in issued),
        operations=row.operations,
        graphs=row.graphs,
        size=row.bytes,
        waits=row.waits,
        fewest_operations=row.fewest_operations,
        most_operations=row.most_operations,
        main=row.main,
        mains=row.mains,
    )
    entries = tuple(
        Entry(e.cause, e.what, e.ns, e.why, e.stream, e.direction, e.memory, e.bytes)
        for e in ledger
    )
    return Group(
        number=row.group,
        label=row.label,
        work=work,
        kind=row.kind,
        pace=row.pace,
        role=row.role,
        pid=row.pid,
        intervals=intervals,
        count=row.count,
        total_ns=row.total_ns,
        typical=row.typical,
        typical_ns=row.typical_ns,
        low_ns=row.low_ns,
        high_ns=row.high_ns,
        entries=entries,
        bounds_ns={part.cause: (part.lower_ns, part.upper_ns) for part in parts},
        late=row.late,
        empty=row.empty,
        two_streams=row.two_streams,
        elsewhere_ns=row.elsewhere_ns,
    )


def members(intervals: pd.DataFrame) -> Mapping[int, np.ndarray]:
    """Return group -> the numbers of its intervals, rising."""
    group = intervals["group"].to_numpy()
    interval = intervals["interval"].to_numpy()
    by_group = np.argsort(group, kind="stable")
    cuts = np.flatnonzero(np.diff(group[by_group])) + 1
    out = {}
    for rows in np.split(by_group, cuts):
        if len(rows):
            out[int(group[rows[0]])] = np.sort(interval[rows]).astype(np.int64)
    return out


def _rows(table: pd.DataFrame) -> dict[int, list[Any]]:
    """The rows of a table of groups, by group."""
    out: dict[int, list[Any]] = {}
    for row in frames.rows_of(table):
        out.setdefault(row.group, []).append(row)
    return out
