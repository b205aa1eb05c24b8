"""Getting ready when the first timing event is made, not when it is recorded.

A process's first record used to pay for the log's files, the clock marks and the calibration: 3 ms, in which a delay kernel
that the program had placed before it ran out, so that the first repetition measured the host after all (seen on an H200).
Programs create their events before they enqueue what they time, so this is the better moment; if CUDA is not initialised yet,
or the stream is busy, the work is left to the first record.

The wrapper around `Event.__new__` removes itself once its work is done.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from . import failed


def prepare_at_first_event(event: Any, rt: Any, calibrate: Any) -> None:
    """Wrap `event.__new__` until it was called with enable_timing in an initialised process."""
    own = event.__dict__.get("__new__")
    original = getattr(own, "__func__", None)
    if original is None:  # an Event created in another way: the first record does the work
        return

    @functools.wraps(original)
    def create(cls, *args, **kwargs):
        if (args[0] if args else kwargs.get("enable_timing")) and _initialised():
            if event.__dict__.get("__new__") is ours:
                event.__new__ = own
            try:
                if not rt.aside and rt.last_record < 0:
                    _prepare(rt, calibrate)
            except Exception as error:
                failed(error)
        return original(cls, *args, **kwargs)

    ours = staticmethod(create)
    event.__new__ = ours


def _initialised() -> bool:
    torch = sys.modules.get("torch")
    return bool(getattr(getattr(torch, "cuda", None), "is_initialized", bool)())


def _prepare(rt: Any, calibrate: Any) -> None:
    if rt.captures:
        return
    stream = sys.modules["torch"].cuda.current_stream()
    device = stream.device_index
    if not rt.ready:
        rt.begin(device)
    if device not in rt.calibrated and stream.query():
        calibrate(stream, device, stream.cuda_stream, first=True)
