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
        """Decorate a function.  Of a coroutine function the whole await is the region, of a
        generator each stretch from where it goes on to its next `yield`: what its caller does in
        between is not its own."""
        flags = function.__code__.co_flags if getattr(function, "__code__", None) is not None else 0
        if flags & _GENERATOR:
            return functools.wraps(function)(_generator(self, function))  # type: ignore[return-value]
        if flags & _ASYNC_GENERATOR:
            return functools.wraps(function)(_async_generator(self, function))  # type: ignore[return-value]
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


def _generator(inside: region, function: Callable[..., Any]) -> Callable[..., Any]:
    """The generator function with each stretch of its generators inside the region."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        generator = function(*args, **kwargs)
        go_on, value = generator.send, None
        while True:
            with inside:
                try:
                    item = go_on(value)
                except StopIteration as end:
                    return end.value
            try:
                go_on, value = generator.send, (yield item)
            except GeneratorExit:
                with inside:
                    generator.close()
                raise
            except BaseException as error:
                go_on, value = generator.throw, error

    return wrapper


def _async_generator(inside: region, function: Callable[..., Any]) -> Callable[..., Any]:
    """The same of an asynchronous one."""

    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        generator = function(*args, **kwargs)
        go_on, value = generator.asend, None
        while True:
            with inside:
                try:
                    item = await go_on(value)
                except StopAsyncIteration:
                    return
            try:
                go_on, value = generator.asend, (yield item)
            except GeneratorExit:
                with inside:
                    await generator.aclose()
                raise
            except BaseException as error:
                go_on, value = generator.athrow, error

    return wrapper
