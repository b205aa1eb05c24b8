"""Marks inside kernels cost time, so they get a run of their own: the same command once more, under nsys, with them.

The run directory itself is of the run without marks (NSYSALIGN_MARKS=0: `nsysalign.marks.flags()` leaves them out,
buffers are off), so every time that is shown elsewhere is without them.  RUN_DIR/marked is a run directory too.
"""

from __future__ import annotations

#: The variable that turns marks off in the user's process, or on.
OFF, ON = {"NSYSALIGN_MARKS": "0"}, {"NSYSALIGN_MARKS": "1"}
