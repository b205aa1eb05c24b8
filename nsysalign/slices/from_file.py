"""Segments and timelines of a few intervals of a long trace: their surroundings are read again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.model import ORIGIN, Alignment, Analysis, PartialResult, SegmentArrays, Trace
from nsysalign.place.context import FromTrace, TraceContext
from nsysalign.place.inferred import pairs_in
from nsysalign.place.solve import align
from nsysalign.slices.one import narrow
from nsysalign.slices.survey import Survey
from nsysalign.split.budget import Budgets, attribute
from nsysalign.split.timeline import timeline
from nsysalign.trace.index import FOREVER, Index
from nsysalign.trace.read import read_trace

#: Blocks of calls around each interval: some, more, all.
_MARGINS = (0, 4, 64, None)
_KEPT = 4  # scenes
#: The place of an interval was decided when its slice was analysed.
_SETTLED = ("start_ns", "end_ns", "start_lower_ns", "start_upper_ns", "error_ns")


@dataclass(frozen=True)
class _Scene:
    """Some intervals with the trace around them; `numbers`: whose windows the alignment's are, ascending."""

    numbers: np.ndarray
    trace: Trace
    alignment: Alignment
    budgets: Budgets


class FileSource:
    """SegmentSource of a trace that is not in memory.  An interval whose result differs the second time, however much is read
    around it, has no segments."""

    def __init__(self, path: Path, index: Index, known: Survey, found: PartialResult) -> None:
        self._path, self._index, self._known, self._found = path, index, known, found
        self._scenes: list[_Scene] = []

    def expect(self, which: np.ndarray) -> None:
        self._scene(which)

    def segments(self, which: np.ndarray) -> pd.DataFrame:
        if (kept := self._found.segments) is not None:
            return frames.check(
                kept[np.isin(kept["interval"].to_numpy(), which)].reset_index(drop=True),
                frames.SEGMENTS,
            )
        tables = []
        run = (
            self._found.rows["kind"] == "run"
        ).to_numpy()  # longer than anything that is read again
        for scene, at in self._scenes_of(which[~run[which]]):
            table = scene.budgets.segments(at)
            tables.append(table.assign(interval=scene.numbers[table["interval"].to_numpy()]))
        return _joined(tables, frames.SEGMENTS)

    def segment_arrays(self, which: np.ndarray) -> SegmentArrays:
        scene, at = self._scene(which)
        arrays = scene.budgets.segment_arrays(at)
        return replace(arrays, interval=scene.numbers[arrays.interval])

    def timeline(self, which: np.ndarray, analysis: Analysis) -> pd.DataFrame:
        tables = []
        for scene, at in self._scenes_of(which):
            windows = scene.alignment.windows.iloc[at].assign(interval=scene.numbers[at])
            tables.append(timeline(scene.trace, scene.alignment, windows, analysis))
        return _joined(tables, frames.TIMELINE)

    def blocks(self, which: np.ndarray) -> np.ndarray:
        """Not determined: every kernel of a long trace would have to be read once more."""
        return np.full(len(which), -1, np.int64)

    def around(self, which: np.ndarray, wide: bool = True) -> tuple[np.ndarray, Trace, Alignment]:
        which = which[
            ~self._found.rows["part"].to_numpy(dtype=bool)[which]
        ]  # too long to be replayed
        # a replay begins some time before
        scene = self._made(which, _MARGINS[1:]) if wide else self._scene(which)[0]
        there = np.isin(scene.numbers, which)
        windows = scene.alignment.windows[there].reset_index(drop=True)
        return scene.numbers[there], scene.trace, replace(scene.alignment, windows=windows)

    def calls(self, which: np.ndarray) -> np.ndarray:
        rows = self._found.rows.iloc[which]
        begin, end = (self._index.calls_at(rows[c].to_numpy()) for c in ("open_ns", "close_ns"))
        return end - begin

    def _scenes_of(self, which: np.ndarray) -> list[tuple[_Scene, np.ndarray]]:
        """The intervals in the scenes already read; the rest are read once more."""
        found, left = [], which
        for scene in self._scenes:
            there = np.isin(left, scene.numbers)
            if there.any():
                found.append((scene, np.searchsorted(scene.numbers, left[there])))
                left = left[~there]
        return [*found, self._scene(left)] if len(left) else found

    def _scene(self, which: np.ndarray) -> tuple[_Scene, np.ndarray]:
        """(a scene, where in it those of the intervals are that it shows)."""
        for scene in self._scenes:
            if np.isin(which, scene.numbers).all():
                return scene, np.searchsorted(scene.numbers, which)
        scene = self._made(which)
        self._scenes = [scene, *self._scenes][:_KEPT]
        return scene, np.flatnonzero(np.isin(scene.numbers, which))

    def _made(self, which: np.ndarray, around: Sequence[int | None] = _MARGINS) -> _Scene:
        for margin in around:
            scene, good = self._look(which, margin)
            if good.all() and len(good) == len(which):
                return scene
        alignment = replace(
            scene.alignment, windows=scene.alignment.windows[good].reset_index(drop=True)
        )
        budgets = attribute(scene.trace, alignment, self._known.latency)
        return _Scene(scene.numbers[good], scene.trace, alignment, budgets)

    def _look(self, which: np.ndarray, margin: int | None) -> tuple[_Scene, np.ndarray]:
        """(the intervals with this much around each, which of them give the same result as in their slice)."""
        rows, known, index = self._found.rows.iloc[which], self._known, self._index
        spans = [(-FOREVER, FOREVER)]
        if margin is not None:
            begin = np.minimum(rows["open_ns"], rows["start_ns"]).tolist()
            end = np.maximum(rows["close_end_ns"], rows["end_ns"]).tolist()
            spans = [
                (index.before(a, margin), index.after(b, margin))
                for a, b in zip(begin, end, strict=True)
            ] or [(-FOREVER, -FOREVER)]
        excerpt = index.excerpt(spans)
        trace = read_trace(self._path, excerpt)
        of_timers = rows.loc[rows["origin"] == ORIGIN["timer"], "source"].tolist()
        stretch = known.timed.some(excerpt, of_timers)
        alignment = align(trace, stretch.log, _with_pairs(known, rows), stretch.timers)
        windows = alignment.windows
        at = _identity(windows).get_indexer(_identity(rows))
        there = at >= 0
        windows = windows.iloc[at[there]].reset_index(drop=True)
        for column in _SETTLED:
            windows[column] = rows[column].to_numpy()[there]
        alignment = replace(alignment, windows=windows)
        budgets = attribute(trace, alignment, known.latency)
        same = (budgets.total == self._found.total[which[there]]).all(axis=1)
        if margin is not None and narrow(trace, alignment, excerpt):
            same[:] = False
        return _Scene(which[there], trace, alignment, budgets), same


def _with_pairs(known: Survey, rows: pd.DataFrame) -> TraceContext:
    """The context of an excerpt that shows these intervals: which records are pairs is known by now."""
    if known.timed.ranges is None:
        return known.context
    return replace(known.context, from_trace=FromTrace((0, 0), pairs_in(rows)))


def _identity(table: pd.DataFrame) -> pd.MultiIndex:
    """What tells intervals apart: their numbers, and where no log numbers them, thread, lane and begin."""
    origin = table["origin"].to_numpy()
    of_trace = np.isin(origin, [ORIGIN["records"], ORIGIN["range"]])
    more = [np.where(of_trace, table[c].to_numpy(), 0) for c in ("thread", "end_lane", "open_ns")]
    return pd.MultiIndex.from_arrays([origin, table["source"].to_numpy(), *more])


def _joined(tables: list[pd.DataFrame], spec: frames.Spec) -> pd.DataFrame:
    """SegmentSource in the order of their intervals."""
    some = [t for t in tables if len(t)]
    if not some:
        return frames.empty(spec)
    whole = pd.concat(some, ignore_index=True) if len(some) > 1 else some[0]
    return frames.check(whole.sort_values("interval", kind="stable", ignore_index=True), spec)
