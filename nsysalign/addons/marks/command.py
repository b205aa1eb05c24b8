"""`nsysalign run --marks` and `nsysalign analyze --marks FILE`.

Marks inside kernels cost time, so they get a run of their own, RUN_DIR/marked: in the run
directory's own run `flags()` leaves them out and buffers are off, so every time that is shown
elsewhere is without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsysalign.commandline import options as shared
from nsysalign.registry import Rerun

if TYPE_CHECKING:
    from nsysalign.record.session import CollectOptions, CollectResult

#: The run that made the marks, in the run directory.
MARKED = "marked"

run_option = click.option(
    "--marks",
    is_flag=True,
    help="For kernels with marks (nsysalign.marks): run the command without them, then once more "
    "with them, and say what they change.",
)
analyze_option = shared.files("--marks", "Marks inside the kernels of this trace (.nsam)")


def with_marks(
    command: Sequence[str], result: CollectResult, options: CollectOptions
) -> Sequence[str]:
    """Run the command again with marks, into RUN_DIR/marked.  Returns notes."""
    from nsysalign.commandline.present import exported
    from nsysalign.record.session import collect
    from nsysalign.rundir import RunDirectory

    folder = result.run_dir / MARKED
    again = replace(options, output=folder, environment={"NSYSALIGN_MARKS": "1"}, clocks=False)
    marked = collect(command, again)
    notes = [*marked.notes]
    if not dumps(folder):
        notes.append(
            "no kernel left marks: nsysalign.marks.buffer() makes the memory for them, "
            "nsysalign.marks.flags() compiles them in (docs/marks.md)"
        )
    else:
        exported(RunDirectory(folder).trace(), folder, nsys=options.nsys)
    if marked.exit_status != result.exit_status:
        notes.append(f"with marks the script ended with status {marked.exit_status}")
    return notes


RERUN = Rerun("with marks", {"NSYSALIGN_MARKS": "0"}, with_marks)


def dumps(folder: Path) -> list[Path]:
    """Dumps of marks in a run directory, sorted by name."""
    from nsysalign.text import natural

    return sorted(folder.glob("marks-*.nsam"), key=lambda path: natural(path.name))
