"""Does the number answer the question?  Other streams, no synchronisation, events queried too early
or recorded again, host timers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from nsysalign.explain import words
from nsysalign.explain.facts import (
    SAY_SHARE,
    TYPICAL_SHARE,
    WARN_SHARE,
    Case,
    Facts,
    Label,
    each_label,
)
from nsysalign.explain.finding import Advice, Finding, evidence

#: Work on other streams makes "no kernel on the timed stream" a wrong stream from this time on.
OTHER_STREAM_NS = 1_000
#: A host timer reads the enqueue only when this share of the kernels issued inside ran after its
#: end.
ENQUEUE_ONLY_SHARE = 0.5
#: Host timers by where they synchronise: before which of their two readings.
BOTH, BEFORE, AFTER, NEVER = "before and after", "only before", "only after", "never"

_SYNC = "torch.cuda.synchronize()"
_ONE_STREAM = Advice(
    "Record both events on the stream that does the work:   start.record(stream); ...; end.record(stream)"
)
_ONE_STREAM_OR_WAIT = Advice(
    "Record both on the stream that does the work (start.record(stream); ...; end.record(stream)), or make the end's stream "
    "wait for the start:   stream.wait_event(start)",
    "Record both events on the stream that does the work, or let the end's stream wait for the other.",
)
_SYNC_AFTER = Advice(
    f"Synchronise before the second reading as well:   ...; {_SYNC}; t1 = time.perf_counter()"
)
_SYNC_BOTH = Advice(
    f"Synchronise before both readings:   {_SYNC}; t0 = time.perf_counter(); ...; {_SYNC}; t1 = time.perf_counter()"
)
_EVENTS = Advice(
    "For the GPU's time, use events and let the host run ahead:   torch.cuda._sleep(2_000_000); start.record(); f(); end.record()"
)
_SYNC_FIRST = Advice(
    f"Synchronise before the first reading as well; for the GPU's time alone use events:   {_SYNC}; t0 = time.perf_counter()"
)


@each_label
def wrong_stream(label: Label) -> Finding | None:
    """The events lie on a stream that did no work, while work launched between them ran on another
    stream."""
    # other threads launch on their own streams, too: the work must be the timing thread's own, as
    # far as one can tell
    one_thread = label.facts.analysis.intervals["tid"].nunique() == 1
    own = (label.ns("api_launch") > 0) | one_thread
    compared = (label.kind == "event") & (label.column("method") != "inferred")
    elsewhere = label.facts.other_ns[label.numbers] >= OTHER_STREAM_NS
    idle = label.ns("kernel", "graph", "memcpy", "memset") == 0
    case = label.case(compared & own & idle & elsewhere)
    if case is None:
        return None
    row = case.row
    stream, (worked, ns) = row.column("end_stream"), row.other_streams()[0]
    return case.finding(
        "error",
        f"{label.who} times a stream that did no work: its events are on stream {stream}, the work launched "
        f"between them ran for {words.span(ns)} on stream {worked}.",
        _ONE_STREAM,
        work_on_other_streams_ns=ns,
        elapsed_ns=row.elapsed,
        timed_stream=stream,
        working_stream=worked,
    )


@each_label
def different_streams(label: Label) -> Finding | None:
    """Start and end lie on different streams: their distance is not the duration of the work on
    either."""
    start, end = label.column("start_stream"), label.column("end_stream")
    case = label.case((label.kind == "event") & (start >= 0) & (end >= 0) & (start != end))
    if case is None:
        return None
    row = case.row
    first, last = row.column("start_stream"), row.column("end_stream")
    orders = ("dependency", "dependency-inferred", "default-stream-order")
    joined = any(call.ns for call in row.details("api", "StreamWaitEvent")) or any(
        wait.stream == first and wait.ns for wait in row.details("queued", orders)
    )
    how = "a wait joins them inside" if joined else "no wait between them was seen"
    return case.finding(
        "info" if joined else "warning",
        f"{label.who} starts on stream {first} and ends on stream {last} ({how}): "
        f"{words.span(row.elapsed)} is a distance between two queues, not the duration of one.",
        _ONE_STREAM_OR_WAIT,
        elapsed_ns=row.elapsed,
        start_stream=first,
        end_stream=last,
        kernel_on_the_end_stream_ns=row.column("kernel_only_ns"),
    )


class _Lost(NamedTuple):
    """Why pairs have no place: the reasons in `unaligned`, and what is said of a label."""

    severity: str
    reason: str  # a regular expression
    text: str
    counted_as: str
    advice: Advice


_TOO_EARLY = _Lost(
    "error",
    r"elapsed_time failed.*(not ready|notready|completed|\b600\b)",
    "asked for elapsed_time before the end event had completed, so there is no result",
    "failed_calls",
    Advice("Wait for the end event first:   end.synchronize(); ms = start.elapsed_time(end)"),
)
_AGAIN = _Lost(
    "error",
    r"negative elapsed_time|recorded (again|since)|contradicts the trace",
    "compares the wrong records: {why}",
    "pairs",
    Advice(
        "Use a fresh pair per measurement:   start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))",
        "Use a fresh pair of events for each measurement.",
    ),
)
_CAPTURED = _Lost(
    "info",
    r"\bcaptured\b",
    "recorded its events into a CUDA graph: they are stamped at each replay and cannot be placed",
    "pairs",
    Advice(
        "Record around the replay:   start.record(); graph.replay(); end.record()",
        "Record around the launch of the graph.",
    ),
)


def no_result(facts: Facts) -> Iterator[Finding]:
    """Pairs that have no place: elapsed_time was called before the work was done (torch raised an
    exception, and the log has it); an event was recorded again, or the pair is swapped; events that
    were recorded while a CUDA graph was captured have no time of their own."""
    table = facts.analysis.unaligned
    for lost in (_TOO_EARLY, _AGAIN, _CAPTURED):
        matches = re.compile(lost.reason, re.IGNORECASE).search
        hit = [matches(str(reason)) is not None for reason in table["reason"].tolist()]
        for label, rows in table[hit].groupby("label", sort=False) if any(hit) else ():
            reason = str(rows["reason"].iloc[0])
            why = "elapsed_time does not fit between the pair's records (an event recorded again since, or an unseen one)"
            if "negative" in reason:
                why = "its end was recorded before its start (swapped, or the start was recorded again since)"
            yield Finding(
                lost.severity,
                str(label),
                f"{words.subject(str(label))} {lost.text.format(why=why)}.",
                evidence(**{lost.counted_as: len(rows)}, reason=reason if lost is _AGAIN else None),
                lost.advice,
                str(rows["site"].iloc[0]),
            )


def _patterns(label: Label) -> np.ndarray:
    """Per interval, where it synchronises; meaningless for kinds other than host."""
    before, after = label.flagged("synchronised-before"), label.flagged("synchronised-after")
    return np.where(before, np.where(after, BOTH, BEFORE), np.where(after, AFTER, NEVER))


def _usually(case: Case) -> tuple[str, bool]:
    """Where most of a case's intervals synchronise (a loop's first repetition may differ), and
    whether all earlier work had ended at their first reading."""
    names, count = np.unique(_patterns(case.label)[case.has], return_counts=True)
    idle = case.label.flagged("idle-before")[case.has].mean() >= TYPICAL_SHARE
    return str(names[int(count.argmax())]), bool(idle)


def _open_ended(label: Label) -> tuple[np.ndarray, np.ndarray]:
    """Host intervals of which most work ran after their end; others in which nothing waits, yet the
    GPU kept up with the launches."""
    waits = label.ns("sync") > 0
    kernel, outside = label.column("kernel_only_ns"), label.column("kernel_outside_ns")
    issued = ~label.on_stream & (kernel > 0) & ~waits
    late = issued & (outside >= ENQUEUE_ONLY_SHARE * kernel)
    waits |= label.ns("kernel", "graph", "memcpy", "memset", "queued") > 0
    pattern = _patterns(label)
    return late, issued & ~late & ~waits & ((pattern == NEVER) | (pattern == BEFORE))


def enqueue_only(facts: Facts) -> Iterator[Finding]:
    """A host timer that stops before the GPU has finished what was launched inside: it measures the
    enqueueing."""
    for label in facts.labels:
        if label.row.kind != "host":
            continue
        late, unforced = _open_ended(label)
        if case := label.case(late):
            yield _enqueue_only(case, "error")
        if case := label.case(unforced):
            after = case.row.column("kernel_outside_ns")
            some = after > SAY_SHARE * case.row.column("kernel_only_ns")
            yield _enqueue_only(case, "warning" if some else "info")


def _enqueue_only(case: Case, severity: str) -> Finding:
    row, (pattern, idle) = case.row, _usually(case)
    before = pattern in (BEFORE, BOTH)
    kernel, outside = row.column("kernel_only_ns"), row.column("kernel_outside_ns")
    ran_after = f"all {words.span(kernel)}" if outside == kernel else words.of(outside, kernel)
    if severity == "error":
        why = "it never synchronises, and earlier work was still running (behind a full queue its launches would wait for that)"
        if before:
            why = (
                "it synchronises only before the first reading, so it measures the API calls alone"
            )
        elif idle:
            why = "nothing waits for the work before the second reading"
        title = f"{case.label.who} measures the launching, not the GPU: {why}; {ran_after} of kernels ran after the clock was read."
    else:
        where = "synchronises only before the first reading" if before else "never synchronises"
        after = "the GPU had finished when the clock was read, but nothing ensures that"
        if outside:
            after = f"{ran_after} of kernels ran after the clock was read"
        title = (
            f"{case.label.who} {where} and measures the host's launching: kernels ran for "
            f"{row.of(kernel - outside)} meanwhile, {after}."
        )
    return case.finding(
        severity,
        title,
        _SYNC_AFTER if before else _SYNC_BOTH,
        synchronises=pattern,
        elapsed_ns=row.elapsed,
        launched_kernels_ns=kernel,
        ran_after_the_end_ns=outside,
        ran_meanwhile_ns=kernel - outside,
        launch_calls_ns=row.ns("api_launch"),
    )


@each_label
def host_timer(label: Label) -> Finding | None:
    """A host timer of work that the GPU has finished when the clock is read: what it contains in
    addition to the GPU's work."""
    if label.row.kind != "host":
        return None
    # the GPU's execution hides behind the launch's return and the synchronisation's: what was
    # issued inside counts
    gpu = label.kernel - label.column("kernel_outside_ns")
    closed = (label.column("kernel_only_ns") > 0) & ~np.logical_or(*_open_ended(label))
    case = label.case(closed & (label.elapsed - gpu > WARN_SHARE * label.elapsed))
    if case is None:
        return None
    rest = label.elapsed - gpu - label.ns("memcpy", "memset", "queued")
    lost = np.minimum(rest.clip(0), label.ns("host", "api", "api_launch"))
    row, (pattern, idle) = case.row, _usually(case)
    ran, copied, earlier = case.value(gpu), row.ns("memcpy", "memset"), row.ns("queued")
    # the parts say what the host did: a kernel that ran beside its calls is none of them
    seen = row.ns("kernel", "graph")
    hidden = seen < (1 - SAY_SHARE) * ran
    what = "launches and the kernels beside them"
    if pattern in (BOTH, AFTER):
        what = "launch, kernel and synchronisation"
    tail = ""
    if pattern == AFTER:  # it synchronises only at its end
        what = f"earlier work, {what}"
        tail = " or for earlier work, which was still running"
        if idle:
            tail = " (nothing excludes earlier work; here it had ended)"
    beside = ""
    if hidden:
        beside = f", {words.span(seen) if seen else 'none'} of it while the host waited for them"
    for ns, text in ((copied, "copies that the host waited for"), (earlier, "earlier work")):
        if ns >= SAY_SHARE * row.elapsed:
            beside += f", beside {words.span(ns)} of {text}"
    return case.finding(
        "warning",
        f"{label.who} times {what} together: kernels ran for {row.of(ran)}{beside}; for the "
        f"rest, the GPU waited for the host{tail}.",
        _SYNC_FIRST if pattern == AFTER else _EVENTS,
        lost,
        synchronises=pattern,
        kernels_ran_ns=ran,
        kernels_waited_for_ns=seen if hidden and seen else None,
        elapsed_ns=row.elapsed,
        launch_calls_ns=row.ns("api_launch"),
        synchronisation_ns=row.ns("sync"),
        outside_CUDA_ns=row.ns("host"),
        copies_waited_for_ns=copied or None,
        earlier_work_ns=earlier or None,
    )
