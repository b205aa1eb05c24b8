"""What is being done and how much longer it will take: one line on stderr, on a terminal only."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class ProgressLine:
    """`with ProgressLine(quiet) as tell: tell("reading the trace", 40)`; a step's percent may start again at
    0.

    If stderr is not a terminal, nothing is drawn or imported.  The line disappears when the block ends.  While the profiled
    script runs there is no line: the terminal belongs to the script, and only its title is used (title.py).
    """

    def __init__(self, quiet: bool) -> None:
        self._show = not quiet and sys.stderr.isatty()
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._percent = 0

    def __enter__(self) -> ProgressLine:
        return self

    def __call__(self, step: str, percent: int) -> None:
        if not self._show:
            return
        if self._progress is None:
            self._progress = _drawn()
            self._progress.start()
        if self._task is None or percent < self._percent:  # another job, with its own clock
            if self._task is not None:
                self._progress.remove_task(self._task)
            self._task = self._progress.add_task(step, total=100)
        self._percent = percent
        self._progress.update(self._task, description=step, completed=percent)

    def __exit__(self, *exc: object) -> None:
        if self._progress is not None:
            self._progress.stop()


def _drawn() -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True)


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
    usual = (
        f" of about {clock(usual_s)}" if usual_s is not None and elapsed_s < 1.5 * usual_s else ""
    )
    return f"nsysalign: {what} {clock(elapsed_s)}{usual}"


def clock(seconds: float) -> str:
    """61.7 -> "1:01"."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}"


def _write(text: str) -> None:
    """A single write, so that it cannot end up in the middle of other output."""
    with contextlib.suppress(OSError, ValueError):
        os.write(sys.stderr.fileno(), text.encode("utf-8", "replace"))
