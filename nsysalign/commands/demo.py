"""`nsysalign demo`: the whole pipeline on a recorded H200 trace inside the package."""

from __future__ import annotations

import lzma
import tempfile
from importlib.resources import files
from pathlib import Path

import click

from nsysalign.commandline import options as shared


@click.command()
@shared.output_folder("Where the report goes (default: nsysalign-runs/demo-NNN).")
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
    from nsysalign.memory import keep_freed_arrays, look_for_garbage_less_often

    look_for_garbage_less_often()
    keep_freed_arrays()
    from nsysalign.commandline import present
    from nsysalign.commandline.outputs import ProgressLine
    from nsysalign.rundir import MANIFEST, RunDirectory, make_run_dir

    run_dir = make_run_dir("demo-no-nsys" if no_nsys else "demo", output)
    if no_nsys:  # the recorded log as a run directory, and what it proves
        (run_dir / "events-563.jsonl").write_bytes(_unpacked("unprofiled.events.jsonl"))
        (run_dir / MANIFEST).write_text(
            '{"format": "nsysalign-run", "version": 1, "trace": null}\n'
        )
        present.unprofiled(RunDirectory(run_dir), quiet=quiet)
        return
    from nsysalign import engine

    with tempfile.TemporaryDirectory() as scratch:
        trace, log = Path(scratch) / "demo.sqlite", Path(scratch) / "demo.events.jsonl"
        for path in (trace, log):
            path.write_bytes(_unpacked(path.name))
        with ProgressLine(quiet) as tell:
            analysis = engine.analyze(trace, events=[log], progress=tell)
    present.show_and_store(analysis, run_dir, quiet=quiet)


def _unpacked(name: str) -> bytes:
    return lzma.decompress(files("nsysalign.demo").joinpath(f"{name}.xz").read_bytes())
