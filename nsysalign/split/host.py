"""What the host did: NVTX ranges and their calls, and the cause `host` in detail.

    thread   [ aten::item                                   ]
                 [cudaMemcpyAsync] [cudaStreamSynchronize  ]
               ^ outside    copy                sync           the calls of its own thread; the rest is outside of CUDA

A range's time includes that of all ranges inside it.

While a stream waited for the host:

    stream   KKKKK|--------------- gap --------------|NNN
    thread         [outside CUDA      ][api][ outside ][launch N]
    ranges         [ augment                     ]
    OS calls            [read    ]
    samples        ^    ^    ^    ^           ^    ^            one stack each

Three views of the same time, each complete in itself and never added to another: NVTX ranges (the
innermost one) and calls of the OS runtime are exact, samples are counted.  A sample belongs to a
gap if it was taken in it, on the thread that was to issue N.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import Columns, any_open, covered, disjoint, group, tile
from nsysalign.model import (
    CALL,
    ORIGIN,
    OURS,
    SYNC_CALLS,
    Alignment,
    Trace,
    pid_of,
    process_of,
    tid_of,
)
from nsysalign.split.labels import grouped, plain_region
from nsysalign.text import REPETITION

#: Column -> kinds of calls whose time it holds; calls of all other kinds are `other_ns`.
_KINDS = {
    "launch_ns": ("launch", "graph_launch"),
    "copy_ns": ("memcpy", "memset"),
    "sync_ns": SYNC_CALLS,
}
_SPLIT = (*_KINDS, "other_ns")


@dataclass(frozen=True)
class OnHost:
    """`table`: frames.HOST_RANGES, the longest first.  `notes`: what neither ranges nor calls
    account for."""

    table: pd.DataFrame
    notes: list[str]


def on_host(trace: Trace, alignment: Alignment) -> OnHost:
    """Both are empty if an event log says what was measured."""
    ranges, windows, operations = trace.ranges, alignment.windows, trace.operations
    if (windows["log_process"] >= 0).any():
        return OnHost(frames.empty(frames.HOST_RANGES), [])
    gpu_ns, with_work = _on_gpu(windows, ranges)
    took, call = (
        (operations["end_ns"] - operations["start_ns"]).to_numpy(),
        operations["call"].to_numpy(),
    )
    issued = call >= 0
    said = []
    if idle := len(ranges) - int(with_work.sum()):
        said.append(f"{idle:,} of {len(ranges):,} NVTX ranges, which issued no work to a GPU")
    outside = took[np.flatnonzero(issued)[~_covered(trace)]]
    if len(ranges) and len(outside):
        said.append(f"{_operations(outside)} issued outside of all ranges")
    if not issued.all():
        said.append(f"{_operations(took[~issued])} of which the trace has no launch")
    notes = ["left out of the intervals, but in the run as a whole: " + "; ".join(said)]
    if ranges.empty:
        return OnHost(frames.empty(frames.HOST_RANGES), notes if said else [])
    code, texts = pd.factorize(ranges["text"].to_numpy(dtype=object))
    labels = [plain_region(str(text)) for text in texts]
    same = grouped(labels)
    names = np.array([same.get(label, label) for label in labels], dtype=object)
    rows = pd.DataFrame(
        {
            "label": names[code],
            "count": 1,
            "host_ns": ranges["end_ns"] - ranges["start_ns"],
            "gpu_ns": gpu_ns,
            "with_work": with_work,
        }
        | _inside_calls(trace, ranges)
    )
    groups = rows.groupby("label", sort=False)
    out = groups[["count", "with_work", "gpu_ns", "host_ns", *_SPLIT]].sum()
    out["outside_ns"] = out["host_ns"] - out[list(_SPLIT)].sum(axis=1)
    out = out.reset_index()
    # the lower median: a time that was measured
    out["median_ns"] = groups["host_ns"].quantile(0.5, interpolation="lower").to_numpy()
    out["max_ns"] = groups["host_ns"].max().to_numpy()
    out = out[~out["label"].str.startswith(OURS)]
    out = out.sort_values(["host_ns", "label"], ascending=[False, True], ignore_index=True)
    return OnHost(frames.check(out, frames.HOST_RANGES), notes if said else [])


def _operations(took: np.ndarray) -> str:
    count = len(took)
    return f"{count:,} operation{'s' * int(count != 1)} ({took.sum() / 1e6:,.3f} ms)"


def _inside_calls(trace: Trace, ranges: pd.DataFrame) -> dict[str, np.ndarray]:
    """Per range: how long its thread was in calls of each kind while it lasted."""
    calls = trace.calls
    column = np.full(len(CALL), len(_KINDS), np.int8)
    for number, kinds in enumerate(_KINDS.values()):
        column[[CALL[kind] for kind in kinds]] = number
    outer = np.flatnonzero(calls["outer"].to_numpy() == np.arange(len(calls)))
    begin, over = (calls[c].to_numpy()[outer] for c in ("start_ns", "end_ns"))
    what = column[calls["kind"].to_numpy()[outer]]
    of_thread = group(calls["thread"].to_numpy()[outer], np.arange(len(outer)))
    start, end = (ranges[c].to_numpy() for c in ("start_ns", "end_ns"))
    found = {name: np.zeros(len(ranges), np.int64) for name in _SPLIT}
    for thread, rows in group(ranges["thread"].to_numpy(), np.arange(len(ranges))).items():
        mine = of_thread.get(thread, np.empty(0, np.int64))
        for number, name in enumerate(_SPLIT):
            some = mine[what[mine] == number]
            spent = [covered(begin[some], over[some], t[rows]) for t in (start, end)]
            found[name][rows] = spent[1] - spent[0]
    return found


def _on_gpu(windows: pd.DataFrame, ranges: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Per range: (first start to last end of its work, on whichever streams; 1 where it has any,
    else 0)."""
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


#: Rows per label and view; the rest is one row without a name.
MOST_ROWS = 12
_REPETITION = re.compile(REPETITION)


class Samples(Protocol):
    """Sampled stacks of main threads (`trace.stacks.Stacks`)."""

    process: np.ndarray
    t_ns: np.ndarray
    stack: np.ndarray
    frames: Any


@dataclass(frozen=True)
class Gaps(Columns):
    """Pieces of cause host: arrays of equal length.  `thread`: the nsys globalTid due to issue what
    the stream waited for, -1 if the trace does not say."""

    label: np.ndarray
    start: np.ndarray
    end: np.ndarray
    thread: np.ndarray
    range: np.ndarray  # its innermost NVTX range, ''


def host_gaps(intervals: pd.DataFrame, segments: pd.DataFrame, thread_of: pd.Series) -> Gaps:
    """The pieces of cause host among the segments.  `thread_of`: rowid of an API call -> its
    globalTid.

    A piece belongs to the thread of the next API call of its interval: everything after it in a
    gap, up to the call that issues the next operation, is on the same thread.  The pieces of a host
    timer always belong to the timer's own thread.
    """
    label = intervals.set_index("interval")["label"]
    number = segments["interval"].to_numpy()
    is_call = (segments["ref_kind"] == "api").to_numpy()
    at = np.where(is_call, np.arange(len(segments)), len(segments))
    following = np.minimum.accumulate(at[::-1])[::-1] if len(at) else at
    here = np.flatnonzero((segments["cause"] == "host").to_numpy())
    call = following[here]
    same = call < len(segments)
    same[same] = number[call[same]] == number[here[same]]
    thread = np.full(len(here), -1, np.int64)
    rows = segments["ref_id"].to_numpy()[call[same]]
    thread[same] = thread_of.reindex(rows).fillna(-1).to_numpy(np.int64)
    named = (segments["ref_kind"] == "nvtx").to_numpy()[here]
    detail = segments["detail"].to_numpy(dtype=object)[here]
    return Gaps(
        label.reindex(number[here]).to_numpy(dtype=object),
        segments["start_ns"].to_numpy()[here],
        segments["end_ns"].to_numpy()[here],
        thread,
        np.where(named, detail, ""),
    )


def calls_after_gaps(segments: pd.DataFrame) -> np.ndarray:
    """Rowids of the API calls whose threads `host_gaps` asks for."""
    if not (segments["cause"] == "host").any():
        return np.empty(0, np.int64)
    return np.unique(segments.loc[segments["ref_kind"] == "api", "ref_id"].to_numpy())


def host_activity(
    gaps: Gaps, os_calls: pd.DataFrame, names: Any, samples: Samples | None
) -> pd.DataFrame:
    """`frames.HOST_ACTIVITY`: per label the total, then each view that has data, its largest row
    first."""
    if not len(gaps.label):
        return frames.empty(frames.HOST_ACTIVITY)
    found = _owners(gaps, samples) if samples is not None else None
    pieces = pd.concat([_ranges(gaps), _os(gaps, os_calls, names)], ignore_index=True)
    views = {key: rows for key, rows in pieces.groupby(["label", "view"], sort=False)}
    rows: list[dict[str, Any]] = []
    base = {"place": "", "within": "", "samples": 0}
    code, labels = pd.factorize(gaps.label)  # -1: a gap of the run itself, which has no label
    gaps_of = group(code, np.arange(len(code)))
    for number, label in enumerate(labels):
        which = gaps_of[number]
        whole = int((gaps.end[which] - gaps.start[which]).sum())
        hits = found[0][np.isin(found[1], which)] if found is not None else np.empty(0, np.int64)
        total = {"name": "", "count": len(which), "ns": whole, "samples": len(hits), "share": 1.0}
        mine: list[tuple[str, dict[str, Any]]] = [("all", total)]
        if samples is not None and len(hits):
            mine += [("python", row) for row in _functions(samples, hits)]
        for view in ("range", "os"):
            if (label, view) in views:
                mine += [(view, row) for row in _most(views[label, view], whole)]
        rows += [base | {"label": label, "view": view} | row for view, row in mine]
    return frames.check(
        pd.DataFrame(rows, columns=frames.HOST_ACTIVITY.names), frames.HOST_ACTIVITY
    )


def _owners(gaps: Gaps, samples: Samples) -> tuple[np.ndarray, np.ndarray]:
    """(samples that fall into gaps of their thread, the gap of each).  Where gaps of several
    intervals overlap, a sample belongs to the gap of each label once."""
    hit, owner = [], []
    main = tid_of(gaps.thread) == pid_of(gaps.thread)
    for process in np.unique(samples.process):
        mine = np.flatnonzero(main & (process_of(gaps.thread) == process))
        t = np.flatnonzero(samples.process == process)
        first = np.searchsorted(samples.t_ns[t], gaps.start[mine])
        last = np.searchsorted(samples.t_ns[t], gaps.end[mine])
        for gap, a, b in zip(mine.tolist(), first.tolist(), last.tolist(), strict=True):
            hit.append(t[a:b])
            owner.append(np.full(b - a, gap, np.int64))
    if not hit:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    both = pd.DataFrame({"hit": np.concatenate(hit), "gap": np.concatenate(owner)})
    both = both[~pd.DataFrame({"hit": both["hit"], "label": gaps.label[both["gap"]]}).duplicated()]
    return both["hit"].to_numpy(), both["gap"].to_numpy()


def _functions(samples: Samples, hits: np.ndarray) -> list[dict[str, Any]]:
    """Samples by the innermost function of the program's own code, if there is one, and what ran
    inside it most often."""
    found: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for stack in samples.stack[hits].tolist():
        every = samples.frames[stack]
        own = next((f for f in every if f.own), every[0] if every else None)
        if own is None:
            continue
        inner = every[0]
        within = "" if inner is own else f"{inner.function} ({inner.file.rpartition('/')[2]})"
        found.setdefault((own.function, own.file), []).append((own.line, within))
    ranked = sorted(found.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    rows = [
        {
            "name": function,
            "place": f"{file}:{_mode([line for line, _ in here])}",
            "within": _mode([inner for _, inner in here]),
            "samples": len(here),
            "count": 0,
            "ns": 0,
            "share": len(here) / len(hits),
        }
        for (function, file), here in ranked[:MOST_ROWS]
    ]
    rest = len(hits) - sum(int(row["samples"]) for row in rows)
    empty = {"name": "", "place": "", "within": "", "count": 0, "ns": 0}
    return [*rows, empty | {"samples": rest, "share": rest / len(hits)}] if rest else rows


def _mode(values: Sequence[Any]) -> Any:
    """The most frequent value, the smallest on ties."""
    counts = pd.Series(values).value_counts()
    return min(counts[counts == counts.iloc[0]].index)


def _ranges(gaps: Gaps) -> pd.DataFrame:
    """Pieces (label, view, name, ns) of the innermost ranges, '' for the label's own and for none;
    nothing of labels where that is all there is."""
    names = {text: _REPETITION.sub("", text) for text in set(gaps.range.tolist())}
    name = [names[text] for text in gaps.range.tolist()]
    table = pd.DataFrame(
        {"label": gaps.label, "view": "range", "name": name, "ns": gaps.end - gaps.start}
    )
    table["name"] = table["name"].where(table["name"] != table["label"], "")
    return table[table["label"].isin(table.loc[table["name"] != "", "label"])]


def _os(gaps: Gaps, os_calls: pd.DataFrame, names: Any) -> pd.DataFrame:
    """The same of calls of the OS runtime on the gaps' threads."""
    parts = [pd.DataFrame({"label": [], "view": [], "name": [], "ns": []}, dtype=object)]
    for thread in np.unique(gaps.thread[gaps.thread >= 0]):
        mine = os_calls[os_calls["thread"] == thread].sort_values("start_ns", kind="stable")
        here = np.flatnonzero(gaps.thread == thread)
        # nested calls count once
        which, begin, over = disjoint(mine["start_ns"].to_numpy(), mine["end_ns"].to_numpy())
        cut = tile(gaps.start[here], gaps.end[here], begin, over)
        busy = np.flatnonzero(cut.block >= 0)
        number = mine["name_id"].to_numpy()[which[cut.block[busy]]]
        columns = {
            "label": gaps.label[here[cut.piece[busy]]],
            "view": "os",
            "name": [str(names.get(n, "OS call")) for n in number.tolist()],
            "ns": (cut.end - cut.start)[busy],
        }
        parts.append(pd.DataFrame(columns))
    return pd.concat(parts, ignore_index=True)


def _most(pieces: pd.DataFrame, whole: int) -> list[dict[str, Any]]:
    """The largest of one label and view as rows, the rest as one row without a name."""
    sums = pieces.groupby("name", sort=False)["ns"].agg(["size", "sum"])
    said = [(str(name), int(count), int(ns)) for name, count, ns in sums.itertuples()]
    ranked = sorted(said, key=lambda item: (item[0] == "", -item[2], item[0]))
    kept, rest = ranked[:MOST_ROWS], ranked[MOST_ROWS:]
    if rest:
        kept.append(("", sum(r[1] for r in rest), sum(r[2] for r in rest)))
    return [
        {"name": name, "count": count, "ns": ns, "share": ns / max(whole, 1)}
        for name, count, ns in kept
    ]
