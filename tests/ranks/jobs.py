"""What workers run in tests; importable by their processes."""

from __future__ import annotations

import os
import signal
import time

from nsysalign.addons.ranks.records import Source, SourceResult


def dies_on_bad(source: Source) -> SourceResult:
    """Whoever takes `bad` is killed, as the kernel kills what takes too much memory."""
    if source.name == "bad":
        os.kill(os.getpid(), signal.SIGKILL)
    return SourceResult(source.name, "", report=str(os.getpid()))


def begins_a_file(source: Source) -> SourceResult:
    """One source answers at once, another begins a file and never ends it."""
    if source.name == "quick":
        return SourceResult(source.name, "")
    try:
        source.trace.write_text(str(os.getpid()))  # what stops us may come as soon as it is there
        while True:
            time.sleep(0.01)
    finally:
        source.trace.unlink()
