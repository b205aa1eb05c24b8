"""Marks inside kernels cost time, so they get a run of their own: the same command once more, under nsys, with them.

The run directory itself is of the run without marks (NSYSALIGN_MARKS=0: `nsysalign.marks.flags()` leaves them out,
buffers are off), so every time that is shown elsewhere is without them.  RUN_DIR/marked is a run directory too.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = "marked"
#: The variable that turns marks off in the user's process.
OFF = {"NSYSALIGN_MARKS": "0"}
ON = {"NSYSALIGN_MARKS": "1"}


def dumps(folder: Path) -> list[Path]:
    """The dumps of marks in a run directory, sorted by name."""
    return sorted(folder.glob("marks-*.nsam"))


def marks_of(run_dir: Path) -> tuple[list[Path], Path | None]:
    """(the dumps of a run, the folder of the run with marks or None): its own, or of a run of their own."""
    folder = run_dir / FOLDER
    there = dumps(folder)
    if there and any(folder.glob("trace.*")):
        return there, folder
    return dumps(run_dir), None
