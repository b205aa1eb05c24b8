"""What a path is that somebody names, a file or a folder; and what to do with it.

kind_of(path) -> InputKind          readable(path): what analyze reads      stored(path): what show, report, diff read
"""

from __future__ import annotations

import shlex
from pathlib import Path

from nsysalign.errors import AnalysisError, TraceError, UsageError
from nsysalign.inputkind import DOUBTFUL, REPORT_SUFFIXES, InputKind, kind_of_file
from nsysalign.rundir import ANSWER, DATABASE, RunDirectory

_ANALYZE = "analyze it first: nsysalign analyze {}"
#: What `analyze` reads; SQLite files of unknown contents, too: the reader says what they lack.
_READABLE = {InputKind.RUN, InputKind.EXPORT, InputKind.REPORT, InputKind.TORCH_PROFILER}
_NOTHING = {InputKind.EMPTY, InputKind.TEXT, InputKind.UNKNOWN}


def kind_of(path: Path) -> InputKind:
    """Reads the first 64 KB of a file at most.  Raises TraceError if there is no such path, or if it cannot
    be read."""
    if not path.exists():
        raise TraceError(
            f"{path}: no such file", "nsysalign analyze TRACE.sqlite | TRACE.nsys-rep | RUN_DIR"
        )
    return _of_folder(path) if path.is_dir() else kind_of_file(path)


def _of_folder(path: Path) -> InputKind:
    run = RunDirectory(path)
    if run.unprofiled:
        return InputKind.UNPROFILED
    if run.traces() or any(path.glob("raw/*")) or any(path.glob("*.qdstrm")):
        return InputKind.RUN
    return InputKind.STORED if (path / DATABASE).is_file() else InputKind.FOLDER


def readable(path: Path) -> InputKind:
    """What it is, of the things that can be analysed.  Raises TraceError, UsageError for a program, with
    what it is instead and what to do with it."""
    kind = kind_of(path)
    if kind is InputKind.REPORT and path.suffix not in REPORT_SUFFIXES:
        words = f"is an nsys report, and is not called so ({' or '.join(REPORT_SUFFIXES)})"
        raise TraceError(f"{path.name} {words}", f"mv {path.name} {path.stem}{REPORT_SUFFIXES[0]}")
    if kind in _READABLE or (kind in DOUBTFUL and path.suffix in REPORT_SUFFIXES):
        return kind
    if path.suffix == ".sqlite" and kind in _NOTHING:
        return InputKind.EXPORT  # a damaged one: its reader says how
    words, instead = kind.value
    if kind is InputKind.FOLDER:
        RunDirectory(path).trace()  # says what is missing
    error = UsageError if kind is InputKind.PROGRAM else TraceError
    raise error(f"{_named(path)} is {words}", instead.format(shlex.quote(str(path))))


def stored(path: Path) -> Path:
    """The analysis.db that a path means.  Raises AnalysisError with what it is instead, and what to do."""
    kind, quoted = kind_of(path), shlex.quote(str(path))
    if kind is InputKind.UNPROFILED:
        raise AnalysisError(
            f"{path}: recorded without nsys, so there is no breakdown",
            f"what its event log proves: nsysalign analyze {quoted}",
        )
    if path.is_dir():
        if (path / DATABASE).is_file():
            return path / DATABASE
        answered = " (answer.json alone holds no tables)" if (path / ANSWER).is_file() else ""
        raise AnalysisError(
            f"{path}: no analysis.db in this directory{answered}", f"nsysalign analyze {quoted}"
        )
    if kind is InputKind.STORED:
        return path
    words, instead = kind.value
    if kind in _READABLE:
        raise AnalysisError(f"{path.name} is {words}, not yet analysed", _ANALYZE.format(quoted))
    if kind is InputKind.OURS:
        instead = "give the run directory, or its analysis.db"
    raise AnalysisError(f"{path.name} is {words}", instead.format(quoted))


def _named(path: Path) -> str:
    return str(path) if path.is_dir() else path.name
