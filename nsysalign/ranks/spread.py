"""One function over many jobs: here, in processes of this machine, or on a Dask cluster.

All three are executors with the standard library's interface and differ only in how they are created.  On the disks of a
cluster's machines each trace is analysed where it lies, and only its summary is transferred:

    here                          a worker of each machine
    paths ----------------------> what lies there under these paths
    sources, each with its hosts <----
    a job per trace ------------> one of the trace's own hosts analyses it and writes its pages there
    summaries <------------------

Where machines share a file system every worker sees the same files: then any of them may have any job, and all results lie
in one folder.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ThreadPoolExecutor,
    as_completed,
)
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from nsysalign import __version__
from nsysalign.effort import processors
from nsysalign.errors import NsysAlignError, TraceError, UsageError
from nsysalign.ranks.results import Source
from nsysalign.ranks.sources import find, numbered
from nsysalign.workers import started

Job = TypeVar("Job")
Result = TypeVar("Result")

#: Peak memory of the analysis of one trace: a fixed amount, plus this many bytes per byte of its export.
BASE_BYTES = 200 << 20
BYTES_PER_BYTE = 10
#: Seconds to wait for the first worker of a cluster, and for a machine's workers to come back.
WORKER_S, GONE_S = 60, 60


def over(
    function: Callable[[Job], Result], jobs: Sequence[Job], executor: Executor
) -> Iterator[tuple[Job, Result | BaseException]]:
    """(job, result or exception), in the order in which they end.

    A worker process that dies takes its whole pool with it, and it is not known which job caused it: the lost jobs run
    once more, one at a time and each in a process of its own, so that only the one at fault is lost.
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


class Cluster(Executor):
    """The workers of a Dask scheduler.  A job that has `hosts` (addresses of machines) is done on one of them, any other
    job anywhere.

    Dask itself gives the job of a lost worker to another one.  If all workers of a job's hosts are gone, and none has come
    back after GONE_S seconds, the job is cancelled: no other worker could do it.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._bound: dict[Future, tuple[str, ...]] = {}
        self._over = threading.Event()

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
        hosts = tuple(getattr(arguments[0], "hosts", ())) if arguments else ()
        # pure: the same trace twice would be computed once, and a repeated analysis not at all
        where = {"workers": list(hosts), "allow_other_workers": False} if hosts else {}
        executor = self._client.get_executor(pure=False, **where)
        future = executor.submit(function, *arguments, **named)
        if hosts:
            if not self._bound:
                threading.Thread(target=self._watch, daemon=True).start()
            self._bound[future] = hosts
        return future

    def ask(self, function: Callable[..., Result], *arguments: Any) -> dict[str, Result]:
        """The answer of one worker of each host, by host.  Raises UsageError if one cannot answer."""
        answers = {}
        for host, worker in sorted(self._workers().items()):
            try:
                answers[host] = self._client.run(function, *arguments, workers=[worker])[worker]
            except Exception as error:
                raise UsageError(
                    f"the worker at {worker} cannot say what it sees ({type(error).__name__}: {error})",
                    "install nsysalign, of one version, where every worker runs",
                ) from error
        return answers

    @property
    def lost(self) -> bool:
        """Whether the scheduler cannot be reached any more."""
        return self._client.status != "running"

    def stop(self) -> None:
        """Stop watching the workers."""
        self._over.set()

    def _workers(self) -> dict[str, str]:
        """A worker's address for each host."""
        from distributed.comm import get_address_host

        return {get_address_host(worker): worker for worker in self._client.nthreads()}

    def _watch(self) -> None:
        last_seen: dict[str, float] = {}
        while not self._over.wait(1):
            with contextlib.suppress(Exception):  # the scheduler itself is gone: the futures say so
                now = time.monotonic()
                last_seen |= dict.fromkeys(self._workers(), now)
                for future, hosts in list(self._bound.items()):
                    if all(now - last_seen.setdefault(host, now) > GONE_S for host in hosts):
                        future.cancel()


@contextmanager
def dask(address: str, count: int) -> Iterator[Cluster]:
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
            # its web server always runs: on a port that no other cluster on this machine uses
            local = distributed.LocalCluster(
                n_workers=count, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0",
                scheduler_kwargs={"dashboard": False},
            )  # fmt: skip
            target = stack.enter_context(local)
        try:
            client = stack.enter_context(distributed.Client(target, timeout=20))
        except (OSError, ValueError, TimeoutError) as error:
            raise UsageError(
                f"--dask {address}: no scheduler answers there ({error})",
                "give local, or the address that dask scheduler printed: tcp://HOST:8786",
            ) from error
        try:
            client.wait_for_workers(1, timeout=WORKER_S)
        except TimeoutError as error:
            raise UsageError(
                f"--dask {address}: no worker has joined this scheduler",
                f"on each machine: dask worker {address}",
            ) from error
        cluster = Cluster(client)
        stack.callback(cluster.stop)
        yield cluster


def workers(traces: Sequence[Path], wanted: int | None = None) -> int:
    """How many analyses at once: as many as there are traces, cores, and pieces of memory for the largest ones.

    `wanted` overrules cores and memory.
    """
    if wanted:
        return max(1, min(wanted, len(traces)))
    needs = []
    for trace in traces:  # a report's export is about seven times as large as the report
        size, export = 0, trace.with_suffix(".sqlite")
        with contextlib.suppress(OSError):
            size = export.stat().st_size if export.exists() else 7 * trace.stat().st_size
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


#: What identifies a file on all machines that share it: size, modification time (ns), inode.
Identity = tuple[int, int, int]


@dataclass(frozen=True)
class Seen:
    """What a machine sees under the given paths."""

    version: str
    sources: tuple[tuple[Source, Identity], ...]
    error: str  # why there are none
    shared: bool  # whether it sees the folder of the results


@dataclass(frozen=True)
class Place:
    """Where a trace is analysed: on any of these hosts (none: on any at all), into `folder` on the host's own disk (None:
    into the folder of the results, which it sees)."""

    hosts: tuple[str, ...] = ()
    folder: Path | None = None


#: On any worker, into the folder of the results.
ANYWHERE = Place()


def look(paths: Sequence[Path], logs: Sequence[Path], mark: Path) -> Seen:
    """What this machine sees.  `mark` is a file that has just been created in the folder of the results."""
    there = [path for path in paths if path.exists()]
    try:
        sources = find(there, [log for log in logs if log.exists()]) if there else ()
    except NsysAlignError as error:
        return Seen(__version__, (), error.message, mark.exists())
    known = []
    for source in sources:
        state = source.trace.stat()
        known.append((source, (state.st_size, state.st_mtime_ns, state.st_ino)))
    error = "" if known else "nothing lies under these paths"
    return Seen(__version__, tuple(known), error, mark.exists())


def placed(
    cluster: Cluster, paths: Sequence[Path], logs: Sequence[Path], output: Path
) -> list[tuple[Source, Place]]:
    """Every trace that a machine of the cluster sees under these absolute paths, once, with its place.

    Raises TraceError if no machine sees any, UsageError if a machine has no nsysalign, or another version.
    """
    mark = output / f".{secrets.token_hex(8)}"
    mark.touch()
    try:
        seen = cluster.ask(look, paths, logs, mark)
    finally:
        mark.unlink()
    return merged(seen, output.with_name(f"{output.name}-{mark.name[1:]}"))


def merged(seen: Mapping[str, Seen], private: Path) -> list[tuple[Source, Place]]:
    """One source for a file that several machines share; names that several files have are numbered.

    `private`: the folder of results on machines that do not see the common one.  Raises as `placed` does.
    """
    if others := sorted({s.version for s in seen.values()} - {__version__}):
        hosts = sorted(host for host, s in seen.items() if s.version != __version__)
        raise UsageError(
            f"workers of the cluster ({', '.join(hosts)}) have nsysalign {', '.join(others)}, this is {__version__}",
            "install one version on all machines",
        )
    if not any(s.sources for s in seen.values()):
        errors = "; ".join(f"{host}: {s.error}" for host, s in sorted(seen.items()))
        raise TraceError(
            f"no machine of the cluster sees a trace under these paths ({errors})",
            "give the paths that the traces have on the workers' machines",
        )
    files: dict[tuple[Path, Identity], tuple[Source, list[str]]] = {}
    for host, what in sorted(seen.items()):
        for source, identity in what.sources:
            files.setdefault((source.trace, identity), (source, []))[1].append(host)
    names = numbered(source.name for source, _ in files.values())
    places = []
    for (source, hosts), name in zip(files.values(), names, strict=True):
        shared = [host for host in hosts if seen[host].shared]
        own = tuple(shared or hosts)
        everywhere = shared and set(own) == set(seen)  # and machines that join the cluster later
        place = Place(() if everywhere else own, None if shared else private)
        places.append((replace(source, name=name), place))
    return places
