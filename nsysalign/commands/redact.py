"""`nsysalign redact`: a copy of a trace, of a run or of a measurement that can be shared."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from nsysalign.commandline import options as shared


@click.command()
@click.argument("trace", type=click.Path(path_type=Path, exists=True))
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--hash-names",
    is_flag=True,
    help="Also rename kernels, NVTX ranges, regions and marks (the same name stays the same everywhere).",
)
@shared.nsys("The nsys to export a .nsys-rep with.")
@shared.quiet()
def redact(trace: Path, out: Path, hash_names: bool, nsys: str | None, quiet: bool) -> None:
    """Copy what analysis reads of TRACE (.sqlite, .nsys-rep, a run directory or a measurement's) to OUT, a new file or folder.

    Left behind: the environment, command line and output of the program, host, user and process names, paths, and
    every string that no kept row needs.  Kernel names, NVTX texts, names of marks and call sites relative to the working
    directory stay.  OUT gives the same analysis.  Of a measurement the numbers stay, and its profiles; notes and
    messages of exceptions do not.

    \b
    Example:  nsysalign redact nsysalign-runs/train-001 train-001.shared
              nsysalign redact trace.sqlite shared.sqlite --hash-names
    """
    from nsysalign.rundir import is_measure
    from nsysalign.trace.redaction import pseudonyms

    rename = pseudonyms() if hash_names else None
    if is_measure(trace):
        left = _measurement(trace, out, rename, nsys, quiet)
        how = f"nsysalign report {out} shows the same numbers"
    else:
        left = (_folder if trace.is_dir() else _file)(trace, out, rename, nsys, quiet)
        how = f"nsysalign analyze {out} gives the same analysis"
    if not quiet:
        click.echo(f"{out}: {left} strings were left behind; {how}")


Rename = Callable[[str], str] | None


def _file(trace: Path, out: Path, rename: Rename, nsys: str | None, quiet: bool) -> int:
    from nsysalign.commandline.assembly import exported
    from nsysalign.trace.redaction import redact as copy
    from nsysalign.trace.redaction import refuse

    refuse(out)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.absolute().parent) as private:
        return copy(exported(trace, Path(private), nsys=nsys, quiet=quiet), out, rename=rename)


def _folder(run_dir: Path, out: Path, rename: Rename, nsys: str | None, quiet: bool) -> int:
    """A run directory: `trace.sqlite`, the event logs, those of the run without nsys, clock samples, Python stacks, dumps
    of marks and the run that made them."""
    from nsysalign.commandline.assembly import trace_of
    from nsysalign.marks.dump import MarksError
    from nsysalign.marks.redaction import redact_dump
    from nsysalign.rundir import BASELINE, CLOCKS, EXPORT, MARKED, STACKS, RunDirectory, event_logs
    from nsysalign.trace.redaction import redact_log, redact_samples, redact_stacks

    run = RunDirectory(run_dir)
    with _new_folder(out) as partial:
        left = _file(trace_of(run), partial / EXPORT, rename, nsys, quiet)
        if event_logs(run_dir / BASELINE):
            (partial / BASELINE).mkdir()
        for folder in (".", BASELINE):
            for log in event_logs(run_dir / folder):
                redact_log(log, partial / folder / log.name.removesuffix(".gz"), rename=rename)
        if (run_dir / CLOCKS).is_file():
            redact_samples(run_dir / CLOCKS, partial / CLOCKS)
        if (run_dir / STACKS).is_file():
            redact_stacks(run_dir / STACKS, partial / STACKS, rename=rename)
        for marks in run.marks():
            try:
                redact_dump(marks, partial / marks.name, rename)
            except MarksError as error:  # analysis cannot read it either, and continues without it
                click.echo(f"nsysalign: left out: {error.message}", err=True)
        if run.marked():
            left += _folder(run_dir / MARKED, partial / MARKED, rename, nsys, quiet)
    return left


def _measurement(path: Path, out: Path, rename: Rename, nsys: str | None, quiet: bool) -> int:
    """A measurement's folder, or a folder for its file: the numbers, and the run directories of its profiles."""
    from nsysalign.measure.result import load
    from nsysalign.measure.shareable import redacted
    from nsysalign.rundir import MEASUREMENT

    measure, left = redacted(load(path), rename), 0
    with _new_folder(out) as partial:
        measure.write(partial / MEASUREMENT)
        for name in {p.run for p in measure.profiles if p.run and path.is_dir()}:
            if (path / name).is_dir():
                left += _folder(path / name, partial / name, rename, nsys, quiet)
    return left


@contextlib.contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """A folder to fill that becomes `out` if the block succeeds: it appears whole or not at all."""
    from nsysalign.trace.redaction import refuse

    refuse(out)
    partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.absolute().parent))
    try:
        yield partial
        refuse(out)
        os.rename(partial, out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
