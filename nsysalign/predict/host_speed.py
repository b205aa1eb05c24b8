"""How fast the host was when an interval was measured, from how long the calls took that recorded
its events.

A run on a host that is half as fast measures launch-bound intervals that are twice as long,
profiled or not.  So comparing two runs, or predicting one from the other, is only as good as the
knowledge of the hosts' speeds.  Every event log has two calls per interval that are the same work
in every run, of the kind that decides a launch-bound interval: a little Python and a call into the
driver.  Where two runs without nsys differed by 17 and 35 % (two programs, an H100 with
neighbours), 13 and 7 % were left at equal length of these calls; by how long a loop of Python took
beside them, 20 and 15 %.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nsysalign.model import EventLog
from nsysalign.place.event_clock import log_ends

#: How many times longer such a call takes under nsys on an equally fast host: the median over 137
#: labels of ten pairs of runs on H200 and H100 machines whose time the host decided; measured by
#: itself, 1.78 on an H200 (docs/figures.md).
RECORD_UNDER_NSYS = 1.75
#: From this many times as long as usual on, the calls say that something disturbed the host
#: (docs/figures.md).
SLOW = 1.9
#: Where nothing was recorded in a span, what was recorded up to this long before or after counts.
_NEAR_NS = 500_000_000
#: From this many records on a run shows what is usual on its host.
_FEWEST = 16


class HostSpeed:
    """The record calls of one or many event logs that bound intervals.  `clocks`: log process ->
    map to the trace's clock; without it times are CLOCK_MONOTONIC."""

    def __init__(self, log: EventLog | None, clocks: Mapping[int, Any] | None = None) -> None:
        #: Process -> begins and ends of the calls, and the sum of the logarithms of their lengths
        #: up to each.
        self._known: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        self._usual: dict[int, float] = {}
        if log is None:
            return
        for process, rows in log.records[_bounding(log)].groupby("process"):
            if clocks is not None and process not in clocks:
                continue
            rows = rows.sort_values("t0_ns", kind="stable")
            begin, end = rows["t0_ns"].to_numpy(), rows["t1_ns"].to_numpy()
            took = (end - begin).astype(np.float64)
            if clocks is not None:
                begin, end = (clocks[process].to_trace(t) for t in (begin, end))
            self._known[int(process)] = begin, end, np.append(0.0, np.cumsum(np.log(took)))
            if len(took) >= _FEWEST:
                self._usual[int(process)] = float(np.percentile(took, 25))

    def near(self, process: np.ndarray, begin_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
        """float64: geometric mean of the lengths, ns, of these calls in the spans (also of one that
        is under way at an end), else of those shortly before and after; NaN if there are none."""
        out = np.full(len(process), np.nan)
        for number in np.unique(process):
            if number not in self._known:
                continue
            begin, end, total = self._known[number]
            mine = process == number
            found = np.full(int(mine.sum()), np.nan)
            for more in (0, _NEAR_NS):
                first = np.searchsorted(end, begin_ns[mine] - more)
                stop = np.searchsorted(begin, end_ns[mine] + more, side="right")
                use = np.isnan(found) & (stop > first)
                found[use] = np.exp((total[stop] - total[first])[use] / (stop - first)[use])
            out[mine] = found
        return out

    def usual(self, process: np.ndarray) -> np.ndarray:
        """float64: how long such a call usually takes in these processes, ns: the faster quarter (a
        host can be slowed down, but not sped up); NaN if unknown."""
        return np.array(
            [self._usual.get(int(number), np.nan) for number in process], dtype=np.float64
        )

    def slowdown(self, process: np.ndarray, begin_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
        """float64: how many times longer than usual the shorter one of an interval's calls took;
        NaN if unknown.  The longer one may only have found cold caches."""
        out = np.full(len(process), np.nan)
        for number, usual in self._usual.items():
            begin, end, total = self._known[number]
            mine = np.flatnonzero(process == number)
            first = np.searchsorted(end, begin_ns[mine])
            stop = np.searchsorted(begin, end_ns[mine], side="right")
            mine, first, stop = (v[stop > first] for v in (mine, first, stop))
            if len(mine):
                took = np.append(np.exp(np.diff(total)), np.inf)
                bounds = np.column_stack([first, stop]).ravel()
                out[mine] = np.minimum.reduceat(took, bounds)[::2] / usual
        return out


def _bounding(log: EventLog) -> np.ndarray:
    """Bool, per record: whether it is an end of a pair that the program compared.  Others may stand
    close together: their calls are shorter."""
    compared = ((log.elapsed["error"] == "") & ~log.elapsed["calibration"]).to_numpy(dtype=bool)
    out = np.zeros(len(log.records) + 1, dtype=bool)
    for ends in log_ends(log):
        out[ends[compared]] = True  # what the log does not have is -1, the place beyond the last
    return out[:-1] & (log.records["t1_ns"] > log.records["t0_ns"]).to_numpy()
