"""`with nsysalign.region("name")`: names what is measured inside.

In a run (`nsysalign run`) every event recorded inside by the same thread is called `name#k`, k
counting the repetitions in the process, and the region appears in the trace as an NVTX start/end
range.  Outside a run it does nothing, in well under a microsecond.

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


#: `co_flags` of functions (inspect.CO_...: importing inspect takes 5 ms).
_GENERATOR, _COROUTINE, _ASYNC_GENERATOR = 0x20, 0x80, 0x200


class region:
    """Context manager and decorator.  Holds no state of its own: reentrant, usable by many threads
    at once.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"nsysalign.region(name): a str is needed, not {type(name).__name__}")
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
        """Decorate a function; of a coroutine function the whole await is the region.  What the
        caller of a generator does between its items is not its own, so generators are refused."""
        flags = function.__code__.co_flags if getattr(function, "__code__", None) is not None else 0
        if flags & (_GENERATOR | _ASYNC_GENERATOR):
            raise TypeError(
                f"nsysalign.region: {function.__name__} is a generator; write `with "
                "nsysalign.region(name):` around the work inside it"
            )
        if flags & _COROUTINE:

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
