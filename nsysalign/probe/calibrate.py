"""A few milliseconds of known work, so that the trace itself tells how long a record takes on this
machine.

Here it is known by construction whether the GPU is idle or busy around a record; the analysis
derives the two record latencies from these sequences (docs/design.md, section 3).  It runs once per
device, at a moment when nothing of the user's is in flight on the stream and no timed pair is open:
before the process's first record if the stream is idle then, else after an `elapsed_time`. It never
runs inside a capture, and a busy stream is never waited for (a stream that waits for another rank
could wait for ever).
"""

from __future__ import annotations

import sys
from typing import Any

from . import failed
from . import rawtime as time
from .slots import ELAPSED, RECORD

_REPEAT = 10
_LONG_US, _TINY_US, _MIDDLE_US = 100, 2, 50


class Calibration:
    """`event` is torch.cuda.Event with its original methods, saved before they are wrapped."""

    def __init__(self, event: type, rt: Any, flag: int) -> None:
        self._event, self._rt, self._flag = event, rt, flag
        self._record, self._elapsed = event.record, event.elapsed_time
        self._waiting: dict[int, Any] = {}
        self._cycles = 2000

    def offer(self, stream: Any, device: int | None, first: bool) -> None:
        """Calibrate now if this is a good moment.  Never raises."""
        rt = self._rt
        try:
            torch = sys.modules["torch"]
            if first:
                # a second device may appear inside an open pair of the first one: then it has to
                # wait
                rt.calibrated.add(device)
                self._waiting[device] = stream
                if rt.last_record >= 0:
                    return
            elif not self._waiting:
                return
            if rt.captures or not hasattr(torch.cuda, "_sleep"):
                return
            current = torch.cuda.current_stream()
            if current.device_index in self._waiting and current.query():
                del self._waiting[current.device_index]
                self._run(torch, current)
        except Exception as error:
            self._waiting.clear()
            failed(error)

    def _run(self, torch: Any, stream: Any) -> None:
        rt, sleep = self._rt, torch.cuda._sleep
        began = time.perf_counter_ns()
        marker = rt.nvtx.start(rt.text("nsysalign:calibration"), 0) if rt.nvtx else None
        if rt.references is not None:
            rt.references.renew(
                stream.device_index, wait=True
            )  # what follows is measured relative to it
        self._cycles = self._cycles_per_us(torch, stream)
        tight = [self._event(enable_timing=True) for _ in range(4)]
        pair = [self._event(enable_timing=True) for _ in range(2)]
        for event in (
            tight + pair
        ):  # torch creates the CUDA event at its first record: not part of the measurement
            self._record(event, stream)
        sleep(_TINY_US * self._cycles)
        stream.synchronize()
        for _ in range(_REPEAT):  # queued: kernel, record, kernel, record, kernel, record, record
            sleep(_LONG_US * self._cycles)
            slots = [self._log(tight[0], stream)]
            sleep(_TINY_US * self._cycles)
            slots.append(self._log(tight[1], stream))
            sleep(_TINY_US * self._cycles)
            slots.append(self._log(tight[2], stream))
            slots.append(self._log(tight[3], stream))
            stream.synchronize()
            self._compare(tight, slots, stream.device_index)
        for _ in range(_REPEAT):  # idle: an empty pair
            slots = [self._log(pair[0], stream), self._log(pair[1], stream)]
            stream.synchronize()
            self._compare(pair, slots, stream.device_index)
        for _ in range(_REPEAT):  # idle start, busy end
            slots = [self._log(pair[0], stream)]
            sleep(_MIDDLE_US * self._cycles)
            slots.append(self._log(pair[1], stream))
            stream.synchronize()
            self._compare(pair, slots, stream.device_index)
        if rt.references is not None:
            rt.references.may_anchor(stream.device_index, self._cycles)
        if marker is not None:
            rt.nvtx.end(marker)
        ended = time.perf_counter_ns()
        rt.note(calibration_ns=ended - began, t0_ns=began, t1_ns=ended, device=stream.device_index)

    def _cycles_per_us(self, torch: Any, stream: Any) -> int:
        """torch.cuda._sleep counts clock cycles; kHz / 1000 is cycles per microsecond."""
        rate = getattr(torch.cuda.get_device_properties(stream.device_index), "clock_rate", 0)
        return max(500, int(rate) // 1000) if rate else self._cycles

    def _log(self, event: Any, stream: Any) -> int:
        rt = self._rt
        seq = next(rt.count)
        handle = stream.cuda_stream
        stream_id = rt.driver.ids.get(handle)
        if stream_id is None:
            stream_id = rt.driver.stream_id(stream, handle)
        t0 = time.perf_counter_ns()
        self._record(event, stream)
        t1 = time.perf_counter_ns()
        rt.write(
            RECORD, self._flag, seq, device=stream.device_index, t0=t0, t1=t1, a=handle, b=stream_id
        )
        return seq

    def _compare(self, events: list, slots: list[int], device: int) -> None:
        rt = self._rt
        for (start, end), (a, b) in zip(_neighbours(events), _neighbours(slots), strict=True):
            t0 = time.perf_counter_ns()
            ms = self._elapsed(start, end)
            t1 = time.perf_counter_ns()
            seq = next(rt.count)
            rt.write(ELAPSED, self._flag, seq, t0=t0, t1=t1, a=a, b=b, x=ms)
            if rt.references is not None:
                rt.references.calibrated(device, start, end, seq)


def _neighbours(items: list) -> list[tuple]:
    return list(zip(items, items[1:]))  # noqa: B905, RUF007  one shorter by design
