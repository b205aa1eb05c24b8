"""Every trace of a comparison is analysed by a job of its own: here, in processes of this machine,
or as a task of a Dask cluster, whose workers see the traces and the folder of the results under the
paths that this machine uses."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Executor,
    ThreadPoolExecutor,
    as_completed,
)
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nsysalign import __version__
from nsysalign.addons.ranks.records import Source, SourceResult
from nsysalign.commandline.progress import ProgressLine
from nsysalign.errors import EventLogError, NsysAlignError, UsageError
from nsysalign.files import file_name
from nsysalign.memory import processors
from nsysalign.rundir import PAGE, RunDirectory
from nsysalign.trace.lines import lines_of
from nsysalign.workers import started

#: Peak memory of the analysis of one trace: a fixed amount, plus this many bytes per byte of its
#: export; a report's export is about seven times as large as the report.
BASE_BYTES, BYTES_PER_BYTE, EXPORT_BYTES = 200 << 20, 10, 7
#: Seconds to wait for the first worker of a cluster.
WORKER_S = 60


@dataclass(frozen=True)
class Job:
    """All that a worker needs, wherever it runs: paths and words."""

    source: Source
    output: Path  # the comparison's folder
    folder: str  # the trace's own folder in it
    nsys: str | None = None


def one(job: Job) -> SourceResult:
    """Analyse one trace into its folder: what a worker does.  Never raises for a trace that cannot
    be analysed."""
    from nsysalign.addons.ranks.compare import summaries
    from nsysalign.commandline.assembly import exported
    from nsysalign.commandline.present import store
    from nsysalign.engine import analyze_inputs
    from nsysalign.record.session import baseline_logs
    from nsysalign.trace.nccl import read_shared

    source, folder = job.source, job.output / job.folder
    result = SourceResult(source.name, str(source.trace))
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        trace = exported(source.trace, folder, nsys=job.nsys)
        shared = read_shared(trace)
        logs, notes = source.logs, ()
        if source.pooled:
            logs = tuple(log for log in logs if pids_of(log) & {*shared.processes})
            notes = () if logs else ("none of the event logs next to it belongs to its processes",)
        # the trace's own run directory; a folder of several traces says nothing about a single one
        home = RunDirectory(source.trace.parent)
        baseline = tuple(baseline_logs(home.path)) if logs and len(home.traces()) == 1 else ()
        analysis = analyze_inputs(home.inputs(trace, logs, baseline))
        store(analysis, folder)
        ranks = summaries(analysis, shared, source.name)
        return replace(result, ranks=ranks, notes=notes, report=f"{job.folder}/{PAGE}")
    except Exception as error:  # a bug triggered by one trace must not affect the others
        with contextlib.suppress(OSError):
            folder.rmdir()  # if it is empty
        if isinstance(error, NsysAlignError):
            return replace(result, failure=error.message, next_step=error.next_step or "")
        return replace(
            result,
            failure=f"internal error: {type(error).__name__}: {error}",
            next_step=f"nsysalign --debug analyze {source.trace}",
        )


def pids_of(log: Path) -> set[int]:
    """Process ids that a log's headers name.  Only header lines are parsed; a damaged one names no
    process, and is reported when the log is read."""
    pids = set()
    damaged = (ValueError, AttributeError, TypeError, OverflowError, RecursionError)
    with contextlib.suppress(EventLogError):
        for line in lines_of(log):
            if '"header"' in line[:200]:
                with contextlib.suppress(*damaged):
                    pids.add(int(json.loads(line).get("pid")))
    return pids


def analyse(
    sources: Sequence[Source],
    output: Path,
    executor: Executor,
    *,
    nsys: str | None = None,
    quiet: bool = True,
) -> list[SourceResult]:
    """Run every source through the executor, in the order of the sources."""
    output = output.absolute()  # workers of a cluster have working directories of their own
    folders = [file_name(source.name) for source in sources]
    if len({name.lower() for name in folders}) != len(folders):  # Rank0 may be rank0 on this disk
        folders = [f"{n:03d}-{name}" for n, name in enumerate(folders)]
    jobs = [Job(s, output, folder, nsys) for s, folder in zip(sources, folders, strict=True)]
    results: dict[str, SourceResult] = {}
    with ProgressLine(quiet) as tell:
        tell(f"analysing {len(jobs)} traces", 0)
        for result in over(one, jobs, executor):
            results[result.source] = result
            tell(f"analysing {len(jobs)} traces", 100 * len(results) // len(jobs))
    return [results[source.name] for source in sources]


def over(
    function: Callable[[Job], SourceResult], jobs: Sequence[Job], executor: Executor
) -> Iterator[SourceResult]:
    """The results of all jobs, in the order in which they end.

    A worker process that dies takes its whole pool with it, and it is not known which job caused
    it: the lost jobs run once more, one at a time and each in a process of its own, so that only
    the one at fault is lost.
    """
    futures = {executor.submit(function, job): job for job in jobs}
    lost = []
    try:
        for future in as_completed(futures):
            error = CancelledError() if future.cancelled() else future.exception()
            if isinstance(error, BrokenExecutor):
                lost.append((futures[future], error))
            else:
                yield checked(futures[future], error or future.result())
    except BaseException:
        for future in futures:
            future.cancel()
        raise
    for job, error in lost:
        with started(1) or contextlib.nullcontext() as alone:
            again = alone.submit(function, job) if alone else None
            yield checked(job, again.exception() or again.result() if again else error)


def checked(job: Job, outcome: SourceResult | BaseException) -> SourceResult:
    """The result of a job.  If its worker died, or wrote where this machine cannot read, its trace
    has failed."""
    if isinstance(outcome, BaseException):
        failure = f"its worker died ({type(outcome).__name__}: {str(outcome)[:200]})"
        next_step = f"fewer workers (--jobs 1), or alone: nsysalign analyze {job.source.trace}"
    elif outcome.report and not (job.output / outcome.report).exists():
        failure = "its worker wrote to a disk that this machine cannot see"
        next_step = "choose a folder for -o that all workers share"
    else:
        return outcome
    name, trace = job.source.name, str(job.source.trace)
    return SourceResult(name, trace, failure=failure, next_step=next_step)


@contextlib.contextmanager
def processes(count: int) -> Iterator[Executor]:
    """Worker processes of this machine; one job at a time needs no other process, only a thread."""
    with (started(count) if count > 1 else None) or ThreadPoolExecutor(1) as pool:
        yield pool


def workers(traces: Sequence[Path], wanted: int | None = None) -> int:
    """How many analyses at once: as many as there are traces, cores, and pieces of memory for the
    largest; `wanted` overrules cores and memory."""
    if wanted:
        return min(wanted, len(traces))
    sizes = [0]
    for trace in traces:
        export = trace.with_suffix(".sqlite")
        with contextlib.suppress(OSError):
            there = export.exists()
            sizes.append(export.stat().st_size if there else EXPORT_BYTES * trace.stat().st_size)
    fits = free_memory() // (BASE_BYTES + BYTES_PER_BYTE * max(sizes))
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


@contextlib.contextmanager
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
            made = distributed.LocalCluster(
                n_workers=count, threads_per_worker=1, dashboard_address="127.0.0.1:0"
            )
            target = stack.enter_context(made)
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
