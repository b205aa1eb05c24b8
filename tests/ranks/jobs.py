"""What workers run in tests; importable by their processes."""

from __future__ import annotations

import os
import signal

from nsysalign.addons.ranks.records import SourceResult
from nsysalign.addons.ranks.work import Job, one


def dies_once(job: Job) -> SourceResult:
    """The worker that first takes rank 1 is killed, as the kernel kills what takes too much
    memory."""
    mark = job.output.parent / f"{job.output.name}-killed"
    if job.source.name.endswith("1") and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return one(job)


def always_dies(job: Job) -> SourceResult:
    """Whoever takes `bad` dies, every time."""
    if job.source.name == "bad":
        os.kill(os.getpid(), signal.SIGKILL)
    return SourceResult(job.source.name, "")
