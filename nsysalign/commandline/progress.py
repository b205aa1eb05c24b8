"""What is being done and how much longer it will take: one line on stderr, on a terminal only."""

from __future__ import annotations

import sys
from typing import Any


class ProgressLine:
    """`with ProgressLine(quiet) as tell: tell("reading the trace", 40)`.

    If stderr is not a terminal, nothing is drawn or imported.  The line disappears when the block
    ends.  While the profiled script runs there is no line: the terminal belongs to the script.
    """

    def __init__(self, quiet: bool) -> None:
        self._show = not quiet and sys.stderr.isatty()
        self._progress: Any = None

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
            )  # fmt: skip
            console = Console(stderr=True)
            self._progress = progress.Progress(*columns, console=console, transient=True)
            self._progress.add_task(step, total=100)
            self._progress.start()
        self._progress.update(0, description=step, completed=percent)

    def __exit__(self, *exc: object) -> None:
        if self._progress is not None:
            self._progress.stop()
