"""The traces that a command line names: files, run directories, and folders of either.

job/                          job/                        job/
  report_rank0.nsys-rep         train-001/trace.sqlite      rank0/report.nsys-rep
  report_rank1.nsys-rep         train-001/events-7.jsonl    rank1/report.nsys-rep
  events-7.jsonl                train-002/trace.sqlite
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from nsysalign.errors import TraceError, UsageError
from nsysalign.ranks.results import Source
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
    return len(own) > 1 or (not own and any(_folders(path)))


def find(paths: Sequence[Path], logs: Sequence[Path] = ()) -> tuple[Source, ...]:
    """The traces of a command line, each once.  `logs` are shared by all of them.

    Raises TraceError if a path contains none, UsageError if a trace is named twice.
    """
    found: list[tuple[str, Path, tuple[Path, ...], bool]] = []
    for path in paths:
        if not path.exists():
            raise TraceError(
                f"{path}: no such file or directory", "nsysalign analyze RUN1 RUN2 ... | FOLDER"
            )
        mine = list(_of(path))
        if not mine:
            raise TraceError(
                f"{path}: neither a trace nor a folder of traces",
                f"looked for {', '.join(TRACE_SUFFIXES)}",
            )
        found += mine
    seen: dict[Path, str] = {}
    for name, trace, _, _ in found:
        real = trace.resolve()
        if real in seen:
            raise UsageError(
                f"{trace}: this trace was given twice (as {seen[real]} and {name})",
                "name every trace once",
            )
        seen[real] = name
    names = _names([(name, trace) for name, trace, _, _ in found])
    return tuple(
        Source(
            name,
            trace.resolve(),
            tuple(log.resolve() for log in (*own, *logs)),
            pooled or bool(logs),
        )
        for name, (_, trace, own, pooled) in zip(names, found, strict=True)
    )


def _of(path: Path, depth: int = DEPTH) -> Iterable[tuple[str, Path, tuple[Path, ...], bool]]:
    """(name, trace, logs, whether the logs are shared) of everything below a path, two folders deep."""
    if path.is_file():
        logs = _named_logs(path)
        rest = () if logs else tuple(event_logs(path.parent))
        yield _stem(path), path, logs or rest, bool(rest)
        return
    own = RunDirectory(path).traces()
    for trace in own:
        logs = _named_logs(trace) if len(own) > 1 else ()
        rest = tuple(event_logs(path)) if not logs else ()
        name = path.resolve().name if len(own) == 1 else _stem(trace)
        yield name, trace, logs or rest, bool(rest) and len(own) > 1
    if not own and depth:
        for folder in _folders(path, depth):
            yield from _of(folder, depth - 1)


def _folders(path: Path, depth: int = DEPTH) -> list[Path]:
    """Folders that contain traces, directly or a few levels below, except results of earlier comparisons."""
    inside = [p for p in path.iterdir() if p.is_dir() and not p.name.startswith(".")]
    kept = [
        p
        for p in inside
        if not (p / DOCUMENT).exists()
        and (RunDirectory(p).traces() or (depth > 1 and _folders(p, depth - 1)))
    ]
    return sorted(kept, key=lambda p: natural(p.name))


def _stem(trace: Path) -> str:
    return next(
        (trace.name.removesuffix(s) for s in TRACE_SUFFIXES if trace.name.endswith(s)), trace.name
    )


def _named_logs(trace: Path) -> tuple[Path, ...]:
    """Logs that carry the trace's name: `report_rank0.events.jsonl`, `report_rank0-events-484.jsonl`."""
    stem = _stem(trace)
    patterns = [
        f"{_literal(stem)}{mark}{rest}"
        for mark in ".-_"
        for rest in ("events.jsonl", "events-*.jsonl", "events-*.jsonl.gz")
    ]
    return tuple(sorted({path for pattern in patterns for path in trace.parent.glob(pattern)}))


def _literal(text: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in text)


def _names(found: Sequence[tuple[str, Path]]) -> list[str]:
    """Names that tell the traces apart: with the folder's name in front if stems are equal, else numbered."""
    names = [name for name, _ in found]
    for depth in (1, 2):
        if len(set(names)) == len(names):
            break
        names = [
            "_".join((*trace.resolve().parts[-1 - depth : -1], _stem(trace))) for _, trace in found
        ]
    return numbered(names)


def numbered(names: Iterable[str]) -> list[str]:
    """The names made unique: `rank0`, `rank0-2`, ..."""
    taken: dict[str, None] = {}
    for name in names:
        wanted, number = name, 2
        while wanted in taken:
            wanted, number = f"{name}-{number}", number + 1
        taken[wanted] = None
    return list(taken)
