"""Which single intervention puts a label's cause to the test, and what it must show if the cause is right.

    delay         a delay kernel before the start record: the host runs ahead, GPU time remains
    synchronize   the device is idle before the start record: nothing is left to queue behind
    flush         the L2 is overwritten before the start record of the label that ran the same kernels faster
    warm          a function marked @nsysalign.region is called once more before each call

Whatever could not answer is refused here, with the reason, before anything runs again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from nsysalign.compare.bootstrap import level
from nsysalign.compare.prediction import RESOLUTION_NS, WORK_ERROR_SHARE, gpu_time, latencies, parts_of
from nsysalign.compare.spans import Spans
from nsysalign.model import LAUNCH_QUEUE, Analysis

#: intervention -> the rules whose findings it settles.
SETTLES: Mapping[str, tuple[str, ...]] = {
    "delay": ("host-gap", "many-tiny-kernels", "api-launch", "allocation-inside"),
    "synchronize": ("queued-dependency", "queued-contention"),
    "flush": ("cold-l2",),
    "warm": ("warm-up", "module-load"),
}
INTERVENTIONS = tuple(SETTLES)
#: Causes that a delay hides: what the host does while the stream waits.
HOST = ("host", "api_launch", "api", "launch_latency", "event", "profiler")
#: Fewer intervals on a side say nothing about a spread.
FEWEST = 3
CONFIDENCE = 0.95
#: The delay outlasts the host's part by this factor and this margin; 20 us did not, 1 ms did (measured).
DELAY_FACTOR, DELAY_MARGIN_NS, SHORTEST_DELAY_NS = 2.0, 200_000, 1_000_000
#: A re-run may add so much GPU time in all.
MOST_ADDED_NS = 600 * 1_000_000_000
#: Copies up to this size from pageable memory are staged without waiting for the stream.
STAGED_BYTES = 64 * 1024
#: The host's slack when it no longer runs ahead: its calls are slower on a cold start.
HOST_ERROR_SHARE, HOST_ERROR_NS = 0.25, 5_000.0


@dataclass(frozen=True)
class Refusal:
    """Why no re-run can answer."""

    label: str
    intervention: str
    reason: str


@dataclass(frozen=True)
class Plan:
    """One experiment: what is done where, and what it must show.  Nanoseconds."""

    label: str
    intervention: str
    target: str  # the label whose start records (or calls) it is done to
    rules: tuple[str, ...]
    metric: str  # elapsed, kernel, first run
    before_ns: float
    before_bounds_ns: tuple[float, float]
    predicted_ns: float  # NaN: nothing can be predicted
    predicted_bounds_ns: tuple[float, float]
    count: int  # intervals before
    operations: int  # of the typical interval
    delay_ns: int = 0
    region: str = ""  # the target's label if a region named it
    starts: tuple[tuple[str, tuple[str, ...]], ...] = field(
        default=()
    )  # (site, callers) of its start records


def rows_of(analysis: Analysis, label: str) -> np.ndarray:
    """Positions of a label's intervals in `analysis.intervals`, in time."""
    at = np.flatnonzero((analysis.intervals["label"] == label).to_numpy())
    return at[np.argsort(analysis.intervals["start_ns"].to_numpy()[at], kind="stable")]


def findings_of(analysis: Analysis, label: str) -> list[Any]:
    """Findings about a label, the most important first."""
    f = analysis.findings
    return list(f[f["label"] == label].itertuples(index=False))


def confirmable(analysis: Analysis) -> list[str]:
    """Labels with a warning that a re-run could settle, the most important first."""
    rules = {rule for settled in SETTLES.values() for rule in settled}
    f = analysis.findings
    worth = f[f["rule"].isin(rules) & (f["severity"] != "info")]
    library = set(analysis.labels.loc[analysis.labels["library"], "label"])
    return [label for label in dict.fromkeys(worth["label"].tolist()) if label not in library]


def choose(analysis: Analysis, label: str, decorated: frozenset[str] = frozenset()) -> str:
    """The intervention that fits the label's cause: its first finding that one settles, else its largest idle part."""
    for finding in findings_of(analysis, label):
        for intervention, rules in SETTLES.items():
            if finding.rule in rules and (intervention != "warm" or label in decorated):
                return intervention
    rows = rows_of(analysis, label)
    queued = float(np.median(parts_of(analysis, rows, "queued"))) if len(rows) else 0.0
    return "synchronize" if queued > np.median(parts_of(analysis, rows, *HOST)) else "delay"


def plan(
    analysis: Analysis,
    label: str,
    intervention: str,
    spans: Spans,
    *,
    decorated: frozenset[str] = frozenset(),
    seed: int = 0,
) -> Plan | Refusal:
    """The experiment, or why there is none.  `decorated`: regions that are decorators (`@nsysalign.region`)."""
    rows = rows_of(analysis, label)
    reason = _no_start_record(analysis, label, rows)
    if not reason:
        make = {"delay": _delay, "synchronize": _synchronize, "flush": _flush, "warm": _warm}[intervention]
        made = make(analysis, label, rows, spans, decorated, seed)
        if isinstance(made, Plan):
            reason = _cannot_tell(made) or _cannot_place(analysis, made)
            if not reason:
                return made
        else:
            reason = made
    return Refusal(label, intervention, reason)


# --- what no intervention can do ---


def _no_start_record(analysis: Analysis, label: str, rows: np.ndarray) -> str:
    if not len(rows):
        lost = analysis.unaligned[analysis.unaligned["label"] == label]
        if len(lost):
            return f"its intervals could not be placed: {lost['reason'].iloc[0]}"
        return "no interval has that label"
    i = analysis.intervals.iloc[rows]
    if (i["kind"] == "host").any():
        return "it is timed by the host's clock: there is no start record to intervene at"
    if (i["kind"] == "nvtx").any() or (i["method"] == "inferred").any():
        return "without an event log nobody knows which call made its start record"
    if (i["site"] == "").all():
        return "the event log does not say where its start record is made"
    if len(rows) < FEWEST:
        return f"{len(rows)} intervals: at least {FEWEST} are needed to see a spread"
    return ""


def _cannot_place(analysis: Analysis, made: Plan) -> str:
    """The intervention must lie outside of every interval of the label itself."""
    i = analysis.intervals
    mine = i.iloc[rows_of(analysis, made.target)]
    ends = set(zip(mine["pid"].tolist(), mine["end_record"].tolist(), strict=True))
    if made.intervention != "warm" and ends & set(
        zip(mine["pid"].tolist(), mine["start_record"].tolist(), strict=True)
    ):
        return "its start record is also the end record of the interval before: the intervention would lie inside that one"
    for _, lane in mine.groupby(["pid", "device", "start_stream"]):
        start, end = (lane[c].to_numpy() for c in ("start_ns", "end_ns"))
        if (start[1:] < np.maximum.accumulate(end)[:-1]).any():
            return "its intervals overlap: the intervention before one would lie inside another"
    return ""


def _cannot_tell(made: Plan) -> str:
    low, high = made.predicted_bounds_ns
    if np.isnan(low) or high < made.before_bounds_ns[0] or low > made.before_bounds_ns[1]:
        return ""
    return (
        f"it would tell nothing: {_us(made.before_ns)} measured, {_us(low)} to {_us(high)} predicted with the "
        f"intervention{' (the GPU works most of the time)' if made.intervention == 'delay' else ''}"
    )


def _us(ns: float) -> str:
    return f"{ns / 1e3:,.1f} us"


# --- one planner per intervention: a Plan, or the reason for none ---


def _delay(
    analysis: Analysis,
    label: str,
    rows: np.ndarray,
    spans: Spans,
    decorated: frozenset[str],
    seed: int,
) -> Plan | str:
    if reason := _blocks(analysis, label, rows, spans):
        return reason
    i = analysis.intervals.iloc[rows]
    elapsed = i["elapsed_ns"].to_numpy(dtype=np.float64)
    expected = gpu_time(analysis, rows)
    measured = level(np.column_stack([elapsed, expected.middle, expected.error]), CONFIDENCE, seed)
    # waiting for another stream may shrink behind a delay as well: it may, it need not
    queued = float(np.median(parts_of(analysis, rows, "queued")))
    predicted, error = measured[1], measured[2, 0]
    host = spans.host_ns[rows]
    issue = np.where(host >= 0, host, elapsed)
    # a first run may load code for a second: it is left out afterwards instead of delaying all the others so long
    longest = min(float(issue.max()), 3 * float(np.median(issue)))
    delay = int(max(DELAY_FACTOR * longest + DELAY_MARGIN_NS, SHORTEST_DELAY_NS))
    if delay * len(rows) > MOST_ADDED_NS:
        return f"a delay of {delay / 1e9:.1f} s before each of its {len(rows)} intervals would take too long"
    return Plan(
        label,
        "delay",
        label,
        _settled(analysis, label, "delay"),
        "elapsed",
        measured[0, 0],
        (measured[0, 1], measured[0, 2]),
        predicted[0],
        (predicted[1] - error, predicted[2] + error + queued),
        len(rows),
        int(i["operations"].median()),
        delay,
        *_where(analysis, label),
    )


def _blocks(analysis: Analysis, label: str, rows: np.ndarray, spans: Spans) -> str:
    """Why the host could not run ahead of these intervals."""
    i = analysis.intervals.iloc[rows]
    if (i["start_stream"] != i["end_stream"]).any():
        return "its two records lie on different streams: a delay before the first does not hold the second"
    if not spans.same_thread[rows].all():
        return "its two records are made by different threads: the delay does not tell one to run ahead of the other"
    others = analysis.other_streams[analysis.other_streams["interval"].isin(i["interval"])]
    if (i["operations"] == 0).all() and len(others):
        return "its work ran on other streams: a delay before its start record does not hold them"
    if float(np.median(parts_of(analysis, rows, "sync"))) > 0:
        return "the host synchronises inside (sync in the budget): it would wait for the delay, not run ahead of it"
    if int(i["operations"].max()) >= LAUNCH_QUEUE:
        return (
            f"it issues {int(i['operations'].max()):,} operations and the launch queue holds about {LAUNCH_QUEUE:,}: "
            "the host would wait for the delay"
        )
    d = analysis.details[analysis.details["interval"].isin(i["interval"])]
    blocking = d[(d["memory"] == "pageable") & ((d["direction"] == "D2H") | (d["bytes"] > STAGED_BYTES))]
    if len(blocking):
        return "it copies from or to pageable memory: the host would wait for the delay in that call (.item() and .cpu() do)"
    if any(f.rule == "launch-blocking" for f in findings_of(analysis, label)):
        return "CUDA_LAUNCH_BLOCKING is set: every launch would wait for the delay"
    return ""


def _synchronize(
    analysis: Analysis,
    label: str,
    rows: np.ndarray,
    spans: Spans,
    decorated: frozenset[str],
    seed: int,
) -> Plan | str:
    """Between GPU time alone and the host's own pace, for the host no longer runs ahead."""
    i = analysis.intervals.iloc[rows]
    elapsed = i["elapsed_ns"].to_numpy(dtype=np.float64)
    queued = parts_of(analysis, rows, "queued")
    if float(np.median(queued)) == 0:
        return "its budget has no time queued behind other work"
    expected = gpu_time(analysis, rows)
    work = parts_of(analysis, rows, "kernel", "graph", "memcpy", "memset")
    host = spans.host_ns[rows]
    # where the log does not say how long the host took to issue it, only the budget can
    paced = np.where(host >= 0, work + host, elapsed - queued)
    slack = HOST_ERROR_NS + HOST_ERROR_SHARE * np.where(host >= 0, host, elapsed - queued)
    least = np.minimum(expected.middle - expected.error, elapsed - queued)
    most = np.maximum(paced, elapsed - queued) + slack + WORK_ERROR_SHARE * work
    values = level(np.column_stack([elapsed, elapsed - queued, least, most]), CONFIDENCE, seed)
    return Plan(
        label,
        "synchronize",
        label,
        _settled(analysis, label, "synchronize"),
        "elapsed",
        values[0, 0],
        (values[0, 1], values[0, 2]),
        values[1, 0],
        (max(values[2, 1], 0.0), values[3, 2]),
        len(rows),
        int(i["operations"].median()),
        0,
        *_where(analysis, label),
    )


def _flush(
    analysis: Analysis,
    label: str,
    rows: np.ndarray,
    spans: Spans,
    decorated: frozenset[str],
    seed: int,
) -> Plan | str:
    """The kernels of the warm label must become as slow as those of the cold one: kernel time is compared, which does
    not depend on how far the host runs ahead, so no delay is needed."""
    cold, warm, rules = _pair_of(analysis, label)
    i = analysis.intervals
    target = warm or label
    mine = rows_of(analysis, target)
    kernel = i["kernel_only_ns"].to_numpy(dtype=np.float64)
    if not kernel[mine].any():
        return "no kernel runs in it whose cache could be cold"
    if len(mine) < FEWEST:
        return f"{len(mine)} intervals of {target}: at least {FEWEST} are needed to see a spread"
    before = level(kernel[mine][:, None], CONFIDENCE, seed)[0]
    predicted, bounds = float("nan"), (float("nan"), float("nan"))
    if cold:
        there = level(kernel[rows_of(analysis, cold)][:, None], CONFIDENCE, seed)[0]
        error = WORK_ERROR_SHARE * there[0] + RESOLUTION_NS
        predicted, bounds = there[0], (there[1] - error, there[2] + error)
    return Plan(
        cold or label,
        "flush",
        target,
        rules,
        "kernel",
        before[0],
        (before[1], before[2]),
        predicted,
        bounds,
        len(mine),
        int(i["operations"].iloc[mine].median()),
        0,
        *_where(analysis, target),
    )


def _pair_of(analysis: Analysis, label: str) -> tuple[str, str, tuple[str, ...]]:
    """(cold label, warm label, rules) of the cold-l2 finding that speaks of this label, from either side."""
    for f in analysis.findings.itertuples(index=False):
        other = f.evidence.get("compared_with") if isinstance(f.evidence, dict) else None
        if f.rule == "cold-l2" and other and label in (f.label, other):
            return str(f.label), str(other), ("cold-l2",)
    return "", "", ()


def _warm(
    analysis: Analysis,
    label: str,
    rows: np.ndarray,
    spans: Spans,
    decorated: frozenset[str],
    seed: int,
) -> Plan | str:
    """The first call of every process must take what the later ones take."""
    if label not in decorated:
        return (
            f"it is no function marked @nsysalign.region({label!r}): calling the user's code twice can have side effects, "
            "so only what is named is repeated"
        )
    first, rest = first_runs(analysis.intervals.iloc[rows])
    if len(rest) < FEWEST:
        return f"{len(rest)} calls after the first: at least {FEWEST} are needed to know a warm one"
    slow = float(np.median(first))
    error = WORK_ERROR_SHARE * float(np.median(rest)) + RESOLUTION_NS + latencies(analysis).fixed[1]
    low, middle, high = (float(v) for v in np.percentile(rest, [0, 50, 100]))
    return Plan(
        label,
        "warm",
        label,
        _settled(analysis, label, "warm"),
        "first run",
        slow,
        (slow, slow),
        middle,
        (low - error, high + error),
        len(rows),
        int(analysis.intervals["operations"].iloc[rows].median()),
        0,
        *_where(analysis, label),
    )


def first_runs(intervals: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """(elapsed of each process's first interval, elapsed of all others), of intervals in time."""
    first = ~intervals["pid"].duplicated().to_numpy()
    elapsed = intervals["elapsed_ns"].to_numpy(dtype=np.float64)
    return elapsed[first], elapsed[~first]


# --- helpers ---


def _settled(analysis: Analysis, label: str, intervention: str) -> tuple[str, ...]:
    rules = [f.rule for f in findings_of(analysis, label) if f.rule in SETTLES[intervention]]
    return tuple(dict.fromkeys(rules))


def _where(analysis: Analysis, label: str) -> tuple[str, tuple[tuple[str, tuple[str, ...]], ...]]:
    """(region, start sites with their callers) of a label.  A label made from call sites holds the start's file and
    line; any other name is a region's.  Callers count where another label has the same site (a Timer class)."""
    i = analysis.intervals
    mine = i[i["label"] == label]
    shared = set(i.loc[i["label"] != label, "site"])
    starts = {
        (site, tuple(callers) if site in shared else ())
        for site, callers in zip(mine["site"].tolist(), mine["callers"].tolist(), strict=True)
        if site
    }
    by_site = any(site.rpartition("/")[2] in label for site, _ in starts)
    return "" if by_site else label, tuple(sorted(starts))
