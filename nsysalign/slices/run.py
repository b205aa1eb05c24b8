"""The slices of a trace, one after the other or shared with other processes, put together again."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from nsysalign.attribute.portion import together
from nsysalign.model import Portion
from nsysalign.slices.plan import LEAN_BLOCKS, Survey, amended, cuts, span
from nsysalign.slices.work import Done, Job, Narrow, Unseen, work
from nsysalign.trace.index import Index

#: How much more is read around a slice that did not see enough, time after time; then everything.
_WIDER = (LEAN_BLOCKS, 4, 16, 64)
#: Told how many slices are done, and of how many.
Progress = Callable[[int, int], None]


class Crew:
    """This process and `count` - 1 others, that are started at once and wait for work."""

    def __init__(self, count: int) -> None:
        # spawn: a fork would copy threads' locks
        context = multiprocessing.get_context("spawn")
        self._others = [
            concurrent.futures.ProcessPoolExecutor(1, mp_context=context) for _ in range(count - 1)
        ]
        for other in self._others:
            other.submit(_wake)

    def map(
        self,
        function: Callable[[Any], Any],
        jobs: Sequence[Callable[[], Any]],
        tell: Callable[[int], None],
    ) -> list[Any]:
        """function(job()) for all jobs, in their order.  Jobs are made when somebody is free; one that is lost with its
        process is done here.  `tell` is told how many are done."""
        todo = deque(enumerate(jobs))
        found: dict[int, Any] = {}
        failed: list[BaseException] = []

        def with_(other: concurrent.futures.Executor) -> None:
            while todo and not failed:
                try:
                    number, job = todo.popleft()
                except IndexError:
                    return
                try:
                    found[number] = other.submit(function, job()).result()
                except (concurrent.futures.BrokenExecutor, concurrent.futures.CancelledError, RuntimeError):
                    todo.append(
                        (number, job)
                    )  # its process is gone; RuntimeError: it cannot take work any more
                    return
                except BaseException as error:
                    failed.append(error)

        helpers = [threading.Thread(target=with_, args=(other,), daemon=True) for other in self._others]
        for helper in helpers:
            helper.start()
        while len(found) < len(jobs) and not failed:
            try:
                number, job = todo.popleft()
            except IndexError:
                for helper in helpers:
                    helper.join()
                if not todo:
                    break
                continue
            found[number] = function(job())
            tell(len(found))
        if failed:
            raise failed[0]
        return [found[n] for n in range(len(jobs))]

    def close(self) -> None:
        for other in self._others:
            other.shutdown(wait=False, cancel_futures=True)


def _wake() -> None:
    """Importing this module is what takes time."""


@contextmanager
def crew(count: int) -> Iterator[Crew]:
    made = Crew(count)
    try:
        yield made
    finally:
        made.close()


def measure(
    path: Path, index: Index, known: Survey, count: int, crew: Crew, tell: Progress
) -> tuple[Portion, Survey, dict[str, int]] | None:
    """All intervals of a trace, from `count` slices; what is known of it now; what could not be used.  None where it cannot
    be cut."""
    for _ in range(
        3
    ):  # what slices see amends what is known, once; then once more where that showed something else
        slices = cuts(known.timed, index, count)
        if slices is None:
            return None
        found = _round(path, index, known, slices, crew, tell)
        unseen = [f for f in found if isinstance(f, Unseen)]
        done = [f for f in found if isinstance(f, Done)]
        if unseen:
            known = amended(known, [u.lanes for u in unseen], None, [f.seen for f in found])
            continue
        busy = np.logical_or.reduce([d.busy for d in done])
        now = amended(known, [], busy, [d.seen for d in done])
        same = np.array_equal(busy, known.given.busy) and now.given.processes == known.given.processes
        if same:
            lost = {what: sum(d.lost[what] for d in done) for what in done[0].lost}
            return together([d.portion for d in done]), now, lost
        known = now
    return None


def _round(
    path: Path,
    index: Index,
    known: Survey,
    slices: Sequence[tuple[int, int]],
    crew: Crew,
    tell: Progress,
) -> list[Done | Unseen]:
    found: dict[int, Any] = {}
    left = list(range(len(slices)))
    for lean in (*_WIDER, None):
        jobs = [_job(path, index, known, slices[n], lean) for n in left]
        before = len(slices) - len(left)
        results = crew.map(work, jobs, lambda done: tell(before + done, len(slices)))  # noqa: B023  called here
        found.update(zip(left, results, strict=True))
        left = [n for n in left if isinstance(found[n], Narrow)]
        if not left:
            break
    return [found[n] for n in range(len(slices))]


def _job(
    path: Path, index: Index, known: Survey, slice_: tuple[int, int], lean: int | None
) -> Callable[[], Job]:
    def make() -> Job:
        begin, end = slice_
        whole = (index.first_ns, index.last_ns)
        read = whole if lean is None else span(known.timed, index, begin, end, lean)
        excerpt = index.excerpt([read], home=slice_)
        stretch = known.timed.stretch(excerpt.spans, begin, end)
        return Job(path, excerpt, stretch, known.given, known.latency, whole[0])

    return make
