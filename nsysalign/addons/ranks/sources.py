"""The traces that a command line names: files, run directories, and folders of either.

job/                          job/                        job/
  report_rank0.nsys-rep         train-001/trace.sqlite      rank0/report.nsys-rep
  report_rank1.nsys-rep         train-001/events-7.jsonl    rank1/report.nsys-rep
  events-7.jsonl                train-002/trace.sqlite
"""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from nsysalign.addons.ranks.results import Source
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
    seen: dict[Path, str] = {}
    for source in sources:
        real = source.trace.resolve()
        if real in seen:
            raise UsageError(
                f"{source.trace}: this trace was given twice (as {seen[real]} and {source.name})",
                "name every trace once",
            )
        seen[real] = source.name
    names = [source.name for source in sources]
    for depth in (1, 2):  # equal stems: with the names of their folders in front, else numbered
        if len(set(names)) < len(names):
            parts = [(s.trace.resolve().parts[-1 - depth : -1], _stem(s.trace)) for s in sources]
            names = ["_".join((*folders, stem)) for folders, stem in parts]
    return tuple(
        replace(
            source,
            name=name,
            trace=source.trace.resolve(),
            logs=tuple(log.absolute() for log in (*source.logs, *logs)),
            pooled=source.pooled or bool(logs),
        )
        for name, source in zip(numbered(names), sources, strict=True)
    )


def _below(path: Path, depth: int) -> Iterator[Source]:
    """Everything below a path, two folders deep."""
    if path.is_file():
        logs = _named_logs(path)
        shared = () if logs else tuple(event_logs(path.parent))
        yield Source(_stem(path), path, logs or shared, bool(shared))
        return
    traces = RunDirectory(path).traces()
    for trace in traces:
        logs = _named_logs(trace) if len(traces) > 1 else ()
        shared = () if logs else tuple(event_logs(path))
        name = path.resolve().name if len(traces) == 1 else _stem(trace)
        yield Source(name, trace, logs or shared, bool(shared) and len(traces) > 1)
    if not traces and depth:
        for folder in _folders(path, depth):
            yield from _below(folder, depth - 1)


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
    """Logs that carry the trace's name: `report_rank0.events.jsonl`,
    `report_rank0-events-484.jsonl`."""
    endings = ("events.jsonl", "events-*.jsonl", "events-*.jsonl.gz")
    patterns = [f"{glob.escape(_stem(trace))}{mark}{end}" for mark in ".-_" for end in endings]
    return tuple(sorted({path for pattern in patterns for path in trace.parent.glob(pattern)}))


def numbered(names: Iterable[str]) -> list[str]:
    """The names made unique: `rank0`, `rank0-2`, ..."""
    taken: dict[str, None] = {}
    for name in names:
        wanted, number = name, 2
        while wanted in taken:
            wanted, number = f"{name}-{number}", number + 1
        taken[wanted] = None
    return list(taken)
