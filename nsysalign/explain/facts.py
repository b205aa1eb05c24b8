"""What rules read: the labels of an analysis, and single intervals as objects.

A `Label` holds arrays over all its intervals, in time, cut from the exact tables: sums that are
printed come from them.  An `Interval` is the one whose story a finding tells: its segments are
plain objects, and only those of intervals that rules look at are made.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nsysalign.explain.finding import NO_ADVICE, Advice, Finding
from nsysalign.model import CAUSES, OPERATION_KINDS, OTHERS_RAN, OTHERS_WORKED, Evidence
from nsysalign.parts import parts_matrix
from nsysalign.split.pieces import Segments
from nsysalign.text import of, subject

#: A label has a property when at least this share of its intervals has it.
TYPICAL_SHARE = 0.5
#: From this share of an interval on, the interval is not what the reader thinks: a warning.
WARN_SHARE = 0.20
#: From this share on, a part that need not be there is worth mentioning: an info.
SAY_SHARE = 0.05
#: Segments become objects only in intervals of at most this many operations.
MOST_OPERATIONS = 50_000
#: A copy back to the host of at most this many bytes, followed by a synchronisation, is an
#: `.item()`.
ITEM_BYTES = 4_096

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

#: What calls return when the program ends and the driver is gone already: no error; what a
#: synchronisation returns before there is a context, that is anything to wait for.
_SHUT_DOWN, _NO_CONTEXT = 4, 201


class Facts:
    """An analysis as its rules see it.  Arrays are over the measured intervals, whose numbers are
    their positions; `whole` has the runs (intervals of whole processes) as well."""

    def __init__(self, evidence: Evidence, segments_of: Callable[[np.ndarray], Segments]) -> None:
        """`segments_of`: segments of intervals (rising numbers)."""
        self.whole = evidence
        self.analysis = replace(evidence, intervals=evidence.measured)
        self.segments_of = segments_of
        self.count = len(self.analysis.intervals)
        self.column = cache(lambda name: self.analysis.intervals[name].to_numpy())
        self.detail_ns = cache(self._detail_ns)
        self.parts = parts_matrix(self.analysis)  # ns, (intervals, causes)
        details = evidence.details  # those of runs come last
        self._details = details.iloc[: np.searchsorted(details["interval"].to_numpy(), self.count)]
        #: Work on other streams, launched inside the interval.
        self.other_ns = self.per_interval(self.analysis.other_streams)
        self.repetitions: list[Any] = []  # `rules.repetitions.Repetitions`, before rules are asked
        self._segments: dict[int, list[list[Any]]] = {}
        # the program measured what it wanted to know, or its calls failed: nothing is said of the run
        own = (self.column("method") != "inferred") & (self.column("kind") != "nvtx")
        self.failed_calls = [  # (call, code, how often)
            row
            for row in evidence.trace.failed_calls
            if row[1] != _SHUT_DOWN and not (row[1] == _NO_CONTEXT and "Synchronize" in row[0])
        ]
        failed = self.failed_calls or not evidence.unaligned.empty
        self.measured_itself = bool(own.any() or failed)
        # CUDA graphs are replayed, as far as the stream waited for that or the trace has them whole
        self.graphs = self.detail_ns("api_launch", GRAPH_LAUNCH) + self.ns("graph") > 0
        # the program is torch's: its events were logged, or its kernels or ranges are there; if
        # that is not known (a trace without kernels), torch is assumed
        kernels, table = evidence.kernels, evidence.labels
        names = pd.unique(pd.concat([kernels["kernel"], table["label"]]).astype(str)).tolist()
        logged = evidence.known.python or evidence.known.torch or kernels.empty
        self.torch = bool(logged) or any(map(_TORCH.search, names))
        of_label = table["label"].to_numpy(dtype=object)
        own = pd.Index(self.column("label").astype(object))
        self.label = pd.Index(of_label).get_indexer(own)  # which of `labels` an interval has
        order = np.lexsort((self.column("start_ns"), self.column("pid"), self.label))
        edges = np.searchsorted(self.label[order], np.arange(len(of_label) + 1)).tolist()
        rows = zip(table.itertuples(index=False), pairwise(edges), strict=True)
        self.labels = [Label(self, row, order[slice(*edge)]) for row, edge in rows]

    def ns(self, *causes: str) -> np.ndarray:
        """Nanoseconds of the causes, per interval."""
        return self.parts[:, [CAUSES.index(c) for c in causes]].sum(axis=1)

    def details(self, cause: str, number: int | None = None) -> pd.DataFrame:
        """Details of a cause, of all intervals or of one."""
        rows = self._details
        if number is not None:
            numbers = rows["interval"].to_numpy()
            rows = rows.iloc[slice(*np.searchsorted(numbers, [number, number + 1]))]
        return rows[rows["cause"] == cause]

    def per_interval(self, rows: pd.DataFrame, values: np.ndarray | None = None) -> np.ndarray:
        """Sums of values of detail rows, per interval; without values of their nanoseconds."""
        values = rows["ns"].to_numpy() if values is None else values
        out = np.zeros(self.count, dtype=values.dtype)
        np.add.at(out, rows["interval"].to_numpy(), values)
        return out

    def _detail_ns(self, cause: str, names: str) -> np.ndarray:
        """Nanoseconds of the details of a cause whose text matches, per interval."""
        details = self._details
        texts = details["detail"].astype("category").cat
        fits = [bool(re.search(names, str(text))) for text in texts.categories]
        of_cause = (details["cause"] == cause).to_numpy()
        rows = np.flatnonzero(of_cause & np.array([*fits, False])[texts.codes.to_numpy()])
        return self.per_interval(details[["interval", "ns"]].iloc[rows])

    @cached_property
    def synchronised(self) -> Synchronised:
        """How long the GPU idled because of synchronisations.

            kernel  host | sync host launch latency | kernel
                         |----- of the sync --------|            the host's time before it is not

        Without the synchronisation the host could have used the time in which the device worked
        before, no more: if it sleeps for a second afterwards, the second is its own.
        """
        total, hosted = np.zeros(self.count, np.int64), np.zeros(self.count, np.int64)
        waits = (self.column("kind") != "host") & (self.ns("sync") > 0)
        for segments in self._lots(np.flatnonzero(waits)):
            sync, stretch = segments.of_cause("sync"), pd.Series(segments.run)
            after = pd.Series(sync).groupby(stretch).cummax().to_numpy() & ~sync
            own = after & segments.of_cause("host", "api", "api_launch")
            worked = pd.Series(np.where(stretch < 0, segments.ns, 0))
            rows = pd.DataFrame({
                "interval": segments.interval, "worked": worked.groupby(segments.interval).cumsum(),
                "sync": segments.ns * sync, "caught_up": segments.ns * after, "own": segments.ns * own,
            })[stretch >= 0]  # fmt: skip
            sums = dict.fromkeys(("interval", "worked"), "first")
            sums |= dict.fromkeys(("sync", "caught_up", "own"), "sum")
            idle = rows.groupby(stretch[stretch >= 0]).agg(sums)
            idle = idle[idle["sync"] > 0]
            # work since the stretch before that had a synchronisation, or since the interval began
            work = idle.groupby("interval")["worked"].diff().fillna(idle["worked"])
            catching_up = np.minimum(idle["caught_up"], work).astype(np.int64)
            np.add.at(total, idle["interval"], idle["sync"] + catching_up)
            np.add.at(hosted, idle["interval"], np.minimum(idle["own"], catching_up))
        hosted[total <= WARN_SHARE * np.maximum(self.column("elapsed_ns"), 1)] = 0  # no warning
        rows = self.details("memcpy")
        rows = rows[(rows["memory"] == "pageable") & (rows["bytes"] > ITEM_BYTES)]
        pageable = self.per_interval(rows) > 0
        hosted[pageable] = 0
        return Synchronised(total, hosted, pageable)

    def segments(self, number: int) -> list[Segment]:
        """Those of one interval, in time.  Those of the labels' rows are read together: one by one,
        a thousand labels would take longer than all else."""
        if number not in self._segments:
            rows = np.unique([number, *(label.row.number for label in self.labels)])
            rows = rows[self.column("operations")[rows] <= MOST_OPERATIONS]
            if self._segments:
                rows = np.array([number])
            for lot in self._lots(rows):
                words = lot.words(np.arange(len(lot)))
                edges = [*np.flatnonzero(np.diff(lot.interval, prepend=-1)).tolist(), len(lot)]
                for begin, end in pairwise(edges):
                    columns = (lot.cause, lot.ns, lot.ref_id, words)
                    own = [column[begin:end].tolist() for column in columns]
                    self._segments[int(lot.interval[begin])] = own
        own = self._segments.get(number, [[]] * 4)
        return [Segment(CAUSES[cause], *rest) for cause, *rest in zip(*own, strict=True)]

    def _lots(self, numbers: np.ndarray) -> Iterator[Segments]:
        """Segments of many intervals, a bounded number at a time."""
        length = np.cumsum(self.column("operations")[numbers] + 1)
        cuts = np.flatnonzero(np.diff(length // MOST_OPERATIONS)) + 1
        yield from (self.segments_of(lot) for lot in np.split(numbers, cuts) if len(lot))

    def once(self, numbers: np.ndarray, ns: np.ndarray) -> int:
        """The sum over intervals in which no time counts twice: of intervals of one process and
        device that overlap (nested ranges, several streams), only the one with most is added."""
        columns = ["pid", "device", "start_ns", "end_ns", "error_ns"]
        rows = self.analysis.intervals[columns].iloc[numbers].assign(ns=ns)
        rows = rows.sort_values(columns[:3], kind="stable")
        start, end, error = (rows[c] for c in columns[2:])
        reach = rows.groupby(columns[:2], sort=False)["end_ns"].cummax().shift(fill_value=0)
        slack = np.minimum(2 * error + 1_000, end - start)  # neighbours that share a record touch
        apart = ~rows.duplicated(columns[:2]) | (start + slack >= reach)
        return int(rows["ns"].groupby(apart.cumsum()).max().sum())


@dataclass(frozen=True)
class Synchronised:
    """Arrays over all intervals."""

    idle: np.ndarray  # because of synchronisations, ns, at most
    hosted: np.ndarray  # of that the host's own code and calls: rules about the host leave it out
    pageable: np.ndarray  # copies of pageable memory are in it, for which the host waits anyway


class Label:
    """One label: arrays over its intervals, in time (by process), and the interval of its row."""

    def __init__(self, facts: Facts, row: Any, numbers: np.ndarray) -> None:
        """`row`: of `frames.LABELS`."""
        self.facts, self.numbers, self.count = facts, numbers, len(numbers)
        self.name, self.site, self.median_ns = str(row.label), str(row.site), row.median_ns
        self.who = subject(self.name)  # as titles name it
        self.row = Interval(self, int(row.row_interval))
        self.elapsed, self.operations = self.column("elapsed_ns"), self.column("operations")
        self.whole = np.maximum(self.elapsed, 1)  # what shares are of
        self.kernel = self.column("kernel_only_upper_ns")  # and graphs that are one row
        self.kind = self.column("kind")
        self.on_stream = self.kind != "host"  # not a host timer

    def column(self, name: str) -> np.ndarray:
        return self.facts.column(name)[self.numbers]

    def ns(self, *causes: str) -> np.ndarray:
        """Nanoseconds of the causes."""
        columns = [CAUSES.index(c) for c in causes]
        return self.facts.parts[np.ix_(self.numbers, columns)].sum(axis=1)

    def detail_ns(self, cause: str, names: str) -> np.ndarray:
        """Nanoseconds of details of one cause whose text matches."""
        return self.facts.detail_ns(cause, names)[self.numbers]

    def flagged(self, flag: str) -> np.ndarray:
        return np.array([flag in flags for flags in self.column("flags")], bool)

    def case(self, has: np.ndarray, *, at_least: float = TYPICAL_SHARE) -> Interval | None:
        """If at least this share of the intervals has a property, and one of them: the interval
        whose numbers are quoted, which is the label's row if that has it."""
        if not has.any() or has.sum() < at_least * self.count:
            return None
        numbers = np.sort(self.numbers[has])
        order = np.argsort(self.facts.column("elapsed_ns")[numbers], kind="stable")
        number = int(numbers[order[(len(numbers) - 1) // 2]])
        return Interval(self, self.row.number if self.row.number in numbers else number, has)

    def finding(
        self,
        severity: str,
        title: str,
        advice: Advice = NO_ADVICE,
        loss: np.ndarray | None = None,
        *,
        of: np.ndarray | slice = slice(None),
        row: Interval | None = None,
        about_row: bool = False,
        **evidence: Any,
    ) -> Finding:
        """A finding about the label.  `loss`: ns of each of its intervals; `of`: which of them it
        concerns; `row`: the interval whose numbers it states."""
        return Finding(
            severity,
            self.name,
            title,
            evidence,
            advice,
            self.site,
            self.numbers[of],
            None if loss is None else np.maximum(loss[of], 0),
            interval=-1 if row is None else row.number,
            about_row=about_row,
        )


class Segment(NamedTuple):
    """A piece of an interval with one cause."""

    cause: str
    ns: int
    ref: int  # rowid of what it is in nsys's tables
    text: str


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
    """One interval of a label; `has`: the mask of the label's intervals whose common property it
    shows."""

    def __init__(self, label: Label, number: int, has: np.ndarray | None = None) -> None:
        self.label, self.facts, self.number, self.has = label, label.facts, number, has
        self.name, self.kind = str(self.column("name")), str(self.column("kind"))
        self.elapsed, self.operations = self.column("elapsed_ns"), self.column("operations")
        self.kernel = self.column("kernel_only_upper_ns")  # and graphs that are one row
        self.others_worked = OTHERS_WORKED in self.column("flags")

    def column(self, name: str) -> Any:
        value = self.facts.column(name)[self.number]
        return value.item() if isinstance(value, np.generic) else value

    def value(self, values: np.ndarray) -> int:
        """What an array over the label's intervals holds for this one."""
        return int(values[self.label.numbers == self.number][0])

    def ns(self, *causes: str) -> int:
        return int(self.facts.parts[self.number, [CAUSES.index(c) for c in causes]].sum())

    def of(self, ns: float) -> str:
        """ "3 of 40 us"."""
        return of(ns, self.elapsed)

    def details(self, cause: str, names: str = "") -> list[Detail]:
        """Rows of `details` whose text matches, the longest first."""
        table = self.facts.details(cause, self.number)
        columns = (table[c].tolist() for c in Detail._fields)
        rows = [Detail(*row) for row in zip(*columns, strict=True)]
        return sorted((d for d in rows if re.search(names, str(d.detail))), key=lambda d: -d.ns)

    @property
    def idled(self) -> str:
        """Who idled: "the GPU waited, idle,", or only its stream.  What the others did is known of
        the interval's idle time as a whole, not of the part that a rule names."""
        if self.others_worked:
            return "its stream waited (other streams worked during most of its idle time)"
        who = "its stream" if OTHERS_RAN in self.column("flags") else "the GPU"
        return f"{who} waited, idle,"

    @property
    def segments(self) -> list[Segment]:
        """In time; none of an interval with more than MOST_OPERATIONS."""
        return self.facts.segments(self.number) if self.operations <= MOST_OPERATIONS else []

    @property
    def stretches(self) -> list[Stretch]:
        """Idle stretches, in time."""
        groups = groupby(self.segments, lambda s: s.cause in OPERATION_KINDS)
        runs = [(working, list(group)) for working, group in groups]
        edges = [None, *runs, None]
        return [
            Stretch(before[1][-1] if before else None, pieces, then[1][0] if then else None)
            for before, (working, pieces), then in zip(edges, runs, edges[2:], strict=False)
            if not working
        ]

    def finding(
        self,
        severity: str,
        title: str,
        advice: Advice = NO_ADVICE,
        loss: np.ndarray | None = None,
        **more: Any,
    ) -> Finding:
        """See `Label.finding`; how often it was seen is evidence, unless that is always."""
        of = slice(None) if self.has is None else self.has
        always = self.has is None or self.has.all()
        seen_in = None if always else f"{self.has.sum()} of {self.label.count}"
        more = {"of": of, "row": self, "elapsed_ns": self.elapsed, "seen_in": seen_in} | more
        return self.label.finding(severity, title, advice, loss, **{"about_row": True} | more)
