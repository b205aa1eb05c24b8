"""`nsysalign demo`: the whole pipeline on a recorded H200 trace inside the package."""

from __future__ import annotations

import lzma
import tempfile
from importlib.resources import files
from pathlib import Path

import click

from nsysalign.commandline.outputs import console

#: One screen: the labels of the puzzle, and the finding that answers it.
SHOWN, FINDING = 9, ("h2d_t1", "host-gap")


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
@click.option("-q", "--quiet", is_flag=True, help="Print only errors.")
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
    from nsysalign.commandline.present import PAGE, store
    from nsysalign.commandline.progress import ProgressLine
    from nsysalign.rundir import make_run_dir

    run_dir = make_run_dir("demo", output)
    with tempfile.TemporaryDirectory() as scratch:
        names = []
        for name in ("demo.sqlite", "demo.events.jsonl"):
            names.append(Path(scratch) / name)
            names[-1].write_bytes(
                lzma.decompress(files("nsysalign.demo").joinpath(name + ".xz").read_bytes())
            )
        with ProgressLine(quiet) as tell:
            analysis = engine.analyze(names[0], events=names[1:], progress=tell)
    said = imported("nsysalign.answer").answer(analysis, first=FINDING[0])
    store(analysis, run_dir, said)
    if not quiet:
        from nsysalign.show import terminal

        click.echo(files("nsysalign.demo").joinpath("what.md").read_text("utf-8"))
        page = str(run_dir / PAGE)
        terminal.render(analysis, console(), page, said=said, max_labels=SHOWN, only=FINDING)


def _without_nsys(output: Path | None, quiet: bool) -> None:
    """The recorded log as a run directory, and what it proves."""
    from nsysalign.commandline import unprofiled
    from nsysalign.rundir import MANIFEST, RunDirectory, make_run_dir

    run_dir = make_run_dir("demo-no-nsys", output)
    packed = files("nsysalign.demo").joinpath("unprofiled.events.jsonl.xz").read_bytes()
    (run_dir / "events-563.jsonl").write_bytes(lzma.decompress(packed))
    (run_dir / MANIFEST).write_text('{"format": "nsysalign-run", "version": 1, "trace": null}\n')
    unprofiled.present(RunDirectory(run_dir), quiet=quiet)
