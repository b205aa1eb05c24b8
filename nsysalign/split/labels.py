"""Names, labels and their statistics: intervals measured by the same code share a label;
what ran in them, by name; and labels split by what their intervals did.

An operation belongs, with its whole duration, to the windows in which it begins (for host windows:
in which it was issued).

    for n in (64, 128, 256):                   one call site, three questions: bench.py:14-17 is one label,
        for _ in range(20): time(f, n)         64 blocks, 128 blocks, 256 blocks are its variants

A repetition for which a library chose another kernel of the same cost is not a different question,
nor is a first one that set something up: a variant occurs several times, and other kernel names
count only if their time differs.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import combinations, takewhile
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import FAR, group, ragged
from nsysalign.model import KIND, OPERATION_KINDS
from nsysalign.split.gaps import Explainer
from nsysalign.split.host_timers import issued_by
from nsysalign.split.pieces import operation_codes, operation_names
from nsysalign.text import REPETITION, bytes_text, middle, plural, short_name, told_apart

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
#: Grids are read for at most this many kernels, and for labels whose kernel time varies this much.
_MOST_GRIDS, _SPREAD = 200_000, 0.05
#: A variant occurs at least this often, and in this share of the label; the rest is `other`, as
#: long as it is rare.
_FEWEST, _SHARE, _MOST_OTHER = 3, 0.02, 0.25
#: If there are more variants, they are not kinds of work but depend on the data.
_MOST_VARIANTS = 24
#: Kernels with other names that take equally long are the same work.
_SAME_TIME = 0.1
OTHER = "other"
#: Letters of a kernel's name in the name of a variant.
_LONGEST = 32
_WORK = ["work_count", "work_bytes", "work_names"]


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


def variant_table(ran: Ran, intervals: pd.DataFrame) -> pd.DataFrame:
    """`frames.VARIANTS`: labels whose intervals did different work.  `intervals`: the windows, with
    labels."""
    label, labels = pd.factorize(intervals["label"].where(intervals["kind"] != "run"))
    size = np.bincount(label[label >= 0], minlength=len(labels))
    often = np.flatnonzero(np.append(size >= 2 * _FEWEST, False)[label])  # -1: a run
    if not len(often):
        return frames.empty(frames.VARIANTS)
    work = _work(ran, often)
    work["kernel_only_ns"] = intervals["kernel_only_ns"].to_numpy()
    # there may be thousands of labels: all are looked at together
    groups = work.iloc[often].groupby(label[often])
    several = (groups[_WORK].min() != groups[_WORK].max()).any(axis=1)
    low, high = (groups["kernel_only_ns"].quantile(q) for q in (0.1, 0.9))
    spread = (high - low) > _SPREAD * high
    rows = group(label[often], often)
    # kernel times that vary are perhaps explained by the grids
    varied = [rows[number] for number in spread.index[spread].tolist()]
    work["blocks"] = _blocks(ran, np.sort(np.concatenate([np.empty(0, np.int64), *varied])))
    tables = []
    for number in spread.index[several | spread].tolist():  # in the order of the labels
        own = rows[number]
        texts = _variants(work.iloc[own].reset_index(drop=True), ran)
        if texts is None:
            continue
        those = intervals.iloc[own]
        table = label_table(those.assign(label=texts)).rename(columns={"label": "variant"})
        members = those.groupby(np.asarray(texts, dtype=object))["interval"].agg(tuple)
        table["intervals"] = members.reindex(table["variant"]).to_numpy()
        tables.append(table.assign(label=labels[number]))
    whole = pd.concat(tables, ignore_index=True) if tables else frames.empty(frames.VARIANTS)
    return frames.check(whole, frames.VARIANTS)


def _work(ran: Ran, which: np.ndarray) -> pd.DataFrame:
    """What every window did (0 for those not asked for): operations that begin in it on its stream;
    for host windows, those issued in it: how many, how many bytes, a number for their names, and
    the name of the longest (-1: none)."""
    count = len(ran.windows)
    out = {name: np.zeros(count, np.int64) for name in _WORK}
    main = np.full(count, -1, np.int32)
    size = ran.trace.operations["bytes"].to_numpy()
    # the same names, equally often, have the same sum
    weight = np.random.default_rng(1).integers(1 << 62, size=len(ran.names))
    for window, operation, _ in ran.inside(which):
        name = ran.name[operation]
        for total, values in zip(out.values(), (1, size[operation], weight[name]), strict=True):
            np.add.at(total, window, values)
        order = np.lexsort((ran.start[operation] - ran.end[operation], window))
        longest = order[np.flatnonzero(np.diff(window[order], prepend=-1))]
        main[window[longest]] = name[longest]
    return pd.DataFrame(out | {"main": main}, copy=False)


def _blocks(ran: Ran, chosen: np.ndarray) -> np.ndarray:
    """Blocks of the grids of all kernels in each of some windows, -1 if the trace does not say or
    there are too many kernels, and for other windows."""
    out = np.full(len(ran.windows), -1, np.int64)
    operations = ran.trace.operations
    kernel, row = operations["kind"].to_numpy() == KIND["kernel"], operations["row"].to_numpy()
    held = [(np.empty(0, np.int64), np.empty(0, np.int64))]
    for window, operation, _ in ran.inside(chosen):
        out[window] = 0
        held.append((window[kernel[operation]], row[operation[kernel[operation]]]))
    window, of = map(np.concatenate, zip(*held, strict=True))
    rows, place = np.unique(of, return_inverse=True)
    if ran.trace.shapes is None or len(rows) > _MOST_GRIDS:
        return np.full(len(out), -1, np.int64)
    np.add.at(out, window, np.asarray(ran.trace.shapes(rows))[:, :3].prod(axis=1)[place])
    return out


def _variants(work: pd.DataFrame, ran: Ran) -> list[str] | None:
    """The name of each interval's kind of work in a label, None if all did the same."""
    if (work[[*_WORK, "blocks"]].nunique() == 1).all():
        return None
    # a number per interval: equal for kernels with the same names, and for others that take equally
    # long
    work["class"] = 0
    for rows in work.groupby(["work_count", "work_bytes"]).indices.values():
        of_names = work.iloc[rows].groupby("work_names")["kernel_only_ns"]
        median = of_names.median().sort_values()
        apart = median.to_numpy()[1:] > (1 + _SAME_TIME) * np.maximum(median.to_numpy()[:-1], 1)
        number = pd.Series(np.append(0, np.cumsum(apart)), index=median.index)
        work.loc[rows, "class"] = number.reindex(work["work_names"].iloc[rows]).to_numpy()
    # kernels with other names have other grids: their blocks cannot be compared
    key = ["work_count", "work_bytes", "class"]
    alike = work.groupby(key)["work_names"].transform("nunique") == 1
    work["blocks"] = np.where(alike & (work["blocks"] >= 0).all(), work["blocks"], -1)
    number = work.groupby([*key, "blocks"], sort=False).ngroup().to_numpy()
    size = np.bincount(number)
    kept = np.flatnonzero(size >= max(_FEWEST, _SHARE * len(work)))
    others = len(work) - size[kept].sum()
    if not 2 <= len(kept) <= _MOST_VARIANTS or others > _MOST_OTHER * len(work):
        return None
    first = work.iloc[[int(np.argmax(number == n)) for n in kept]]
    kernels = ran.names["kernel"]
    first = first.assign(main=[kernels[n] if n >= 0 else "" for n in first["main"]])
    texts = dict(zip(kept.tolist(), _named(first), strict=True))
    return [texts.get(n, OTHER) for n in number.tolist()]


def _named(first: pd.DataFrame) -> list[str]:
    """Names for kinds of work, given one interval of each: the fewest words in which all of them
    differ."""
    kernels = [str(text) for text in first["main"]]
    apart = told_apart({n: middle(short_name(n), _LONGEST) for n in kernels}, _LONGEST)
    words = {
        "bytes": [bytes_text(n) if n else "no copies" for n in first["work_bytes"].tolist()],
        "count": [plural(n, "operation") for n in first["work_count"].tolist()],
        "blocks": [plural(n, "block") if n > 0 else "" for n in first["blocks"].tolist()],
        "main": [apart[name] for name in kernels],
    }
    words = {name: texts for name, texts in words.items() if len(set(texts)) > 1}
    names = [""] * len(first)
    for count in range(1, len(words) + 1):
        for chosen in combinations(words, count):
            columns = zip(*(words[c] for c in chosen), strict=True)
            names = [", ".join(filter(None, parts)) for parts in columns]
            if len(set(names)) == len(names) and all(names):
                return names
    # all words together do not tell them apart
    return [f"{name or 'work'} ({number})" for number, name in enumerate(names, 1)]
