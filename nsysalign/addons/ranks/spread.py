"""One function over many jobs: here, in processes of this machine, or on a Dask cluster, whose
workers see the traces and the folder of the results under the paths that this machine uses."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ThreadPoolExecutor,
    as_completed,
)
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from nsysalign import __version__
from nsysalign.errors import UsageError
from nsysalign.memory import processors
from nsysalign.workers import started

Job = TypeVar("Job")
Result = TypeVar("Result")

#: Peak memory of the analysis of one trace: a fixed amount, plus this many bytes per byte of its
#: export; a report's export is about seven times as large as the report.
BASE_BYTES, BYTES_PER_BYTE, EXPORT_BYTES = 200 << 20, 10, 7
#: Seconds to wait for the first worker of a cluster.
WORKER_S = 60


def over(
    function: Callable[[Job], Result], jobs: Sequence[Job], executor: Executor
) -> Iterator[tuple[Job, Result | BaseException]]:
    """(job, result or exception), in the order in which they end.

    A worker process that dies takes its whole pool with it, and it is not known which job caused
    it: the lost jobs run once more, one at a time and each in a process of its own, so that only
    the one at fault is lost.
    """

    def outcome(future: Future) -> Any:
        try:
            return future.result()
        except (Exception, CancelledError) as error:
            return error

    futures = {executor.submit(function, job): job for job in jobs}
    lost = []
    try:
        for future in as_completed(futures):
            result = outcome(future)
            if isinstance(result, BrokenExecutor):
                lost.append((futures[future], result))
            else:
                yield futures[future], result
    except BaseException:
        for future in futures:
            future.cancel()
        raise
    for job, result in lost:
        with started(1) or contextlib.nullcontext() as alone:
            yield job, result if alone is None else outcome(alone.submit(function, job))


@contextmanager
def processes(count: int) -> Iterator[Executor]:
    """Worker processes of this machine; one job at a time needs no other process, only a thread."""
    with (started(count) if count > 1 else None) or ThreadPoolExecutor(1) as pool:
        yield pool


@contextmanager
def dask(address: str, count: int) -> Iterator[Executor]:
    """The cluster of the scheduler at `address`, or `local`, one of `count` processes here."""
    try:
        import distributed
    except ImportError as error:
        raise UsageError(
            "--dask needs Dask, which is not installed", "pip install 'nsysalign[dask]'"
        ) from error
    # what a client logs when it loses its scheduler is a traceback; every trace says so in one line
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
    with contextlib.ExitStack() as stack:
        target: Any = address
        if address == "local":
            target = stack.enter_context(
                distributed.LocalCluster(
                    n_workers=count, threads_per_worker=1, dashboard_address="127.0.0.1:0"
                )
            )
        try:
            client = stack.enter_context(distributed.Client(target, timeout=20))
            client.wait_for_workers(1, timeout=WORKER_S)
        except (OSError, ValueError, TimeoutError) as error:
            raise UsageError(
                f"--dask {address}: no scheduler answers there, or no worker has joined it "
                f"({error})",
                "give local, or the address that dask scheduler printed: tcp://HOST:8786; and on "
                "each machine: dask worker ADDRESS",
            ) from error
        versions = set(client.run(_version).values())
        if versions - {__version__}:
            raise UsageError(
                f"workers of the cluster have nsysalign {', '.join(sorted(versions))}, this is "
                f"{__version__}",
                "install one version on all machines",
            )
        # pure: the same trace twice would be computed once, and a repeated analysis not at all
        yield client.get_executor(pure=False)


def _version() -> str:
    try:
        from nsysalign import __version__
    except ImportError:
        return "none"
    return __version__


def workers(traces: Sequence[Path], wanted: int | None = None) -> int:
    """How many analyses at once: as many as there are traces, cores, and pieces of memory for the
    largest ones; `wanted` overrules cores and memory."""
    if wanted:
        return max(1, min(wanted, len(traces)))
    needs = []
    for trace in traces:
        size, export = 0, trace.with_suffix(".sqlite")
        with contextlib.suppress(OSError):
            there = export.exists()
            size = export.stat().st_size if there else EXPORT_BYTES * trace.stat().st_size
        needs.append(BASE_BYTES + BYTES_PER_BYTE * size)
    free, fits = free_memory(), 0
    for need in sorted(needs, reverse=True):
        free -= need
        fits += free >= 0
    return max(1, min(len(traces), processors(), fits))


def free_memory() -> int:
    """Available bytes: the machine's and, in a container, what its limit leaves."""
    free = 1 << 40
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = 1024 * int(next(line.split()[1] for line in lines if line[:12] == "MemAvailable"))
    with contextlib.suppress(OSError, ValueError):
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        free = min(free, limit - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    return free
