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

import numpy as np
import pandas as pd

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
