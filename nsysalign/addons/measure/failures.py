"""Why a worker failed.  A failure is only called a memory failure if it is known to be one."""

from __future__ import annotations

from dataclasses import dataclass

#: class -> what it means, for the one line that the user reads.
CLASSES = {
    "oom": "out of memory",
    "hang": "it did not finish within its time limit",
    "budget": "the time budget ended it",
    "died": "the process died",
    "usage": "the function cannot be measured as it is",
    "no-work": "the call does no work on the GPU",
    "error": "an exception",
    "interrupted": "interrupted",
}
#: Libraries' messages that reliably mean memory; torch's RuntimeErrors carry nothing else.
_TEXTS = (
    "CUBLAS_STATUS_ALLOC_FAILED",
    "cudaErrorMemoryAllocation",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "CUDA error: out of memory",
    "CUDA out of memory.",
)


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
    def expected(self) -> bool:
        """Whether a search ends like this: no memory is left, or no time."""
        return self.kind in ("oom", "budget")

    def sentence(self) -> str:
        """What happened, at what stage, where, and with what message."""
        place = f" ({self.where})" if self.where else ""
        inside = self.stage in ("warm-up", "the profiled loop")
        stage = f" {'in' if inside else 'while'} {self.stage}"
        return f"{CLASSES[self.kind]}{stage}{place}: {self.message}"


def of_exception(error: BaseException) -> str:
    """The class of an exception raised in a worker.  torch.OutOfMemoryError is recognised by its
    name, without importing torch."""
    known = (Usage, "usage"), (NoWork, "no-work"), (KeyboardInterrupt, "interrupted")
    for kind, name in (*known, (MemoryError, "oom")):
        if isinstance(error, kind):
            return name
    if not isinstance(error, RuntimeError):
        return "error"
    named = any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__)
    return "oom" if named or any(words in str(error) for words in _TEXTS) else "error"
