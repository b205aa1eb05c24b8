"""How fast the host was when an interval was measured, from the probe's meter (`collect.probe.meter`).

A run on a host that is half as fast measures launch-bound intervals that are twice as long, profiled or not.  So comparing two
runs, or predicting one from the other, is only as good as the knowledge of the hosts' speeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nsysalign.model import EventLog

#: Readings within this time count as one: the probe takes many in a row when it calibrates.
_STRETCH_NS = 50_000_000
#: A reading up to this long before or after an interval still counts for it.
_NEAR_NS = 500_000_000
#: From this many stretches on a run shows what is usual on its host.
_FEWEST = 5
_LONGEST_NS = 1e9  # weight of the header's values
_RANGE = (5, 95)  # percentiles: the range that another run may meet


class Speeds(NamedTuple):
    """Per interval, NaN if unknown: how many times longer than usual the meter's work took near it, and the least and greatest
    time it took elsewhere, as shares of that."""

    slowdown: np.ndarray
    least: np.ndarray
    most: np.ndarray


class HostSpeed:
    """The readings of one or many event logs.  `clocks`: log process -> map to the trace's clock; without it times are
    CLOCK_MONOTONIC."""

    def __init__(self, log: EventLog | None, clocks: Mapping[int, Any] | None = None) -> None:
        self._known: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # process -> (times, ns), one per stretch
        self._headers = log.headers if log is not None else ()
        self._work = -1
        if log is None or not len(log.meters):
            return
        self._work = newest = int(log.meters["work"].max())
        for process, rows in log.meters[log.meters["work"] == newest].groupby("process"):
            t = rows["t0_ns"].to_numpy()
            if clocks is not None:
                if process not in clocks:
                    continue
                t = clocks[process].to_trace(t)
            took = pd.Series((rows["t1_ns"] - rows["t0_ns"]).to_numpy(), dtype="float64")
            found = took.groupby(t // _STRETCH_NS).median()
            times = pd.Series(t).groupby(t // _STRETCH_NS).median()
            self._known[int(process)] = times.to_numpy(np.int64), found.to_numpy()

    def near(self, process: np.ndarray, begin_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
        """float64: median time, ns, that the meter's work took during these spans or shortly before and after; NaN
        unknown."""
        out = np.full(len(process), np.nan)
        for number in np.unique(process):
            if number not in self._known:
                continue
            t, took = self._known[number]
            mine = np.flatnonzero(process == number)
            first = np.searchsorted(t, begin_ns[mine] - _NEAR_NS)
            stop = np.searchsorted(t, end_ns[mine] + _NEAR_NS, side="right")
            out[mine] = [np.median(took[a:z]) if a < z else np.nan for a, z in zip(first, stop, strict=True)]
        return out

    def speeds(self, process: np.ndarray, begin_ns: np.ndarray, end_ns: np.ndarray) -> Speeds:
        """The speeds for these spans, from the whole run and from earlier measurements on this machine (`nsysalign doctor
        --calibrate`)."""
        here = self.near(process, begin_ns, end_ns)
        slowdown, least, most = (np.full(len(here), np.nan) for _ in range(3))
        for number in np.unique(process):
            mine = process == number
            usual, low, high = self._usual(int(number))
            slowdown[mine] = here[mine] / usual
            least[mine], most[mine] = low / here[mine], high / here[mine]
        return Speeds(slowdown, np.minimum(least, 1.0), np.maximum(most, 1.0))

    def _usual(self, process: int) -> tuple[float, float, float]:
        """(usual, least, most) ns of the work in this process's run and on its machine; NaN unknown.  Usual is the faster
        quarter: a host can be slowed down, but not sped up."""
        found = []
        _, took = self._known.get(process, (None, np.empty(0)))
        if len(took) >= _FEWEST:
            found.append((float(np.percentile(took, 25)), *np.percentile(took, _RANGE).tolist()))
        header = self._headers[process] if 0 <= process < len(self._headers) else {}
        comparable = header.get("meter_work") == self._work and header.get("meter_python") == header.get(
            "python"
        )
        before = [header.get(k) for k in ("meter_usual_ns", "meter_least_ns", "meter_most_ns")]
        numbers = [float(v) for v in before if isinstance(v, int | float) and 0 < v < _LONGEST_NS]
        if comparable and len(numbers) == len(before):
            found.append((numbers[0], numbers[1], numbers[2]))
        if not found:
            return (np.nan,) * 3
        usual, least, most = zip(*found, strict=True)
        return min(usual), min(least), max(most)
