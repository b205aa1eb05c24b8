"""For benchmarks that run under nsys and without it at the same time, in turns, on the same cores (`bench_turns.py`).

A host's speed changes within seconds, so two runs one after the other differ by more than nsys adds to them.  A program that
wraps what it measures in `turn()` works as always when it is run alone, and takes turns when `bench_turns.py` runs it twice.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
from collections.abc import Iterator

#: SOCKET:CPU:CPU, set by bench_turns.py; the second CPU is for the thread of backward passes.
VARIABLE = "BENCH_TURNS"


@functools.cache
def _other() -> socket.socket | None:
    """The connection to bench_turns.py, None if the program runs alone."""
    if VARIABLE not in os.environ:
        return None
    address, mine, backward = os.environ[VARIABLE].rsplit(":", 2)
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.zeros(1, device=device)  # the threads that CUDA and nsys start stay where they are
    os.sched_setaffinity(0, {int(backward)})
    with torch.enable_grad():  # starts autograd's thread, which stays there
        torch.ones(1, device=device, requires_grad=True).sum().backward()
    os.sched_setaffinity(0, {int(mine)})
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    return connection


def taking_turns() -> bool:
    """Whether this process is one of two."""
    return _other() is not None


@contextlib.contextmanager
def turn() -> Iterator[None]:
    """While the body runs, the other process waits."""
    other = _other()
    if other is None:
        yield
        return
    other.sendall(b"?")
    if not other.recv(1):
        raise SystemExit("bench_turns.py has ended")
    try:
        yield
    finally:
        other.sendall(b".")
