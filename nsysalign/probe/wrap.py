"""The wrappers around torch.cuda's events, streams and graphs: original call, two time stamps, one
row.

Installed right after `torch.cuda.streams` was imported; other libraries' events are in `foreign`.
The classes stay the same: no subclass, no new name, signatures kept.

The record wrapper finds the current stream itself and passes it on: torch would build a new Stream
object (3 us of record's own 4.5 us), while the wrapper keeps one per stream; that pays for the
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
from .interrupts import Held
from .offcpu import LOOK_NS
from .reference import RENEW_NS, References, nobody_is_timing
from .runtime import LATEST, NO_RECORD, Runtime, describe, handle_of
from .slots import (
    CAPTURED,
    CHUNK_BITS,
    CHUNK_SLOTS,
    ELAPSED,
    INTERVENED,
    NONE,
    RECORD,
    SLOT,
    SLOT_SIZE,
    WAIT,
)
from .tampering import keep, look

_MARK = "_nsysalign_wrapped"


def wrap_streams(module: Any, rt: Runtime) -> None:
    """Wrap the classes of torch.cuda.streams, once."""
    event = module.Event
    if hasattr(event.record, _MARK):
        return
    rt.references = References(event, rt)
    intervene = None
    if "NSYSALIGN_CONFIRM" in os.environ:
        intervene = _intervention(os.environ["NSYSALIGN_CONFIRM"], rt)
    if os.environ.get("NSYSALIGN_CALIBRATE", "1") == "0":
        rt.calibrate = rt.calibrated.add
    else:
        from .calibrate import Calibration

        rt.calibrate = Calibration(event, rt).offer
    current = _current_stream(module.torch)

    original, waited = event.wait, logged(event.wait, WAIT, rt, lambda args, _: args)

    @functools.wraps(original)
    def wait(self, stream=None):  # with its default, which programs can see
        return waited(self, module.torch.cuda.current_stream() if stream is None else stream)

    replace(event, "elapsed_time", elapsed_time(event.elapsed_time, rt))
    replace(event, "wait", wait)
    replace(event, "record", _record(event, current, rt, intervene))
    keep(event, "torch.cuda.Event", "record", "elapsed_time", "synchronize")
    _prepare_at_first_event(event, rt)


def _intervention(text: str, rt: Runtime) -> Any:
    """What a confirming re-run does before records, None (and a note) if that cannot be loaded."""
    import json

    try:
        spec = json.loads(text)
        module = type(sys)(f"{__package__}.intervene")
        module.__package__ = __package__
        type(__loader__)(module.__name__, spec["code"]).exec_module(module)
        change = module.Intervention(spec, rt, NONE)
    except Exception as error:
        failed(error)
        return None

    def before_record(*record: Any) -> int:
        try:
            return INTERVENED if change.before_record(*record) else 0
        except Exception as error:
            pass_on(error)
            change.failed(error)
            return 0

    return before_record


def wrap_graphs(module: Any, rt: Runtime) -> None:
    """Count the captures in progress: while there are none, no record needs to check whether it is
    captured."""
    graph = module.CUDAGraph
    if hasattr(graph.capture_begin, _MARK):
        return
    begin, end = graph.capture_begin, graph.capture_end

    @functools.wraps(begin)
    def capture_begin(self, *args, **kwargs):
        rt.captures += 1
        if rt.turns is not None:
            rt.turns.graph()
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

    replace(graph, "capture_begin", capture_begin)
    replace(graph, "capture_end", capture_end)


#: What wrappers took the place of: owner, name, what stood there, how it is set.
_places: list[tuple[Any, str, Any, Any]] = []
_ABSENT = object()


def remember(owner: Any, name: str, setattr: Any = setattr) -> None:
    """To be called before something of ours takes this place."""
    _places.append((owner, name, vars(owner).get(name, _ABSENT), setattr))


def put_back() -> None:
    """Everything as it was before the probe came (`nsysalign.recording`)."""
    while _places:
        owner, name, before, setattr = _places.pop()
        if before is not _ABSENT:
            setattr(owner, name, before)
        elif name in vars(owner):
            delattr(owner, name)


def replace(owner: Any, name: str, wrapper: Any, setattr: Any = setattr) -> None:
    """Put a wrapper in the place of a method or function.

    Dynamo is kept out of the wrapper, of its frame (a private API: best effort) and of where it is
    called: it would trace into it, warn of the clock and break the graph there instead of where
    torch's own method does."""
    setattr(wrapper, _MARK, True)
    wrapper._torchdynamo_disable = True
    try:
        from torch._C._dynamo import eval_frame as dynamo

        skip = dynamo._FrameExecStrategy(dynamo._FrameAction.SKIP, dynamo._FrameAction.SKIP)
        dynamo.set_code_exec_strategy(wrapper.__code__, skip)
    except Exception as error:
        pass_on(error)
    remember(owner, name, setattr)
    setattr(owner, name, wrapper)


def _record(plain: type, current: Any, rt: Runtime, intervene: Any) -> Any:
    clock, getframe, pack = time.perf_counter_ns, sys._getframe, SLOT.pack_into
    put, context_of, tls = object.__setattr__, rt.context_of, rt.tls
    ids, chunks = rt.driver.ids, rt.chunks
    calibrated, calibrate = rt.calibrated, rt.calibrate
    mask, bits, size = CHUNK_SLOTS - 1, CHUNK_BITS, SLOT_SIZE
    original, methods, compared = plain.record, vars(plain), vars(plain)["elapsed_time"]

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
                (handle, device), me = describe(stream), rt.me()
            if device not in calibrated:  # nor are there files before the first one is
                if not rt.ready:
                    rt.begin(device)
                calibrate(device)
            context = context_of(getframe(1))
            flags = CAPTURED if rt.captures and rt.driver.is_capturing(handle) else 0
            stream_id = ids.get(handle)
            if stream_id is None:
                stream_id = -1 if flags else rt.driver.stream_id(stream, handle)
            if clock() - me.looked_ns > LOOK_NS:
                _look(rt, device, me)
            if intervene is not None and not flags:
                flags = intervene(stream, device, context, me)
            seq, t1 = next(rt.count), 0
        except Exception as error:
            failed(error)
            return original(self, stream)
        try:
            t0 = clock()
            result = original(self, stream)
            t1 = clock()
            pack(
                chunks.get(seq >> bits) or rt.store.grow(seq >> bits), (seq & mask) * size, RECORD, flags, device, context,
                me.region, me.repetition, t0, t1, handle, stream_id, 0.0, me.tid, RECORD,
            )  # fmt: skip
            if type(self) is plain:
                self._nsysalign_record = (seq, device)
            else:  # a subclass may have a __setattr__ of its own
                put(self, LATEST, (seq, device))
            rt.last_record = me.last = seq
            rt.last_record_ns = t1
            if methods["elapsed_time"] is not compared:
                look()
        except BaseException as error:
            # unless the call itself failed, an older record must not be mistaken for this one
            if (t1 or not is_ours(error)) and rt.latest(self)[0] != seq:
                put(self, LATEST, NO_RECORD)
            if not t1:
                raise
            failed(error)
        return result

    return record


def _look(rt: Runtime, device: int, me: Any) -> None:
    """What is due before a record, no oftener than once in LOOK_NS on a thread."""
    me.looked_ns = time.perf_counter_ns()
    if rt.references is not None and me.looked_ns - rt.last_record_ns > RENEW_NS:
        rt.references.renew(device, wait=False)
    rt.off_cpu.look()


def _current_stream(torch: Any) -> Any:
    """`torch.cuda.current_stream` that remembers its Stream objects (they do not own the stream).

    Falls back to torch's own if torch is not initialised yet, lacks the private calls, or has been
    patched since."""
    known: dict = {}
    getters: list = []

    def current():
        getter = torch.cuda.current_stream
        if not getters or getter is not getters[2]:
            native = getattr(torch, "_C", None)
            names = ("_cuda_getCurrentStream", "_cuda_getDevice")
            if not getters and _initialised(torch) and all([hasattr(native, n) for n in names]):
                getters.extend((*(getattr(native, n) for n in names), getter))
            return getter()
        try:
            key = getters[0](getters[1]())
        except Exception as error:  # unknown versions of them: do not try again
            failed(error)
            getters[2] = None
            return getter()
        stream = known.get(key)
        if stream is None:
            stream = known[key] = getter()
        return stream

    return current


def _initialised(torch: Any) -> bool:
    return bool(getattr(getattr(torch, "cuda", None), "is_initialized", bool)())


def _prepare_at_first_event(event: Any, rt: Runtime) -> None:
    """Wrap `event.__new__` until it was called with enable_timing in an initialised process, and
    get ready then.

    A process's first record would pay for the log's files, the clock marks and the calibration: 3
    ms, in which a delay kernel that the program had placed before it ran out, so that the first
    repetition measured the host after all (seen on an H200).  Programs create their events before
    they enqueue what they time."""
    constructor = event.__dict__.get("__new__")
    original = getattr(constructor, "__func__", None)
    if original is None:  # an Event created in another way: the first record does the work
        return

    @functools.wraps(original)
    def create(cls, *args, **kwargs):
        torch = sys.modules.get("torch")
        timing = args[0] if args else kwargs.get("enable_timing")
        if timing and _initialised(torch):
            if event.__dict__.get("__new__") is ours:
                event.__new__ = constructor
            try:
                if not rt.aside and rt.last_record < 0 and not rt.captures:
                    with Held():
                        stream = torch.cuda.current_stream()
                        if not rt.ready:
                            rt.begin(stream.device_index)
                        if stream.device_index not in rt.calibrated and stream.query():
                            rt.calibrate(stream.device_index)
            except Exception as error:
                failed(error)
        return original(cls, *args, **kwargs)

    ours = staticmethod(create)
    remember(event, "__new__")
    event.__new__ = ours


def elapsed_time(original: Any, rt: Runtime, applies: Any = None) -> Any:
    """Around a method or function that compares a start event with an end event: milliseconds.
    `applies(event)`: whether to look at it at all."""
    clock, getframe = time.perf_counter_ns, sys._getframe

    @functools.wraps(original)
    def elapsed(self, end_event):
        if rt.aside or (applies is not None and not applies(self)):
            return original(self, end_event)
        t0 = clock()
        try:
            ms = original(self, end_event)
        except BaseException as error:
            if is_ours(error):  # otherwise a time limit of the user's, not the call's result
                times = {"t0": t0, "t1": clock(), "x": math.nan}
                _log_elapsed(rt, self, end_event, error, getframe(1), times)
            raise
        times = {"t0": t0, "t1": clock(), "x": ms}
        _log_elapsed(rt, self, end_event, None, getframe(1), times)
        return ms

    return elapsed


def _log_elapsed(
    rt: Runtime, start_event: Any, end_event: Any, error: Any, frame: Any, times: dict
) -> None:
    try:
        if not rt.ready:
            rt.begin(-1)
        start, end = rt.latest(start_event), rt.latest(end_event)
        seq, context = next(rt.count), rt.sites.context(frame)
        rt.write(ELAPSED, 0, seq, context=context, a=start[0], b=end[0], **times)
        if error is not None:
            return rt.failed_pair(seq, error)
        me = rt.me()
        me.compared = max(me.compared, start[0], end[0])
        # nothing was recorded since this pair ended: no timed pair is open, so there is time for
        # our own work
        quiet = rt.last_record in (start[0], end[0])
        if rt.references is not None and start[1] == end[1]:
            alone = quiet and nobody_is_timing(rt, me)
            rt.references.compared(start_event, end_event, (start[0], end[0]), seq, end[1], alone)
        if quiet:
            rt.housekeeping(seq)
            if rt.calibrate is not None:
                rt.calibrate(None)
    except Exception as failure:
        failed(failure)


def logged(original: Any, kind: int, rt: Runtime, parts: Any) -> Any:
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
            event, stream = parts((*args, *kwargs.values()), result) or (None, None)
            if event is not None:
                _log_call(rt, kind, event, stream, getframe(1), t0, t1)
        except Exception as error:
            failed(error)
        return result

    return call


def _log_call(
    rt: Runtime, kind: int, event: Any, stream: Any, frame: Any, t0: int, t1: int
) -> None:
    """Log a record or a wait, the slow way."""
    if kind == RECORD:  # should this fail, an older one must not be mistaken for it
        rt.foreign[handle_of(event)] = NO_RECORD
    handle, device = describe(stream)
    if device < 0:
        device = rt.driver.current_device()
    if not rt.ready:
        rt.begin(device)
    flags = CAPTURED if rt.captures and rt.driver.is_capturing(handle) else 0
    known = rt.driver.ids.get(handle, -1)
    stream_id = known if flags else rt.driver.stream_id(stream, handle)
    place = {"device": device, "a": handle, "b": stream_id}
    if kind == WAIT:
        place["x"] = float(rt.latest(event)[0])
    seq, context = next(rt.count), rt.sites.context(frame)
    rt.write(kind, flags, seq, context=context, t0=t0, t1=t1, **place)
    if kind == RECORD:
        rt.foreign[handle_of(event)] = (seq, device)
        rt.last_record = rt.me().last = seq
        rt.last_record_ns = t1
