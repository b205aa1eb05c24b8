"""The operations of each stream in the order in which they were issued.

    issued (host)    [op A]     [op B]        [op C]
    runs (stream)       AAAAAAAA   BBBB          CC

The order is that of the starts of the outermost API calls of the same process, not of correlation
ids.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from nsysalign.intervals import group, index_type, rising
from nsysalign.model import Trace

FAR = np.int64(1) << 62  # no such time


class LaneOperations:
    """The operations of one lane, ordered by issue; rarely needed columns are computed on first
    use."""

    def __init__(
        self,
        position: np.ndarray,
        calls: tuple[np.ndarray, np.ndarray, np.ndarray],
        start: np.ndarray,
        end: np.ndarray,
    ) -> None:
        self.position = position  # in Trace.operations
        self._calls = calls  # the issuing call of every operation; start and end of every call
        self.start_ns = start
        self.end_ns = end

    @cached_property
    def issue_ns(self) -> np.ndarray:
        """Start of the issuing call."""
        call, start, _ = self._calls
        return start[call[self.position]]

    @cached_property
    def issued_ns(self) -> np.ndarray:
        """Its end."""
        call, _, end = self._calls
        return end[call[self.position]]

    @cached_property
    def reach_ns(self) -> np.ndarray:
        """Prefix maximum of end_ns."""
        return self.end_ns if rising(self.end_ns) else np.maximum.accumulate(self.end_ns)

    @cached_property
    def reach_from(self) -> np.ndarray:
        """Which operation reached that far first."""
        if bool((self.end_ns[1:] > self.end_ns[:-1]).all()):
            return np.arange(len(self.end_ns), dtype=index_type(len(self.end_ns)))
        reach = self.reach_ns
        new = np.concatenate([[True], reach[1:] > reach[:-1]])
        return np.maximum.accumulate(np.where(new, np.arange(len(reach)), 0))

    @cached_property
    def first_ns(self) -> np.ndarray:
        """Suffix minimum of start_ns."""
        return (
            self.start_ns
            if rising(self.start_ns)
            else np.minimum.accumulate(self.start_ns[::-1])[::-1]
        )

    @cached_property
    def _by_issued(self) -> tuple[np.ndarray, np.ndarray]:
        if rising(self.issued_ns):
            return self.issued_ns, self.reach_ns
        order = np.argsort(self.issued_ns, kind="stable")
        return self.issued_ns[order], np.maximum.accumulate(self.end_ns[order])

    @property
    def by_issued_ns(self) -> np.ndarray:
        """issued_ns sorted."""
        return self._by_issued[0]

    @property
    def by_issued_reach(self) -> np.ndarray:
        """The prefix maximum of end_ns in the order of by_issued_ns."""
        return self._by_issued[1]


def lane_operations(trace: Trace, operation_lane: np.ndarray) -> dict[int, LaneOperations]:
    """Per lane, the operations with a known issuing call.  Those without a call cannot be ordered
    and are left out."""
    operations, calls = trace.operations, trace.calls
    call = operations["call"].to_numpy()
    known: np.ndarray = np.arange(len(call), dtype=index_type(len(call)))
    if (call < 0).any():
        known = known[call >= 0]
    call_start, call_end = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
    start, end = operations["start_ns"].to_numpy(), operations["end_ns"].to_numpy()
    out = {}
    for lane, position in group(
        operation_lane[known], known
    ).items():  # by start, as operations are
        issue = call_start[call[position]]
        if not rising(issue):
            order = np.argsort(issue, kind="stable")
            position, issue = position[order], issue[order]
        whole = len(position) == len(start) and rising(position)
        out[lane] = LaneOperations(
            position,
            (call, call_start, call_end),
            start if whole else start[position],
            end if whole else end[position],
        )
    return out


def busy_lanes(lanes: int, operation_lane: np.ndarray) -> np.ndarray:
    """The lanes, of so many, on which work ran."""
    return np.bincount(operation_lane[operation_lane >= 0], minlength=lanes) > 0
