"""What rules read: an analysis with its labels and groups, and the segments of single intervals.

Arrays are over the measured intervals, whose numbers are their positions.  Segments become objects
only for the typical interval of a group, and for those of up to MOST_OPERATIONS operations.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nsysalign.causes import CAUSES
from nsysalign.explain.same_kernel import Elsewhere, quicker_elsewhere
from nsysalign.intervals import FAR
from nsysalign.label import Group, Label
from nsysalign.model import LASTING_ERRORS, OPERATION_KINDS, Evidence
from nsysalign.split.pieces import Segments

#: A label has a property when at least this share of its intervals has it.
TYPICAL_SHARE = 0.5
#: From this share of an interval on, the interval is not what the reader thinks: a warning.
WARN_SHARE = 0.20
#: Segments become objects only in intervals of at most this many operations, about so many at a time.
MOST_OPERATIONS = 50_000
#: Operations that run for longer than this are not small; PCIe 5 with 16 lanes.
SMALL_NS, BUS_BYTES_PER_NS = 20_000, 64.0
#: Calls that allocate or free memory; that launch graphs.
ALLOCATES = re.compile(
    r"cu(da)?(Malloc|Free|Mem(Alloc|Free|Host|Create|Release|Map|Unmap|AddressReserve|AddressFree|SetAccess)"
    r"|Host(Alloc|Register|Unregister))"
)
GRAPH_LAUNCH = r"^cu(?:da)?GraphLaunch"
#: Calls that launch kernels or graphs; that copy.
LAUNCHES, COPIES = re.compile(r"^cu(da)?(Graph)?Launch"), re.compile(r"^cu(da)?Memcpy")

#: Kernels and ranges that only torch's own code makes.
_TORCH = re.compile(
    r"\bat::|at_cuda_detail|\bc10::|^aten::|triton_(poi|red|per|tem)_|autograd::|^FSDP::|DistributedDataParallel"
)
#: Kernels of CuPy's and numba's: a program with these and none of torch's may import torch, and times none
#: of it.
_NUMBA = (
    r"\bcudapy\b|6cudapy|\[abi:v\d+\]|B2v\d+B\d+c\w"  # its signature is in the name, as an ABI tag
)
_OF_OTHERS, _OF_NUMBA = re.compile(rf"^cupy_|{_NUMBA}"), re.compile(_NUMBA)

#: Kernels by which a program's library is known, where it is not torch: XLA calls what one instruction became
#: "wrapped", and several of them a "fusion".
_LIBRARIES = {
    "cupy": re.compile(r"^cupy_"),
    "numba": re.compile(_NUMBA),
    "jax": re.compile(
        r"^wrapped_[a-z]|^(?:(?:loop|input|gemm|transpose|reduce)_)?(?:\w+_)?fusion(?:_\d+)*$"
    ),
}
#: The time of a record that two intervals share may be known to this only, besides the error bar at either side.
_RECORD_NS = 1_000
#: A copy from so many bytes on shows how fast its memory can be copied.
_LARGE_BYTES = 1 << 20

#: What calls return when the program ends and the driver is gone already: no error; what a
#: synchronisation returns before there is a context, that is anything to wait for.
_SHUT_DOWN, _NO_CONTEXT = 4, 201


def details_of(evidence: Evidence, numbers: np.ndarray, cause: str) -> pd.DataFrame:
    """Return the rows of `frames.DETAILS` of one cause in these intervals."""
    table = evidence.details
    table = table[table["cause"] == cause]
    return table[table["interval"].isin(numbers)]


def nothing_timed_is_seen(evidence: Evidence) -> bool:
    """Return whether our own recorder was in the program and no log is beside it: what the program timed, if it did, is not
    known.
    """
    return evidence.trace.recorder == "cupti" and not (
        evidence.known.torch or evidence.known.python
    )


def of_torch(kernel: str) -> bool:
    """Whether only torch has this kernel."""
    return bool(_TORCH.search(kernel))


def of_others(kernel: str) -> bool:
    """Whether it is a kernel of CuPy's or numba's."""
    return bool(_OF_OTHERS.search(kernel))


def ran_torch(evidence: Evidence) -> bool:
    """Whether kernels ran that only torch has."""
    return any(map(_TORCH.search, pd.unique(evidence.kernels["kernel"].astype(str)).tolist()))


def of_numba(kernel: str) -> bool:
    """Whether it is a kernel of numba's."""
    return bool(_OF_NUMBA.search(kernel))


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


def _append_joined(segments: list[Segment], segment: Segment) -> None:
    """Append a segment; one outside CUDA becomes one with such a segment before it, as a range that begins or ends does
    not interrupt the CPU.

    ranges     [ load ][ sleep ]
    host       [  2   ][   3   ]  ->  [     5      ]  with what the longer one points to
    """
    last = segments[-1] if segments else None
    if last is None or not (last.cause == segment.cause == "host"):
        segments.append(segment)
        return
    longer = max(last, segment, key=lambda part: part.ns)
    segments[-1] = longer._replace(ns=last.ns + segment.ns)


def failures(evidence: Evidence) -> list[tuple[str, int, int]]:
    """Return the calls that failed: (name of the call, error code, how often it failed)."""
    return [
        (call, code, count)
        for call, code, count in evidence.trace.failed_calls
        if code != _SHUT_DOWN and not (code == _NO_CONTEXT and "Synchronize" in call)
    ]


def only_copies_failed(evidence: Evidence) -> bool:
    """Return whether calls failed, and all of them are copies after which the program goes on: its other work ran."""
    failed = failures(evidence)
    return bool(failed) and all(
        COPIES.search(call) and code not in LASTING_ERRORS for call, code, _ in failed
    )


class Facts:
    """An analysis as its rules see it.

    analysis:     the analysis
    intervals:    `frames.INTERVALS` of its measured intervals, all but runs; their numbers are their positions
    count:        how many these are
    column(name): a column of these as an array
    labels:       the labels; none if it is not known what ran in them, as the trace has no rows of GPU work
    failed_calls: (name of the call, error code, how often it failed)
    run_rows:     rows of `frames.INTERVALS`: the runs of whole devices about which findings may say something
    python:       whether the program is a Python program
    torch:        whether it uses torch
    library:      torch, cupy, numba or jax; '' where that is not known
    """

    def __init__(self, evidence: Evidence, segments_of: Callable[[np.ndarray], Segments]) -> None:
        """`segments_of`: numbers of intervals, rising -> their segments, read from the trace."""
        self.analysis = evidence
        self.intervals = evidence.measured
        self.count = len(self.intervals)
        self.column = cache(lambda name: self.intervals[name].to_numpy())
        self._segments_of = segments_of
        work_is_known = not evidence.known.issuing_without_work
        self.labels: tuple[Label, ...] = evidence.grouped if work_is_known else ()
        self._segments: dict[int, list[Segment]] = {}
        # neither a call after the driver is gone nor a synchronisation before there is a context is a failure
        self.failed_calls = failures(evidence)
        self.run_rows: list[Any] = self._run_rows()
        self._torch_is_recorded = bool(evidence.known.torch) or evidence.trace.recorder == "kineto"
        self.python = self._torch_is_recorded or bool(evidence.known.python)
        self.torch = self._uses_torch()
        self.library = "torch" if self.torch else self._other_library()

    def _run_rows(self) -> list[Any]:
        """Return the runs of whole devices as rows of `frames.INTERVALS`; none if the program measured what it
        wanted to know, if calls other than copies failed, or if rows were removed from the trace."""
        evidence = self.analysis
        program_timed = (self.column("method") != "inferred") & (self.column("kind") != "nvtx")
        if program_timed.any() or (self.failed_calls and not only_copies_failed(evidence)):
            return []
        if len(evidence.unaligned) or evidence.trace.thinned:
            return []
        # the runs of a device's streams come behind that of the device
        return list(evidence.runs.drop_duplicates(["pid", "device"]).itertuples())

    def _uses_torch(self) -> bool:
        """Return whether the program uses torch: the trace is torch.profiler's, or kernels or ranges have names that only
        torch's code makes; or its log names torch, and no other library for GPUs or no kernels are known.

        The log names what is imported, and CuPy and numba import torch without using it.  A program of CuPy's may run
        kernels of cuBLAS or cuFFT alone, as a loop of torch's over one matrix product does.
        """
        evidence = self.analysis
        texts = pd.concat([evidence.kernels["kernel"], evidence.labels["label"]])
        if evidence.trace.recorder == "kineto" or any(
            map(_TORCH.search, pd.unique(texts.astype(str)))
        ):
            return True
        if evidence.known.torch_is_alone and not self._other_library():  # none imported later
            return True
        return bool(evidence.known.torch) and not (evidence.kernels["kind"] == "kernel").any()

    def _other_library(self) -> str:
        """Return the library whose kernels ran, '' for none of _LIBRARIES."""
        names = pd.unique(self.analysis.kernels["kernel"].astype(str)).tolist()
        for library, pattern in _LIBRARIES.items():
            if any(map(pattern.search, names)):
                return library
        return ""

    def pinned_rate(self, direction: str) -> float:
        """Return how fast pinned memory was copied in this direction (bytes per ns), at best; 0 where no large copy of
        the run shows it."""
        return self._pinned_rates.get(direction, 0.0)

    @cached_property
    def _pinned_rates(self) -> dict[str, float]:
        """direction -> the same, of those that have one."""
        rows = self.analysis.details
        rows = rows[(rows["cause"] == "memcpy") & (rows["memory"] == "pinned")]
        rows = rows[rows["bytes"] >= _LARGE_BYTES]
        rates = rows.groupby("direction", observed=True)["bandwidth_gb_s"].max().dropna()
        return dict(zip(rates.index.tolist(), rates.tolist(), strict=True))

    @cached_property
    def outside_in_timers(self) -> dict[str, int]:
        """What the CPU was in, such as a range -> for how long (ns) it was outside CUDA there in all timings of one host
        timer, of the one in which that is longest."""
        longest = Counter[str]()
        for label in self.labels:
            entries = [e for g in label.groups for e in g.of_cause("host") if label.kind == "host"]
            of_label = Counter[str]()
            for entry in entries:
                of_label[entry.what] += entry.ns
            longest |= of_label
        return longest

    @property
    def label_of_interval(self) -> np.ndarray:
        """Per interval, the position of its label in `labels`, -1 for one that is not among them."""
        names = pd.Index([label.name for label in self.labels], dtype=object)
        return names.get_indexer(pd.Index(self.column("label").astype(object)))

    @cached_property
    def quicker_elsewhere(self) -> Mapping[int, Elsewhere]:
        """As `same_kernel.quicker_elsewhere`."""
        return quicker_elsewhere(self.analysis)

    def in_order(self, numbers: np.ndarray) -> np.ndarray:
        """Return these intervals in the order of time."""
        return numbers[np.argsort(self.column("start_ns")[numbers], kind="stable")]

    def details(self, numbers: np.ndarray, cause: str) -> pd.DataFrame:
        """As `details_of`."""
        return details_of(self.analysis, numbers, cause)

    def others(self, numbers: np.ndarray) -> Mapping[int, int]:
        """Return stream -> how long (ns) it worked, over these intervals, on what was launched inside them; for
        streams other than their own, the busiest first."""
        table = self.analysis.other_streams
        rows = table[table["interval"].isin(numbers)]
        if rows.empty:
            return {}
        sums = rows.groupby("stream")["ns"].sum()
        by_time = sums.sort_values(ascending=False)
        return {int(stream): int(ns) for stream, ns in by_time.items()}

    def flagged(self, numbers: np.ndarray, flag: str) -> float:
        """Return the share (0 to 1) of these intervals that have a flag."""
        flags_of = self.column("flags")
        return sum(flag in flags_of[n] for n in numbers.tolist()) / max(len(numbers), 1)

    def read(self, groups: Iterable[Group]) -> None:
        """Read the segments of the typical intervals of these groups, and keep them for `segments`."""
        self._read(np.unique(np.array([group.typical for group in groups], np.int64)))

    def _read(self, numbers: np.ndarray) -> None:
        """Read the segments of these intervals, whose numbers rise, in batches.

        One by one, a thousand labels would take longer than all other steps together.  Intervals with more
        than MOST_OPERATIONS operations are not read: they keep an empty list.
        """
        for number in numbers.tolist():
            self._segments[number] = []  # also of one that was read before: it is read again
        operations = self.column("operations")[numbers]
        is_small = operations <= MOST_OPERATIONS
        numbers = numbers[is_small]
        operations = operations[is_small]
        if not len(numbers):
            return
        # a batch holds about as many operations as one interval may have; one without any takes room, too
        batch_of_interval = np.cumsum(operations + 1) // MOST_OPERATIONS
        ends = np.flatnonzero(np.diff(batch_of_interval)) + 1
        for batch in np.split(numbers, ends):
            segments = self._segments_of(batch)
            texts = segments.words(np.arange(len(segments.ns)))
            rows = zip(
                segments.interval.tolist(),
                segments.cause.tolist(),
                segments.ns.tolist(),
                segments.ref_id.tolist(),
                texts.tolist(),
                strict=True,
            )
            for number, cause, ns, ref, text in rows:
                segment = Segment(CAUSES[cause], ns, ref, text)
                _append_joined(self._segments[number], segment)

    def segments(self, group: Group) -> list[Segment]:
        """Return the segments of a group's typical interval, in the order of time."""
        if group.typical not in self._segments:
            self.read([group])
        return self._segments[group.typical]

    def segments_of_some(self, group: Group, limit: int) -> list[list[Segment]]:
        """Return the segments of a group's intervals, of so many at most, spread over all of them."""
        places = np.linspace(0, group.count - 1, min(limit, group.count)).astype(int)
        numbers = group.intervals[places]
        self._read(numbers)
        return [self._segments[number] for number in numbers.tolist()]

    def stretches(self, group: Group) -> list[Stretch]:
        """Return the idle stretches of a group's typical interval, in the order of time."""
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
        """Return the sum over intervals of a time that each has, in which no time counts twice: of intervals that
        overlap on one device (nested ranges, several streams), directly or by others between them, only the largest time
        counts.

        numbers: the intervals
        ns:      the time of each (ns)

        interval 1   [ 10 ns         ]          [ 7 ns ]       10 + 7, without the 4 of interval 2
        interval 2       [ 4 ns  ]
        """
        columns = ["pid", "device", "start_ns", "end_ns", "error_ns"]
        on_device = ["pid", "device"]
        rows = self.intervals[columns].iloc[numbers].assign(ns=ns)
        rows = rows.sort_values([*on_device, "start_ns"], kind="stable")
        rows["latest_end_ns"] = rows.groupby(on_device, sort=False)["end_ns"].cummax()
        # of all intervals of the device that begin before it; far back for the first one
        latest_end_ns = rows.groupby(on_device, sort=False)["latest_end_ns"]
        end_before_ns = latest_end_ns.shift(fill_value=-FAR)
        # Neighbours that share a record touch, and by their error bars they may overlap by a little: that is no overlap.
        # A short interval inside a long one must not seem to begin after it: no more than its length is forgiven.
        length_ns = rows["end_ns"] - rows["start_ns"]
        forgiven_ns = np.minimum(2 * rows["error_ns"] + _RECORD_NS, length_ns)
        begins_apart = rows["start_ns"] + forgiven_ns >= end_before_ns
        overlapping = begins_apart.cumsum()  # the same number for intervals that overlap
        return int(rows["ns"].groupby(overlapping).max().sum())
