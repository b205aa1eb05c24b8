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
from typing import Any

import numpy as np
import pandas as pd

from nsysalign.align.context import FromTrace
from nsysalign.align.inferred import Pairs, marked_together, pairing_notes, pairs_of
from nsysalign.attribute.partial import together, without_timed_regions
from nsysalign.attribute.run_windows import joined
from nsysalign.effort import trim_memory
from nsysalign.model import PartialResult
from nsysalign.slices.one import Done, Edges, Job, Narrow, Unseen, by_thread, work
from nsysalign.slices.one import read_ahead as ahead
from nsysalign.slices.pool import WorkerPool
from nsysalign.slices.survey import MARGIN_BLOCKS, Survey, amended, around, cuts, parted, too_much
from nsysalign.trace.index import FOREVER, Excerpt, Index

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


@dataclass(frozen=True)
class _Round:
    """Results of all slices; where the trace's blocks really lie; what is said about pairs of records."""

    found: list[Done | Unseen]
    index: Index
    notes: tuple[str, ...]


def read_ahead(pool: WorkerPool, path: Path, index: Index, count: int) -> None:
    """Let the other processes read the last slices, which they will get, as far as these are known before the log is read."""
    slices = parted(index, count)[::-1][: pool.others]
    read = [index.excerpt([around(index, *slice_, MARGIN_BLOCKS)], home=slice_) for slice_ in slices]
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
        slices = cuts(known.timed, index, count)
        if slices is None:
            return None
        round_ = _round(path, index, known, slices, pool, tell, segments)
        if round_ is None:
            return None
        found, index = round_.found, round_.index
        done = [f for f in found if isinstance(f, Done)]
        if len(done) < len(found):
            lanes = [f.lanes for f in found if isinstance(f, Unseen)]
            known = amended(known, lanes, None, [f.seen for f in found])
            continue
        busy = np.logical_or.reduce([d.busy for d in done])
        now = amended(known, [], busy, [d.seen for d in done])
        assert known.context.busy is not None  # the survey determined it
        if np.array_equal(busy, known.context.busy) and now.context.processes == known.context.processes:
            pool.prepare(trim_memory, [() for _ in range(pool.others)])
            lost = {what: sum(d.lost[what] for d in done) for what in done[0].lost}
            notes, portion = round_.notes, together([d.portion for d in done])
            del round_, found, done  # their tables are in the portion now
            trim_memory()
            portion = without_timed_regions(joined(portion))
            trim_memory()
            return Whole(replace(portion, notes=(*portion.notes, *notes)), now, index, lost)
        known = now
    return None


def _round(
    path: Path,
    index: Index,
    known: Survey,
    slices: Sequence[tuple[int, int]],
    pool: WorkerPool,
    tell: Progress,
    segments: bool,
) -> _Round | None:
    """The results of every slice, with as much around it as it needs.  None if pairs of records, which no log names, make slices
    overlap too much."""
    found: dict[int, Any] = {}
    excerpts: dict[int, Excerpt] = {}
    narrow = dict.fromkeys(range(len(slices)), 0)  # how often each was
    pairs: list[pd.DataFrame | None] = [None for _ in slices]
    notes: list[str] = []
    left = list(narrow)
    while left:
        excerpts.update((n, _excerpt(known, index, slices[n], _WIDER[narrow[n]], pairs[n])) for n in left)
        jobs = [partial(_job, path, known, slices[n], excerpts[n], segments, pairs[n]) for n in left]
        results = pool.map(work, jobs, partial(_tell, tell, len(slices) - len(left), len(slices)))
        found.update(zip(left, results, strict=True))
        index = index.corrected([f.blocks for f in results])
        left = [n for n in left if isinstance(found[n], Narrow)]
        every = [found[n].edges for n in narrow if isinstance(found[n], Done) and found[n].edges]
        if not left and len(every) == len(slices):
            left = _cut_short(every, [excerpts[n].spans[-1][1] for n in narrow])
        for n in left:
            narrow[n] += 1
        # a buffer that came late, a call that lasts: rows that a slice needed, and did not look for where they are
        left += [n for n in found if n not in left and index.misses(excerpts[n])]
        if not left and len(every) == len(slices):
            inferred, of_slices = _paired(every, slices)
            notes = pairing_notes(inferred)
            left = [
                n
                for n in narrow
                if not of_slices[n].equals(every[n].pairs) and not of_slices[n].equals(pairs[n])
            ]
            for n in left:
                pairs[n] = of_slices[n]
            if left and too_much(index, [_until(known, slices[n], pairs[n]) for n in narrow]):
                return None
    return _Round([found[n] for n in narrow], index, tuple(notes))


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


def _paired(every: Sequence[Edges], slices: Sequence[tuple[int, int]]) -> tuple[Pairs, list[pd.DataFrame]]:
    """The pairs of all records, and those (PAIRED) that begin in each slice."""
    marks = marked_together([e.marks for e in every])
    pairs = pairs_of(marks)
    table = by_thread(pairs.table(marks.records))
    opened = table["open_ns"].to_numpy()
    return pairs, [table[(opened >= begin) & (opened < end)].reset_index(drop=True) for begin, end in slices]


def _tell(tell: Progress, before: int, of: int, done: int) -> None:
    tell(before + done, of)


def _until(known: Survey, slice_: tuple[int, int], pairs: pd.DataFrame | None) -> tuple[int, int]:
    """From the begin of a slice to the end of its last interval."""
    until = known.timed.longest_until(*slice_)
    if pairs is not None:
        until = int(pairs["close_ns"].to_numpy().max(initial=until))
    return slice_[0], until


def _excerpt(
    known: Survey, index: Index, slice_: tuple[int, int], margin: int | None, pairs: pd.DataFrame | None
) -> Excerpt:
    if margin is None:
        return index.excerpt([(-FOREVER, FOREVER)], home=slice_)
    return index.excerpt([around(index, *_until(known, slice_, pairs), margin)], home=slice_)


def _job(
    path: Path,
    known: Survey,
    slice_: tuple[int, int],
    excerpt: Excerpt,
    segments: bool,
    pairs: pd.DataFrame | None,
) -> Job:
    stretch, context = known.timed.stretch(excerpt, *slice_), known.context
    if stretch.log is not None:
        context = context.about(stretch.log)
    if known.timed.ranges is not None:
        context = replace(context, from_trace=FromTrace(slice_, pairs))
    return Job(path, excerpt, stretch, context, known.latency, slice_, segments)
