"""Marks inside kernels cost time, so they get a run of their own: the same command again, under nsys, with marks.

The run directory itself holds the run without marks (NSYSALIGN_MARKS=0: `nsysalign.marks.flags()` leaves them out, buffers are
off), so all times shown elsewhere are without marks.  RUN_DIR/marked is a run directory too.
"""

from __future__ import annotations

#: The variable that turns marks off in the user's process, or on.
OFF, ON = {"NSYSALIGN_MARKS": "0"}, {"NSYSALIGN_MARKS": "1"}
