"""What ran in the windows: how often, how long and after how long a pause, by name; and labels split
by what their intervals did.

An operation belongs, with its whole duration, to the windows in which it begins (for host windows:
in which it was issued).

    for n in (64, 128, 256):                   one call site, three questions: bench.py:14-17 is one label,
        for _ in range(20): time(f, n)         64 blocks, 128 blocks, 256 blocks are its variants

A repetition for which a library chose another kernel of the same cost is not a different question,
nor is a first one that set something up: a variant occurs several times, and other kernel names
count only if their time differs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import group, ragged
from nsysalign.model import KIND, OPERATION_KINDS, Trace
from nsysalign.split.busy import Streams
from nsysalign.split.labels import label_table
from nsysalign.split.pieces import operation_names
from nsysalign.text import told_apart

#: Pairs of a window and an operation in it that are held at once.
_AT_ONCE = 1 << 19
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


class Inside(NamedTuple):
    """Operations in windows: arrays of equal length, sorted by window; `idle`: for how long the
    window's stream had been idle before the operation, in the window."""

    window: np.ndarray
    operation: np.ndarray
    idle: np.ndarray


class Ran:
    """The operations of a trace by name, by lane and by window."""

    def __init__(self, trace: Trace, streams: Streams, windows: pd.DataFrame) -> None:
        self.trace, self.streams, self.windows = trace, streams, windows
        self._lanes: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        count = len(windows)
        #: Where a window's operations are kept: of a lane, of host windows of a process, of a run.
        self._home = np.zeros(count, np.int64)
        self._homes: list[tuple[np.ndarray, np.ndarray]] = []
        self._first, self.count = np.zeros(count, np.int64), np.zeros(count, np.int64)
        kind, opened, closed = (windows[c].to_numpy() for c in ("kind", "start_ns", "end_ns"))
        begin = trace.operations["start_ns"].to_numpy()
        for of_run in (True, False):
            there = np.flatnonzero(((kind == "run") == of_run) & (kind != "host"))
            for lane, which in group(windows["end_lane"].to_numpy()[there], there).items():
                own, idle = self.of_lane(lane)
                self._place(which, begin[own], own, idle, opened, closed)
        hosts, call = np.flatnonzero(kind == "host"), trace.operations["call"].to_numpy()
        issue = trace.calls["start_ns"].to_numpy()
        for process, which in group(windows["process"].to_numpy()[hosts], hosts).items():
            of_process = trace.operations["process"].to_numpy() == process
            own = np.flatnonzero((call >= 0) & of_process)
            own = own[np.argsort(issue[call[own]], kind="stable")]
            idle = np.zeros(len(own), np.int64)
            self._place(which, issue[call[own]], own, idle, opened, closed)

    def _place(self, which, times, own, idle, opened, closed) -> None:
        """Windows hold the operations `own` whose (rising) times lie in them."""
        first, last = (np.searchsorted(times, t[which]) for t in (opened, closed))
        count = np.maximum(last - first, 0)
        if count.sum() <= max(_MANY, _TIMES * len(times)):
            self._first[which], self.count[which] = first, count
        self._home[which] = len(self._homes)
        self._homes.append((own, idle))

    @cached_property
    def codes(self) -> tuple[np.ndarray, np.ndarray]:
        """(number of each operation's name, one operation per name)."""
        return operation_codes(self.trace.operations)

    def of_lane(self, lane: int) -> tuple[np.ndarray, np.ndarray]:
        """(operations of a lane, by start; how long it had been idle before each, 0 before the
        first)."""
        if lane not in self._lanes:
            own = self.streams.positions(lane)
            start, end = (self.trace.operations[c].to_numpy()[own] for c in ("start_ns", "end_ns"))
            idle = np.zeros(len(own), np.int64)
            np.maximum(start[1:] - np.maximum.accumulate(end)[:-1], 0, out=idle[1:])
            self._lanes[lane] = own, idle
        return self._lanes[lane]

    def inside(self, windows: np.ndarray) -> Iterator[Inside]:
        """Operations of these windows, in lots; a window is in one lot."""
        windows = windows[self.count[windows] > 0]
        windows = windows[np.argsort(self._home[windows], kind="stable")]
        lot = np.cumsum(self.count[windows]) // _AT_ONCE
        start = self.trace.operations["start_ns"].to_numpy()
        for some in np.split(windows, np.flatnonzero(np.diff(lot)) + 1):
            parts = []
            for home, which in group(self._home[some], some).items():
                own, idle = self._homes[home]
                owner, place = ragged(self._first[which], self.count[which])
                parts.append((which[owner], own[place], idle[place]))
            if not parts:
                return
            window, operation, before = (np.concatenate(c) for c in zip(*parts, strict=True))
            # before a window it does not count
            opened = self.windows["start_ns"].to_numpy()[window]
            since = np.maximum(start[operation] - opened, 0)
            yield Inside(window, operation, np.minimum(before, since))


def operation_codes(operations: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """(number of each operation's name, one operation per name)."""
    code = np.zeros(len(operations), np.int64)
    for column in ("kind", "name_id", "copy_kind", "src_kind", "dst_kind"):
        given = operations[column].to_numpy()
        if len(given) and (given == given[0]).all():  # does not distinguish anything
            continue
        numbers, values = pd.factorize(given)
        code = pd.factorize(code * len(values) + numbers)[0]
    # numbers are given in order of appearance: a name's first operation is where the number exceeds
    # all before it
    return code, np.flatnonzero(np.diff(np.maximum.accumulate(code), prepend=-1))


def kernel_table(ran: Ran, intervals: pd.DataFrame) -> pd.DataFrame:
    """`frames.KERNELS`: labels in the order of their intervals, each with its most expensive names
    first.  `intervals`: the windows, with labels."""
    trace, operations = ran.trace, ran.trace.operations
    code, example = ran.codes
    length = (operations["end_ns"] - operations["start_ns"]).to_numpy()
    # equal names of different kinds of operations, or of different copies, are one name
    kind = operations["kind"].to_numpy()[example]
    texts = pd.DataFrame({"kernel": operation_names(trace, example), "kind": kind})
    same = texts.groupby(["kernel", "kind"], sort=True).ngroup().to_numpy()
    number, labels = pd.factorize(intervals["label"])  # in the order in which they appear
    rows = [np.empty((5, 0), np.int64)]
    for inside in ran.inside(np.arange(len(number))):
        name = number[inside.window] * len(example) + same[code[inside.operation]]
        # how often each duration occurs under each name
        lengths, values = pd.factorize(length[inside.operation])
        row, keys = pd.factorize(name * len(values) + lengths)
        idle = np.zeros(len(keys), np.int64)
        np.add.at(idle, row, inside.idle)
        name, ns = keys // len(values), values[keys % len(values)]
        rows.append(
            np.stack([name // len(example), name % len(example), ns, np.bincount(row), idle])
        )
    columns = ["place", "text", "ns", "count", "idle_before_ns"]
    table = pd.DataFrame(dict(zip(columns, np.concatenate(rows, axis=1), strict=True)))
    if table.empty:
        return frames.empty(frames.KERNELS)
    table = table.sort_values(["place", "text", "ns"], ignore_index=True)
    groups = table.assign(total_ns=table["ns"] * table["count"]).groupby(["place", "text"])
    out = groups[["count", "total_ns", "idle_before_ns"]].sum().reset_index()
    # lower median: the first duration up to which half of them lie
    half = (groups["count"].transform("sum") + 1) // 2
    reached = table[groups["count"].cumsum() >= half]
    out["median_ns"] = reached.groupby(["place", "text"])["ns"].first().to_numpy()
    first = np.unique(same, return_index=True)[1]
    out["kernel"] = texts["kernel"].to_numpy()[first[out["text"]]]
    out["kind"] = np.array(OPERATION_KINDS, dtype=object)[kind[first[out["text"]]]]
    out["label"] = np.asarray(labels, dtype=object)[out["place"]]
    measured = intervals["elapsed_ns"].groupby(number).sum().to_numpy()
    out["share"] = out["total_ns"] / np.maximum(measured[out["place"]], 1)
    order = ["place", "total_ns", "kernel"]
    out = out.sort_values(order, ascending=[True, False, True], ignore_index=True)
    return frames.check(out, frames.KERNELS)


def variant_table(ran: Ran, intervals: pd.DataFrame) -> pd.DataFrame:
    """`frames.VARIANTS`: labels whose intervals did different work.  `intervals`: the windows, with
    labels."""
    work = _work(ran, np.flatnonzero(intervals["kind"] != "run")).assign(
        kernel_only_ns=intervals["kernel_only_ns"].to_numpy()
    )
    label = intervals["label"].where(intervals["kind"] != "run")
    often = np.flatnonzero(label.groupby(label).transform("size") >= 2 * _FEWEST)
    if not len(often):
        return frames.empty(frames.VARIANTS)
    # there may be thousands of labels: all are processed together
    groups = work.iloc[often].groupby(label.iloc[often].to_numpy(), sort=False)
    several = (groups[_WORK].nunique() > 1).any(axis=1)
    low, high = (groups["kernel_only_ns"].quantile(q) for q in (0.1, 0.9))
    spread = (high - low) > _SPREAD * high
    chosen = {key: often[rows] for key, rows in groups.indices.items() if (several | spread)[key]}
    # kernel times that vary are perhaps explained by the grids
    varied = [rows for key, rows in chosen.items() if spread[key]]
    work["blocks"] = _blocks(ran, np.sort(np.concatenate([np.empty(0, np.int64), *varied])))
    tables = []
    for name in sorted(chosen, key=lambda key: chosen[key][0]):  # in the order of the labels
        own = intervals.iloc[chosen[name]]
        texts = _variants(work.iloc[chosen[name]].reset_index(drop=True))
        if texts is None:
            continue
        table = label_table(own.assign(label=texts)).rename(columns={"label": "variant"})
        members = own.groupby(np.asarray(texts, dtype=object))["interval"].agg(
            lambda n: tuple(n.tolist())
        )
        table["intervals"] = members.reindex(table["variant"]).to_numpy()
        tables.append(table.assign(label=name))
    whole = pd.concat(tables, ignore_index=True) if tables else frames.empty(frames.VARIANTS)
    return frames.check(whole, frames.VARIANTS)


def _work(ran: Ran, measured: np.ndarray) -> pd.DataFrame:
    """What every window did (0 and '' for runs): operations that begin in it on its stream; for
    host windows, those issued in it: how many, how many bytes, a number for their names, and the
    name of the longest."""
    operations, (code, example) = ran.trace.operations, ran.codes
    moved, names = np.zeros((2, len(ran.windows)), np.int64)
    main = np.full(len(ran.windows), "", dtype=object)
    texts = operation_names(ran.trace, example)
    digests = (hashlib.blake2s(str(t).encode("utf-8", "replace"), digest_size=8) for t in texts)
    digest = np.array(
        [int.from_bytes(d.digest(), "little", signed=True) for d in digests], np.int64
    )
    size = operations["bytes"].to_numpy()
    took = (operations["end_ns"] - operations["start_ns"]).to_numpy()
    for window, operation, _ in ran.inside(measured):
        first = np.flatnonzero(np.diff(window, prepend=-1))
        own = window[first]
        moved[own] = np.add.reduceat(size[operation], first)
        with np.errstate(over="ignore"):
            names[own] = np.add.reduceat(digest[code[operation]], first)
        most = np.repeat(np.maximum.reduceat(took[operation], first), ran.count[own])
        longest = np.flatnonzero(took[operation] == most)
        owner, place = np.unique(window[longest], return_index=True)
        main[owner] = texts[code[operation[longest[place]]]]
    count = np.zeros(len(ran.windows), np.int64)
    count[measured] = ran.count[measured]
    return pd.DataFrame(dict(zip([*_WORK, "main"], (count, moved, names, main), strict=True)))


def _blocks(ran: Ran, chosen: np.ndarray) -> np.ndarray:
    """Blocks of the grids of all kernels in each of some windows, -1 if the trace does not say or
    there are too many kernels, and for other windows."""
    out = np.full(len(ran.windows), -1, np.int64)
    operations = ran.trace.operations
    kernel, row = operations["kind"].to_numpy() == KIND["kernel"], operations["row"].to_numpy()
    some = [
        (i.window[kernel[i.operation]], row[i.operation[kernel[i.operation]]])
        for i in ran.inside(chosen)
    ]
    if not some or ran.trace.shapes is None:
        return out
    window, of = (np.concatenate(c) for c in zip(*some, strict=True))
    rows, place = np.unique(of, return_inverse=True)
    if len(rows) <= _MOST_GRIDS:
        out[chosen] = np.where(ran.count[chosen] > 0, 0, -1)
        np.add.at(out, window, np.asarray(ran.trace.shapes(rows))[:, :3].prod(axis=1)[place])
    return out


def _variants(work: pd.DataFrame) -> list[str] | None:
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
    first = work.iloc[[int(np.flatnonzero(number == n)[0]) for n in kept]]
    texts = dict(zip(kept.tolist(), _named(first), strict=True))
    return [texts.get(n, OTHER) for n in number.tolist()]


def _named(first: pd.DataFrame) -> list[str]:
    """Names for kinds of work, given one interval of each: the fewest words in which all of them
    differ."""
    words = {
        "bytes": [_bytes(n) for n in first["work_bytes"].tolist()],
        "count": [f"{n:,} operation{'s' * (n != 1)}" for n in first["work_count"].tolist()],
        "blocks": [
            f"{n:,} block{'s' * (n != 1)}" if n > 0 else "" for n in first["blocks"].tolist()
        ],
        "main": _kernels([str(text) for text in first["main"]]),
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


def _bytes(count: int) -> str:
    if not count:
        return "no copies"
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} B"


def _kernels(names: list[str]) -> list[str]:
    """Short names of kernels: without arguments, templates and namespaces; if these are equal, the
    part that differs."""
    plain = {
        n: n.partition("(")[0].partition("<")[0].rpartition("::")[2].strip() or n for n in names
    }
    short = {
        n: text if len(text) <= _LONGEST else f"…{text[1 - _LONGEST :]}"
        for n, text in plain.items()
    }
    apart = told_apart(short, _LONGEST)
    return [apart[name] for name in names]
