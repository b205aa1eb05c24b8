"""Every error nsysalign raises on purpose.

One tree, raised deep, caught once (in `nsysalign.cli`).  A message says what was found, what was
expected and what to do next, in one or two lines; the exit code is 3 for everything but wrong
usage, Ctrl-C and a program that did nothing on a GPU (4).
"""

from __future__ import annotations

import re

#: Text quoted from an input can be anything: it must not bring control characters, or pages of
#: text, to the terminal.
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u2028\u2029\u202a-\u202e\u2060-\u2069\ufeff]"
)
_BEGIN, _END = 600, 250


class NsysAlignError(Exception):
    """Base of all expected failures.  `next_step` is the command or action that helps."""

    exit_code = 3

    def __init__(self, message: str, next_step: str | None = None) -> None:
        message = _CONTROL.sub("\ufffd", message)
        if len(message) > _BEGIN + _END:
            message = f"{message[:_BEGIN]} … {message[-_END:]}"
        super().__init__(message)
        self.message = message
        self.next_step = next_step

    def __str__(self) -> str:
        return f"{self.message}\n  next: {self.next_step}" if self.next_step else self.message


class UsageError(NsysAlignError):
    """The request itself cannot be carried out (wrong options, nested profilers)."""

    exit_code = 2


class Interrupted(NsysAlignError):
    """Ctrl-C when there is no script to pass it on to."""

    exit_code = 130


class NsysError(NsysAlignError):
    """nsys is missing, too old, or did not leave the files it should have."""


class NsysMissing(NsysError):
    """There is no nsys on this machine, as far as is known."""


class TraceError(NsysAlignError):
    """The trace cannot be read or lacks what the question needs."""


class NoCudaWork(TraceError):
    """The trace holds nothing of a GPU: of a run, the program's own answer rather than a
    failure."""

    exit_code = 4


class EventLogError(NsysAlignError):
    """An event log cannot be read or does not belong to the trace."""


class OutputError(NsysAlignError):
    """A result cannot be written where it should go."""


class AnalysisError(NsysAlignError):
    """A stored analysis cannot be read."""
