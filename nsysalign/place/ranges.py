"""What NVTX ranges say: windows of kind `nvtx`, and what the tool itself did in the program's process,
which is counted nowhere.

    thread   [ nsysalign:calibration          ]     [ step                       ]
               [launch] [record] [synchronise]        [launch]   [launch]
    GPU             spin_kernel                             AAAAAAAA  BBBB
                    left out                                [--------------------)   window
    another stream                                                      CCCCCCCCCC

After it is known what of the trace is the program's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import MOST_NESTED, any_open, least, ragged, too_deep
from nsysalign.model import MOST_STREAMS, ORIGIN, OURS, Alignment, Trace

#: Ranges that libraries open around their own work: CUB and Thrust (the domain CCCL), NCCL, cuDNN,
#: cuBLAS, cuSOLVER; torch's operators, their backward passes, FSDP and DDP; pyprof's descriptions of calls.
_OF_LIBRARIES = re.compile(
    r"(cub|thrust|aten|c10d|autograd|torch|prims|nccl|record_param_comms|FSDP|DistributedDataParallel)::?|nccl[A-Z]"
    r"|cu(dnn|blas|solver|sparse|fft)[A-Z_]|\w+Backward\d\b|DistributedDataParallel\.|Optimizer\.|\{'mod':"
    r"|Xla[A-Z]\w*:#|enumerate\(DataLoader\)|## Call CompiledFxGraph|PyTorch Profiler|ProfilerStep\b"
)
#: The number of the name that the tool's own stretches have among the names of the trace.
_NAME = -2


class RangeWindows(NamedTuple):
    """Windows of ranges and notes; `lanes`: with one more for each set of streams on which a range has
    work; `stream_sets`: which lanes each of those stands for."""

    windows: pd.DataFrame
    notes: list[str]
    lanes: pd.DataFrame
    stream_sets: Mapping[int, np.ndarray]


def nvtx_windows(trace: Trace, operation_lane: np.ndarray, lanes: pd.DataFrame) -> RangeWindows:
    """One window per NVTX range, over the streams of a device with work launched inside the range, from
    the first start to the last end of this work; one per device, where there are several."""
    ranges, notes = trace.ranges, list[str]()
    spans = spans_of_ranges(trace, operation_lane)
    with_work = np.unique(spans["range"])
    deep = too_deep(*(ranges[c].to_numpy()[with_work] for c in ("thread", "start_ns", "end_ns")))
    if deep.any():
        notes.append(
            f"{int(deep.sum()):,} {trace.info.by.ranges} lie inside {MOST_NESTED} others of their thread, or more, "
            "and have no interval of their own"
        )
        spans = spans[~spans["range"].isin(with_work[deep])]
    spans, lanes, stream_sets = _over_streams(spans, lanes)
    number, lane, start, end = (spans[c].to_numpy() for c in ("range", "lane", "start", "end"))
    thread, process, text, opened, closed, row = (
        ranges[c].to_numpy()[number]
        for c in ("thread", "process", "text", "start_ns", "end_ns", "row")
    )
    several = spans["range"].duplicated(keep=False)
    device = lanes["device"].to_numpy()[lane].tolist()
    columns = dict.fromkeys(("thread", "end_thread"), thread)
    columns |= dict.fromkeys(("start_lane", "end_lane"), lane)
    columns |= dict.fromkeys(("start_ns", "start_lower_ns", "start_upper_ns"), start)
    columns |= dict.fromkeys(("close_ns", "close_end_ns"), closed)
    columns |= {"process": process, "open_ns": opened, "end_ns": end, "elapsed_ns": end - start}
    columns |= {"kind": "nvtx", "origin": ORIGIN["range"], "source": row}
    columns |= {"method": "exact", "error_ns": 0}
    columns["library"] = [of_library(one) for one in text]
    columns["region"] = [  # name (GPU 1)#repetition
        re.sub(r"(#\d+)?\Z", rf" (GPU {on})\1", one, count=1) if more else one
        for one, more, on in zip(text, several, device, strict=True)
    ]
    windows = frames.lean(columns, frames.WINDOWS, len(spans))
    return RangeWindows(windows, notes, lanes, stream_sets)


def _over_streams(
    spans: pd.DataFrame, lanes: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame, dict[int, np.ndarray]]:
    """Spans of ranges by device instead of by stream, with `lanes` and `stream_sets` as in
    `RangeWindows`.  Each set of streams has a lane; of more than MOST_STREAMS sets the rarer ones have
    that of all streams on which ranges of the process worked."""
    device, process = (lanes[c].to_numpy() for c in ("device", "process"))
    spans = spans.assign(device=device[spans["lane"].to_numpy()])
    groups = spans.groupby(["range", "device"])
    of_group = groups.ngroup().to_numpy()
    joined = groups.agg(start=("start", "min"), end=("end", "max"), lane=("lane", "first"))
    joined = joined.reset_index()
    several = np.flatnonzero(np.bincount(of_group, minlength=len(joined)) > 1)
    if not len(several):
        return joined, lanes, {}
    # a set is known by the sum of a random number per stream
    weight = np.random.default_rng(1).integers(1 << 48, size=len(lanes))
    code = np.zeros(len(joined), np.int64)
    np.add.at(code, of_group, weight[spans["lane"].to_numpy()])
    codes, example, which, count = np.unique(
        code[several], return_index=True, return_inverse=True, return_counts=True
    )
    common = np.argsort(-count, kind="stable")[:MOST_STREAMS]
    spans = spans.assign(group=of_group)
    members = [spans["lane"][spans["group"] == several[example[n]]].to_numpy() for n in common]
    place = np.full(len(codes), -1)
    place[common] = np.arange(len(common))
    place = place[which]
    on = joined["lane"].to_numpy()[several]
    rare = pd.DataFrame({"process": process[on], "device": device[on]})[place < 0]
    for (whose, number), rows in rare.groupby(["process", "device"]):
        place[rows.index] = len(members)
        used = spans["lane"].unique()
        members.append(used[(process[used] == whose) & (device[used] == number)])
    lane = joined["lane"].to_numpy().copy()
    lane[several] = len(lanes) + place
    added = pd.DataFrame(
        {
            "process": [process[of[0]] for of in members],
            "device": [device[of[0]] for of in members],
            "context": -2 - np.arange(len(members)),
            "stream": -1,
            "flag": -1,
        }
    )
    stream_sets = {len(lanes) + n: np.sort(of) for n, of in enumerate(members)}
    lanes = frames.check(pd.concat([lanes, added], ignore_index=True), frames.LANES)
    return joined.assign(lane=lane), lanes, stream_sets


def spans_of_ranges(trace: Trace, operation_lane: np.ndarray) -> pd.DataFrame:
    """Columns range, lane, start, end: first start and last end on each lane of the work that was launched
    inside each of the program's ranges, by the thread that opened it or by a thread with no open range of
    its own (autograd's worker launches the backward kernels of a range that the main thread opened)."""
    ranges, calls = trace.ranges, trace.calls
    pieces = [pd.DataFrame(columns=["range", "lane", "start", "end"], dtype="int64")]
    own = ranges["text"].str.startswith(OURS).to_numpy(dtype=bool) | ~trace.program_ranges
    if own.all():
        return pieces[0]
    launched = trace.operations["call"].to_numpy() >= 0
    operations = trace.operations.loc[launched, ["call", "process", "start_ns", "end_ns"]]
    issue, thread = (calls[c].to_numpy()[operations["call"]] for c in ("start_ns", "thread"))
    work = operations.assign(lane=operation_lane[launched], issue=issue, thread=thread)
    opener, opened, closed = (ranges[c].to_numpy() for c in ("thread", "start_ns", "end_ns"))
    alone = ~any_open(opener[~own], opened[~own], closed[~own], thread, issue)
    for key, some in (("thread", work), ("process", work[alone])):
        for (owner, lane), lot in some.groupby([key, "lane"], sort=False):
            lot = lot.sort_values("issue", kind="stable")
            rows = np.flatnonzero((ranges[key].to_numpy() == owner) & ~own)
            first, last = (np.searchsorted(lot["issue"], edge[rows]) for edge in (opened, closed))
            inside = last > first
            extent, start, end = (first[inside], last[inside]), lot["start_ns"], -lot["end_ns"]
            begin, over = (least(edge.to_numpy(), *extent) for edge in (start, end))
            pieces.append(
                pd.DataFrame({"range": rows[inside], "lane": lane, "start": begin, "end": -over})
            )
    whole = pd.concat(pieces).groupby(["range", "lane"], as_index=False)
    return whole.agg(start=("start", "min"), end=("end", "max"))


def of_library(text: str) -> bool:
    """Whether a library opened the range of this name, around its own work."""
    return _OF_LIBRARIES.match(text) is not None


def own_ranges(trace: Trace) -> pd.DataFrame:
    """The tool's own NVTX ranges (`frames.RANGES`)."""
    return trace.ranges[trace.ranges["text"].str.startswith(OURS).to_numpy(dtype=bool)]


def own_calls(trace: Trace) -> np.ndarray:
    """Bool, per call of the trace: made by the tool itself."""
    ranges, (thread, start) = (
        own_ranges(trace),
        (trace.calls[c].to_numpy() for c in ("thread", "start_ns")),
    )
    first, last = (np.searchsorted(start, ranges[c].to_numpy()) for c in ("start_ns", "end_ns"))
    which, call = ragged(first, np.maximum(last - first, 0))
    out = np.zeros(len(start), dtype=bool)
    out[call[thread[call] == ranges["thread"].to_numpy()[which]]] = True
    return out


def without_own_work(trace: Trace, alignment: Alignment) -> tuple[Trace, Alignment]:
    """Both without the operations that the tool launched: they are in no table, no idle stretch and no
    busy time.  What it did on the host is among the profiler's work."""
    ranges = own_ranges(trace)
    if ranges.empty or trace.calls.empty:
        return trace, alignment
    call = trace.operations["call"].to_numpy()
    kept = (call < 0) | ~own_calls(trace)[call]
    lane = alignment.operation_lane[kept]
    spent = ranges[["start_ns", "end_ns", "thread", "process"]].assign(name_id=_NAME, row=-1)
    overhead = pd.concat([trace.overhead, spent], ignore_index=True)
    return replace(
        trace,
        operations=frames.taken(trace.operations, kept),
        overhead=frames.check(overhead, frames.OVERHEAD),
        names={**trace.names, _NAME: str(ranges["text"].iloc[0])},
    ), replace(
        alignment,
        operation_lane=lane,
        busy=np.isin(alignment.lanes.index, lane),
    )
