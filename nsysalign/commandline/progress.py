"""What is being done and how much longer it will take: one line on stderr, on a terminal only."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class ProgressLine:
    """`with ProgressLine(quiet) as tell: tell("reading the trace", 40)`; a step's percent may start
    again at 0.

    If stderr is not a terminal, nothing is drawn or imported.  The line disappears when the block
    ends.  While the profiled script runs there is no line: the terminal belongs to the script.
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
            from rich import progress
            from rich.console import Console

            columns = (
                progress.TextColumn("{task.description}"), progress.BarColumn(bar_width=None),
                progress.TaskProgressColumn(), progress.TimeElapsedColumn(),
                progress.TextColumn("left"), progress.TimeRemainingColumn(),
            )  # fmt: skip
            console = Console(stderr=True)
            self._progress = progress.Progress(*columns, console=console, transient=True)
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
