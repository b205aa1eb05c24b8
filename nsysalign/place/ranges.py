"""NVTX ranges: the windows of kind `nvtx`, and the work that nsysalign itself did in the program's process,
which is counted nowhere.

range   a stretch of a thread that the program or a library named by NVTX
lane    the number of a stream in this analysis; here also the number of a set of streams
span    from the start of the first to the end of the last operation that was launched inside a range,
        on one lane
window  a stretch of the trace that is an interval of the analysis

    thread   [ nsysalign:calibration          ]     [ step                       ]
               [launch] [record] [synchronise]        [launch]   [launch]
    GPU             spin_kernel                             AAAAAAAA  BBBB
                    left out                                [--------------------)   window
    another stream                                                      CCCCCCCCCC

This module tells which work in the trace is the program's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import MOST_NESTED, any_open, group, least, ragged, too_deep
from nsysalign.model import LOST_ROWS, MOST_STREAMS, ORIGIN, OURS, Alignment, Trace
from nsysalign.text import plural

#: Ranges that libraries open around their own work: CUB and Thrust (the domain CCCL), NCCL, cuDNN,
#: cuBLAS, cuSOLVER; torch's operators, their backward passes, FSDP and DDP; pyprof's descriptions of calls.
_OF_LIBRARIES = re.compile(
    r"(cub|thrust|aten|c10d|autograd|torch|prims|nccl|record_param_comms|FSDP|DistributedDataParallel)::?|nccl[A-Z]"
    r"|cu(dnn|blas|solver|sparse|fft)[A-Z_]|\w+Backward\d\b|DistributedDataParallel\.|Optimizer\.|\{'mod':"
    r"|(Xla[A-Z]\w*|Thunk):#|enumerate\(DataLoader\)|## Call CompiledFxGraph|PyTorch Profiler|ProfilerStep\b"
)
#: So many ranges of a name, and so many of them with calls, tell what the others should hold.
_SOME_RANGES = 3
#: The number of the name that the tool's own stretches have among the names of the trace.
_NAME = -2


class RangeWindows(NamedTuple):
    """The windows of ranges, and the lanes that they lie on."""

    windows: pd.DataFrame  # frames.WINDOWS
    notes: list[str]
    #: frames.LANES, with one more lane for each set of streams on which a range has work
    lanes: pd.DataFrame
    stream_sets: Mapping[int, np.ndarray]  # each such lane -> the lanes of its streams


def nvtx_windows(trace: Trace, operation_lane: np.ndarray, lanes: pd.DataFrame) -> RangeWindows:
    """Return a window (measured interval) for each NVTX range and each device on which work that was launched inside the
    range ran: from the start of the first to the end of the last such operation, on any stream of the device.

    thread     [ range "step": launch A, launch B ]
    stream 7            [A    )
    stream 13                          [B      )
    window              [                      )      called "step"

    operation_lane: per operation of the trace, its lane
    lanes: frames.LANES; the result has them with a further one for each set of streams on which a range has work

    A range that lies inside MOST_NESTED others or more has no window, and a note says how many do.
    """
    ranges = trace.ranges
    spans = spans_of_ranges(trace, operation_lane)
    spans, notes_on_damaged = _without_damaged(trace, spans)
    spans, notes = _without_deep(trace, spans)
    notes += notes_on_damaged
    # now one per range and device
    spans, all_lanes, stream_sets = _joined_over_streams(spans, lanes)
    row = spans["range"].to_numpy()  # of the range
    lane = spans["lane"].to_numpy()
    start, end = spans["start"].to_numpy(), spans["end"].to_numpy()
    thread = ranges["thread"].to_numpy()[row]
    closed = ranges["end_ns"].to_numpy()[row]
    texts = ranges["text"].to_numpy()[row]
    columns = {
        "kind": "nvtx",
        "origin": ORIGIN["range"],
        "source": ranges["row"].to_numpy()[row],
        "process": ranges["process"].to_numpy()[row],
        "thread": thread,
        "end_thread": thread,
        "start_lane": lane,
        "end_lane": lane,
        "open_ns": ranges["start_ns"].to_numpy()[row],
        "close_ns": closed,
        "close_end_ns": closed,
        "elapsed_ns": end - start,
        "start_ns": start,
        "end_ns": end,
        "start_lower_ns": start,
        "start_upper_ns": start,
        "error_ns": 0,
        "method": "exact",
        "library": [of_library(text) for text in texts],
        "region": _regions(texts, spans, all_lanes),
    }
    windows = frames.lean(columns, frames.WINDOWS, len(spans))
    return RangeWindows(windows, notes, all_lanes, stream_sets)


def _without_damaged(trace: Trace, spans: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return (the spans without those of ranges that lack a part of their work, as rows were lost; a note on how many are
    whole if there are any such).

    spans: a row per range and stream, as `spans_of_ranges` returns them

    Rows were lost in a process if its ranges go on without any CUDA call.  The rows of a thread may end before those of
    others: ranges of its process that end behind its last call are not whole.

    ranges           [step ][step ][step ][step ][step ][step ][step ][step ]
    calls                cc     cc     cc     cc     cc
    other thread's        bb     bb     b     two are whole
    """
    calls, ranges = trace.calls, trace.ranges
    end = ranges["end_ns"].to_numpy()
    damaged = np.zeros(len(ranges), bool)
    notes = []
    for process, rows in group(
        ranges["process"].to_numpy(), np.flatnonzero(trace.program_ranges)
    ).items():
        of_process = calls[calls["process"] == process]
        if not len(of_process) or not repeated_without(ranges.iloc[rows], of_process):
            continue
        of_threads = [of_thread for _, of_thread in of_process.groupby("thread")]
        lost = {
            int(of_thread["end_ns"].max()): name
            for of_thread in of_threads
            if (name := repeated_without(ranges.iloc[rows], of_thread))
        }
        if not lost:  # no thread alone is missed: several shared the work of a range
            continue
        whole_until_ns = min(lost)
        damaged[rows] = end[rows] > whole_until_ns
        name = lost[whole_until_ns]
        named = rows[ranges["text"].to_numpy()[rows] == name]
        whole = int((~damaged[named]).sum())
        notes.append(
            f"{LOST_ROWS}{whole:,} of {plural(len(named), 'range')} {name} are whole; the others have no interval"
        )
    return spans[~damaged[spans["range"].to_numpy()]], notes


def repeated_without(ranges: pd.DataFrame, calls: pd.DataFrame) -> str:
    """Return the name of which most ranges go on behind these calls, though most earlier ones hold some of them; '' for
    none.

    ranges, calls: rows of `frames.RANGES` and `frames.CALLS` of one process
    """
    last_ns = calls["end_ns"].max()
    call_ns = calls["start_ns"].to_numpy()  # rising
    earlier = ranges["start_ns"].to_numpy() <= last_ns
    before = np.searchsorted(call_ns, ranges["start_ns"])
    holds = np.searchsorted(call_ns, ranges["end_ns"]) > before
    columns = {"holds": holds, "earlier": earlier, "later": ~earlier}
    count = pd.DataFrame(columns).groupby(ranges["text"].to_numpy()).sum()
    enough = (count["later"] >= _SOME_RANGES) & (count["holds"] >= _SOME_RANGES)
    lacking = count[enough & (2 * count["holds"] >= count["earlier"])]
    return str(lacking["later"].idxmax()) if len(lacking) else ""


def _without_deep(trace: Trace, spans: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return (the spans without those of ranges inside MOST_NESTED other ranges of their thread, or more; a note
    on these if there are any).

    spans: a row per range and stream, as `spans_of_ranges` returns them
    """
    rows = np.unique(spans["range"])  # ranges with work
    is_deep = too_deep(
        owner=trace.ranges["thread"].to_numpy()[rows],
        start=trace.ranges["start_ns"].to_numpy()[rows],
        end=trace.ranges["end_ns"].to_numpy()[rows],
    )
    if not is_deep.any():
        return spans, []
    note = (
        f"{int(is_deep.sum()):,} {trace.info.by.ranges} lie inside {MOST_NESTED} others of their thread, or more, "
        "and have no interval of their own"
    )
    return spans[~spans["range"].isin(rows[is_deep])], [note]


def _regions(texts: np.ndarray, spans: pd.DataFrame, lanes: pd.DataFrame) -> list[str]:
    """Return the name of each span.  If its range has spans on several devices, the name has the device:
    "name (GPU 1)#repetition".

    texts: per span, the text of its range
    """
    on_several_devices = spans["range"].duplicated(keep=False)
    lane = spans["lane"].to_numpy()
    device = lanes["device"].to_numpy()[lane].tolist()
    return [
        re.sub(r"(#\d+)?\Z", rf" (GPU {gpu})\1", text, count=1) if with_device else text
        for text, with_device, gpu in zip(texts, on_several_devices, device, strict=True)
    ]


def _joined_over_streams(
    spans: pd.DataFrame, lanes: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame, dict[int, np.ndarray]]:
    """Join the spans of a range on several streams of a device to one.  Returns (spans, lanes, stream_sets): a span for
    each range and device, from the first start to the last end (ns); and `lanes` and `stream_sets` as in
    `RangeWindows`, with a new lane for each set of streams.

    spans: a row per range and stream, as `spans_of_ranges` returns them

    range 5 on stream 7    [------)
    range 5 on stream 13       [-------)
    result                 [-----------)       on a lane that stands for the set {7, 13}
    """
    device = lanes["device"].to_numpy()
    by_device = spans.assign(device=device[spans["lane"].to_numpy()]).groupby(["range", "device"])
    joined_of_span = by_device.ngroup().to_numpy()  # the row in `joined` of each span
    joined = by_device.agg(start=("start", "min"), end=("end", "max"), lane=("lane", "first"))
    joined = joined.reset_index()
    # the rows of `joined` with several streams
    streams_of_joined = np.bincount(joined_of_span, minlength=len(joined))
    spread = np.flatnonzero(streams_of_joined > 1)
    if not len(spread):
        return joined, lanes, {}
    lane = joined["lane"].to_numpy().copy()
    set_of_spread, members = _sets_of_streams(spans, lanes, joined_of_span, spread, lane[spread])
    # the lanes of sets follow those of streams
    lane[spread] = len(lanes) + set_of_spread
    stream_sets = {
        len(lanes) + set_number: np.sort(streams) for set_number, streams in enumerate(members)
    }
    return joined.assign(lane=lane), _with_lanes(lanes, members), stream_sets


def _sets_of_streams(
    spans: pd.DataFrame,
    lanes: pd.DataFrame,
    joined_of_span: np.ndarray,
    spread: np.ndarray,
    first_lane: np.ndarray,
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the sets of streams on which ranges have work: (for each joined span with several streams, the number of its
    set; for each set, its streams, as lanes).  Spans on the same streams have the same set.

    spans: when a range had work on a stream, a row per range and stream
    joined_of_span: per row of these, the joined span that it is a part of: that of the range on all streams of a device
    spread: the joined spans with several streams
    first_lane: per such joined span, one of its lanes

    range 5 on the streams {7, 13}, range 6 on {7, 13}, range 9 on {7, 14}:      sets 0, 0, 1

    Only the MOST_STREAMS most frequent sets are sets of their own.  For all rarer ones of a process and device
    stands the set of all streams there on which ranges had work.
    """
    lane_of_span = spans["lane"].to_numpy()
    code = _code_of_sets(lane_of_span, joined_of_span, len(lanes))
    # per joined span the number of its set, -1 for a rare one; per set, which of `spread` is an example of it
    set_number, examples = _most_frequent(code[spread])
    members = [lane_of_span[joined_of_span == joined] for joined in spread[examples]]
    # all rare sets of a process and device are one more set: that of all streams on which ranges had work
    device, process = lanes["device"].to_numpy(), lanes["process"].to_numpy()
    worked_on = spans["lane"].unique()
    owners = pd.DataFrame({"process": process[first_lane], "device": device[first_lane]})
    for (owner, gpu), rows in owners[set_number < 0].groupby(["process", "device"]):
        set_number[rows.index] = len(members)
        members.append(worked_on[(process[worked_on] == owner) & (device[worked_on] == gpu)])
    return set_number, members


def _code_of_sets(
    lane_of_span: np.ndarray, joined_of_span: np.ndarray, lane_count: int
) -> np.ndarray:
    """Return, for each joined span, a number for the set of its lanes; equal sets have equal numbers.

    lane_of_span, joined_of_span: per span, its lane and the joined span that it is a part of

    The number is the sum of a random weight for each lane.  There may be millions of spans, which are too many to compare
    sets one by one; that two sets of a thousand have the same sum by accident has a chance of 1 in 500 million.  The weights
    are the same in each run.
    """
    weight = np.random.default_rng(1).integers(1 << 48, size=lane_count)
    code = np.zeros(joined_of_span.max() + 1, np.int64)
    np.add.at(code, joined_of_span, weight[lane_of_span])
    return code


def _with_lanes(lanes: pd.DataFrame, members: list[np.ndarray]) -> pd.DataFrame:
    """Return the lanes and after them one lane for each set of streams.

    members: for each set, the lanes of its streams
    """
    first = lanes.iloc[[streams[0] for streams in members]]
    added = pd.DataFrame(
        {
            "process": first["process"].to_numpy(),
            "device": first["device"].to_numpy(),
            "context": -2 - np.arange(len(members)),
            "stream": -1,
            "flag": -1,
        }
    )
    return frames.check(pd.concat([lanes, added], ignore_index=True), frames.LANES)


def _most_frequent(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (rank, examples).  `rank`: per code, its rank among the MOST_STREAMS most frequent codes, -1 if
    it is rarer; `examples`: for each rank, the position of one such code."""
    _, first, number, count = np.unique(
        codes, return_index=True, return_inverse=True, return_counts=True
    )
    common = np.argsort(-count, kind="stable")[:MOST_STREAMS]
    rank = np.full(len(count), -1)
    rank[common] = np.arange(len(common))
    return rank[number], first[common]


def spans_of_ranges(trace: Trace, operation_lane: np.ndarray) -> pd.DataFrame:
    """Return when and on which streams the work ran that was launched inside each NVTX range of the program: a row per
    range and lane with columns range, lane, start and end, the first start and the last end (ns) of that work.

    operation_lane: per operation of the trace, its lane

    Work counts if the thread that opened the range launched it, or a thread of the same process that has no
    range open: autograd's worker launches the backward kernels of a range that the main thread opened.
    """
    ranges = trace.ranges
    empty = pd.DataFrame(columns=["range", "lane", "start", "end"], dtype="int64")
    by_tool = ranges["text"].str.startswith(OURS).to_numpy(dtype=bool)
    of_program = ~by_tool & trace.program_ranges
    if not of_program.any():
        return empty
    work = _launched_operations(trace, operation_lane)
    # work of a thread without an open range may belong to any range that is open in its process
    outside_ranges = ~any_open(
        key=ranges["thread"].to_numpy()[of_program],
        start=ranges["start_ns"].to_numpy()[of_program],
        end=ranges["end_ns"].to_numpy()[of_program],
        wanted_key=work["thread"].to_numpy(),
        at=work["issue"].to_numpy(),
    )
    extents = [empty]
    for key, launched in (("thread", work), ("process", work[outside_ranges])):
        for (owner, lane), operations in launched.groupby([key, "lane"], sort=False):
            rows = np.flatnonzero((ranges[key].to_numpy() == owner) & of_program)
            extents.append(_extents(ranges, rows, operations).assign(lane=lane))
    whole = pd.concat(extents).groupby(["range", "lane"], as_index=False)
    return whole.agg(start=("start", "min"), end=("end", "max"))


def _launched_operations(trace: Trace, operation_lane: np.ndarray) -> pd.DataFrame:
    """Return the operations whose call is known, with columns start_ns, end_ns, process, lane, issue (when
    their call began, ns) and thread (which made the call)."""
    launched = trace.operations["call"].to_numpy() >= 0
    operations = trace.operations.loc[launched, ["call", "process", "start_ns", "end_ns"]]
    call = operations["call"].to_numpy()
    return operations.assign(
        lane=operation_lane[launched],
        issue=trace.calls["start_ns"].to_numpy()[call],
        thread=trace.calls["thread"].to_numpy()[call],
    )


def _extents(ranges: pd.DataFrame, rows: np.ndarray, operations: pd.DataFrame) -> pd.DataFrame:
    """Return a row per range with columns range, start and end: the first start and the last end (ns) of the
    operations that were launched inside it.  A range without such operations is left out.

    rows: the ranges, as positions in `ranges`
    operations: as `_launched_operations` returns them
    """
    operations = operations.sort_values("issue", kind="stable")
    issue = operations["issue"].to_numpy()
    first = np.searchsorted(issue, ranges["start_ns"].to_numpy()[rows])
    last = np.searchsorted(issue, ranges["end_ns"].to_numpy()[rows])
    inside = last > first
    rows, first, last = rows[inside], first[inside], last[inside]
    start = least(operations["start_ns"].to_numpy(), first, last)
    end = -least(-operations["end_ns"].to_numpy(), first, last)
    return pd.DataFrame({"range": rows, "start": start, "end": end})


def of_library(text: str) -> bool:
    """Return whether a library opened the range of this name, around its own work."""
    return _OF_LIBRARIES.match(text) is not None


def own_ranges(trace: Trace) -> pd.DataFrame:
    """Return the NVTX ranges of nsysalign itself (`frames.RANGES`)."""
    if trace.ranges.empty:
        return trace.ranges
    return trace.ranges[trace.ranges["text"].str.startswith(OURS).to_numpy(dtype=bool)]


def own_calls(trace: Trace) -> np.ndarray:
    """Return, for each call of the trace, whether nsysalign itself made it (bool)."""
    ranges = own_ranges(trace)
    start = trace.calls["start_ns"].to_numpy()
    thread = trace.calls["thread"].to_numpy()
    first = np.searchsorted(start, ranges["start_ns"].to_numpy())
    last = np.searchsorted(start, ranges["end_ns"].to_numpy())
    number, call = ragged(first, np.maximum(last - first, 0))
    range_thread = ranges["thread"].to_numpy()
    on_thread = thread[call] == range_thread[number]
    made_by_tool = np.zeros(len(start), dtype=bool)
    made_by_tool[call[on_thread]] = True
    return made_by_tool


def without_own_work(trace: Trace, alignment: Alignment) -> tuple[Trace, Alignment]:
    """Return trace and alignment without the operations that nsysalign itself launched: they appear in no
    table, and count neither as busy nor as idle time.  What it did on the host counts as the profiler's."""
    ranges = own_ranges(trace)
    if ranges.empty or trace.calls.empty:
        return trace, alignment
    call = trace.operations["call"].to_numpy()
    kept = (call < 0) | ~own_calls(trace)[call]
    lane = alignment.operation_lane[kept]
    spent = ranges[["start_ns", "end_ns", "thread", "process"]].assign(name_id=_NAME, row=-1)
    overhead = pd.concat([trace.overhead, spent], ignore_index=True)
    trace = replace(
        trace,
        operations=frames.taken(trace.operations, kept),
        overhead=frames.check(overhead, frames.OVERHEAD),
        names={**trace.names, _NAME: str(ranges["text"].iloc[0])},
    )
    busy = np.isin(alignment.lanes.index, lane)
    return trace, replace(alignment, operation_lane=lane, busy=busy)
