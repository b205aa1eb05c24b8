"""The recorder of our own in this process (`recorder/library.c`), if the run has it: the driver loads it by
itself, here it is told to step aside.
"""

from __future__ import annotations

import os
from typing import Any

#: The path of its library.
VARIABLE = "NSYSALIGN_RECORDER"
#: Words for it; in turns it works with the word TURNS.
OPTIONS, TURNS = "NSYSALIGN_RECORDER_OPTIONS", "turns"
#: Set where the program itself started the probe, and will end it (`nsysalign.recording`): how the process
#: ends is none of ours then.
INSIDE = "NSYSALIGN_INSIDE"


class Recorder:
    """Its functions.  Raises OSError if the library cannot be loaded."""

    def __init__(self, path: str) -> None:
        import ctypes  # not at the top: every Python process of the run would pay for it

        library: Any = ctypes.CDLL(path)  # which lets other threads run while it works
        library.nsysalign_problem.restype = ctypes.c_char_p
        library.nsysalign_records.restype = ctypes.c_uint64
        self._library = library
        self._alone: Any = ctypes.PyDLL(path)  # other threads of Python wait while it works

    def start(self, folder: str, candidates: str) -> bool:
        """Record into `folder`, with the libcupti that is loaded or the first of `candidates`."""
        return bool(self._library.nsysalign_start(os.fsencode(folder), os.fsencode(candidates)))

    def flush(self) -> None:
        """Write everything, also what still runs, without its end."""
        self._library.nsysalign_flush(1)

    def aside(self, away: bool) -> bool:
        """Leave CUPTI to somebody else, or take it back; whether that worked."""
        return bool(self._library.nsysalign_aside(int(away)))

    def listen(self) -> None:
        """Hear other threads' calls from now on, without which it never leaves."""
        self._library.nsysalign_listen()

    def turn(self, traced: bool) -> int:
        """Go on with CUPTI or without it: 1 if so, 0 where that cannot be now, -1 where it never can
        be (again)."""
        if not self._library.nsysalign_rest():
            return 0
        return int(self._alone.nsysalign_turn(int(traced)))

    def stop(self, finalize: bool) -> None:
        """Write everything and stop; `finalize`: take CUPTI out of the process."""
        self._library.nsysalign_stop(int(finalize))

    def problem(self) -> str:
        """What is wrong, "" if nothing."""
        return self._library.nsysalign_problem().decode("utf-8", "replace")


def of_run() -> Recorder | None:
    """The recorder of this run, None if it has none."""
    path = os.environ.get(VARIABLE)
    return Recorder(path) if path else None


def in_turns() -> bool:
    """Whether the recorder of this run works in turns (`turns`)."""
    return VARIABLE in os.environ and TURNS in os.environ.get(OPTIONS, "").split()
