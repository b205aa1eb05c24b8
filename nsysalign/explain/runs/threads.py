"""Which threads of a process give work to its GPUs, and when?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from nsysalign.intervals import distinct
from nsysalign.model import CALL, ISSUING_CALLS, Trace, pid_of, tid_of


class LaunchesOfThreads(NamedTuple):
    """The calls of a process that give work to a GPU, by start; only of a process in which several threads do."""

    pid: int
    tid: np.ndarray  # per call, int32
    start_ns: np.ndarray


def launches_of_threads(trace: Trace) -> Iterator[LaunchesOfThreads]:
    """Yield a record for each process in which several threads launch: autograd's launches what loss.backward() does."""
    calls = trace.calls
    issuing = [CALL[kind] for kind in ISSUING_CALLS]
    chosen = np.flatnonzero(trace.outermost & np.isin(calls["kind"].to_numpy(), issuing))
    thread = calls["thread"].to_numpy()[chosen]
    start_ns = calls["start_ns"].to_numpy()[chosen]
    pid, tid = pid_of(thread), tid_of(thread).astype(np.int32)
    for process in distinct(pid).tolist():
        rows = np.flatnonzero(pid == process)
        if len(distinct(tid[rows])) > 1:
            rows = rows[np.argsort(start_ns[rows], kind="stable")]
            yield LaunchesOfThreads(process, tid[rows], start_ns[rows])
