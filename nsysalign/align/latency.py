"""How long records take: a model of where a record lies, given its surroundings.

    stream busy   KKKKKKKK|-- busy --R-- ahead --|KKKK        behind the previous operation's end, before the next start
    stream idle   [record call]-- idle --R                    a function of the call's duration

Each observation is linear in the parameters (`Observations`), so one robust regression calibrates them on the compared
pairs of a trace, whose distances are known: the unknown place of each frame (place.py) is eliminated.  GPUs are late, never
early, above all where queues are deep: late observations get little weight (`weights`).  No trace can reveal one common shift
(all records later, `ahead` smaller).  Two anchors fix it: `ahead`, which is 1.5 us with and without event tracing, and `busy`,
which is 0.39 us less than the spacing of consecutive records, whatever that spacing is (H100, H200s: 1.28, 2.54 and 4.99 us;
docs/accuracy.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from nsysalign.align.surroundings import Surroundings
from nsysalign.sweep.issue import FAR

#: Parameters, in the order of the regression's columns: prior mean and standard deviation (ns), wide where a trace usually
#: determines the value, narrow where it cannot.
_PRIOR = {
    "idle_ns": (4_800.0, 800.0),  # record's place after its call began, for a call of 1.5 us
    "idle_short": (0.85, 0.3),  # per ns of call duration, up to _KNEE_NS
    "idle_long": (0.55, 0.25),  # per ns of call duration beyond
    "busy_ns": (2_400.0, 1_800.0),  # end of the previous kernel to the record
    "copy_ns": (445.0, 60.0),  # more after a copy or memset
    "graph_ns": (400.0, 200.0),  # more after a CUDA graph
    "node_ns": (0.0, 1_500.0),  # more after a graph traced node by node: it may end with events of its own
    "spacing_ns": (2_770.0, 1_800.0),  # consecutive records behind busy streams
    "ahead_ns": (1_540.0, 25.0),  # record to the start of a queued kernel
}
PARAMETERS = tuple(_PRIOR)
#: The priors with CUPTI's event tracing, under which records take longer, and without.
_TRACED = {
    "idle_ns": (5_100.0, 800.0), "idle_long": (0.37, 0.1), "busy_ns": (2_175.0, 1_800.0), "spacing_ns": (2_545.0, 1_800.0)
}  # fmt: skip
_UNTRACED = {
    "idle_ns": (3_900.0, 800.0), "idle_long": (0.7, 0.25), "busy_ns": (925.0, 600.0), "spacing_ns": (1_295.0, 600.0)
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
_BUSY_LESS_NS, _TIED_NS = 380.0, 25.0
_KNEE_NS, _USUAL_CALL_NS = 3_000, 1_500
#: Calls on an idle stream that last longer say nothing more about when the record was submitted: the rest happens afterwards.
_SLOW_NS = 30_000
#: Where nothing in the trace shows how long records take.
_UNSURE_NS = 850.0
#: Of the gaps between two kernels with one record in between, the tightest are due to the record alone: those within _USUAL_NS
#: of each other tell how long a record takes, with this uncertainty.
_TIGHTEST, _USUAL_NS, _BY_GAPS_NS = 10, 150.0, 300.0
#: Classes of observations: how far they scatter, and on which side of the expected place late ones lie.
CLASSES = ("busy", "ahead", "idle")
SCATTER_NS = {"busy": 120.0, "ahead": 120.0, "idle": 250.0}
LATE = np.array([1, -1, 1])
#: Calls differ from host to host: the limits within which a trace may show another scatter of "idle".
_IDLE_SCATTER_NS = (150.0, 700.0)
#: On their late side observations have a heavy tail (Student's t: outliers soon lose their weight), on the other they keep it
#: (Huber).
_STUDENT, _HUBER = 1.0, 4.0
#: Additional spread: next to kernels of other streams; behind a graph (0.0 or 0.8 us more); while a copy to or from the host
#: runs on another stream, which delays records by nothing or by 6 us (H100 and H200).
_CONTENDED_NS, _GRAPH_NS, _COPYING_NS = 750.0, 400.0, 2_500.0
#: Slow (cold) calls on an idle stream: their place is less certain by this share of the time beyond _KNEE_NS.
_SLOW_SPREAD, _TRACED_SLOW_SPREAD = 0.25, 0.12
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
    their scatter; `late`: on which side the tail is, 1 or -1 (0: on both)."""
    on_time = z * late < 0
    return np.where(
        on_time, np.minimum(1.0, _HUBER / np.maximum(np.abs(z), 1e-9)), (_STUDENT + 1) / (_STUDENT + z**2)
    )


@dataclass(frozen=True)
class Observations:
    """What single records say about their own places: arrays of equal length.

    `record`; `class_`: position in CLASSES; the place is `known_ns + x @ parameters`, within `scale_ns`; `certain`: no
    other class could explain it.
    """

    record: np.ndarray
    class_: np.ndarray
    known_ns: np.ndarray
    x: np.ndarray
    scale_ns: np.ndarray
    certain: np.ndarray

    def take(self, rows: np.ndarray) -> Observations:
        return Observations(**{name: getattr(self, name)[rows] for name in self.__dataclass_fields__})


@dataclass(frozen=True)
class LatencyModel:
    """Calibrated parameters, their covariance, and the spread of each class of observations."""

    value: Mapping[str, float]
    covariance: np.ndarray
    scale: Mapping[str, float]
    counts: Mapping[str, int] = field(default_factory=dict)
    #: CUPTI's event tracing ran, or it is unknown whether it did.
    traced: bool = False
    #: Uncertainty of the common shift, on top of everything else.
    unsure_ns: float = 0.0

    @property
    def vector(self) -> np.ndarray:
        return np.array([self.value[p] for p in PARAMETERS])

    def expected(self, s: Surroundings) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(likeliest place of every record, its spread, whether its stream was busy), judged by what came before it."""
        idle, busy = self._idle(s), self._busy(s)
        late = (s.previous_end > 0) & (busy > idle)
        slow = np.maximum(s.call_end - s.call_start - _KNEE_NS, 0)
        behind = np.hypot(self.scale["busy"], s.previous_is_graph * _GRAPH_NS)
        alone = self.scale["idle"] + (_TRACED_SLOW_SPREAD if self.traced else _SLOW_SPREAD) * slow
        held_up = s.copying * _COPYING_NS
        return (
            np.where(late, busy, idle) + held_up,
            np.hypot(np.where(late, behind, alone), held_up + s.contended * _CONTENDED_NS),
            late,
        )

    def _idle(self, s: Surroundings) -> np.ndarray:
        return s.call_start + _idle_columns(s) @ self.vector

    def _busy(self, s: Surroundings) -> np.ndarray:
        return s.previous_end + _busy_columns(s) @ self.vector

    def lag_ns(self, s: Surroundings) -> np.ndarray:
        """How far the stamp that CUPTI's event tracing gives a record may lie behind the event's own."""
        took = np.clip(s.call_end - s.call_start, _LAG_FROM_NS, _LAG_TO_NS)
        return np.where(self.traced & ~self.expected(s)[2], _LAG_SHARE * (took - _LAG_FROM_NS), 0.0)

    def observe(self, s: Surroundings) -> Observations:
        """Everything that records say about their own places.  A record that waits for another stream is late by an unknown
        time."""
        place, scale, busy = self.expected(s)
        apart = (s.previous_end == 0) | (np.abs(self._busy(s) - self._idle(s)) > _APART_NS)
        apart &= ~s.copying
        held_up = (s.copying * _COPYING_NS).astype(np.int64)
        queued = s.next_is_kernel & (s.next_start < FAR) & (s.next_issued + _MARGIN_NS < place) & ~s.copying
        parts = (
            (
                busy & ~s.waits,
                s.previous_end + held_up,
                _busy_columns(s),
                scale,
                apart & ~s.previous_is_graph,
            ),
            (queued, s.next_start, _ahead_columns(s), np.full(len(place), self.scale["ahead"]), queued),
            (
                ~busy & ~s.waits,
                s.call_start + held_up,
                _idle_columns(s),
                scale,
                apart & ~s.contended,
            ),
        )
        where = [np.flatnonzero(part[0]) for part in parts]
        known, x, spread, certain = (
            np.concatenate([part[k][w] for part, w in zip(parts, where, strict=True)]) for k in range(1, 5)
        )
        class_ = np.repeat(np.arange(len(parts)), [len(w) for w in where])
        return Observations(np.concatenate(where), class_, known, x, spread, certain)


def _columns(count: int, **values: np.ndarray | float) -> np.ndarray:
    x = np.zeros((count, len(PARAMETERS)))
    for name, value in values.items():
        x[:, PARAMETERS.index(name)] = value
    return x


def _idle_columns(s: Surroundings) -> np.ndarray:
    took = s.call_end - s.call_start
    short = np.minimum(took, _KNEE_NS) - _USUAL_CALL_NS
    return _columns(len(took), idle_ns=1.0, idle_short=short, idle_long=np.clip(took - _KNEE_NS, 0, _SLOW_NS))


def _busy_columns(s: Surroundings) -> np.ndarray:
    return _columns(
        len(s.call_start),
        busy_ns=1.0, copy_ns=s.previous_is_copy, graph_ns=s.previous_is_graph, node_ns=s.previous_is_node,
        spacing_ns=s.behind,
    )  # fmt: skip


def _ahead_columns(s: Surroundings) -> np.ndarray:
    return _columns(len(s.call_start), ahead_ns=-1.0, spacing_ns=-s.ahead)


def spacing(s: Surroundings, one: np.ndarray, two: np.ndarray, apart: np.ndarray) -> np.ndarray:
    """Spacing of consecutive records, from the distances `apart` between records `one` and `two`; only pairs with nothing in
    between, both queued behind the same operation, count."""
    done = s.previous_end[two]
    pair = (done > 0) & (s.previous_end[one] == done) & (s.behind[two] == s.behind[one] + 1)
    return apart[pair & (done > s.call_end[two] + _QUEUED_NS) & ~s.waits[one] & ~s.waits[two]]


def _tight_gaps(s: Surroundings) -> np.ndarray:
    """From the end of one kernel to the start of the next, where both and the one record in between were queued."""
    tight = (s.previous_end > s.call_end + 2 * _MARGIN_NS) & ~s.previous_is_copy & (s.behind == 0) & ~s.waits
    tight &= s.next_is_kernel & (s.ahead == 0) & (s.next_start < FAR)
    tight &= s.next_issued + _MARGIN_NS < s.previous_end
    return (s.next_start - s.previous_end)[tight]


def assumed(tracing: str, spacings: np.ndarray, gaps: np.ndarray) -> LatencyModel:
    """The model before anything is fitted, for event tracing "on", "off" or "unknown".  How long a record takes comes from the
    trace if it shows that directly: from the spacing of records, else from the gap that a record leaves between two kernels."""
    apart = float(np.percentile(spacings, _PROMPT)) if len(spacings) >= _ENOUGH else 0.0
    if tracing == "unknown" and apart:
        tracing = "on" if apart > _TRACED_FROM_NS else "off"
    prior = _PRIOR | {"on": _TRACED, "off": _UNTRACED}.get(tracing, {})
    unsure = 0.0
    if apart:
        busy, sure = apart - _BUSY_LESS_NS, _TIED_NS
    elif len(gaps) >= _ENOUGH:
        busy, sure = float(np.percentile(gaps, _TIGHTEST)) - prior["ahead_ns"][0], _USUAL_NS
        unsure = _BY_GAPS_NS
    else:
        busy, sure, unsure = *prior["busy_ns"], _UNSURE_NS
    if unsure < _UNSURE_NS:
        prior |= {"busy_ns": (busy, sure), "spacing_ns": (busy + _BUSY_LESS_NS, sure)}
    return LatencyModel(
        {p: prior[p][0] for p in PARAMETERS},
        np.diag([prior[p][1] ** 2 for p in PARAMETERS]),
        dict(SCATTER_NS),
        traced=tracing != "off",
        unsure_ns=unsure,
    )


def calibrate(
    s: Surroundings,
    record: np.ndarray,
    frame: np.ndarray,
    shift: np.ndarray,
    spacings: np.ndarray,
    tracing: str,
) -> LatencyModel:
    """Fit the model on records with known distances: `record` (positions in `s`), the number of the `frame` that each is in
    and its `shift` in there (ns).

    Iteratively reweighted least squares with Student-t noise; the place of each frame is an unknown of its own, eliminated
    by weighted demeaning.  The scales start wide and narrow down, so that a bad first guess does not decide the result.
    """
    model = assumed(tracing, spacings, _tight_gaps(s))
    mean, prior = model.vector, model.covariance
    precision = np.linalg.inv(prior)
    tied = (np.array(PARAMETERS) == "busy_ns") * 1.0 - (np.array(PARAMETERS) == "spacing_ns")
    precision += np.outer(tied, tied) / _TIED_NS**2
    mine = s.take(record)
    for widen in (6.0, 2.0, 1.0, 1.0, 1.0, 1.0):
        seen = model.observe(mine)
        seen = seen.take(seen.certain)
        if not len(seen.record):
            break
        group = np.unique(frame[seen.record], return_inverse=True)[1]
        # place of the frame's origin as each observation sees it; large times cancel before going to float
        at = seen.known_ns - shift[seen.record]
        base = np.zeros(group.max() + 1, dtype=np.int64)
        base[group[::-1]] = at[::-1]
        y = (base[group] - at).astype(float)
        late = y - seen.x @ model.vector
        weight = _settled(group, late, seen, widen)
        x, y = _demean(group, np.column_stack([seen.x, y]), weight)
        normal = (x * weight[:, None]).T @ x + precision
        solution = np.linalg.solve(normal, (x * weight[:, None]).T @ y + precision @ mean)
        value = dict(zip(PARAMETERS, solution.tolist(), strict=True))
        model = replace(model, value=value, covariance=np.linalg.inv(normal))
        if widen == 1.0:
            idle = seen.class_ == CLASSES.index("idle")
            model = replace(
                model,
                scale={**model.scale, **_idle_scatter(group, late, idle)},
                counts={name: int((seen.class_ == n).sum()) for n, name in enumerate(CLASSES)},
            )
    return _plausible(model, mean, prior)


def _plausible(model: LatencyModel, mean: np.ndarray, prior: np.ndarray) -> LatencyModel:
    """The model without values that no GPU shows: a trace that suggests such a value (rows dropped, records on a wrong stream)
    is no evidence, and the prior is kept, with its uncertainty."""
    value, covariance = dict(model.value), model.covariance.copy()
    for name, (least, most) in _PLAUSIBLE_NS.items():
        if not least <= value[name] <= most:
            k = PARAMETERS.index(name)
            value[name] = float(mean[k])
            covariance[k, :] = covariance[:, k] = 0.0
            covariance[k, k] = prior[k, k]
    return replace(model, value=value, covariance=covariance)


def _median(group: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Median of the values of each group."""
    order = np.lexsort((value, group))
    counts = np.bincount(group)
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    return (value[order][first + (counts - 1) // 2] + value[order][first + counts // 2]) / 2


def _demean(group: np.ndarray, columns: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All columns but the last, and the last, each minus its weighted mean in each group."""
    total = np.bincount(group, weight)
    means = [np.bincount(group, weight * c) / total for c in columns.T]
    out = columns - np.stack(means, axis=1)[group]
    return out[:, :-1], out[:, -1]


def _settled(group: np.ndarray, late: np.ndarray, seen: Observations, widen: float) -> np.ndarray:
    """Weights of observations around the middle of each group, where `late` says how far they are from a common place."""
    sigma = seen.scale_ns * widen
    late -= _median(group, late)[group]
    for _ in range(4):
        weight = weights(late / sigma, LATE[seen.class_]) / sigma**2
        late -= (np.bincount(group, weight * late) / np.bincount(group, weight))[group]
    return weight


def _idle_scatter(group: np.ndarray, late: np.ndarray, idle: np.ndarray) -> dict[str, float]:
    """How far idle ones scatter inside frames of at least two observations (each sees half of it)."""
    several = np.abs(late[idle & (np.bincount(group)[group] >= 2)])
    return (
        {"idle": float(np.clip(1.4826 * np.median(several) * 1.4, *_IDLE_SCATTER_NS))}
        if len(several) >= 8
        else {}
    )
