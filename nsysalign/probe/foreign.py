"""Events that are not torch.cuda.Event: torch.Event and torch.Stream (types in C), CuPy's, numba's;
and a program that profiles itself.

Their latest record is remembered by the handle of the CUDA event, which lives as long as the event:
a later event that gets the same one is recorded before it can be compared.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

from . import failed
from .recorder import VARIABLE, of_run
from .runtime import Runtime
from .slots import RECORD, WAIT
from .tampering import keep
from .wrap import elapsed_time, logged, remember, replace


def wrap_torch(torch: Any, rt: Runtime) -> None:
    """torch.Event and torch.Stream.  What reaches torch.cuda.Event, whose methods call each other,
    is logged there.  Only when all of torch is imported: it adds texts to the methods of its
    types."""
    cuda_event = torch.cuda.Event
    keep(torch.cuda, "torch.cuda", "synchronize")
    event, stream = getattr(torch, "Event", None), getattr(torch, "Stream", None)

    def on_event(args: tuple, result: Any) -> Any:
        if args[0].device.type != "cuda":
            return None
        asked_stream = args[1] if len(args) > 1 else None
        return args[0], asked_stream if asked_stream is not None else torch.cuda.current_stream()

    def on_stream(args: tuple, result: Any) -> Any:
        made = result if result is not None else args[1]
        if isinstance(made, cuda_event) or getattr(made, "device", args[0].device).type != "cuda":
            return None
        return made, args[0]

    for owner, name, kind, parts in (
        (event, "record", RECORD, on_event),
        (event, "wait", WAIT, on_event),
        (stream, "record_event", RECORD, on_stream),
        (stream, "wait_event", WAIT, on_stream),
    ):
        if hasattr(owner, name):
            replace(owner, name, logged(getattr(owner, name), kind, rt, parts), _set)
    if hasattr(event, "elapsed_time"):
        compared = elapsed_time(event.elapsed_time, rt, lambda e: e.device.type == "cuda")
        replace(event, "elapsed_time", compared, _set)


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

        if hasattr(wrapper, "__dict__"):  # not the type's own method, which is put back
            wrapper.__module__ = owner.__module__
        (methods,) = gc.get_referents(vars(owner))
        methods[name] = wrapper
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))


def wrap_cupy(module: Any, rt: Runtime) -> None:
    """cupy.cuda: Event.record, Stream.record, get_elapsed_time."""

    def on_event(args: tuple, result: Any) -> Any:
        return args[0], args[1] if len(args) > 1 else module.get_current_stream()

    replace(module.Event, "record", logged(module.Event.record, RECORD, rt, on_event))
    for owner in {c for c in module.Stream.__mro__ if "record" in vars(c)}:
        on_stream = logged(owner.record, RECORD, rt, lambda args, made: (made, args[0]))
        replace(owner, "record", on_stream)
    compared = elapsed_time(module.get_elapsed_time, rt)
    for owner in (module, module.stream):
        remember(owner, "get_elapsed_time")
    module.get_elapsed_time = module.stream.get_elapsed_time = compared


def wrap_numba(module: Any, rt: Runtime) -> None:
    """numba.cuda.cudadrv.driver: Event.record, and event_elapsed_time, which Event.elapsed_time and
    numba.cuda call."""

    class Default:
        handle = 0

    def parts(args: tuple, result: Any) -> Any:
        return args[0], args[1] if len(args) > 1 and args[1] else Default

    replace(module.Event, "record", logged(module.Event.record, RECORD, rt, parts))
    replace(module, "event_elapsed_time", elapsed_time(module.event_elapsed_time, rt))


#: From this CUDA driver on (13.3, r610) nsys does not keep the GPU's activity for itself.
_SHARED = 13030


def _step_aside(profile: Any) -> None:
    """CUPTI has one user at a time: while torch.profiler collects, that is the program.  What it does
    then is not in our trace."""
    enter, leave = profile._prepare_trace, profile.__exit__
    recorder = of_run()
    open_now: list[int] = []  # of the profilers that are open: they do not nest

    @functools.wraps(enter)
    def begin(self, *args, **kwargs):
        try:
            if not open_now:
                recorder.aside(True)
            open_now.append(id(self))
        except Exception as error:
            failed(error)
        return enter(self, *args, **kwargs)

    @functools.wraps(leave)
    def end(self, *args, **kwargs):
        try:
            return leave(self, *args, **kwargs)
        finally:
            try:
                if id(self) in open_now:
                    open_now.clear()
                    recorder.aside(False)
            except Exception as error:
                failed(error)

    for name, ours in (("_prepare_trace", begin), ("__exit__", end)):
        remember(profile, name)
        setattr(profile, name, ours)


def wrap_profiler(module: Any, rt: Runtime) -> None:
    """Note, once, that torch.profiler begins: CUPTI gives the GPU's activity to one subscriber,
    which is nsys, and nobody tells the program that what it reads is void."""
    if VARIABLE in os.environ:
        if hasattr(module.profile, "_prepare_trace"):
            _step_aside(module.profile)
        return
    original = getattr(module.profile, "_prepare_trace", None)
    if original is None or "NVTX_INJECTION64_PATH" not in os.environ:
        return
    announced: list[int] = []

    @functools.wraps(original)
    def begin(profile, *args, **kwargs):
        try:
            activities = str(getattr(profile, "kineto_activities", "CUDA"))
            if "CUDA" in activities and not announced and rt.driver.version() < _SHARED:
                announced.append(1)
                places = rt.sites.places[rt.sites.context(sys._getframe(1))]
                file, line = places[0] if places else ("an unknown place", "?")
                if not rt.ready:
                    rt.begin(-1)
                rt.note(
                    text=f"torch.profiler began at {os.path.basename(file)}:{line} inside the program, but nsys alone "
                    "gets the GPU's activity: GPU times that the program prints from it are void (0, or missing). "
                    "Intervals of events and host timers here stay right. Time by events instead (a benchmark's own "
                    "event mode; DeepGEMM: DG_USE_NVIDIA_TOOLS=1). CUDA 13.3 with driver r610 or newer lets both record"
                )
        except Exception as error:
            failed(error)
        return original(profile, *args, **kwargs)

    module.profile._prepare_trace = begin


def wrap_proton(module: Any, rt: Runtime) -> None:
    """triton.profiler.profile: it brings a CUPTI of its own, which the driver refuses while another one
    records, with an error that names no reason."""
    original = module.start
    why = (
        "triton.profiler could not start, because the driver lets one profiler in at a time and this run is recorded: "
        "nsysalign run --recorder log leaves it to the program"
    )

    @functools.wraps(original)
    def start(*args, **kwargs):
        try:
            return original(*args, **kwargs)
        except RuntimeError as raised:
            try:
                if hasattr(raised, "add_note"):  # Python 3.11
                    raised.add_note(why)
                if not rt.ready:
                    rt.begin(-1)
                rt.note(text=why)
            except Exception as error:
                failed(error)
            raise

    remember(module, "start")
    module.start = start
