"""The traces that a command line names: files, run directories, and folders of either.

job/                          job/                        job/
  report_rank0.nsys-rep         train-001/trace.sqlite      rank0/report.nsys-rep
  report_rank1.nsys-rep         train-001/events-7.jsonl    rank1/report.nsys-rep
  events-7.jsonl                train-002/trace.sqlite
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from nsysalign.addons.ranks.records import Source
from nsysalign.errors import TraceError, UsageError
from nsysalign.rundir import TRACE_SUFFIXES, RunDirectory, event_logs
from nsysalign.text import natural

#: A comparison's own document: a folder that contains one is a result and not searched.
DOCUMENT = "ranks.json"
#: How many levels of folders below a named one are searched: job/node/rank.
DEPTH = 2


def is_many(path: Path) -> bool:
    """Whether a folder holds several traces, itself or in its folders."""
    if not path.is_dir():
        return False
    own = RunDirectory(path).traces()
    return len(own) > 1 or (not own and any(_folders(path, DEPTH)))


def find(paths: Sequence[Path], logs: Sequence[Path] = ()) -> tuple[Source, ...]:
    """The traces of a command line, each once.  `logs` are shared by all of them.

    Raises TraceError if a path contains none, UsageError if a trace is named twice.
    """
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
    traces = [source.trace.resolve() for source in sources]
    if twice := next((trace for n, trace in enumerate(traces) if trace in traces[:n]), None):
        raise UsageError(f"{twice}: this trace was given twice", "name every trace once")
    names = [source.name for source in sources]
    for depth in (1, 2):  # equal stems: with the names of their folders in front, else numbered
        if len(set(names)) < len(names):
            names = ["_".join((*t.parts[-1 - depth : -1], _stem(t))) for t in traces]
    if len(set(names)) < len(names):
        names = [f"{name}-{n}" for n, name in enumerate(names)]
    return tuple(
        replace(
            source,
            name=name,
            trace=trace,
            logs=tuple(log.absolute() for log in (*source.logs, *logs)),
            pooled=source.pooled or bool(logs),
        )
        for name, source, trace in zip(names, sources, traces, strict=True)
    )


def _below(path: Path, depth: int) -> Iterator[Source]:
    """Everything below a path, two folders deep.  Logs that carry a trace's name are its own;
    others beside several traces are shared."""
    folder = path.parent if path.is_file() else path
    traces = [path] if path.is_file() else RunDirectory(path).traces()
    for trace in traces:
        alone = path.is_dir() and len(traces) == 1
        own = () if alone else _named_logs(trace)
        shared = () if own else tuple(event_logs(folder))
        name = path.resolve().name if alone else _stem(trace)
        yield Source(name, trace, own or shared, bool(shared) and not alone)
    if not traces and depth:
        for below in _folders(path, depth):
            yield from _below(below, depth - 1)


def _folders(path: Path, depth: int) -> list[Path]:
    """Folders that contain traces, directly or a few levels below, except results of earlier
    comparisons."""
    inside = [
        p
        for p in path.iterdir()
        if p.is_dir() and not p.name.startswith(".") and not (p / DOCUMENT).exists()
    ]
    kept = [p for p in inside if RunDirectory(p).traces() or (depth > 1 and _folders(p, depth - 1))]
    return sorted(kept, key=lambda p: natural(p.name))


def _stem(trace: Path) -> str:
    suffix = next((s for s in TRACE_SUFFIXES if trace.name.endswith(s)), "")
    return trace.name.removesuffix(suffix)


def _named_logs(trace: Path) -> tuple[Path, ...]:
    """`report_rank0.events.jsonl`, `report_rank0-events-484.jsonl`."""
    endings = ("events.jsonl", "events-*.jsonl", "events-*.jsonl.gz")
    patterns = [f"{glob.escape(_stem(trace))}{mark}{end}" for mark in ".-_" for end in endings]
    return tuple(sorted({path for pattern in patterns for path in trace.parent.glob(pattern)}))
