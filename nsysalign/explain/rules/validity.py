"""Does the number answer the question?  Other streams, no synchronisation, events queried too early
or recorded again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nsysalign.explain import thresholds, words
from nsysalign.explain.facts import (
    BEFORE,
    BOTH,
    NEVER,
    Case,
    Facts,
    host_pattern,
    host_patterns,
    idle_share,
    rows_of,
)
from nsysalign.explain.finding import About, Finding

_SYNC = "torch.cuda.synchronize()"


@dataclass(frozen=True, kw_only=True)
class Lost(About):
    """Intervals of a label, and why they have no place."""

    count: int
    reason: str


def unplaced(facts: Facts, pattern: str) -> Iterator[Lost]:
    """Intervals that could not be placed for a matching reason, by label."""
    table = facts.analysis.unaligned
    if table.empty:
        return
    matches = re.compile(pattern, re.IGNORECASE).search
    hit = table[[matches(str(reason)) is not None for reason in table["reason"].tolist()]]
    for label, rows in hit.groupby("label", sort=False):
        reason = str(rows["reason"].iloc[0])
        yield Lost(str(label), str(rows["site"].iloc[0]), count=len(rows), reason=reason)


def wrong_stream(facts: Facts) -> Iterator[Finding]:
    """The events lie on a stream that did no work, while work launched between them ran on another
    stream."""
    # other threads launch on their own streams, too: the work must be the timing thread's own, as
    # far as one can tell
    threads = facts.analysis.intervals["tid"].nunique()
    own = (facts.part("api_launch") > 0) | (threads == 1)
    compared = (facts.analysis.intervals["method"] != "inferred").to_numpy(dtype=bool)
    mask = (
        facts.is_event
        & compared
        & own
        & (facts.work == 0)
        & (facts.other_ns >= thresholds.OTHER_STREAM_NS)
    )
    for case in facts.cases(mask):
        at = case.row
        where = rows_of(facts.analysis.other_streams, at)
        stream = int(facts.analysis.intervals["end_stream"].iloc[at])
        worked, on_it = (int(where[c].iloc[0]) for c in ("stream", "ns"))
        yield case.finding(
            "error",
            f"{case.who} times a stream that did no work: its events are on stream {stream}, the work launched "
            f"between them ran for {words.span(on_it)} on stream {worked}.",
            "Record both events on the stream that does the work:   start.record(stream); ...; end.record(stream)",
            work_on_other_streams_ns=on_it,
            elapsed_ns=facts.elapsed[at],
            timed_stream=stream,
            working_stream=worked,
            seen_in=case.frequency,
        )


def different_streams(facts: Facts) -> Iterator[Finding]:
    """Start and end lie on different streams: their distance is not the duration of the work on
    either."""
    v = facts.analysis.intervals
    start, end = v["start_stream"].to_numpy(), v["end_stream"].to_numpy()
    mask = facts.is_event & (start >= 0) & (end >= 0) & (start != end)
    if not mask.any():
        return
    waited = facts.detail_rows(
        "queued", names=("dependency", "dependency-inferred", "default-stream-order")
    )
    ordered = facts.detail_ns(facts.detail_rows("api", "StreamWaitEvent")) > 0
    ordered |= (
        facts.detail_ns(waited[waited["stream"].to_numpy() == start[waited["interval"].to_numpy()]])
        > 0
    )
    for case in facts.cases(mask):
        at = case.row
        joined = bool(ordered[at])
        how = "a wait joins them inside" if joined else "no wait between them was seen"
        yield case.finding(
            "info" if joined else "warning",
            f"{case.who} starts on stream {start[at]} and ends on stream {end[at]} ({how}): "
            f"{words.span(facts.elapsed[at])} is a distance between two queues, not the duration of one.",
            "Record both on the stream that does the work (start.record(stream); ...; end.record(stream)), or make the end's stream "
            "wait for the start:   stream.wait_event(start)",
            elapsed_ns=facts.elapsed[at],
            start_stream=start[at],
            end_stream=end[at],
            kernel_on_the_end_stream_ns=facts.kernel_only[at],
            seen_in=case.frequency,
        )


def enqueues_only(facts: Facts) -> np.ndarray:
    """Host intervals that end before the GPU has finished, or that nothing makes wait for it."""
    return facts.remember("enqueues only", lambda f: np.logical_or(*_open_ended(f)))


def _open_ended(facts: Facts) -> tuple[np.ndarray, np.ndarray]:
    """Host intervals of which most work ran after their end; others in which nothing waits, yet the
    GPU kept up with the launches."""
    waits = facts.part("sync") > 0
    issued = facts.is_host & (facts.kernel_only > 0) & ~waits
    late = issued & (facts.kernel_outside >= thresholds.ENQUEUE_ONLY_SHARE * facts.kernel_only)
    waits |= facts.part("kernel", "graph", "memcpy", "memset", "queued") > 0
    pattern = host_patterns(facts)
    return late, issued & ~late & ~waits & ((pattern == NEVER) | (pattern == BEFORE))


def enqueue_only(facts: Facts) -> Iterator[Finding]:
    """A host timer that stops before the GPU has finished what was launched inside: it measures the
    enqueueing."""
    late, unforced = _open_ended(facts)
    for case in facts.cases(late):
        yield _enqueue_only(facts, case, "error")
    for case in facts.cases(unforced):
        after = facts.kernel_outside[case.row] > thresholds.SAY_SHARE * facts.kernel_only[case.row]
        yield _enqueue_only(facts, case, "warning" if after else "info")


def _enqueue_only(facts: Facts, case: Case, severity: str) -> Finding:
    at, who = case.row, case.who
    pattern = host_pattern(facts, case)
    before, idle = pattern in (BEFORE, BOTH), idle_share(facts, case)
    kernel, outside = int(facts.kernel_only[at]), int(facts.kernel_outside[at])
    ran_after = f"all {words.span(kernel)}" if outside == kernel else words.of(outside, kernel)
    if severity == "error":
        why = (
            "it synchronises only before the first reading, so it measures the API calls alone"
            if before
            else "nothing waits for the work before the second reading"
            if idle >= thresholds.TYPICAL_SHARE
            else "it never synchronises, and earlier work was still running (behind a full queue its launches would wait for that)"
        )
        title = f"{who} measures the launching, not the GPU: {why}; {ran_after} of kernels ran after the clock was read."
    else:
        where = "synchronises only before the first reading" if before else "never synchronises"
        after = (
            f"{ran_after} of kernels ran after the clock was read"
            if outside
            else "the GPU had finished when the clock was read, but nothing ensures that"
        )
        title = (
            f"{who} {where} and measures the host's launching: kernels ran for "
            f"{words.of(kernel - outside, int(facts.elapsed[at]))} meanwhile, {after}."
        )
    return case.finding(
        severity,
        title,
        f"Synchronise before the second reading as well:   ...; {_SYNC}; t1 = time.perf_counter()"
        if before
        else f"Synchronise before both readings:   {_SYNC}; t0 = time.perf_counter(); ...; {_SYNC}; t1 = time.perf_counter()",
        synchronises=pattern,
        elapsed_ns=facts.elapsed[at],
        launched_kernels_ns=kernel,
        ran_after_the_end_ns=outside,
        ran_meanwhile_ns=kernel - outside,
        launch_calls_ns=facts.part("api_launch")[at],
        seen_in=case.frequency,
    )


def not_ready(facts: Facts) -> Iterator[Finding]:
    """elapsed_time was called before the work was done: torch raised an exception, and the log has
    it."""
    for lost in unplaced(facts, r"elapsed_time failed.*(not ready|notready|completed|\b600\b)"):
        yield lost.finding(
            "error",
            f"{lost.who} asked for elapsed_time before the end event had completed, so there is no result.",
            "Wait for the end event first:   end.synchronize(); ms = start.elapsed_time(end)",
            failed_calls=lost.count,
        )


def recorded_again(facts: Facts) -> Iterator[Finding]:
    """The compared pair is not the measured one: an event was recorded again, or the pair is
    swapped."""
    for lost in unplaced(
        facts, r"negative elapsed_time|recorded (again|since)|contradicts the trace"
    ):
        said = (
            "its end was recorded before its start (swapped, or the start was recorded again since)"
            if "negative" in lost.reason
            else "elapsed_time does not fit between the pair's records (an event recorded again since, or an unseen one)"
        )
        yield lost.finding(
            "error",
            f"{lost.who} compares the wrong records: {said}.",
            "Use a fresh pair per measurement:   start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))",
            pairs=lost.count,
            reason=lost.reason,
        )


def captured(facts: Facts) -> Iterator[Finding]:
    """Events that were recorded while a CUDA graph was captured have no time of their own."""
    for lost in unplaced(facts, r"\bcaptured\b"):
        yield lost.finding(
            "info",
            f"{lost.who} recorded its events into a CUDA graph: they are stamped at each replay and cannot be placed.",
            "Record around the replay:   start.record(); graph.replay(); end.record()",
            pairs=lost.count,
        )
