"""`nsysalign demo`: the whole pipeline on a recorded H200 trace inside the package."""

from __future__ import annotations

import json
import lzma
import tempfile
from importlib.resources import files
from pathlib import Path

import click

from nsysalign.commandline import options as shared

#: Of the recording's 24 labels the puzzle's nine, and timings that are wrong.
LABELS = (
    *(f"{how}_t{number}" for how in ("h2d", "dev", "flush") for number in (1, 2, 3)),
    "wrongstream",
    "host_first",
    "host_none",
)


@click.command()
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    metavar="DIR",
    help="Where the report goes (default: nsysalign-runs/demo-NNN).",
)
@click.option(
    "--no-nsys",
    is_flag=True,
    help="What a run without nsys says of the same linear layers (an event log of an H100).",
)
@shared.views
@shared.quiet()
def demo(output: Path | None, no_nsys: bool, quiet: bool) -> None:
    """Analyse a trace recorded on an NVIDIA H200, and answer a well-known puzzle: why do CUDA
    events report nine times the kernel's duration for the first of three identical linear layers?

    \b
    Example:  nsysalign demo
    """
    from nsysalign.memory import imported, look_for_garbage_less_often

    if no_nsys:
        _without_nsys(output, quiet)
        return
    look_for_garbage_less_often()
    engine = imported("nsysalign.engine")
    from nsysalign.commandline.present import printed, store
    from nsysalign.commandline.progress import ProgressLine
    from nsysalign.rundir import make_run_dir

    run_dir = make_run_dir("demo", output)
    with tempfile.TemporaryDirectory() as scratch:
        trace, log = Path(scratch) / "demo.sqlite", Path(scratch) / "demo.events.jsonl"
        trace.write_bytes(_unpacked(trace.name))
        log.write_bytes(puzzle(_unpacked(log.name)))
        with ProgressLine(quiet) as tell:
            analysis = engine.analyze(trace, events=[log], progress=tell)
    said = imported("nsysalign.answer").answer(analysis)
    if not quiet:
        click.echo(printed(analysis, said, run_dir), nl=False)
    store(analysis, run_dir, said)


def puzzle(log: bytes) -> bytes:
    """The recorded log with what was measured of LABELS alone."""
    kept = []
    for line in log.splitlines(keepends=True):
        entry = json.loads(line)
        label = str(entry.get("region", "")).partition("#")[0]
        if entry["type"] not in ("elapsed", "host") or label in LABELS:
            kept.append(line)
    return b"".join(kept)


def _unpacked(name: str) -> bytes:
    return lzma.decompress(files("nsysalign.demo").joinpath(f"{name}.xz").read_bytes())


def _without_nsys(output: Path | None, quiet: bool) -> None:
    """The recorded log as a run directory, and what it proves."""
    from nsysalign.commandline import unprofiled
    from nsysalign.rundir import MANIFEST, RunDirectory, make_run_dir

    run_dir = make_run_dir("demo-no-nsys", output)
    (run_dir / "events-563.jsonl").write_bytes(_unpacked("unprofiled.events.jsonl"))
    (run_dir / MANIFEST).write_text('{"format": "nsysalign-run", "version": 1, "trace": null}\n')
    unprofiled.present(RunDirectory(run_dir), quiet=quiet)
