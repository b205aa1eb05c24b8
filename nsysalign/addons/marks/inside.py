"""Launches of a dump on the trace's clock, and where their SMs' time goes.

Kernels are joined by grid id and placed by their own rows.  A mark carries the GPU's timer, a row
the trace's time; both read the same timer, through a conversion that CUPTI corrects now and then:

    trace   start ......................... end
    timer     |  first stamp ... last stamp  |        start - first <= offset <= end - last

What has no row takes the offset of the nearest kernel that has one, widened by what the two clocks
can drift apart meanwhile.  Rows of programmatic dependent launches end 1 ns before the dependent
one's blocks begin (nsys 2024.2, H100): such an end is no bound, the kernel ends with its last mark.

SMs x duration is split exactly:

    SM 0   before | block ...........| between | block ....... | after
    SM 1   before | block ........................ | after
    SM 2   none

An instant in which blocks are there is shared equally by their warps, each in its innermost range
or in none.  A warp is where its first lane is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign.addons.marks import layout
from nsysalign.addons.marks.dump import Dump

#: How fast the two clocks can drift apart.
_DRIFT = 60e-6
_MOST_STAMPS = 200_000
_UNKNOWN = {
    "stream": -1, "row": -1, "blocks": -1, "registers": -1, "local_bytes": -1, "start_ns": 0,
    "end_ns": -1, "name": "",
}  # fmt: skip


@dataclass(frozen=True)
class Marked:
    """A dump whose launches are on the trace's clock.  `launches`: grid_id, replay, first, last
    (timer stamps), pid, device, start_ns, end_ns, error_ns and the columns of their kernel rows, -1
    where there is none.  `shift`: trace time is timer + shift, of a launch."""

    dump: Dump
    launches: pd.DataFrame
    shift: np.ndarray
    tick_ns: int
    notes: tuple[str, ...]

    def relative(self, launch: np.ndarray, timer: np.ndarray) -> np.ndarray:
        """Timer stamps as ns after their launch's start_ns."""
        return timer + (self.shift - self.launches["start_ns"].to_numpy())[launch]


def join(dump: Dump, rows: pd.DataFrame) -> Marked:
    """Find the launches of a dump among the trace's kernels (`frames.LAUNCHES`), and their
    clock."""
    rows = rows[(rows["pid"] == dump.pid) | (rows["pid"] < 0)]
    rows = rows.assign(cut=_cut(rows))
    # every device counts its grids from the beginning; the trace may number devices differently
    if (own := rows["device"] == dump.device).any() or rows["device"].nunique() > 1:
        rows = rows[own]
    many, stamps = len(dump.grid), dump.heads["time"].astype(np.int64)
    first, last = np.full(many, np.iinfo(np.int64).max), np.full(many, -1, np.int64)
    np.minimum.at(first, dump.launch, stamps)
    np.maximum.at(last, dump.launch, stamps)
    np.maximum.at(last, dump.launch[dump.of], dump.time)
    stamped, first = last >= 0, np.where(last < 0, 0, first)
    some = np.append(stamps[:_MOST_STAMPS], dump.time[:_MOST_STAMPS])
    tick = max(1, int(np.gcd.reduce(some - some.min()))) if len(some) > 1 else 32

    row = _rows_of(dump, rows)
    table = rows.iloc[row].reset_index(drop=True) if len(rows) else rows.reindex(range(many))
    duration = (table["end_ns"] - table["start_ns"]).to_numpy()
    cut = table["cut"].to_numpy() == True  # noqa: E712  of no row it is unknown
    misfit = (row >= 0) & stamped & ~cut & (last - first > duration + 2 * tick + 1000)
    row[misfit] = -1
    known = row >= 0
    for name, value in _UNKNOWN.items():
        table[name] = table[name].where(known, value).astype("str" if name == "name" else np.int64)
    start, end = table["start_ns"].to_numpy(), table["end_ns"].to_numpy()
    bounding, cut = known & stamped, known & stamped & cut
    spans = pd.DataFrame({"first": first, "last": last, "start": start, "end": end})
    shift, error = _clock(spans, bounding, cut, tick)
    overrun = cut & (last + shift > end + error)
    alone = ~known & stamped  # by the clock, or, without one, in the timer's own time
    table = table.assign(
        grid_id=dump.grid, replay=dump.replay, first=first, last=last, pid=dump.pid,
        device=dump.device, start_ns=np.where(alone, first + shift, np.where(known, start, -1)),
        end_ns=np.select([cut, alone], [np.maximum(end, last + shift), last + shift], end),
        error_ns=np.where(known, np.maximum(error, 0), error),
    )  # fmt: skip
    notes = []
    if misfit.any():
        notes.append(
            f"{int(misfit.sum()):,} launches of {dump.path} last longer according to their marks "
            "than according to their kernel rows: they are not joined (is this dump of another "
            "run?)"
        )
    if overrun.any():
        notes.append(
            f"{int(overrun.sum()):,} launches of {dump.path} still worked when a dependent launch "
            "began, where nsys ends their rows: here they end with their last mark"
        )
    if tick >= 500:
        notes.append(
            f"{dump.path}: this GPU's timer ticks in {tick:,} ns; no mark is known more precisely "
            "than that"
        )
    if many and not bounding.any():
        notes.append(
            f"{dump.path}: none of its {many:,} launches has a kernel row in the trace: its "
            "marks keep the GPU's own time"
        )
    return Marked(dump, table, shift, tick, tuple(notes))


def _rows_of(dump: Dump, rows: pd.DataFrame) -> np.ndarray:
    """Position in `rows` (sorted by start) of every launch, -1 for none.  A grid id that was
    launched several times (a graph's) is joined only if every launch has its row."""
    order = np.argsort(rows["grid_id"].to_numpy(), kind="stable")
    ids = rows["grid_id"].to_numpy()[order]
    low, high = (np.searchsorted(ids, dump.grid, side) for side in ("left", "right"))
    _, which, times = np.unique(dump.grid, return_inverse=True, return_counts=True)
    place = np.where(high - low == times[which], low + dump.replay, len(order))
    return np.append(order, -1)[place]


def _cut(rows: pd.DataFrame) -> np.ndarray:
    """Kernels whose rows end 1 ns before the next one of their stream begins: they may have
    continued."""
    ordered = rows.sort_values(["device", "stream", "start_ns"], kind="stable")
    gap = ordered.groupby(["device", "stream"])["start_ns"].shift(-1) - ordered["end_ns"]
    return gap.between(0, 1).reindex(rows.index).to_numpy()


def _clock(
    spans: pd.DataFrame, known: np.ndarray, cut: np.ndarray, tick: int
) -> tuple[np.ndarray, np.ndarray]:
    """(trace time minus timer of every launch; half the width of what is possible; ns).  Columns
    of `spans`: first, last, start, end.  A launch without a row, or with one that was `cut`, takes
    those of the nearest that has one; 0 and -1 if nothing was joined."""
    first = spans["first"].to_numpy()
    if not known.any():
        return np.zeros(len(first), np.int64), np.full(len(first), -1, np.int64)
    low = (spans["start"] - first).to_numpy() - tick  # a stamp is the beginning of its tick
    high = (spans["end"] - spans["last"]).to_numpy()
    sure = known & ~cut if (known & ~cut).any() else known
    ordered = np.flatnonzero(sure)[np.argsort(first[sure], kind="stable")]
    place = np.searchsorted(first[ordered], first)
    before = ordered[np.maximum(place - 1, 0)]
    after = ordered[np.minimum(place, len(ordered) - 1)]
    nearest = np.where(np.abs(first - first[before]) <= np.abs(first[after] - first), before, after)
    nearest[sure] = np.flatnonzero(sure)
    loose = np.ceil(_DRIFT * np.abs(first - first[nearest])).astype(np.int64)
    lower, upper = low[nearest] - loose, high[nearest] + loose
    lower[cut] = np.clip(low, lower, upper)[cut]  # a row's start is a bound, wherever it ends
    lower, upper = np.minimum(lower, upper), np.maximum(lower, upper)
    half = np.ceil((upper - lower) / 2 + tick / 2).astype(np.int64)
    return (lower + upper + tick) // 2, half


# --- SM time ---

PARTS = ("before", "phase", "unmarked", "between", "after", "none", "unknown")
_DEEPEST = 16


@dataclass(frozen=True)
class Inside:
    """What the marks of one dump say: tables whose `kernel` numbers its launches from 0, and whose
    `phase` is a hash."""

    kernels: pd.DataFrame  # marked_blocks, warps, marks, complete
    phases: pd.DataFrame
    sm_time: pd.DataFrame
    sm_spans: pd.DataFrame


class _Ranges(NamedTuple):
    """Of some marks that begin or end ranges, stream by stream."""

    launch: np.ndarray
    run: np.ndarray
    time: np.ndarray  # ns after the launch's start
    name: np.ndarray  # its number among the names
    ends_at: np.ndarray  # of a mark that begins a range: the one that ends it, -1 unpaired; -2 ends
    inner: np.ndarray  # name of the range that its warp is in from then on, -1 none
    lasts: np.ndarray  # whether that is so until the next of these marks


def inside(marked: Marked) -> Inside:
    """Phases and SM time of every launch of a dump."""
    dump, launches = marked.dump, marked.launches
    many, duration = len(launches), (launches["end_ns"] - launches["start_ns"]).to_numpy()
    run_of = dump.run[dump.of]
    first = np.flatnonzero(np.diff(dump.run, prepend=-1))  # of every run its first head
    heads, launch = dump.heads[first], dump.launch[first]
    begin = heads["time"].astype(np.int64)
    end, ended = begin.copy(), np.zeros(len(first), bool)
    np.maximum.at(end, run_of, dump.time)
    is_end = dump.id & 3 == layout.EXIT
    ended[run_of[is_end]] = True
    begin, end = (marked.relative(launch, time) for time in (begin, end))
    begin, end = (np.clip(time, 0, duration[launch]) for time in (begin, end))

    where = heads["x"].astype(np.int64) | heads["y"].astype(np.int64) << 32
    _, place = np.unique(where | heads["z"].astype(np.int64) << 48, return_inverse=True)
    _, one = np.unique(launch * (len(first) + 1) + place, return_index=True)  # run of every block
    threads = np.zeros(many, np.int64)
    np.maximum.at(threads, dump.launch, dump.heads["threads"].astype(np.int64))
    seen, blocks = (np.bincount(launch[of], minlength=many) for of in (slice(None), one))
    expected = np.where(launches["blocks"] > 0, launches["blocks"], blocks) * -(-threads // 32)
    complete = (seen > 0) & (seen >= expected)
    complete[launch[~ended]] = False
    kernels = pd.DataFrame(
        {
            "marked_blocks": blocks, "warps": seen,
            "marks": np.bincount(dump.launch[dump.of[~is_end & (dump.id > 0)]], minlength=many),
            "complete": complete,
        }
    )  # fmt: skip

    groups, group = np.unique(launch << 12 | heads["sm"], return_inverse=True)
    bits = int(duration.max(initial=1)).bit_length() + 1  # of a time in a kernel
    busy, shared = _shared(group, begin, end, bits)
    spans = pd.DataFrame({"kernel": groups >> 12, "sm": groups & 4095}).assign(
        blocks=np.bincount(group[one], minlength=len(groups)),
        first_ns=pd.Series(begin).groupby(group).min(),
        last_ns=pd.Series(end).groupby(group).max(),
        busy_ns=busy,
    )
    names = np.unique(dump.id[~is_end] >> 2)
    ranges = _ranges(marked, duration, names)
    pair = ranges.launch * len(names) + ranges.name
    first_of = ranges.ends_at > -2
    length = ranges.time[ranges.ends_at[first_of]] - ranges.time[first_of] + 1
    length = np.where(ranges.ends_at[first_of] < 0, 0, length)  # 0: not paired
    phases = _phases(np.sort(pair[first_of] << bits | length), bits, names)
    in_it = np.flatnonzero(ranges.lasts & (ranges.inner >= 0))
    of = group[ranges.run[in_it]]
    share = shared(of, ranges.time[in_it + 1]) - shared(of, ranges.time[in_it])
    pair = ranges.launch[in_it] * len(names) + ranges.inner[in_it]
    in_phase = pd.Series(share).groupby(pair).sum().sort_values(ascending=False)
    parts = spans.assign(
        before=spans["first_ns"], between=spans["last_ns"] - spans["first_ns"] - spans["busy_ns"],
        busy=spans["busy_ns"], after=duration[spans["kernel"]] - spans["last_ns"], here=1,
    ).groupby("kernel")[["before", "between", "busy", "after", "here"]].sum()  # fmt: skip
    parts["none"] = np.maximum(dump.sms - parts.pop("here"), 0) * duration[parts.index]
    return Inside(kernels, phases, _budget(parts, in_phase, names, complete), spans)


def _shared(
    group: np.ndarray, begin: np.ndarray, end: np.ndarray, bits: int
) -> tuple[np.ndarray, Callable[[np.ndarray, np.ndarray], np.ndarray]]:
    """(ns in which each group has a warp; function (group, time) -> integral of 1 / warps there up
    to that time)."""
    groups, times = np.append(group, group), np.append(begin, end)
    key = groups << bits | times
    order = np.argsort(key, kind="stable")
    key, sorted_times = key[order], times[order]
    there = np.cumsum(np.where(order < len(group), 1, -1))  # 0 at the end of every group
    length = np.where(there > 0, np.diff(sorted_times, append=0), 0)
    busy = np.zeros(int(group.max(initial=-1)) + 1, np.int64)
    np.add.at(busy, groups[order], length)
    rate = np.where(there > 0, 1 / np.maximum(there, 1), 0.0)
    integral = np.append(0.0, np.cumsum(length * rate))

    def until(of: np.ndarray, time: np.ndarray) -> np.ndarray:
        place = np.maximum(np.searchsorted(key, of << bits | time, "right") - 1, 0)
        return integral[place] + (time - sorted_times[place]) * rate[place]

    return busy, until


def _ranges(marked: Marked, duration: np.ndarray, names: np.ndarray) -> _Ranges:
    """All ranges.  Lanes that came apart from their warp's first lane form a stream
    of their own: they have passages, but no SM time.  A stream that ends more than it began has no
    ranges."""
    dump = marked.dump
    some = np.flatnonzero(np.isin(dump.id & 3, [layout.BEGIN, layout.END]))
    of = dump.of[some]
    stray = ~dump.first_lane[of]
    stream = dump.run[of] << 33
    stream[stray] |= (1 << 32) | dump.heads["lanes"][of[stray]].astype(np.int64)
    if stray.any():
        again = np.argsort(stream, kind="stable")
        some, of, stray, stream = some[again], of[again], stray[again], stream[again]
    launch, begins = dump.launch[of], dump.id[some] & 3 == layout.BEGIN
    name = np.searchsorted(names, dump.id[some] >> 2)
    edges = np.flatnonzero(np.diff(stream, prepend=-1))
    change = np.where(begins, 1, -1)
    depth = np.cumsum(change)  # after the mark
    sizes = np.diff(np.append(edges, len(some)))
    depth -= np.repeat(depth[edges] - change[edges], sizes)
    sound = np.repeat(np.minimum.reduceat(depth, edges) >= 0, sizes)
    ends_at, inner = np.where(begins, -1, -2), np.full(len(some), -1, np.int64)
    ends_at[~sound] = -1
    for level in range(1, min(int(depth.max(initial=0)), _DEEPEST) + 1):
        own = np.flatnonzero(sound & (depth + ~begins == level))
        a, b = own[:-1], own[1:]
        pairs = begins[a] & ~begins[b] & (stream[a] == stream[b]) & (name[a] == name[b])
        ends_at[a[pairs]] = b[pairs]
        alone = ~begins[own]
        alone[1:] &= ~pairs
        ends_at[own[alone]] = -1
        last = np.maximum.accumulate(np.where(begins & (depth == level), np.arange(len(some)), -1))
        there = sound & (depth == level)
        inner[there] = name[last[there]]
    time = np.clip(marked.relative(launch, dump.time[some]), 0, duration[launch])
    lasts = np.append(stream[1:] == stream[:-1], False) & ~stray
    return _Ranges(launch, dump.run[of], time, name, ends_at, inner, lasts)


def _phases(keys: np.ndarray, bits: int, names: np.ndarray) -> pd.DataFrame:
    """Statistics of passages by launch and name (`tables.KERNEL_PHASES`) from sorted (launch, name,
    length + 1 or 0 where the other end is missing)."""
    pair, length = keys >> bits, keys & ((1 << bits) - 1)
    edges = np.flatnonzero(np.diff(pair, prepend=-1))
    ends = np.append(edges[1:], len(keys))[: len(edges)]
    unclosed = np.add.reduceat((length == 0).astype(np.int64), edges)
    least, count = edges + unclosed, ends - edges - unclosed
    values = np.maximum(np.append(length, 0) - 1, 0)
    return pd.DataFrame(
        {
            "kernel": pair[edges] // max(len(names), 1),
            "phase": names[pair[edges] % max(len(names), 1)].astype(np.int64),
            "count": count,
            "total_ns": np.add.reduceat(values, edges),
            "min_ns": np.where(count > 0, values[least], 0),
            "median_ns": np.where(count > 0, values[(least + ends - 1) // 2], 0),
            "max_ns": values[ends - 1],
            "unclosed": unclosed,
        }
    )


def _budget(
    parts: pd.DataFrame, in_phase: pd.Series, names: np.ndarray, complete: np.ndarray
) -> pd.DataFrame:
    """`tables.SM_TIME` of all launches that have marks.  Phases are rounded down, and the rest of
    the time with blocks is `unmarked`, so the sum is exact."""
    phases: dict[int, list[tuple[int, int]]] = {}
    for pair, ns in in_phase.items():
        kernel, name = divmod(int(pair), len(names))
        phases.setdefault(kernel, []).append((int(names[name]), int(ns + 1e-6)))
    rows = []
    for kernel, *numbers in parts.astype(int).itertuples():
        others = dict(zip(parts.columns, numbers, strict=True))
        left = others.pop("busy")
        for phase, ns in phases.get(kernel, []):
            rows.append((kernel, "phase", phase, min(ns, left)))
            left -= min(ns, left)
        if not complete[kernel]:
            others = {"unknown": sum(others.values())}
        rows += [(kernel, part, 0, ns) for part, ns in {**others, "unmarked": left}.items()]
    rows = sorted((r for r in rows if r[3] > 0), key=lambda r: (r[0], PARTS.index(r[1]), -r[3]))
    return pd.DataFrame(rows, columns=["kernel", "part", "phase", "ns"])
