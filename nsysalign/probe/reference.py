"""One clock for all events of a device: the distance of every compared event to a reference event
of our own.

An event carries the GPU's own timestamp.  `elapsed_time(reference, event)` reads it out, for any
completed event on any stream of the device, without waiting.  So after the program has compared a
pair, the distances of both events to a reference place them on one clock (docs/design.md, section
3).

    reference 0 ......... reference 1 (new after 100 ms) ........
         |---- start_ms ---->|            |-- start_ms -->
         |-------- ms ------------------->|   links consecutive references

A distance is a float32 of milliseconds: up to some 250 ms it names the GPU's tick, beyond it is
rounded (0.5 us at 8 s). References are therefore renewed, on a stream of our own and only while no
timed pair is open, behind a short kernel of our own: how long a record takes after a kernel is
known, so each reference also says where this clock lies on the trace's. If that was not possible
for a long time (events of many seconds compared at the end), the distance to the previously
compared pair is noted, too.
"""

from __future__ import annotations

import struct
import sys
from _thread import allocate_lock
from ctypes import py_object, pythonapi
from typing import Any

from . import failed
from . import rawtime as time
from .blame import pass_on
from .runtime import handle_of
from .slots import BETWEEN, DISTANCE, REFERENCE

#: After so long without a record a few microseconds cannot affect anything that is being timed.
RENEW_NS = 100_000_000
#: Beyond this float32 milliseconds may not name a tick of 32 ns (its spacing is 31 ns from 262 ms
#: on).
EXACT_MS = 250.0
#: The kernel before a reference outlasts the record's call; if both are not over by then, they are
#: not waited for.
_KERNEL_US, _PATIENCE_NS = 60, 250_000
_FAILURES = 20
#: A thread whose last record has not been compared for this long is not going to compare it.
_FORGOTTEN_NS = 1_000_000_000
_FLOATS, _INTEGERS = struct.Struct("<ff"), struct.Struct("<ii")


class _Device:
    """The references of one device, on a stream of our own.  `last`: (event, seq of its record) of
    the latest compared end, if the reference is far from it."""

    def __init__(self, stream: Any, stream_id: int) -> None:
        self.stream, self.stream_id = stream, stream_id
        self.event: Any = None
        self.number = -1
        self.pending: Any = None  # (event, seq of its record, t0, t1): not known to be complete yet
        self.recorded_ns = self.anchored_ns = 0  # the latest reference; the latest behind a kernel
        self.last: Any = None


class References:
    """One per process.  `event` is torch.cuda.Event; its original methods are saved before they are
    wrapped."""

    def __init__(self, event: type, rt: Any) -> None:
        self._event, self._rt = event, rt
        self._record, self._elapsed = event.record, event.elapsed_time
        #: Cycles of the SM's clock in a microsecond, per device whose delay kernel is loaded
        #: (`calibrate`).
        self.cycles: dict[int, int] = {}
        self._devices: dict[int, _Device] = {}
        self._failures = 0
        self._lock = allocate_lock()

    def renew(self, device: int, *, wait: bool) -> None:
        """Make a new reference if the last one is old (or there is none yet).  `wait`: behind a
        kernel, if the last of that kind is old, and what comes next is measured against it: 0.1 ms.
        The caller knows that no pair is open."""
        # a device that is not a number: a mock of the user's
        if self._rt.captures or type(device) is not int or device < 0:
            return
        if not self._lock.acquire(False):
            return
        try:
            state = self._devices.get(device) or self._begin(device)
            if state is None:
                return
            anchored = wait and device in self.cycles
            last = state.anchored_ns if anchored else state.recorded_ns
            if state.pending is None and time.perf_counter_ns() - last > RENEW_NS:
                self._renew(device, state, anchored)
            until = state.recorded_ns + _PATIENCE_NS
            while state.pending is not None and not self._adopt(device, state):
                if not wait or time.perf_counter_ns() > until:
                    break
        except Exception as error:
            pass_on(error)
            self._missed(error)
        finally:
            self._lock.release()

    def _begin(self, device: int) -> _Device | None:
        """With a stream of our own: torch hands out pool streams in turn, so taking one would change
        which the program gets.  None, and to be tried later, if the driver's current context, in
        which it is created, belongs to another device."""
        torch, driver = sys.modules["torch"], self._rt.driver
        if not torch.cuda.is_initialized() or torch.cuda.current_device() != device:
            return None
        handle = driver.new_stream()
        if handle is None:
            return None
        stream = torch.cuda.ExternalStream(handle, device=device)
        self._devices[device] = _Device(stream, driver.stream_id(stream, handle))
        return self._devices[device]

    def _renew(self, device: int, state: _Device, behind_kernel: bool) -> None:
        rt, marker = self._rt, None
        event = self._event(enable_timing=True)
        if behind_kernel:
            marker = rt.nvtx.start("nsysalign:calibration") if rt.nvtx else None
            self._record(event, state.stream)  # creates the CUDA event: not part of the one below
            torch = sys.modules["torch"]
            with torch.cuda.stream(state.stream):
                torch.cuda._sleep(_KERNEL_US * self.cycles[device])
        seq, t0, t1 = rt.own_record(self._record, event, state.stream, state.stream_id)
        state.pending, state.recorded_ns = (event, seq, t0, t1), t1
        if behind_kernel:
            state.anchored_ns = t1
        if marker is not None:
            rt.nvtx.end(marker)

    def _adopt(self, device: int, state: _Device) -> bool:
        """Make the pending reference the current one if it is complete."""
        event, number, t0, t1 = state.pending
        if not self._rt.driver.is_complete(event.cuda_event):
            return False
        ms = float("nan") if state.event is None else self._elapsed(state.event, event)
        place = {"device": device, "a": number, "b": state.number, "x": ms}
        self._rt.write(REFERENCE, 0, next(self._rt.count), t0=t0, t1=t1, **place)
        state.event, state.number, state.pending = event, number, None
        return True

    def compared(
        self, start: Any, end: Any, records: tuple, seq: int, device: int, alone: bool
    ) -> None:
        """Measure both events of a pair that the program has just compared.  `records`: seq of
        their records; `alone`: no pair is open."""
        if alone:
            self.renew(device, wait=True)
        rt, state = self._rt, self._devices.get(device)
        if state is None or rt.captures:
            return
        try:
            if state.pending is not None and self._lock.acquire(False):
                try:
                    self._adopt(device, state)
                finally:
                    self._lock.release()
            if state.event is None:
                return
            distance = self._measure(state, start, end, seq)
            last, state.last = state.last, None
            if abs(distance) > EXACT_MS and last is not None and rt.latest(last[0])[0] == last[1]:
                ms = self._between(last[0], start)
                rt.write(BETWEEN, 0, next(rt.count), a=last[1], b=records[0], x=ms)
            # no weak references: torch (2.11) frees events without clearing them, which causes a
            # segmentation fault
            if abs(distance) > EXACT_MS / 2 and type(end) is self._event:
                state.last = (end, records[1])
        except Exception as error:
            pass_on(error)
            self._missed(error)

    def _measure(self, state: _Device, start: Any, end: Any, seq: int) -> float:
        """Log both distances to the reference; returns that of the start in milliseconds."""
        first, second = self._between(state.event, start), self._between(state.event, end)
        bits = _INTEGERS.unpack(_FLOATS.pack(first, second))  # of CUDA's float32, unchanged
        place = {"t0": bits[0], "t1": bits[1], "a": seq, "b": state.number}
        self._rt.write(DISTANCE, 0, next(self._rt.count), **place)
        return first

    def _between(self, first: Any, second: Any) -> float:
        """Milliseconds from one event to another, which may be another library's."""
        if isinstance(second, self._event):
            return self._elapsed(first, second)
        return self._rt.driver.elapsed_ms(handle_of(first), handle_of(second))

    def _missed(self, error: Exception) -> None:
        """One pair without distances: another thread may have recorded an event again meanwhile.
        If this keeps happening, the rest of the probe works without references."""
        self._failures += 1
        if self._failures >= _FAILURES:
            self._rt.references = None
            self._devices.clear()
            failed(error)

    def calibrated(self, device: int, start: Any, end: Any, seq: int) -> None:
        """The same for a pair of the probe's own calibration."""
        state = self._devices.get(device)
        if state is not None and state.event is not None:
            self._measure(state, start, end, seq)

    def may_anchor(self, device: int, cycles_per_us: int) -> None:
        """The delay kernel is loaded: references can be recorded behind one, from RENEW_NS on,
        because calibration has just taken place."""
        self.cycles[device] = cycles_per_us
        if device in self._devices:
            self._devices[device].anchored_ns = time.perf_counter_ns()

    def after_fork(self) -> None:
        """A child cannot use CUDA if its parent did; otherwise it makes its own references.  Events of
        the parent are never freed there: torch would call CUDA for that, and end the child."""
        for state in self._devices.values():
            for kept in (state.event, *(held[0] for held in (state.pending, state.last) if held)):
                pythonapi.Py_IncRef(py_object(kept))
        self._devices.clear()
        self.cycles.clear()
        self._lock = allocate_lock()


def nobody_is_timing(rt: Any, me: Any) -> bool:
    """Whether no other thread has an uncompared record (one made long ago does not count)."""
    now = time.perf_counter_ns()
    for state in list(rt.states.values()):
        if state is me or state.last <= state.compared:
            continue
        if state.noticed != state.last:
            state.noticed, state.noticed_ns = state.last, now
        if now - state.noticed_ns < _FORGOTTEN_NS:
            return False
    return True
