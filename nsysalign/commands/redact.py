"""`nsysalign redact`: a copy of a trace, or of a run, that can be shared."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import click


@click.command()
@click.argument("trace", type=click.Path(path_type=Path, exists=True))
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--hash-names",
    is_flag=True,
    help="Also rename kernels, NVTX ranges and regions (the same name stays the same everywhere).",
)
@click.option("--nsys", metavar="PATH", help="The nsys to export a .nsys-rep with.")
@click.option("-q", "--quiet", is_flag=True, help="Print only errors.")
def redact(trace: Path, out: Path, hash_names: bool, nsys: str | None, quiet: bool) -> None:
    """Copy what analysis reads of TRACE (.sqlite, .nsys-rep or a run directory) to OUT, a new file or folder.

    Left behind: the environment, command line and output of the program, host, user and process names, paths, and
    every string that no kept row needs.  Kernel names, NVTX texts and call sites relative to the working directory
    stay.  OUT gives the same analysis.

    \b
    Example:  nsysalign redact nsysalign-runs/train-001 train-001.shared
              nsysalign redact trace.sqlite shared.sqlite --hash-names
    """
    from nsysalign.trace.redaction import pseudonyms

    rename = pseudonyms() if hash_names else None
    copy = _folder if trace.is_dir() else _file
    left = copy(trace, out, rename, nsys, quiet)
    if not quiet:
        click.echo(f"{out}: {left} strings were left behind; nsysalign analyze {out} gives the same analysis")


def _file(trace: Path, out: Path, rename: object, nsys: str | None, quiet: bool) -> int:
    from nsysalign.commands.assembly import exported
    from nsysalign.trace.redaction import redact as copy
    from nsysalign.trace.redaction import refuse

    refuse(out)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.absolute().parent) as private:
        return copy(exported(trace, Path(private), nsys=nsys, quiet=quiet), out, rename=rename)


def _folder(run_dir: Path, out: Path, rename: object, nsys: str | None, quiet: bool) -> int:
    """`trace.sqlite`, the event logs, those of the run without nsys, clock samples and Python stacks; the folder appears
    whole or not at all."""
    from nsysalign.commands.assembly import trace_of
    from nsysalign.rundir import BASELINE, CLOCKS, EXPORT, STACKS, RunDirectory, event_logs
    from nsysalign.trace.redaction import redact_log, redact_samples, redact_stacks, refuse

    refuse(out)
    partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.absolute().parent))
    try:
        left = _file(trace_of(RunDirectory(run_dir)), partial / EXPORT, rename, nsys, quiet)
        if event_logs(run_dir / BASELINE):
            (partial / BASELINE).mkdir()
        for folder in (".", BASELINE):
            for log in event_logs(run_dir / folder):
                redact_log(log, partial / folder / log.name.removesuffix(".gz"), rename=rename)
        if (run_dir / CLOCKS).is_file():
            redact_samples(run_dir / CLOCKS, partial / CLOCKS)
        if (run_dir / STACKS).is_file():
            redact_stacks(run_dir / STACKS, partial / STACKS, rename=rename)
        refuse(out)
        os.rename(partial, out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return left
