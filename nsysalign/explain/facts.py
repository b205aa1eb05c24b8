"""What rules read: an analysis with its labels and groups, and the segments of single intervals.

Arrays are over the measured intervals, whose numbers are their positions.  Segments become objects
only for the typical interval of a group, and for those of up to MOST_OPERATIONS operations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nsysalign.causes import CAUSES
from nsysalign.label import Group, Label
from nsysalign.model import OPERATION_KINDS, Evidence
from nsysalign.split.pieces import Segments

#: A label has a property when at least this share of its intervals has it.
TYPICAL_SHARE = 0.5
#: From this share of an interval on, the interval is not what the reader thinks: a warning.
WARN_SHARE = 0.20
#: Segments become objects only in intervals of at most this many operations.
MOST_OPERATIONS = 50_000
#: Operations that run for longer than this are not small; PCIe 5 with 16 lanes.
SMALL_NS, BUS_BYTES_PER_NS = 20_000, 64.0
#: Calls that allocate or free memory; that launch graphs.
ALLOCATION_CALLS = (
    r"^cu(da)?(Malloc|Free|Mem(Alloc|Free|Host|Create|Release|Map|Unmap|AddressReserve|AddressFree|SetAccess)"
    r"|Host(Alloc|Register|Unregister))"
)
GRAPH_LAUNCH = r"^cu(?:da)?GraphLaunch"

#: Kernels and ranges that only torch's own code makes.
_TORCH = re.compile(
    r"\bat::|at_cuda_detail|\bc10::|^aten::|triton_(poi|red|per|tem)_|autograd::|^FSDP::|DistributedDataParallel"
)
#: Kernels of CuPy's and numba's: a program with these and none of torch's may import torch, and times none
#: of it.
_OF_OTHERS = re.compile(r"^cupy_|\bcudapy\b|6cudapy")

#: What calls return when the program ends and the driver is gone already: no error; what a
#: synchronisation returns before there is a context, that is anything to wait for.
_SHUT_DOWN, _NO_CONTEXT = 4, 201


def nothing_timed_is_seen(evidence: Evidence) -> bool:
    """Whether our own recorder was in the program and no log is beside it: what the program timed, if it did,
    is not known."""
    return evidence.trace.recorder == "cupti" and not (
        evidence.known.torch or evidence.known.python
    )


def of_torch(kernel: str) -> bool:
    """Whether only torch has this kernel."""
    return bool(_TORCH.search(kernel))


def ran_torch(evidence: Evidence) -> bool:
    """Whether kernels ran that only torch has."""
    return any(map(_TORCH.search, pd.unique(evidence.kernels["kernel"].astype(str)).tolist()))


class Segment(NamedTuple):
    """A piece of an interval with one cause."""

    cause: str
    ns: int
    ref: int  # rowid of what it is in nsys's tables
    text: str


class Stretch(NamedTuple):
    """The idle segments between two operations, which are None at the ends of the interval."""

    before: Segment | None
    pieces: list[Segment]
    then: Segment | None


class Facts:
    """An analysis as its rules see it."""

    def __init__(self, evidence: Evidence, segments_of: Callable[[np.ndarray], Segments]) -> None:
        """`segments_of`: segments of intervals (rising numbers)."""
        self.analysis, self.intervals = evidence, evidence.measured
        self.segments_of, self.count = segments_of, len(self.intervals)
        self.column = cache(lambda name: self.intervals[name].to_numpy())
        # without rows of GPU work it is not known what ran in them
        known = not evidence.known.issuing_without_work
        self.labels: tuple[Label, ...] = evidence.grouped if known else ()
        self._segments: dict[int, list[Segment]] = {}
        self.failed_calls = [  # (call, code, how often)
            row
            for row in evidence.trace.failed_calls
            if row[1] != _SHUT_DOWN and not (row[1] == _NO_CONTEXT and "Synchronize" in row[0])
        ]
        # the program measured what it wanted to know, or its calls failed: nothing is said of runs
        timed = (self.column("method") != "inferred") & (self.column("kind") != "nvtx")
        silent = timed.any() or self.failed_calls or not evidence.unaligned.empty
        silent = silent or bool(evidence.trace.thinned)
        runs = evidence.runs.drop_duplicates(["pid", "device"])  # those of streams come behind
        #: Rows of `frames.INTERVALS`; `findings.diagnose` makes a `Run` of each.
        self.runs: list[Any] = [] if silent else list(runs.itertuples())
        by_torch = evidence.trace.recorder == "kineto"
        self.python = bool(evidence.known.python or evidence.known.torch or by_torch)
        # the program is torch's: its log says so, or kernels or ranges of torch's are there; of a
        # trace with neither a log nor kernels it is assumed.  CuPy and numba have logs, too.
        kernels, table = evidence.kernels, evidence.labels
        names = pd.unique(pd.concat([kernels["kernel"], table["label"]]).astype(str)).tolist()
        assumed = kernels.empty and not evidence.known.python
        by_torch = by_torch or bool(evidence.known.torch) or assumed
        by_others = any(map(_OF_OTHERS.search, names))
        self.torch = any(map(_TORCH.search, names)) or (by_torch and not by_others)

    @property
    def label(self) -> np.ndarray:
        """Which of `labels` each interval has."""
        names = pd.Index([label.name for label in self.labels], dtype=object)
        return names.get_indexer(pd.Index(self.column("label").astype(object)))

    def details(self, numbers: np.ndarray, cause: str) -> pd.DataFrame:
        """Rows of `details` of a cause, of these intervals."""
        table = self.analysis.details
        table = table[table["cause"] == cause]
        return table[table["interval"].isin(numbers)]

    def others(self, numbers: np.ndarray) -> Mapping[int, int]:
        """How long (ns, over these intervals) other streams ran what was launched inside them, the
        busiest first."""
        table = self.analysis.other_streams
        sums = table[table["interval"].isin(numbers)].groupby("stream")["ns"].sum()
        return {int(s): int(ns) for s, ns in sums.sort_values(ascending=False).items()}

    def flagged(self, numbers: np.ndarray, *flags: str) -> float:
        """The share of these intervals that have one of the flags."""
        wanted, column = set(flags), self.column("flags")
        return sum(not wanted.isdisjoint(column[n]) for n in numbers.tolist()) / max(
            len(numbers), 1
        )

    def read(self, groups: Iterator[Group]) -> None:
        """Read the segments of the typical intervals of these groups, many at a time.

        One by one, a thousand labels would take longer than all other steps together.
        """
        numbers = np.unique(np.array([group.typical for group in groups], np.int64))
        self._segments |= {number: [] for number in numbers.tolist()}
        operations = self.column("operations")[numbers]
        numbers, operations = (
            numbers[operations <= MOST_OPERATIONS],
            operations[operations <= MOST_OPERATIONS],
        )
        cuts = np.flatnonzero(np.diff(np.cumsum(operations + 1) // MOST_OPERATIONS)) + 1
        for lot in np.split(numbers, cuts):
            if not len(lot):
                continue
            read = self.segments_of(lot)
            words = read.words(np.arange(len(read.ns)))
            columns = (read.interval, read.cause, read.ns, read.ref_id, words)
            for number, cause, *rest in zip(*(c.tolist() for c in columns), strict=True):
                self._segments[number].append(Segment(CAUSES[cause], *rest))

    def segments(self, group: Group) -> list[Segment]:
        """Of a group's typical interval, in time."""
        if group.typical not in self._segments:
            self.read(iter([group]))
        return self._segments[group.typical]

    def stretches(self, group: Group) -> list[Stretch]:
        """Idle stretches of a group's typical interval, in time."""
        out, before, pieces = list[Stretch](), None, list[Segment]()
        for segment in [*self.segments(group), None]:
            if segment and segment.cause not in OPERATION_KINDS:
                pieces.append(segment)
                continue
            if pieces:
                out.append(Stretch(before, pieces, segment))
            before, pieces = segment, []
        return out

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
