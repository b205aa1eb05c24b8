"""What ends a command from outside."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from nsysalign.errors import Interrupted
from nsysalign.record.processes import ENDING


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and a hang-up end a command as Ctrl-C does: incomplete files are removed, and the
    exit status is 128 + the signal's number.  Ignored ones stay ignored."""
    came = [signal.SIGINT]

    def interrupt(number: int, _frame: object) -> None:
        came.append(number)
        raise KeyboardInterrupt

    before = {}
    for number in ENDING:  # SIGINT has a handler of Python's
        if signal.getsignal(number) is signal.SIG_DFL:
            with suppress(ValueError):  # outside the main thread
                before[number] = signal.signal(number, interrupt)
    try:
        yield
    except (KeyboardInterrupt, Interrupted) as error:
        ended = error if isinstance(error, Interrupted) else Interrupted("interrupted")
        ended.exit_code = 128 + came[-1]
        raise ended from None
    finally:
        for number, old in before.items():
            signal.signal(number, old)
