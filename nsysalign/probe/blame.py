"""Whose exception it was: between any two of our instructions a signal handler, a trace function or
a callback of sys.monitoring may run, or another thread may raise an exception here.  The probe
swallows its own errors and those of what it called, never those.
"""

from __future__ import annotations

#: How the names of the probe's files begin in tracebacks, in profiles and for coverage tools.
OURS = "<nsysalign/"
#: Modules that define the exceptions which the probe and its callees can raise.
_MODULES = {"builtins", "struct", "ctypes", "_ctypes", "json", "torch"}


def is_ours(error: BaseException) -> bool:
    """To be called where the exception is caught, in a function of the probe.  A bare class is what
    PyThreadState_SetAsyncExc raises: all other exceptions of the interpreter have a message."""
    if not isinstance(error, Exception) or type(error).__module__.partition(".")[0] not in _MODULES:
        return False
    if not error.args and not isinstance(error, MemoryError):
        return False
    step = error.__traceback__
    while step is not None:
        frame, step = step.tb_frame, step.tb_next
        back = frame.f_back
        if back is None or frame.f_code.co_filename.startswith(OURS):
            continue
        # who interrupts us is given our frame, or its code
        code = frame.f_code
        values = [v for v in frame.f_locals.values() if type(v) is not tuple]
        values += [v for item in frame.f_locals.values() if type(item) is tuple for v in item]
        given = any(value is back or value is back.f_code for value in values)
        if given or "frame" in code.co_varnames[: code.co_argcount]:  # it may have deleted it
            return False
    return True


def pass_on(error: BaseException) -> None:
    """Raise it again unless it is ours."""
    if not is_ours(error):
        raise error
