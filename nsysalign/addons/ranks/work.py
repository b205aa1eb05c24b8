"""The traces that a command line means, and each analysed by a job of its own: here, in processes
of this machine, or as a task of a Dask cluster, whose workers see the traces and the folder of the
results under the paths that this machine uses.

Each path is a trace, a run directory, or a folder of either, two levels deep:

    train-000/trace.sqlite                         one source named train-000
    reports/report_rank0.nsys-rep  _rank1 ...      one source per report
    job/node0/train-001/trace.sqlite               sources below
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    BrokenExecutor,
    Executor,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    as_completed,
)
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from nsysalign import __version__
from nsysalign.addons.ranks.records import Source, SourceResult
from nsysalign.errors import NsysAlignError, TraceError, UsageError
from nsysalign.files import file_name
from nsysalign.rundir import PAGE, TRACE_SUFFIXES, RunDirectory, event_logs
from nsysalign.text import natural

#: A comparison's own document: a folder that contains one is a result and not searched.
DOCUMENT = "ranks.json"
#: How many levels of folders below a named one are searched: job/node/rank.
DEPTH = 2
#: Peak memory of the analysis of one trace: a fixed amount, plus this many bytes per byte of its
#: export; a report's export is about seven times as large as the report.
BASE_BYTES, BYTES_PER_BYTE, EXPORT_BYTES = 200 << 20, 10, 7
#: Seconds: to wait for the first worker of a cluster; for a worker to clean up.
WORKER_S, GRACE_S = 60, 0.5
_PR_SET_PDEATHSIG = 1


def is_many(path: Path) -> bool:
    """Whether a folder holds several traces, itself or in its folders."""
    alone = path.is_file() or len(RunDirectory(path).traces()) == 1
    return not alone and path.is_dir() and any(_below(path, DEPTH))


def find(paths: Sequence[Path]) -> tuple[Source, ...]:
    """The traces of a command line, each once.  Raises TraceError if a path contains none,
    UsageError if a trace is named twice."""
    sources: list[Source] = []
    for path in paths:
        if not path.exists():
            raise TraceError(
                f"{path}: no such file or directory", "nsysalign analyze RUN1 RUN2 ... | FOLDER"
            )
        below = list(_below(path, DEPTH))
        if not below:
            raise TraceError(
                f"{path}: neither a trace nor a folder of traces",
                f"looked for {', '.join(TRACE_SUFFIXES)}",
            )
        sources += below
    traces = [source.trace for source in sources]
    if twice := next((trace for n, trace in enumerate(traces) if trace in traces[:n]), None):
        raise UsageError(f"{twice}: this trace was given twice", "name every trace once")
    names = [file_name(source.name) for source in sources]
    for depth in (1, 2):  # equal stems: with the names of their folders in front, else numbered
        if len(set(names)) < len(names):
            names = [file_name("_".join((*t.parts[-1 - depth : -1], _stem(t)))) for t in traces]
    if len({name.lower() for name in names}) < len(names):  # Rank0 may be rank0 on this disk
        names = [f"{name}-{n}" for n, name in enumerate(names)]
    return tuple(replace(source, name=name) for source, name in zip(sources, names, strict=True))


def _below(path: Path, depth: int) -> Iterator[Source]:
    """Everything below a path, except results of earlier comparisons.  Logs beside several traces
    carry the name of theirs: `report_rank0.events.jsonl`, `report_rank0-events-484.jsonl`."""
    traces = [path] if path.is_file() else RunDirectory(path).traces()
    alone = path.is_dir() and len(traces) == 1
    for trace in traces:
        stem = glob.escape(_stem(trace))
        ends = ("[-._]events.jsonl", "[-._]events-*.jsonl", "[-._]events-*.jsonl.gz")
        logs = sorted({log for end in ends for log in trace.parent.glob(stem + end)})
        if alone or (not logs and len(RunDirectory(trace.parent).traces()) == 1):
            logs = event_logs(trace.parent)
        name = path.resolve().name if alone else _stem(trace)
        yield Source(name, trace.resolve(), tuple(log.absolute() for log in logs))
    if traces or not depth:
        return
    for folder in sorted(path.iterdir(), key=lambda p: natural(p.name)):
        if folder.is_dir() and folder.name[0] != "." and not (folder / DOCUMENT).exists():
            yield from _below(folder, depth - 1)


def _stem(trace: Path) -> str:
    suffix = next((s for s in TRACE_SUFFIXES if trace.name.endswith(s)), "")
    return trace.name.removesuffix(suffix)


@dataclass(frozen=True)
class Job:
    """All that a worker needs, wherever it runs: paths and words."""

    source: Source
    output: Path  # the comparison's folder, absolute: workers have working directories of their own
    nsys: str | None = None
    version: str = __version__

    def failed(self, failure: str, next_step: str) -> SourceResult:
        trace = str(self.source.trace)
        return SourceResult(self.source.name, trace, failure=failure, next_step=next_step)


def one(job: Job) -> SourceResult:
    """Analyse one trace into its folder: what a worker does.  Never raises for a trace that cannot
    be analysed."""
    from nsysalign.addons.ranks.compare import summaries
    from nsysalign.commandline.present import exported, store
    from nsysalign.engine import analyze_inputs
    from nsysalign.record.session import baseline_logs
    from nsysalign.trace.nccl import read_shared

    source, folder = job.source, job.output / job.source.name
    if job.version != __version__:
        failure = f"its worker has nsysalign {__version__}, this is {job.version}"
        return job.failed(failure, "install one version on all machines")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        trace = exported(source.trace, folder, nsys=job.nsys)
        shared = read_shared(trace)
        # the trace's own run directory; a folder of several traces says nothing about a single one
        home = RunDirectory(source.trace.parent)
        alone = len(home.traces()) == 1
        baseline = tuple(baseline_logs(home.path)) if source.logs and alone else ()
        analysis = analyze_inputs(home.inputs(trace, source.logs, baseline))
        store(analysis, folder)
        ranks = summaries(analysis, shared, source.name)
        return SourceResult(source.name, str(source.trace), ranks, report=f"{folder.name}/{PAGE}")
    except Exception as error:  # a bug triggered by one trace must not affect the others
        with contextlib.suppress(OSError):
            folder.rmdir()  # if it is empty
        if isinstance(error, NsysAlignError):
            return job.failed(error.message, error.next_step or "")
        again = f"nsysalign --debug analyze {source.trace}"
        return job.failed(f"internal error: {type(error).__name__}: {error}", again)


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
            if isinstance(future.exception(), BrokenExecutor):
                lost.append(futures[future])
            else:
                yield _checked(futures[future], future)
    except BaseException:
        for future in futures:
            future.cancel()
        raise
    for job in lost:
        with processes(2) as alone:
            yield _checked(job, alone.submit(function, job))


def _checked(job: Job, future: Any) -> SourceResult:
    """The result of a job.  If its worker died, or wrote where this machine cannot read, its trace
    has failed."""
    if error := future.exception():
        failure = f"its worker died ({type(error).__name__}: {str(error)[:200]})"
        alone = f"fewer workers (--jobs 1), or alone: nsysalign analyze {job.source.trace}"
        return job.failed(failure, alone)
    result = future.result()
    if result.report and not (job.output / result.report).exists():
        failure = "its worker wrote to a disk that this machine cannot see"
        return job.failed(failure, "choose a folder for -o that all workers share")
    return result


def workers(traces: Sequence[Path], wanted: int | None = None) -> int:
    """How many analyses at once: as many as there are traces, cores, and pieces of memory for the
    largest; `wanted` overrules cores and memory."""
    sizes = [BASE_BYTES]
    for trace in traces:
        export = trace.with_suffix(".sqlite")
        with contextlib.suppress(OSError):
            there = export.exists()
            size = export.stat().st_size if there else EXPORT_BYTES * trace.stat().st_size
            sizes.append(BASE_BYTES + BYTES_PER_BYTE * size)
    memory = re.search(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())
    fits = 1024 * int(memory[1]) // max(sizes) if memory else 1
    return min(len(traces), wanted or max(1, min(len(os.sched_getaffinity(0)), fits)))


@contextlib.contextmanager
def processes(count: int) -> Iterator[Executor]:
    """Worker processes of this machine; one job at a time needs no other process, only a thread, and
    so does a machine that allows none (no shared memory for locks, no more processes).

    They end with this one, however it ends, and at once if it leaves by an error: a worker of a
    killed process would else wait for work for ever, because it holds both ends of its queue.
    """
    pool: Executor = ThreadPoolExecutor(1)
    if count > 1:
        with contextlib.suppress(OSError, ImportError, NotImplementedError):
            # spawn: a fork would copy threads' locks (numpy's, a notebook's)
            several = ProcessPoolExecutor(count, get_context("spawn"), _begin, (os.getpid(),))
            several.submit(os.getpid)  # this starts the first one
            pool = several
    try:
        yield pool
    except BaseException:
        for process in dict(getattr(pool, "_processes", None) or {}).values():
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(parent: int) -> None:
    """In a worker: a terminal's Ctrl-C is for the process that started us; SIGTERM comes from it, or
    from the kernel when it has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)


def _end(*_: object) -> None:
    signal.setitimer(signal.ITIMER_REAL, GRACE_S)  # SIGALRM ends us at the latest
    sys.exit(1)  # the writer of an incomplete file removes it


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
        # pure: the same trace twice would be computed once, and a repeated analysis not at all
        yield client.get_executor(pure=False)
