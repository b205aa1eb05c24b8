"""Processes that work for this one, and end with it."""

from __future__ import annotations

import _thread
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

#: How long a worker may take to clean up, in seconds.
_GRACE = 0.5


class Workers(ProcessPoolExecutor):
    """`count` processes.

    As a context it waits for them at its end; if it is left by an error or Ctrl-C, they stop what
    they are doing.  They also do so when this process ends, however it ends: otherwise a worker of
    a killed process would wait for work for ever, because it holds both ends of its queue.
    """

    def __init__(self, count: int) -> None:
        # spawn: a fork would copy threads' locks (numpy's, a notebook's)
        context = get_context("spawn")
        held, self._lifeline = context.Pipe(duplex=False)
        super().__init__(count, mp_context=context, initializer=_begin, initargs=(held,))
        self.submit(_nothing)  # this starts the first one

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future:
        return super().submit(_work, function, *arguments, **named)

    def stop(self) -> None:
        """Their work is no longer needed: they end within _GRACE.  Waits until they have: else
        Python, at exit, may wake a thread by a pipe that the thread is just closing."""
        self._lifeline.close()
        self.shutdown(wait=True, cancel_futures=True)

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> bool | None:
        if kind is not None:
            self.stop()
        return super().__exit__(kind, value, traceback)


def started(count: int) -> Workers | None:
    """None if the machine allows no process: no shared memory for the locks, no more processes for
    this user."""
    try:
        return Workers(count)
    except (OSError, ImportError, NotImplementedError):
        return None


#: In a worker: whether it has work, and whether that is no longer wanted.
_at_work = False
_over = threading.Event()


def _begin(lifeline: Connection) -> None:
    signal.signal(signal.SIGINT, _interrupted)
    threading.Thread(target=_watch, args=(lifeline,), daemon=True).start()


def _watch(lifeline: Connection) -> None:
    try:
        lifeline.recv_bytes()  # nothing is ever sent
    except (EOFError, OSError):
        _over.set()
        _thread.interrupt_main()
        time.sleep(_GRACE)
        os._exit(1)


def _interrupted(*_: object) -> None:
    """A terminal's Ctrl-C is for the process that started us: it decides what happens to us."""
    if not _over.is_set():
        return
    if not _at_work:
        os._exit(1)
    raise SystemExit(1)  # the writer of an incomplete file removes it


def _work(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    global _at_work
    _at_work = True
    try:
        return function(*arguments, **named)
    finally:
        _at_work = False


def _nothing() -> None:
    """Does nothing: a first job for a new worker."""
