"""`with nsysalign.region("name")`: names what is measured inside.

In a run (`nsysalign run`) every event recorded inside by the same thread is called `name#k`, k counting the
repetitions in the process, and the region appears in the trace as an NVTX start/end range.  Outside a run
it does nothing, in well under a microsecond.

    >>> with region("forward"):
    ...     pass
    >>> @region("step")
    ... def step():
    ...     return 1
    >>> step()
    1
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

#: The probe is loaded by place under this name: the interpreter it runs in need not have nsysalign.
_PROBE = "_nsysalign_probe"


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
                with self:
                    return await function(*args, **kwargs)
        else:

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return function(*args, **kwargs)

        return wrapper  # type: ignore[return-value]

    def __repr__(self) -> str:
        return f"region({self.name!r})"
