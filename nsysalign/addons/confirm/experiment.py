"""Which single change tests a label's cause, and what it must show if the cause is right.

    delay         a delay kernel before the start record: the host runs ahead, GPU time remains
    synchronize   the device is idle before the start record: nothing is left to queue behind

A test that could not give an answer is refused, with the reason, before anything runs again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nsysalign.compare.bootstrap import level
from nsysalign.model import HIDDEN_BY_DELAY, LAUNCH_QUEUE, OPERATION_KINDS, Analysis, EventLog
from nsysalign.text import microseconds

#: Change -> the rules whose findings it settles.
SETTLES: Mapping[str, tuple[str, ...]] = {
    "delay": ("host-gap", "many-tiny-kernels", "api-launch", "allocation-inside"),
    "synchronize": ("queued",),
}
#: Fewer intervals on a side say nothing about a spread.
FEWEST = 3
#: The delay outlasts the host's part by this factor and this margin; 20 us did not, 1 ms did
#: (measured).
DELAY_FACTOR, DELAY_MARGIN_NS, SHORTEST_DELAY_NS = 2.0, 200_000, 1_000_000
#: A re-run may add this much GPU time in total.
MOST_ADDED_NS = 600 * 1_000_000_000
#: Copies up to this size from pageable memory are staged without waiting for the stream.
STAGED_BYTES = 64 * 1024
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


class Refused(Exception):
    """No re-run can answer; the text says why."""


class Level(NamedTuple):
    """A time in ns, and its bounds."""

    ns: float
    low: float
    high: float


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


def testable(analysis: Analysis) -> frozenset[str]:
    """Labels at whose start records the probe could intervene: event pairs that a Python program's
    own code made."""
    if not (analysis.known.python or analysis.known.torch):
        return frozenset()  # another program's log, or none: no probe would run in it
    i, labels = analysis.intervals, analysis.labels
    own = set(labels.loc[(labels["kind"] == "event") & ~labels["library"], "label"])
    inferred = set(i.loc[i["method"] == "inferred", "label"])
    return frozenset((own & set(i.loc[i["site"] != "", "label"])) - inferred)


def confirmable(analysis: Analysis) -> list[str]:
    """Labels with a warning that a re-run could settle, the most important first."""
    rules = {rule for settled in SETTLES.values() for rule in settled}
    f, own = analysis.findings, testable(analysis)
    worth = f.loc[f["rule"].isin(rules) & (f["severity"] != "info"), "label"]
    return [label for label in dict.fromkeys(worth.tolist()) if label in own]


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
    intervals, f = analysis.intervals.iloc[rows], analysis.findings
    refuse_if(_no_start_record(analysis, label, intervals))
    host_ns, one_thread = _issued(intervals, log)
    elapsed = intervals["elapsed_ns"].to_numpy(dtype=np.float64)
    queued = parts_of(analysis, rows, "queued")
    expected, error = gpu_time(analysis, rows)
    delay_ns = 0
    if change == "delay":
        refuse_if(_no_delay(analysis, label, rows, one_thread))
        # waiting for another stream may shrink behind a delay as well, but need not
        least, most = expected - error, expected + error + float(np.median(queued))
        # a first run may load code for a second: it is left out afterwards instead of delaying all
        # the others so long
        issue = np.where(host_ns >= 0, host_ns, elapsed)
        longest = min(float(issue.max()), 3 * float(np.median(issue)))
        delay_ns = int(max(DELAY_FACTOR * longest + DELAY_MARGIN_NS, SHORTEST_DELAY_NS))
        each = f"a delay of {delay_ns / 1e9:.1f} s before each of its {len(rows)} intervals"
        refuse_if([(delay_ns * len(rows) > MOST_ADDED_NS, f"{each} would take too long")])
    else:
        refuse_if([(np.median(queued) == 0, "it spends no time queued behind other work")])
        # between GPU time alone and the host's own pace, because the host no longer runs ahead; if
        # the log does not say how long the host took to issue it, only the budget can
        work, rest = parts_of(analysis, rows, *OPERATION_KINDS), elapsed - queued
        host = np.where(host_ns >= 0, host_ns, rest)
        slack = HOST_ERROR_NS + HOST_ERROR_SHARE * host + WORK_ERROR_SHARE * work
        least = np.minimum(expected - error, rest)
        most = np.maximum(np.where(host_ns >= 0, work + host_ns, rest), rest) + slack
        expected = rest
    values = level(np.column_stack([elapsed, expected, least, most]))
    before = Level(*values[0].tolist())
    predicted = Level(values[1, 0], max(values[2, 1], 0.0), values[3, 2])
    if predicted.high >= before.low and predicted.low <= before.high:
        busy = " (the GPU works most of the time)" if change == "delay" else ""
        raise Refused(
            f"a test could not decide anything: {microseconds(before.ns)} measured, "
            f"{microseconds(predicted.low)} to {microseconds(predicted.high)} predicted with the "
            f"change{busy}"
        )
    refuse_if(_inside_itself(intervals))
    rules = [r for r in f.loc[f["label"] == label, "rule"] if r in SETTLES[change]]
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
        tuple(dict.fromkeys(rules)), delay_ns, tuple(dict.fromkeys(analysis.trace.devices)),
        "" if by_site else label, tuple(sorted(starts)),
    )  # fmt: skip


def _issued(intervals: pd.DataFrame, log: EventLog | None) -> tuple[np.ndarray, np.ndarray]:
    """For how long (ns) the host issued each interval, by the log's readings of CLOCK_MONOTONIC, -1
    unknown; and whether one thread made both records (True where unknown)."""
    if log is None or log.records.empty:
        return np.full(len(intervals), -1), np.ones(len(intervals), bool)
    # a trace made in a container may call a process by another number than the process itself does
    numbers = {header.get("pid"): number for number, header in enumerate(log.headers)}
    only = 0 if len(log.headers) == 1 else -1
    process = [numbers.get(pid, only) for pid in intervals["pid"]]
    records = log.records.set_index(["process", "seq"])[["t0_ns", "t1_ns", "tid"]]
    start, end = (
        records.reindex(pd.MultiIndex.from_arrays([process, intervals[column]])).to_numpy(float)
        for column in ("start_record", "end_record")
    )
    host_ns = np.nan_to_num(end[:, 1] - start[:, 0], nan=-1)
    return np.maximum(host_ns, -1), (host_ns < 0) | (start[:, 2] == end[:, 2])


Reasons = Iterable[tuple[Any, str]]


def refuse_if(reasons: Reasons) -> None:
    """Raises Refused with the first reason that holds."""
    for holds, reason in reasons:
        if holds:
            raise Refused(reason)


def _no_start_record(analysis: Analysis, label: str, i: pd.DataFrame) -> Reasons:
    lost = analysis.unaligned.loc[analysis.unaligned["label"] == label, "reason"].tolist()
    yield i.empty and lost, f"its intervals could not be placed: {lost[0] if lost else ''}"
    yield i.empty, "no interval has that label"
    yield (i["kind"] == "host").any(), "the host's clock times it: there is no start record"
    read = (i["kind"] == "nvtx").any() or (i["method"] == "inferred").any()
    yield read, "without an event log it is not known which call made its start record"
    yield (i["site"] == "").all(), "the event log does not say where its start record is made"
    yield len(i) < FEWEST, f"{len(i)} intervals: at least {FEWEST} are needed for a spread"


def _no_delay(analysis: Analysis, label: str, rows: np.ndarray, one_thread: np.ndarray) -> Reasons:
    """Where the host could not run ahead of these intervals, or the delay would not delay them."""
    i, f = analysis.intervals.iloc[rows], analysis.findings
    others = analysis.other_streams["interval"].isin(i["interval"]).any()
    d = analysis.details[analysis.details["interval"].isin(i["interval"])]
    large = (d["direction"] == "D2H") | (d["bytes"] > STAGED_BYTES)
    most, sync = int(i["operations"].max()), np.median(parts_of(analysis, rows, "sync"))
    blocking = ((f["label"] == label) & (f["rule"] == "launch-blocking")).any()
    waits = "so the host would wait for the delay"
    yield (i["start_stream"] != i["end_stream"]).any(), "its records lie on different streams"
    yield not one_thread.all(), "its two records are made by different threads"
    yield others and (i["operations"] == 0).all(), "its work ran on other streams"
    yield sync > 0, f"the host synchronises inside, {waits}"
    many = f"{most:,} operations are more than the launch queue holds, {waits}"
    yield most >= LAUNCH_QUEUE, many
    yield ((d["memory"] == "pageable") & large).any(), f"it copies pageable memory, {waits}"
    yield blocking, f"CUDA_LAUNCH_BLOCKING is set, {waits}"


def _inside_itself(intervals: pd.DataFrame) -> Reasons:
    """The change must lie outside every interval of the label itself."""
    starts, ends = (
        set(zip(intervals["pid"], intervals[c], strict=True))
        for c in ("start_record", "end_record")
    )
    inside = "so a change before one would lie inside another"
    yield starts & ends, f"one's start record is the end record of the interval before, {inside}"
    for _, lane in intervals.groupby(["pid", "device", "start_stream"]):
        start, end = (lane[name].to_numpy() for name in ("start_ns", "end_ns"))
        overlap = (start[1:] < np.maximum.accumulate(end)[:-1]).any()
        yield overlap, f"its intervals overlap, {inside}"


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
