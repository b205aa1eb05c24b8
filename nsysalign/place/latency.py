"""How long records take: a model of where a record lies, given its surroundings.

    stream busy   KKKKKKKK|-- busy --R-- ahead --|KKKK        behind the previous operation's end, before the next start
    stream idle   [record call]-- idle --R                    a function of the call's duration

Each observation is linear in the parameters (`Observations`), and the records whose distances are known tell most of them
(fit.py).  No trace can reveal one common shift (all records later, `ahead` smaller).  Two anchors fix it: `ahead`, which is
1.5 us with and without event tracing, and `busy`, which is 0.39 us less than the spacing of consecutive records, whatever that
spacing is (H100, H200s: 1.28, 2.54 and 4.99 us).  They were measured by switching event tracing on and off in turn, which does
not affect the event clock, and by reading the driver's memory that holds the events' stamps (docs/accuracy.md).

With tracing CUPTI stamps every event a second time, 1.27 us after the event's own stamp: records are twice as far apart, and the
place of a record is that second stamp, the one that nsys shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from nsysalign.issue import FAR
from nsysalign.place.surroundings import Surroundings

#: Parameters, in the order of the regression's columns: prior mean and standard deviation (ns), wide where a trace usually
#: determines the value, narrow where it cannot.
_PRIOR = {
    "idle_ns": (3_900.0, 800.0),  # record's place after its call began, for a call of 1.5 us
    "idle_short": (0.85, 0.3),  # per ns of call duration, up to _KNEE_NS
    "idle_long": (0.7, 0.25),  # per ns of call duration beyond
    "busy_ns": (925.0, 600.0),  # end of the previous kernel to the record
    "copy_ns": (445.0, 60.0),  # more after a copy or memset
    "graph_ns": (400.0, 200.0),  # more after a CUDA graph
    "node_ns": (
        0.0,
        1_500.0,
    ),  # more after a graph traced node by node: it may end with events of its own
    "spacing_ns": (1_295.0, 600.0),  # consecutive records behind busy streams
    "ahead_ns": (1_540.0, 60.0),  # record to the start of a queued kernel
}
PARAMETERS = tuple(_PRIOR)
_SPACING = PARAMETERS.index("spacing_ns")
#: The same with CUPTI's event tracing, under which records take longer.
_TRACED = {
    "idle_ns": (5_100.0, 800.0), "idle_long": (0.37, 0.1), "busy_ns": (2_175.0, 1_800.0), "spacing_ns": (2_545.0, 1_800.0)
}  # fmt: skip
#: Consecutive records further apart than this were traced: 1.3 us without event tracing, 2.5 or 5 with it.
_TRACED_FROM_NS = 1_900
#: A calibrated latency outside these limits is a mistake.
_PLAUSIBLE_NS = {
    "idle_ns": (1_000, 20_000), "busy_ns": (300, 8_000), "spacing_ns": (600, 8_000), "ahead_ns": (1_000, 3_000)
}  # fmt: skip
#: The percentile of the spacings that counts, a short one: if queues are deep, half of them are 0.3 us longer.
_PROMPT = 25
#: busy_ns is spacing_ns minus this, however long a record takes.
_BUSY_LESS_NS, _TIED_NS = 380.0, 60.0
_KNEE_NS, _USUAL_CALL_NS = 3_000, 1_500
#: Calls on an idle stream that last longer say nothing more about when the record was submitted: the rest happens afterwards.
_SLOW_NS = 30_000
#: Where nothing in the trace shows how long records take.
_UNSURE_NS = 850.0
#: The tightest gaps between two kernels with one record in between are due to the record alone, if they crowd: those between the
#: percentiles _TIGHTEST and _PROMPT lie within _BY_GAPS_NS, the uncertainty of what they say, up to _USUAL_NS in this trace.
_TIGHTEST, _USUAL_NS, _BY_GAPS_NS = 10, 150.0, 300.0
#: Classes of observations: how far they scatter, and on which side of the expected place late ones lie.  A stamp of CUPTI's equals
#: the event's to the tick, or is late.
CLASSES = ("busy", "ahead", "idle", "stamp")
SCATTER_NS = np.array([120.0, 120.0, 250.0, 20.0])
LATE = np.array([1, -1, 1, -1])
#: On their late side observations have a heavy tail (Student's t: outliers soon lose their weight), on the other they keep it
#: (Huber).
_STUDENT, _HUBER = 1.0, 4.0
#: How much more records scatter next to kernels of other streams (the weight of what they say falls with it), and how late they
#: may be while a copy to or from the host runs on another stream: by nothing or by 6 us (H100 and H200).
_CONTENDED_NS, _COPYING_NS = 1_200.0, 2_000.0
#: Slow (cold) calls on an idle stream: their place is less certain by this share of the time beyond _KNEE_NS.
_SLOW_SPREAD = 0.25
#: With event tracing CUPTI stamps an event by work of its own, pushed in the same call after the event's: in slow calls on an
#: idle stream this much later, by the duration of the call (medians of an H100 and an H200: 0.6 us in calls of 5.5 us, 3.5 us
#: in calls of 13 us).
_LAG_FROM_NS, _LAG_TO_NS, _LAG_SHARE = 4_000, 14_000, 0.5
#: For a record to be "busy" for certain, the previous operation must end this long after the record's call; to be "ahead" for
#: certain, the next call must be over this long before the record.
_MARGIN_NS, _APART_NS, _QUEUED_NS = 1_500, 700, 500
_ENOUGH = 3


def weights(z: np.ndarray, late: np.ndarray) -> np.ndarray:
    """Weights of observations in a robust fit.  `z`: how far their records lie behind where they expect them, in units of
    their scatter; `late`: on which side the tail is, 1 or -1."""
    on_time = z * late < 0
    return np.where(
        on_time,
        np.minimum(1.0, _HUBER / np.maximum(np.abs(z), 1e-9)),
        (_STUDENT + 1) / (_STUDENT + z**2),
    )


@dataclass(frozen=True)
class Observations:
    """What single records say about their own places: arrays of equal length.

    `record`; `class_`: position in CLASSES; the place is `known_ns + x @ parameters`, within `scale_ns`, if nothing holds the
    record up for a time of the order of `doubt_ns`; `certain`: no other class could explain it.
    """

    record: np.ndarray
    class_: np.ndarray
    known_ns: np.ndarray
    x: np.ndarray
    scale_ns: np.ndarray
    doubt_ns: np.ndarray
    certain: np.ndarray

    @property
    def counts(self) -> dict[str, int]:
        """How many there are of each class, of those that are certain."""
        count = np.bincount(self.class_[self.certain], minlength=len(CLASSES))
        return dict(zip(CLASSES, count.tolist(), strict=True))


@dataclass(frozen=True)
class LatencyModel:
    """Calibrated parameters (in the order of PARAMETERS) and their covariance."""

    vector: np.ndarray
    covariance: np.ndarray
    #: CUPTI's event tracing ran, or it is unknown whether it did.
    traced: bool
    #: Uncertainty of the common shift, on top of everything else.
    unsure_ns: float
    counts: Mapping[str, int]

    def expected(self, s: Surroundings) -> tuple[np.ndarray, np.ndarray]:
        """(likeliest place of every record, its spread), judged by what came before it."""
        seen = self._past(s)
        return seen.known_ns + seen.x @ self.vector, np.hypot(seen.scale_ns, seen.doubt_ns)

    def lag_ns(self, s: Surroundings) -> np.ndarray:
        """How far the stamp that CUPTI's event tracing gives a record may lie behind the event's own."""
        took = np.clip(s.call_end - s.call_start, _LAG_FROM_NS, _LAG_TO_NS)
        idle = self._past(s).class_ == CLASSES.index("idle")
        return np.where(self.traced & idle, _LAG_SHARE * (took - _LAG_FROM_NS), 0.0)

    def observe(self, s: Surroundings) -> Observations:
        """Everything that records say about their own places."""
        past = self._past(s)
        place = past.known_ns + past.x @ self.vector
        queued = s.next_is_kernel & (s.next_start < FAR) & (s.next_issued + _MARGIN_NS < place)
        queued &= ~s.copying & ~s.held
        ahead = np.flatnonzero(queued)
        more = _columns(len(ahead), ahead_ns=-1.0, spacing_ns=-s.ahead[ahead])
        stamped = np.flatnonzero(s.stamp > 0)
        parts = (
            past,
            _sure(ahead, "ahead", s.next_start[ahead], more),
            _sure(stamped, "stamp", s.stamp[stamped], _columns(len(stamped))),
        )
        columns = ([getattr(p, name) for p in parts] for name in Observations.__dataclass_fields__)
        return Observations(*(np.concatenate(c) for c in columns))

    def _past(self, s: Surroundings) -> Observations:
        """What the record's call and the work before it say."""
        idle_x, busy_x = _idle_columns(s), _busy_columns(s)
        idle, behind = s.call_start + idle_x @ self.vector, s.previous_end + busy_x @ self.vector
        busy = (s.previous_end > 0) & (behind > idle)
        class_ = np.where(busy, CLASSES.index("busy"), CLASSES.index("idle"))
        slow = ~busy * np.maximum(s.call_end - s.call_start - _KNEE_NS, 0)
        hidden = busy * s.unseen  # each takes a spacing, if it is on this stream
        apart = (s.previous_end == 0) | (np.abs(behind - idle) > _APART_NS)
        return Observations(
            np.arange(len(busy)),
            class_,
            np.where(busy, s.previous_end, s.call_start),
            np.where(busy[:, None], busy_x, idle_x),
            SCATTER_NS[class_] + _SLOW_SPREAD * slow + s.contended * _CONTENDED_NS,
            s.copying * _COPYING_NS + hidden * 0.5 * self.vector[_SPACING],
            apart & ~s.copying & ~s.waits & (busy | ~s.contended) & (hidden == 0),
        )

    def fitted(
        self, vector: np.ndarray, covariance: np.ndarray, counts: Mapping[str, int]
    ) -> LatencyModel:
        """This model with other parameters."""
        return replace(self, vector=vector, covariance=covariance, counts=counts)

    def plausible(self, before: LatencyModel) -> LatencyModel:
        """Without values that no GPU shows: a trace that suggests such a value (rows dropped, records on a wrong stream) is no
        evidence, and what was assumed `before` is kept, with its uncertainty."""
        vector, covariance = self.vector.copy(), self.covariance.copy()
        for name, (least, most) in _PLAUSIBLE_NS.items():
            k = PARAMETERS.index(name)
            if not least <= vector[k] <= most:
                vector[k] = before.vector[k]
                covariance[k, :] = covariance[:, k] = 0.0
                covariance[k, k] = before.covariance[k, k]
        return replace(self, vector=vector, covariance=covariance)


def _sure(record: np.ndarray, name: str, known_ns: np.ndarray, x: np.ndarray) -> Observations:
    """Observations of one class, of which nothing is doubtful."""
    class_ = np.full(len(record), CLASSES.index(name))
    none, every = np.zeros(len(record)), np.ones(len(record), dtype=bool)
    return Observations(record, class_, known_ns, x, SCATTER_NS[class_], none, every)


def _columns(count: int, **values: np.ndarray | float) -> np.ndarray:
    x = np.zeros((count, len(PARAMETERS)))
    for name, value in values.items():
        x[:, PARAMETERS.index(name)] = value
    return x


def _idle_columns(s: Surroundings) -> np.ndarray:
    took = s.call_end - s.call_start
    short = np.minimum(took, _KNEE_NS) - _USUAL_CALL_NS
    return _columns(
        len(took), idle_ns=1.0, idle_short=short, idle_long=np.clip(took - _KNEE_NS, 0, _SLOW_NS)
    )


def _busy_columns(s: Surroundings) -> np.ndarray:
    return _columns(
        len(s.call_start),
        busy_ns=1.0, copy_ns=s.previous_is_copy, graph_ns=s.previous_is_graph, node_ns=s.previous_is_node,
        spacing_ns=s.behind,
    )  # fmt: skip


def spacings(s: Surroundings, frame: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Spacing of consecutive records of a frame (`at`: their places in there) with nothing in between, both queued behind the
    same operation."""
    order = np.lexsort((s.behind, s.previous_end, frame))
    one, two = order[:-1], order[1:]
    done = s.previous_end[two]
    pair = (
        (frame[one] == frame[two])
        & (s.previous_end[one] == done)
        & (s.behind[two] == s.behind[one] + 1)
    )
    pair &= (done > s.call_end[two] + _QUEUED_NS) & ~s.waits[one] & ~s.waits[two]
    pair &= s.unseen[one] == s.unseen[two]
    return (at[two] - at[one])[pair]


def _tight_gaps(s: Surroundings) -> np.ndarray:
    """From the end of one kernel to the start of the next, where both and the one record in between were queued."""
    tight = (
        (s.previous_end > s.call_end + 2 * _MARGIN_NS)
        & ~s.previous_is_copy
        & (s.behind == 0)
        & ~s.waits
    )
    tight &= s.next_is_kernel & (s.ahead == 0) & (s.next_start < FAR)
    tight &= (
        (s.next_issued + _MARGIN_NS < s.previous_end) & (s.unseen + s.unseen_next == 0) & ~s.held
    )
    return (s.next_start - s.previous_end)[tight]


def _usual_gap(gaps: np.ndarray) -> float:
    """The gap that a record alone leaves, a floor where gaps crowd; 0 if none shows: without a crowd even the tightest are long for
    other reasons."""
    if len(gaps) < _ENOUGH:
        return 0.0
    tightest, more = np.percentile(gaps, [_TIGHTEST, _PROMPT])
    return float(tightest) if more - tightest <= _BY_GAPS_NS else 0.0


def assumed(tracing: str, spacings: np.ndarray, s: Surroundings) -> LatencyModel:
    """The model before anything is fitted, for event tracing "on", "off" or "unknown".  How long a record takes comes from the
    trace if it shows that directly: from the spacing of records, else from the gap that a record leaves between two kernels."""
    apart = float(np.percentile(spacings, _PROMPT)) if len(spacings) >= _ENOUGH else 0.0
    traced = tracing == "on" or (tracing == "unknown" and not 0 < apart <= _TRACED_FROM_NS)
    prior = _PRIOR | (_TRACED if traced else {})
    gap, unsure = _usual_gap(_tight_gaps(s)), 0.0 if apart else _UNSURE_NS
    sure = _TIED_NS
    if not apart and gap:
        apart, sure, unsure = gap - prior["ahead_ns"][0] + _BUSY_LESS_NS, _USUAL_NS, _BY_GAPS_NS
    if apart:
        prior |= {"busy_ns": (apart - _BUSY_LESS_NS, sure), "spacing_ns": (apart, sure)}
    precision = np.diag([prior[p][1] ** -2 for p in PARAMETERS])
    tied = (np.array(PARAMETERS) == "busy_ns") * 1.0 - (np.array(PARAMETERS) == "spacing_ns")
    precision += np.outer(tied, tied) / _TIED_NS**2
    vector = np.array([prior[p][0] for p in PARAMETERS])
    return LatencyModel(vector, np.linalg.inv(precision), traced, unsure, {})
