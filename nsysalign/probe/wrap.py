"""The wrappers around torch.cuda.Event and torch.cuda.Stream.

`Stream.record_event`, `wait_event` and `wait_stream` end in `Event.record` and `Event.wait`
(torch/cuda/streams.py), so calls are logged in those two, once and with tight timestamps; the Stream methods only catch events
that are not a torch.cuda.Event (the C type torch.Event cannot be wrapped).  The classes stay the same: no subclass, no new
name, signatures kept.

What the record wrapper costs is measured by `scripts/bench_probe.py`.  It finds the current stream itself and passes it on:
torch would build a new Stream object (3 us of record's own 4.5 us), while the wrapper keeps one per stream; that pays for the
logging, and the clock readings come closer to the CUDA call.
"""

from __future__ import annotations

import functools
import math
import os
import sys
from typing import Any

from . import failed
from . import rawtime as time
from .blame import is_ours, pass_on
from .calibrate import prepare_at_first_event
from .reference import RENEW_NS, References, nobody_is_timing
from .runtime import Runtime
from .slots import (
    CALIBRATION,
    CAPTURED,
    CHUNK_BITS,
    CHUNK_SLOTS,
    ELAPSED,
    RECORD,
    SLOT,
    SLOT_SIZE,
    WAIT,
)

_MARK = "_nsysalign_wrapped"
_LATEST = "_nsysalign_record"  # on an event: (seq, context, tid, device) of its latest record
_NO_RECORD = (-1, 0, 0, -1)
_REFERENCES = os.environ.get("NSYSALIGN_REFERENCES", "1") != "0"


def wrap_streams(module: Any, rt: Runtime) -> None:
    """Wrap the classes of torch.cuda.streams, once."""
    event, stream = module.Event, module.Stream
    if hasattr(event.record, _MARK):
        return
    rt.latest = _latest
    if _REFERENCES:
        rt.references = References(event, rt)
    calibrate = _calibration(event, rt)
    _replace(event, "elapsed_time", _elapsed_time(event.elapsed_time, rt, calibrate))
    _replace(event, "wait", _wait(event.wait, module, rt))
    _replace(stream, "wait_event", _foreign(stream.wait_event, event, WAIT, rt))
    _replace(stream, "record_event", _foreign(stream.record_event, event, RECORD, rt))
    current = _current_stream(module.torch)
    _replace(
        event, "record", _record(event.record, event, current, rt, calibrate, _intervention(rt))
    )
    prepare_at_first_event(event, rt, calibrate)


def wrap_graphs(module: Any, rt: Runtime) -> None:
    """Count the captures in progress: while there are none, no record needs to check whether it is captured."""
    graph = module.CUDAGraph
    if hasattr(graph.capture_begin, _MARK):
        return
    begin, end = graph.capture_begin, graph.capture_end

    @functools.wraps(begin)
    def capture_begin(self, *args, **kwargs):
        rt.captures += 1
        try:
            return begin(self, *args, **kwargs)
        except BaseException:
            rt.captures = max(0, rt.captures - 1)
            raise

    @functools.wraps(end)
    def capture_end(self, *args, **kwargs):
        try:
            return end(self, *args, **kwargs)
        finally:
            rt.captures = max(0, rt.captures - 1)

    _replace(graph, "capture_begin", capture_begin)
    _replace(graph, "capture_end", capture_end)


def _replace(owner: type, name: str, wrapper: Any) -> None:
    setattr(wrapper, _MARK, True)
    _skip_dynamo(wrapper)
    setattr(owner, name, wrapper)


def _skip_dynamo(function: Any) -> None:
    """Keep torch.compile out of the wrapper, its frame (a private API: best effort) and where it is called: dynamo
    would trace into it, warn of the clock and break the graph there instead of where torch's own method does."""
    function._torchdynamo_disable = True
    try:
        from torch._C._dynamo.eval_frame import (
            _FrameAction,
            _FrameExecStrategy,
            set_code_exec_strategy,
        )

        set_code_exec_strategy(
            function.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
        )
    except Exception as error:
        pass_on(error)


def _record(
    original: Any, plain: type, current: Any, rt: Runtime, calibrate: Any, intervene: Any
) -> Any:
    clock, getframe, pack, put = (
        time.perf_counter_ns,
        sys._getframe,
        SLOT.pack_into,
        object.__setattr__,
    )
    context_of, tls, ids, chunks = rt.sites.context, rt.tls, rt.driver.ids, rt.chunks
    starts, ends, calibrated = rt.starts, rt.ends, rt.calibrated
    mask, bits, size = CHUNK_SLOTS - 1, CHUNK_BITS, SLOT_SIZE

    @functools.wraps(original)
    def record(self, stream=None):
        if rt.aside:
            return original(self, stream)
        stream = current() if stream is None else stream
        try:
            try:
                handle, device, me = stream.cuda_stream, stream.device_index, tls.state
            except AttributeError as error:  # no Stream of torch's, or the first record of a thread
                pass_on(error)
                (handle, device), me = _describe(stream), rt.me()
            if not rt.ready or device not in calibrated:
                _get_ready(rt, calibrate, stream, device, handle)
            context = context_of(getframe(1))
            flags = CAPTURED if rt.captures and rt.driver.is_capturing(handle) else 0
            stream_id = ids.get(handle)
            if stream_id is None:
                stream_id = -1 if flags else rt.driver.stream_id(stream, handle)
            if rt.references is not None and clock() - rt.last_record_ns > RENEW_NS:
                rt.references.renew(device, wait=False)
            if intervene is not None and not flags:
                flags = intervene(stream, device, context, me)
            begun, t1 = None, 0
            if context in starts and not me.stack:
                begun = [(key, rt.nvtx.start(text, 0)) for key, text in starts[context]]
            seq = next(rt.count)
        except Exception as error:
            failed(error)
            return original(self, stream)
        try:
            t0 = clock()
            result = original(self, stream)
            t1 = clock()
            pack(
                chunks.get(seq >> bits) or rt.chunk(seq), (seq & mask) * size, RECORD, flags, device, context,
                me.region, me.repetition, t0, t1, handle, stream_id, 0.0, me.tid, 0, 0, RECORD,
            )  # fmt: skip
            if type(self) is plain:
                self._nsysalign_record = (seq, context, me.tid, device)
            else:  # a subclass may have a __setattr__ of its own
                put(self, _LATEST, (seq, context, me.tid, device))
            rt.last_record = me.last = seq
            rt.last_record_ns = t1
            if begun is not None or context in ends:
                rt.turn_ranges(me.open, context, begun)
        except BaseException as error:
            _cut_short(rt, self, seq, begun, me, not t1 and is_ours(error))
            if not t1:
                raise
            failed(error)
        return result

    return record


def _get_ready(rt: Runtime, calibrate: Any, stream: Any, device: int, handle: int) -> None:
    """Before the first record of a process, and until its device is calibrated."""
    if not rt.ready:
        rt.begin(device)
    if device not in rt.calibrated:
        calibrate(stream, device, handle, first=True)


def _cut_short(
    rt: Runtime, event: Any, seq: int, begun: list | None, me: Any, refused: bool
) -> None:
    """An exception arrived before the record `seq` was in the log; `refused`: it was never made, the call itself failed.
    Otherwise the event's latest record may be missing from the log, and an older one must not be mistaken for it.
    """
    for key, range_id in begun or ():
        if me.open.get(key) != range_id:
            rt.nvtx.end(range_id)
    if not refused and _latest(event)[0] != seq:
        object.__setattr__(event, _LATEST, _NO_RECORD)


def _intervention(rt: Runtime) -> Any:
    """The change that a confirming re-run makes before the start records of one label; None in every other run."""
    if "NSYSALIGN_CONFIRM" not in os.environ:
        return None
    from .intervene import armed

    rt.intervene = armed(os.environ["NSYSALIGN_CONFIRM"], rt)
    return rt.intervene and rt.intervene.before_record


def _current_stream(torch: Any) -> Any:
    """`torch.cuda.current_stream` that remembers its Stream objects (they do not own the stream).

    Falls back to torch's own if torch is not initialised yet, lacks the private calls, or has been patched since.
    """
    known: dict = {}
    getters: list = []

    def current():
        own = torch.cuda.current_stream
        if not getters or own is not getters[2]:
            if not getters and _initialised(torch):
                getters.extend((torch._C._cuda_getCurrentStream, torch._C._cuda_getDevice, own))
            return own()
        try:
            key = getters[0](getters[1]())
        except Exception as error:  # unknown versions of them: do not try again
            failed(error)
            getters[2] = None
            return own()
        stream = known.get(key)
        if stream is None:
            stream = known[key] = own()
        return stream

    return current


def _initialised(torch: Any) -> bool:
    native = getattr(torch, "_C", None)
    return (
        hasattr(native, "_cuda_getCurrentStream")
        and hasattr(native, "_cuda_getDevice")
        and bool(getattr(torch.cuda, "is_initialized", bool)())
    )


def _elapsed_time(original: Any, rt: Runtime, calibrate: Any) -> Any:
    clock, getframe = time.perf_counter_ns, sys._getframe

    @functools.wraps(original)
    def elapsed_time(self, end_event):
        if rt.aside:
            return original(self, end_event)
        t0 = clock()
        try:
            ms = original(self, end_event)
        except BaseException as error:
            if is_ours(error):  # otherwise a time limit of the user's, not the call's result
                _log_elapsed(rt, self, end_event, math.nan, error, t0, clock(), getframe(1))
            raise
        _log_elapsed(rt, self, end_event, ms, None, t0, clock(), getframe(1), calibrate)
        return ms

    return elapsed_time


def _log_elapsed(
    rt: Runtime,
    start_event: Any,
    end_event: Any,
    ms: float,
    error: BaseException | None,
    t0: int,
    t1: int,
    frame: Any,
    calibrate: Any = None,
) -> None:
    try:
        if not rt.ready:
            rt.begin(-1)
        start, end = _latest(start_event), _latest(end_event)
        number = 0 if error is None else rt.error_number(error)
        seq = next(rt.count)
        rt.write(
            ELAPSED,
            0,
            seq,
            context=rt.sites.context(frame),
            t0=t0,
            t1=t1,
            a=start[0],
            b=end[0],
            x=ms,
            error=number,
        )
        if error is not None:
            return
        me = rt.me()
        me.compared = max(me.compared, start[0], end[0])
        # nothing was recorded since this pair ended: no timed pair is open, so there is time for our own work
        quiet = end[0] == rt.last_record or start[0] == rt.last_record
        if rt.references is not None and start[3] == end[3]:
            alone = quiet and nobody_is_timing(rt, me)
            rt.references.compared(start_event, end_event, (start[0], end[0]), seq, end[3], alone)
        if (
            (start[1], end[1]) not in rt.pairs
            and start[2] == end[2]
            and start[0] >= 0
            and end[0] >= 0
        ):
            rt.learn_pair(start[1], end[1])
        if quiet:
            rt.housekeeping(seq)
            calibrate(None, None, None, first=False)
    except Exception as failure:
        failed(failure)


def _latest(event: Any) -> tuple[int, int, int, int]:
    """Its latest record, bypassing any __getattr__ of the user's."""
    try:
        return object.__getattribute__(event, _LATEST)
    except AttributeError as error:
        pass_on(error)
        return _NO_RECORD


def _wait(original: Any, module: Any, rt: Runtime) -> Any:
    clock = time.perf_counter_ns  # the user may replace the clock

    @functools.wraps(original)
    def wait(self, stream=None):
        if rt.aside:
            return original(self, stream)
        if stream is None:
            stream = module.torch.cuda.current_stream()
        t0 = clock()
        result = original(self, stream)
        _log_call(rt, WAIT, self, stream, t0, clock(), sys._getframe(1))
        return result

    return wait


def _foreign(original: Any, event_class: type, kind: int, rt: Runtime) -> Any:
    """Around Stream.record_event and wait_event: log only what does not reach the wrappers of
    torch.cuda.Event.
    """
    clock = time.perf_counter_ns
    if kind == RECORD:

        @functools.wraps(original)
        def record_event(self, event=None):
            if rt.aside or event is None or isinstance(event, event_class):
                return original(self, event)
            t0 = clock()
            result = original(self, event)
            _log_call(rt, RECORD, event, self, t0, clock(), sys._getframe(1))
            return result

        return record_event

    @functools.wraps(original)
    def wait_event(self, event):
        if rt.aside or isinstance(event, event_class):
            return original(self, event)
        t0 = clock()
        result = original(self, event)
        _log_call(rt, WAIT, event, self, t0, clock(), sys._getframe(1))
        return result

    return wait_event


def _log_call(
    rt: Runtime, kind: int, event: Any, stream: Any, t0: int, t1: int, frame: Any
) -> None:
    try:
        handle, device = _describe(stream)
        if not rt.ready:
            rt.begin(device)
        flags = CAPTURED if rt.captures and rt.driver.is_capturing(handle) else 0
        stream_id = rt.driver.ids.get(handle)
        if stream_id is None:
            stream_id = -1 if flags else rt.driver.stream_id(stream, handle)
        latest = _latest(event)
        rt.write(
            kind,
            flags,
            next(rt.count),
            device=device,
            context=rt.sites.context(frame),
            t0=t0,
            t1=t1,
            a=handle,
            b=stream_id,
            x=float(latest[0]),
        )
    except Exception as error:
        failed(error)


def _describe(stream: Any) -> tuple[int, int]:
    """Handle and device of any stream-like object, -1 if unknown."""
    handle = getattr(stream, "cuda_stream", None)
    if handle is None:
        handle = getattr(stream, "native_handle", None)
    device = getattr(stream, "device_index", None)
    return (handle if isinstance(handle, int) else -1), (device if isinstance(device, int) else -1)


def _calibration(event: type, rt: Runtime) -> Any:
    """`calibrate(stream, device, handle, first)`, or a stub that does nothing if it is turned off."""
    if os.environ.get("NSYSALIGN_CALIBRATE", "1") == "0":

        def off(stream, device, handle, first):
            if device is not None:
                rt.calibrated.add(device)

        return off
    from .calibrate import Calibration

    return Calibration(event, rt, CALIBRATION).offer
