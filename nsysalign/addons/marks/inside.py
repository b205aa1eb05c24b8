"""Launches of a dump on the trace's clock, and where their SMs' time goes.

Kernels are joined by grid id and placed by their own rows.  A mark carries the GPU's timer, a row
the trace's time; both read the same timer, through a conversion that CUPTI corrects now and then:

    trace   start ......................... end
    timer     |  first stamp ... last stamp  |        start - first <= offset <= end - last

What has no row keeps the timer's time.

SMs x duration is split exactly:

    SM 0   before | block ...........| between | block ....... | after
    SM 1   before | block ........................ | after
    SM 2   none

An instant in which blocks are there is shared equally by their warps, each in its innermost range
or in none.  A warp is where its first lane is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign.addons.marks import layout
from nsysalign.addons.marks.dump import Dump

_MOST_STAMPS = 200_000
_UNKNOWN = {
    "stream": -1, "row": -1, "blocks": -1, "registers": -1, "local_bytes": -1, "start_ns": -1,
    "end_ns": -1, "name": "",
}  # fmt: skip
PARTS = ("before", "phase", "unmarked", "between", "after", "none", "unknown")
#: A warp whose ranges are nested deeper has none.
_DEEPEST = 63


@dataclass(frozen=True)
class Marked:
    """A dump whose launches are on the trace's clock.  `launches`: grid_id, pid, device, start_ns,
    end_ns, error_ns, shift (trace time is timer + shift) and the columns of their kernel rows, -1
    where there is none."""

    dump: Dump
    launches: pd.DataFrame
    notes: tuple[str, ...]

    def relative(self, launch: np.ndarray, timer: np.ndarray) -> np.ndarray:
        """Timer stamps as ns after their launch's start_ns."""
        since = self.launches["shift"] - self.launches["start_ns"]
        return timer + since.to_numpy()[launch]


def join(dump: Dump, rows: pd.DataFrame) -> Marked:
    """Find the launches of a dump among the trace's kernels (`frames.LAUNCHES`), and their
    clock."""
    rows = rows[(rows["pid"] == dump.pid) | (rows["pid"] < 0)]
    # every device counts its grids from the beginning; the trace may number devices differently
    if (on_device := rows["device"] == dump.device).any() or rows["device"].nunique() > 1:
        rows = rows[on_device]
    rows = rows.drop_duplicates("grid_id", keep=False)
    grids = len(dump.grid)
    first, last = _stamps(dump)
    stamped = last >= 0
    tick = _tick(dump)
    row = pd.Index(rows["grid_id"]).get_indexer(dump.grid)
    table = rows.iloc[row].reset_index(drop=True) if len(rows) else rows.reindex(range(grids))
    duration = (table["end_ns"] - table["start_ns"]).to_numpy()
    misfit = (row >= 0) & stamped & (last - first > duration + 2 * tick + 1000)
    known = (row >= 0) & ~misfit
    for name, value in _UNKNOWN.items():
        table[name] = table[name].where(known, value).astype("str" if name == "name" else np.int64)
    start, end = table["start_ns"].to_numpy(), table["end_ns"].to_numpy()
    # a stamp is the beginning of its tick; a row may be a little shorter than its marks say
    bounds = np.sort([start - first - tick, end - last], axis=0)
    shift = np.where(known & stamped, (bounds.sum(axis=0) + tick) // 2, 0)
    error = np.where(stamped, np.ceil((bounds[1] - bounds[0] + tick) / 2).astype(np.int64), 0)
    alone = ~known & stamped
    table = table.assign(
        grid_id=dump.grid, pid=dump.pid, device=dump.device, shift=shift,
        start_ns=np.where(alone, first, start), end_ns=np.where(alone, last, end),
        error_ns=np.where(known, error, -1),
    )  # fmt: skip
    notes = {
        f"{int(misfit.sum()):,} launches of {dump.path} last longer according to their marks than "
        "according to their kernel rows: they are not joined (is this dump of another "
        "run?)": misfit.any(),
        f"{dump.path}: this GPU's timer ticks in {tick:,} ns; no mark is known more precisely "
        "than that": tick >= 500,
        f"{dump.path}: {int((~known).sum()):,} of its {grids:,} launches have no kernel row in the "
        "trace: their marks keep the GPU's own time": not known.all(),
    }
    return Marked(dump, table, tuple(note for note, so in notes.items() if so))


def _stamps(dump: Dump) -> tuple[np.ndarray, np.ndarray]:
    """The first and the last stamp of each launch (ns of the GPU's timer); 0 and -1 for none."""
    stamps = dump.heads["time"].astype(np.int64)
    first = np.full(len(dump.grid), np.iinfo(np.int64).max)
    last = np.full(len(dump.grid), -1, np.int64)
    np.minimum.at(first, dump.launch, stamps)
    np.maximum.at(last, dump.launch, stamps)
    np.maximum.at(last, dump.launch[dump.head_of], dump.time)
    return np.where(last < 0, 0, first), last


def _tick(dump: Dump) -> int:
    """In steps of how many ns the GPU's timer goes on, read off its first stamps."""
    heads = dump.heads["time"][:_MOST_STAMPS].astype(np.int64)
    stamps = np.append(heads, dump.time[:_MOST_STAMPS])
    return max(1, int(np.gcd.reduce(stamps - stamps.min()))) if len(stamps) > 1 else 32


# --- SM time ---


@dataclass(frozen=True)
class Inside:
    """What the marks of one dump say: tables whose `kernel` numbers its launches from 0, and whose
    `phase` is a hash."""

    kernels: pd.DataFrame  # marked_blocks, warps, marks, complete
    phases: pd.DataFrame
    sm_time: pd.DataFrame
    sm_spans: pd.DataFrame


class _Runs(NamedTuple):
    """Runs of warps, arrays of equal length: the first head, the launch, first and last stamp (ns after the
    launch's start), whether the warp's end was recorded.  of_block: positions of one run of each block."""

    heads: np.ndarray
    launch: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    ended: np.ndarray
    of_block: np.ndarray


def inside(marked: Marked) -> Inside:
    """Phases and SM time of every launch of a dump."""
    dump, launches = marked.dump, marked.launches
    duration = (launches["end_ns"] - launches["start_ns"]).to_numpy()
    runs = _runs(marked, duration)
    kernels = _kernels(marked, runs)
    groups, group = np.unique(runs.launch << 12 | runs.heads["sm"], return_inverse=True)
    ranges = _ranges(marked, duration)
    until, ours = ranges["time"].shift(-1), ranges["lasts"] & (ranges["inner"] >= 0)
    inner = ranges[ours].assign(until=until[ours].astype(np.int64))
    bits = int(duration.max(initial=1)).bit_length() + 1
    busy, inner["share"] = _shared(group, runs.begin, runs.end, bits, group[inner["run"]], inner)
    spans = pd.DataFrame({"kernel": groups >> 12, "sm": groups & 4095}).assign(
        blocks=np.bincount(group[runs.of_block], minlength=len(groups)),
        first_ns=pd.Series(runs.begin).groupby(group).min(),
        last_ns=pd.Series(runs.end).groupby(group).max(),
        busy_ns=busy,
    )
    in_phase = inner.groupby(["launch", "inner"])["share"].sum()
    parts = spans.assign(
        before=spans["first_ns"], between=spans["last_ns"] - spans["first_ns"] - spans["busy_ns"],
        busy=spans["busy_ns"], after=duration[spans["kernel"]] - spans["last_ns"], here=1,
    ).groupby("kernel")[["before", "between", "busy", "after", "here"]].sum()  # fmt: skip
    parts["none"] = np.maximum(dump.sms - parts.pop("here"), 0) * duration[parts.index]
    budget = _budget(parts, in_phase, kernels["complete"].to_numpy())
    return Inside(kernels, _phases(ranges), budget, spans)


def _runs(marked: Marked, duration: np.ndarray) -> _Runs:
    """duration: ns, of the launches."""
    dump = marked.dump
    first = np.flatnonzero(np.diff(dump.run, prepend=-1))  # of every run its first head
    heads, launch = dump.heads[first], dump.launch[first]
    run = dump.run[dump.head_of]
    begin = heads["time"].astype(np.int64)
    end = begin.copy()
    np.maximum.at(end, run, dump.time)
    ended = np.zeros(len(first), bool)
    ended[run[dump.id & 3 == layout.EXIT]] = True
    begin = np.clip(marked.relative(launch, begin), 0, duration[launch])
    end = np.clip(marked.relative(launch, end), 0, duration[launch])
    x, y, z = (heads[axis].astype(np.int64) for axis in "xyz")
    _, block = np.unique(x | y << 32 | z << 48, return_inverse=True)
    _, of_block = np.unique(launch * (len(first) + 1) + block, return_index=True)
    return _Runs(heads, launch, begin, end, ended, of_block)


def _kernels(marked: Marked, runs: _Runs) -> pd.DataFrame:
    """`Inside.kernels`."""
    dump, launches = marked.dump, marked.launches
    count = len(launches)
    warps = np.bincount(runs.launch, minlength=count)
    blocks = np.bincount(runs.launch[runs.of_block], minlength=count)
    threads = np.zeros(count, np.int64)
    np.maximum.at(threads, dump.launch, dump.heads["threads"].astype(np.int64))
    expected = np.where(launches["blocks"] > 0, launches["blocks"], blocks) * -(-threads // 32)
    complete = (warps > 0) & (warps >= expected)
    complete[runs.launch[~runs.ended]] = False
    is_mark = (dump.id & 3 != layout.EXIT) & (dump.id > 0)
    marks = np.bincount(dump.launch[dump.head_of[is_mark]], minlength=count)
    return pd.DataFrame(
        {"marked_blocks": blocks, "warps": warps, "marks": marks, "complete": complete}
    )


def _phases(ranges: pd.DataFrame) -> pd.DataFrame:
    """`Inside.phases`, from all marks of ranges (`_ranges`)."""
    passages = ranges[ranges["ns"] > -2].rename(columns={"launch": "kernel", "name": "phase"})
    whole = passages[passages["ns"] >= 0].groupby(["kernel", "phase"])["ns"]
    phases = passages.groupby(["kernel", "phase"])["ns"].agg(passed="size")
    phases["count"], phases["total_ns"], phases["min_ns"] = whole.size(), whole.sum(), whole.min()
    phases["median_ns"], phases["max_ns"] = whole.quantile(interpolation="lower"), whole.max()
    phases = phases.fillna(0).astype(np.int64).reset_index()
    phases["unclosed"] = phases.pop("passed") - phases["count"]
    return phases


def _shared(
    group: np.ndarray,
    begin: np.ndarray,
    end: np.ndarray,
    bits: int,
    owner: np.ndarray,
    pieces: pd.DataFrame,
) -> tuple[np.ndarray, np.ndarray]:
    """(ns in which each group, an SM in a launch, has a warp; the share of each piece of a warp's
    run, `time` to `until` in group `owner`, if all warps that are there share each instant).  `group`,
    `begin`, `end`: of the warps' runs; times have this many `bits`."""
    groups, times = np.append(group, group), np.append(begin, end)
    order = np.argsort(groups << bits | times, kind="stable")
    key, sorted_times = (groups << bits | times)[order], times[order]
    open_count = np.cumsum(np.where(order < len(group), 1, -1))  # 0 at the end of every group
    length = np.where(open_count > 0, np.diff(sorted_times, append=0), 0)
    busy = np.zeros(int(group.max(initial=-1)) + 1, np.int64)
    np.add.at(busy, groups[order], length)
    rate = np.where(open_count > 0, 1 / np.maximum(open_count, 1), 0.0)
    integral = np.append(0.0, np.cumsum(length * rate))

    def until(time: np.ndarray) -> np.ndarray:
        """The integral of 1 / warps there up to that time."""
        place = np.maximum(np.searchsorted(key, owner << bits | time, "right") - 1, 0)
        return integral[place] + (time - sorted_times[place]) * rate[place]

    return busy, until(pieces["until"].to_numpy()) - until(pieces["time"].to_numpy())


def _ranges(marked: Marked, duration: np.ndarray) -> pd.DataFrame:
    """The marks with which warps, their first lanes, begin or end ranges, warp by warp: launch,
    run, time (ns after the launch's start), name (a hash); `ns`: of one that begins a range how
    long it takes, -1 where begin or end are missing, -2 for what ends one; `inner`: the range that
    the warp is in from then on, -1 none, and whether that `lasts` until the next row.

    A warp that ends more than it began has no ranges."""
    edges = _edges(marked, duration)
    run, time, name, begins = (edges[c].to_numpy() for c in ("run", "time", "name", "begins"))
    depth, number, sound = _depths(run, begins)

    def by(level: np.ndarray) -> np.ndarray:
        """The sound ones by warp and level."""
        return sound[np.argsort(number[sound] << 7 | level[sound], kind="stable")]

    ns, inner = np.full(len(edges), -1), np.full(len(edges), -1)
    turns = by(depth + ~begins)  # of a level: a range begins, it ends, the next one begins
    a, b = turns[:-1], turns[1:]
    pairs = begins[a] & ~begins[b] & (number[a] == number[b]) & (name[a] == name[b])
    ns[a[pairs]], ns[b[pairs]] = (time[b] - time[a])[pairs], -2
    inside_of = by(depth)
    last = np.maximum.accumulate(np.where(begins[inside_of], np.arange(len(inside_of)), 0))
    inner[inside_of] = np.where(depth[inside_of] > 0, name[inside_of[last]], -1)
    lasts = np.append(run[1:] == run[:-1], False)[: len(run)]
    return edges.drop(columns="begins").assign(ns=ns, inner=inner, lasts=lasts)


def _edges(marked: Marked, duration: np.ndarray) -> pd.DataFrame:
    """The marks of warps' first lanes that begin a range (`begins`) or end one: launch, run, time, name."""
    dump = marked.dump
    is_edge = np.isin(dump.id & 3, [layout.BEGIN, layout.END])
    marks = np.flatnonzero(is_edge & dump.first_lane[dump.head_of])
    head = dump.head_of[marks]
    launch = dump.launch[head]
    columns = {
        "launch": launch,
        "run": dump.run[head],
        "time": np.clip(marked.relative(launch, dump.time[marks]), 0, duration[launch]),
        "name": (dump.id[marks] >> 2).astype(np.int64),
        "begins": dump.id[marks] & 3 == layout.BEGIN,
    }
    return pd.DataFrame(columns)


def _depths(run: np.ndarray, begins: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of marks in the order of their warps' runs (`run`), which begin a range or end one: how many ranges
    are open after each, the number of its run, and the positions of those in runs whose ranges are
    sound."""
    begun = np.diff(run, prepend=-1) != 0
    firsts, number = np.flatnonzero(begun), np.cumsum(begun) - 1
    change = np.where(begins, 1, -1)
    depth = np.cumsum(change)
    depth -= (depth[firsts] - change[firsts])[number]
    low, high = np.minimum.reduceat(depth, firsts), np.maximum.reduceat(depth, firsts)
    return depth, number, np.flatnonzero(((low >= 0) & (high <= _DEEPEST))[number])


def _budget(parts: pd.DataFrame, in_phase: pd.Series, complete: np.ndarray) -> pd.DataFrame:
    """`tables.SM_TIME` of all launches that have marks.  Phases are rounded down, and the rest of
    the time with blocks is `unmarked`, so the sum is exact."""
    phases: dict[int, list[tuple[int, int]]] = {}
    for (kernel, phase), ns in in_phase.sort_values(ascending=False).items():
        phases.setdefault(kernel, []).append((phase, int(ns + 1e-6)))
    rows = []
    for kernel, *numbers in parts.astype(int).itertuples():
        remainders = dict(zip(parts.columns, numbers, strict=True))
        left = remainders.pop("busy")
        for phase, ns in phases.get(kernel, []):
            rows.append((kernel, "phase", phase, min(ns, left)))
            left -= min(ns, left)
        if not complete[kernel]:
            remainders = {"unknown": sum(remainders.values())}
        rows += [(kernel, part, 0, ns) for part, ns in {**remainders, "unmarked": left}.items()]
    rows = sorted((r for r in rows if r[3] > 0), key=lambda r: (r[0], PARTS.index(r[1]), -r[3]))
    return pd.DataFrame(rows, columns=["kernel", "part", "phase", "ns"])
