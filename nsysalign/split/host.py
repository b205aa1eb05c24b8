"""What the host did: NVTX ranges by name, their time there beside that of their work on the GPU; and
the gaps in which streams waited for it: by Python samples, by range, by calls of the OS runtime."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
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
from nsysalign.split.labels import common, plain_region
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
    """A table, and notes: what neither ranges nor calls account for, what could not be read."""

    table: pd.DataFrame
    notes: list[str]


def on_host(trace: Trace, alignment: Alignment) -> OnHost:
    """`frames.HOST_RANGES`, the longest first.  Empty if an event log says what was measured."""
    ranges, windows, operations = trace.ranges, alignment.windows, trace.operations
    if (windows["log_process"] >= 0).any():
        return OnHost(frames.empty(frames.HOST_RANGES), [])
    # first start to last end of each range's work, on whichever streams
    own = windows[windows["origin"] == ORIGIN["range"]]
    spans = own.groupby("source").agg(start=("start_ns", "min"), end=("end_ns", "max"))
    spans = spans.reindex(ranges["row"].to_numpy())
    with_work = spans["start"].notna().to_numpy(np.int64)
    # whether any range of its process was open when an operation was issued
    took = (operations["end_ns"] - operations["start_ns"]).to_numpy()
    call = operations["call"].to_numpy()
    issued = np.flatnonzero(call >= 0)
    issue = trace.calls["start_ns"].to_numpy()[call[issued]]
    whose, opens, closes = (ranges[c].to_numpy() for c in ("process", "start_ns", "end_ns"))
    process = operations["process"].to_numpy()[issued]
    outside = took[issued[~any_open(whose, opens, closes, process, issue)]]
    left = []
    if idle := len(ranges) - int(with_work.sum()):
        left.append(f"{idle:,} of {len(ranges):,} NVTX ranges, which issued no work to a GPU")
    for ns, how in (
        (outside if len(ranges) else outside[:0], "issued outside of all ranges"),
        (took[call < 0], "of which the trace has no launch"),
    ):
        if len(ns):
            plural = "s" * int(len(ns) != 1)
            left.append(f"{len(ns):,} operation{plural} ({ns.sum() / 1e6:,.3f} ms) {how}")
    start = "left out of the intervals, but in the run as a whole: "
    notes = [start + "; ".join(left)] if left else []
    if ranges.empty:
        return OnHost(frames.empty(frames.HOST_RANGES), notes)
    code, texts = pd.factorize(ranges["text"].to_numpy(dtype=object))
    labels = [plain_region(str(text)) for text in texts]
    same = common(labels)
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
    # the lower median: a time that was measured
    out["median_ns"] = groups["host_ns"].quantile(0.5, interpolation="lower")
    out["max_ns"] = groups["host_ns"].max()
    out = out.reset_index()
    out = out[~out["label"].str.startswith(OURS)]
    out = out.sort_values(["host_ns", "label"], ascending=[False, True], ignore_index=True)
    return OnHost(frames.check(out, frames.HOST_RANGES), notes)


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


def host_activity(
    trace: Trace, stacks: Path | None, measured: pd.DataFrame, segments: pd.DataFrame
) -> OnHost:
    """`frames.HOST_ACTIVITY`: what the host did in the gaps among these segments."""
    if not (segments["cause"] == "host").any() or not (segments["ref_kind"] == "api").any():
        return OnHost(frames.empty(frames.HOST_ACTIVITY), [])
    gaps = host_gaps(measured, segments, trace.calls)
    samples, notes = read_stacks(stacks) if stacks is not None else (None, [])
    return OnHost(activity_table(gaps, trace.os_calls, trace.names, samples), notes)


def host_gaps(intervals: pd.DataFrame, segments: pd.DataFrame, calls: pd.DataFrame) -> Gaps:
    """The pieces of cause host among the segments.  `calls`: columns row and thread.

    A piece belongs to the thread of the next API call of its interval: everything after it in a
    gap, up to the call that issues the next operation, is on the same thread.  The pieces of a host
    timer always belong to the timer's own thread.
    """
    label = intervals.set_index("interval")["label"]
    host = segments[segments["cause"] == "host"]
    rows = segments["ref_id"].where(segments["ref_kind"] == "api")
    following = rows.groupby(segments["interval"]).bfill()[host.index]
    thread = calls.drop_duplicates("row").set_index("row")["thread"].reindex(following)
    return Gaps(
        label.reindex(host["interval"]).to_numpy(dtype=object),
        host["start_ns"].to_numpy(),
        host["end_ns"].to_numpy(),
        thread.fillna(-1).to_numpy(np.int64),
        host["detail"].where(host["ref_kind"] == "nvtx", "").to_numpy(dtype=object),
    )


def activity_table(
    gaps: Gaps, os_calls: pd.DataFrame, names: Mapping[int, str], samples: Stacks | None
) -> pd.DataFrame:
    """`frames.HOST_ACTIVITY`: per label the total, then each view that has data, its largest row
    first."""
    if not len(gaps.label):
        return frames.empty(frames.HOST_ACTIVITY)
    taken = _samples_in(gaps, samples) if samples is not None else {}
    pieces = pd.concat([_ranges(gaps), _os_runtime(gaps, os_calls, names)], ignore_index=True)
    sums = pieces.groupby(["label", "view", "name"], sort=False)["ns"].agg(["size", "sum"])
    views: dict[tuple[str, str], list[tuple[str, int, int]]] = {}
    for (label, view, name), count, ns in sums.itertuples(name=None):
        views.setdefault((label, view), []).append((str(name), int(count), int(ns)))
    code, labels = pd.factorize(gaps.label)  # -1: a gap of the run itself, which has no label
    gaps_of = group(code, np.arange(len(code)))
    rows: list[dict[str, Any]] = []
    for number, label in enumerate(labels):
        own = gaps_of[number]
        hits = taken.get(label, [])
        whole = int((gaps.end[own] - gaps.start[own]).sum())
        total = {"view": "all", "count": len(own), "ns": whole, "share": 1.0, "samples": len(hits)}
        of_label = [total, *(_functions(samples, hits) if samples is not None else ())]
        for view in ("range", "os"):
            ranked = views.get((label, view), [])
            ranked.sort(key=lambda item: (item[0] == "", -item[2], item[0]))
            kept, rest = ranked[:MOST_ROWS], ranked[MOST_ROWS:]
            if rest:
                kept.append(("", sum(r[1] for r in rest), sum(r[2] for r in rest)))
            of_label += [
                {"view": view, "name": name, "count": count, "ns": ns, "share": ns / max(whole, 1)}
                for name, count, ns in kept
            ]
        base = {"label": label, "name": "", "place": "", "within": "", "samples": 0}
        rows += [base | row for row in of_label]
    table = pd.DataFrame(rows, columns=frames.HOST_ACTIVITY.names)
    return frames.check(table, frames.HOST_ACTIVITY)


def _samples_in(gaps: Gaps, samples: Stacks) -> dict[str, list[int]]:
    """Label -> the stacks of samples that fall into its gaps, on the gaps' threads.  Where gaps of
    several intervals overlap, a sample counts once for each label."""
    main = tid_of(gaps.thread) == pid_of(gaps.thread)
    out: dict[str, list[int]] = {}
    seen: set[tuple[str, int]] = set()
    for process in np.unique(samples.process):
        own = np.flatnonzero(main & (process_of(gaps.thread) == process))
        those = np.flatnonzero(samples.process == process)
        first, last = (np.searchsorted(samples.t_ns[those], t[own]) for t in (gaps.start, gaps.end))
        owner, place = ragged(first, np.maximum(last - first, 0))
        for label, sample in zip(gaps.label[own[owner]], those[place].tolist(), strict=True):
            if (label, sample) not in seen:
                seen.add((label, sample))
                out.setdefault(label, []).append(int(samples.stack[sample]))
    return out


def _functions(samples: Stacks, stacks: list[int]) -> Iterator[dict[str, Any]]:
    """Samples by the innermost function of the program's own code, if there is one, and what ran
    inside it most often."""
    functions: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for stack, count in Counter(stacks).items():
        every = samples.frames[stack]
        if not every:
            continue
        inner, own = every[0], next((f for f in every if f.own), every[0])
        within = "" if inner is own else f"{inner.function} ({inner.file.rpartition('/')[2]})"
        functions.setdefault((own.function, own.file), []).extend([(own.line, within)] * count)
    ranked = sorted(functions.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    row = {"view": "python", "count": 0, "ns": 0}
    rest = len(stacks)
    for (function, file), lines in ranked[:MOST_ROWS]:
        # of the most frequent values the smallest
        line, within = (min(multimode(column)) for column in zip(*lines, strict=True))
        named = {"name": function, "place": f"{file}:{line}", "within": within}
        yield row | named | {"samples": len(lines), "share": len(lines) / len(stacks)}
        rest -= len(lines)
    if rest:
        yield row | {"samples": rest, "share": rest / len(stacks)}


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
