"""A Ctrl-C while the probe is at longer work of its own: the program is interrupted right behind it, in
a line of its own.

A handler of signals runs between two instructions of whatever the main thread executes, and a
KeyboardInterrupt from there would show the probe's frames in the program's traceback.
"""

from __future__ import annotations

import select
import sys
from _signal import SIGINT, getsignal, pthread_kill
from _signal import signal as set_handler
from _thread import get_ident
from typing import Any

from .blame import OURS
from .ends import start_thread

#: How often a thread looks whether the probe's work is done, and how many times at most.
_STEP_S, _STEPS = 0.0005, 2_000


class Held:
    """A block at whose end a SIGINT comes that came in it.  Does nothing in threads that no handler
    interrupts, nor where the program has no handler in Python."""

    def __init__(self) -> None:
        self._holds = self._came = False

    def __enter__(self) -> None:
        self._handler: Any = getsignal(SIGINT)
        if not callable(self._handler):
            return
        try:
            set_handler(SIGINT, self._hold)
        except ValueError:  # not the main thread
            return
        self._holds = True

    def _hold(self, number: int, frame: Any) -> Any:
        if not self._holds:  # an exception of the user's came while the block began or ended
            return self._handler(number, frame)
        self._came = True
        return None

    def __exit__(self, *_: object) -> None:
        if not self._holds:
            return
        self._holds = False
        if getsignal(SIGINT) == self._hold:
            set_handler(SIGINT, self._handler)
        if self._came:
            main = get_ident()
            start_thread(lambda: _interrupt(main))


def _interrupt(thread: int) -> None:
    """Send SIGINT to a thread once no frame of the probe is on its stack."""
    for _ in range(_STEPS):
        select.select([], [], [], _STEP_S)
        if not _is_ours(sys._current_frames().get(thread)):
            break
    pthread_kill(thread, SIGINT)


def _is_ours(frame: Any) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith(OURS):
            return True
        frame = frame.f_back
    return False
