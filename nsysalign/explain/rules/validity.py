"""Does the number answer the question?  Other streams, no synchronisation, events queried too early
or recorded again, host timers; what measuring itself costs or hides."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign.explain.facts import SAY_SHARE, TYPICAL_SHARE, WARN_SHARE, Facts, Label
from nsysalign.explain.finding import Advice, Finding, Findings
from nsysalign.model import OPERATION_KINDS
from nsysalign.text import of, span, subject

#: Host timers by where they synchronise: before which of their two readings.
BOTH, BEFORE, AFTER, NEVER = "before and after", "only before", "only after", "never"

_HOST = ("host", "api", "sync", "api_launch")
_SYNC = "torch.cuda.synchronize()"


def wrong_stream(label: Label) -> Findings:
    """The events lie on a stream that did no work, while work launched between them ran on another
    stream, behind which the end is not ordered."""
    # other threads launch on their own streams, too: the work must be the timing thread's own, as
    # far as one can tell
    facts = label.facts
    own = (label.ns("api_launch") > 0) | (facts.intervals["tid"].nunique() == 1)
    compared = (label.kind == "event") & (label.column("method") != "inferred")
    others = facts.analysis.other_streams
    others = others[~others["ordered"]]
    elsewhere = facts.per_interval(others)[label.numbers] >= 1_000
    if row := label.case(compared & own & (label.ns(*OPERATION_KINDS) == 0) & elsewhere):
        most = others[others["interval"] == row.number].nlargest(1, "ns").iloc[0]
        yield row.finding(
            "error",
            f"{label.who} times a stream that did no work: its events are on stream {row.column('end_stream')}, the work "
            f"launched between them ran for {span(most['ns'])} on stream {most['stream']}.",
            "Record both events on the stream that does the work:   start.record(stream); ...; end.record(stream)",
            work_on_other_streams_ns=most["ns"],
            timed_stream=row.column("end_stream"),
            working_stream=most["stream"],
        )


def different_streams(label: Label) -> Findings:
    """Start and end lie on different streams: their distance is not the duration of the work on
    either."""
    start, end = label.column("start_stream"), label.column("end_stream")
    row = label.case((label.kind == "event") & (start >= 0) & (end >= 0) & (start != end))
    if row is None:
        return
    first, last = row.column("start_stream"), row.column("end_stream")
    waits = row.details("queued", r"^(dependency(-inferred)?|default-stream-order)$")
    joined = any(call.ns for call in row.details("api", "StreamWaitEvent")) or any(
        wait.stream == first and wait.ns for wait in waits
    )
    how = "a wait joins them inside" if joined else "no wait between them was seen"
    yield row.finding(
        "info" if joined else "warning",
        f"{label.who} starts on stream {first} and ends on stream {last} ({how}): "
        f"{span(row.elapsed)} is a distance between two queues, not the duration of one.",
        "Record both events on the stream that does the work, or let the end's stream wait for the start:   stream.wait_event(start)",
        start_stream=first,
        end_stream=last,
    )


def no_result(facts: Facts) -> Findings:
    """Pairs that have no place: elapsed_time was called before the work was done (torch raised an
    exception, and the log has it); an event was recorded again, or the pair is swapped; events that
    were recorded while a CUDA graph was captured have no time of their own."""
    table = facts.analysis.unaligned
    for severity, reason, text, advice in (
        (
            "error",
            r"elapsed_time failed.*(?:not ready|notready|completed|\b600\b)",
            "asked for elapsed_time before the end event had completed, so there is no result",
            "Wait for the end event first:   end.synchronize(); ms = start.elapsed_time(end)",
        ),
        (
            "error",
            r"negative elapsed_time|recorded (?:again|since)|contradicts the trace",
            "compares the wrong records: {why}",
            "Use a fresh pair per measurement:   start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))",
        ),
        (
            "info",
            r"\bcaptured\b",
            "recorded its events into a CUDA graph: they are stamped at each replay and cannot be placed",
            "Record around the replay:   start.record(); graph.replay(); end.record()",
        ),
    ):
        rows = table[table["reason"].str.contains(re.compile(reason, re.IGNORECASE))]
        for label, own in rows.groupby("label", sort=False):
            why = "elapsed_time does not fit between the pair's records (an event recorded again since, or an unseen one)"
            if "negative" in own["reason"].iloc[0]:
                why = "its end was recorded before its start (swapped, or the start was recorded again since)"
            title = f"{subject(str(label))} {text.format(why=why)}."
            site = str(own["site"].iloc[0])
            yield Finding(severity, str(label), title, {"pairs": len(own)}, Advice(advice), site)


class _Timers(NamedTuple):
    """Host timers of a label: where each synchronises (a loop's first repetition may differ), which
    begin when all earlier work has ended, which end while most of their work still ran, and in which
    nothing waits, yet the GPU kept up with the launches."""

    pattern: pd.Series
    idle: np.ndarray
    late: np.ndarray
    unforced: np.ndarray


def _timers(label: Label) -> _Timers:
    idle, before, after = (
        np.array([flag in flags for flags in label.column("flags")], bool)
        for flag in ("idle-before", "synchronised-before", "synchronised-after")
    )
    pattern = np.where(before, np.where(after, BOTH, BEFORE), np.where(after, AFTER, NEVER))
    kernel, outside = label.kernel, label.column("kernel_outside_ns")
    issued = ~label.on_stream & (kernel > 0) & (label.ns("sync") == 0)
    late = issued & (outside >= 0.5 * kernel)
    open_ended = issued & ~late & (label.ns(*OPERATION_KINDS, "queued") == 0)
    return _Timers(pd.Series(pattern), idle, late, open_ended & ~after)


def enqueue_only(label: Label) -> Findings:
    """A host timer that stops before the GPU has finished what was launched inside: it measures the
    enqueueing."""
    if label.row.kind != "host":
        return
    timers = _timers(label)
    for has in (timers.late, timers.unforced):
        row = label.case(has)
        if row is None:
            continue
        pattern, idle = timers.pattern[row.has].mode()[0], timers.idle[row.has]
        before = pattern in (BEFORE, BOTH)
        kernel, outside = row.column("kernel_only_upper_ns"), row.column("kernel_outside_ns")
        ran_after = f"all {span(kernel)}" if outside == kernel else of(outside, kernel)
        if has is timers.late:
            why = "it never synchronises, and earlier work was still running (behind a full queue its launches would wait for that)"
            if before:
                why = "it synchronises only before the first reading, so it measures the API calls alone"
            elif idle.mean() >= TYPICAL_SHARE:
                why = "nothing waits for the work before the second reading"
            severity = "error"
            title = f"measures the launching, not the GPU: {why}; {ran_after} of kernels ran after the clock was read."
        else:
            severity = "warning" if outside > SAY_SHARE * kernel else "info"
            where = "synchronises only before the first reading" if before else "never synchronises"
            after = "the GPU had finished when the clock was read, but nothing ensures that"
            if outside:
                after = f"{ran_after} of kernels ran after the clock was read"
            title = f"{where} and measures the CPU's launching: kernels ran for {of(kernel - outside, row.elapsed)} meanwhile, {after}."
        yield row.finding(
            severity,
            f"{label.who} {title}",
            f"Synchronise before the second reading as well:   ...; {_SYNC}; t1 = time.perf_counter()"
            if before
            else f"Synchronise before both readings:   {_SYNC}; t0 = time.perf_counter(); ...; {_SYNC}; t1 = time.perf_counter()",
            synchronises=pattern,
            launched_kernels_ns=kernel,
            ran_after_the_end_ns=outside,
            ran_meanwhile_ns=kernel - outside,
        )


def host_timer(label: Label) -> Findings:
    """A host timer of work that the GPU has finished when the clock is read: what it contains in
    addition to the GPU's work."""
    if label.row.kind != "host":
        return
    timers = _timers(label)
    # the GPU's execution hides behind the launch's return and the synchronisation's: what was
    # issued inside counts
    gpu = label.kernel - label.column("kernel_outside_ns")
    closed = (label.kernel > 0) & ~timers.late & ~timers.unforced
    row = label.case(closed & (label.elapsed - gpu > WARN_SHARE * label.elapsed))
    if row is None:
        return
    rest = label.elapsed - gpu - label.ns("memcpy", "memset", "queued")
    pattern, idle = timers.pattern[row.has].mode()[0], timers.idle[row.has]
    ran, copied, earlier = gpu[row.at], row.ns("memcpy", "memset"), row.ns("queued")
    what, tail = "launches and the kernels beside them", ""
    if pattern in (BOTH, AFTER):
        what = "launch, kernel and synchronisation"
    if pattern == AFTER:  # it synchronises only at its end
        what = f"earlier work, {what}"
        tail = " or for earlier work, which was still running"
        if idle.mean() >= TYPICAL_SHARE:
            tail = " (nothing excludes earlier work; here it had ended)"
    # the parts say what the CPU did: a kernel that ran beside its calls is none of them
    seen, beside = row.ns("kernel", "graph"), ""
    hidden = seen < (1 - SAY_SHARE) * ran
    if hidden:
        beside = f", {span(seen) if seen else 'none'} of it while the CPU waited for them"
    for ns, text in ((copied, "copies that the CPU waited for"), (earlier, "earlier work")):
        if ns >= SAY_SHARE * row.elapsed:
            beside += f", beside {span(ns)} of {text}"
    yield row.finding(
        "warning",
        f"{label.who} times {what} together: kernels ran for {of(ran, row.elapsed)}{beside}; for the "
        f"rest, the GPU waited for the CPU{tail}.",
        f"Synchronise before the first reading as well; for the GPU's time alone use events:   {_SYNC}; t0 = time.perf_counter()"
        if pattern == AFTER
        else "For the GPU's time, use events and let the CPU run ahead:   torch.cuda._sleep(2_000_000); start.record(); f(); end.record()",
        loss=np.minimum(rest.clip(0), label.ns("host", "api", "api_launch")),
        synchronises=pattern,
        kernels_ran_ns=ran,
        kernels_waited_for_ns=seen if hidden and seen else None,
        copies_waited_for_ns=copied or None,
        earlier_work_ns=earlier or None,
    )


def event_floor(label: Label) -> Findings:
    """Pairs of events with nothing between them: they measure the pair, or what the CPU did."""
    nothing = (label.kind == "event") & (label.operations == 0) & (label.ns(*OPERATION_KINDS) == 0)
    nothing &= label.facts.other_ns[label.numbers] == 0
    waits = label.elapsed >= 50_000  # no event pair costs this much
    if row := label.case(nothing & waits, at_least=TYPICAL_SHARE + 1e-9):
        host = row.ns(*_HOST)
        yield row.finding(
            "info",
            f"{label.who} contains no GPU work: for {of(host, row.elapsed)} the CPU did "
            "something else before it recorded the end event.",
            "For CPU time, use a clock of the CPU:   t0 = time.perf_counter(); ...; t1 = time.perf_counter()",
            "Do that work in another thread or process, while the GPU is busy",
            "loader = DataLoader(data, num_workers=4)",
            loss=label.ns(*_HOST),
            host_and_calls_ns=host,
        )
    if row := label.case(nothing & ~waits, at_least=TYPICAL_SHARE + 1e-9):
        yield row.finding(
            "info",
            f"{label.who} contains no GPU work: {span(row.elapsed)} is what an event pair itself costs here.",
            "Measure many calls together and divide.",
        )


def inflation(facts: Facts) -> Findings:
    """Labels that take longer under nsys than without it: the budget shown is not the one without a
    profiler.  Only a run with --baseline can tell.
    """
    labels = {label.name: label for label in facts.labels}
    profiler = facts.analysis.trace.by.title
    for row in facts.analysis.baseline.itertuples(index=False):
        label = labels.get(row.label)
        added = row.profiled_ns - row.baseline_ns
        # one of the two runs did not measure it, or there are too few intervals, or they vary too
        # much
        if label is None or math.isnan(added) or not row.low_ns > 0:
            continue
        if (share := added / row.profiled_ns) >= SAY_SHARE:
            yield label.finding(
                "warning" if share > WARN_SHARE else "info",
                f"{label.who} is {row.inflation:.2f} times as long under {profiler}: {span(row.profiled_ns)} "
                f"profiled, {span(row.baseline_ns)} without.",
                "Quote the time without the profiler; the table of both runs has its predicted budget.  The profiler does not stretch "
                "the GPU's own work: let the CPU run ahead, or time a CUDA graph.",
                about_row=True,
                under_nsys_ns=row.profiled_ns,
                without_nsys_ns=row.baseline_ns,
                profiler_share=share,
                predicted_without_nsys_ns=None
                if math.isnan(row.predicted_ns)
                else row.predicted_ns,
            )
