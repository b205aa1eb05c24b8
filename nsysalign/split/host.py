"""What the host did: NVTX ranges by name, their time there beside that of their work on the GPU; and
the gaps in which streams waited for it: by Python samples, by range, by calls of the OS runtime."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from statistics import multimode
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import any_open, covered, disjoint, group, ragged, tile
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
from nsysalign.text import REPETITION, plural
from nsysalign.trace.samples import Stacks

#: Column -> kinds of calls whose time it holds; calls of all other kinds are `other_ns`.
_KINDS = {
    "launch_ns": ("launch", "graph_launch"),
    "copy_ns": ("memcpy", "memset"),
    "sync_ns": SYNC_CALLS,
}
_SPLIT = (*_KINDS, "other_ns")
#: Rows per label and view of what the host did, the largest.
MOST_ROWS = 12
_REPETITION = re.compile(REPETITION)


class OnHost(NamedTuple):
    """A table, and notes: what neither ranges nor calls account for."""

    table: pd.DataFrame
    notes: list[str]


def on_host(trace: Trace, alignment: Alignment) -> OnHost:
    """`frames.HOST_RANGES`, the longest first.  Empty if an event log says what was measured."""
    trace = replace(trace, ranges=trace.ranges[trace.program_ranges])
    ranges, windows = trace.ranges, alignment.windows
    if (windows["log_process"] >= 0).any():
        return OnHost(frames.empty(frames.HOST_RANGES), [])
    # first start to last end of each range's work, on whichever streams
    of_ranges = windows[windows["origin"] == ORIGIN["range"]]
    spans = of_ranges.groupby("source").agg(start=("start_ns", "min"), end=("end_ns", "max"))
    spans = spans.reindex(ranges["row"].to_numpy())
    with_work = spans["start"].notna().to_numpy(np.int64)
    notes = _left_out(trace, int(with_work.sum()))
    if ranges.empty:
        return OnHost(frames.empty(frames.HOST_RANGES), notes)
    columns = {
        "label": _labels_of_ranges(ranges),
        "count": 1,
        "host_ns": ranges["end_ns"] - ranges["start_ns"],
        "gpu_ns": (spans["end"] - spans["start"]).fillna(0).to_numpy(np.int64),
        "with_work": with_work,
    }
    by_label = pd.DataFrame(columns | _inside_calls(trace)).groupby("label", sort=False)
    table = by_label[["count", "with_work", "gpu_ns", "host_ns", *_SPLIT]].sum()
    table["outside_ns"] = table["host_ns"] - table[list(_SPLIT)].sum(axis=1)
    # the lower median: a time that was measured
    table["median_ns"] = by_label["host_ns"].quantile(0.5, interpolation="lower")
    table["max_ns"] = by_label["host_ns"].max()
    table = table.reset_index()
    table = table[~table["label"].str.startswith(OURS)]
    table = table.sort_values(["host_ns", "label"], ascending=[False, True], ignore_index=True)
    return OnHost(frames.check(table, frames.HOST_RANGES), notes)


def _left_out(trace: Trace, with_work: int) -> list[str]:
    """What the intervals of ranges leave out, as a note: ranges without work (`with_work`: how many have
    some), and operations that no range of their process was open for."""
    ranges, operations = trace.ranges, trace.operations
    texts = []
    if idle := len(ranges) - with_work:
        named = trace.info.by.ranges
        texts.append(f"{idle:,} of {len(ranges):,} {named}, which issued no work to a GPU")
    took = (operations["end_ns"] - operations["start_ns"]).to_numpy()
    call = operations["call"].to_numpy()
    issued = np.flatnonzero(call >= 0)
    inside = any_open(
        ranges["process"].to_numpy(),
        ranges["start_ns"].to_numpy(),
        ranges["end_ns"].to_numpy(),
        operations["process"].to_numpy()[issued],
        trace.calls["start_ns"].to_numpy()[call[issued]],
    )
    if len(ranges):
        texts += _of_operations(took[issued[~inside]], "issued outside of all ranges")
    texts += _of_operations(took[call < 0], "of which the trace has no launch")
    start = "left out of the intervals, but in the run as a whole: "
    return [start + "; ".join(texts)] if texts else []


def _of_operations(ns: np.ndarray, origin: str) -> list[str]:
    """Operations of these lengths in words, if there are any."""
    if not len(ns):
        return []
    return [f"{plural(len(ns), 'operation')} ({ns.sum() / 1e6:,.3f} ms) {origin}"]


def _labels_of_ranges(ranges: pd.DataFrame) -> np.ndarray:
    """The label of each NVTX range."""
    code, texts = pd.factorize(ranges["text"].to_numpy(dtype=object))
    regions = [plain_region(str(text)) for text in texts]
    label_of = grouped(regions)
    labels = np.array([label_of.get(region, region) for region in regions], dtype=object)
    return labels[code]


def _inside_calls(trace: Trace) -> dict[str, np.ndarray]:
    """Per range: how long its thread was in calls of each kind while it lasted."""
    calls, ranges = trace.calls, trace.ranges
    column_of = np.full(len(CALL), len(_KINDS), np.int8)
    for number, kinds in enumerate(_KINDS.values()):
        column_of[[CALL[kind] for kind in kinds]] = number
    outer = np.flatnonzero(trace.outermost)
    column = column_of[calls["kind"].to_numpy()]
    by_thread = group(calls["thread"].to_numpy()[outer], outer)
    range_start = ranges["start_ns"].to_numpy()
    range_end = ranges["end_ns"].to_numpy()
    out = {name: np.zeros(len(ranges), np.int64) for name in _SPLIT}
    for thread, rows in group(ranges["thread"].to_numpy(), np.arange(len(ranges))).items():
        on_thread = by_thread.get(thread, np.empty(0, np.int64))
        for number, name in enumerate(_SPLIT):
            in_column = on_thread[column[on_thread] == number]
            start = calls["start_ns"].to_numpy()[in_column]
            end = calls["end_ns"].to_numpy()[in_column]
            before = covered(start, end, range_start[rows])
            after = covered(start, end, range_end[rows])
            out[name][rows] = after - before
    return out


def host_activity(
    trace: Trace, stacks: Stacks | None, measured: pd.DataFrame, segments: pd.DataFrame
) -> pd.DataFrame:
    """`frames.HOST_ACTIVITY`: what the host did in the gaps among these segments.  Per label the
    total, then each view that has data, its largest row first."""
    if not (segments["cause"] == "host").any() or not (segments["ref_kind"] == "api").any():
        return frames.empty(frames.HOST_ACTIVITY)
    gaps = host_gaps(measured, segments, trace.calls)
    whole = gaps.groupby("label", sort=False)["ns"].agg(count="size", ns="sum").reset_index()
    whole = whole.assign(view="all", share=1.0)
    views = [whole]  # per label; the functions that were sampled; ranges and calls
    if stacks is not None:
        taken = _samples_in(gaps, stacks)
        whole["samples"] = whole["label"].map(taken["label"].value_counts()).fillna(0)
        views.append(_functions(taken, stacks))
    views.append(_ranges_and_calls(trace, gaps, whole.set_index("label")["ns"]))
    usual = {"name": "", "place": "", "within": "", "samples": 0, "count": 0, "ns": 0}
    views = [view.assign(**{c: usual[c] for c in usual if c not in view}) for view in views]
    # pandas 2 warns of empty tables
    filled = [view for view in views if len(view)] or views[:1]
    table = pd.concat(filled, ignore_index=True)
    table = table[table.groupby(["label", "view"]).cumcount() < MOST_ROWS]
    order = {label: number for number, label in enumerate(whole["label"])}
    table = table.sort_values("label", key=lambda c: c.map(order), kind="stable", ignore_index=True)
    return frames.check(table, frames.HOST_ACTIVITY)


def _ranges_and_calls(trace: Trace, gaps: pd.DataFrame, whole: pd.Series) -> pd.DataFrame:
    """What gaps were spent in: the views `range` and `os`, the longest rows of each first.  `whole`: ns
    of all gaps by label."""
    names = gaps["range"].str.replace(_REPETITION, "", regex=True)
    ranges = gaps[["label", "ns"]].assign(view="range", name=names)
    ranges = ranges[names != gaps["label"]]
    calls = _os_calls(gaps, trace.os_calls, trace.names).assign(view="os")
    pieces = pd.concat([ranges, calls])
    sums = pieces[pieces["name"] != ""].groupby(["view", "label", "name"])["ns"]
    sums = sums.agg(count="size", ns="sum").reset_index()
    sums = sums.sort_values(["view", "ns", "name"], ascending=[False, False, True])
    of_label = whole.reindex(sums["label"]).clip(lower=1)
    return sums.assign(share=sums["ns"] / of_label.to_numpy())


def host_gaps(intervals: pd.DataFrame, segments: pd.DataFrame, calls: pd.DataFrame) -> pd.DataFrame:
    """The segments of cause host: label, start_ns, end_ns, ns; `thread`, the nsys globalTid due to
    issue what the stream waited for, -1 if the trace does not say; `range`, the innermost NVTX
    range, ''.  `calls`: columns row and thread.

    A segment belongs to the thread of the next API call of its interval: everything after it in a
    gap, up to the call that issues the next operation, is on the same thread.  Those of a host timer
    always belong to the timer's own thread.
    """
    host = segments[segments["cause"] == "host"]
    rows = segments["ref_id"].where(segments["ref_kind"] == "api")
    following = rows.groupby(segments["interval"]).bfill()[host.index]
    thread = calls.drop_duplicates("row").set_index("row")["thread"].reindex(following)
    gaps = host[["start_ns", "end_ns"]].assign(
        label=intervals.set_index("interval")["label"].reindex(host["interval"]).to_numpy(),
        ns=host["end_ns"] - host["start_ns"],
        thread=thread.fillna(-1).to_numpy(np.int64),
        range=host["detail"].where(host["ref_kind"] == "nvtx", ""),
    )
    return gaps.dropna(subset="label")  # a gap of the run itself has none


def _samples_in(gaps: pd.DataFrame, samples: Stacks) -> pd.DataFrame:
    """label and stack of samples that fall into gaps on their threads.  Where gaps of several
    intervals overlap, a sample counts once for each label."""
    thread = gaps["thread"].to_numpy()
    main = tid_of(thread) == pid_of(thread)
    parts = [pd.DataFrame({"label": [], "sample": []})]
    for process in np.unique(samples.process):
        of_process = gaps[main & (process_of(thread) == process)]
        rows = np.flatnonzero(samples.process == process)
        time = samples.t_ns[rows]
        first = np.searchsorted(time, of_process["start_ns"])
        last = np.searchsorted(time, of_process["end_ns"])
        gap, place = ragged(first, np.maximum(last - first, 0))
        label = of_process["label"].iloc[gap].array
        parts.append(pd.DataFrame({"label": label, "sample": rows[place]}))
    taken = pd.concat(parts).drop_duplicates()
    return taken.assign(stack=samples.stack[taken["sample"].to_numpy(np.int64)])


def _functions(taken: pd.DataFrame, samples: Stacks) -> pd.DataFrame:
    """Samples by the innermost function of the program's own code, if there is one, at its line with
    most samples, and what ran inside it most often."""

    def usual(values: pd.Series) -> object:
        return min(multimode(values))  # of the most frequent values the smallest

    rows = []
    for label, stack in zip(taken["label"], taken["stack"].tolist(), strict=True):
        frames_of_stack = samples.frames[stack]
        if not frames_of_stack:
            continue
        inner = frames_of_stack[0]
        user = next((frame for frame in frames_of_stack if frame.of_program), inner)
        within = "" if inner is user else f"{inner.function} ({inner.file.rpartition('/')[2]})"
        rows.append((label, user.function, user.file, user.line, within))
    key = ["label", "name", "file"]
    table = pd.DataFrame(rows, columns=[*key, "line", "within"]).groupby(key)
    table = table.agg(samples=("line", "size"), line=("line", usual), within=("within", usual))
    table = table.reset_index().sort_values(["samples", "name", "file"], ascending=[False, True, True])  # fmt: skip
    place = [f"{file}:{line}" for file, line in zip(table["file"], table["line"], strict=True)]
    of_label = taken["label"].value_counts().reindex(table["label"]).to_numpy()
    return table.assign(view="python", place=place, share=table["samples"] / of_label)


def _os_calls(gaps: pd.DataFrame, os_calls: pd.DataFrame, names: Mapping[int, str]) -> pd.DataFrame:
    """Pieces (label, name, ns) of calls of the OS runtime on the gaps' threads."""
    parts = [pd.DataFrame({"label": [], "name": [], "ns": []}, dtype=object)]
    for thread, on_thread in gaps[gaps["thread"] >= 0].groupby("thread"):
        calls = os_calls[os_calls["thread"] == thread].sort_values("start_ns", kind="stable")
        # nested calls count once
        call, begin, over = disjoint(calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy())
        start, end = on_thread["start_ns"].to_numpy(), on_thread["end_ns"].to_numpy()
        cut = tile(start, end, begin, over)
        busy = np.flatnonzero(cut.block >= 0)
        number = calls["name_id"].iloc[call[cut.block[busy]]]
        piece = {
            "label": on_thread["label"].iloc[cut.piece[busy]].array,
            "ns": (cut.end - cut.start)[busy],
        }
        parts.append(pd.DataFrame(piece).assign(name=[names.get(n, "OS call") for n in number]))
    return pd.concat(parts, ignore_index=True)
