"""Which single change tests a label's cause, what it must show if the cause is right, and what the
re-run shows.

    delay         a delay kernel before the start record: the host runs ahead, GPU time remains
    synchronize   the device is idle before the start record: nothing is left to queue behind

    before                                  |=====|
    predicted            |======|
    after                   |==|                 confirmed: the bounds of the re-run meet the prediction
    after                             |==|       refuted: they do not
    after                   |==================| unclear: they also include the time before

A test that could not give an answer is refused, with the reason, before anything runs again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.addons.confirm.verdicts import CONFIRMATIONS, SETTLES
from nsysalign.causes import HIDDEN_BY_DELAY, NONE_IF_AHEAD
from nsysalign.compare.bootstrap import level
from nsysalign.model import OPERATION_KINDS, Analysis, EventLog
from nsysalign.text import microseconds
from nsysalign.untrusted import json_or_none, lines_of

#: Fewer intervals on a side say nothing about a spread.
FEWEST = 3
#: The delay outlasts the host's part by this factor and this margin; 20 us did not, 1 ms did
#: (measured).
DELAY_FACTOR, DELAY_MARGIN_NS, SHORTEST_DELAY_NS = 2.0, 200_000, 1_000_000
#: A re-run may add this much GPU time in total.
MOST_ADDED_NS = 600 * 1_000_000_000
#: The host's slack when it no longer runs ahead: its calls are slower on a cold start.
HOST_ERROR_SHARE, HOST_ERROR_NS = 0.25, 5_000.0
#: Both record latencies together, and the error of that: 2.6 us on one H200 and 4.0 on another.
FIXED_NS = (3_300.0, 1_200.0)
#: Consecutive records behind work: 1.28 us, 2.9 with event tracing.
SPACING_NS = (1_600.0, 1_300.0)
#: An operation behind another one that was issued long before: an H200 takes 0.84 us (50 tiny
#: launches behind a delay), 0.9 (EfficientNet-b0), 1.06-1.47 if records are close by.
GAP_NS, GAP_ERROR_NS = 950.0, 350.0
#: Gaps of pure launch latency below this are operations that waited in the queue: on an idle stream
#: it takes 2 us.
QUEUED_GAP_NS, ENOUGH_GAPS = 1_600, 20
#: Kernels that follow within this were launched as a pair (split-K and its reduction: 1 ns): not
#: representative of others.
PAIRED_NS = 300
#: How well kernel times repeat from run to run (clock boost, addresses), and the event clock's
#: ticks of 32 ns at both ends.
WORK_ERROR_SHARE, RESOLUTION_NS = 0.03, 64.0
#: This much of the host's parts can come from the window's own error bar.
LATE_NS = 500
#: The delay must have outlasted the host before this share of the intervals.
ENOUGH_SHARE = 0.5
#: Different work: this many times more or fewer operations.
SAME_WORK = 1.2


class Refused(Exception):
    """No re-run can answer; the text says why."""


class Level(NamedTuple):
    """A time in ns, and its bounds."""

    ns: float
    low: float
    high: float


NOTHING = Level(np.nan, np.nan, np.nan)


@dataclass(frozen=True)
class Plan:
    """One experiment: what is done where, and what it must show."""

    label: str
    change: str
    before: Level
    predicted: Level
    count: int = FEWEST  # intervals before
    operations: int = 1  # of the typical interval
    rules: tuple[str, ...] = ()  # whose findings about the label it settles
    delay_ns: int = 0
    devices: tuple[str, ...] = ()  # what the re-run must share
    region: str = ""  # the label if a region named it
    starts: tuple[tuple[str, tuple[str, ...]], ...] = ()  # (site, callers) of its start records


def rows_of(analysis: Analysis, label: str) -> np.ndarray:
    """Positions of a label's intervals in `analysis.intervals`, in time."""
    rows = np.flatnonzero((analysis.intervals["label"] == label).to_numpy())
    return rows[np.argsort(analysis.intervals["start_ns"].to_numpy()[rows], kind="stable")]


def parts_of(analysis: Analysis, rows: np.ndarray, *causes: str) -> np.ndarray:
    """Nanoseconds of these causes together, for some rows of `analysis.intervals`."""
    table = analysis.parts[analysis.parts["cause"].isin(causes)]
    sums = table.groupby("interval")["ns"].sum()
    numbers = analysis.intervals["interval"].to_numpy()[rows]
    return sums.reindex(numbers, fill_value=0).to_numpy(dtype=np.float64)


def choose(analysis: Analysis, label: str) -> str:
    """The change that fits the label's cause: its first finding that one settles, else its largest
    idle part."""
    f = analysis.findings
    for rule in f.loc[f["label"] == label, "rule"]:
        for change, rules in SETTLES.items():
            if rule in rules:
                return change
    rows = rows_of(analysis, label)
    queued, hidden = (
        parts_of(analysis, rows, *causes).sum() for causes in (("queued",), HIDDEN_BY_DELAY)
    )
    return "synchronize" if queued > hidden else "delay"


def plan(analysis: Analysis, label: str, change: str, log: EventLog | None) -> Plan:
    """The experiment.  Raises Refused."""
    rows = rows_of(analysis, label)
    intervals = analysis.intervals.iloc[rows]
    host_ns, one_thread = _issued(intervals, log)
    for reason in _refusals(analysis, label, rows, change, one_thread):
        raise Refused(reason)
    elapsed = intervals["elapsed_ns"].to_numpy(dtype=np.float64)
    if change == "delay":
        delay_ns = _delay_ns(elapsed, host_ns)
        expected, least, highest = _behind_a_delay(analysis, rows)
    else:
        delay_ns = 0
        expected, least, highest = _after_waiting(analysis, rows, host_ns)
    values = level(np.column_stack([elapsed, expected, least, highest]))
    before = Level(*values[0].tolist())
    predicted = Level(values[1, 0], max(values[2, 1], 0.0), values[3, 2])
    if _meet(predicted, before):
        busy = " (the GPU works most of the time)" if change == "delay" else ""
        low, high = map(microseconds, predicted[1:])
        raise Refused(
            f"a test could not decide anything: {microseconds(before.ns)} measured, {low} to "
            f"{high} predicted with the change{busy}"
        )
    # a label made from call sites holds the start's file and line, any other name is a region's;
    # callers count if another label has the same site (a Timer class)
    shared = set(analysis.intervals.loc[analysis.intervals["label"] != label, "site"])
    starts = {
        (site, tuple(callers) if site in shared else ())
        for site, callers in zip(intervals["site"], intervals["callers"], strict=True)
        if site
    }
    by_site = any(site.rpartition("/")[2] in label for site, _ in starts)
    return Plan(
        label, change, before, predicted, len(rows), int(intervals["operations"].median()),
        _settled(analysis, label, change), delay_ns,
        tuple(dict.fromkeys(analysis.trace.devices)), "" if by_site else label,
        tuple(sorted(starts)),
    )  # fmt: skip


def _issued(intervals: pd.DataFrame, log: EventLog | None) -> tuple[np.ndarray, bool]:
    """For how long (ns) the host issued each interval, by the log's readings of CLOCK_MONOTONIC, -1
    unknown; and whether one thread made both records of each (True where unknown)."""
    if log is None or log.records.empty:
        return np.full(len(intervals), -1), True
    # a trace made in a container may call a process by another number than the process itself does
    numbers = {header.get("pid"): number for number, header in enumerate(log.headers)}
    only = 0 if len(log.headers) == 1 else -1
    process = [numbers.get(pid, only) for pid in intervals["pid"]]
    records = log.records.set_index(["process", "seq"])[["t0_ns", "t1_ns", "tid"]]
    start, end = (
        records.reindex(pd.MultiIndex.from_arrays([process, intervals[column]])).to_numpy(float)
        for column in ("start_record", "end_record")
    )
    host_ns = np.maximum(np.nan_to_num(end[:, 1] - start[:, 0], nan=-1), -1)
    return host_ns, bool(((host_ns < 0) | (start[:, 2] == end[:, 2])).all())


def _refusals(
    analysis: Analysis, label: str, rows: np.ndarray, change: str, one_thread: bool
) -> Iterator[str]:
    """Why a change before the start records would say nothing about a label."""
    i = analysis.intervals.iloc[rows]
    lost = analysis.unaligned.loc[analysis.unaligned["label"] == label, "reason"].tolist()
    if i.empty:
        yield f"its intervals could not be placed: {lost[0]}" if lost else "it has no interval"
    if (i["kind"] != "event").any() or (i["method"] == "inferred").any() or (i["site"] == "").all():
        yield "the event log does not say where its start record is made"
    if len(i) < FEWEST:
        yield f"{len(i)} intervals: at least {FEWEST} are needed for a spread"
    if change == "synchronize" and np.median(parts_of(analysis, rows, "queued")) == 0:
        yield "it spends no time queued behind other work"
    if change == "delay":
        elsewhere = analysis.other_streams["interval"].isin(i["interval"]).any()
        if (i["start_stream"] != i["end_stream"]).any() or not one_thread:
            yield "its records lie on different streams or in different threads"
        if elsewhere and (i["operations"] == 0).all():
            yield "its work ran on other streams"
        if np.median(parts_of(analysis, rows, "sync")) > 0:
            yield "the host synchronises inside, so it would wait for the delay"
    starts, ends = (
        set(zip(i["pid"], i[column], strict=True)) for column in ("start_record", "end_record")
    )
    latest = i.groupby(["pid", "device", "start_stream"])["end_ns"].transform(
        lambda end: end.cummax().shift(fill_value=0)
    )
    if starts & ends or (i["start_ns"] < latest).any():
        yield "its intervals overlap or share records, so the change would lie inside another one"


def gpu_time(analysis: Analysis, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What intervals measure if the host has run ahead of them, and the error of that: ns.

        start record | ahead | operation | gap | operation | ... | operation | behind | end record

    Operations take as long as before.  A gap between operations that were already queued is kept;
    the others become the usual gap.
    """
    # gaps before operations that had been queued: launch latency, short, and nothing else, or none
    s = analysis.segments
    ns = s["end_ns"] - s["start_ns"]
    short = (s["cause"] == "launch_latency") & (ns < QUEUED_GAP_NS)
    s = s.assign(gap=ns.where(short).shift().fillna(0))[~short]
    works = s["cause"].isin(OPERATION_KINDS)
    next_one = (s["gap"] > 0) | (s["ref_id"].diff() != 0)
    queued = s[works & works.shift(fill_value=False) & (s["interval"].diff() == 0) & next_one]
    usual = queued.loc[queued["gap"] > PAIRED_NS, "gap"]
    gap, gap_error = GAP_NS, GAP_ERROR_NS
    if len(usual) >= ENOUGH_GAPS:
        low, gap, high = np.percentile(usual, [25, 50, 75])
        gap_error = max(high - low, GAP_ERROR_NS)
    numbers = analysis.intervals["interval"].to_numpy()[rows]
    known = queued.groupby("interval")["gap"].agg(["size", "sum"]).reindex(numbers, fill_value=0)
    count = analysis.intervals["operations"].to_numpy()[rows]
    gaps = np.maximum(count - 1 - known["size"].to_numpy(), 0)
    kept = parts_of(analysis, rows, *OPERATION_KINDS) + known["sum"].to_numpy()
    expected = np.where(count > 0, kept + FIXED_NS[0] + gaps * gap, SPACING_NS[0])
    error = np.where(
        count > 0, WORK_ERROR_SHARE * kept + FIXED_NS[1] + gaps * gap_error, SPACING_NS[1]
    )
    return expected, error + RESOLUTION_NS


def _settled(analysis: Analysis, label: str, change: str) -> tuple[str, ...]:
    """The rules whose findings about the label this change settles."""
    rules = analysis.findings.loc[analysis.findings["label"] == label, "rule"]
    return tuple(dict.fromkeys(rules[rules.isin(SETTLES[change])]))


def _delay_ns(elapsed: np.ndarray, host_ns: np.ndarray) -> int:
    """How long the delay before each interval has to be so that the host has issued all of it by then.
    host_ns: how long that took, -1 where the log does not say.  Raises Refused."""
    issue = np.where(host_ns >= 0, host_ns, elapsed)
    # a first run may load code for a second: it is left out afterwards instead of delaying all the
    # others so long
    longest = min(float(issue.max()), 3 * float(np.median(issue)))
    delay_ns = int(max(DELAY_FACTOR * longest + DELAY_MARGIN_NS, SHORTEST_DELAY_NS))
    if delay_ns * len(elapsed) > MOST_ADDED_NS:
        delays = f"a delay of {delay_ns / 1e9:.1f} s before each of its {len(elapsed)} intervals"
        raise Refused(f"{delays} would take too long")
    return delay_ns


def _behind_a_delay(
    analysis: Analysis, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What intervals take behind a delay (ns), at least and at most: GPU time.  Waiting for another stream
    may shrink as well, but need not."""
    expected, error = gpu_time(analysis, rows)
    queued = float(np.median(parts_of(analysis, rows, "queued")))
    return expected, expected - error, expected + error + queued


def _after_waiting(
    analysis: Analysis, rows: np.ndarray, host_ns: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same on a device that was idle before: between GPU time alone and the host's own pace, because
    the host no longer runs ahead.  If the log does not say how long the host took to issue it, only the
    budget can."""
    expected, error = gpu_time(analysis, rows)
    elapsed = analysis.intervals["elapsed_ns"].to_numpy(dtype=np.float64)[rows]
    work = parts_of(analysis, rows, *OPERATION_KINDS)
    unqueued = elapsed - parts_of(analysis, rows, "queued")
    host = np.where(host_ns >= 0, host_ns, unqueued)
    slack = HOST_ERROR_NS + HOST_ERROR_SHARE * host + WORK_ERROR_SHARE * work
    highest = np.maximum(np.where(host_ns >= 0, work + host_ns, unqueued), unqueued) + slack
    return unqueued, np.minimum(expected - error, unqueued), highest


def changed_records(logs: Iterable[Path]) -> set[tuple[int, int]]:
    """(process id, number) of the records before which the probe intervened, according to event logs."""
    changed: set[tuple[int, int]] = set()
    for log in logs:
        pid = -1
        for text in lines_of(log):
            line = json_or_none(text) if '"header"' in text or '"intervened"' in text else None
            if not isinstance(line, dict):
                continue
            if line.get("type") == "header":
                pid = line.get("pid")
            elif line.get("intervened") is True:
                changed.add((pid, line.get("seq")))
    return changed


def judge(
    plan: Plan, after: Analysis, run: str, intervened: Collection[tuple[int, int]]
) -> pd.DataFrame:
    """A row of CONFIRMATIONS from the analysis of a re-run.  Only intervals at whose start record
    the probe intervened (`changed_records`) are compared."""
    rows = rows_of(after, plan.label)
    starts = after.intervals[["pid", "start_record"]].iloc[rows]
    at_a_changed_record = [
        start in intervened for start in starts.itertuples(index=False, name=None)
    ]
    changed = rows[at_a_changed_record]
    devices = tuple(dict.fromkeys(after.trace.devices))
    now, then = float(after.intervals["operations"].iloc[changed].median()), plan.operations
    # the start record stands at the delay's end: if a budget still contains host, API or
    # synchronisation time, the host had not finished issuing by then
    late = parts_of(after, changed, *NONE_IF_AHEAD) > LATE_NS
    late &= plan.change == "delay"
    too_few = len(changed) - late.sum() < FEWEST
    if not len(changed):
        reason = f"the second run has no interval {plan.label} at which the probe intervened"
    elif plan.devices != devices:
        devices_now, devices_then = (", ".join(names) for names in (devices, plan.devices))
        reason = f"the second run was made on {devices_now} instead of {devices_then}"
    elif max(now, then) + 1 > SAME_WORK * (min(now, then) + 1) + 1:
        reason = f"the second run did different work: {now:.0f} operations instead of {then}"
    elif late.sum() > (1 - ENOUGH_SHARE) * len(changed) or (too_few and late.any()):
        reason = (
            f"the delay of {microseconds(plan.delay_ns)} did not outlast the host in {late.sum()} "
            f"of {len(changed)} intervals: something inside waited for it"
        )
    elif too_few:
        reason = f"the second run has {len(changed)} intervals: at least {FEWEST} are needed"
    else:
        values = after.intervals["elapsed_ns"].to_numpy(dtype=np.float64)[changed[~late]]
        measured = Level(*level(values[:, None])[0].tolist())
        verdict, reason = decide(plan, measured)
        if late.any():
            reason += (
                f"; {late.sum()} of {len(changed)} left out, because the delay ended before the "
                "host had issued everything"
            )
        return row(plan, verdict, reason, run, measured, len(values), f"{len(changed):,}")
    return row(plan, "unclear", reason, run, often=f"{len(changed):,}")


def row(
    plan: Plan,
    verdict: str,
    reason: str,
    run: str,
    after: Level = NOTHING,
    count: int = 0,
    often: str = "the",
) -> pd.DataFrame:
    """A row of CONFIRMATIONS; `often`: before how many start records the change was made."""
    change = "torch.cuda.synchronize()"
    if plan.change == "delay":
        change = f"a delay kernel of {microseconds(plan.delay_ns)} on the same stream"
    values = {
        "label": plan.label, "rules": plan.rules, "intervention": plan.change,
        "verdict": verdict, "reason": reason, "before_ns": plan.before.ns,
        "predicted_ns": plan.predicted.ns, "predicted_low_ns": plan.predicted.low,
        "predicted_high_ns": plan.predicted.high, "after_ns": after.ns, "after_low_ns": after.low,
        "after_high_ns": after.high, "before_count": plan.count, "after_count": count,
        "changed": f"{change} before {often} start records of {plan.label}", "run": run,
    }  # fmt: skip
    return frames.check(pd.DataFrame([values]), CONFIRMATIONS)


def decide(plan: Plan, after: Level) -> tuple[str, str]:
    """(verdict, reason) from numbers alone."""
    if not _meet(after, plan.predicted):
        verdict = "refuted"
    else:
        verdict = "unclear" if _meet(after, plan.before) else "confirmed"
    before, now, low, high = map(microseconds, (plan.before.ns, after.ns, *plan.predicted[1:]))
    return verdict, f"{before} before, {now} after, {low} to {high} predicted"


def _meet(first: Level, second: Level) -> bool:
    return first.low <= second.high and second.low <= first.high
