"""Why a worker failed: one of a few classes, by evidence.  A failure is only called a memory failure if it is known to be
one."""

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

#: Library messages that reliably mean memory; torch's RuntimeErrors carry no other information than their text.
_TEXTS = (
    ("oom-cublas", ("CUBLAS_STATUS_ALLOC_FAILED",)),
    (
        "oom-cuda",
        ("cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY", "CUDA error: out of memory"),
    ),
    ("oom-torch", ("CUDA out of memory.",)),
)


class Usage(Exception):
    """The target cannot be measured as it is: no such function, needs arguments, returns no call."""


class NoWork(Exception):
    """The call leaves nothing on the GPU."""


def of_exception(error: BaseException) -> str:
    """The class of an exception raised in a worker.  torch.OutOfMemoryError is recognised by its name, without importing torch;
    a MemoryError is about the host's memory.
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
    """The class of a worker that ended without a message.  `status` as subprocess gives it: -9 is SIGKILL.

    SIGKILL alone does not mean memory, only if the kernel's own count of such kills went up meanwhile.
    """
    if status == -signal.SIGKILL and killed_for_memory:
        return "oom-host"
    return "died"
