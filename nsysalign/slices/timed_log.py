"""An event log whose lines have times on the trace's clock, so that stretches can be extracted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.model import EventLog
from nsysalign.place.event_clock import log_ends
from nsysalign.place.host_clock import ClockMap
from nsysalign.place.inferred import PAIRED
from nsysalign.place.solve import no_log
from nsysalign.place.timer_windows import Timers, read_timers
from nsysalign.trace.index import Excerpt, Index, RangeEnds


@dataclass(frozen=True)
class Far:
    """What is too long to be read at once: numbers of rows of `elapsed` and `hosts`, of pairs of readings, rowids of NVTX ranges,
    and pairs of records that no log names (PAIRED)."""

    pairs: np.ndarray
    hosts: np.ndarray
    timed: np.ndarray
    ranges: np.ndarray
    paired: pd.DataFrame

    def any(self) -> bool:
        return any(len(v) for v in (self.pairs, self.hosts, self.timed, self.ranges, self.paired))


_NONE = np.empty(0, np.int64)
NOTHING_FAR = Far(
    _NONE, _NONE, _NONE, _NONE, pd.DataFrame({c: _NONE for c in PAIRED}).astype({"unsure": bool})
)


@dataclass(frozen=True)
class Stretch:
    """The lines of a log that matter for some spans of time."""

    log: EventLog | None  # rows keep the numbers (index) that they have in the whole log
    timers: Timers
    # numbers of what begins in it: rows of `elapsed` and `hosts`, pairs of readings
    pairs: np.ndarray
    hosts: np.ndarray
    timed: np.ndarray
    far: Far = NOTHING_FAR


class TimedLog:
    """Times are trace ns, none before or after the trace (`whole`): every line is in some stretch of it.  `ranges`: given if
    intervals are taken from the trace, because no log says what was measured.  `far`: what stretches do not answer for."""

    def __init__(
        self,
        given: EventLog | None,
        processes: Mapping[int, int],
        clocks: Mapping[int, ClockMap],
        whole: tuple[int, int],
        ranges: RangeEnds | None = None,
    ) -> None:
        log = given if given is not None else no_log()
        self.given, self.log, self.ranges = given, log, ranges
        self.clocks, self.whole = clocks, whole
        self.far = NOTHING_FAR
        self._first, self._last = whole
        self._record = self._times(log.records, "t0_ns")
        self._wait = self._times(log.waits, "t0_ns")
        self._host, self._host_end = (self._times(log.hosts, c) for c in ("t0_ns", "t1_ns"))
        self._ends = log_ends(log)
        self.open_ns, self.close_ns = self._pair_times()
        self.timers = read_timers(log, processes, clocks)

    @property
    def pairs(self) -> np.ndarray:
        """Numbers of the pairs that the program itself compared, by their start."""
        e = self.log.elapsed
        own = ~e["calibration"].to_numpy(dtype=bool) & (e["error"] == "").to_numpy()
        mine = np.flatnonzero(own & (self._ends[0] >= 0) & (self._ends[1] >= 0))
        return mine[np.argsort(self.open_ns[mine], kind="stable")]

    def without(self, far: Far) -> TimedLog:
        """The same log, whose stretches do not answer for these."""
        out = copy(self)
        out.far = far
        return out

    def longest_until(self, begin: int, end: int) -> int:
        """Host time by which everything that begins in [begin, end) has ended, but for pairs of records that no log names, and
        what is far."""
        reach = (
            end if self.ranges is None else max(end, self.ranges.until(begin, end, self.far.ranges))
        )
        far = self.far
        for (opened, closed), left_out in zip(
            self._extents(), (far.pairs, far.hosts, far.timed), strict=True
        ):
            here = (opened >= begin) & (opened < end)
            here[left_out] = False
            reach = max(reach, int(closed[here].max(initial=reach)))
        return reach

    def longer_than(self, calls: int, index: Index) -> Far:
        """What lasts while more than this many calls are made."""

        def longer(opened: np.ndarray, closed: np.ndarray) -> np.ndarray:
            return np.flatnonzero(index.calls_at(closed) - index.calls_at(opened) > calls)

        pairs, hosts, timed = (longer(*ends) for ends in self._extents())
        ranges = self.ranges.longer(longer) if self.ranges is not None else _NONE
        return Far(pairs, hosts, timed, ranges, NOTHING_FAR.paired)

    def _extents(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """(begin, end) of pairs, host lines and pairs of readings, on the host."""
        t, candidates = self.timers.t, self.timers.candidates
        timed = (t[candidates.start], t[candidates.end])
        return [(self.open_ns, self.close_ns), (self._host, self._host_end), timed]

    def spans(self, far: Far) -> np.ndarray:
        """(begin, end) of all that is far, on the host: int64 array (its number, 2)."""
        found = [
            np.stack([opened[which], closed[which]], axis=1)
            for (opened, closed), which in zip(
                self._extents(), (far.pairs, far.hosts, far.timed), strict=True
            )
        ]
        if self.ranges is not None:
            found.append(self.ranges.spans(far.ranges))
        found.append(far.paired[["open_ns", "close_ns"]].to_numpy(dtype=np.int64))
        return np.concatenate(found)

    def stretch(self, excerpt: Excerpt, begin: int, end: int) -> Stretch:
        """The lines inside the excerpt's spans; what begins from `begin` to before `end` is the stretch's own."""
        log = self.log

        def inside(times: np.ndarray) -> np.ndarray:
            return excerpt.touches(times, times)

        records = inside(self._record)
        first, last = self._ends
        both = (first >= 0) & (last >= 0) & _at(records, first) & _at(records, last)
        pairs = (self.open_ns >= begin) & (self.open_ns < end)
        own_hosts = (self._host >= begin) & (self._host < end)
        pairs[self.far.pairs] = False
        own_hosts[self.far.hosts] = False
        hosts = own_hosts | inside(self._host)
        part = replace(
            log,
            records=log.records[records],
            waits=log.waits[inside(self._wait)],
            elapsed=log.elapsed[both | pairs],
            hosts=log.hosts[hosts],
            clock_readings=frames.empty(frames.CLOCK_READINGS),
            references=frames.empty(
                frames.REFERENCES
            ),  # what they say is known of the whole log: TraceContext.event_clock
            distances=frames.empty(frames.DISTANCES),
            notes=(),
        )
        t, candidates = self.timers.t, self.timers.candidates
        own = (t >= begin) & (t < end)
        timers = self.timers.within(own | inside(t), own)
        mine = own[candidates.start]
        mine[self.far.timed] = False
        timed = candidates.number[mine]
        return Stretch(
            part if self.given is not None else None,
            timers,
            np.flatnonzero(pairs),
            np.flatnonzero(own_hosts),
            timed,
            self.far,
        )

    def some(self, excerpt: Excerpt, pairs: Sequence[int]) -> Stretch:
        """The lines inside the excerpt's spans, and these pairs of readings (numbers of `timers.candidates`)."""
        found = self.stretch(excerpt, 0, 0)
        starts = np.zeros(len(self.timers.t), dtype=bool)
        starts[self.timers.candidates.start[list(pairs)]] = True
        return replace(found, timers=self.timers.within(starts, np.zeros_like(starts)))

    def _times(self, table: pd.DataFrame, column: str) -> np.ndarray:
        out = np.full(len(table), self._first, dtype=np.int64)
        process, t = table["process"].to_numpy(), table[column].to_numpy()
        for number, clock in self.clocks.items():
            here = process == number
            out[here] = np.clip(clock.to_trace(t[here]), self._first, self._last)
        return out

    def _pair_times(self) -> tuple[np.ndarray, np.ndarray]:
        """When each pair's first and last record were made; one that is not known is taken to be where the other is."""
        first, last = self._ends
        times = np.append(self._record, self._first)
        start = np.where(first >= 0, times[first], np.where(last >= 0, times[last], self._first))
        end = np.where(last >= 0, times[last], start)
        return np.minimum(start, end), np.maximum(start, end)


def _at(mask: np.ndarray, index: np.ndarray) -> np.ndarray:
    return np.append(mask, False)[index]
