"""A run directory: the name of every file in it, what belongs to a run, and the inputs of its
analysis.

nsysalign-runs/train-001/
  trace.nsys-rep  trace.sqlite  events-PID.jsonl[.gz]      what was collected
  trace.cupti                                              the same without nsys, by the recorder of our own
  clocks.jsonl  run.json  nsys.log                         GPU clocks during the run; status, notes, conditions; nsys's output
  stacks.jsonl                                             sampled Python stacks (run --sample-python)
  raw/                                                     what the probe wrote, until it is converted
  baseline/events-PID.jsonl                                the same program without nsys
  marks-PID-N.nsam  marked/                                marks inside kernels; the run that made them (run --marks)
  confirm/LABEL-CHANGE-N/  confirm.json                    re-runs with one change, and their verdicts
  analysis.db  answer.json  report.html                    results: stored, said, drawn
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nsysalign.errors import NsysError, TraceError
from nsysalign.inputkind import REPORT_SUFFIXES, InputKind, kind_of_file
from nsysalign.text import natural
from nsysalign.untrusted import contents

#: Where runs go, below the working directory.
RUNS = "nsysalign-runs"
EXPORT, REPORT, STREAM = "trace.sqlite", "trace.nsys-rep", "trace.qdstrm"
RECORDING = "trace.cupti"  # recorded without nsys (`recorder/library.c`)
CLOCKS, MANIFEST, NSYS_LOG = "clocks.jsonl", "run.json", "nsys.log"
STACKS = "stacks.jsonl"
RAW, BASELINE = "raw", "baseline"
DATABASE, PAGE, ANSWER = "analysis.db", "report.html", "answer.json"
PROFILE_SUFFIXES = (".json", ".json.gz")  # of torch.profiler, and of much else
TRACE_SUFFIXES = (*REPORT_SUFFIXES, ".sqlite", ".cupti")


@dataclass(frozen=True)
class Inputs:
    """The inputs of one analysis: an export, and what belongs to it.  None and () if absent."""

    trace: Path
    events: tuple[Path, ...] = ()
    baseline: tuple[Path, ...] = ()  # event logs of the same program without nsys
    clocks: Path | None = None
    stacks: Path | None = None  # sampled Python stacks
    home: Path | None = None  # the run directory, whose other files belong to this trace
    #: Files given for add-ons, by option.
    of_addons: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)


class RunDirectory:
    """One run.  Nothing is read or created before it is needed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def around(cls, path: Path) -> RunDirectory:
        """The run that a path means: a run directory, or one of the files in it."""
        return cls(path if path.is_dir() else path.parent)

    def traces(self) -> list[Path]:
        """Its traces by name, with a report and its export counted once (as the report, so that the
        export is checked against it).  `trace.*` stands for everything next to it."""
        for trace in (self.path / REPORT, self.path / EXPORT, self.path / RECORDING):
            if trace.is_file():
                return [trace]
        by_stem: dict[str, Path] = {}
        for suffix in reversed(TRACE_SUFFIXES):  # reports take precedence
            for path in self.path.glob(f"[!.]*{suffix}"):
                if path.is_file() and ".partial." not in path.name:
                    by_stem[path.name.removesuffix(suffix)] = path
        if not by_stem and self.path.is_dir():
            by_stem = {path.name: path for path in self._profiles()}
        return [by_stem[stem] for stem in sorted(by_stem, key=natural)]

    def _profiles(self) -> list[Path]:
        """Traces of torch.profiler: most files that end so are something else."""
        named = [p for end in PROFILE_SUFFIXES for p in self.path.glob(f"[!.]*{end}")]
        return [p for p in named if p.is_file() and kind_of_file(p) is InputKind.TORCH_PROFILER]

    def trace(self) -> Path:
        """Its one trace.  Raises TraceError if there is none, or several."""
        traces = self.traces()
        if len(traces) == 1:
            return traces[0]
        if self.unprofiled:
            raise TraceError(
                f"{self.path}: recorded without nsys, so there is no trace to take apart",
                f"what its event log proves: nsysalign analyze {self.path}",
            )
        if not traces and (self.path / DATABASE).is_file():
            raise TraceError(
                f"{self.path}: a stored analysis without its trace",
                f"what is stored: nsysalign show {self.path}",
            )
        names = ", ".join(p.name for p in traces) or "neither .sqlite nor .nsys-rep"
        raise TraceError(
            f"{self.path}: a run directory holds one {EXPORT} or one report; found {names}",
            "name the trace: nsysalign analyze FILE",
        )

    @property
    def unprofiled(self) -> bool:
        """Whether it was recorded without nsys: it has event logs and no trace."""
        return self.path.is_dir() and self.manifest().get("trace", "") is None and not self.traces()

    def export(self) -> Path:
        """The SQLite export of its one trace, or its recording of CUPTI's.  Raises TraceError if there is none yet."""
        trace = self.trace()
        export = trace if trace.suffix == ".cupti" else trace.with_suffix(".sqlite")
        if not export.is_file():
            raise TraceError(
                f"{self.path}: its report is not exported yet", f"nsysalign analyze {self.path}"
            )
        return export

    def event_logs(self) -> list[Path]:
        """The event logs (`event_logs`)."""
        return event_logs(self.path)

    def baseline_logs(self) -> list[Path]:
        """The event logs of the run without nsys."""
        return event_logs(self.path / BASELINE)

    def manifest(self) -> dict[str, Any]:
        """The contents of run.json; {} if there is no such file, or nothing useful in it."""
        entries = None
        with contextlib.suppress(OSError, ValueError, RecursionError):
            entries = json.loads(contents(self.path / MANIFEST).decode())
        return entries if isinstance(entries, dict) else {}

    def conditions(self) -> tuple[str, ...]:
        """What was set up around the run (locked clocks) and what the probe could not do in it,
        according to run.json; () if it lists nothing."""
        listed = self.manifest().get("conditions")
        return tuple(map(str, listed)) if isinstance(listed, list) else ()

    def exit_status(self) -> int:
        """The script's, according to run.json; 0 if it names none."""
        status = self.manifest().get("exit_status")
        return status if type(status) is int else 0

    def inputs(
        self,
        trace: Path,
        events: Sequence[Path] = (),
        baseline: Sequence[Path] = (),
        of_addons: Mapping[str, tuple[Path, ...]] = {},
    ) -> Inputs:
        """The inputs of its analysis.  A folder of several traces says nothing about a single
        one."""
        alone = len(self.traces()) <= 1
        clocks, stacks = (
            path if alone and path.is_file() else None
            for path in (self.path / CLOCKS, self.path / STACKS)
        )
        home = self.path if alone else None
        return Inputs(trace, tuple(events), tuple(baseline), clocks, stacks, home, of_addons)


def event_logs(folder: Path) -> list[Path]:
    """The event logs in a folder, sorted by name: `events-PID.jsonl`, long ones
    `events-PID.jsonl.gz`."""
    return sorted(p for end in ("jsonl", "jsonl.gz") for p in folder.glob(f"events-*.{end}"))


def make_run_dir(stem: str, output: Path | None = None) -> Path:
    """Create and return a folder, mode 0700, since a trace carries its process's environment:
    `output`, new or empty, else `nsysalign-runs/<stem>-NNN` with the next free number."""
    if output is None:
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-.") or "run"
        return numbered(Path(RUNS), stem)
    try:
        output.mkdir(mode=0o700, parents=True, exist_ok=True)
        taken = any(output.iterdir())
    except OSError as error:
        raise NsysError(
            f"cannot make the run directory {output}: {error.strerror}", "choose another -o DIR"
        ) from error
    if taken:
        raise NsysError(
            f"{output} is not empty, and runs never overwrite files", "choose another -o DIR"
        )
    return output.resolve()


def numbered(parent: Path, stem: str) -> Path:
    """Create and return `parent/<stem>-NNN` with the next free number, mode 0700.  mkdir is the
    lock: two runs started at once get two folders."""
    try:
        parent.mkdir(exist_ok=True)
        names = (path.name.removeprefix(f"{stem}-") for path in parent.glob(f"{stem}-*"))
        number = max((int(name) for name in names if name.isdecimal()), default=0)
        while True:
            number += 1
            path = parent / f"{stem}-{number:03d}"
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700)
                return path.resolve()
    except OSError as error:
        raise NsysError(
            f"cannot make a run directory in {parent}: {error.strerror}", "choose one with -o DIR"
        ) from error


@contextlib.contextmanager
def private(run_dir: Path) -> Iterator[None]:
    """While the block runs no other user can look into the folder, which may have been open to all
    if given by `-o`; at the end nsys's files in it, which nsys makes readable by others, become
    private.
    """
    mode = run_dir.stat().st_mode & 0o7777
    with contextlib.suppress(PermissionError):  # another user's folder in which we may write
        run_dir.chmod(mode & ~0o077)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # the program may have removed it
            for path in run_dir.glob("trace.*"):
                path.chmod(0o600)
            run_dir.chmod(mode)
