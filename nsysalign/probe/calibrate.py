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
from .slots import CALIBRATION, ELAPSED

_REPEAT = 10
#: Kernels, by their microseconds, and records (0): queued behind a kernel; on an idle stream; begun
#: on an idle one and ended on a busy one.
_SEQUENCES = ((100, 0, 2, 0, 2, 0, 0), (0, 0), (0, 50, 0))


class Calibration:
    """`event` is torch.cuda.Event with its original methods, saved before they are wrapped."""

    def __init__(self, event: type, rt: Any) -> None:
        self._event, self._rt = event, rt
        self._record, self._elapsed = event.record, event.elapsed_time
        self._waiting: set[int] = set()

    def offer(self, device: int | None) -> None:
        """Calibrate now if this is a good moment, before the first record of a device or (None)
        after a comparison.  Never raises."""
        rt = self._rt
        try:
            torch = sys.modules["torch"]
            if device is not None:
                rt.calibrated.add(device)
                self._waiting.add(device)
                if rt.last_record >= 0:  # a second device may appear inside an open pair
                    return
            if not self._waiting or rt.captures or not hasattr(torch.cuda, "_sleep"):
                return
            current = torch.cuda.current_stream()
            if current.device_index in self._waiting and current.query():
                self._waiting.discard(current.device_index)
                self._run(torch, current)
        except Exception as error:
            self._waiting.clear()
            failed(error)

    def _run(self, torch: Any, stream: Any) -> None:
        rt, sleep, device = self._rt, torch.cuda._sleep, stream.device_index
        began = time.perf_counter_ns()
        marker = rt.nvtx.start("nsysalign:calibration") if rt.nvtx else None
        if rt.references is not None:  # what follows is measured relative to it
            rt.references.renew(device, wait=True)
        # _sleep counts clock cycles; kHz / 1000 is cycles per microsecond
        rate = getattr(torch.cuda.get_device_properties(device), "clock_rate", 0)
        cycles = max(500, int(rate) // 1000) if rate else 2000
        events = [self._event(enable_timing=True) for _ in range(4)]
        for event in events:  # torch creates the CUDA event at its first record: not measured
            self._record(event, stream)
        sleep(2 * cycles)
        stream.synchronize()
        stream_id = rt.driver.stream_id(stream, stream.cuda_stream)
        for sequence in (sequence for sequence in _SEQUENCES for _ in range(_REPEAT)):
            seqs: list[int] = []
            for us in sequence:
                if us:
                    sleep(us * cycles)
                else:
                    event = events[len(seqs)]
                    seqs.append(rt.own_record(self._record, event, stream, stream_id)[0])
            stream.synchronize()
            for number in range(len(seqs) - 1):
                self._compare(*events[number : number + 2], *seqs[number : number + 2], device)
        if rt.references is not None:
            rt.references.may_anchor(device, cycles)
        if marker is not None:
            rt.nvtx.end(marker)
        ended = time.perf_counter_ns()
        rt.note(calibration_ns=ended - began, t0_ns=began, t1_ns=ended, device=device)

    def _compare(self, start: Any, end: Any, a: int, b: int, device: int) -> None:
        rt, t0 = self._rt, time.perf_counter_ns()
        ms = self._elapsed(start, end)
        t1, seq = time.perf_counter_ns(), next(rt.count)
        rt.write(ELAPSED, CALIBRATION, seq, t0=t0, t1=t1, a=a, b=b, x=ms)
        if rt.references is not None:
            rt.references.calibrated(device, start, end, seq)
