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
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from multiprocessing import connection, get_context
from pathlib import Path

from nsysalign.addons.ranks.records import Source, SourceResult
from nsysalign.errors import NsysAlignError, TraceError, UsageError
from nsysalign.files import file_name
from nsysalign.rundir import PAGE, TRACE_SUFFIXES, RunDirectory, event_logs
from nsysalign.text import natural
from nsysalign.version import __version__

#: A comparison's own document: a folder that contains one is a result and not searched.
DOCUMENT = "ranks.json"
#: How many levels of folders below a named one are searched: job/node/rank.
DEPTH = 2
#: Peak memory of the analysis of one trace: a fixed amount, plus this many bytes per byte of its
#: export; a report's export is about seven times as large as the report.
BASE_BYTES, BYTES_PER_BYTE, EXPORT_BYTES = 200 << 20, 10, 7
#: Seconds to wait for the first worker of a cluster.
WORKER_S = 60
_PR_SET_PDEATHSIG = 1
#: Analyses one trace: `one` with its folder.
Analyse = Callable[[Source], SourceResult]


def is_many(path: Path) -> bool:
    """Whether a folder holds several traces, itself or in its folders."""
    alone = path.is_file() or len(RunDirectory(path).traces()) == 1
    return not alone and path.is_dir() and any(_below(path, DEPTH))


def find(paths: Sequence[Path]) -> tuple[Source, ...]:
    """The traces of a command line, each once.  Raises TraceError if a path contains none."""
    found: dict[Path, Source] = {}
    for path in paths:
        if not path.exists():
            raise TraceError(
                f"{path}: no such file or directory", "nsysalign analyze RUN1 RUN2 ... | FOLDER"
            )
        below = {source.trace: source for source in _below(path, DEPTH)}
        if not below:
            raise TraceError(
                f"{path}: neither a trace nor a folder of traces",
                f"looked for {', '.join(TRACE_SUFFIXES)}",
            )
        found |= below
    names = [file_name(source.name) for source in found.values()]
    for depth in (1, 2):  # equal stems: with the names of their folders in front, else numbered
        if len(set(names)) < len(names):
            names = [file_name("_".join((*t.parts[-1 - depth : -1], _stem(t)))) for t in found]
    if len({name.lower() for name in names}) < len(names):  # Rank0 may be rank0 on this disk
        names = [f"{name}-{n}" for n, name in enumerate(names)]
    return tuple(replace(s, name=name) for s, name in zip(found.values(), names, strict=True))


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


def one(
    source: Source, output: Path, nsys: str | None = None, version: str = __version__
) -> SourceResult:
    """Analyse one trace into its folder in `output`, an absolute path: what a worker does.  Never
    raises for a trace that cannot be analysed."""
    from nsysalign.addons.ranks.compare import summaries
    from nsysalign.commandline.present import exported, store
    from nsysalign.engine import analyze_inputs
    from nsysalign.trace.nccl import read_shared

    folder = output / source.name
    if version != __version__:
        failure = f"its worker has nsysalign {__version__}, this is {version}"
        return source.failed(failure, "install one version on all machines")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        trace = exported(source.trace, folder, nsys=nsys)
        shared = read_shared(trace)
        # the trace's own run directory; a folder of several traces says nothing about a single one
        home = RunDirectory(source.trace.parent)
        alone = len(home.traces()) == 1
        baseline = tuple(home.baseline_logs()) if source.logs and alone else ()
        analysis = analyze_inputs(home.inputs(trace, source.logs, baseline))
        store(analysis, folder)
        ranks = summaries(analysis, shared, source.name)
        return SourceResult(source.name, str(source.trace), ranks, report=f"{folder.name}/{PAGE}")
    except Exception as error:  # a bug triggered by one trace must not affect the others
        with contextlib.suppress(OSError):
            folder.rmdir()  # if it is empty
        if isinstance(error, NsysAlignError):
            return source.failed(error.message, error.next_step or "")
        again = f"nsysalign --debug analyze {source.trace}"
        return source.failed(f"internal error: {type(error).__name__}: {error}", again)


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


def here(function: Analyse, sources: Sequence[Source], count: int) -> Iterator[SourceResult]:
    """The results of all sources, in the order in which they end: `count` at once, each in a process
    of its own, so that one that is killed (memory) loses its trace alone; a `count` of one in this
    process.  The processes end with this one, however it ends."""
    if count == 1:
        yield from map(function, sources)
        return
    context = get_context("spawn")  # a fork would copy threads' locks (numpy's, a notebook's)
    waiting, running = list(reversed(sources)), {}
    try:
        while waiting or running:
            while waiting and len(running) < count:
                source = waiting.pop()
                receiver, sender = context.Pipe(duplex=False)
                given = (function, source, sender, os.getpid())
                process = context.Process(target=_send, args=given)
                process.start()
                sender.close()
                running[receiver] = source, process
            for receiver in connection.wait(list(running)):
                source, process = running[receiver]
                try:
                    result = receiver.recv()
                except (EOFError, OSError):
                    process.join()
                    failure = f"its process died (status {process.exitcode})"
                    result = source.failed(failure, "fewer at once: --jobs 1")
                del running[receiver]
                yield result
    finally:
        for _, process in running.values():
            process.terminate()


def _send(function: Analyse, source: Source, sender: connection.Connection, parent: int) -> None:
    """In a worker: a terminal's Ctrl-C is for the process that started us; SIGTERM comes from it, or
    from the kernel when it has ended, and leaves the writer of a file time to remove it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == parent:
        sender.send(function(source))


@contextlib.contextmanager
def cluster(address: str) -> Iterator[Callable[..., Iterator[SourceResult]]]:
    """What gives the results of sources, like `here`, by the workers of the Dask scheduler at
    `address`: a task per trace."""
    try:
        import distributed
    except ImportError as error:
        raise UsageError(
            "--dask needs Dask, which is not installed", "pip install distributed"
        ) from error
    try:
        client = distributed.Client(address, timeout=20)
        client.wait_for_workers(1, timeout=WORKER_S)
    except (OSError, ValueError, TimeoutError) as error:
        raise UsageError(
            f"--dask {address}: no scheduler answers there, or no worker has joined it ({error})",
            "give the address that dask scheduler printed: tcp://HOST:8786; and on each machine: "
            "dask worker ADDRESS",
        ) from error

    def results(function: Analyse, sources: Sequence[Source]) -> Iterator[SourceResult]:
        # pure: the same trace twice would be computed once, and a repeated analysis not at all
        futures = dict(zip(client.map(function, sources, pure=False), sources, strict=True))
        for future in distributed.as_completed(futures):
            if error := future.exception():
                failure = f"its worker died ({type(error).__name__}: {str(error)[:200]})"
                alone = f"alone: nsysalign analyze {futures[future].trace}"
                yield futures[future].failed(failure, alone)
            else:
                yield future.result()

    with client:
        yield results
