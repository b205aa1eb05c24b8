"""The terminal's title while a script is profiled: the one part of a terminal that a script's output does not touch."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time

#: Save the title, set it, restore it; a terminal that does not support these shows nothing.
_SAVE, _SET, _RESTORE = "\x1b[22;2t", "\x1b]2;{}\x07", "\x1b[23;2t"
_EVERY_S = 1.0


class TitleClock:
    """`with TitleClock("profiling train.py", usual_s=41)`: the title shows the elapsed time and how long it took the last time.
    Does nothing if stderr is not a terminal."""

    def __init__(self, what: str, *, quiet: bool = False, usual_s: float | None = None) -> None:
        self._what, self._usual_s = what, usual_s
        self._show = not quiet and sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> TitleClock:
        if self._show:
            _write(_SAVE)
            self._thread = threading.Thread(target=self._run, name="nsysalign-title", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(1.0)
            _write(_SET.format("") + _RESTORE)

    def _run(self) -> None:
        began = time.monotonic()
        while True:
            _write(_SET.format(title(self._what, time.monotonic() - began, self._usual_s)))
            if self._stop.wait(_EVERY_S):
                return


def title(what: str, elapsed_s: float, usual_s: float | None) -> str:
    """ "nsysalign: profiling train.py 0:12 of about 0:41"."""
    usual = f" of about {clock(usual_s)}" if usual_s is not None and elapsed_s < 1.5 * usual_s else ""
    return f"nsysalign: {what} {clock(elapsed_s)}{usual}"


def clock(seconds: float) -> str:
    """61.7 -> "1:01"."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}"


def _write(text: str) -> None:
    """A single write, so that it cannot end up in the middle of other output."""
    with contextlib.suppress(OSError, ValueError):
        os.write(sys.stderr.fileno(), text.encode("utf-8", "replace"))
