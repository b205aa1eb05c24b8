"""Processes that share the work on one long trace.

This module imports nothing slow: the other processes start, and import what they need, while this one is still importing.
"""

from __future__ import annotations

import concurrent.futures
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

from nsysalign.effort import alone, imported, keep_alone, look_for_garbage_less_often, processors
from nsysalign.workers import started

#: Exports are cut into slices only if they have at least this many bytes per slice.
BYTES_PER_SLICE = 40_000_000
#: Default number of processes: each takes some hundred megabytes, and the log is read by one.
MOST = 8
#: Errors that mean a process is lost to the pool: it died, or cannot take work any more.
_GONE = (concurrent.futures.BrokenExecutor, concurrent.futures.CancelledError, RuntimeError)


class WorkerPool:
    """This process and `count` - 1 others, or as many as the machine allows, which are started at once and wait for work."""

    def __init__(self, count: int) -> None:
        self._others = [pool for _ in range(count - 1) if (pool := started(1, _wake))]

    def begin(self, function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
        """function(*arguments), by another process if there is one: the result is called to wait for it."""
        if not self._others:
            return partial(function, *arguments)
        try:
            begun = self._others[0].submit(function, *arguments)
        except _GONE:
            return partial(function, *arguments)

        def result() -> Any:
            try:
                return begun.result()
            except _GONE:
                return function(*arguments)

        return result

    def prepare(self, function: Callable[..., None], each: Sequence[tuple]) -> None:
        """function(*arguments) in the other processes, in turn, while they have nothing else to do."""
        for number, arguments in enumerate(each if self._others else ()):
            with suppress(*_GONE):
                self._others[number % len(self._others)].submit(function, *arguments)

    @property
    def others(self) -> int:
        return len(self._others)

    def map(
        self,
        function: Callable[[Any], Any],
        jobs: Sequence[Callable[[], Any]],
        tell: Callable[[int], None],
    ) -> list[Any]:
        """function(job()) for all jobs, in their order: this process takes the first, the others the last ones, each made when
        a process is free.  A job lost with its process is done here.  `tell` is called with the number of finished jobs."""
        todo = deque(enumerate(jobs))
        found: dict[int, Any] = {}
        failed: list[BaseException] = []

        def with_(other: concurrent.futures.Executor) -> None:
            while todo and not failed:
                try:
                    number, job = todo.pop()
                except IndexError:
                    return
                try:
                    found[number] = other.submit(function, job()).result()
                except _GONE:
                    todo.append((number, job))
                    return
                except BaseException as error:
                    failed.append(error)

        helpers = [
            threading.Thread(target=with_, args=(other,), daemon=True) for other in self._others
        ]
        for helper in helpers:
            helper.start()
        try:
            with (
                alone() if self._others else nullcontext()
            ):  # the other processes use the other processors
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
        except BaseException:
            todo.clear()  # no further job is begun
            raise
        if failed:
            raise failed[0]
        return [found[n] for n in range(len(jobs))]

    def close(self) -> None:
        """End the other processes; anything they are still doing is not needed."""
        for other in self._others:
            other.dismiss()
        for other in self._others:
            other.stop()


def _wake() -> None:
    """Imports what slices need, and notes that this process is one of several."""
    keep_alone()
    look_for_garbage_less_often()
    imported("nsysalign.slices.one")


def cores() -> int:
    """Processors that this process may use, MOST at most."""
    return min(processors(), MOST)


def wanted(trace: Path, jobs: int) -> int:
    """How many processes an analysis of an export could keep busy: one for every slice, at most `jobs`."""
    try:
        return max(1, min(jobs, trace.stat().st_size // BYTES_PER_SLICE))
    except OSError:
        return 1


@contextmanager
def worker_pool(count: int) -> Iterator[WorkerPool]:
    made = WorkerPool(count)
    try:
        yield made
    finally:
        made.close()
