"""`nsysalign redact`: a copy of a trace, or of a run, that can be shared."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import click

from nsysalign import registry
from nsysalign.commandline import options as shared
from nsysalign.errors import UsageError


@click.command()
@click.argument("trace", type=click.Path(path_type=Path, exists=True))
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--hash-names",
    is_flag=True,
    help="Also rename kernels, NVTX ranges, regions, files and functions (the same name stays the "
    "same everywhere), and leave notes and messages out.",
)
@shared.nsys("The nsys to export a .nsys-rep with.")
@shared.quiet()
def redact(trace: Path, out: Path, hash_names: bool, nsys: str | None, quiet: bool) -> None:
    """Copy what analysis reads of TRACE (.sqlite, .nsys-rep or a run directory) to OUT, a new file
    or folder.

    Left behind: the environment, command line and output of the program, host, user and process
    names, paths, and every string that no kept row needs.  Kernel names, NVTX texts and call sites
    relative to the working directory stay.  OUT gives the same analysis; marks inside kernels and
    measurements are not copied.

    \b
    Example:  nsysalign redact nsysalign-runs/train-001 train-001.shared
              nsysalign redact trace.sqlite shared.sqlite --hash-names
    """
    from nsysalign.commandline.present import exported, trace_of
    from nsysalign.inputkind import InputKind
    from nsysalign.pathkind import kind_of, readable
    from nsysalign.rundir import BASELINE, CLOCKS, EXPORT, STACKS, RunDirectory
    from nsysalign.trace import cupti, redaction

    if any(owns(trace) for owns in registry.each("owns")):
        raise UsageError(
            f"{trace}: a measurement is not redacted", "nsysalign redact one of the profiles in it"
        )
    if kind_of(trace) is InputKind.STORED:
        raise UsageError(
            f"{trace}: a stored analysis without its trace, and redact copies traces",
            "share it as it is: analysis.db, answer.json and report.html hold no private data (docs/privacy.md)",
        )
    _refuse_existing(out)
    rename = redaction.pseudonyms() if hash_names else None
    scratch = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.absolute().parent))
    run, copy = RunDirectory(trace), scratch / "copy"
    try:
        if not trace.is_dir():
            readable(trace)
        recorded = trace_of(run) if trace.is_dir() else trace
        export = exported(recorded, scratch, nsys=nsys, quiet=quiet)
        if cupti.is_recording(export):  # what is shared is in nsys's layout
            cupti.write_export(export, scratch / EXPORT)
            export = scratch / EXPORT
        if not trace.is_dir():
            left = redaction.redact(export, copy, rename=rename)
        else:
            copy.mkdir(mode=0o700)
            left = redaction.redact(export, copy / EXPORT, rename=rename)
            samples = [path for name in (CLOCKS, STACKS) if (path := trace / name).is_file()]
            for folder, files in (
                (copy, [*run.event_logs(), *samples]),
                (copy / BASELINE, run.baseline_logs()),
            ):
                for file in files:
                    folder.mkdir(exist_ok=True)
                    redaction.redact_lines(
                        file, folder / file.name.removesuffix(".gz"), rename=rename
                    )
        _refuse_existing(out)
        os.rename(copy, out)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if not quiet:
        click.echo(
            f"{out}: {left} strings were left behind; nsysalign analyze {out} gives the same "
            "analysis"
        )
        if trace.is_dir() and any(trace.glob("**/marks-*.nsam")):
            click.echo("marks inside kernels are not copied", err=True)


def _refuse_existing(out: Path) -> None:
    if out.exists() or out.is_symlink():
        raise UsageError(
            f"{out} already exists and is never overwritten", "name another OUT, or remove it"
        )
