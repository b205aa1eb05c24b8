"""NVTX ranges on the host: how long they took there and what for, next to the time of their work on the GPU.

    thread   [ aten::item                                   ]
                 [cudaMemcpyAsync] [cudaStreamSynchronize  ]
               ^ outside    copy                sync           the calls of its own thread; the rest is outside of CUDA

A range's time includes that of all ranges inside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.issue import EVER
from nsysalign.model import CALL, ORIGIN, OURS, SYNC_CALLS, Alignment, Trace
from nsysalign.split.labels import grouped, plain_region
from nsysalign.tiles import any_open, covered, group

#: Column -> kinds of calls whose time it holds; calls of all other kinds are `other_ns`.
_KINDS = {
    "launch_ns": ("launch", "graph_launch"),
    "copy_ns": ("memcpy", "memset"),
    "sync_ns": SYNC_CALLS,
}
_SPLIT = (*_KINDS, "other_ns")


@dataclass(frozen=True)
class OnHost:
    """The ranges that begin in a stretch of a trace, and the work of its calls.

    `ranges`: per range, its number among `texts` (text), host_ns, gpu_ns, with_work and the time in calls (_SPLIT) inside the stretch;
    `later`: text and that time of ranges which began before it.  `work`:
    (operations, ns) that begin in the stretch; `issued`, `outside`: the same of those that its calls issued, and of those among
    them issued outside of all ranges."""

    texts: tuple[str, ...]
    ranges: pd.DataFrame
    later: pd.DataFrame
    work: np.ndarray
    issued: np.ndarray
    outside: np.ndarray


def on_host(
    trace: Trace, alignment: Alignment, stretch: tuple[int, int] = EVER
) -> tuple[OnHost, ...]:
    """OnHost of a trace, or of a stretch [begin, end) of it; () if an event log says what was measured."""
    ranges, windows, operations = trace.ranges, alignment.windows, trace.operations
    if (windows["log_process"] >= 0).any() or (trace.blocks and alignment.marks is None):
        return ()
    begin, end = stretch

    def here(start: np.ndarray) -> np.ndarray:
        return (start >= begin) & (start < end)

    opened = ranges["start_ns"].to_numpy()
    reaching = here(opened) | ((opened < begin) & (ranges["end_ns"].to_numpy() > begin))
    reaching &= ~ranges["text"].str.startswith(OURS).to_numpy(dtype=bool)
    mine = ranges[reaching].reset_index(drop=True)
    own = here(opened[reaching])
    code, texts = pd.factorize(mine["text"].to_numpy(dtype=object))
    rows = pd.DataFrame(
        {"text": code, "host_ns": mine["end_ns"] - mine["start_ns"]}
        | _inside_calls(trace, mine, stretch)
    )
    rows["gpu_ns"], rows["with_work"] = _on_gpu(windows, mine)
    took, call = (
        (operations["end_ns"] - operations["start_ns"]).to_numpy(),
        operations["call"].to_numpy(),
    )
    known = np.flatnonzero(call >= 0)
    issued = here(trace.calls["start_ns"].to_numpy()[call[known]])
    return (
        OnHost(
            tuple(map(str, texts)),
            rows[own],
            rows.loc[~own, ["text", *_SPLIT]],
            _amount(took[here(operations["start_ns"].to_numpy())]),
            _amount(took[known[issued]]),
            _amount(took[known[issued & ~_covered(trace)]]),
        ),
    )


def _amount(took: np.ndarray) -> np.ndarray:
    return np.array([len(took), took.sum()], dtype=np.int64)


def host_ranges(parts: Sequence[OnHost]) -> pd.DataFrame:
    """`frames.HOST_RANGES`, the longest first; empty if an event log says what was measured."""
    if not sum(len(part.ranges) for part in parts):
        return frames.empty(frames.HOST_RANGES)
    texts = pd.Index(dict.fromkeys(text for part in parts for text in part.texts), dtype=object)
    labels = [plain_region(text) for text in texts]
    same = grouped(labels)
    names = np.array([same.get(label, label) for label in labels], dtype=object)

    def labelled(tables: list[pd.DataFrame]) -> pd.DataFrame:
        codes = [
            texts.get_indexer(list(p.texts))[t["text"].to_numpy()]
            for p, t in zip(parts, tables, strict=True)
        ]
        return pd.concat(tables, ignore_index=True).assign(label=names[np.concatenate(codes)])

    rows = labelled([part.ranges for part in parts]).assign(count=1)
    groups = rows.groupby("label", sort=False)
    out = groups[["count", "with_work", "gpu_ns", "host_ns", *_SPLIT]].sum()
    later = labelled([part.later for part in parts]).groupby("label")[list(_SPLIT)].sum()
    out[list(_SPLIT)] += later.reindex(out.index, fill_value=0)
    out["outside_ns"] = out["host_ns"] - out[list(_SPLIT)].sum(axis=1)
    out = out.reset_index()
    # the lower median: a time that was measured
    out["median_ns"] = groups["host_ns"].quantile(0.5, interpolation="lower").to_numpy()
    out["max_ns"] = groups["host_ns"].max().to_numpy()
    out = out.sort_values(["host_ns", "label"], ascending=[False, True], ignore_index=True)
    return frames.check(out, frames.HOST_RANGES)


def left_out(parts: Sequence[OnHost]) -> list[str]:
    """What neither ranges nor calls account for, in one note: [] if nothing is missing, or if an event log says what was
    measured."""
    if not parts:
        return []
    said = []
    ranges = sum(len(part.ranges) for part in parts)
    idle = ranges - sum(int(part.ranges["with_work"].sum()) for part in parts)
    work, issued, outside = (
        sum(getattr(p, name) for p in parts) for name in ("work", "issued", "outside")
    )
    if idle:
        said.append(f"{idle:,} of {ranges:,} NVTX ranges, which issued no work to a GPU")
    if ranges and outside[0]:
        said.append(f"{_operations(*outside)} issued outside of all ranges")
    if (work - issued)[0]:
        said.append(f"{_operations(*(work - issued))} of which the trace has no launch")
    return (
        [f"left out of the intervals, but in the run as a whole: {'; '.join(said)}"] if said else []
    )


def _operations(count: int, ns: int) -> str:
    return f"{count:,} operation{'s' * int(count != 1)} ({ns / 1e6:,.3f} ms)"


def _inside_calls(
    trace: Trace, ranges: pd.DataFrame, stretch: tuple[int, int]
) -> dict[str, np.ndarray]:
    """Per range: how long its thread was in calls of each kind while it lasted, inside the stretch."""
    calls = trace.calls
    column = np.full(len(CALL), len(_KINDS), np.int8)
    for number, kinds in enumerate(_KINDS.values()):
        column[[CALL[kind] for kind in kinds]] = number
    outer = np.flatnonzero(calls["outer"].to_numpy() == np.arange(len(calls)))
    begin, over = (calls[c].to_numpy()[outer] for c in ("start_ns", "end_ns"))
    what = column[calls["kind"].to_numpy()[outer]]
    of_thread = group(calls["thread"].to_numpy()[outer], np.arange(len(outer)))
    start, end = (np.clip(ranges[c].to_numpy(), *stretch) for c in ("start_ns", "end_ns"))
    found = {name: np.zeros(len(ranges), np.int64) for name in _SPLIT}
    for thread, rows in group(ranges["thread"].to_numpy(), np.arange(len(ranges))).items():
        mine = of_thread.get(thread, np.empty(0, np.int64))
        for number, name in enumerate(_SPLIT):
            some = mine[what[mine] == number]
            spent = [covered(begin[some], over[some], t[rows]) for t in (start, end)]
            found[name][rows] = spent[1] - spent[0]
    return found


def _on_gpu(windows: pd.DataFrame, ranges: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Per range: (first start to last end of its work, on whichever streams; 1 where it has any, else 0)."""
    mine = windows[windows["origin"] == ORIGIN["range"]]
    spans = mine.groupby("source").agg(start=("start_ns", "min"), end=("end_ns", "max"))
    of_range = spans.reindex(ranges["row"].to_numpy())
    length = (of_range["end"] - of_range["start"]).fillna(0).to_numpy(np.int64)
    return length, of_range["start"].notna().to_numpy(np.int64)


def _covered(trace: Trace) -> np.ndarray:
    """Per operation with a call: whether any range of its process was open when it was issued."""
    operations, ranges = trace.operations, trace.ranges
    issued = np.flatnonzero(operations["call"].to_numpy() >= 0)
    issue = trace.calls["start_ns"].to_numpy()[operations["call"].to_numpy()[issued]]
    of, opened, closed = (ranges[c].to_numpy() for c in ("process", "start_ns", "end_ns"))
    return any_open(of, opened, closed, operations["process"].to_numpy()[issued], issue)
