"""`with nsysalign.region("name")`: names what is measured inside.

In a run (`nsysalign run`) every event recorded inside by the same thread is called `name#k`, k counting the
repetitions in the process, and the region appears in the trace as an NVTX start/end range.  Outside a run
it does nothing, in well under a microsecond.  A decorated function may be called once more before each call, by
`nsysalign confirm --intervention warm` and nothing else.

    >>> with region("forward"):
    ...     pass
    >>> @region("step")
    ... def step():
    ...     return 1
    >>> step()
    1
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

#: The probe is loaded by place under this name: the interpreter it runs in need not have nsysalign.
_PROBE = "_nsysalign_probe"


#: What the region of a repeated call is called (`nsysalign confirm --intervention warm`).
_REPEATED = " (once more)"


def _to_repeat(name: str) -> bool:
    """Whether a re-run of `nsysalign confirm` asked for this function's calls to be made warm."""
    probe = sys.modules.get(_PROBE)
    return probe is not None and probe.decorating(name)


class region:
    """Context manager and decorator.  Holds no state of its own: reentrant, usable by many threads at
    once.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> region:
        probe = sys.modules.get(_PROBE)
        if probe is not None:
            probe.enter_region(self.name)
        return self

    def __exit__(self, *exc: object) -> None:
        probe = sys.modules.get(_PROBE)
        if probe is not None:
            probe.exit_region()

    def __call__(self, function: F) -> F:
        """Decorate a function; of a coroutine function the whole await is the region."""
        if (
            getattr(function, "__code__", None) is not None and function.__code__.co_flags & 0x80
        ):  # CO_COROUTINE

            @functools.wraps(function)
            async def wrapper(*args: Any, **kwargs: Any) -> Any:
                if _to_repeat(self.name):
                    with region(self.name + _REPEATED), contextlib.suppress(Exception):
                        await function(*args, **kwargs)
                with self:
                    return await function(*args, **kwargs)
        else:

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                if _to_repeat(self.name):  # what it raises, the call itself will raise
                    with region(self.name + _REPEATED), contextlib.suppress(Exception):
                        function(*args, **kwargs)
                with self:
                    return function(*args, **kwargs)

        return wrapper  # type: ignore[return-value]

    def __repr__(self) -> str:
        return f"region({self.name!r})"
