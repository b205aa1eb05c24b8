"""Whose exception it was: between any two of our instructions a signal handler of the user's may run, or another thread may
raise an exception here.  The probe swallows its own errors, never those.
"""

from __future__ import annotations

import _signal  # `signal` makes its numbers enumerations: 3 ms in every process
import sys
from types import CodeType, FrameType
from typing import Any

#: How the names of the probe's files begin in tracebacks, in profiles and for coverage tools (`sitecustomize`).
OURS = "<nsysalign/"

#: Modules that define the exceptions which the probe and its callees can raise.
_MODULES = {"builtins", "struct", "ctypes", "_ctypes", "json", "torch"}


def is_ours(error: BaseException) -> bool:
    """Whether the probe's own code, or code that it called, raised this.  Not ours: exceptions of a signal handler or a trace
    function that ran in between, and a bare class, as raised by `PyThreadState_SetAsyncExc`.  To be called where the exception
    is caught, in a function of the probe.
    """
    if not isinstance(error, Exception) or type(error).__module__.partition(".")[0] not in _MODULES:
        return False
    # all other exceptions of the interpreter have a message
    if not error.args and not isinstance(error, MemoryError):
        return False
    step = error.__traceback__
    while step is not None:
        if _interrupts(step.tb_frame):
            return False
        step = step.tb_next
    return True


def pass_on(error: BaseException) -> None:
    """Raise it again unless it is ours."""
    if not is_ours(error):
        raise error


def _interrupts(frame: FrameType) -> bool:
    """Whether this is a signal handler or a trace function: its argument is the frame that it interrupts."""
    if frame.f_code.co_filename.startswith(OURS) or frame.f_back is None:
        return False
    interrupted = frame.f_back
    for value in frame.f_locals.values():
        if value is interrupted or (
            type(value) is tuple and any(item is interrupted for item in value)
        ):
            return True
    return frame.f_code in _handlers()  # it may have deleted its argument


def _handlers() -> set[CodeType | None]:
    functions = [sys.gettrace(), sys.getprofile(), *map(_signal.getsignal, _signal.valid_signals())]
    return {code for function in functions for code in _codes(function)}


def _codes(function: Any) -> list[CodeType]:
    """The code that runs first when this is called, if it is Python code."""
    function = getattr(function, "func", function)  # a functools.partial
    function = getattr(function, "__func__", function)
    called = getattr(type(function), "__call__", None)  # noqa: B004  not whether, but which
    codes = [getattr(f, "__code__", None) for f in (function, called)]
    return [code for code in codes if isinstance(code, CodeType)]
