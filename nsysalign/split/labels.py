"""Names and labels of intervals, the statistics of labels, and what ran in intervals by name.

label     what all intervals share that the same code measured: `forward`, `bench.py:14-17`
name      what tells one interval from all others: its label with a number, `forward#3`
region    the text that the program gave to an interval (a mark or NVTX range), '' for none
site      a line of code: `bench.py:14`
window    an interval on the timeline: a row of `alignment.windows`
batch     windows that are looked at together, to bound the memory

An operation belongs, with its whole duration, to the windows in which it begins; to a host timer it
belongs if it was issued inside.
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
from nsysalign.intervals import FAR, batches, covered_ns, group, ragged
from nsysalign.model import OPERATION_KINDS
from nsysalign.split.gaps import Explainer
from nsysalign.split.host_timers import issued_by
from nsysalign.split.pieces import operation_codes, operation_names
from nsysalign.text import REPETITION

_REPETITION = re.compile(REPETITION)
#: torch's emit_nvtx numbers every operator; without these numbers, an operator has one label.
_TORCH_NUMBERS = re.compile(r",? ?\b(op_id|seq|sequence number) ?= ?\d+|, op_ids? = \[[^]]*\]")
#: A number that stands by itself in a name: `blocks.3.attn`, `step 12`, `layers[4]`; not `conv1`
#: and not `(stream 7)`.
_NUMBERED = re.compile(r"(?:(?<=[./_: \-\[])|^)\d{1,9}(?=[./_: \-\]]|$)")
#: Names that differ only in such numbers share a label from this many names on.
_FEWEST_NUMBERED = 4
#: Pairs of a window and an operation in it that are held at once.
_AT_ONCE = 1 << 18
#: So many rows are added up together with others.
_FEW = 1 << 12
#: An outer range holds the work of all ranges nested in it: each level of ranges counts all operations once more.  If
#: the windows of a stream together hold more than _MANY operations and over _TIMES_AS_MANY times as many as exist, that
#: would take too long, and these are not counted one by one: the windows' labels have no rows in `kernels`.
_MANY, _TIMES_AS_MANY = 1 << 22, 8


def plain_region(text: str) -> str:
    """Return a region's text without the number of its repetition and torch's numbers of operators."""
    return _TORCH_NUMBERS.sub("", _REPETITION.sub("", text)).strip() or text


def common_names(names: Iterable[str]) -> dict[str, str]:
    """Return name -> common name (`blocks.*`) for numbered names: `blocks.0` ... `blocks.31`.

    The numbers must count from 0 or 1 without a gap; `batch_64` and `batch_128` name different
    things.  Names that have no common name are left out.
    """
    families: dict[tuple[str, int], dict[str, tuple[int, ...]]] = {}
    for name in dict.fromkeys(names):
        if numbers := tuple(int(n) for n in _NUMBERED.findall(name)):
            # the count of numbers, too, as a name may have a * in its text
            family = _NUMBERED.sub("*", name), len(numbers)
            families.setdefault(family, {})[name] = numbers
    out: dict[str, str] = {}
    for (family_name, _), members in families.items():
        # the values that each number of the names takes
        values = [sorted(set(column)) for column in zip(*members.values(), strict=True)]
        if len(members) >= _FEWEST_NUMBERED and all(map(_counts_up, values)):
            out |= dict.fromkeys(members, family_name)
    return out


def _counts_up(numbers: list[int]) -> bool:
    """Return whether these numbers, sorted and distinct, count from 0 or 1 without a gap, or are only one."""
    is_without_gap = numbers[-1] - numbers[0] + 1 == len(numbers)
    return len(numbers) == 1 or (numbers[0] < 2 and is_without_gap)


def name_intervals(windows: pd.DataFrame) -> tuple[list[str], list[str]]:
    """Return (a unique name, a label) for each window (measured interval).  Repetitions of the same timing share a label:
    `step#0` and `step#1` have the label `step`.

    A label is the text of the region without the number of its repetition.  Without a region it is
    made of the sites: `bench.py:14-17` for a pair that was recorded in lines 14 and 17.  If the same
    two sites have several callers (a Timer class), the first caller in which they differ names the
    label.  Numbered NVTX ranges share a label (`common_names`).

    Host timers are labelled by themselves, so that they do not change other labels: the label of a
    host timer that other windows have already gets the suffix `(host)`, that of a run `(all)`.
    """
    regions, labels = _with_suffixes(windows)
    # before ranges get their common labels: a window named blocks.7#0 keeps its name in the label blocks.*
    names = _unique_names(regions, labels)
    is_range = (windows["kind"] == "nvtx").to_numpy()
    return names, _with_common_labels(labels, is_range)


def _with_suffixes(windows: pd.DataFrame) -> tuple[list[str], list[str]]:
    """Return (region, label) of each window.  Where windows of an earlier kind have its label, it gets the suffix of its
    kind; so does its region, from which its name is made: `step (host)#3`.

    Events and ranges come first and need no suffix; then host timers, then runs.
    """
    kinds = windows["kind"].to_numpy(dtype=object)
    is_host, is_run = kinds == "host", kinds == "run"
    no_suffix = ""
    regions = windows["region"].tolist()
    labels = [""] * len(windows)
    taken_labels: set[str] = set()
    for of_kind, suffix in (
        (~is_host & ~is_run, no_suffix),
        (is_host, " (host)"),
        (is_run, " (all)"),
    ):
        labels_of_kind = _labels(windows[of_kind])
        for window, label in zip(np.flatnonzero(of_kind).tolist(), labels_of_kind, strict=True):
            labels[window] = label
            if label in taken_labels:
                labels[window] = sys.intern(label + suffix)
                regions[window] = _REPETITION.sub(rf"{suffix}#\1", regions[window])
        taken_labels |= set(labels_of_kind)
    return regions, labels


def _with_common_labels(labels: list[str], is_range: np.ndarray) -> list[str]:
    """Return the labels, with `blocks.*` for the ranges `blocks.0`, `blocks.1`, ...; but not if something else has this
    label, which would then mean two things.

    is_range: per window, whether it is an NVTX range
    """
    known_labels = set(labels)
    ranges = np.flatnonzero(is_range).tolist()
    common = common_names(labels[window] for window in ranges)
    out = list(labels)
    for window in ranges:
        common_label = common.get(labels[window])
        if common_label is not None and common_label not in known_labels:
            out[window] = common_label
    return out


def _unique_names(regions: list[str], labels: list[str]) -> list[str]:
    """Return a unique name for each window, from the text of its region and its label.

    This is the region with the number of its repetition, or else the label with the next number
    that is free: two processes (ranks) may measure the same regions.
    """
    next_number: Counter[str] = Counter()
    names: dict[str, None] = {}
    for region, label in zip(regions, labels, strict=True):
        name = region if _REPETITION.search(region) else None
        while name is None or name in names:
            name = f"{label}#{next_number[label]}"
            next_number[label] += 1
        names[name] = None
    return list(names)


def _labels(windows: pd.DataFrame) -> list[str]:
    """Return the label of each window, from its region, or else from its sites (where the source records it): `step` for the
    region `step#3`, `bench.py:14-17` for records in lines 14 and 17, or `train.py:9 (timer.py:3-5)` where a Timer class
    is called from several places.
    """
    short = _short_sites(windows)
    columns = [windows[name].tolist() for name in ("region", "site", "end_site", "callers", "kind")]
    # a window's values in these columns -> its label; many windows have the same values
    labels = dict.fromkeys(zip(*columns, strict=True), "")
    # the two sites of a pair as one text -> all lists of callers that they have
    callers_of: dict[str, set[tuple[str, ...]]] = {}
    for region, site, end_site, callers, _ in labels:
        if not region:
            sites = _sites_as_text(short[site], short[end_site])
            callers_of.setdefault(sites, set()).add(tuple(short[caller] for caller in callers))
    # how many callers, from the first one on, are the same in all these lists
    common = {sites: _common_length(lists) for sites, lists in callers_of.items()}
    for row in labels:
        region, site, end_site, callers, kind = row
        if region:
            label = plain_region(region)
        else:
            sites = _sites_as_text(short[site], short[end_site])
            label = sites or f"{kind} interval"
            differing = callers[common[sites] :]
            if differing:
                label = f"{short[differing[0]]} ({sites})"
        labels[row] = sys.intern(label)  # one text per label, not per interval
    # the tuples are made a second time: to keep one for each window would take much memory
    return [labels[row] for row in zip(*columns, strict=True)]


def _short_sites(windows: pd.DataFrame) -> dict[str, str]:
    """Return site -> its text without the folder, or with it if two files have the same name."""
    sites = {site for column in ("site", "end_site") for site in windows[column].unique()}
    sites |= {site for calls in windows["callers"].unique() for site in calls}
    files = {site.rpartition(":")[0] for site in sites if ":" in site}
    count = Counter(file.rpartition("/")[2] for file in files)
    out = {}
    for site in sites:
        without_folder = site.rpartition("/")[2]
        file_name = without_folder.rpartition(":")[0]
        out[site] = without_folder if count[file_name] == 1 else site
    return out


def _common_length(callers: set[tuple[str, ...]]) -> int:
    """Return how many callers, from the first one on, are the same in all these lists of callers."""
    levels = zip(*callers, strict=False)
    return len([*takewhile(lambda sites: len(set(sites)) == 1, levels)])


def _sites_as_text(site: str, end_site: str) -> str:
    """Return two sites as one text, '' where there is none: `bench.py:14-17`."""
    if not site or not end_site or site == end_site:
        return site or end_site
    file, _, line = site.rpartition(":")
    end_file, _, end_line = end_site.rpartition(":")
    return f"{file}:{line}-{end_line}" if file == end_file else f"{site}-{end_site}"


def label_table(intervals: pd.DataFrame) -> pd.DataFrame:
    """Return `frames.LABELS`: a row per label, in order of first appearance.

    intervals: `frames.INTERVALS`
    """
    if intervals.empty:
        return frames.empty(frames.LABELS)
    out = label_statistics(intervals).join(_overlaps_of_labels(intervals), on="label")
    return frames.check(out.assign(inside=""), frames.LABELS)


def label_statistics(intervals: pd.DataFrame) -> pd.DataFrame:
    """Return the statistics of the measured times of each label (count, median, mean, quantiles, ... in ns): the columns of
    `frames.LABELS` about these, a row per label, in order of first appearance.

    intervals: `frames.INTERVALS`

    `row` and `row_interval` are the name and number of the interval that has the label's lower-median time.
    """
    ordered = intervals.sort_values(["label", "elapsed_ns", "interval"], kind="stable")
    groups = ordered.groupby("label", sort=False)
    middle = (groups["label"].transform("size") - 1) // 2  # the lower of two
    is_median = groups.cumcount() == middle
    medians = ordered[is_median].set_index("label")[["kind", "name", "interval", "site"]]
    medians = medians.rename(columns={"name": "row", "interval": "row_interval"})
    elapsed = groups["elapsed_ns"]
    out = elapsed.agg(["median", "mean", "std", "min", "max"]).add_suffix("_ns").join(medians)
    out = out.assign(
        count=groups.size(),
        p05_ns=elapsed.quantile(0.05),
        p95_ns=elapsed.quantile(0.95),
        library=groups["library"].all(),
        total_ns=elapsed.sum(),
    )
    first = groups["interval"].min()
    return out.loc[first.sort_values().index].reset_index()


def _overlaps_of_labels(intervals: pd.DataFrame) -> pd.DataFrame:
    """Return, per label, (span_ns: how long at least one of its intervals lasted; overlapping: whether
    intervals of one process overlap by more than the error of their places).
    """
    ordered = intervals.sort_values(["label", "start_ns"], kind="stable")
    start = ordered["start_ns"].to_numpy()
    end = ordered["end_ns"].to_numpy()
    error = ordered["error_ns"].to_numpy()
    label, _ = pd.factorize(ordered["label"])
    latest_end = _latest_end_before(ordered["end_ns"], [label])
    # what each interval adds to the time that those of its label before it have covered
    added = np.maximum(end - np.maximum(start, latest_end), 0)
    latest_in_process = _latest_end_before(ordered["end_ns"], [label, ordered["pid"].to_numpy()])
    slack = np.minimum(2 * error + 1_000, end - start)  # neighbours that share a record touch
    overlapping = start + slack < latest_in_process
    table = pd.DataFrame({"span_ns": added, "overlapping": overlapping})
    names = ordered["label"].to_numpy(dtype=object)
    return table.groupby(names).agg({"span_ns": "sum", "overlapping": "any"})


def _latest_end_before(end_ns: pd.Series, keys: list[np.ndarray]) -> np.ndarray:
    """Return, per row, the latest end of the rows before it with the same keys, -FAR for none."""
    latest = end_ns.groupby(keys).cummax()
    return latest.groupby(keys).shift(fill_value=-FAR).to_numpy()


class Inside(NamedTuple):
    """Pairs of a window and an operation in it: arrays of equal length.

    window, operation: positions
    idle:              for how long (ns) the window's stream had been idle in the window before the
                       operation
    """

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
        #: Per operation, the number of its name.
        self.name = groups.ngroup().to_numpy(np.int32)[code]
        #: By number of a name: its text (`kernel`) and the kind of its operations.
        self.names = groups.size().reset_index()
        self.of_lane = lru_cache(maxsize=None)(self._of_lane)

    def _of_lane(self, lane: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (the operations of a lane, sorted by start; how long the lane had been idle before
        each of them: int64 ns, 0 for the first)."""
        operations = self.explainer.streams.positions(lane)
        idle = np.zeros(len(operations), np.int64)
        latest_end = np.maximum.accumulate(self.end[operations])
        start = self.start[operations]
        idle[1:] = np.maximum(start[1:] - latest_end[:-1], 0)
        return operations, idle

    def inside(self, windows: np.ndarray) -> Iterator[Inside]:
        """Yield the operations in these windows, in batches; all of a window are in one batch."""
        kind = self.windows["kind"].to_numpy()[windows]
        lane = self.windows["end_lane"].to_numpy()
        process = self.windows["process"].to_numpy()
        host_timers = windows[kind == "host"]
        runs = windows[kind == "run"]
        on_streams = windows[(kind != "host") & (kind != "run")]
        for stretches in (on_streams, runs):
            for number, on_lane in group(lane[stretches], stretches).items():
                operations, idle = self.of_lane(number)
                yield from self._in_batches(on_lane, operations, self.start[operations], idle)
        for number, of_process in group(process[host_timers], host_timers).items():
            operations, issue = issued_by(self.trace, number)
            not_idle = np.zeros(len(operations), np.int64)
            yield from self._in_batches(of_process, operations, issue, not_idle)

    def _in_batches(
        self, windows: np.ndarray, operations: np.ndarray, time: np.ndarray, idle: np.ndarray
    ) -> Iterator[Inside]:
        """Yield which of these operations lie in which of these windows, in batches of pairs; nothing if there are far
        too many pairs (_MANY, _TIMES_AS_MANY): ranges in ranges in ranges.

        windows:    numbers of windows
        operations: positions
        time: when (ns) each operation begins or was issued, rising; inside a window this puts the
              operation into it
        idle: for how long (ns) the stream had been idle before each operation
        """
        opened = self.windows["start_ns"].to_numpy()
        closed = self.windows["end_ns"].to_numpy()
        first = np.searchsorted(time, opened[windows])
        stop = np.searchsorted(time, closed[windows])
        count = np.maximum(stop - first, 0)
        if count.sum() > max(_MANY, _TIMES_AS_MANY * len(time)):
            return
        for rows in batches(count, _AT_ONCE):
            owner, place = ragged(first[rows], count[rows])
            window = windows[rows[owner]]
            operation = operations[place]
            # idle time before the window does not count
            since_opened = np.maximum(self.start[operation] - opened[window], 0)
            yield Inside(window, operation, np.minimum(idle[place], since_opened))


def kernel_table(ran: Ran, intervals: pd.DataFrame) -> pd.DataFrame:
    """Return `frames.KERNELS`, what ran in the intervals of each label: a row per label and name of an operation, with how
    often it ran, how long in all and as a share of the label's measured time, its median (ns), and for how long the stream
    was idle before it (ns, in all).

    Labels come in the order of their intervals, each with the name first that took most time.

    intervals: columns label and elapsed_ns, a row per window
    """
    label, labels = pd.factorize(intervals["label"])  # numbers, in the order in which they appear
    table = _counts_by_duration(ran, label)
    if table.empty:
        return frames.empty(frames.KERNELS)
    key = ["label", "name"]
    groups = table.assign(total_ns=table["ns"] * table["count"]).groupby(key)
    out = groups[["count", "total_ns", "idle_before_ns"]].sum()
    # the lower median is the shortest duration that at least half of them do not exceed
    half = (groups["count"].transform("sum") + 1) // 2
    so_far = groups["count"].cumsum()  # of a name the shorter durations come first
    out["median_ns"] = table[so_far >= half].groupby(key)["ns"].first()
    out = out.reset_index()
    measured_ns = intervals["elapsed_ns"].groupby(label).sum()
    measured_ns = measured_ns.reindex(out["label"]).clip(lower=1).to_numpy()
    out["share"] = _shared_ns(ran, out, label) / measured_ns
    names = ran.names.iloc[out["name"]]
    out["kernel"] = names["kernel"].to_numpy()
    out["kind"] = np.array(OPERATION_KINDS, dtype=object)[names["kind"]]
    out = out.sort_values(["label", "total_ns", "kernel"], ascending=[True, False, True])
    out["label"] = np.asarray(labels, dtype=object)[out["label"]]
    return frames.check(out.reset_index(drop=True), frames.KERNELS)


def _shared_ns(ran: Ran, ran_of_label: pd.DataFrame, label: np.ndarray) -> np.ndarray:
    """Return, per row of a label and a name of an operation, how long (ns) such operations took: in all; of a run, which
    several streams may share, for how long at least one of them ran.

    ran_of_label: columns label and name (numbers), total_ns
    label: per window, the number of its label
    """
    union_ns = Counter[tuple[int, int]]()
    windows = np.flatnonzero(ran.windows["kind"].to_numpy() == "run")
    for window in windows.tolist():
        operations, _ = ran.of_lane(int(ran.windows["end_lane"].iloc[window]))
        low, high = ran.windows[["start_ns", "end_ns"]].iloc[window]
        inside = slice(*np.searchsorted(ran.start[operations], (low, high)))
        operations = operations[inside]
        for name, of_name in group(ran.name[operations], operations).items():
            union_ns[label[window], name] += covered_ns(ran.start[of_name], ran.end[of_name])
    rows = zip(ran_of_label["label"], ran_of_label["name"], ran_of_label["total_ns"], strict=True)
    return np.array([union_ns[number, name] or total_ns for number, name, total_ns in rows])


def _counts_by_duration(ran: Ran, label: np.ndarray) -> pd.DataFrame:
    """Return how often operations of each label, name and duration ran: a row for each, sorted by these, with the
    columns label and name (numbers), ns (the duration), count, and idle_before_ns (how long their streams had been idle
    before them, in all); no row if nothing ran.

    label: per window, the number of its label
    """
    length = ran.end - ran.start
    key = ["label", "name", "ns"]
    parts = [pd.DataFrame(columns=[*key, "count", "idle_before_ns"], dtype=np.int64)]
    for inside in ran.inside(np.arange(len(label))):
        # a batch may be large, as a run is a single window
        for begin in range(0, len(inside.window), _AT_ONCE):
            window, operation, idle = (column[begin : begin + _AT_ONCE] for column in inside)
            columns = {
                "label": label[window],
                "name": ran.name[operation],
                "ns": length[operation],
                "count": 1,
                "idle_before_ns": idle,
            }
            rows = pd.DataFrame(columns)
            parts.append(rows if len(rows) < _FEW else rows.groupby(key, as_index=False).sum())
    filled = [part for part in parts if len(part)] or parts[:1]  # pandas 2 warns of empty tables
    return pd.concat(filled, ignore_index=True).groupby(key, as_index=False).sum()


def labels_around(windows: pd.DataFrame, labels: pd.Series) -> dict[str, str]:
    """Return label -> the label around it, for labels of NVTX ranges that another range wraps.

    step     [            ]      [            ]
    forward    [  a  b  ]          [  a  b  ]        step is around forward: the same work, one row

    Each range of the inner label lies directly in a range of the outer label, on the same thread,
    and the outer range issued no other work.

    windows: `alignment.windows`
    labels:  the label of each window
    """
    is_range = windows["kind"] == "nvtx"
    # a stream, the first start and last end of work on it: equal for ranges of the same work
    span = ["end_lane", "start_ns", "end_ns"]
    ranges = windows.loc[is_range, [*span, "thread", "open_ns", "close_ns"]]
    ranges = ranges.assign(label=labels[is_range])
    # ranges of the same work come together, the outermost first
    ranges = ranges.sort_values(
        [*span, "open_ns", "close_ns"], ascending=[True, True, True, True, False]
    )
    before = ranges.groupby(span)[["label", "thread", "close_ns"]].shift()
    inside = before["thread"] == ranges["thread"]
    inside &= before["close_ns"] >= ranges["close_ns"]
    around = before["label"].where(inside, "")
    out = {}
    for label, outer_labels in around.groupby(ranges["label"]):
        outer = str(outer_labels.iloc[0])
        if outer not in ("", label) and (outer_labels == outer).all():
            out[str(label)] = outer
    return out
