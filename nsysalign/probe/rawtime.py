"""The clocks of `time`, saved before `timers` wraps them: the ones the probe itself reads.

Use it as a stand-in for the module: `from . import rawtime as time`.
"""

from __future__ import annotations

import time as _time

perf_counter, perf_counter_ns = _time.perf_counter, _time.perf_counter_ns
monotonic, monotonic_ns = _time.monotonic, _time.monotonic_ns
time, time_ns = _time.time, _time.time_ns


def __getattr__(name: str) -> object:
    return getattr(_time, name)
