"""Which single intervention tests a label's cause, and what it must show if the cause is right.

    delay         a delay kernel before the start record: the host runs ahead, GPU time remains
    synchronize   the device is idle before the start record: nothing is left to queue behind

`plan` designs the experiment; one that could not give an answer is refused there, with the reason,
before anything runs again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from nsysalign.addons.confirm.prediction import WORK_ERROR_SHARE, gpu_time, parts_of
from nsysalign.compare.bootstrap import level
from nsysalign.model import HIDDEN_BY_DELAY, LAUNCH_QUEUE, Analysis, EventLog
from nsysalign.text import microseconds

#: intervention -> the rules whose findings it settles.
SETTLES: Mapping[str, tuple[str, ...]] = {
    "delay": ("host-gap", "many-tiny-kernels", "api-launch", "allocation-inside"),
    "synchronize": ("queued-dependency", "queued-contention"),
}
#: Fewer intervals on a side say nothing about a spread.
FEWEST = 3
#: The largest of this many calls is larger than 95 of 100 further ones.
ENOUGH_TO_BOUND = 20
#: The delay outlasts the host's part by this factor and this margin; 20 us did not, 1 ms did
#: (measured).
DELAY_FACTOR, DELAY_MARGIN_NS, SHORTEST_DELAY_NS = 2.0, 200_000, 1_000_000
#: A re-run may add this much GPU time in total.
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
    rules: tuple[str, ...]
    before_ns: float
    before_bounds_ns: tuple[float, float]
    predicted_ns: float
    predicted_bounds_ns: tuple[float, float]
    count: int  # intervals before
    operations: int  # of the typical interval
    delay_ns: int = 0
    #: What the re-run must share: the GPUs, and whether events were traced.
    machine: tuple[str, ...] = ()
    region: str = ""  # the label if a region named it
    starts: tuple[tuple[str, tuple[str, ...]], ...] = ()  # (site, callers) of its start records


def rows_of(analysis: Analysis, label: str) -> np.ndarray:
    """Positions of a label's intervals in `analysis.intervals`, in time."""
    at = np.flatnonzero((analysis.intervals["label"] == label).to_numpy())
    return at[np.argsort(analysis.intervals["start_ns"].to_numpy()[at], kind="stable")]


def findings_of(analysis: Analysis, label: str) -> list[Any]:
    """Findings about a label, the most important first."""
    f = analysis.findings
    return list(f[f["label"] == label].itertuples(index=False))


def testable(analysis: Analysis) -> frozenset[str]:
    """Labels at whose start records the probe could intervene: event pairs that a Python program's
    own code made."""
    if not (analysis.collected_with("python") or analysis.collected_with("torch")):
        return frozenset()  # another program's log, or none: no probe would run in it
    i, labels = analysis.intervals, analysis.labels
    own = set(labels.loc[(labels["kind"] == "event") & ~labels["library"], "label"])
    inferred = set(i.loc[i["method"] == "inferred", "label"])
    return frozenset((own & set(i.loc[i["site"] != "", "label"])) - inferred)


def confirmable(analysis: Analysis) -> list[str]:
    """Labels with a warning that a re-run could settle, the most important first."""
    rules = {rule for settled in SETTLES.values() for rule in settled}
    f = analysis.findings
    worth = f[f["rule"].isin(rules) & (f["severity"] != "info")]
    own = testable(analysis)
    return [label for label in dict.fromkeys(worth["label"].tolist()) if label in own]


def choose(analysis: Analysis, label: str) -> str:
    """The intervention that fits the label's cause: its first finding that one settles, else its
    largest idle part."""
    for finding in findings_of(analysis, label):
        for intervention, rules in SETTLES.items():
            if finding.rule in rules:
                return intervention
    rows = rows_of(analysis, label)
    queued = float(np.median(parts_of(analysis, rows, "queued"))) if len(rows) else 0.0
    return (
        "synchronize" if queued > np.median(parts_of(analysis, rows, *HIDDEN_BY_DELAY)) else "delay"
    )


def machine(analysis: Analysis) -> tuple[str, ...]:
    """What would make two runs incomparable: another GPU, or event tracing in only one of them."""
    traced = (analysis.intervals["method"] == "event-trace").any()
    return (*dict.fromkeys(analysis.trace.devices), *(["event tracing"] if traced else []))


def where(analysis: Analysis, label: str) -> dict[str, Any]:
    """`region` and `starts` (start sites with their callers) of a label.  A label made from call
    sites holds the start's file and line; any other name is a region's.  Callers count if another
    label has the same site (a Timer class)."""
    i = analysis.intervals
    mine = i[i["label"] == label]
    shared = set(i.loc[i["label"] != label, "site"])
    starts = {
        (site, tuple(callers) if site in shared else ())
        for site, callers in zip(mine["site"].tolist(), mine["callers"].tolist(), strict=True)
        if site
    }
    by_site = any(site.rpartition("/")[2] in label for site, _ in starts)
    return {"region": "" if by_site else label, "starts": tuple(sorted(starts))}


class Spans(NamedTuple):
    """Arrays of one entry per row of `analysis.intervals`."""

    host_ns: np.ndarray  # int64, -1 if the log does not say
    same_thread: np.ndarray  # bool; True if the log does not say


def spans(analysis: Analysis, log: EventLog | None) -> Spans:
    """From the log's own readings of CLOCK_MONOTONIC (docs/design.md, section 5); both records
    belong to one process."""
    intervals = analysis.intervals
    host, same = np.full(len(intervals), -1, dtype=np.int64), np.ones(len(intervals), dtype=bool)
    if log is None or log.records.empty or intervals.empty:
        return Spans(host, same)
    columns = ("process", "seq", "t0_ns", "t1_ns", "tid")
    known = {
        (p, seq): rest
        for p, seq, *rest in zip(*(log.records[c].tolist() for c in columns), strict=True)
    }
    # a trace made in a container may call a process by another number than the process itself does
    by_pid = {header.get("pid"): number for number, header in enumerate(log.headers)}
    only = 0 if len(log.headers) == 1 else -1
    keys = ("pid", "start_record", "end_record")
    for row, (pid, start, end) in enumerate(
        zip(*(intervals[k].tolist() for k in keys), strict=True)
    ):
        process = by_pid.get(pid, only)
        a, b = known.get((process, start)), known.get((process, end))
        if a and b and start >= 0 and end >= 0 and b[1] >= a[0]:
            host[row], same[row] = b[1] - a[0], a[2] == b[2]
    return Spans(host, same)


class Question(NamedTuple):
    """Input for planning: can this label's cause be tested?"""

    analysis: Analysis
    label: str
    rows: np.ndarray  # of its intervals, in time
    spans: Spans

    def plan(
        self,
        intervention: str,
        before: Sequence[float],
        predicted_ns: float,
        bounds_ns: tuple[float, float],
        *,
        delay_ns: int = 0,
    ) -> Plan:
        """The experiment on the label itself; `before`: (value, low, high)."""
        rules = [f.rule for f in findings_of(self.analysis, self.label)]
        settled = tuple(dict.fromkeys(r for r in rules if r in SETTLES[intervention]))
        return Plan(
            self.label, intervention, settled, before[0], (before[1], before[2]), predicted_ns,
            bounds_ns, len(self.rows),
            int(self.analysis.intervals["operations"].iloc[self.rows].median()), delay_ns,
            **where(self.analysis, self.label),
        )  # fmt: skip


def delay(q: Question) -> Plan | str:
    analysis, rows, spans = q.analysis, q.rows, q.spans
    if reason := _blocks(analysis, q.label, rows, spans):
        return reason
    i = analysis.intervals.iloc[rows]
    elapsed = i["elapsed_ns"].to_numpy(dtype=np.float64)
    expected = gpu_time(analysis, rows)
    measured = level(np.column_stack([elapsed, expected.middle, expected.error]))
    # waiting for another stream may shrink behind a delay as well, but need not
    queued = float(np.median(parts_of(analysis, rows, "queued")))
    predicted, error = measured[1], measured[2, 0]
    host = spans.host_ns[rows]
    issue = np.where(host >= 0, host, elapsed)
    # a first run may load code for a second: it is left out afterwards instead of delaying all the
    # others so long
    longest = min(float(issue.max()), 3 * float(np.median(issue)))
    wanted = int(max(DELAY_FACTOR * longest + DELAY_MARGIN_NS, SHORTEST_DELAY_NS))
    if wanted * len(rows) > MOST_ADDED_NS:
        each = f"a delay of {wanted / 1e9:.1f} s before each of its {len(rows)} intervals"
        return f"{each} would take too long"
    bounds = (max(predicted[1] - error, 0.0), predicted[2] + error + queued)
    return q.plan("delay", measured[0], predicted[0], bounds, delay_ns=wanted)


def _blocks(analysis: Analysis, label: str, rows: np.ndarray, spans: Spans) -> str:
    """Why the host could not run ahead of these intervals."""
    i = analysis.intervals.iloc[rows]
    if (i["start_stream"] != i["end_stream"]).any():
        return (
            "its two records lie on different streams: a delay before the first does not delay the "
            "second"
        )
    if not spans.same_thread[rows].all():
        return (
            "its two records are made by different threads: the delay does not let one run ahead "
            "of the other"
        )
    others = analysis.other_streams[analysis.other_streams["interval"].isin(i["interval"])]
    if (i["operations"] == 0).all() and len(others):
        return "its work ran on other streams: a delay before its start record does not delay them"
    if float(np.median(parts_of(analysis, rows, "sync"))) > 0:
        return (
            "the host synchronises inside (sync in the budget), so it would wait for the delay "
            "instead of running ahead"
        )
    if int(i["operations"].max()) >= LAUNCH_QUEUE:
        return (
            f"it issues {int(i['operations'].max()):,} operations and the launch queue holds about "
            f"{LAUNCH_QUEUE:,}, so the host would wait for the delay"
        )
    d = analysis.details[analysis.details["interval"].isin(i["interval"])]
    blocking = d[
        (d["memory"] == "pageable") & ((d["direction"] == "D2H") | (d["bytes"] > STAGED_BYTES))
    ]
    if len(blocking):
        return (
            "it copies from or to pageable memory, and the host would wait for the delay in that "
            "call (as in .item() and .cpu())"
        )
    if any(f.rule == "launch-blocking" for f in findings_of(analysis, label)):
        return "CUDA_LAUNCH_BLOCKING is set: every launch would wait for the delay"
    return ""


def synchronize(q: Question) -> Plan | str:
    """Predicts a time between GPU time alone and the host's own pace, because the host no longer
    runs ahead."""
    analysis, rows = q.analysis, q.rows
    i = analysis.intervals.iloc[rows]
    elapsed = i["elapsed_ns"].to_numpy(dtype=np.float64)
    queued = parts_of(analysis, rows, "queued")
    if float(np.median(queued)) == 0:
        return "it spends no time queued behind other work"
    expected = gpu_time(analysis, rows)
    work = parts_of(analysis, rows, "kernel", "graph", "memcpy", "memset")
    host = q.spans.host_ns[rows]
    # if the log does not say how long the host took to issue it, only the budget can
    paced = np.where(host >= 0, work + host, elapsed - queued)
    slack = HOST_ERROR_NS + HOST_ERROR_SHARE * np.where(host >= 0, host, elapsed - queued)
    least = np.minimum(expected.middle - expected.error, elapsed - queued)
    most = np.maximum(paced, elapsed - queued) + slack + WORK_ERROR_SHARE * work
    values = level(np.column_stack([elapsed, elapsed - queued, least, most]))
    return q.plan("synchronize", values[0], values[1, 0], (max(values[2, 1], 0.0), values[3, 2]))


#: intervention -> its planner: a Plan, or the reason for none.
PLANNERS = {"delay": delay, "synchronize": synchronize}


def plan(
    analysis: Analysis,
    label: str,
    intervention: str,
    spans: Spans,
) -> Plan | Refusal:
    """The experiment, or why there is none."""
    rows = rows_of(analysis, label)
    reason = _no_start_record(analysis, label, rows)
    if not reason:
        made = PLANNERS[intervention](Question(analysis, label, rows, spans))
        if isinstance(made, str):
            return Refusal(label, intervention, made)
        low, high = made.predicted_bounds_ns
        if high >= made.before_bounds_ns[0] and low <= made.before_bounds_ns[1]:
            busy = " (the GPU works most of the time)" if intervention == "delay" else ""
            reason = (
                f"a test could not decide anything: {microseconds(made.before_ns)} measured, "
                f"{microseconds(low)} to {microseconds(high)} predicted with the change{busy}"
            )
        reason = reason or _cannot_place(analysis, made)
        if not reason:
            return replace(made, machine=machine(analysis))
    return Refusal(label, intervention, reason)


def _no_start_record(analysis: Analysis, label: str, rows: np.ndarray) -> str:
    if not len(rows):
        lost = analysis.unaligned[analysis.unaligned["label"] == label]
        if len(lost):
            return f"its intervals could not be placed: {lost['reason'].iloc[0]}"
        return "no interval has that label"
    i = analysis.intervals.iloc[rows]
    if (i["kind"] == "host").any():
        return "it is timed with the host's clock, so there is no start record to intervene at"
    if (i["kind"] == "nvtx").any() or (i["method"] == "inferred").any():
        return "without an event log it is not known which call made its start record"
    if (i["site"] == "").all():
        return "the event log does not say where its start record is made"
    if len(rows) < FEWEST:
        return f"{len(rows)} intervals: at least {FEWEST} are needed to see a spread"
    return ""


def _cannot_place(analysis: Analysis, made: Plan) -> str:
    """The intervention must lie outside every interval of the label itself."""
    i = analysis.intervals
    mine = i.iloc[rows_of(analysis, made.label)]
    ends = set(zip(mine["pid"].tolist(), mine["end_record"].tolist(), strict=True))
    if ends & set(zip(mine["pid"].tolist(), mine["start_record"].tolist(), strict=True)):
        return (
            "its start record is also the end record of the interval before, so the change would "
            "lie inside that one"
        )
    for _, lane in mine.groupby(["pid", "device", "start_stream"]):
        start, end = (lane[c].to_numpy() for c in ("start_ns", "end_ns"))
        if (start[1:] < np.maximum.accumulate(end)[:-1]).any():
            return "its intervals overlap, so a change before one would lie inside another"
    return ""
