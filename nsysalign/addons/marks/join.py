"""Marks inside kernels on the trace's clock: joined to kernels by grid id, placed by the kernels'
own start and end.

A mark carries the GPU's timer, a kernel row the trace's time; both read the same timer, through a
conversion that CUPTI corrects from time to time.  For every joined kernel:

    trace   start ......................... end
    timer     |  first stamp ... last stamp  |        start - first <= offset <= end - last

Each kernel bounds its own offset; what has no row takes that of the nearest kernel that has one,
widened by what the two clocks can drift apart meanwhile.

Programmatic dependent launches overlap in one stream, but their rows do not: the profiler ends a
kernel's row 1 ns before the dependent one's blocks begin (measured: nsys 2024.2, H100).  Such an
end is no bound; the kernel is taken to end with its last mark.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign.addons.marks import layout
from nsysalign.addons.marks.dump import Dump

#: How fast the two clocks can drift apart.
_DRIFT = 60e-6
_MOST_STAMPS = 200_000


@dataclass(frozen=True)
class Marked:
    """The launches of one dump.  `launch`, `warp` and `first_lane`: of every row of `dump.warps`,
    which launch it belongs to, which run of a warp, and whether that warp's first lane is among its
    lanes; `order`: the marks sorted by warp, then in the order they were made.  The table's
    columns: grid_id, replay, first, last (timer stamps), pid, device, stream, name, row, start_ns,
    end_ns, error_ns, blocks, threads, registers, local_bytes, shared_bytes; -1 unknown.  `shift`:
    trace time is timer + shift, of a launch."""

    dump: Dump
    launches: pd.DataFrame
    launch: np.ndarray
    warp: np.ndarray
    first_lane: np.ndarray
    order: np.ndarray
    shift: np.ndarray
    tick_ns: int
    notes: tuple[str, ...]

    def relative(self, launch: np.ndarray, timer: np.ndarray) -> np.ndarray:
        """Timer stamps as ns after their launch's start_ns."""
        at_zero = self.shift - self.launches["start_ns"].to_numpy()
        return timer + at_zero[launch]

    @cached_property
    def first_heads(self) -> np.ndarray:
        """The earliest row of `dump.warps` of every run of a warp."""
        out = np.full(int(self.warp.max(initial=-1)) + 1, -1, np.int64)
        latest_first = np.argsort(-self.dump.warps["time"].astype(np.int64), kind="stable")
        out[self.warp[latest_first]] = latest_first
        return out

    def cycles(self, head: np.ndarray, clock: np.ndarray) -> np.ndarray:
        """SM cycles from the beginning of a warp (rows `head` of `dump.warps`) to its marks'
        `clock`, modulo 2**32.  They order a warp's marks within one tick of the timer, which is
        longer than a mark takes."""
        began = self.dump.warps["clock"][self.first_heads[self.warp[head]]]
        return clock.astype(np.uint32) - began.astype(np.uint32)


def join(dump: Dump, rows: pd.DataFrame) -> Marked:
    """Find the launches of a dump among the trace's kernels (`frames.LAUNCHES`), and their
    clock."""
    launch, warp, grid, replay = _launches(dump)
    rows = rows[(rows["pid"] == dump.pid) | (rows["pid"] < 0)]
    rows = _of_device(rows.assign(cut=_cut(rows)), dump)
    only_counted = np.setdiff1d(dump.counters["grid"].astype(np.int64), grid)
    grid = np.concatenate([grid, only_counted])
    replay = np.concatenate([replay, np.zeros(len(only_counted), np.int64)])
    first, last = _stamps(dump, launch, len(grid))
    tick = _tick(dump)
    row = _rows_of(grid, replay, rows)
    notes = []
    stamped = last >= 0
    long = (row >= 0) & stamped
    duration = (rows["end_ns"] - rows["start_ns"]).to_numpy()
    misfit = np.zeros(len(grid), bool)
    its_row = row[long]
    too_long = (last - first)[long] > duration[its_row] + 2 * tick + 1000
    misfit[long] = too_long & ~rows["cut"].to_numpy()[its_row]
    if misfit.any():
        notes.append(
            f"{int(misfit.sum()):,} launches of {dump.path} last longer according to their marks "
            "than according to their kernel rows: they are not joined (is this dump of another "
            "run?)"
        )
        row[misfit] = -1
    known = (row >= 0) & stamped
    cut = known & (rows["cut"].to_numpy()[row] if len(rows) else False)
    start, end = (np.full(len(grid), -1, np.int64) for _ in range(2))
    start[row >= 0], end[row >= 0] = (
        rows[c].to_numpy()[row[row >= 0]] for c in ("start_ns", "end_ns")
    )
    bounds = pd.DataFrame({"first": first, "last": last, "start": start, "end": end})
    shift, error = _clock(bounds, known, cut, tick)
    overrun = cut & (last + shift > end + error)
    end[cut] = np.maximum(end, last + shift)[cut]
    if overrun.any():
        notes.append(
            f"{int(overrun.sum()):,} launches of {dump.path} still worked when a dependent launch "
            "began, where nsys ends their rows: here they end with their last mark"
        )
    loose = (row < 0) & stamped  # by the clock, or, without one, in the timer's own time
    start[loose], end[loose] = first[loose] + shift[loose], last[loose] + shift[loose]
    table = _described(row, rows).assign(
        grid_id=grid, replay=replay, first=first, last=last, pid=dump.pid, device=dump.device,
        start_ns=start, end_ns=end, error_ns=np.where(row >= 0, np.maximum(error, 0), error),
    )  # fmt: skip
    if tick >= 500:
        notes.append(
            f"{dump.path}: this GPU's timer ticks in {tick:,} ns; no mark is known more precisely "
            "than that"
        )
    if len(grid) and not known.any():
        notes.append(
            f"{dump.path}: none of its {len(grid):,} launches has a kernel row in the trace: its "
            "marks keep the GPU's own time"
        )
    order = np.argsort(_rank(dump, warp)[dump.of], kind="stable")
    return Marked(
        dump, table, launch, warp, _first_lane(dump, warp), order, shift, tick, tuple(notes)
    )


def _described(row: np.ndarray, rows: pd.DataFrame) -> pd.DataFrame:
    """What the kernel row of each launch says of it; -1, no name and no grid where there is
    none."""
    table = pd.DataFrame(index=np.arange(len(row)))
    for name, unknown in (
        ("stream", -1), ("row", -1), ("blocks", -1), ("threads", -1), ("grid_x", 0), ("grid_y", 0),
        ("registers", -1), ("local_bytes", -1), ("shared_bytes", -1),
    ):  # fmt: skip
        table[name] = np.where(row >= 0, rows[name].to_numpy()[row] if len(rows) else -1, unknown)
    names = rows["name"].to_numpy(dtype=object)
    table["name"] = pd.Series([names[r] if r >= 0 else "" for r in row.tolist()], dtype="str")
    return table


def _of_device(rows: pd.DataFrame, dump: Dump) -> pd.DataFrame:
    """The kernels of the dump's device: every device counts its grids from the beginning.  If the
    trace has none of that device, it may number devices differently: then those of the only device
    that has any."""
    wanted = np.union1d(dump.warps["grid"], dump.counters["grid"]).astype(np.int64)
    mine = rows["device"] == dump.device
    if not mine.any() and rows["device"].nunique() == 1:
        mine = ~mine
    return rows[mine & rows["grid_id"].isin(wanted)].reset_index(drop=True)


class _Launches(NamedTuple):
    """Of every row of `dump.warps`: its launch, its run of a warp.  Of every launch: its grid id,
    and which of those with that id it is."""

    launch: np.ndarray
    warp: np.ndarray
    grid: np.ndarray
    replay: np.ndarray


def _launches(dump: Dump) -> _Launches:
    """The launches that a dump has marks of.

    A warp's first chunk has no predecessor: its k-th first chunk under one grid id belongs to the
    k-th launch with that id.
    """
    heads = dump.warps
    if not len(heads):
        return _Launches(*[np.empty(0, np.int64)] * 4)
    order = np.lexsort(
        (heads["time"], heads["warp"], heads["x"], heads["y"], heads["z"], heads["grid"])
    )
    sorted_heads = heads[order]
    other = np.ones(len(heads), bool)
    other[1:] = False
    for name in ("grid", "z", "y", "x", "warp"):
        other[1:] |= sorted_heads[name][1:] != sorted_heads[name][:-1]
    begins = (sorted_heads["kind"] == layout.HEAD | layout.VERSION) & (
        sorted_heads["previous"] == 0
    )
    count = np.cumsum(begins)
    before = np.where(other, count - begins, 0)
    replay = np.maximum(count - np.maximum.accumulate(before) - 1, 0)
    warp = np.empty(len(heads), np.int64)
    warp[order] = np.cumsum(other | (begins & (replay > 0))) - 1
    grids, which = np.unique(sorted_heads["grid"], return_inverse=True)
    most = int(replay.max()) + 1
    pairs, number = np.unique(which * most + replay, return_inverse=True)
    launch = np.empty(len(heads), np.int64)
    launch[order] = number
    grid, again = (n.astype(np.int64) for n in (grids[pairs // most], pairs % most))
    return _Launches(launch, warp, grid, again)


def _first_lane(dump: Dump, warp: np.ndarray) -> np.ndarray:
    """Whether each head's lanes include the lowest lane with which its warp began."""
    lanes = dump.warps["lanes"].astype(np.int64)
    chunk = dump.warps["kind"] == layout.HEAD | layout.VERSION
    lowest = np.zeros(int(warp.max(initial=-1)) + 1, np.int64)
    lowest[warp[chunk]] = lanes[chunk] & -lanes[chunk]
    return (lanes & lowest[warp] != 0) | chunk


def _rank(dump: Dump, warp: np.ndarray) -> np.ndarray:
    """Rank of every head when sorted by warp and time."""
    order = np.lexsort((dump.warps["time"], warp))
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    return rank


def _stamps(dump: Dump, launch: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """First and last stamp of every launch; (0, -1) of those without marks."""
    first, last = np.full(count, np.iinfo(np.int64).max), np.full(count, -1, np.int64)
    times = dump.warps["time"].astype(np.int64)
    np.minimum.at(first, launch, times)
    np.maximum.at(last, launch, times)
    np.maximum.at(last, launch[dump.of], dump.time)
    first[last < 0] = 0
    return first, last


def _tick(dump: Dump) -> int:
    """The step of this GPU's timer, from the stamps themselves."""
    some = np.concatenate(
        [dump.time[:_MOST_STAMPS], dump.warps["time"][:_MOST_STAMPS].astype(np.int64)]
    )
    if len(some) < 2:
        return 32
    return max(1, int(np.gcd.reduce(some - some.min())))


def _rows_of(grid: np.ndarray, replay: np.ndarray, rows: pd.DataFrame) -> np.ndarray:
    """Position in `rows` (sorted by start) of every launch, -1 for none.  A grid id that was
    launched several times (a graph's) is joined only if every launch has its row."""
    found = np.full(len(grid), -1, np.int64)
    if not len(rows):
        return found
    order = np.argsort(rows["grid_id"].to_numpy(), kind="stable")
    ids = rows["grid_id"].to_numpy()[order]
    low, high = np.searchsorted(ids, grid, "left"), np.searchsorted(ids, grid, "right")
    _, which, times = np.unique(grid, return_inverse=True, return_counts=True)
    same = high - low == times[which]
    found[same] = order[(low + replay)[same]]
    return found


def _cut(rows: pd.DataFrame) -> np.ndarray:
    """Kernels whose rows end 1 ns before the next one of their stream begins: they may have
    continued."""
    order = np.lexsort((rows["start_ns"], rows["stream"], rows["device"]))
    start, end, device, stream = (
        rows[c].to_numpy()[order] for c in ("start_ns", "end_ns", "device", "stream")
    )
    cut = np.zeros(len(rows), bool)
    same = (device[1:] == device[:-1]) & (stream[1:] == stream[:-1])
    cut[order[:-1]] = same & (start[1:] - end[:-1] >= 0) & (start[1:] - end[:-1] <= 1)
    return cut


class _Clock(NamedTuple):
    """`shift`: trace time minus timer of each launch; `error`: half the width of what is possible;
    both ns."""

    shift: np.ndarray
    error: np.ndarray


def _clock(launches: pd.DataFrame, known: np.ndarray, cut: np.ndarray, tick: int) -> _Clock:
    """The clock at every launch, from its own kernel row (columns first, last, start, end); of a
    launch without a row, or with one that was `cut`, from the nearest that has one.  0 and -1 if
    nothing was joined."""
    first = launches["first"].to_numpy()
    if not known.any():
        return _Clock(np.zeros(len(first), np.int64), np.full(len(first), -1, np.int64))
    low = (launches["start"] - first).to_numpy() - tick  # a stamp is the beginning of its tick
    high = (launches["end"] - launches["last"]).to_numpy()
    sure = known & ~cut if (known & ~cut).any() else known
    sure_at = np.flatnonzero(sure)[np.argsort(first[sure], kind="stable")]
    place = np.searchsorted(first[sure_at], first)
    before = sure_at[np.maximum(place - 1, 0)]
    after = sure_at[np.minimum(place, len(sure_at) - 1)]
    nearest = np.where(np.abs(first - first[before]) <= np.abs(first[after] - first), before, after)
    nearest[sure] = np.flatnonzero(sure)
    loose = np.ceil(_DRIFT * np.abs(first - first[nearest])).astype(np.int64)
    lower, upper = low[nearest] - loose, high[nearest] + loose
    own_start = cut & known  # a row's start is a bound, wherever it ends
    lower[own_start] = np.clip(low, lower, upper)[own_start]
    lower, upper = np.minimum(lower, upper), np.maximum(lower, upper)
    middle, half = (lower + upper + tick) // 2, (upper - lower) / 2
    return _Clock(middle, np.ceil(half + tick / 2).astype(np.int64))
