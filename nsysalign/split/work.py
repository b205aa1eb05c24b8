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
_AT_ONCE = 1 << 21
#: Durations are counted this many at a time: one table of all would be the largest thing in memory.
_COUNTED_AT_ONCE = 1 << 17
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
    """Operations in windows: arrays of equal length; `idle`: for how long the window's stream had
    been idle before the operation, in the window."""

    window: np.ndarray
    operation: np.ndarray
    idle: np.ndarray


class Ran:
    """The operations of a trace by name, by lane and by window."""

    def __init__(self, trace: Trace, streams: Streams, windows: pd.DataFrame) -> None:
        self.trace, self.streams, self.windows = trace, streams, windows
        self._lanes: dict[int, tuple[np.ndarray, np.ndarray]] = {}

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

    def inside(self, runs: bool = True) -> Iterator[Inside]:
        """Batch by batch, a whole window in one batch: runs first (if wanted), then measured
        windows."""
        some: list[Inside] = []
        held = 0
        for batch in self._inside(runs):
            some.append(batch)
            held += len(batch.window)
            if held >= _COUNTED_AT_ONCE:
                yield Inside(*(np.concatenate(c) for c in zip(*some, strict=True)))
                some, held = [], 0
        if some:
            yield Inside(*(np.concatenate(c) for c in zip(*some, strict=True)))

    def _inside(self, runs: bool) -> Iterator[Inside]:
        """The same lane by lane, and of host windows process by process."""
        w, operations = self.windows, self.trace.operations
        start, call = operations["start_ns"].to_numpy(), operations["call"].to_numpy()
        kind, lane = w["kind"].to_numpy(dtype=object), w["end_lane"].to_numpy()
        opened, closed = w["start_ns"].to_numpy(), w["end_ns"].to_numpy()
        for of_run in (True, False) if runs else (False,):
            there = ((kind == "run") == of_run) & (kind != "host")
            for number, which in group(lane[there], np.flatnonzero(there)).items():
                own, idle = self.of_lane(number)
                for window, place in _lots(which, start[own], opened, closed):
                    before = idle[place]
                    first = np.flatnonzero(np.diff(window, prepend=-1))
                    since = start[own[place[first]]] - opened[window[first]]
                    before[first] = np.minimum(before[first], since)
                    yield Inside(window, own[place], before)
        hosts = np.flatnonzero(kind == "host")
        if not len(hosts):
            return
        issued = np.flatnonzero(call >= 0)
        issue = self.trace.calls["start_ns"].to_numpy()[call[issued]]
        by_issue = np.argsort(issue, kind="stable")
        issued, issue = issued[by_issue], issue[by_issue]
        process = operations["process"].to_numpy()[issued]
        for number, which in group(w["process"].to_numpy()[hosts], hosts).items():
            own = np.flatnonzero(process == number)
            for window, place in _lots(which, issue[own], opened, closed):
                yield Inside(window, issued[own[place]], np.zeros(len(window), np.int64))


def _lots(
    which: np.ndarray, times: np.ndarray, opened: np.ndarray, closed: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(window, place in the sorted `times`) of all times in windows, a few million at a time."""
    first, last = np.searchsorted(times, opened[which]), np.searchsorted(times, closed[which])
    count = np.maximum(last - first, 0)
    if count.sum() > max(_MANY, _TIMES * len(times)):
        return
    lot = (np.cumsum(count) - count) // _AT_ONCE
    for number in np.unique(lot[count > 0]).tolist():
        some = np.flatnonzero((lot == number) & (count > 0))
        owner, place = ragged(first[some], count[some])
        yield which[some][owner], place


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
    number, labels = pd.factorize(intervals["label"])  # in the order in which they appear
    tables = []
    for inside in ran.inside():
        for begin in range(0, len(inside.window), _COUNTED_AT_ONCE):
            lot = Inside(*(column[begin : begin + _COUNTED_AT_ONCE] for column in inside))
            name = number[lot.window] * len(example) + code[lot.operation]
            # how often each duration occurs under each name
            lengths, values = pd.factorize(length[lot.operation])
            row, keys = pd.factorize(name * len(values) + lengths)
            idle = np.zeros(len(keys), np.int64)
            np.add.at(idle, row, lot.idle)
            name, ns = keys // len(values), values[keys % len(values)]
            count = np.bincount(row)
            tables.append(pd.DataFrame({"name": name, "ns": ns, "count": count, "idle": idle}))
    if not tables:
        return frames.empty(frames.KERNELS)
    # equal names of different kinds of operations, or of different copies, are one name
    kind = operations["kind"].to_numpy()[example]
    texts = pd.DataFrame({"kernel": operation_names(trace, example), "kind": kind})
    same = texts.groupby(["kernel", "kind"], sort=True).ngroup().to_numpy()
    rows = pd.concat(tables, ignore_index=True)
    rows = rows.assign(
        place=rows["name"] // len(example), text=same[rows["name"] % len(example)]
    ).sort_values(["place", "text", "ns"], ignore_index=True)
    groups = rows.assign(total_ns=rows["ns"] * rows["count"]).groupby(["place", "text"], sort=True)
    out = groups[["count", "total_ns", "idle"]].sum().reset_index()
    # lower median: the first duration up to which half of them lie
    half = (groups["count"].transform("sum") + 1) // 2
    reached = rows[groups["count"].cumsum() >= half]
    out["median_ns"] = reached.groupby(["place", "text"], sort=True)["ns"].first().to_numpy()
    first = np.unique(same, return_index=True)[1]
    out["kernel"] = texts["kernel"].to_numpy()[first[out["text"]]]
    out["kind"] = np.array(OPERATION_KINDS, dtype=object)[kind[first[out["text"]]]]
    out["label"] = np.asarray(labels, dtype=object)[out["place"]]
    measured = intervals["elapsed_ns"].groupby(number).sum().to_numpy()
    out["share"] = out["total_ns"] / np.maximum(measured[out["place"]], 1)
    out = out.rename(columns={"idle": "idle_before_ns"}).sort_values(
        ["place", "total_ns", "kernel"], ascending=[True, False, True], ignore_index=True
    )
    return frames.check(out, frames.KERNELS)


def variant_table(ran: Ran, intervals: pd.DataFrame) -> pd.DataFrame:
    """`frames.VARIANTS`: labels whose intervals did different work.  `intervals`: the windows, with
    labels."""
    work = _work(ran).assign(kernel_only_ns=intervals["kernel_only_ns"].to_numpy())
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
    work["blocks"] = _blocks(ran, [rows for key, rows in chosen.items() if spread[key]])
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


def _work(ran: Ran) -> pd.DataFrame:
    """What every window did (0 and '' for runs): operations that begin in it on its stream; for
    host windows, those issued in it: how many, how many bytes, a number for their names, and the
    name of the longest."""
    operations = ran.trace.operations
    count, moved, names = (np.zeros(len(ran.windows), np.int64) for _ in range(3))
    main = np.full(len(ran.windows), "", dtype=object)
    code, example = ran.codes
    texts = operation_names(ran.trace, example)
    digests = [
        hashlib.blake2s(str(text).encode("utf-8", "replace"), digest_size=8).digest()
        for text in texts
    ]
    digest = np.array([int.from_bytes(d, "little", signed=True) for d in digests], dtype=np.int64)
    size = operations["bytes"].to_numpy()
    took = (operations["end_ns"] - operations["start_ns"]).to_numpy()
    for window, operation, _ in ran.inside(runs=False):
        first = np.flatnonzero(np.diff(window, prepend=-1))
        own = window[first]
        count[own] = np.diff(np.append(first, len(window)))
        moved[own] = np.add.reduceat(size[operation], first)
        with np.errstate(over="ignore"):
            names[own] = np.add.reduceat(digest[code[operation]], first)
        most = np.repeat(np.maximum.reduceat(took[operation], first), count[own])
        longest = np.flatnonzero(took[operation] == most)
        owner, place = np.unique(window[longest], return_index=True)
        main[owner] = texts[code[operation[longest[place]]]]
    return pd.DataFrame(dict(zip([*_WORK, "main"], (count, moved, names, main), strict=True)))


def _blocks(ran: Ran, chosen: list[np.ndarray]) -> np.ndarray:
    """Blocks of the grids of all kernels in each of some windows, -1 if the trace does not say or
    there are too many kernels, and for other windows."""
    out = np.full(len(ran.windows), -1, np.int64)
    if not chosen or ran.trace.shapes is None:
        return out
    which = np.sort(np.concatenate(chosen))
    some = Ran(ran.trace, ran.streams, ran.windows.iloc[which].reset_index(drop=True))
    lots = list(some.inside(runs=False))
    operations = ran.trace.operations
    kernel, row = operations["kind"].to_numpy() == KIND["kernel"], operations["row"].to_numpy()
    of_lots = [row[lot.operation[kernel[lot.operation]]] for lot in lots]
    rows = np.unique(np.concatenate(of_lots)) if lots else np.empty(0, np.int64)
    if len(rows) > _MOST_GRIDS:
        return out
    grid = np.asarray(ran.trace.shapes(rows))[:, :3].prod(axis=1)
    for lot in lots:
        out[which[lot.window]] = 0
        kernels = kernel[lot.operation]
        blocks = grid[np.searchsorted(rows, row[lot.operation[kernels]])]
        np.add.at(out, which[lot.window[kernels]], blocks)
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
