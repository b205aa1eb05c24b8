"""When does the program fork processes, such as the workers of a DataLoader that start anew in each epoch?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from nsysalign.intervals import distinct
from nsysalign.model import FORK, Trace, pid_of


class Forks(NamedTuple):
    """When a process forked others, in the order of time."""

    pid: int
    start_ns: np.ndarray


def forks_of(trace: Trace) -> Iterator[Forks]:
    """Yield a record for each process that forked others."""
    forks = trace.ranges[trace.ranges["kind"] == FORK]
    pid = pid_of(forks["process"].to_numpy())
    start_ns = forks["start_ns"].to_numpy()
    for number in distinct(pid).tolist():
        yield Forks(int(number), np.sort(start_ns[pid == number]))
