"""Runs the slices of a trace, one after the other or shared with other processes, and combines the results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nsysalign.attribute.partial import together, without_timed_regions
from nsysalign.attribute.run_windows import joined
from nsysalign.model import PartialResult
from nsysalign.slices.one import Done, Job, Narrow, Unseen, work
from nsysalign.slices.one import read_ahead as ahead
from nsysalign.slices.pool import WorkerPool
from nsysalign.slices.survey import MARGIN_BLOCKS, Survey, amended, around, cuts, parted
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
        found, index = _round(path, index, known, slices, pool, tell, segments)
        done = [f for f in found if isinstance(f, Done)]
        if len(done) < len(found):
            lanes = [f.lanes for f in found if isinstance(f, Unseen)]
            known = amended(known, lanes, None, [f.seen for f in found])
            continue
        busy = np.logical_or.reduce([d.busy for d in done])
        now = amended(known, [], busy, [d.seen for d in done])
        assert known.context.busy is not None  # the survey determined it
        if np.array_equal(busy, known.context.busy) and now.context.processes == known.context.processes:
            lost = {what: sum(d.lost[what] for d in done) for what in done[0].lost}
            portion = without_timed_regions(joined(together([d.portion for d in done])))
            return Whole(portion, now, index, lost)
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
) -> tuple[list[Done | Unseen], Index]:
    """The results of every slice, with as much around it as it needs, and where the trace's blocks really lie."""
    found: dict[int, Any] = {}
    excerpts: dict[int, Excerpt] = {}
    narrow = dict.fromkeys(range(len(slices)), 0)  # how often each was
    left = list(narrow)
    while left:
        excerpts.update((n, _excerpt(known, index, slices[n], _WIDER[narrow[n]])) for n in left)
        jobs = [partial(_job, path, known, slices[n], excerpts[n], segments) for n in left]
        results = pool.map(work, jobs, partial(_tell, tell, len(slices) - len(left), len(slices)))
        found.update(zip(left, results, strict=True))
        index = index.corrected([f.blocks for f in results])
        left = [n for n in left if isinstance(found[n], Narrow)]
        for n in left:
            narrow[n] += 1
        # a buffer that came late, a call that lasts: rows that a slice needed, and did not look for where they are
        left += [n for n in found if n not in left and index.misses(excerpts[n])]
    return [found[n] for n in narrow], index


def _tell(tell: Progress, before: int, of: int, done: int) -> None:
    tell(before + done, of)


def _excerpt(known: Survey, index: Index, slice_: tuple[int, int], margin: int | None) -> Excerpt:
    if margin is None:
        return index.excerpt([(-FOREVER, FOREVER)], home=slice_)
    end = known.timed.longest_until(*slice_)
    return index.excerpt([around(index, slice_[0], end, margin)], home=slice_)


def _job(path: Path, known: Survey, slice_: tuple[int, int], excerpt: Excerpt, segments: bool) -> Job:
    stretch = known.timed.stretch(excerpt, *slice_)
    return Job(path, excerpt, stretch, known.context.about(stretch.log), known.latency, slice_, segments)
