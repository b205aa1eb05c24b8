"""Why a worker failed: one of a few classes, by evidence.  What is not known to be memory is never called memory."""

from __future__ import annotations

import signal

#: class -> what it means, for the one line that the user reads.
CLASSES = {
    "oom-torch": "torch's allocator found no GPU memory",
    "oom-cublas": "cuBLAS could not allocate GPU memory",
    "oom-cuda": "the CUDA driver found no GPU memory",
    "oom-limit": "more GPU memory than the search may take",
    "oom-host": "the system killed the process because of its memory",
    "hang": "it did not finish within its time limit",
    "died": "the process died",
    "usage": "the function cannot be measured as it is",
    "no-work": "the call does no work on the GPU",
    "error": "an exception",
    "interrupted": "interrupted",
}
MEMORY = frozenset({"oom-torch", "oom-cublas", "oom-cuda", "oom-limit", "oom-host"})

#: Texts of libraries that say memory and mean it; an error's text is all that a RuntimeError of torch has.
_TEXTS = (
    ("oom-cublas", ("CUBLAS_STATUS_ALLOC_FAILED",)),
    ("oom-cuda", ("cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY", "CUDA error: out of memory")),
    ("oom-torch", ("CUDA out of memory.",)),
)


class Usage(Exception):
    """The target cannot be measured as it is: no such function, needs arguments, returns no call."""


class NoWork(Exception):
    """The call leaves nothing on the GPU."""


def of_exception(error: BaseException) -> str:
    """The class of what was raised in a worker.

    torch.OutOfMemoryError is known by its name, not imported: a host's MemoryError is a host's.
    """
    if isinstance(error, Usage):
        return "usage"
    if isinstance(error, NoWork):
        return "no-work"
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, MemoryError):
        return "oom-host"
    text = str(error)
    if isinstance(error, RuntimeError):
        if any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__):
            return "oom-torch"
        for name, texts in _TEXTS:
            if any(t in text for t in texts):
                return name
    return "error"


def of_exit(status: int, *, killed_for_memory: bool) -> str:
    """The class of a worker that ended without a word.  `status` as subprocess gives it: -9 is SIGKILL.

    SIGKILL alone is not memory: only where the kernel's own count of such kills went up meanwhile.
    """
    if status == -signal.SIGKILL and killed_for_memory:
        return "oom-host"
    return "died"
