"""NVTX ranges projected onto the GPU: one window per range and stream."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import MOST_NESTED, any_open, group, least, too_deep
from nsysalign.model import ORIGIN, OURS, Trace
from nsysalign.place.windows import windows_frame

#: Ranges that libraries open around their own work: CUB and Thrust (the domain CCCL), NCCL, cuDNN,
#: cuBLAS, cuSOLVER; torch's operators, their backward passes, FSDP and DDP; pyprof's descriptions of calls.
_OF_LIBRARIES = re.compile(
    r"(cub|thrust|aten|c10d|autograd|torch|prims|nccl|record_param_comms|FSDP|DistributedDataParallel)::?|nccl[A-Z]"
    r"|cu(dnn|blas|solver|sparse|fft)[A-Z_]|\w+Backward\d\b|DistributedDataParallel\.|Optimizer\.|\{'mod':"
)


def nvtx_windows(
    trace: Trace, operation_lane: np.ndarray, lanes: pd.DataFrame
) -> tuple[pd.DataFrame, list[str]]:
    """One window per NVTX range and stream with work launched inside the range, and notes.

    Inside: by the thread that opened it, or by a thread with no open range of its own (autograd's
    worker launches the backward kernels of a range that the main thread opened).  Window: first
    start to last end of that work.
    """
    ranges, notes = trace.ranges, []
    spans = _spans_of_ranges(trace, operation_lane)
    own = ranges["text"].str.startswith(OURS).to_numpy(dtype=bool)
    spans = spans[~own[spans["range"].to_numpy()]]
    if spans.empty:
        return frames.empty(frames.WINDOWS), []
    with_work = np.unique(spans["range"].to_numpy())
    deep = too_deep(*(ranges[c].to_numpy()[with_work] for c in ("thread", "start_ns", "end_ns")))
    if deep.any():
        notes.append(
            f"{int(deep.sum()):,} NVTX ranges lie inside {MOST_NESTED} others of their thread, or more, "
            "and have no interval of their own"
        )
        spans = spans[~spans["range"].isin(with_work[deep])]
    lane, start, end = (spans[c].to_numpy() for c in ("lane", "start", "end"))
    of_range = {c: ranges[c].to_numpy()[spans["range"].to_numpy()] for c in ranges}
    several = spans.groupby("range")["lane"].transform("size").to_numpy() > 1
    stream = lanes["stream"].to_numpy()[lane].tolist()
    columns = {
        "kind": "nvtx",
        "origin": ORIGIN["range"],
        "source": of_range["row"],
        "library": [_OF_LIBRARIES.match(text) is not None for text in of_range["text"].tolist()],
        "process": of_range["process"],
        "thread": of_range["thread"],
        "end_thread": of_range["thread"],
        "start_lane": lane,
        "end_lane": lane,
        "open_ns": of_range["start_ns"],
        "close_ns": of_range["end_ns"],
        "close_end_ns": of_range["end_ns"],
        "elapsed_ns": end - start,
        "start_ns": start,
        "end_ns": end,
        "start_lower_ns": start,
        "start_upper_ns": start,
        "region": [on_stream(*row) for row in zip(of_range["text"], several, stream, strict=True)],
    }
    return windows_frame(len(spans), columns), notes


def _spans_of_ranges(trace: Trace, operation_lane: np.ndarray) -> pd.DataFrame:
    """Columns range, lane, start, end: first start and last end of the work of each range on each lane.
    Memory goes with ranges and operations, not with their product."""
    ranges, operations, calls = trace.ranges, trace.operations, trace.calls
    issued = np.flatnonzero(operations["call"].to_numpy() >= 0)
    call = operations["call"].to_numpy()[issued]
    issue, thread = calls["start_ns"].to_numpy()[call], calls["thread"].to_numpy()[call]
    process, lane = operations["process"].to_numpy()[issued], operation_lane[issued]
    begin, end = operations["start_ns"].to_numpy()[issued], operations["end_ns"].to_numpy()[issued]
    by_thread, opened, closed = (ranges[c].to_numpy() for c in ("thread", "start_ns", "end_ns"))
    alone = ~any_open(
        by_thread, opened, closed, thread, issue
    )  # launched in no range of its thread
    every, pieces = np.arange(len(ranges)), [(np.empty(0, np.int64),) * 4]
    for owner, launcher, which in (
        (by_thread, thread, np.ones(len(alone), dtype=bool)),
        (ranges["process"].to_numpy(), process, alone),
    ):
        for number, rows in group(owner, every).items():
            theirs = np.flatnonzero(which & (launcher == number))
            for on, work in group(lane[theirs], theirs).items():
                work = work[np.argsort(issue[work], kind="stable")]
                first, last = (np.searchsorted(issue[work], t[rows]) for t in (opened, closed))
                some = np.flatnonzero(last > first)
                extent = first[some], last[some]
                low, high = least(begin[work], *extent), -least(-end[work], *extent)
                pieces.append((rows[some], np.full(len(some), on), low, high))
    columns = (np.concatenate(column) for column in zip(*pieces, strict=True))
    whole = pd.DataFrame(dict(zip(("range", "lane", "start", "end"), columns, strict=True)))
    return whole.groupby(["range", "lane"], as_index=False).agg(
        start=("start", "min"), end=("end", "max")
    )


def on_stream(text: str, several: bool, stream: int) -> str:
    """What a range is called on one stream, if it has work on `several`."""
    name, mark, number = text.rpartition("#")
    if several and mark and number.isdigit():
        return f"{name} (stream {stream})#{number}"
    return f"{text} (stream {stream})" if several else text
