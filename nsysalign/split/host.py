"""What the host did: how long NVTX ranges took on the host and how long their work took on the GPU;
and what the host did while streams waited for it, by Python samples, ranges and OS calls.

gap       here, a stretch of cause host: a stream is idle, and its host thread is in no CUDA call
view      one way to say what gaps were spent in: `all` of them, `python` (functions that were
          sampled), `range` (NVTX ranges), `os` (calls of the OS runtime)
outermost a call that is made in no other call of its thread
"""

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
from nsysalign.split.labels import common_names, plain_region
from nsysalign.text import REPETITION, plural
from nsysalign.trace.samples import Stacks

#: Column -> the kinds of calls whose time it holds.
_KINDS = {
    "launch_ns": ("launch", "graph_launch"),
    "copy_ns": ("memcpy", "memset"),
    "sync_ns": SYNC_CALLS,
}
#: These columns, and at last the one for calls of all other kinds.
_CALL_COLUMNS = (*_KINDS, "other_ns")
_OTHER = len(_KINDS)
#: Of what the host did, each label and view shows this many rows, the largest.
MOST_ROWS = 12
_REPETITION = re.compile(REPETITION)


class OnHost(NamedTuple):
    """`frames.HOST_RANGES`, and notes on the work that no interval of a range holds."""

    table: pd.DataFrame
    notes: list[str]


def on_host(trace: Trace, alignment: Alignment) -> OnHost:
    """Return how long the host spent in the NVTX ranges of the program (`frames.HOST_RANGES`): a row for each label, with
    the number of its ranges, their time on the host (ns), on the GPU, in calls by kind (launch_ns, copy_ns, sync_ns,
    other_ns) and outside of calls, those that took longest first; and notes on work that is in no interval of a range.

    The table is empty if an event log says what was measured: then ranges are no intervals.
    """
    windows = alignment.windows
    if alignment.logged or (windows["log_process"] >= 0).any():
        return OnHost(frames.empty(frames.HOST_RANGES), [])
    ranges = trace.ranges[trace.program_ranges]
    of_program = replace(trace, ranges=ranges)  # without operators and Python frames
    # from the first start to the last end of each range's work, on whichever streams that ran; `source` of a range's
    # window is the range's `row`
    range_windows = windows[windows["origin"] == ORIGIN["range"]]
    spans = range_windows.groupby("source").agg(start=("start_ns", "min"), end=("end_ns", "max"))
    spans = spans.reindex(ranges["row"].to_numpy())  # a row per range, NaN for one without work
    with_work = spans["start"].notna().to_numpy(np.int64)
    notes = _note_on_left_out(of_program, int(with_work.sum()))
    if ranges.empty:
        return OnHost(frames.empty(frames.HOST_RANGES), notes)
    columns = {
        "label": _labels_of_ranges(ranges),
        "count": 1,
        "host_ns": ranges["end_ns"] - ranges["start_ns"],
        "gpu_ns": (spans["end"] - spans["start"]).fillna(0).to_numpy(np.int64),
        "with_work": with_work,
    }
    by_label = pd.DataFrame(columns | _ns_in_calls(of_program)).groupby("label", sort=False)
    table = by_label[["count", "with_work", "gpu_ns", "host_ns", *_CALL_COLUMNS]].sum()
    table["outside_ns"] = table["host_ns"] - table[list(_CALL_COLUMNS)].sum(axis=1)
    # the lower median: a time that was measured
    table["median_ns"] = by_label["host_ns"].quantile(0.5, interpolation="lower")
    table["max_ns"] = by_label["host_ns"].max()
    table = table.reset_index()
    table = table[~table["label"].str.startswith(OURS)]  # the tool's own ranges
    table = table.sort_values(["host_ns", "label"], ascending=[False, True], ignore_index=True)
    return OnHost(frames.check(table, frames.HOST_RANGES), notes)


def _note_on_left_out(trace: Trace, with_work: int) -> list[str]:
    """Return a note on what is in no interval where NVTX ranges are the intervals: ranges that issued no work, operations
    that were issued while no range of their process was open, and operations whose call (launch) is not in the trace.
    The list is empty if there is nothing of these.

    with_work: how many ranges issued work

    The note may be: "left out of the intervals, but in the run as a whole: 3 of 20 NVTX ranges, which issued no work to a
    GPU; 7 operations (0.120 ms) of which the trace has no launch".
    """
    ranges, operations = trace.ranges, trace.operations
    texts = []
    if without_work := len(ranges) - with_work:
        # "NVTX ranges", or what the recorder of this trace calls them
        ranges_in_words = trace.info.by.ranges
        texts.append(
            f"{without_work:,} of {len(ranges):,} {ranges_in_words}, which issued no work to a GPU"
        )
    operation_ns = (operations["end_ns"] - operations["start_ns"]).to_numpy()
    call = operations["call"].to_numpy()
    issued = np.flatnonzero(call >= 0)
    in_range = any_open(
        key=ranges["process"].to_numpy(),
        start=ranges["start_ns"].to_numpy(),
        end=ranges["end_ns"].to_numpy(),
        wanted_key=operations["process"].to_numpy()[issued],
        at=trace.calls["start_ns"].to_numpy()[call[issued]],
    )
    if len(ranges):  # without any range all operations are outside, which is no news
        outside_ns = operation_ns[issued[~in_range]]
        texts += _operations_in_words(outside_ns, "issued outside of all ranges")
    texts += _operations_in_words(operation_ns[call < 0], "of which the trace has no launch")
    if not texts:
        return []
    return ["left out of the intervals, but in the run as a whole: " + "; ".join(texts)]


def _operations_in_words(ns: np.ndarray, origin: str) -> list[str]:
    """Return a text on operations of these lengths (ns), "7 operations (0.120 ms) " and then `origin`; in a list that is
    empty if there are none."""
    if not len(ns):
        return []
    return [f"{plural(len(ns), 'operation')} ({ns.sum() / 1e6:,.3f} ms) {origin}"]


def _labels_of_ranges(ranges: pd.DataFrame) -> np.ndarray:
    """Return the label of each NVTX range."""
    code, texts = pd.factorize(ranges["text"].to_numpy(dtype=object))
    regions = [plain_region(str(text)) for text in texts]
    common = common_names(regions)
    labels = np.array([common.get(region, region) for region in regions], dtype=object)
    return labels[code]


def _ns_in_calls(trace: Trace) -> dict[str, np.ndarray]:
    """Return how long the thread of each NVTX range was in CUDA calls while the range lasted, by the kind of call: the
    columns launch_ns, copy_ns, sync_ns and other_ns, each an int64 array (ns) with a value per range.

    range   [                  )        100 us
    calls     [launch)   [sync     )    8 us, and 30 us of which 20 lie in the range: launch_ns 8,000, sync_ns 20,000
    """
    calls, ranges = trace.calls, trace.ranges
    column_of_kind = np.full(len(CALL), _OTHER, np.int8)
    for number, kinds in enumerate(_KINDS.values()):
        column_of_kind[[CALL[kind] for kind in kinds]] = number
    column = column_of_kind[calls["kind"].to_numpy()]
    outermost = np.flatnonzero(trace.outermost)  # these do not overlap
    by_thread = group(calls["thread"].to_numpy()[outermost], outermost)
    range_start = ranges["start_ns"].to_numpy()
    range_end = ranges["end_ns"].to_numpy()
    out = {name: np.zeros(len(ranges), np.int64) for name in _CALL_COLUMNS}
    for thread, rows in group(ranges["thread"].to_numpy(), np.arange(len(ranges))).items():
        on_thread = by_thread.get(thread, np.empty(0, np.int64))
        for number, name in enumerate(_CALL_COLUMNS):
            in_column = on_thread[column[on_thread] == number]
            start = calls["start_ns"].to_numpy()[in_column]
            end = calls["end_ns"].to_numpy()[in_column]
            # time in these calls up to the range's end, without the time up to its start
            up_to_end = covered(start, end, range_end[rows])
            up_to_start = covered(start, end, range_start[rows])
            out[name][rows] = up_to_end - up_to_start
    return out


def host_activity(
    trace: Trace, stacks: Stacks | None, measured: pd.DataFrame, segments: pd.DataFrame
) -> pd.DataFrame:
    """Return `frames.HOST_ACTIVITY`: what the host did while a stream was idle because of it, in the gaps (segments of
    cause `host`) among these segments.

    Each label has a row for all its gaps (view `all`), then rows for each view that has data, the largest first:
    functions of the program by Python samples (`python`), NVTX ranges (`range`) and calls of the OS (`os`).

    stacks:   the Python samples, None if there are none
    measured: `frames.INTERVALS`; gaps of other intervals are left out
    segments: `frames.SEGMENTS`
    """
    has_gaps = (segments["cause"] == "host").any()
    has_calls = (segments["ref_kind"] == "api").any()  # without them no gap's thread is known
    if not has_gaps or not has_calls:
        return frames.empty(frames.HOST_ACTIVITY)
    gaps = host_gaps(measured, segments, trace.calls)
    whole = gaps.groupby("label", sort=False)["ns"].agg(count="size", ns="sum").reset_index()
    whole = whole.assign(view="all", share=1.0)
    ranges_and_os_calls = _views_of_ranges_and_os_calls(trace, gaps, whole.set_index("label")["ns"])
    if stacks is None:
        views = [whole, ranges_and_os_calls]
    else:
        samples = _samples_in_gaps(gaps, stacks)
        samples_of_label = samples["label"].value_counts()
        whole = whole.assign(samples=whole["label"].map(samples_of_label).fillna(0))
        views = [whole, _view_of_functions(samples, stacks), ranges_and_os_calls]
    table = _joined_views(views)
    table = table[table.groupby(["label", "view"]).cumcount() < MOST_ROWS]
    # labels in the order of their gaps
    order = {label: number for number, label in enumerate(whole["label"])}
    table = table.sort_values("label", key=lambda c: c.map(order), kind="stable", ignore_index=True)
    return frames.check(table, frames.HOST_ACTIVITY)


def _joined_views(views: list[pd.DataFrame]) -> pd.DataFrame:
    """Return the rows of all views in one table; a column that a view does not have is empty or 0 there."""
    default = {"name": "", "place": "", "within": "", "samples": 0, "count": 0, "ns": 0}
    complete = []
    for view in views:
        missing = {name: value for name, value in default.items() if name not in view}
        complete.append(view.assign(**missing))
    not_empty = [view for view in complete if len(view)]  # pandas 2 warns of empty tables
    return pd.concat(not_empty or complete[:1], ignore_index=True)


def _views_of_ranges_and_os_calls(
    trace: Trace, gaps: pd.DataFrame, whole: pd.Series
) -> pd.DataFrame:
    """Return what gaps were spent in: the views `range` and `os`, the longest rows of each first.

    gaps:  as `host_gaps` returns them
    whole: how long (ns) all gaps of each label are
    """
    names = gaps["range"].str.replace(_REPETITION, "", regex=True)
    ranges = gaps[["label", "ns"]].assign(view="range", name=names)
    pieces = ranges[(names != gaps["label"]) & (names != "")]
    if len(trace.os_calls):
        calls = _os_calls(gaps, trace.os_calls, trace.names).assign(view="os")
        pieces = pd.concat([pieces, calls[calls["name"] != ""]])
    if pieces.empty:  # most traces have neither
        return pieces
    sums = pieces.groupby(["view", "label", "name"])["ns"]
    sums = sums.agg(count="size", ns="sum").reset_index()
    sums = sums.sort_values(["view", "ns", "name"], ascending=[False, False, True])
    label_ns = whole.reindex(sums["label"]).clip(lower=1)
    return sums.assign(share=sums["ns"] / label_ns.to_numpy())


def host_gaps(intervals: pd.DataFrame, segments: pd.DataFrame, calls: pd.DataFrame) -> pd.DataFrame:
    """Return the stretches of these intervals in which a stream was idle because of the host (segments of cause `host`), a
    row each, with the thread that each is about.  The columns are label, start_ns, end_ns, ns, thread and range:

    thread: the globalTid of the thread that was to issue what the stream waited for, -1 if the
            trace does not say
    range:  the innermost NVTX range of this thread, '' for none

    A segment is about the thread of the next CUDA call in its interval: whatever follows in a gap,
    up to the call that issues the next operation, happens on the same thread.  All calls of a host timer are its own
    thread's: what follows the last one is about the thread of this call.

    intervals: columns interval, label and kind
    segments:  `frames.SEGMENTS`, those of an interval sorted by time
    calls:     columns row and thread
    """
    host = segments[segments["cause"] == "host"]
    timers = intervals.loc[intervals["kind"] == "host", "interval"]
    call_row = segments["ref_id"].where(segments["ref_kind"] == "api")
    call_rows = call_row.groupby(segments["interval"])
    # the next call in the interval: `bfill` carries the row of each call back to the segments before it
    next_call_row = call_rows.bfill()
    # the last call, for the segments of a host timer that no call follows
    is_behind_all = next_call_row.isna() & segments["interval"].isin(timers)
    row_of_call = next_call_row.mask(is_behind_all, call_rows.ffill())[host.index]
    thread_of_row = calls.drop_duplicates("row").set_index("row")["thread"]
    thread = thread_of_row.reindex(row_of_call)
    gaps = host[["start_ns", "end_ns"]].assign(
        label=intervals.set_index("interval")["label"].reindex(host["interval"]).to_numpy(),
        ns=host["end_ns"] - host["start_ns"],
        thread=thread.fillna(-1).to_numpy(np.int64),
        range=host["detail"].where(host["ref_kind"] == "nvtx", ""),
    )
    return gaps.dropna(subset="label")  # gaps of intervals that were not given have no label


def _samples_in_gaps(gaps: pd.DataFrame, samples: Stacks) -> pd.DataFrame:
    """Return the Python samples that were taken during gaps, a row for each label and sample: label, sample (its position
    in `samples`) and stack (the number of its stack).

    gaps: as `host_gaps` returns them

    Samples are of the main thread of a process.  A sample in gaps of several intervals counts once
    for each label.
    """
    thread = gaps["thread"].to_numpy()
    main = tid_of(thread) == pid_of(thread)  # the main thread has its process's number
    parts = [pd.DataFrame({"label": [], "sample": []})]
    for process in np.unique(samples.process):
        process_gaps = gaps[main & (process_of(thread) == process)]
        rows = np.flatnonzero(samples.process == process)
        time = samples.t_ns[rows]
        first = np.searchsorted(time, process_gaps["start_ns"])
        stop = np.searchsorted(time, process_gaps["end_ns"])
        gap, place = ragged(first, np.maximum(stop - first, 0))
        label = process_gaps["label"].iloc[gap].array
        parts.append(pd.DataFrame({"label": label, "sample": rows[place]}))
    inside = pd.concat(parts).drop_duplicates()
    return inside.assign(stack=samples.stack[inside["sample"].to_numpy(np.int64)])


def _view_of_functions(inside: pd.DataFrame, samples: Stacks) -> pd.DataFrame:
    """Return the view `python`: how many samples each function of the program got, a row per label and function, the most
    frequent first.

    inside: columns label and stack, as `_samples_in_gaps` returns them
    samples: all samples, with the frames of each stack, the innermost first

    The function of a sample is the innermost one of the program's own code, or the innermost of
    all if none is.  Its place is its line with most samples; `within` says which function ran
    inside it most often.
    """

    def most_frequent(values: pd.Series) -> object:
        return min(multimode(values))  # the smallest if there are several

    rows = []  # one per sample
    for label, stack in zip(inside["label"], inside["stack"].tolist(), strict=True):
        frames_of_stack = samples.frames[stack]
        if not frames_of_stack:
            continue
        inner = frames_of_stack[0]
        user = next((frame for frame in frames_of_stack if frame.of_program), inner)
        within = "" if inner is user else f"{inner.function} ({inner.file.rpartition('/')[2]})"
        rows.append((label, user.function, user.file, user.line, within))
    key = ["label", "name", "file"]
    table = pd.DataFrame(rows, columns=[*key, "line", "within"]).groupby(key)
    table = table.agg(
        samples=("line", "size"), line=("line", most_frequent), within=("within", most_frequent)
    )
    table = table.reset_index().sort_values(["samples", "name", "file"], ascending=[False, True, True])  # fmt: skip
    place = [f"{file}:{line}" for file, line in zip(table["file"], table["line"], strict=True)]
    label_samples = inside["label"].value_counts().reindex(table["label"]).to_numpy()
    return table.assign(view="python", place=place, share=table["samples"] / label_samples)


def _os_calls(gaps: pd.DataFrame, os_calls: pd.DataFrame, names: Mapping[int, str]) -> pd.DataFrame:
    """Return which calls of the OS runtime the threads of gaps were in: a row for each stretch of a call in a gap, with the
    columns label (the gap's), ns (the length of the stretch) and name (the call's).

    gaps:     as `host_gaps` returns them
    os_calls: columns thread, start_ns, end_ns and name_id
    names:    name_id -> name
    """
    parts = [pd.DataFrame({"label": [], "name": [], "ns": []}, dtype=object)]
    for thread, on_thread in gaps[gaps["thread"] >= 0].groupby("thread"):
        calls = os_calls[os_calls["thread"] == thread].sort_values("start_ns", kind="stable")
        # nested calls count once
        call, call_start, call_end = disjoint(
            calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
        )
        gap_start = on_thread["start_ns"].to_numpy()
        gap_end = on_thread["end_ns"].to_numpy()
        tiles = tile(gap_start, gap_end, call_start, call_end)
        inside = np.flatnonzero(tiles.block >= 0)
        call_inside = call[tiles.block[inside]]
        name_id = calls["name_id"].iloc[call_inside]
        piece = {
            "label": on_thread["label"].iloc[tiles.span[inside]].array,
            "ns": (tiles.end - tiles.start)[inside],
        }
        parts.append(pd.DataFrame(piece).assign(name=[names.get(n, "OS call") for n in name_id]))
    return pd.concat(parts, ignore_index=True)
