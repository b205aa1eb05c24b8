"""The latency model: where a record is likely to lie, calibrated on the trace at hand.

Each record offers up to two observations of its own place:

    from behind   it follows the previous operation's end (stream busy), or its own call (stream idle)
    from ahead    the next operation, already queued, starts a fixed time after it

    stream busy   KKKKKKKK|-- b --R-- n --|KKKK        b: end of the operation to the record, n: record to the next start
    stream idle   [record call]-- ... --R              a: a function of the call's duration

Every compared pair ties two records together (t_end = t_start + elapsed), so most of b, a and the spacing r of
consecutive records follow from the trace itself by least squares with the unknown place of each pair eliminated.
What no trace can tell is one common shift (all records later, n smaller): it is anchored twice, at n, which is 1.5 to 1.7
us with and without event tracing, and at b, which is 370 ns less than the spacing r, whatever that is (H100, H200s: 1.28,
2.54 and 4.99 us; docs/accuracy.md).  Their uncertainty is part of every error bar.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from nsysalign.sweep.issue import FAR

#: Parameters, in the order of the regression's columns.
PARAMETERS = (
    "idle_ns",  # record's place after its call began, for a call of 1.5 us
    "idle_short",  # per ns of call duration, up to KNEE_NS
    "idle_long",  # per ns of call duration beyond
    "busy_ns",  # end of the previous kernel to the record
    "copy_ns",  # more after a copy or memset
    "contended_ns",  # more while other streams run kernels
    "spacing_ns",  # consecutive records behind busy streams
    "ahead_ns",  # record to the start of a queued kernel
)
KNEE_NS = 3_000
#: A call that took longer was interrupted, before its record or after: nobody can tell.
SLOW_NS = 15_000
_REFERENCE_NS = 1_500
#: Prior means and standard deviations (ns): wide where the trace usually decides, narrow where it cannot.
_PRIOR = {
    "idle_ns": (4_800, 800),
    "idle_short": (0.85, 0.3),
    "idle_long": (0.7, 0.25),
    "busy_ns": (2_400, 1_800),
    "copy_ns": (445, 60),
    "contended_ns": (300, 500),
    "spacing_ns": (2_770, 1_800),
    "ahead_ns": (1_580, 90),
}
#: Outside of these a calibrated latency is a mistake.
_PLAUSIBLE_NS = {
    "idle_ns": (1_000, 20_000),
    "busy_ns": (300, 8_000),
    "spacing_ns": (600, 8_000),
    "ahead_ns": (1_000, 3_000),
}
#: By a gap: the tightest third are those that only the record made.
_TIGHTEST, _USUAL_NS = 35, 150.0
_UNSURE_NS = 600.0
_SCALE_NS = {"idle": 250.0, "busy": 180.0, "ahead": 120.0}
_SCALE_RANGE_NS = {"idle": (150.0, 700.0), "busy": (80.0, 500.0), "ahead": (60.0, 250.0)}
#: The previous operation must end this long after the record's call, the next call be over this long before the
#: record, for "busy" and "queued" to be certain.
_MARGIN_NS = 1_500
_CONTENDED_NS = 450.0
_LAG_FROM_NS, _LAG_SHARE, _LAG_SPREAD = 4_000, 0.5, 0.08
_STUDENT = 3.0
#: busy_ns is spacing_ns less 370 ns, whatever a record takes: 1.28, 2.54 or 4.99 us with and without event tracing.
_BUSY_LESS_NS, _TIED_NS = 370.0, 60.0
#: A spacing is believed from so many on; both records' calls are over so long before the operation is.
_ENOUGH, _QUEUED_NS = 3, 500


@dataclass(frozen=True)
class Evidence:
    """Per record (arrays of equal length); times in trace ns, 0 / FAR where there is none."""

    call_start: np.ndarray
    call_end: np.ndarray
    previous_end: np.ndarray
    previous_is_copy: np.ndarray
    contended: np.ndarray
    behind: np.ndarray  # records of this stream between the previous operation and this one
    next_start: np.ndarray
    next_issued: np.ndarray
    next_is_kernel: np.ndarray
    ahead: np.ndarray  # records of this stream between this one and the next operation
    waits: np.ndarray  # a stream wait lies between the previous operation and the record

    def take(self, index: np.ndarray) -> Evidence:
        return Evidence(**{name: getattr(self, name)[index] for name in self.__dataclass_fields__})


@dataclass(frozen=True)
class LatencyModel:
    """Calibrated parameters, their covariance, and the spread of each observation."""

    value: Mapping[str, float]
    covariance: np.ndarray
    scale: Mapping[str, float]
    counts: Mapping[str, int] = field(default_factory=dict)
    #: CUPTI's event timestamps may lag the event's own in slow calls (see `lag_ns`).
    lagging: bool = False
    #: Nothing in the trace showed how long records take: the common shift is this uncertain beside all else.
    unsure_ns: float = 0.0

    @property
    def vector(self) -> np.ndarray:
        return np.array([self.value[p] for p in PARAMETERS])

    def idle_at(self, e: Evidence) -> np.ndarray:
        """Likeliest place of a record whose stream is idle."""
        x = _idle_columns(e)
        return e.call_start + x @ self.vector[:3]

    def idle_scale(self, e: Evidence) -> np.ndarray:
        """Spread of that place: slow (cold) calls are less certain."""
        over = np.maximum(e.call_end - e.call_start - KNEE_NS, 0)
        return self.scale["idle"] + (_LAG_SPREAD if self.lagging else 0.25) * over

    def lag_ns(self, e: Evidence) -> np.ndarray:
        """How far a record's traced timestamp may lie behind what elapsed_time counts from.

        With event tracing CUPTI stamps an event by work of its own, pushed in the same call after the event's.  On an
        idle stream a slow (cold) call lets time pass in between: 3.3 us in calls of 13 us, seen as a difference of
        t(end) - t(start) and elapsed_time in whole ticks of the same clock (H200, both machines).
        """
        if not self.lagging:
            return np.zeros(len(e.call_start))
        slow = np.maximum(e.call_end - e.call_start - _LAG_FROM_NS, 0)
        return np.where(self.is_busy(e), 0.0, _LAG_SHARE * slow)

    def busy_at(self, e: Evidence) -> np.ndarray:
        """Likeliest place of a record behind an operation that was still running."""
        v = self.value
        return (
            e.previous_end
            + v["busy_ns"]
            + v["copy_ns"] * e.previous_is_copy
            + v["contended_ns"] * e.contended
            + v["spacing_ns"] * e.behind
        )

    def busy_scale(self, e: Evidence) -> np.ndarray:
        """Spread of that place: with other streams' kernels about, the end of one is noticed less regularly."""
        return np.hypot(self.scale["busy"], np.where(e.contended, _CONTENDED_NS, 0.0))

    def ahead_at(self, e: Evidence) -> np.ndarray:
        """Likeliest place of a record whose next operation was already queued."""
        return e.next_start - self.value["ahead_ns"] - self.value["spacing_ns"] * e.ahead

    def is_busy(self, e: Evidence) -> np.ndarray:
        return (e.previous_end > 0) & (self.busy_at(e) > self.idle_at(e))

    def is_queued_ahead(self, e: Evidence) -> np.ndarray:
        """The next kernel's call had returned so long before the record that the kernel waited for it."""
        at = np.where(self.is_busy(e), self.busy_at(e), self.idle_at(e))
        return e.next_is_kernel & (e.next_start < FAR) & (e.next_issued + _MARGIN_NS < at)


def _idle_columns(e: Evidence) -> np.ndarray:
    duration = (e.call_end - e.call_start).astype(float)
    return np.stack(
        [
            np.ones(len(duration)),
            np.minimum(duration, KNEE_NS) - _REFERENCE_NS,
            np.clip(duration - KNEE_NS, 0, SLOW_NS),
        ],
        axis=1,
    )


def prior(event_tracing: str) -> LatencyModel:
    """What is assumed before looking: with CUPTI's event tracing ("on", "off" or "unknown") records take longer."""
    value = {p: float(_PRIOR[p][0]) for p in PARAMETERS}
    deviation = np.array([_PRIOR[p][1] for p in PARAMETERS], dtype=float)
    if event_tracing == "on":
        value |= {"idle_ns": 5_100.0, "busy_ns": 2_175.0, "spacing_ns": 2_545.0}
    if event_tracing == "off":
        value |= {"idle_ns": 3_900.0, "busy_ns": 925.0, "spacing_ns": 1_295.0}
    else:
        # slow calls cannot be learned from pairs that their own lag distorts
        value["idle_long"], deviation[PARAMETERS.index("idle_long")] = 0.69, 0.03
    return LatencyModel(value, np.diag(deviation**2), dict(_SCALE_NS), lagging=event_tracing != "off")


def calibrate(
    e: Evidence, start: np.ndarray, end: np.ndarray, elapsed: np.ndarray, *, event_tracing: str
) -> LatencyModel:
    """Fit the model on the compared pairs of a trace.

    Iteratively reweighted least squares: observation k of record i says t_i = known_k + columns_k . parameters with
    Student-t noise; the place of each pair is an unknown of its own, eliminated by weighted demeaning.  Starts wide and narrows, so that a bad first guess does not decide.
    """
    model = _with_what_shows(prior(event_tracing), e, start, end, elapsed)
    mean, deviation = model.vector, np.sqrt(np.diag(model.covariance))
    precision = np.diag(1 / deviation**2)
    tied = (np.array(PARAMETERS) == "busy_ns") * 1.0 - (np.array(PARAMETERS) == "spacing_ns")
    precision += np.outer(tied, tied) / _TIED_NS**2
    model = _first_guess(model, e, start, end, elapsed)
    # records that nobody compared (an allocator's, DDP's) are made by events without timing, which take other paths
    record = np.concatenate([start, end])
    component = np.concatenate([np.arange(len(start)), np.arange(len(start))])
    shift = np.concatenate([np.zeros(len(start), np.int64), elapsed])
    mine = e.take(record)
    covariance = np.diag(deviation**2)
    scale = dict(_SCALE_NS)
    counts: dict[str, int] = {}
    for widen in (6.0, 4.0, 2.0, 1.5, 1.0, 1.0, 1.0, 1.0):
        obs = _observations(model, mine, component, shift)
        if not len(obs["y"]):
            break
        sigma = obs["scale"] * widen
        # residuals at the current parameters decide the weights; each component sits at its weighted median
        residual = obs["y"] - obs["x"] @ model.vector
        residual = residual - _component_median(obs["component"], residual)[obs["component"]]
        weight = (_STUDENT + 1) / (_STUDENT + (residual / sigma) ** 2) / sigma**2
        x, y = _demean(obs["component"], obs["x"], obs["y"], weight)
        normal = (x * weight[:, None]).T @ x + precision
        solution = np.linalg.solve(normal, (x * weight[:, None]).T @ y + precision @ mean)
        covariance = np.linalg.inv(normal)
        model = replace(
            model,
            value=dict(zip(PARAMETERS, solution.tolist(), strict=True)),
            covariance=covariance,
            scale=scale,
        )
        if widen == 1.0:
            scale = _scales(obs, residual, scale)
            counts = {name: int((obs["class"] == n).sum()) for n, name in enumerate(_SCALE_NS)}
            model = replace(model, scale=scale, counts=counts)
    return _plausible(model, mean, deviation)


def _spacings(e: Evidence, start: np.ndarray, end: np.ndarray, elapsed: np.ndarray) -> np.ndarray:
    """What pairs say directly: two records with nothing between, both queued behind the same operation."""
    done = e.previous_end[start]
    both = (done > 0) & (done == e.previous_end[end]) & (e.behind[end] == e.behind[start] + 1)
    return elapsed[both & (done > e.call_end[end] + _QUEUED_NS) & ~e.waits[start] & ~e.waits[end]]


def _tight_gaps(e: Evidence) -> np.ndarray:
    """From the end of one kernel to the start of the next, where both and the one record in between were queued."""
    tight = (e.previous_end > e.call_end + 2 * _MARGIN_NS) & ~e.previous_is_copy & (e.behind == 0) & ~e.waits
    tight &= e.next_is_kernel & (e.ahead == 0) & (e.next_start < FAR)
    tight &= e.next_issued + _MARGIN_NS < e.previous_end
    return (e.next_start - e.previous_end)[tight]


def _with_what_shows(
    model: LatencyModel, e: Evidence, start: np.ndarray, end: np.ndarray, elapsed: np.ndarray
) -> LatencyModel:
    """The prior with how long a record takes, where the trace shows it directly: by the spacing of records, else by the gap
    that one leaves between two kernels."""
    spacings, gaps = _spacings(e, start, end, elapsed), _tight_gaps(e)
    if len(spacings) >= _ENOUGH:
        busy, sure = float(np.median(spacings)) - _BUSY_LESS_NS, _TIED_NS
    elif len(gaps) >= _ENOUGH:
        busy, sure = float(np.percentile(gaps, _TIGHTEST)) - model.value["ahead_ns"], _USUAL_NS
    else:
        return replace(model, unsure_ns=_UNSURE_NS)
    deviation = np.sqrt(np.diag(model.covariance))
    deviation[[PARAMETERS.index("spacing_ns"), PARAMETERS.index("busy_ns")]] = sure
    value = dict(model.value) | {"spacing_ns": busy + _BUSY_LESS_NS, "busy_ns": busy}
    return replace(model, value=value, covariance=np.diag(deviation**2))


def _plausible(model: LatencyModel, mean: np.ndarray, deviation: np.ndarray) -> LatencyModel:
    """The same without values that no GPU shows: a trace that says so (rows dropped, records on a wrong stream) says nothing,
    and what was assumed beforehand stands, with its uncertainty."""
    value, covariance = dict(model.value), model.covariance.copy()
    for name, (least, most) in _PLAUSIBLE_NS.items():
        if not least <= value[name] <= most:
            k = PARAMETERS.index(name)
            value[name] = float(mean[k])
            covariance[k, :] = covariance[:, k] = 0.0
            covariance[k, k] = deviation[k] ** 2
    return replace(model, value=value, covariance=covariance)


def _first_guess(
    model: LatencyModel, e: Evidence, start: np.ndarray, end: np.ndarray, elapsed: np.ndarray
) -> LatencyModel:
    """Medians of what can be read off directly, so that the regression starts in the right place."""
    value = dict(model.value)
    certain = e.previous_end > e.call_end + 2 * _MARGIN_NS
    certain &= ~e.previous_is_copy & (e.behind == 0) & ~e.waits
    idle = e.previous_end < e.call_start
    pair = idle[start] & certain[end]
    if pair.sum() >= 3:
        x = _idle_columns(e.take(start[pair]))
        at = e.previous_end[end[pair]] + value["busy_ns"] - elapsed[pair] - e.call_start[start[pair]]
        value["idle_ns"] = float(np.median(at - x[:, 1] * value["idle_short"] - x[:, 2] * value["idle_long"]))
    return replace(model, value=value)


def _observations(
    model: LatencyModel, e: Evidence, component: np.ndarray, shift: np.ndarray
) -> dict[str, np.ndarray]:
    """y = place of the component's origin as each observation sees it, minus its parameters' part (x @ parameters)."""
    n = len(component)
    busy, queued = model.is_busy(e), model.is_queued_ahead(e)
    # near the change-over between idle and busy neither formula is right
    apart = np.abs(model.busy_at(e) - model.idle_at(e)) > 700
    behind_idle = ~busy & ~e.waits & (apart | (e.previous_end == 0)) & (model.lag_ns(e) == 0)
    behind_busy = busy & ~e.waits & apart
    zero = np.zeros(n)
    rows = []
    x_idle = np.concatenate([_idle_columns(e), np.zeros((n, 5))], axis=1)
    x_busy = np.stack(
        [
            zero,
            zero,
            zero,
            np.ones(n),
            e.previous_is_copy.astype(float),
            e.contended.astype(float),
            e.behind.astype(float),
            zero,
        ],
        axis=1,
    )
    x_ahead = np.stack([zero, zero, zero, zero, zero, zero, -e.ahead.astype(float), -np.ones(n)], axis=1)
    for number, (mask, known, x, scale) in enumerate(
        (
            (behind_idle, e.call_start, x_idle, model.idle_scale(e)),
            (behind_busy, e.previous_end, x_busy, model.busy_scale(e)),
            (queued, e.next_start, x_ahead, np.full(n, model.scale["ahead"])),
        )
    ):
        # origin of the component = t - shift; the regression needs t = known + x.p, hence y = -(known - shift)
        rows.append(
            (-(known - shift)[mask], x[mask], scale[mask], component[mask], np.full(int(mask.sum()), number))
        )
    y, x, scale, comp, cls = (np.concatenate([r[i] for r in rows]) for i in range(5))
    _, comp = np.unique(comp, return_inverse=True)
    # large times cancel within a component: take each component's first value away before going to float
    base = np.zeros(comp.max() + 1 if len(comp) else 0, dtype=np.int64)
    base[comp[::-1]] = y[::-1]
    return {
        "y": (y - base[comp]).astype(float),
        "x": x,
        "scale": scale.astype(float),
        "component": comp,
        "class": cls,
    }


def _component_median(component: np.ndarray, value: np.ndarray) -> np.ndarray:
    order = np.lexsort((value, component))
    counts = np.bincount(component)
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    sorted_value = value[order]
    return (sorted_value[first + (counts - 1) // 2] + sorted_value[first + counts // 2]) / 2


def _demean(
    component: np.ndarray, x: np.ndarray, y: np.ndarray, weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    total = np.bincount(component, weight)
    columns = [np.bincount(component, weight * x[:, k]) / total for k in range(x.shape[1])]
    return x - np.stack(columns, axis=1)[component], y - (np.bincount(component, weight * y) / total)[
        component
    ]


def _scales(
    obs: dict[str, np.ndarray], residual: np.ndarray, before: Mapping[str, float]
) -> dict[str, float]:
    """Spread per class from the residuals inside components of at least two observations (each sees half of it)."""
    several = np.bincount(obs["component"])[obs["component"]] >= 2
    out = dict(before)
    for number, name in enumerate(_SCALE_NS):
        r = residual[several & (obs["class"] == number)]
        if len(r) >= 8:
            low, high = _SCALE_RANGE_NS[name]
            out[name] = float(np.clip(1.4826 * np.median(np.abs(r)) * 1.4, low, high))
    return out
