"""What workers run in tests; importable by their processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from nsysalign.addons.ranks.command import Job, one
from nsysalign.addons.ranks.results import SourceResult


def dies_once(job: Job) -> SourceResult:
    """The worker that first takes rank 1 is killed, as the kernel kills what takes too much
    memory."""
    mark = job.output.parent / f"{job.output.name}-killed"
    if job.source.name.endswith("1") and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return one(job)


def always_dies(name: Path) -> str:
    """Whoever takes `bad` dies, every time."""
    if name.name == "bad":
        os.kill(os.getpid(), signal.SIGKILL)
    return name.name
