"""Runs the slices of a trace, one after the other or shared with other processes, and combines the results.

Without an event log, slices must know of each other:

    calls     |....... a ...............|..... b ........|         a launches what runs late, and records a start
    stream            [ a's ]     [ a's |  ]   [ a's ] [ b's ]     in b it still runs, and there is the end

A range may hold a launch that runs after what its slice read, and pairing goes by all records of a stream.  So slices pair the
records that they see, and say what they saw at their edges (`one.Edges`): those that missed something are read again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.effort import trim_memory
from nsysalign.model import PartialResult
from nsysalign.place.context import FromTrace
from nsysalign.place.inferred import Pairs, marked_together, pairing_notes, pairs_of
from nsysalign.slices.far import Placed, place, whole_ranges
from nsysalign.slices.one import Done, Edges, Job, Narrow, Unseen, by_thread, work
from nsysalign.slices.one import read_ahead as ahead
from nsysalign.slices.pool import WorkerPool
from nsysalign.slices.survey import (
    MARGIN_BLOCKS,
    Survey,
    amended,
    around,
    cuts,
    longest,
    parted,
    too_much,
)
from nsysalign.slices.timed_log import Far
from nsysalign.split.partial import together, without_timed_regions
from nsysalign.split.put_together import joined
from nsysalign.trace.index import FOREVER, Excerpt, Index
from nsysalign.windows import unplaced_frame

#: How much is read around a slice (blocks of calls), then around one that did not see enough, attempt by attempt; finally all.
_WIDER = (MARGIN_BLOCKS, 4, 16, 64, None)
#: How often slices may reveal processes or streams that the survey missed.
_ROUNDS = 3
#: Called with the number of finished slices and their total.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Whole:
    """All intervals of a trace; what is known about it now; how many rows could not be used."""

    portion: PartialResult
    known: Survey
    index: Index
    lost: dict[str, int]


def read_ahead(pool: WorkerPool, path: Path, index: Index, count: int) -> None:
    """Let the other processes read the last slices, which they will get, as far as these are known before the log is read."""
    slices = parted(index, count)[::-1][: pool.others]
    read = [
        index.excerpt([around(index, *slice_, MARGIN_BLOCKS)], home=slice_) for slice_ in slices
    ]
    pool.prepare(ahead, [(path, excerpt) for excerpt in read])


def measure(
    path: Path,
    index: Index,
    known: Survey,
    count: int,
    pool: WorkerPool,
    tell: Progress,
    segments: bool = False,
) -> Whole | None:
    """All intervals of a trace, from `count` slices, with their segments if wanted.  None if it cannot be cut."""
    for _ in range(_ROUNDS):  # slices may add to what is known
        cut = cuts(known.timed, index, count)
        round_ = _Round(path, known, *cut, pool, tell, segments) if cut is not None else None
        if round_ is None or not round_.run(index):
            return None
        found, index = list(round_.found.values()), round_.index
        done = [f for f in found if isinstance(f, Done)]
        if len(done) < len(found):
            lanes = [f.lanes for f in found if isinstance(f, Unseen)]
            known = amended(
                known, lanes, None, [f.seen for f in found if not isinstance(f, Narrow)]
            )
            continue
        busy = np.logical_or.reduce([d.busy for d in done])
        now = amended(known, [], busy, [d.seen for d in done])
        assert known.context.busy is not None  # the survey determined it
        if (
            np.array_equal(busy, known.context.busy)
            and now.context.processes == known.context.processes
        ):
            pool.prepare(trim_memory, [() for _ in range(pool.others)])
            lost = {what: sum(d.lost[what] for d in done) for what in done[0].lost}
            notes, portion = round_.notes, together([d.portion for d in done], round_.unaligned)
            del round_, found, done  # their tables are in the portion now
            trim_memory()
            portion = without_timed_regions(joined(portion))
            trim_memory()
            return Whole(replace(portion, notes=(*portion.notes, *notes)), now, index, lost)
        known = now
    return None


class _Round:
    """The results of every slice, with as much around it as it needs."""

    def __init__(
        self,
        path: Path,
        known: Survey,
        slices: Sequence[tuple[int, int]],
        far: Far,
        pool: WorkerPool,
        tell: Progress,
        segments: bool,
    ) -> None:
        self._path, self._slices, self._pool, self._tell, self._segments = (
            path,
            slices,
            pool,
            tell,
            segments,
        )
        self._known = replace(known, timed=known.timed.without(far))
        self._placed = Placed(frames.empty(frames.WINDOWS), unplaced_frame([]), pd.DataFrame())
        self._windows = self._placed.windows  # of what is far
        self._excerpts: dict[int, Excerpt] = {}
        self._narrow = dict.fromkeys(range(len(slices)), 0)  # how often each was
        self._pairs: list[pd.DataFrame | None] = [None for _ in slices]
        self._parts: dict[int, pd.DataFrame] = {}
        self.found: dict[int, Done | Narrow | Unseen] = dict.fromkeys(self._narrow, Narrow({}))
        self.index: Index
        self.notes: tuple[str, ...] = ()

    @property
    def unaligned(self) -> pd.DataFrame:
        """Of what is far."""
        return self._placed.unaligned

    def run(self, index: Index) -> bool:
        """Whether the trace could be cut: not if pairs of records, which no log names, make slices overlap too much, or if what is
        far depends on more than slices see."""
        self.index = index
        left = list(self._narrow)
        if self._far.any() and not self._place():
            return False
        while left:
            if not self._look(left):
                return False
            left = [n for n in left if isinstance(self.found[n], Narrow)]
            every = [f.edges for f in self.found.values() if isinstance(f, Done) and f.edges]
            told = len(every) == len(self._slices)
            if not left and told:
                left = _cut_short(every, [self._excerpts[n].spans[-1][1] for n in self._narrow])
            for n in left:
                self._narrow[n] += 1
            # a buffer that came late, a call that lasts: rows that a slice needed, and did not look for where they are
            left += [
                n for n in self.found if n not in left and self.index.misses(self._excerpts[n])
            ]
            if not left and told:
                again = self._repaired(every)
                if again is None:
                    return False
                left = again
            if not left:
                left = self._others_than_guessed()
        return True

    @property
    def _far(self) -> Far:
        return self._known.timed.far

    def _look(self, which: Sequence[int]) -> bool:
        """Read these slices.  False if one cannot see what a part in it depends on."""
        for n in which:
            widest = _WIDER[self._narrow[n]] is None and self._far.any()
            if widest and getattr(self.found[n], "of_part", False):
                return False
            self._excerpts[n] = self._excerpt(n)
            opened = self._windows["open_ns"].to_numpy()
            self._parts[n] = self._windows[opened < self._slices[n][1]].reset_index(drop=True)
        before = len(self._slices) - len(which)
        tell = partial(_tell, self._tell, before, len(self._slices))
        results = self._pool.map(work, [partial(self._job, n) for n in which], tell)
        self.found.update(zip(which, results, strict=True))
        self.index = self.index.corrected([f.blocks for f in results])
        return True

    def _repaired(self, every: Sequence[Edges]) -> list[int] | None:
        """The slices that took other pairs than the records of all slices say.  None if these make slices overlap too much."""
        inferred, of_slices = _paired(every, self._slices)
        self.notes = tuple(pairing_notes(inferred))
        if too_much(self.index, self._spans(of_slices)):
            most = longest(self.index, self._slices)
            long = [
                self.index.calls_at(p["close_ns"].to_numpy())
                - self.index.calls_at(p["open_ns"].to_numpy())
                > most
                for p in of_slices
            ]
            paired = pd.concat(
                [p[which] for p, which in zip(of_slices, long, strict=True)], ignore_index=True
            )
            of_slices = [
                p[~which].reset_index(drop=True) for p, which in zip(of_slices, long, strict=True)
            ]
            if not paired.equals(self._far.paired):
                far = replace(self._far, paired=paired)
                self._known = replace(self._known, timed=self._known.timed.without(far))
                if not self._place():
                    return None
        left = [
            n
            for n in self._narrow
            if not of_slices[n].equals(every[n].pairs) and not of_slices[n].equals(self._pairs[n])
        ]
        for n in left:
            self._pairs[n] = of_slices[n]
        return None if left and too_much(self.index, self._spans(self._pairs)) else left

    def _place(self) -> bool:
        """Place what is far, by its ends."""
        placed = place(self._path, self.index, self._known, self._pool)
        if placed is None:
            return False
        self._placed = placed
        self._windows = self._whole([placed.ranges])
        return True

    def _whole(self, ranges: list[pd.DataFrame]) -> pd.DataFrame:
        """The windows of what is far, given what is known of ranges."""
        assert self._known.context.lanes is not None
        found = [self._placed.windows, whole_ranges(ranges, self._known.context.lanes)]
        return pd.concat(found, ignore_index=True)

    def _others_than_guessed(self) -> list[int]:
        """The slices that were given other parts than the ranges that are far really have in them."""
        done = [f for f in self.found.values() if isinstance(f, Done)]
        if len(done) == len(self._slices) and self._far.any():
            self._windows = self._whole([self._placed.ranges, *(d.ranges for d in done)])
        opened = self._windows["open_ns"].to_numpy()
        return [
            n
            for n, (_, end) in enumerate(self._slices)
            if len(done) == len(self._slices)
            and not self._windows[opened < end].reset_index(drop=True).equals(self._parts[n])
        ]

    def _spans(self, pairs: Sequence[pd.DataFrame | None]) -> list[tuple[int, int]]:
        """From the begin of each slice to the end of its last interval."""
        found = []
        for slice_, mine in zip(self._slices, pairs, strict=True):
            until = self._known.timed.longest_until(*slice_)
            if mine is not None:
                until = int(mine["close_ns"].to_numpy().max(initial=until))
            found.append((slice_[0], until))
        return found

    def _excerpt(self, n: int) -> Excerpt:
        slice_, margin = self._slices[n], _WIDER[self._narrow[n]]
        if margin is None:
            return self.index.excerpt([(-FOREVER, FOREVER)], home=slice_)
        return self.index.excerpt(
            [around(self.index, *self._spans(self._pairs)[n], margin)], home=slice_
        )

    def _job(self, n: int) -> Job:
        known, slice_, excerpt = self._known, self._slices[n], self._excerpts[n]
        stretch, context = known.timed.stretch(excerpt, *slice_), known.context
        if stretch.log is not None:
            context = context.about(stretch.log)
        if known.timed.ranges is not None:
            context = replace(context, from_trace=FromTrace(slice_, self._pairs[n]))
        return Job(
            self._path,
            excerpt,
            stretch,
            context,
            known.latency,
            slice_,
            self._parts[n],
            self._segments,
        )


def _cut_short(every: Sequence[Edges], read_until: Sequence[int]) -> list[int]:
    """The slices whose calls issued operations that begin after what the slices read, or whose records lie too close to the
    edge of it."""
    issuing = {thread for one in every for thread, _ in one.marks.issued}
    late = pd.concat([e.late for e in every], ignore_index=True)
    process, number, start = (late[c].to_numpy() for c in ("process", "correlation", "start_ns"))
    found = []
    for n, (one, until) in enumerate(zip(every, read_until, strict=True)):
        hidden = start > until
        if one.doubtful & issuing or any(
            (hidden & (process == mine) & (number >= low) & (number <= high)).any()
            for mine, (low, high) in one.numbers.items()
        ):
            found.append(n)
    return found


def _paired(
    every: Sequence[Edges], slices: Sequence[tuple[int, int]]
) -> tuple[Pairs, list[pd.DataFrame]]:
    """The pairs of all records, and those (PAIRED) that begin in each slice."""
    marks = marked_together([e.marks for e in every])
    pairs = pairs_of(marks)
    table = by_thread(pairs.table(marks.records))
    opened = table["open_ns"].to_numpy()
    return pairs, [
        table[(opened >= begin) & (opened < end)].reset_index(drop=True) for begin, end in slices
    ]


def _tell(tell: Progress, before: int, of: int, done: int) -> None:
    tell(before + done, of)
