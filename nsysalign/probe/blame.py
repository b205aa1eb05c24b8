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
    """To be called where the exception is caught, in a function of the probe.  A bare class that no
    `raise` raised is what PyThreadState_SetAsyncExc brings from another thread: all other
    exceptions of the interpreter have a message."""
    if not isinstance(error, Exception) or type(error).__module__.partition(".")[0] not in _MODULES:
        return False
    step = last = error.__traceback__
    while step is not None:
        last, frame, step = step, step.tb_frame, step.tb_next
        back = frame.f_back
        if back is None or frame.f_code.co_filename.startswith(OURS):
            continue
        # who interrupts us is given our frame, or its code
        code = frame.f_code
        values = [v for v in frame.f_locals.values() if type(v) is not tuple]
        values += [v for item in frame.f_locals.values() if type(item) is tuple for v in item]
        called_back = any(value is back or value is back.f_code for value in values)
        if called_back or "frame" in code.co_varnames[: code.co_argcount]:  # it may have deleted it
            return False
    return bool(error.args) or isinstance(error, MemoryError) or _was_raised(last)


def _was_raised(innermost: object) -> bool:
    """Whether a `raise` of somebody else's code raised it: a mock in the place of what we call."""
    if innermost is None or innermost.tb_frame.f_code.co_filename.startswith(OURS):
        return False
    from opcode import opname

    code = innermost.tb_frame.f_code
    return opname[code.co_code[innermost.tb_lasti]] == "RAISE_VARARGS"


def pass_on(error: BaseException) -> None:
    """Raise it again unless it is ours."""
    if not is_ours(error):
        raise error
