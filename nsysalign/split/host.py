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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import multimode
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import Columns, any_open, covered, disjoint, group, ragged, tile
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
from nsysalign.trace.stacks import Stacks, read_stacks

#: Column -> kinds of calls whose time it holds; calls of all other kinds are `other_ns`.
_KINDS = {
    "launch_ns": ("launch", "graph_launch"),
    "copy_ns": ("memcpy", "memset"),
    "sync_ns": SYNC_CALLS,
}
_SPLIT = (*_KINDS, "other_ns")
#: Rows per label and view of what the host did; the rest is one row without a name.
MOST_ROWS = 12
_REPETITION = re.compile(REPETITION)


class OnHost(NamedTuple):
    """`table`: frames.HOST_RANGES, the longest first.  `notes`: what neither ranges nor calls
    account for."""

    table: pd.DataFrame
    notes: list[str]


def on_host(trace: Trace, alignment: Alignment) -> OnHost:
    """NVTX ranges on the host: how long they took there and what for, next to the time of their
    work on the GPU.  Both are empty if an event log says what was measured."""
    ranges, windows, operations = trace.ranges, alignment.windows, trace.operations
    if (windows["log_process"] >= 0).any():
        return OnHost(frames.empty(frames.HOST_RANGES), [])
    # first start to last end of each range's work, on whichever streams
    own = windows[windows["origin"] == ORIGIN["range"]]
    spans = own.groupby("source").agg(start=("start_ns", "min"), end=("end_ns", "max"))
    spans = spans.reindex(ranges["row"].to_numpy())
    with_work = spans["start"].notna().to_numpy(np.int64)
    took = (operations["end_ns"] - operations["start_ns"]).to_numpy()
    call = operations["call"].to_numpy()
    issued = np.flatnonzero(call >= 0)
    # whether any range of its process was open when an operation was issued
    issue = trace.calls["start_ns"].to_numpy()[call[issued]]
    whose, opens, closes = (ranges[c].to_numpy() for c in ("process", "start_ns", "end_ns"))
    covered_by_range = any_open(
        whose, opens, closes, operations["process"].to_numpy()[issued], issue
    )
    outside, unissued = took[issued[~covered_by_range]], took[call < 0]
    said = []
    if idle := len(ranges) - int(with_work.sum()):
        said.append(f"{idle:,} of {len(ranges):,} NVTX ranges, which issued no work to a GPU")
    if len(ranges) and len(outside):
        said.append(f"{_operations(outside)} issued outside of all ranges")
    if len(unissued):
        said.append(f"{_operations(unissued)} of which the trace has no launch")
    notes = ["left out of the intervals, but in the run as a whole: " + "; ".join(said)]
    notes = notes if said else []
    if ranges.empty:
        return OnHost(frames.empty(frames.HOST_RANGES), notes)
    code, texts = pd.factorize(ranges["text"].to_numpy(dtype=object))
    labels = [plain_region(str(text)) for text in texts]
    same = grouped(labels)
    names = np.array([same.get(label, label) for label in labels], dtype=object)
    rows = pd.DataFrame(
        {
            "label": names[code],
            "count": 1,
            "host_ns": ranges["end_ns"] - ranges["start_ns"],
            "gpu_ns": (spans["end"] - spans["start"]).fillna(0).to_numpy(np.int64),
            "with_work": with_work,
        }
        | _inside_calls(trace)
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
    return OnHost(frames.check(out, frames.HOST_RANGES), notes)


def _operations(took: np.ndarray) -> str:
    count = len(took)
    return f"{count:,} operation{'s' * int(count != 1)} ({took.sum() / 1e6:,.3f} ms)"


def _inside_calls(trace: Trace) -> dict[str, np.ndarray]:
    """Per range: how long its thread was in calls of each kind while it lasted."""
    calls, ranges = trace.calls, trace.ranges
    column = np.full(len(CALL), len(_KINDS), np.int8)
    for number, kinds in enumerate(_KINDS.values()):
        column[[CALL[kind] for kind in kinds]] = number
    outer = np.flatnonzero(calls["outer"].to_numpy() == np.arange(len(calls)))
    begin, over = (calls[c].to_numpy()[outer] for c in ("start_ns", "end_ns"))
    what = column[calls["kind"].to_numpy()[outer]]
    of_thread = group(calls["thread"].to_numpy()[outer], np.arange(len(outer)))
    start, end = (ranges[c].to_numpy() for c in ("start_ns", "end_ns"))
    out = {name: np.zeros(len(ranges), np.int64) for name in _SPLIT}
    for thread, rows in group(ranges["thread"].to_numpy(), np.arange(len(ranges))).items():
        own = of_thread.get(thread, np.empty(0, np.int64))
        for number, name in enumerate(_SPLIT):
            some = own[what[own] == number]
            before, after = (covered(begin[some], over[some], t[rows]) for t in (start, end))
            out[name][rows] = after - before
    return out


@dataclass(frozen=True)
class Gaps(Columns):
    """Pieces of cause host: arrays of equal length.  `thread`: the nsys globalTid due to issue what
    the stream waited for, -1 if the trace does not say."""

    label: np.ndarray
    start: np.ndarray
    end: np.ndarray
    thread: np.ndarray
    range: np.ndarray  # its innermost NVTX range, ''


class HostActivity(NamedTuple):
    """`frames.HOST_ACTIVITY`, and notes about what could not be read."""

    table: pd.DataFrame
    notes: list[str]


def host_activity(
    trace: Trace, stacks: Path | None, measured: pd.DataFrame, segments: pd.DataFrame
) -> HostActivity:
    """What the host did in the gaps among these segments."""
    if not (segments["cause"] == "host").any() or not (segments["ref_kind"] == "api").any():
        return HostActivity(frames.empty(frames.HOST_ACTIVITY), [])
    gaps = host_gaps(measured, segments, trace.calls)
    samples, notes = read_stacks(stacks) if stacks is not None else (None, [])
    return HostActivity(activity_table(gaps, trace.os_calls, trace.names, samples), notes)


def host_gaps(intervals: pd.DataFrame, segments: pd.DataFrame, calls: pd.DataFrame) -> Gaps:
    """The pieces of cause host among the segments.  `calls`: columns row and thread.

    A piece belongs to the thread of the next API call of its interval: everything after it in a
    gap, up to the call that issues the next operation, is on the same thread.  The pieces of a host
    timer always belong to the timer's own thread.
    """
    label = intervals.set_index("interval")["label"]
    number, row = segments["interval"].to_numpy(), segments["ref_id"].to_numpy()
    is_call = (segments["ref_kind"] == "api").to_numpy()
    place = np.where(is_call, np.arange(len(segments)), len(segments))
    following = np.minimum.accumulate(place[::-1])[::-1]
    gap = np.flatnonzero((segments["cause"] == "host").to_numpy())
    call = following[gap]
    same = call < len(segments)
    same[same] = number[call[same]] == number[gap[same]]
    wanted = calls[calls["row"].isin(row[is_call])].set_index("row")["thread"]
    thread = np.full(len(gap), -1, np.int64)
    thread[same] = wanted.reindex(row[call[same]]).fillna(-1).to_numpy(np.int64)
    named = (segments["ref_kind"] == "nvtx").to_numpy()[gap]
    detail = segments["detail"].to_numpy(dtype=object)[gap]
    return Gaps(
        label.reindex(number[gap]).to_numpy(dtype=object),
        segments["start_ns"].to_numpy()[gap],
        segments["end_ns"].to_numpy()[gap],
        thread,
        np.where(named, detail, ""),
    )


def activity_table(
    gaps: Gaps, os_calls: pd.DataFrame, names: Mapping[int, str], samples: Stacks | None
) -> pd.DataFrame:
    """`frames.HOST_ACTIVITY`: per label the total, then each view that has data, its largest row
    first."""
    if not len(gaps.label):
        return frames.empty(frames.HOST_ACTIVITY)
    taken = _samples_in(gaps, samples) if samples is not None else None
    pieces = pd.concat([_ranges(gaps), _os_runtime(gaps, os_calls, names)], ignore_index=True)
    sums = pieces.groupby(["label", "view", "name"], sort=False)["ns"].agg(["size", "sum"])
    rows: list[dict[str, Any]] = []
    base = {"name": "", "place": "", "within": "", "samples": 0}
    code, labels = pd.factorize(gaps.label)  # -1: a gap of the run itself, which has no label
    gaps_of = group(code, np.arange(len(code)))
    views = {key: part for key, part in sums.groupby(["label", "view"], sort=False)}
    for number, label in enumerate(labels):
        own = gaps_of[number]
        whole = int((gaps.end[own] - gaps.start[own]).sum())
        total = {"view": "all", "count": len(own), "ns": whole, "share": 1.0}
        found = [total]
        if samples is not None and taken is not None:
            hits = taken.sample[np.isin(taken.gap, own)]
            total["samples"] = len(hits)
            found += _functions(samples, hits)
        for view in ("range", "os"):
            if (label, view) not in views:
                continue
            ranked = sorted(
                (
                    (str(name), int(n), int(ns))
                    for (_, _, name), n, ns in views[label, view].itertuples()
                ),
                key=lambda item: (item[0] == "", -item[2], item[0]),
            )
            kept, rest = ranked[:MOST_ROWS], ranked[MOST_ROWS:]
            if rest:
                kept.append(("", sum(r[1] for r in rest), sum(r[2] for r in rest)))
            found += [
                {"view": view, "name": name, "count": count, "ns": ns, "share": ns / max(whole, 1)}
                for name, count, ns in kept
            ]
        rows += [base | {"label": label} | row for row in found]
    table = pd.DataFrame(rows, columns=frames.HOST_ACTIVITY.names)
    return frames.check(table, frames.HOST_ACTIVITY)


class _Taken(NamedTuple):
    """Samples, and the gap that each was taken in: arrays of equal length."""

    sample: np.ndarray
    gap: np.ndarray


def _samples_in(gaps: Gaps, samples: Stacks) -> _Taken:
    """Samples that fall into gaps of their thread.  Where gaps of several intervals overlap, a
    sample belongs to the gap of each label once."""
    sample, gap = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    main = tid_of(gaps.thread) == pid_of(gaps.thread)
    for process in np.unique(samples.process):
        own = np.flatnonzero(main & (process_of(gaps.thread) == process))
        those = np.flatnonzero(samples.process == process)
        first, last = (np.searchsorted(samples.t_ns[those], t[own]) for t in (gaps.start, gaps.end))
        owner, place = ragged(first, np.maximum(last - first, 0))
        sample.append(those[place])
        gap.append(own[owner])
    both = pd.DataFrame({"sample": np.concatenate(sample), "gap": np.concatenate(gap)})
    once = ~both.assign(label=gaps.label[both["gap"]]).duplicated(["sample", "label"])
    return _Taken(both["sample"][once].to_numpy(), both["gap"][once].to_numpy())


def _functions(samples: Stacks, hits: np.ndarray) -> list[dict[str, Any]]:
    """Samples by the innermost function of the program's own code, if there is one, and what ran
    inside it most often."""
    functions: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for stack in samples.stack[hits].tolist():
        every = samples.frames[stack]
        own = next((f for f in every if f.own), every[0] if every else None)
        if own is None:
            continue
        inner = every[0]
        within = "" if inner is own else f"{inner.function} ({inner.file.rpartition('/')[2]})"
        functions.setdefault((own.function, own.file), []).append((own.line, within))
    ranked = sorted(functions.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    base = {"view": "python", "count": 0, "ns": 0}
    rows = [
        base
        | {
            "name": function,
            "place": f"{file}:{_mode([line for line, _ in lines])}",
            "within": _mode([inner for _, inner in lines]),
            "samples": len(lines),
            "share": len(lines) / len(hits),
        }
        for (function, file), lines in ranked[:MOST_ROWS]
    ]
    rest = len(hits) - sum(len(lines) for _, lines in ranked[:MOST_ROWS])
    return [*rows, base | {"samples": rest, "share": rest / len(hits)}] if rest else rows


def _mode(values: Sequence[Any]) -> Any:
    """The most frequent value, the smallest on ties."""
    return min(multimode(values))


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


def _os_runtime(gaps: Gaps, os_calls: pd.DataFrame, names: Mapping[int, str]) -> pd.DataFrame:
    """The same of calls of the OS runtime on the gaps' threads."""
    parts = [pd.DataFrame({"label": [], "view": [], "name": [], "ns": []}, dtype=object)]
    for thread in np.unique(gaps.thread[gaps.thread >= 0]):
        own = os_calls[os_calls["thread"] == thread].sort_values("start_ns", kind="stable")
        those = np.flatnonzero(gaps.thread == thread)
        # nested calls count once
        which, begin, over = disjoint(own["start_ns"].to_numpy(), own["end_ns"].to_numpy())
        cut = tile(gaps.start[those], gaps.end[those], begin, over)
        busy = np.flatnonzero(cut.block >= 0)
        number = own["name_id"].to_numpy()[which[cut.block[busy]]]
        columns = {
            "label": gaps.label[those[cut.piece[busy]]],
            "view": "os",
            "name": [str(names.get(n, "OS call")) for n in number.tolist()],
            "ns": (cut.end - cut.start)[busy],
        }
        parts.append(pd.DataFrame(columns))
    return pd.concat(parts, ignore_index=True)
