"""An Analysis as arrays, so that rules can query all intervals at once; everything is derived from
the analysis alone.

Positions are rows of `analysis.intervals` (0..n-1); `interval` numbers of the other tables are
mapped to them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from nsysalign.diagnose import thresholds
from nsysalign.diagnose.finding import About, Speaker
from nsysalign.model import (
    CAUSES,
    OPERATION_KINDS,
    OTHERS_RAN,
    OTHERS_WORKED,
    Analysis,
    SegmentArrays,
)
from nsysalign.parts import parts_matrix
from nsysalign.tiles import one_of

_FEW = 200
_OPERATIONS_AT_ONCE = 50_000
_CODE = {name: code for code, name in enumerate(CAUSES)}


@dataclass(frozen=True, kw_only=True)
class Case(About):
    """A label that has a property (`positions`: all its intervals that have it), and the interval
    that shows it."""

    # position of the interval whose numbers are quoted: the label's row in every table, if it has
    # it
    row: int
    name: str
    count: int  # intervals of the label

    @property
    def quoted(self) -> int:
        return self.row

    @property
    def frequency(self) -> str | None:
        """ "4 of 10 intervals", None when all have it."""
        return (
            None if len(self.positions) == self.count else f"{len(self.positions)} of {self.count}"
        )


class Facts:
    """Views of an Analysis; built lazily, all vectorised."""

    def __init__(
        self,
        analysis: Analysis,
        segments_of: Callable[[np.ndarray], SegmentArrays] | None = None,
    ) -> None:
        """`analysis` with its runs: they are kept apart, positions are those of the measured
        intervals."""
        self.whole = analysis
        self.analysis = analysis = replace(analysis, intervals=analysis.measured)
        self._segments_of = segments_of  # if analysis.segments does not hold them all
        self._remembered: dict[str, Any] = {}
        v = analysis.intervals
        self.count = len(v)
        self.elapsed, self.start, self.end = (
            v[c].to_numpy() for c in ("elapsed_ns", "start_ns", "end_ns")
        )
        self.pid, self.device = v["pid"].to_numpy(), v["device"].to_numpy()
        self.error = v["error_ns"].to_numpy()
        self.kind = v["kind"].to_numpy(dtype=object)
        self.is_event = self.kind == "event"
        self.is_host = self.kind == "host"
        self.on_stream = ~self.is_host
        self.operations = v["operations"].to_numpy()
        self.kernel_only = v["kernel_only_ns"].to_numpy()
        self.kernel_upper = v["kernel_only_upper_ns"].to_numpy()
        self.kernel_outside = v["kernel_outside_ns"].to_numpy()
        self._number = v["interval"].to_numpy()
        self._dense = bool(np.array_equal(self._number, np.arange(self.count)))
        labels = analysis.labels
        self.labels = labels["label"].to_numpy(dtype=object)
        code = pd.Index(self.labels).get_indexer(pd.Index(v["label"].to_numpy(dtype=object)))
        self.label = np.where(
            code < 0, len(self.labels), code
        )  # an interval without a label row has none
        self.label_count = np.bincount(self.label, minlength=len(self.labels) + 1)[
            : len(self.labels)
        ]
        self.row = self.position(labels["row_interval"].to_numpy())
        self.median = labels["median_ns"].to_numpy()
        self.sites = labels["site"].to_numpy(dtype=object)
        self.names = v["name"].to_numpy(dtype=object)

    def position(self, interval: np.ndarray) -> np.ndarray:
        """Interval numbers to positions, -1 for unknown."""
        if self._dense:
            return np.where((interval >= 0) & (interval < self.count), interval, -1)
        return pd.Index(self._number).get_indexer(pd.Index(interval))

    def most_common_work(self, label: str) -> np.ndarray:
        """Positions of the intervals that did a label's most common work, empty if it did only one
        kind of work."""
        return self._most_common.get(label, np.empty(0, np.int64))

    @cached_property
    def _most_common(self) -> dict[str, np.ndarray]:
        kinds = self.analysis.variants.sort_values("count", ascending=False, kind="stable")
        first = kinds.drop_duplicates("label")
        return {
            str(label): self.position(np.array(numbers, dtype=np.int64))
            for label, numbers in zip(first["label"], first["intervals"], strict=True)
        }

    def kinds_of_work(self, label: str) -> list[tuple[str, int]]:
        """(name, number of intervals) per kind of work of a label that did several kinds, else
        []."""
        kinds = self.analysis.variants
        mine = kinds[kinds["label"] == label]
        return list(zip(mine["variant"].tolist(), mine["count"].tolist(), strict=True))

    def remember(self, key: str, build: Callable[[Facts], Any]) -> Any:
        """Caches a value that several rules need: computed once per analysis."""
        if key not in self._remembered:
            self._remembered[key] = build(self)
        return self._remembered[key]

    @cached_property
    def _parts(self) -> np.ndarray:
        return parts_matrix(self.analysis)

    def part(self, *causes: str) -> np.ndarray:
        """Nanoseconds of the causes, per interval."""
        return self._parts[:, [_CODE[c] for c in causes]].sum(axis=1)

    def share(self, ns: np.ndarray) -> np.ndarray:
        """Share of the measured time, per interval."""
        return ns / np.maximum(self.elapsed, 1)

    @cached_property
    def work(self) -> np.ndarray:
        return self.part(*OPERATION_KINDS)

    @cached_property
    def staging(self) -> np.ndarray:
        """Of `memcpy`: time in which the host staged pageable memory, and the device ran
        nothing."""
        return self.detail_ns(self.detail_rows("memcpy", names=("staging",)))

    @cached_property
    def details(self) -> pd.DataFrame:
        """analysis.details sorted by a new column `at`, the interval's position."""
        d = self.analysis.details
        at = self.position(d["interval"].to_numpy())
        out = d.assign(at=at)
        if len(at) and (at.min() < 0 or (np.diff(at) < 0).any()):
            out = out[at >= 0].sort_values("at", kind="stable")
        return out

    def detail_rows(
        self, cause: str, pattern: str = "", names: tuple[str, ...] = ()
    ) -> pd.DataFrame:
        """Detail rows of one cause whose `detail` matches: a regular expression, or one of the
        names."""
        rows = self._by_cause.get(cause)
        if rows is None:
            return self.details.iloc[:0]
        if not pattern and not names:
            return rows
        code, unique = pd.factorize(rows["detail"].to_numpy(dtype=object))
        found = re.compile(pattern).search if pattern else names.__contains__
        hit = np.fromiter((bool(found(str(text))) for text in unique), bool, len(unique))
        return rows[hit[code]]

    @cached_property
    def _by_cause(self) -> dict[str, pd.DataFrame]:
        return {str(cause): rows for cause, rows in self.details.groupby("cause", sort=False)}

    def detail_ns(self, rows: pd.DataFrame, column: str = "ns") -> np.ndarray:
        """Sum of a column of detail rows, per interval."""
        out = np.zeros(self.count, dtype=np.int64)
        np.add.at(out, rows["at"].to_numpy(), rows[column].to_numpy())
        return out

    @cached_property
    def loading(self) -> np.ndarray:
        """Time inside calls that load code, while the stream was idle (they have a rule of their
        own)."""
        return self.detail_ns(self.detail_rows("api", LOADING_CALLS))

    @cached_property
    def allocating(self) -> np.ndarray:
        """Time inside calls that allocate or free memory, while the stream was idle."""
        return self.detail_ns(self.detail_rows("api", ALLOCATION_CALLS))

    def flagged(self, flag: str) -> np.ndarray:
        """Mask of the intervals that carry a flag."""
        flags = self.analysis.intervals["flags"].tolist()
        return np.fromiter((flag in f for f in flags), bool, self.count)

    @cached_property
    def others_worked(self) -> np.ndarray:
        """Intervals during whose idle time other streams kept the device busy."""
        return self.flagged(OTHERS_WORKED)

    @cached_property
    def program_is_torch(self) -> bool:
        return Speaker(self.analysis).torch

    @cached_property
    def other_ns(self) -> np.ndarray:
        """Work on other streams, launched inside the interval."""
        o = self.analysis.other_streams
        out = np.zeros(self.count, dtype=np.int64)
        at = self.position(o["interval"].to_numpy())
        np.add.at(out, at[at >= 0], o["ns"].to_numpy()[at >= 0])
        return out

    def shows(self, quoted: int, positions: np.ndarray) -> int:
        """The number of the interval that shows a finding: the quoted one, else the label's row if
        it is among the finding's intervals, else the slowest of them; -1 for none."""
        if quoted < 0 and len(positions):
            row = (
                int(self.row[self.label[positions[0]]])
                if self.label[positions[0]] < len(self.row)
                else -1
            )
            slowest = int(positions[self.elapsed[positions].argmax()])
            quoted = row if (positions == row).any() else slowest
        return int(self._number[quoted]) if quoted >= 0 else -1

    def once(self, positions: np.ndarray, ns: np.ndarray) -> int:
        """The sum over intervals in which no time counts twice: of intervals of one process and
        device that overlap (nested ranges, several streams), only the one with most is added."""
        if len(positions) < 2:
            return int(ns.sum())
        keys = (self.pid[positions], self.device[positions])
        order = np.lexsort((self.start[positions], *keys))
        start, end = self.start[positions][order], self.end[positions][order]
        fresh = np.ones(len(order), dtype=bool)
        fresh[1:] = np.any([key[order][1:] != key[order][:-1] for key in keys], axis=0)
        reach = pd.Series(end).groupby(np.cumsum(fresh)).cummax().to_numpy()
        slack = 2 * self.error[positions][order] + 1_000  # neighbours that share a record touch
        fresh[1:] |= start[1:] + np.minimum(slack, end - start)[1:] >= reach[:-1]
        return int(np.maximum.reduceat(ns[order], np.flatnonzero(fresh)).sum())

    @cached_property
    def _others_ran(self) -> np.ndarray:
        return self.flagged(OTHERS_RAN)

    def idled(self, at: int, what: str = "waited") -> str:
        """Who idled in interval `at`: "the GPU waited, idle,", or only its stream."""
        if self.others_worked[at]:
            return f"its stream {what} (other streams kept the GPU busy)"
        if self._others_ran[at]:
            return f"its stream {what}, idle,"
        return f"the GPU {what}, idle,"

    def cases(
        self, mask: np.ndarray, *, at_least: float = thresholds.TYPICAL_SHARE
    ) -> Iterator[Case]:
        """Labels in which at least this share of the intervals, and at least one, has the property;
        in label order."""
        mask = mask & (self.label < len(self.labels))
        hits = np.flatnonzero(mask)
        have = np.bincount(self.label[hits], minlength=len(self.labels))[: len(self.labels)]
        fires = np.flatnonzero((have > 0) & (have >= at_least * self.label_count))
        if not len(fires):
            return
        order = hits[np.lexsort((self.elapsed[hits], self.label[hits]))]
        edge = np.searchsorted(self.label[order], np.arange(len(self.labels) + 1))
        for code in fires.tolist():
            positions = order[edge[code] : edge[code + 1]]
            row = int(self.row[code])
            if row < 0 or not mask[row]:
                row = int(positions[(len(positions) - 1) // 2])
            yield Case(
                *self.about(code),
                np.sort(positions),
                row=row,
                name=str(self.names[row]),
                count=int(self.label_count[code]),
            )

    def about(self, code: int) -> tuple[str, str]:
        """(label, its call site)."""
        return str(self.labels[code]), str(self.sites[code])

    @cached_property
    def by_time(self) -> tuple[np.ndarray, np.ndarray]:
        """(positions sorted by label, process and start; edges of the labels in them)."""
        order = np.lexsort((self.start, self.pid, self.label))
        return order, np.searchsorted(self.label[order], np.arange(len(self.labels) + 1))

    def repetitions(self, code: int) -> np.ndarray:
        """Positions of a label's intervals, in time."""
        order, edge = self.by_time
        return order[edge[code] : edge[code + 1]]

    @cached_property
    def _segment_columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(order by interval, interval numbers in that order, cause codes in the table's order)."""
        table = self.analysis.segments
        number = table["interval"].to_numpy()
        order = (
            np.arange(len(number))
            if (np.diff(number) >= 0).all()
            else np.argsort(number, kind="stable")
        )
        code, unique = pd.factorize(table["cause"])
        known = np.array(
            [_CODE.get(str(cause), _CODE["unknown"]) for cause in unique], dtype=np.int8
        )
        return order, number[order], known[code] if len(code) else np.empty(0, np.int8)

    def segments(self, positions: np.ndarray) -> Segments:
        """Segments of some intervals, in time."""
        if self._segments_of is not None:
            s = self._segments_of(np.sort(self._number[positions]))
            return Segments(
                self.position(s.interval), s.ns, s.cause, s.ref_id, np.arange(len(s.ns)), s.words
            )
        order, number, cause = self._segment_columns
        first = np.searchsorted(number, self._number[positions])
        length = np.searchsorted(number, self._number[positions], side="right") - first
        skipped = np.cumsum(length) - length
        row = order[np.repeat(first - skipped, length) + np.arange(int(length.sum()))]
        table = self.analysis.segments
        ns = table["end_ns"].to_numpy()[row] - table["start_ns"].to_numpy()[row]
        return Segments(
            np.repeat(positions, length),
            ns,
            cause[row],
            table["ref_id"].to_numpy()[row],
            row,
            partial(_taken, table["detail"]),
        )

    def lots(self, positions: np.ndarray) -> Iterator[Segments]:
        """Segments of many intervals (rising positions), a bounded number at a time."""
        length = np.cumsum(self.operations[positions] + 1)
        cuts = np.flatnonzero(np.diff(length // _OPERATIONS_AT_ONCE)) + 1
        yield from (self.segments(lot) for lot in np.split(positions, cuts) if len(lot))

    def each(self, positions: np.ndarray) -> Iterator[tuple[int, Segments]]:
        """(position, segments) of every such interval that has segments."""
        for lot in self.lots(positions):
            edges = [*np.flatnonzero(np.diff(lot.at, prepend=-1)).tolist(), len(lot)]
            for begin, end in pairwise(edges):
                yield int(lot.at[begin]), lot.part(slice(begin, end))


@dataclass(frozen=True)
class Segments:
    """Arrays of equal length: position of the interval, length, cause code, nsys's rowid, row in
    analysis.segments.

    `run` numbers the idle stretches, -1 for work:

        kernel | host launch latency | kernel | sync host launch latency | kernel
          -1   |  0    0      0      |   -1   |  1    1     1      1     |   -1
    """

    at: np.ndarray
    ns: np.ndarray
    cause: np.ndarray
    ref_id: np.ndarray
    row: np.ndarray
    _words: Callable[[np.ndarray], np.ndarray]  # by row

    def __len__(self) -> int:
        return len(self.at)

    def part(self, where: slice) -> Segments:
        """Some of them."""
        columns = (self.at, self.ns, self.cause, self.ref_id, self.row)
        return Segments(*(c[where] for c in columns), self._words)

    def of_cause(self, *causes: str) -> np.ndarray:
        """Mask of the segments with one of these causes."""
        return one_of(self.cause, [_CODE[c] for c in causes])

    @cached_property
    def run(self) -> np.ndarray:
        idle = ~self.of_cause(*OPERATION_KINDS)
        begins = idle.copy()
        begins[1:] &= ~idle[:-1] | (self.at[1:] != self.at[:-1])
        return np.where(idle, np.cumsum(begins) - 1, -1)

    def details(self, index: np.ndarray) -> np.ndarray:
        """The segments at these positions in words."""
        return self._words(self.row[index])


def _taken(column: pd.Series, rows: np.ndarray) -> np.ndarray:
    if len(rows) <= _FEW:  # taking from a chunked string column copies the column first
        values = column.array
        return np.array([values[row] for row in rows.tolist()], dtype=object)
    return column.iloc[rows].to_numpy(dtype=object)


def rows_of(rows: pd.DataFrame, at: int) -> pd.DataFrame:
    """Rows (of details, sorted by `at`) of one interval, the longest first."""
    key = rows["at"].to_numpy()
    return rows.iloc[slice(*np.searchsorted(key, [at, at + 1]))].sort_values("ns", ascending=False)


#: Calls that load, link or look up code.
LOADING_CALLS = r"^cu(da)?(Library(Load|Get)|Module(Load|Get)|Link|KernelSet)|^cuGetProcAddress"
#: Calls that allocate or free device or pinned memory.
ALLOCATION_CALLS = (
    r"^cu(da)?(Malloc|Free|Mem(Alloc|Free|Host|Create|Release|Map|Unmap|AddressReserve|AddressFree|SetAccess)"
    r"|Host(Alloc|Register|Unregister))"
)


#: Host timers by where they synchronise: before which of their two readings.
BOTH, BEFORE, AFTER, NEVER = "before and after", "only before", "only after", "never"


def host_patterns(facts: Facts) -> np.ndarray:
    """Per interval, one of the four in words; meaningless for kinds other than host."""
    return facts.remember("host patterns", _patterns)


def _patterns(facts: Facts) -> np.ndarray:
    before, after = facts.flagged("synchronised-before"), facts.flagged("synchronised-after")
    return np.where(before, np.where(after, BOTH, BEFORE), np.where(after, AFTER, NEVER)).astype(
        object
    )


def host_pattern(facts: Facts, case: Case) -> str:
    """The pattern of most of a case's intervals: a loop's first repetition may differ."""
    names, count = np.unique(host_patterns(facts)[case.positions].astype(str), return_counts=True)
    return str(names[int(count.argmax())])


def idle_share(facts: Facts, case: Case) -> float:
    """In how many of the case's intervals all earlier work had ended at the first reading."""
    return float(facts.flagged("idle-before")[case.positions].mean())
