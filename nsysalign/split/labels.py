"""Names, labels and their statistics: intervals measured by the same code share a label; and
what ran in them, by name.

An operation belongs, with its whole duration, to the windows in which it begins (for host windows:
in which it was issued).
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import takewhile
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import FAR, group, ragged
from nsysalign.model import OPERATION_KINDS
from nsysalign.split.gaps import Explainer
from nsysalign.split.host_timers import issued_by
from nsysalign.split.pieces import operation_codes, operation_names
from nsysalign.text import REPETITION

_REPETITION = re.compile(REPETITION)
#: torch's emit_nvtx numbers every operator: the same operator gets one label.
_TORCH_NUMBERS = re.compile(r",? ?\b(op_id|seq|sequence number) ?= ?\d+|, op_ids? = \[[^]]*\]")
#: A number that is a part of a name by itself: `blocks.3.attn`, `step 12`, `layers[4]`; not
#: `conv1`, not `(stream 7)`.
_NUMBERED = re.compile(r"(?:(?<=[./_: \-\[])|^)\d{1,9}(?=[./_: \-\]]|$)")
#: At least this many names that differ only in such numbers, counted from 0 or 1 without a gap, get
#: one label.
_FEWEST_NUMBERED = 4
#: Pairs of a window and an operation in it that are held at once.
_AT_ONCE = 1 << 18
#: An outer range holds the work of all ranges nested in it.  If the windows of a stream together
#: hold more operations than this, and this many times more than exist, they are not counted one by
#: one: their labels are left out.
_MANY, _TIMES = 1 << 22, 8


def plain_region(text: str) -> str:
    """A region's name without its repetition and torch's numbers of operators."""
    return _TORCH_NUMBERS.sub("", _REPETITION.sub("", text)).strip() or text


def grouped(names: Iterable[str]) -> dict[str, str]:
    """The common name of numbered names (`blocks.0` ... `blocks.31`, `step 1` ... `step 100`):
    `blocks.*`.  Only if the numbers count from 0 or 1 without a gap: `batch_64` and `batch_128`
    name different things.
    """
    families: dict[tuple[str, int], dict[str, tuple[int, ...]]] = {}
    for name in dict.fromkeys(names):
        if numbers := tuple(int(n) for n in _NUMBERED.findall(name)):
            family = _NUMBERED.sub("*", name), len(numbers)  # a name may hold a * of its own
            families.setdefault(family, {})[name] = numbers
    out: dict[str, str] = {}
    for (family_name, _), members in families.items():
        columns = [sorted(set(column)) for column in zip(*members.values(), strict=True)]
        counted = all(len(c) == 1 or (c[0] < 2 and c[-1] - c[0] + 1 == len(c)) for c in columns)
        if len(members) >= _FEWEST_NUMBERED and counted:
            out |= dict.fromkeys(members, family_name)
    return out


def name_intervals(windows: pd.DataFrame) -> tuple[list[str], list[str]]:
    """(unique names, labels) of all windows.

    A label is the region's name without its repetition, or else is made from the call sites:
    `bench.py:14-17` for a pair recorded in lines 14 and 17.  Where one pair of sites has several
    callers (a Timer class), the first caller that differs names the label.  Host timers are
    labelled separately, so that the other labels do not depend on them; one that would share a
    label gets the suffix `(host)`, and the run as a whole `(all)`.  Numbered NVTX ranges share a
    label (`grouped`).
    """
    region, kinds = windows["region"].tolist(), windows["kind"].to_numpy(dtype=object)
    host, run = kinds == "host", kinds == "run"
    labels = np.full(len(windows), "", dtype=object)
    others: set[str] = set()
    for which, mark in ((~host & ~run, ""), (host, " (host)"), (run, " (all)")):
        found = _labels(windows[which])
        for place, label in zip(np.flatnonzero(which).tolist(), found, strict=True):
            taken = label in others
            labels[place] = sys.intern(label + mark) if taken else label
            if taken and region[place]:
                region[place] = _REPETITION.sub(rf"{mark}#\1", region[place])
        others |= set(found)
    # two processes (ranks) measure the same label; names stay unique across them
    count: Counter[str] = Counter()
    names: dict[str, None] = {}
    for text, label in zip(region, labels.tolist(), strict=True):
        wanted = text if _REPETITION.search(text) else None
        while wanted is None or wanted in names:
            wanted = f"{label}#{count[label]}"
            count[label] += 1
        names[wanted] = None
    # blocks.7#0 keeps its name in the label blocks.*
    ranges, known = kinds == "nvtx", set(labels.tolist())
    same = {n: label for n, label in grouped(labels[ranges]).items() if label not in known}
    labels[ranges] = [same.get(label, label) for label in labels[ranges]]
    return list(names), labels.tolist()


def _labels(windows: pd.DataFrame) -> list[str]:
    sites = {s for column in ("site", "end_site") for s in windows[column].unique()}
    sites |= {s for calls in windows["callers"].unique() for s in calls}
    # without their folders where the name of the file alone is unambiguous
    files = {s.rpartition(":")[0] for s in sites if ":" in s}
    count = Counter(file.rpartition("/")[2] for file in files)
    short = {s: s.rpartition("/")[2] for s in sites}
    short = {s: name if count[name.rpartition(":")[0]] == 1 else s for s, name in short.items()}
    # walked through twice: rows as objects take much memory
    columns = [windows[c].tolist() for c in ("region", "site", "end_site", "callers", "kind")]
    labels = dict.fromkeys(zip(*columns, strict=True), "")
    groups: dict[str, set[tuple[str, ...]]] = {}
    for text, start, end, calls, _ in labels:
        if not text:
            callers = tuple(short[call] for call in calls)
            groups.setdefault(_sites(short[start], short[end]), set()).add(callers)
    common = {}  # how many callers all have in common
    for site, several in groups.items():
        levels = zip(*several, strict=False)
        common[site] = len([*takewhile(lambda calls: len({*calls}) == 1, levels)])
    for row in labels:
        text, start, end, calls, kind = row
        site = "" if text else _sites(short[start], short[end])
        label = plain_region(text) if text else site or f"{kind} interval"
        if not text and len(calls) > common[site]:  # the first caller that differs
            label = f"{short[calls[common[site]]]} ({site})"
        labels[row] = sys.intern(label)  # one text per label, not per interval
    return [labels[row] for row in zip(*columns, strict=True)]


def _sites(start: str, end: str) -> str:
    file, _, line = start.rpartition(":")
    other, _, end_line = end.rpartition(":")
    if not end or end == start or not start:
        return start or end
    return f"{file}:{line}-{end_line}" if file == other else f"{start}-{end}"


def label_table(intervals: pd.DataFrame) -> pd.DataFrame:
    """`frames.LABELS`: one row per label, in order of first appearance."""
    if intervals.empty:
        return frames.empty(frames.LABELS)
    out = label_statistics(intervals).join(_overlaps(intervals), on="label")
    return frames.check(out.assign(inside=""), frames.LABELS)


def label_statistics(intervals: pd.DataFrame) -> pd.DataFrame:
    """One row per label, in order of first appearance: what `frames.LABELS` says of its measured times.
    `row` is the interval with the lower-median elapsed time."""
    ordered = intervals.sort_values(["label", "elapsed_ns", "interval"], kind="stable")
    groups = ordered.groupby("label", sort=False)
    middle = groups.cumcount() == (groups["label"].transform("size") - 1) // 2
    rows = ordered[middle].set_index("label")[["kind", "name", "interval", "site"]]
    rows = rows.rename(columns={"name": "row", "interval": "row_interval"})
    elapsed = groups["elapsed_ns"]
    out = elapsed.agg(["median", "mean", "std", "min", "max"]).add_suffix("_ns").join(rows)
    out = out.assign(
        count=groups.size(),
        p05_ns=elapsed.quantile(0.05),
        p95_ns=elapsed.quantile(0.95),
        library=groups["library"].all(),
        total_ns=elapsed.sum(),
    )
    first = groups["interval"].min()
    return out.loc[first.sort_values().index].reset_index()


def _overlaps(intervals: pd.DataFrame) -> pd.DataFrame:
    """Per label: for how long at least one of its intervals lasted, and whether intervals of one
    process overlap by more than their places are unsure."""
    ordered = intervals.sort_values(["label", "start_ns"], kind="stable")
    start, end, error = (ordered[c].to_numpy() for c in ("start_ns", "end_ns", "error_ns"))
    label, _ = pd.factorize(ordered["label"])
    reach = ordered.groupby(label)["end_ns"].cummax().groupby(label).shift(fill_value=-FAR)
    alone = np.maximum(end - np.maximum(start, reach.to_numpy()), 0)
    process = ordered.groupby([label, ordered["pid"].to_numpy()])
    before = process["end_ns"].cummax().groupby([label, ordered["pid"].to_numpy()])
    slack = np.minimum(2 * error + 1_000, end - start)  # neighbours that share a record touch
    over = start + slack < before.shift(fill_value=-FAR).to_numpy()
    each = pd.DataFrame({"span_ns": alone, "overlapping": over})
    names = ordered["label"].to_numpy(dtype=object)
    return each.groupby(names).agg({"span_ns": "sum", "overlapping": "any"})


class Inside(NamedTuple):
    """Operations in windows, arrays of equal length; `idle`: for how long the window's stream had
    been idle before the operation, in the window."""

    window: np.ndarray
    operation: np.ndarray
    idle: np.ndarray


class Ran:
    """The operations of a trace by name, by lane and by window."""

    def __init__(self, explainer: Explainer, windows: pd.DataFrame) -> None:
        self.explainer, self.windows = explainer, windows
        self.trace = trace = explainer.trace
        self.start, self.end = explainer.op_start, explainer.op_end
        code, example = operation_codes(trace.operations)
        # equal names of different kinds of operations are not one name
        texts = pd.DataFrame({"kernel": operation_names(trace, example)})
        texts["kind"] = trace.operations["kind"].to_numpy()[example]
        groups = texts.groupby(["kernel", "kind"])
        #: The number of each operation's name; names and kinds.
        self.name = groups.ngroup().to_numpy(np.int32)[code]
        self.names = groups.size().reset_index()
        self.of_lane = lru_cache(maxsize=None)(self._of_lane)

    def _of_lane(self, lane: int) -> tuple[np.ndarray, np.ndarray]:
        """(operations of a lane, by start; how long it had been idle before each, 0 before the
        first)."""
        own = self.explainer.streams.positions(lane)
        idle = np.zeros(len(own), np.int64)
        reach = np.maximum.accumulate(self.end[own])
        np.maximum(self.start[own[1:]] - reach[:-1], 0, out=idle[1:])
        return own, idle

    def inside(self, windows: np.ndarray) -> Iterator[Inside]:
        """Operations of these windows, in lots; a window is in one lot."""
        columns = ("kind", "process", "end_lane", "start_ns", "end_ns")
        kind, process, lane, opened, closed = (self.windows[c].to_numpy() for c in columns)
        host, run = (kind[windows] == "host"), (kind[windows] == "run")
        for keys, of_kind in ((lane, ~host & ~run), (lane, run), (process, host)):
            those = windows[of_kind]
            for key, which in group(keys[those], those).items():
                if keys is process:
                    own, times = issued_by(self.trace, key)
                    idle = np.zeros(len(own), np.int64)
                else:
                    own, idle = self.of_lane(key)
                    times = self.start[own]
                first, last = (np.searchsorted(times, t[which]) for t in (opened, closed))
                count = np.maximum(last - first, 0)
                if count.sum() > max(_MANY, _TIMES * len(times)):
                    continue
                lot = np.cumsum(count) // _AT_ONCE
                for some in np.split(np.arange(len(which)), np.flatnonzero(np.diff(lot)) + 1):
                    owner, place = ragged(first[some], count[some])
                    window, operation = which[some[owner]], own[place]
                    # before a window it does not count
                    since = np.maximum(self.start[operation] - opened[window], 0)
                    yield Inside(window, operation, np.minimum(idle[place], since))


def kernel_table(ran: Ran, intervals: pd.DataFrame) -> pd.DataFrame:
    """`frames.KERNELS`: labels in the order of their intervals, each with its most expensive names
    first.  `intervals`: the windows, with labels."""
    label, labels = pd.factorize(intervals["label"])  # in the order in which they appear
    length, key = ran.end - ran.start, ["label", "name"]
    parts = []
    for inside in ran.inside(np.arange(len(label))):
        for first in range(0, len(inside.window), _AT_ONCE):  # a run is one window
            window, operation, idle = (c[first : first + _AT_ONCE] for c in inside)
            columns = {"label": label[window], "name": ran.name[operation], "ns": length[operation]}
            each = pd.DataFrame(columns | {"idle": idle}).groupby([*key, "ns"])["idle"]
            parts.append(each.agg(count="size", idle_before_ns="sum").reset_index())
    if not parts:
        return frames.empty(frames.KERNELS)
    table = pd.concat(parts, ignore_index=True).groupby([*key, "ns"], as_index=False).sum()
    groups = table.assign(total_ns=table["ns"] * table["count"]).groupby(key)
    out = groups[["count", "total_ns", "idle_before_ns"]].sum()
    # lower median: the first duration up to which half of them lie
    half = (groups["count"].transform("sum") + 1) // 2
    out["median_ns"] = table[groups["count"].cumsum() >= half].groupby(key)["ns"].first()
    out = out.reset_index()
    measured = intervals["elapsed_ns"].groupby(label).sum()
    out["share"] = out["total_ns"] / measured.reindex(out["label"]).clip(lower=1).to_numpy()
    names = ran.names.iloc[out["name"]]
    out["kernel"] = names["kernel"].to_numpy()
    out["kind"] = np.array(OPERATION_KINDS, dtype=object)[names["kind"]]
    out = out.sort_values(["label", "total_ns", "kernel"], ascending=[True, False, True])
    out["label"] = np.asarray(labels, dtype=object)[out["label"]]
    return frames.check(out.reset_index(drop=True), frames.KERNELS)
