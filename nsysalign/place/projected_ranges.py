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
    ranges = trace.ranges
    spans = _spans_of_ranges(trace, operation_lane)
    own = ranges["text"].str.startswith(OURS).to_numpy(dtype=bool)
    spans = spans[~own[spans["range"].to_numpy()]]
    if spans.empty:
        return frames.empty(frames.WINDOWS), []
    spans, notes = _not_too_deep(spans, ranges)
    r = spans["range"].to_numpy()
    texts = ranges["text"].to_numpy(dtype=object)[r]
    several = spans.groupby("range")["lane"].transform("size").to_numpy() > 1
    windows = windows_frame(
        len(spans),
        {
            "kind": "nvtx",
            "origin": ORIGIN["range"],
            "source": ranges["row"].to_numpy()[r],
            "library": [_OF_LIBRARIES.match(text) is not None for text in texts.tolist()],
            "process": ranges["process"].to_numpy()[r],
            "thread": ranges["thread"].to_numpy()[r],
            "end_thread": ranges["thread"].to_numpy()[r],
            "start_lane": spans["lane"].to_numpy(),
            "end_lane": spans["lane"].to_numpy(),
            "open_ns": ranges["start_ns"].to_numpy()[r],
            "close_ns": ranges["end_ns"].to_numpy()[r],
            "close_end_ns": ranges["end_ns"].to_numpy()[r],
            "elapsed_ns": (spans["end"] - spans["start"]).to_numpy(),
            "start_ns": spans["start"].to_numpy(),
            "end_ns": spans["end"].to_numpy(),
            "start_lower_ns": spans["start"].to_numpy(),
            "start_upper_ns": spans["start"].to_numpy(),
            "region": [
                on_stream(t, s, n)
                for t, s, n in zip(
                    texts, several, lanes["stream"].to_numpy()[spans["lane"]].tolist(), strict=True
                )
            ],
        },
    )
    return windows, notes


def _not_too_deep(spans: pd.DataFrame, ranges: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    with_work = np.unique(spans["range"].to_numpy())
    deep = too_deep(*(ranges[c].to_numpy()[with_work] for c in ("thread", "start_ns", "end_ns")))
    if not deep.any():
        return spans, []
    note = (
        f"{int(deep.sum()):,} NVTX ranges lie inside {MOST_NESTED} others of their thread, or more, "
        "and have no interval of their own"
    )
    return spans[~spans["range"].isin(with_work[deep])], [note]


def _spans_of_ranges(trace: Trace, operation_lane: np.ndarray) -> pd.DataFrame:
    """Columns range, lane, start, end: first start and last end of the work of each range on each
    lane.

    Memory goes with ranges and operations, not with their product: an outer range holds the work of
    all ranges nested in it.
    """
    ranges, operations, calls = trace.ranges, trace.operations, trace.calls
    issued = np.flatnonzero(operations["call"].to_numpy() >= 0)
    call = operations["call"].to_numpy()[issued]
    issue, thread = calls["start_ns"].to_numpy()[call], calls["thread"].to_numpy()[call]
    process, lane = operations["process"].to_numpy()[issued], operation_lane[issued]
    begin, end = operations["start_ns"].to_numpy()[issued], operations["end_ns"].to_numpy()[issued]
    by_thread, opened, closed = (ranges[c].to_numpy() for c in ("thread", "start_ns", "end_ns"))
    own = any_open(
        by_thread, opened, closed, thread, issue
    )  # a range of the launching thread itself
    pieces = [(np.empty(0, np.int64),) * 4]

    def add(rows: np.ndarray, which: np.ndarray) -> None:
        for number, mine in group(lane[which], which).items():
            mine = mine[np.argsort(issue[mine], kind="stable")]
            first, last = (np.searchsorted(issue[mine], t[rows]) for t in (opened, closed))
            some = np.flatnonzero(last > first)
            extent = first[some], last[some]
            low, high = least(begin[mine], *extent), -least(-end[mine], *extent)
            pieces.append((rows[some], np.full(len(some), number), low, high))

    # launched by the range's own thread, and by threads without ranges of their own
    for number, rows in group(by_thread, np.arange(len(ranges))).items():
        add(rows, np.flatnonzero(thread == number))
    for number, rows in group(ranges["process"].to_numpy(), np.arange(len(ranges))).items():
        add(rows, np.flatnonzero((process == number) & ~own))
    columns = (np.concatenate(column) for column in zip(*pieces, strict=True))
    whole = pd.DataFrame(dict(zip(("range", "lane", "start", "end"), columns, strict=True)))
    return whole.groupby(["range", "lane"], as_index=False).agg(
        start=("start", "min"), end=("end", "max")
    )


def on_stream(text: str, several: bool, stream: int) -> str:
    """What a range is called on one stream, if it has work on `several`."""
    if not several:
        return text
    name, mark, number = text.rpartition("#")
    return (
        f"{name} (stream {stream})#{number}"
        if mark and number.isdigit()
        else f"{text} (stream {stream})"
    )
