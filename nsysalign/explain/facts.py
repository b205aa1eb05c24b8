"""An Analysis as arrays, so that rules can query all intervals at once; everything is derived from
the analysis alone.

Positions are the numbers of intervals (0..n-1).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from nsysalign.explain import thresholds
from nsysalign.explain.finding import About
from nsysalign.model import (
    CAUSES,
    OPERATION_KINDS,
    OTHERS_RAN,
    OTHERS_WORKED,
    Analysis,
)
from nsysalign.parts import parts_matrix
from nsysalign.split.pieces import Segments

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

    def __init__(self, analysis: Analysis, segments_of: Callable[[np.ndarray], Segments]) -> None:
        """`analysis` with its runs: they are kept apart.  They come last, so that the number of a
        measured interval is its position.  `segments_of`: segments of intervals (rising)."""
        self.whole = analysis
        self.analysis = analysis = replace(analysis, intervals=analysis.measured)
        self.segments_of = segments_of
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
        labels = analysis.labels
        self.labels = labels["label"].to_numpy(dtype=object)
        self.label = pd.Index(self.labels).get_indexer(pd.Index(v["label"].to_numpy(dtype=object)))
        self.label_count = np.bincount(self.label, minlength=len(self.labels))
        self.row = labels["row_interval"].to_numpy()
        self.median = labels["median_ns"].to_numpy()
        self.sites = labels["site"].to_numpy(dtype=object)
        self.names = v["name"].to_numpy(dtype=object)

    def most_common_work(self, label: str) -> np.ndarray:
        """Positions of the intervals that did a label's most common work, empty if it did only one
        kind of work."""
        return self._most_common.get(label, np.empty(0, np.int64))

    @cached_property
    def _most_common(self) -> dict[str, np.ndarray]:
        kinds = self.analysis.variants.sort_values("count", ascending=False, kind="stable")
        first = kinds.drop_duplicates("label")
        return {
            str(label): np.array(numbers, dtype=np.int64)
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

    def detail_rows(
        self, cause: str, pattern: str = "", names: tuple[str, ...] = ()
    ) -> pd.DataFrame:
        """Detail rows of one cause whose `detail` matches: a regular expression, or one of the
        names."""
        rows = self._by_cause.get(cause)
        if rows is None:
            return self.analysis.details.iloc[:0]
        if not pattern and not names:
            return rows
        code, unique = pd.factorize(rows["detail"].to_numpy(dtype=object))
        found = re.compile(pattern).search if pattern else names.__contains__
        hit = np.fromiter((bool(found(str(text))) for text in unique), bool, len(unique))
        return rows[hit[code]]

    @cached_property
    def _by_cause(self) -> dict[str, pd.DataFrame]:
        details = self.analysis.details  # sorted by interval, those of runs last
        measured = details.iloc[: np.searchsorted(details["interval"].to_numpy(), self.count)]
        return {str(cause): rows for cause, rows in measured.groupby("cause", sort=False)}

    def detail_ns(self, rows: pd.DataFrame, column: str = "ns") -> np.ndarray:
        """Sum of a column of detail rows, per interval."""
        out = np.zeros(self.count, dtype=np.int64)
        np.add.at(out, rows["interval"].to_numpy(), rows[column].to_numpy())
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

    @cached_property
    def graphs(self) -> np.ndarray:
        """Intervals in which the program replays CUDA graphs, as far as the stream waited for that
        or the trace has graphs as a whole."""
        launched = self.detail_ns(self.detail_rows("api_launch", GRAPH_LAUNCH)) > 0
        return launched | (self.part("graph") > 0)

    def flagged(self, flag: str) -> np.ndarray:
        """Mask of the intervals that carry a flag."""
        flags = self.analysis.intervals["flags"].tolist()
        return np.fromiter((flag in f for f in flags), bool, self.count)

    @cached_property
    def others_worked(self) -> np.ndarray:
        """Intervals during whose idle time other streams kept the device busy."""
        return self.flagged(OTHERS_WORKED)

    @cached_property
    def other_ns(self) -> np.ndarray:
        """Work on other streams, launched inside the interval."""
        o = self.analysis.other_streams
        out = np.zeros(self.count, dtype=np.int64)
        np.add.at(out, o["interval"].to_numpy(), o["ns"].to_numpy())
        return out

    def shows(self, quoted: int, positions: np.ndarray) -> int:
        """The number of the interval that shows a finding: the quoted one, else the label's row if
        it is among the finding's intervals, else the slowest of them; -1 for none."""
        if quoted < 0 and len(positions):
            row = int(self.row[self.label[positions[0]]])
            slowest = int(positions[self.elapsed[positions].argmax()])
            quoted = row if (positions == row).any() else slowest
        return quoted

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
        """Who idled in interval `at`: "the GPU waited, idle,", or only its stream.  What the others
        did is known of the interval's idle time as a whole, not of the part that a rule names."""
        if self.others_worked[at]:
            return f"its stream {what} (other streams worked during most of its idle time)"
        if self._others_ran[at]:
            return f"its stream {what}, idle,"
        return f"the GPU {what}, idle,"

    def cases(
        self, mask: np.ndarray, *, at_least: float = thresholds.TYPICAL_SHARE
    ) -> Iterator[Case]:
        """Labels in which at least this share of the intervals, and at least one, has the property;
        in label order."""
        hits = np.flatnonzero(mask)
        have = np.bincount(self.label[hits], minlength=len(self.labels))
        fires = np.flatnonzero((have > 0) & (have >= at_least * self.label_count))
        if not len(fires):
            return
        order = hits[np.lexsort((self.elapsed[hits], self.label[hits]))]
        edge = np.searchsorted(self.label[order], np.arange(len(self.labels) + 1))
        for code in fires.tolist():
            positions = order[edge[code] : edge[code + 1]]
            row = int(self.row[code])
            if not mask[row]:
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

    def lots(self, positions: np.ndarray) -> Iterator[Segments]:
        """Segments of many intervals, a bounded number at a time."""
        length = np.cumsum(self.operations[np.sort(positions)] + 1)
        cuts = np.flatnonzero(np.diff(length // _OPERATIONS_AT_ONCE)) + 1
        for lot in np.split(np.sort(positions), cuts):
            if len(lot):
                yield self.segments_of(lot)


def rows_of(rows: pd.DataFrame, at: int) -> pd.DataFrame:
    """Rows (sorted by interval) of one interval, the longest first."""
    key = rows["interval"].to_numpy()
    return rows.iloc[slice(*np.searchsorted(key, [at, at + 1]))].sort_values("ns", ascending=False)


#: Calls that load, link or look up code.
LOADING_CALLS = r"^cu(da)?(Library(Load|Get)|Module(Load|Get)|Link|KernelSet)|^cuGetProcAddress"
#: Calls that launch CUDA graphs.
GRAPH_LAUNCH = r"^cu(?:da)?GraphLaunch"
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
