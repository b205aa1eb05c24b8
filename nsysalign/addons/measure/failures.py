"""Why a worker failed: one of a few classes, by evidence.  A failure is only called a memory
failure if it is known to be one."""

from __future__ import annotations

import signal
from dataclasses import dataclass

#: class -> what it means, for the one line that the user reads.
CLASSES = {
    "oom-torch": "torch's allocator found no GPU memory",
    "oom-cublas": "cuBLAS could not allocate GPU memory",
    "oom-cuda": "the CUDA driver found no GPU memory",
    "oom-host": "the system killed the process because of its memory",
    "hang": "it did not finish within its time limit",
    "budget": "the time budget ended it",
    "died": "the process died",
    "usage": "the function cannot be measured as it is",
    "no-work": "the call does no work on the GPU",
    "error": "an exception",
    "interrupted": "interrupted",
}
MEMORY = frozenset({"oom-torch", "oom-cublas", "oom-cuda", "oom-host"})

#: Library messages that reliably mean memory; torch's RuntimeErrors carry nothing else.
_TEXTS = {
    "CUBLAS_STATUS_ALLOC_FAILED": "oom-cublas",
    "cudaErrorMemoryAllocation": "oom-cuda",
    "CUDA_ERROR_OUT_OF_MEMORY": "oom-cuda",
    "CUDA error: out of memory": "oom-cuda",
    "CUDA out of memory.": "oom-torch",
}


class Usage(Exception):
    """The target cannot be measured as it is: no such function, needs arguments, returns no
    call."""


class NoWork(Exception):
    """The call leaves nothing on the GPU."""


@dataclass(frozen=True)
class Failure:
    """Why a worker failed: a class of CLASSES, and what else is known."""

    kind: str
    message: str
    stage: str = ""
    where: str = ""

    @property
    def memory(self) -> bool:
        """Whether it failed for lack of memory."""
        return self.kind in MEMORY

    @property
    def expected(self) -> bool:
        """Whether a search ends like this: no memory is left, or no time."""
        return self.memory or self.kind == "budget"

    def sentence(self) -> str:
        """What happened, at what stage, where, and with what message."""
        place = f" ({self.where})" if self.where else ""
        inside = self.stage in ("warm-up", "the profiled loop")
        stage = f" {'in' if inside else 'while'} {self.stage}"
        return f"{CLASSES[self.kind]}{stage}{place}: {self.message}"


def of_exception(error: BaseException) -> str:
    """The class of an exception raised in a worker.  torch.OutOfMemoryError is recognised by its
    name, without importing torch; a MemoryError is about the host's memory."""
    known = (Usage, "usage"), (NoWork, "no-work"), (KeyboardInterrupt, "interrupted")
    for kind, name in (*known, (MemoryError, "oom-host")):
        if isinstance(error, kind):
            return name
    if isinstance(error, RuntimeError):
        if any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__):
            return "oom-torch"
        return next((name for words, name in _TEXTS.items() if words in str(error)), "error")
    return "error"


def of_exit(status: int, *, killed_for_memory: bool) -> str:
    """The class of a worker that ended without a message.  `status` as subprocess gives it: -9 is
    SIGKILL, which means memory only if the kernel's own count of such kills went up meanwhile."""
    return "oom-host" if status == -signal.SIGKILL and killed_for_memory else "died"
