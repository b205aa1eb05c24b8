"""What rules read: the labels of an analysis, and single intervals as objects.

A `Label` holds arrays over all its intervals, in time, cut from the exact tables: sums that are
printed come from them.  An `Interval` is the one whose story a finding tells: its segments are
plain objects, and only those of intervals that rules look at are made.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nsysalign.explain import words
from nsysalign.explain.finding import Advice, CouldNotLook, Finding, Remark, evidence
from nsysalign.model import CAUSES, OPERATION_KINDS, OTHERS_RAN, OTHERS_WORKED, Evidence
from nsysalign.parts import parts_matrix
from nsysalign.split.pieces import Segments

#: A label has a property when at least this share of its intervals has it.
TYPICAL_SHARE = 0.5
#: From this share of an interval on, the interval is not what the reader thinks: a warning.
WARN_SHARE = 0.20
#: From this share on, a part that need not be there is worth mentioning: an info.
SAY_SHARE = 0.05
#: Segments become objects only in intervals of at most this many operations.
MOST_OPERATIONS = 50_000

#: Calls that load or link code; that look it up as well; that allocate or free memory; that launch
#: graphs.
LOADS = r"^cu(da)?(LibraryLoad|ModuleLoad|Link)"
LOADING_CALLS = r"^cu(da)?(Library(Load|Get)|Module(Load|Get)|Link|KernelSet)|^cuGetProcAddress"
ALLOCATION_CALLS = (
    r"^cu(da)?(Malloc|Free|Mem(Alloc|Free|Host|Create|Release|Map|Unmap|AddressReserve|AddressFree|SetAccess)"
    r"|Host(Alloc|Register|Unregister))"
)
GRAPH_LAUNCH = r"^cu(?:da)?GraphLaunch"

#: Kernels and ranges that only torch's own code makes.
_TORCH = re.compile(
    r"\bat::|at_cuda_detail|\bc10::|^aten::|triton_(poi|red|per|tem)_|autograd::|^FSDP::|DistributedDataParallel"
)


class Facts:
    """An analysis as its rules see it, with `runs` (the rows of whole runs) kept apart: the number
    of a measured interval is its position."""

    def __init__(self, evidence: Evidence, segments_of: Callable[[np.ndarray], Segments]) -> None:
        """`segments_of`: segments of intervals (rising numbers)."""
        self.whole = evidence
        self.analysis = replace(evidence, intervals=evidence.measured)
        self.segments_of = segments_of
        self.memory: dict[Any, Any] = {}
        self._segments: dict[int, Segments] = {}
        self._columns: dict[str, np.ndarray] = {}
        table, intervals = evidence.labels, self.analysis.intervals
        self.count = len(intervals)
        self.kinds = dict(zip(table["label"].tolist(), table["kind"].tolist(), strict=True))
        names = table["label"].to_numpy(dtype=object)
        self.label = pd.Index(names).get_indexer(
            pd.Index(intervals["label"].to_numpy(dtype=object))
        )
        pid = self.column("pid")
        order = np.lexsort((self.column("start_ns"), pid, self.label))
        edges = np.searchsorted(self.label[order], np.arange(len(names) + 1)).tolist()
        columns = zip(names, table["site"], table["row_interval"], table["median_ns"], strict=True)
        self.labels = [
            Label(self, str(name), str(site), order[edges[k] : edges[k + 1]], int(row), median)
            for k, (name, site, row, median) in enumerate(columns)
        ]

    def column(self, name: str) -> np.ndarray:
        """A column of the measured intervals."""
        if name not in self._columns:
            self._columns[name] = self.analysis.intervals[name].to_numpy()
        return self._columns[name]

    @cached_property
    def parts(self) -> np.ndarray:
        """Nanoseconds, (intervals, causes)."""
        return parts_matrix(self.analysis)

    @cached_property
    def torch(self) -> bool:
        """Whether the program is torch's: its events were logged, or its kernels or ranges are
        there.  If that cannot be determined (a trace without kernels), torch is assumed."""
        kernels = self.whole.kernels
        if self.whole.calibration.get("collected_with") or kernels.empty:
            return True
        names = pd.unique(pd.concat([kernels["kernel"], self.whole.labels["label"]]).astype(str))
        return any(_TORCH.search(name) for name in names.tolist())

    @cached_property
    def details(self) -> dict[str, pd.DataFrame]:
        """Detail rows of measured intervals (sorted by interval) by cause."""
        details = self.analysis.details  # those of runs come last
        measured = details.iloc[: np.searchsorted(details["interval"].to_numpy(), self.count)]
        return {str(cause): rows for cause, rows in measured.groupby("cause", sort=False)}

    def detail_rows(self, cause: str, names: str | tuple[str, ...] = ()) -> pd.DataFrame:
        """Detail rows of one cause whose `detail` matches: a regular expression, or one of the
        names."""
        rows = self.details.get(cause)
        if rows is None:
            return self.analysis.details.iloc[:0]
        if not names:
            return rows
        if (cause, names) not in self.memory:
            code, unique = pd.factorize(rows["detail"].to_numpy(dtype=object))
            fits = re.compile(names).search if isinstance(names, str) else names.__contains__
            hit = np.fromiter((bool(fits(str(text))) for text in unique), bool, len(unique))
            self.memory[cause, names] = rows[hit[code]]
        return self.memory[cause, names]

    def per_interval(self, rows: pd.DataFrame, values: np.ndarray) -> np.ndarray:
        """Sums of values of detail rows, per interval."""
        out = np.zeros(self.count, dtype=values.dtype)
        np.add.at(out, rows["interval"].to_numpy(), values)
        return out

    def detail_ns(self, cause: str, names: str | tuple[str, ...] = ()) -> np.ndarray:
        """Nanoseconds of matching detail rows, per interval."""
        key = ("ns", cause, names)
        if key not in self.memory:
            rows = self.detail_rows(cause, names)
            self.memory[key] = self.per_interval(rows, rows["ns"].to_numpy())
        return self.memory[key]

    def flagged(self, flag: str) -> np.ndarray:
        """Mask of the intervals that carry a flag."""
        if flag not in self._columns:
            flags = self.analysis.intervals["flags"].tolist()
            self._columns[flag] = np.fromiter((flag in f for f in flags), bool, self.count)
        return self._columns[flag]

    @cached_property
    def graphs(self) -> np.ndarray:
        """Intervals in which the program replays CUDA graphs, as far as the stream waited for that
        or the trace has graphs as a whole."""
        launched = self.detail_ns("api_launch", GRAPH_LAUNCH) > 0
        return launched | (self.parts[:, CAUSES.index("graph")] > 0)

    @cached_property
    def other_ns(self) -> np.ndarray:
        """Work on other streams, launched inside the interval."""
        others = self.analysis.other_streams
        return self.per_interval(others, others["ns"].to_numpy())

    @cached_property
    def synchronised(self) -> tuple[np.ndarray, np.ndarray]:
        """Per interval: how long the GPU idled because of synchronisations, at most, and how much of
        that is time in which the host caught up in its own code and in calls (rules about the host
        leave it out).

            kernel  host | sync host launch latency | kernel
                         |----- of the sync --------|            the host's time before it is not

        Without the synchronisation the host could have used the time in which the device worked
        before, no more: if it sleeps for a second afterwards, the second is its own.
        """
        total, hosted = np.zeros(self.count, np.int64), np.zeros(self.count, np.int64)
        numbers = np.flatnonzero(
            (self.column("kind") != "host") & (self.parts[:, CAUSES.index("sync")] > 0)
        )
        for segments in self._lots(numbers):
            owner, ns, stretch = segments.interval, segments.ns, segments.run
            count = int(stretch.max(initial=-1)) + 1
            sync, idle = segments.of_cause("sync"), stretch >= 0
            if not count:
                continue
            first = np.full(count, len(ns))  # the first synchronisation of each idle stretch
            np.minimum.at(first, stretch[sync], np.flatnonzero(sync))
            after = idle & ~sync & (np.arange(len(ns)) > np.where(idle, first[stretch], 0))
            own = after & segments.of_cause("host", "api", "api_launch")
            called, followed, caught_up = (
                np.bincount(stretch[mask], ns[mask], minlength=count).astype(np.int64)
                for mask in (sync, after, own)
            )
            # work since the stretch before that had a synchronisation, or since the interval began
            worked = np.append(0, np.cumsum(np.where(idle, 0, ns)))
            with_sync = np.flatnonzero(first < len(ns))
            first = first[with_sync]
            begin = np.searchsorted(owner, owner[first])
            same = owner[first][1:] == owner[first][:-1]
            begin[1:] = np.where(same, first[:-1], begin[1:])
            catching_up = np.minimum(followed[with_sync], worked[first] - worked[begin])
            np.add.at(total, owner[first], called[with_sync] + catching_up)
            np.add.at(hosted, owner[first], np.minimum(caught_up[with_sync], catching_up))
        hosted[total <= WARN_SHARE * np.maximum(self.column("elapsed_ns"), 1)] = 0  # no warning
        hosted[self.pageable] = 0
        return total, hosted

    @cached_property
    def pageable(self) -> np.ndarray:
        """Intervals with copies of pageable memory, for which the host waits: rule copy-inside says
        so."""
        rows = self.detail_rows("memcpy")
        rows = rows[(rows["memory"] == "pageable") & (rows["bytes"] > ITEM_BYTES)]
        return self.per_interval(rows, rows["ns"].to_numpy()) > 0

    def segments(self, number: int) -> Segments:
        """Those of one interval.  Rows of labels come many at a time: one by one, those of a
        thousand labels would take longer than all else."""
        if number not in self._segments:
            rows = np.sort([label.row.number for label in self.labels])
            some = rows[np.searchsorted(rows, number) :]
            some = some if number in some[:1] else np.array([number])
            length = np.cumsum(self.column("operations")[some] + 1)
            some = some[: max(int(np.searchsorted(length, MOST_OPERATIONS)), 1)]
            lot = self.segments_of(some)
            self._segments |= {int(each.interval[0]): each for each in lot.each()}
            self._segments.setdefault(number, lot)  # of no length: it has none
        return self._segments[number]

    def _lots(self, numbers: np.ndarray) -> Iterator[Segments]:
        """Segments of many intervals, a bounded number at a time."""
        length = np.cumsum(self.column("operations")[numbers] + 1)
        cuts = np.flatnonzero(np.diff(length // MOST_OPERATIONS)) + 1
        yield from (self.segments_of(lot) for lot in np.split(numbers, cuts) if len(lot))

    def shown(self, finding: Finding) -> int:
        """The number of the interval that shows a finding: the quoted one, else the label's row if
        it is among the finding's intervals, else the slowest of them; -1 for none."""
        numbers = finding.intervals
        if finding.interval >= 0 or not len(numbers):
            return finding.interval
        row = self.labels[self.label[numbers[0]]].row.number
        slowest = int(numbers[self.column("elapsed_ns")[numbers].argmax()])
        return row if (numbers == row).any() else slowest

    def once(self, numbers: np.ndarray, ns: np.ndarray) -> int:
        """The sum over intervals in which no time counts twice: of intervals of one process and
        device that overlap (nested ranges, several streams), only the one with most is added."""
        if len(numbers) < 2:
            return int(ns.sum())
        pid, device, start, end, error = (
            self.column(c)[numbers] for c in ("pid", "device", "start_ns", "end_ns", "error_ns")
        )
        order = np.lexsort((start, pid, device))
        pid, device, start, end, error = (v[order] for v in (pid, device, start, end, error))
        fresh = np.ones(len(order), dtype=bool)
        fresh[1:] = (pid[1:] != pid[:-1]) | (device[1:] != device[:-1])
        apart = np.cumsum(fresh) * (end.max() - start.min())  # keeps them apart below
        reach = np.maximum.accumulate(end + apart) - apart
        slack = 2 * error + 1_000  # neighbours that share a record touch
        fresh[1:] |= start[1:] + np.minimum(slack, end - start)[1:] >= reach[:-1]
        return int(np.maximum.reduceat(ns[order], np.flatnonzero(fresh)).sum())


#: A copy back to the host of at most this many bytes, followed by a synchronisation, is an
#: `.item()`.
ITEM_BYTES = 4_096


class Label:
    """One label: arrays over its intervals, in time (by process), and the interval of its row."""

    def __init__(
        self, facts: Facts, name: str, site: str, numbers: np.ndarray, row: int, median_ns: float
    ) -> None:
        self.facts, self.name, self.site, self.numbers = facts, name, site, numbers
        self.who = words.subject(name)  # as titles name it
        self.count, self.median_ns, self.row = len(numbers), median_ns, Interval(facts, row)
        self.elapsed, self.operations = self.column("elapsed_ns"), self.column("operations")
        self.kernel = self.column("kernel_only_upper_ns")  # and graphs that are one row
        self.kind = self.column("kind")
        self.on_stream = self.kind != "host"  # not a host timer
        self._parts = facts.parts[numbers].T

    def column(self, name: str) -> np.ndarray:
        return self.facts.column(name)[self.numbers]

    def ns(self, *causes: str) -> np.ndarray:
        """Nanoseconds of the causes."""
        return sum(self._parts[CAUSES.index(cause)] for cause in causes)

    def detail_ns(self, cause: str, names: str | tuple[str, ...] = ()) -> np.ndarray:
        """Nanoseconds of details of one cause: a regular expression, or one of the names."""
        return self.facts.detail_ns(cause, names)[self.numbers]

    def share(self, ns: np.ndarray) -> np.ndarray:
        """Share of the measured time."""
        return ns / np.maximum(self.elapsed, 1)

    def flagged(self, flag: str) -> np.ndarray:
        return self.facts.flagged(flag)[self.numbers]

    def case(self, has: np.ndarray, *, at_least: float = TYPICAL_SHARE) -> Case | None:
        """The label as one whose intervals have a property: at least this share of them, and at
        least one."""
        count = int(np.count_nonzero(has))
        if not count or count < at_least * self.count:
            return None
        numbers = np.sort(self.numbers[has])
        if (numbers == self.row.number).any():
            return Case(self, has, count, self.row)
        order = np.argsort(self.facts.column("elapsed_ns")[numbers], kind="stable")
        return Case(self, has, count, Interval(self.facts, int(numbers[order[(count - 1) // 2]])))

    def finding(
        self,
        severity: str,
        title: str,
        advice: Advice = Advice(),  # noqa: B008
        loss: np.ndarray | None = None,
        *,
        of: np.ndarray | slice = slice(None),
        row: Interval | None = None,
        about_row: bool = True,
        **values: Any,
    ) -> Finding:
        """A finding about the label.  `loss`: ns of each of its intervals; `of`: which of them it
        concerns; `row`: the interval whose numbers it states; `values`: its evidence."""
        return Finding(
            severity,
            self.name,
            title,
            evidence(**values),
            advice,
            self.site,
            self.numbers[of],
            None if loss is None else np.maximum(loss[of], 0),
            interval=-1 if row is None else row.number,
            about_row=about_row,
        )


@dataclass(frozen=True)
class Case:
    """A label that has a property, the mask of its intervals that have it, how many these are, and
    the interval whose numbers are quoted: the label's row in every table, if it has it."""

    label: Label
    has: np.ndarray
    count: int
    row: Interval

    def value(self, values: np.ndarray) -> int:
        """What an array over the label's intervals holds for the quoted one."""
        return int(values[self.label.numbers == self.row.number][0])

    def finding(
        self,
        severity: str,
        title: str,
        advice: Advice = Advice(),  # noqa: B008
        loss: np.ndarray | None = None,
        **values: Any,
    ) -> Finding:
        """See `Label.finding`; how often it was seen is evidence, unless that is always."""
        seen_in = f"{self.count} of {self.label.count}" if self.count < self.label.count else None
        for name, value in (("of", self.has), ("row", self.row), ("seen_in", seen_in)):
            values.setdefault(name, value)
        return self.label.finding(severity, title, advice, loss, **values)


class Segment(NamedTuple):
    """A piece of an interval with one cause."""

    cause: str
    ns: int
    ref: int  # rowid of what it is in nsys's tables
    position: int  # among the interval's segments


class Detail(NamedTuple):
    """A row of `details`."""

    detail: str
    ns: int
    direction: str
    memory: str
    bytes: int
    stream: int


class Stretch(NamedTuple):
    """The idle segments between two operations, which are None at the ends of the interval."""

    before: Segment | None
    pieces: list[Segment]
    then: Segment | None

    def ns(self, causes: Iterable[str]) -> int:
        return sum(piece.ns for piece in self.pieces if piece.cause in causes)


class Interval:
    """One interval.  Numbers are looked up when they are asked for."""

    def __init__(self, facts: Facts, number: int) -> None:
        self.facts, self.number = facts, number
        self.name, self.kind = str(self.column("name")), str(self.column("kind"))
        self.elapsed, self.operations = self.column("elapsed_ns"), self.column("operations")
        self.kernel = self.column("kernel_only_upper_ns")  # and graphs that are one row
        self.others_worked = bool(facts.flagged(OTHERS_WORKED)[number])

    def column(self, name: str) -> Any:
        value = self.facts.column(name)[self.number]
        return value.item() if isinstance(value, np.generic) else value

    def ns(self, *causes: str) -> int:
        row = self.facts.parts[self.number]
        return int(sum(row[CAUSES.index(cause)] for cause in causes))

    def share(self, ns: float) -> float:
        return ns / max(self.elapsed, 1)

    def of(self, ns: float) -> str:
        """ "3 of 40 us"."""
        return words.of(ns, self.elapsed)

    def details(self, cause: str, names: str | tuple[str, ...] = ()) -> list[Detail]:
        """Rows of `details`, the longest first."""
        rows = self._rows(self.facts.detail_rows(cause, names), Detail._fields)
        return sorted((Detail(*row) for row in rows), key=lambda detail: -detail.ns)

    def other_streams(self) -> list[tuple[int, int]]:
        """(stream, ns) of work launched inside that ran on other streams, the longest first."""
        rows = self._rows(self.facts.analysis.other_streams, ("stream", "ns"))
        return sorted(rows, key=lambda row: -row[1])

    def _rows(self, table: pd.DataFrame, columns: tuple[str, ...]) -> Iterator[tuple]:
        """Its rows of a table that is sorted by interval."""
        some = slice(*np.searchsorted(table["interval"].to_numpy(), [self.number, self.number + 1]))
        rows = table.iloc[some]
        return zip(*(rows[c].tolist() for c in columns), strict=True)

    @property
    def idled(self) -> str:
        """Who idled: "the GPU waited, idle,", or only its stream.  What the others did is known of
        the interval's idle time as a whole, not of the part that a rule names."""
        if self.others_worked:
            return "its stream waited (other streams worked during most of its idle time)"
        if self.facts.flagged(OTHERS_RAN)[self.number]:
            return "its stream waited, idle,"
        return "the GPU waited, idle,"

    @property
    def segments(self) -> list[Segment]:
        """In time; none of an interval with more than MOST_OPERATIONS."""
        if self.operations > MOST_OPERATIONS:
            return []
        arrays = self.facts.segments(self.number)
        columns = (arrays.cause.tolist(), arrays.ns.tolist(), arrays.ref_id.tolist())
        return [
            Segment(CAUSES[cause], ns, ref, position)
            for position, (cause, ns, ref) in enumerate(zip(*columns, strict=True))
        ]

    def words(self, segments: Iterable[Segment]) -> list[str]:
        """Segments in words."""
        positions = np.array([segment.position for segment in segments], dtype=np.int64)
        return (
            [str(text) for text in self.facts.segments(self.number).words(positions)]
            if len(positions)
            else []
        )

    @property
    def stretches(self) -> list[Stretch]:
        """Idle stretches, in time."""
        out, segments = [], self.segments
        for working, group in groupby(segments, lambda s: s.cause in OPERATION_KINDS):
            if not working:
                pieces = list(group)
                first, after = pieces[0].position, pieces[-1].position + 1
                before = segments[first - 1] if first else None
                out.append(
                    Stretch(before, pieces, segments[after] if after < len(segments) else None)
                )
        return out


def each_label(
    rule: Callable[[Label], Finding | None],
) -> Callable[[Facts], Iterator[Finding | CouldNotLook | Remark]]:
    """A rule about one label, asked of every label."""

    @wraps(rule)
    def find(facts: Facts) -> Iterator[Finding]:
        for label in facts.labels:
            finding = rule(label)
            if finding is not None:
                yield finding

    return find


def remembered(build: Callable[[Facts], Any]) -> Callable[[Facts], Any]:
    """What several rules need: computed once per analysis."""

    @wraps(build)
    def get(facts: Facts) -> Any:
        if build not in facts.memory:
            facts.memory[build] = build(facts)
        return facts.memory[build]

    return get
