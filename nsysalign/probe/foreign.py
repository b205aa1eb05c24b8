"""Events that are not torch.cuda.Event: torch.Event and torch.Stream (types in C), CuPy's, numba's.

Their latest record is remembered by the handle of the CUDA event, which lives as long as the event:
a later event that gets the same one is recorded before it can be compared.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from . import failed
from . import rawtime as time
from .runtime import Runtime, handle_of
from .slots import RECORD, WAIT
from .tampering import keep
from .wrap import elapsed_time, log_call, replace


def _logged(original: Any, kind: int, rt: Runtime, parts: Any) -> Any:
    """Around a record or wait; `parts(args, result)`: its event and stream, None for no CUDA event
    or one that is logged elsewhere."""
    clock, getframe = time.perf_counter_ns, sys._getframe

    @functools.wraps(original)
    def call(*args, **kwargs):
        if rt.aside:
            return original(*args, **kwargs)
        t0 = clock()
        result = original(*args, **kwargs)
        t1 = clock()
        try:
            found = parts((*args, *kwargs.values()), result)
        except Exception as error:
            failed(error)
            return result
        if found is not None:
            logged = log_call(rt, kind, *found, t0, t1, getframe(1))
            if kind == RECORD:
                rt.foreign[handle_of(found[0])] = logged
                rt.last_record = rt.me().last = logged[0]
                rt.last_record_ns = t1
        return result

    return call


def wrap_torch(torch: Any, rt: Runtime) -> None:
    """torch.Event and torch.Stream.  What reaches torch.cuda.Event, whose methods call each other,
    is logged there.  Only when all of torch is imported: it adds texts to the methods of its
    types."""
    event = torch.cuda.Event
    keep(torch.cuda, "torch.cuda", "synchronize")

    def on_event(args: tuple, result: Any) -> Any:
        if args[0].device.type != "cuda":
            return None
        given = args[1] if len(args) > 1 else None
        return args[0], given if given is not None else torch.cuda.current_stream()

    def on_stream(args: tuple, result: Any) -> Any:
        made = result if result is not None else args[1]
        if isinstance(made, event) or getattr(made, "device", args[0].device).type != "cuda":
            return None
        return made, args[0]

    for owner, name, kind, parts in (
        (getattr(torch, "Event", None), "record", RECORD, on_event),
        (getattr(torch, "Event", None), "wait", WAIT, on_event),
        (getattr(torch, "Stream", None), "record_event", RECORD, on_stream),
        (getattr(torch, "Stream", None), "wait_event", WAIT, on_stream),
    ):
        original = getattr(owner, name, None)
        if original is not None:
            replace(owner, name, _logged(original, kind, rt, parts), _set)
    if hasattr(getattr(torch, "Event", None), "elapsed_time"):
        compared = elapsed_time(torch.Event.elapsed_time, rt, lambda e: e.device.type == "cuda")
        replace(torch.Event, "elapsed_time", compared, _set)


def _set(owner: Any, name: str, wrapper: Any) -> None:
    """Set an attribute of torch.Event or torch.Stream, which are immutable types: their dictionary
    is reached through the garbage collector.  These two alone: nothing in the open does it.
    `Stream.record_event` is written in C and takes no subclass of Event, and another class under
    the name `torch.Event` would fail isinstance checks."""
    try:
        setattr(owner, name, wrapper)  # a torch that has them in Python
    except TypeError:
        import ctypes
        import gc

        wrapper.__module__ = owner.__module__
        (methods,) = gc.get_referents(vars(owner))
        methods[name] = wrapper
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))


def wrap_cupy(module: Any, rt: Runtime) -> None:
    """cupy.cuda: Event.record, Stream.record, get_elapsed_time."""

    def current(args: tuple) -> Any:
        return args[1] if len(args) > 1 else module.get_current_stream()

    event, streams = module.Event, module.stream
    on_event = _logged(event.record, RECORD, rt, lambda args, _: (args[0], current(args)))
    replace(event, "record", on_event)
    for owner in {c for c in module.Stream.__mro__ if "record" in vars(c)}:
        on_stream = _logged(owner.record, RECORD, rt, lambda args, made: (made, args[0]))
        replace(owner, "record", on_stream)
    module.get_elapsed_time = streams.get_elapsed_time = elapsed_time(module.get_elapsed_time, rt)


def wrap_numba(module: Any, rt: Runtime) -> None:
    """numba.cuda.cudadrv.driver: Event.record, and event_elapsed_time, which Event.elapsed_time and
    numba.cuda call."""

    class Default:
        handle = 0

    def parts(args: tuple, result: Any) -> Any:
        return args[0], args[1] if len(args) > 1 and args[1] else Default

    replace(module.Event, "record", _logged(module.Event.record, RECORD, rt, parts))
    replace(module, "event_elapsed_time", elapsed_time(module.event_elapsed_time, rt))
