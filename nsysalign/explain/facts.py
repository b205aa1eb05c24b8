"""What rules read: the labels of an analysis, and single intervals as objects.

A `Label` holds arrays over all its intervals, in time, cut from the exact tables: sums that are
printed come from them.  An `Interval` is the one whose story a finding tells: its segments are
plain objects, and only those of intervals that rules look at are made.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nsysalign.explain.finding import Advice, Finding
from nsysalign.model import CAUSES, OPERATION_KINDS, OTHERS_RAN, OTHERS_WORKED, Evidence
from nsysalign.parts import parts_matrix
from nsysalign.split.pieces import Segments
from nsysalign.text import subject

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
    their positions."""

    def __init__(self, evidence: Evidence, segments_of: Callable[[np.ndarray], Segments]) -> None:
        """`segments_of`: segments of intervals (rising numbers)."""
        self.analysis, self.intervals = evidence, evidence.measured
        self.segments_of, self.count = segments_of, len(self.intervals)
        self.column = cache(lambda name: self.intervals[name].to_numpy())
        self.detail_ns = cache(self._detail_ns)
        # (intervals, causes); rows of runs come last, here and in the details
        self.parts, details = parts_matrix(evidence)[: self.count], evidence.details
        self.details = details.iloc[: np.searchsorted(details["interval"].to_numpy(), self.count)]
        #: Work on other streams, launched inside the interval.
        self.other_ns = self.per_interval(evidence.other_streams)
        #: Of `rules.repetitions`, before rules are asked: `Repetitions`, `IntervalClocks`.
        self.repetitions: list[Any] = []
        self.clocks: Any = None
        self.read: dict[int, list[Segment]] = {}  # segments of intervals
        self.failed_calls = [  # (call, code, how often)
            row
            for row in evidence.trace.failed_calls
            if row[1] != _SHUT_DOWN and not (row[1] == _NO_CONTEXT and "Synchronize" in row[0])
        ]
        # the program measured what it wanted to know, or its calls failed: nothing is said of runs
        own = (self.column("method") != "inferred") & (self.column("kind") != "nvtx")
        silent = own.any() or self.failed_calls or not evidence.unaligned.empty
        runs = evidence.runs.drop_duplicates(["pid", "device"])  # those of streams come behind
        #: Rows of `frames.INTERVALS`; `rules.diagnose` makes a `Run` of each.
        self.runs: list[Any] = [] if silent else list(runs.itertuples())
        # CUDA graphs are replayed, as far as the stream waited for that or the trace has them whole
        whole_graphs = self.parts[:, CAUSES.index("graph")]
        self.graphs = self.detail_ns("api_launch", GRAPH_LAUNCH) + whole_graphs > 0
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

    def per_interval(self, rows: pd.DataFrame, values: np.ndarray | None = None) -> np.ndarray:
        """Sums of values of detail rows, per interval; without values of their nanoseconds."""
        values = rows["ns"].to_numpy() if values is None else values
        out = np.zeros(self.count, dtype=values.dtype)
        np.add.at(out, rows["interval"].to_numpy(), values)
        return out

    def _detail_ns(self, cause: str, names: str) -> np.ndarray:
        """Nanoseconds of the details of a cause whose text matches, per interval."""
        details = self.details
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
        waits = (self.column("kind") != "host") & (self.parts[:, CAUSES.index("sync")] > 0)
        for segments in self.lots(np.flatnonzero(waits)):
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
        rows = self.details[self.details["cause"] == "memcpy"]
        back = (rows["direction"] == "D2H") & rows["bytes"].between(1, ITEM_BYTES)
        item = self.per_interval(rows[back]) > 0
        # for copies of pageable memory the host waits anyway
        pageable = (rows["memory"] == "pageable") & (rows["bytes"] > ITEM_BYTES)
        copies = self.per_interval(rows[pageable]) > 0
        hosted[copies], total[copies & ~item] = 0, 0
        return Synchronised(total, hosted, item)

    def lots(self, numbers: np.ndarray) -> Iterator[Segments]:
        """Segments of many intervals, a bounded number at a time."""
        length = np.cumsum(self.column("operations")[numbers] + 1)
        cuts = np.flatnonzero(np.diff(length // MOST_OPERATIONS)) + 1
        yield from (self.segments_of(lot) for lot in np.split(numbers, cuts) if len(lot))

    def once(self, numbers: np.ndarray, ns: np.ndarray) -> int:
        """The sum over intervals in which no time counts twice: of intervals of one process and
        device that overlap (nested ranges, several streams), only the one with most is added."""
        columns = ["pid", "device", "start_ns", "end_ns", "error_ns"]
        rows = self.intervals[columns].iloc[numbers].assign(ns=ns)
        rows = rows.sort_values(columns[:3], kind="stable")
        start, end, error = (rows[c] for c in columns[2:])
        reach = rows.groupby(columns[:2], sort=False)["end_ns"].cummax().shift(fill_value=0)
        slack = np.minimum(2 * error + 1_000, end - start)  # neighbours that share a record touch
        apart = ~rows.duplicated(columns[:2]) | (start + slack >= reach)
        return int(rows["ns"].groupby(apart.cumsum()).max().sum())


class Synchronised(NamedTuple):
    """Arrays over all intervals."""

    idle: np.ndarray  # because of synchronisations, ns, at most
    hosted: np.ndarray  # of that the host's own code and calls: rules about the host leave it out
    item: np.ndarray  # whether a result of a few bytes is read back


class Chosen:
    """Some intervals by their numbers, or one: what is asked is an array over them, or its value."""

    def __init__(self, facts: Facts, numbers: np.ndarray | int) -> None:
        self.facts, self.numbers = facts, numbers
        self.kind, self.elapsed = self.column("kind"), self.column("elapsed_ns")
        self.operations = self.column("operations")
        self.kernel = self.column("kernel_only_upper_ns")  # and graphs that are one row

    def column(self, name: str) -> Any:
        """Of `frames.INTERVALS`."""
        values = self.facts.column(name)[self.numbers]
        return values.item() if isinstance(values, np.generic) else values

    def ns(self, *causes: str, named: str = "") -> Any:
        """Nanoseconds of the causes; of one cause also of details whose text matches."""
        if named:
            return self.facts.detail_ns(*causes, named)[self.numbers]
        return sum(self.facts.parts[self.numbers, CAUSES.index(cause)] for cause in causes)


class Label(Chosen):
    """One label: arrays over its intervals, in time (by process), and the interval of its row."""

    def __init__(self, facts: Facts, row: Any, numbers: np.ndarray) -> None:
        """`row`: of `frames.LABELS`."""
        super().__init__(facts, numbers)
        self.name, self.site, self.median_ns = str(row.label), str(row.site), row.median_ns
        self.who, self.count = subject(self.name), len(numbers)  # as titles name it
        self.row = Interval(self, int(np.flatnonzero(numbers == row.row_interval)[0]))
        self.whole = np.maximum(self.elapsed, 1)  # what shares are of
        self.on_stream = self.kind != "host"  # not a host timer

    def case(self, has: np.ndarray, *, at_least: float = TYPICAL_SHARE) -> Interval | None:
        """If at least this share of the intervals has a property, and one of them: the interval
        whose numbers are quoted, which is the label's row if that has it."""
        if not has.any() or has.sum() < at_least * self.count:
            return None
        at = self.row.at
        if not has[at]:  # the one in the middle
            some = np.flatnonzero(has)
            order = np.lexsort((self.numbers[some], self.elapsed[some]))
            at = int(some[order[(len(some) - 1) // 2]])
        return Interval(self, at, has)

    def finding(
        self,
        severity: str,
        title: str,
        *advice: str,
        loss: np.ndarray | None = None,
        of: np.ndarray | slice = slice(None),
        row: int = -1,
        about_row: bool = False,
        **evidence: Any,
    ) -> Finding:
        """A finding about the label.  `advice`: as in `Advice`; `loss`: ns of each of its intervals;
        `of`: which of them it concerns; `row`: the number of the one whose numbers it states."""
        loss = None if loss is None else np.maximum(loss[of], 0)
        return Finding(
            severity, self.name, title, evidence, Advice(*advice), self.site, self.numbers[of], loss,
            interval=row, about_row=about_row,
        )  # fmt: skip


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
    cpu_ns: int  # the CPU's own code and calls, but for synchronisations


class Interval(Chosen):
    """One interval of a label, at this position in its arrays; `has`: the mask of the label's
    intervals whose common property it shows."""

    def __init__(self, label: Label, at: int, has: np.ndarray | None = None) -> None:
        self.number = int(label.numbers[at])
        super().__init__(label.facts, self.number)
        self.label, self.at, self.has = label, at, has
        self.name = str(self.column("name"))
        self.others_worked = OTHERS_WORKED in self.column("flags")

    def details(self, cause: str, names: str = "") -> list[Detail]:
        """Rows of `details` whose text matches, the longest first."""
        table = self.facts.details
        numbers = table["interval"].to_numpy()
        table = table.iloc[slice(*np.searchsorted(numbers, [self.number, self.number + 1]))]
        table = table[table["cause"] == cause]
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
        """In time; none of an interval with more than MOST_OPERATIONS.  Those of the labels' rows
        are read together: one by one, a thousand labels would take longer than all else."""
        read, facts = self.facts.read, self.facts
        if self.number not in read:
            rows = [] if read else [label.row.number for label in facts.labels]
            numbers = np.unique([self.number, *rows])
            read |= {number: [] for number in numbers.tolist()}
            for lot in facts.lots(numbers[facts.column("operations")[numbers] <= MOST_OPERATIONS]):
                words = lot.words(np.arange(len(lot.ns)))
                columns = (lot.interval, lot.cause, lot.ns, lot.ref_id, words)
                for number, cause, *rest in zip(*(c.tolist() for c in columns), strict=True):
                    read[number].append(Segment(CAUSES[cause], *rest))
        return read[self.number]

    @property
    def stretches(self) -> list[Stretch]:
        """Idle stretches, in time."""
        out, before, pieces = list[Stretch](), None, list[Segment]()
        for segment in [*self.segments, None]:
            if segment and segment.cause not in OPERATION_KINDS:
                pieces.append(segment)
                continue
            if pieces:
                cpu_ns = sum(p.ns for p in pieces if p.cause in ("host", "api", "api_launch"))
                out.append(Stretch(before, pieces, segment, cpu_ns))
            before, pieces = segment, []
        return out

    def finding(self, severity: str, title: str, *advice: str, **more: Any) -> Finding:
        """See `Label.finding`; how often it was seen is evidence, unless that is always."""
        has = np.ones(self.label.count, bool) if self.has is None else self.has
        seen_in = None if has.all() else f"{has.sum()} of {self.label.count}"
        own = {"of": has, "row": self.number, "about_row": True, "elapsed_ns": self.elapsed}
        return self.label.finding(severity, title, *advice, **own | {"seen_in": seen_in} | more)
