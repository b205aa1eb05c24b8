"""`nsysalign demo`: the whole pipeline on a recorded H200 trace inside the package."""

from __future__ import annotations

import lzma
import tempfile
from importlib.resources import files
from pathlib import Path

import click


@click.command()
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    metavar="DIR",
    help="Where the report goes (default: nsysalign-runs/demo-NNN).",
)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
def demo(output: Path | None, quiet: bool) -> None:
    """Read a trace recorded on an NVIDIA H200, and answer the classic puzzle: why is the first of three identical
    linears four times slower?

    \b
    Example:  nsysalign demo
    """
    from nsysalign.commands.present import store_and_show
    from nsysalign.commands.progress import ProgressLine
    from nsysalign.engine import analyze
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
            analysis = analyze(names[0], events=names[1:], progress=tell)
    store_and_show(analysis, run_dir, quiet=quiet)
    if not quiet:
        click.echo(files("nsysalign.demo").joinpath("what.md").read_text("utf-8").rstrip())
