"""How long records take: where a record (a call of `event.record()`) lies on the GPU, by what lies around it.

    stream busy   KKKKKKKK|-- busy --R-- ahead --|KKKK     behind the previous operation's end, before
                                                           the next one's start
    stream idle   [record call]-- idle --R                 a function of the call's duration

One table (`_TABLE`) serves all traces.  Only one number in it comes from the trace: the spacing of
consecutive records on a busy stream (H100 and H200s: 1.25, 2.54 and 4.99 us), with which latencies grow.
With event tracing CUPTI stamps every event a second time, 1.27 us after the event's own stamp: records
are twice as far apart, and the place of a record is that second stamp, the one that nsys shows.  On 12
recordings, one machine or workload left out at a time, the table placed half of 5,105 pairs within
0.15 us, 95 % within 1.1 us and 99.9 % within their bars.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nsysalign.intervals import FAR, Columns
from nsysalign.place.bounded import CLOCK_RATE, Surroundings


class _Usual(NamedTuple):
    """A parameter's usual value, and how far it is from that in a trace (standard deviation)."""

    mean: float
    deviation: float


#: Parameters (ns, but for the two per ns), in the order of the regression's columns.  The deviation is wide where a trace
#: usually determines the value, and narrow where it cannot.  The means of idle_ns and busy_ns follow from the
#: spacing (`assumed`): the 0 here is never used.
_TABLE = {
    "idle_ns": _Usual(0.0, 800.0),  # call's start to the record, for a call of 1.5 us
    "idle_short": _Usual(0.85, 0.3),  # per ns of call duration, up to _KNEE_NS
    "idle_long": _Usual(0.7, 0.25),  # per ns of call duration beyond
    "busy_ns": _Usual(0.0, 600.0),  # end of the previous kernel to the record
    "copy_ns": _Usual(445.0, 60.0),  # more after a copy or memset
    "graph_ns": _Usual(400.0, 200.0),  # more after a CUDA graph
    "node_ns": _Usual(
        0.0, 1_500.0
    ),  # more after a graph traced node by node: it may end with events
    "spacing_ns": _Usual(1_295.0, 600.0),  # consecutive records behind busy streams
    "ahead_ns": _Usual(1_540.0, 60.0),  # record to the start of a queued kernel
}
PARAMETERS = tuple(_TABLE)
#: The same with CUPTI's event tracing, under which records take longer.
_TRACED = {
    "idle_long": _Usual(0.37, 0.1),
    "busy_ns": _Usual(0.0, 1_800.0),
    "spacing_ns": _Usual(2_545.0, 1_800.0),
}
#: idle_ns and busy_ns follow from the spacing: idle = 2.3 us + 0.7 spacing, busy = spacing - 0.38
#: us.
_IDLE_NS, _IDLE_PER_SPACING, _BUSY_LESS_NS, _TIED_NS = 2_300.0, 0.7, 380.0, 60.0
#: Consecutive records further apart than this were traced: 1.3 us without event tracing, 2.5 or 5
#: with it.  What is no spacing of records is outside the limits.
_TRACED_FROM_NS, _SPACINGS_NS = 1_900, (600, 8_000)
#: The gaps between these percentiles lie within _CROWD_NS where a record alone explains them; what
#: they say about the spacing is good to _SHOWN_NS.  Fewer than _ENOUGH say nothing.
_SHORTEST, _CROWD_NS, _SHOWN_NS, _ENOUGH = (10, 25), 300, 150.0, 3
_KNEE_NS, _USUAL_CALL_NS = 3_000, 1_500
#: Calls on an idle stream that last longer say nothing more about when the record was submitted.
_SLOW_NS = 30_000
#: Half-widths that hold the record of a trace never seen: in general, and what comes on top per ns
#: of a slow call, while a copy to or from the host runs on another stream (records are late by
#: nothing or by 6 us, rarely more), behind a graph traced node by node, and where tracing ran and
#: no spacing shows.
BAR_NS = 2_500
_SLOW_BAR, _COPYING_BAR_NS, _NODE_BAR_NS, _UNSHOWN_BAR_NS = 0.7, 5_500, 2_500, 2_500
#: Classes of observations: how far they scatter, and on which side of the expected place late ones
#: lie.  A stamp of CUPTI's equals the event's to the tick, or is late.
BUSY, AHEAD, IDLE, STAMP = range(4)
SCATTER_NS = np.array([120.0, 120.0, 250.0, 20.0])
LATE = np.array([1, -1, 1, -1])
#: Slow (cold) calls on an idle stream: their scatter grows by this share of the time beyond
#: _KNEE_NS.
_SLOW_SPREAD = 0.25
#: For a record to be "busy" for certain, the previous operation must end this long after the
#: record's call; to be "ahead" for certain, the next call must be over this long before the record.
_MARGIN_NS, _APART_NS = 1_500, 700
#: Records that are looked at together: each fills rows of matrices.
_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class Observations(Columns):
    """What is known about the places of single records: arrays with a value per observation.  First there is one
    observation of every record, by what came before it (class IDLE or BUSY); then one of each record with a
    kernel queued behind it (AHEAD); then one of each record with a time stamp (STAMP).  An observation puts its
    record at `known_ns + x @ parameters`."""

    record: np.ndarray  # position of the record
    class_: np.ndarray
    known_ns: np.ndarray  # a time that the trace has
    x: np.ndarray  # (observations, PARAMETERS): coefficients of the latency
    scale_ns: np.ndarray  # how far observations of this kind scatter
    certain: np.ndarray  # bool: no other class could explain the record's place


class Likely(NamedTuple):
    """Where what lies around each record makes it likely (ns)."""

    place: np.ndarray  # by what came before it
    bar: np.ndarray  # the half-width around that place that holds the true one
    by_kernel: np.ndarray  # by the kernel that was queued behind it; FAR if none was


def no_later_than(place: np.ndarray, latest: np.ndarray) -> np.ndarray:
    """Return places (ns) moved halfway to the latest possible ones where they lie behind these.

    place: by what came before a record
    latest: by the kernel that was queued behind it: a kernel starts late rather than early, so the record cannot be later

    Both follow from usual latencies, and where they contradict each other it is not known which of them is wrong.
    Place 1,000 and latest 600: 800.  Place 1,000 and latest 1,400: 1,000.
    """
    halfway = place - (place - latest) // 2
    return np.where(latest < place, halfway, place)


@dataclass(frozen=True)
class LatencyModel:
    """How long records take, as values of the parameters of `_TABLE`."""

    vector: np.ndarray  # the values, in the order of PARAMETERS
    covariance: np.ndarray
    unshown: bool = False  # records may have been traced, and no spacing shows how long that takes

    def likely(self, surroundings: Surroundings) -> Likely:
        """Return where every record is likely to lie, and how uncertain that is (ns).

        surroundings: what lies around each record on its stream

        It works on _AT_ONCE records at a time, because their observations fill large matrices.
        """
        batches = []
        for first in range(0, max(len(surroundings.call_start), 1), _AT_ONCE):
            batches.append(self._likely_at_once(surroundings.take(slice(first, first + _AT_ONCE))))
        return Likely(
            place=np.concatenate([batch.place for batch in batches]),
            bar=np.concatenate([batch.bar for batch in batches]),
            by_kernel=np.concatenate([batch.by_kernel for batch in batches]),
        )

    def _likely_at_once(self, around: Surroundings) -> Likely:
        """Return where each of these records is likely to lie (`likely`)."""
        count = len(around.call_start)
        seen = self.observe(around)  # the first `count` of them are by what came before each record
        place = seen.known_ns + np.rint(seen.x @ self.vector).astype(np.int64)
        by_kernel = np.full(count, FAR)
        has_kernel_behind = seen.class_ == AHEAD
        by_kernel[seen.record[has_kernel_behind]] = place[has_kernel_behind]
        return Likely(
            place=place[:count],
            bar=self._error_bar(around, seen.class_[:count]),
            by_kernel=by_kernel,
        )

    def _error_bar(self, around: Surroundings, class_: np.ndarray) -> np.ndarray:
        """Return, for each record, the half-width (ns) around its likeliest place that holds the true one.

        class_: per record, BUSY or IDLE
        """
        # by how much the call is slower than calls usually are
        slow = np.clip(around.call_end - around.call_start - _KNEE_NS, 0, _SLOW_NS)
        bar = BAR_NS + (class_ == IDLE) * _SLOW_BAR * slow + around.copying * _COPYING_BAR_NS
        bar += (class_ == BUSY) * around.previous_is_node * _NODE_BAR_NS
        bar += self.unshown * _UNSHOWN_BAR_NS
        # how long a wait or host function before the record holds it up is not known: the record may be anywhere
        return np.where(around.wait_before, float(FAR), bar)

    def observe(self, around: Surroundings) -> Observations:
        """Return what the surroundings of records (calls of `event.record()`) say about where they lie on the trace's clock:
        up to three observations of each record.  An observation puts its record at `known_ns + x @ parameters`: a time that
        the trace has, plus a latency that follows from the parameters of this model.

        by what came before  of every record: it lies a latency behind the start of its own call (class IDLE), or
                             a latency behind the end of the operation before it (BUSY), whichever is later
        by the kernel        of a record behind which a kernel was queued for certain: it lies a latency before the
                             start of that kernel (AHEAD)
        by the time stamp    of a record that CUPTI stamped: it lies at the stamp (STAMP)

        A call from 1,000 to 2,500 ns on an idle stream, with idle_ns 3,200: IDLE, known_ns 1,000, and x has 1 for
        idle_ns and 0 for idle_short, as 1.5 us is the usual length of a call.  The record lies at 4,200 ns.
        """
        by_call = around.call_start + self._latency(_after_call(around))
        by_work = around.previous_end + self._latency(_after_work(around))
        is_busy = (around.previous_end > 0) & (by_work > by_call)
        # whether it is IDLE or BUSY is certain if the other explanation puts the record far from there
        is_clear = (around.previous_end == 0) | (np.abs(by_work - by_call) > _APART_NS)
        certain = is_clear & ~around.copying & ~around.wait_before
        likely = np.where(is_busy, by_work, by_call)
        observations = [
            _by_what_came_before(around, is_busy, certain),
            _by_kernel_behind(around, likely),
            _by_stamp(around),
        ]
        return Observations.joined(observations)

    def _latency(self, columns: Mapping[str, Any]) -> np.ndarray:
        """Return the latency (ns) of each record: the sum of these columns, each times its parameter."""
        value = dict(zip(PARAMETERS, self.vector, strict=True))
        return sum(value[name] * column for name, column in columns.items())


def _by_what_came_before(
    around: Surroundings, is_busy: np.ndarray, certain: np.ndarray
) -> Observations:
    """Return an observation of every record: BUSY (it lies a latency behind the end of the operation before it) or IDLE
    (a latency behind the start of its own call).

    is_busy: per record, whether it is BUSY
    certain: per record, whether that is certain
    """
    count = len(around.call_start)
    # a row per record, a column per parameter: how often each parameter is in the record's latency
    x_busy = _coefficients(count, _after_work(around))
    x_idle = _coefficients(count, _after_call(around))
    class_ = np.where(is_busy, BUSY, IDLE)
    # in a slow call it is not known when the record was submitted; behind an operation that does not matter
    slow_ns = np.maximum(around.call_end - around.call_start - _KNEE_NS, 0)
    by_slow_call_ns = np.where(is_busy, 0.0, _SLOW_SPREAD * slow_ns)
    return Observations(
        record=np.arange(count),
        class_=class_,
        known_ns=np.where(is_busy, around.previous_end, around.call_start),
        x=np.where(is_busy[:, None], x_busy, x_idle),
        scale_ns=SCATTER_NS[class_] + by_slow_call_ns,
        certain=certain,
    )


def _by_kernel_behind(around: Surroundings, likely: np.ndarray) -> Observations:
    """Return an observation of each record behind which a kernel was queued for certain: AHEAD.  The kernel then starts
    right after the record, a known time later.

    likely: per record, where it lies by what came before it (ns)
    """
    has_kernel_next = around.next_is_kernel & (around.next_start < FAR)
    # the kernel was issued clearly before the record executed: it waited for nothing but the record
    was_queued = around.next_issued + _MARGIN_NS < likely
    # a wait in between, or a copy of another stream, may have held up the kernel
    is_held_up = around.copying | around.wait_after
    record = np.flatnonzero(has_kernel_next & was_queued & ~is_held_up)
    # it lies before the kernel's start by `ahead_ns`, and by a spacing for each record in between
    latency = {"ahead_ns": -1.0, "spacing_ns": -around.records_after[record]}
    return Observations(
        record=record,
        class_=np.full(len(record), AHEAD),
        known_ns=around.next_start[record],
        x=_coefficients(len(record), latency),
        scale_ns=np.full(len(record), SCATTER_NS[AHEAD]),
        certain=np.ones(len(record), dtype=bool),
    )


def _by_stamp(around: Surroundings) -> Observations:
    """Return an observation of each record that CUPTI stamped: STAMP."""
    record = np.flatnonzero(around.stamp > 0)
    return Observations(
        record=record,
        class_=np.full(len(record), STAMP),
        known_ns=around.stamp[record],
        x=_coefficients(len(record), {}),
        scale_ns=np.full(len(record), SCATTER_NS[STAMP]),
        certain=np.ones(len(record), dtype=bool),
    )


def _coefficients(count: int, columns: Mapping[str, Any]) -> np.ndarray:
    """Return a matrix with a row for each of `count` observations and a column for each of PARAMETERS; a parameter
    that `columns` does not have is 0."""
    x = np.zeros((count, len(PARAMETERS)))
    for name, column in columns.items():
        x[:, PARAMETERS.index(name)] = column
    return x


def _after_call(around: Surroundings) -> dict[str, Any]:
    """Return parameter -> its coefficient in the time from the start of a record's call to the record, on an
    idle stream."""
    took = around.call_end - around.call_start
    return {
        "idle_ns": 1.0,
        "idle_short": np.minimum(took, _KNEE_NS) - _USUAL_CALL_NS,
        "idle_long": np.clip(took - _KNEE_NS, 0, _SLOW_NS),
    }


def _after_work(around: Surroundings) -> dict[str, Any]:
    """Return parameter -> its coefficient in the time from the end of the previous operation to the record, on
    a busy stream."""
    return {
        "busy_ns": 1.0,
        "copy_ns": around.previous_is_copy,
        "graph_ns": around.previous_is_graph,
        "node_ns": around.previous_is_node,
        "spacing_ns": around.records_before,
    }


def spacing_of(around: Surroundings) -> float:
    """Return the spacing (ns) of consecutive records on busy streams; 0 if it does not show.

    It follows from gaps between two queued kernels with a single record between them, because latencies depend on the
    spacing (`_TABLE`).  If the shortest of these gaps are nearly equal, nothing but the record makes them.

    kernel AAAA|-- busy_ns --R-- ahead_ns --|BBBB    gap = busy_ns + ahead_ns, and busy_ns = spacing - 380 ns
    """
    # the record and the kernel behind it were queued before the operation in front of them ended
    was_queued = around.previous_end > around.call_end + 2 * _MARGIN_NS
    next_was_queued = around.next_is_kernel & (
        around.next_issued + _MARGIN_NS < around.previous_end
    )
    has_next = around.next_start < FAR
    is_single = (around.records_before == 0) & (around.records_after == 0)
    is_held_up = around.wait_before | around.wait_after | around.previous_is_copy
    by_record_alone = was_queued & next_was_queued & has_next & is_single & ~is_held_up
    gaps = (around.next_start - around.previous_end)[by_record_alone]
    if len(gaps) < _ENOUGH:
        return 0.0
    shortest, less_short = np.percentile(gaps, _SHORTEST)
    busy_ns = float(shortest) - _TABLE["ahead_ns"].mean
    spacing = busy_ns + _BUSY_LESS_NS
    least, greatest = _SPACINGS_NS
    is_plausible = least <= spacing <= greatest
    are_alike = less_short - shortest <= _CROWD_NS
    return spacing if are_alike and is_plausible else 0.0


def assumed(tracing: str, around: Surroundings, spacing: float = 0.0) -> LatencyModel:
    """Return how long the records of a trace are assumed to take before any fit: the values of the parameters of
    `_TABLE`, and how uncertain they are.

    tracing: whether CUPTI traced events: "on", "off" or "unknown"
    around: the surroundings of the records
    spacing: the spacing of consecutive records (ns) if an event clock tells it; 0: it does not

    The values are those of `_TABLE`; but if the spacing shows in the trace, that is taken.  What follows from the
    spacing, busy_ns and idle_ns, is computed from it.
    """
    spacing_error = _TIED_NS
    if not spacing:
        spacing = spacing_of(around)  # 0: it does not show
        spacing_error = _SHOWN_NS
    # a spacing that does not show may be the long one of traced events, whose deviations are wider
    looks_traced = not spacing or spacing > _TRACED_FROM_NS
    traced = tracing == "on" or (tracing == "unknown" and looks_traced)
    table = _TABLE | (_TRACED if traced else {})
    mean = {parameter: usual.mean for parameter, usual in table.items()}
    deviation = {parameter: usual.deviation for parameter, usual in table.items()}
    if spacing:
        mean["spacing_ns"] = spacing
        deviation["spacing_ns"] = spacing_error
        # it differs from the spacing by a constant; idle_ns follows more loosely and keeps its deviation
        deviation["busy_ns"] = spacing_error
    mean["busy_ns"] = mean["spacing_ns"] - _BUSY_LESS_NS
    mean["idle_ns"] = _IDLE_NS + _IDLE_PER_SPACING * mean["spacing_ns"]
    return LatencyModel(
        vector=np.array([mean[parameter] for parameter in PARAMETERS]),
        covariance=_covariance(deviation),
        unshown=traced and not spacing,
    )


def _covariance(deviation: Mapping[str, float]) -> np.ndarray:
    """Return the covariance of the parameters, a square matrix in the order of PARAMETERS.

    deviation: parameter -> its standard deviation (ns)

    They are independent, but for busy_ns and spacing_ns: these differ by a constant that is known to _TIED_NS.
    """
    precision = np.diag([deviation[parameter] ** -2 for parameter in PARAMETERS])
    difference = np.zeros(len(PARAMETERS))
    difference[PARAMETERS.index("busy_ns")] = 1.0
    difference[PARAMETERS.index("spacing_ns")] = -1.0
    precision += np.outer(difference, difference) / _TIED_NS**2
    return np.linalg.inv(precision)


def place_pairs(pairs: pd.DataFrame, likely: Likely) -> tuple[np.ndarray, np.ndarray]:
    """Return (likeliest start, error bar) of each pair of records that the program compared, in ns.  The start follows from
    the start record's place, and also from the end record's: it lies `elapsed_ns` before that.

    pairs: with columns start and end (positions of records) and elapsed_ns
    likely: where the records are likely

    The record with the smaller error bar decides.  If the bars are equal, the record decides that puts the
    pair later, because GPUs are late, never early.  If a kernel that was queued behind a record began too early
    for that, the start lies halfway between this place and the latest that the kernel allows (`no_later_than`).
    """
    start = pairs["start"].to_numpy()
    end = pairs["end"].to_numpy()
    elapsed = pairs["elapsed_ns"].to_numpy()
    start_bar, end_bar = likely.bar[start], likely.bar[end]
    by_start = likely.place[start]
    by_end = likely.place[end] - elapsed
    begin = np.select(
        [start_bar < end_bar, end_bar < start_bar],
        [by_start, by_end],
        np.maximum(by_start, by_end),
    )
    latest = np.minimum(likely.by_kernel[start], likely.by_kernel[end] - elapsed)
    # a start that was moved keeps its bar: with it 99.9 % of all pairs lie within theirs
    error_bar = np.minimum(start_bar, end_bar) + CLOCK_RATE * elapsed
    return no_later_than(begin, latest), np.ceil(error_bar)
