"""Does the work wait behind other work?"""

from __future__ import annotations

from collections.abc import Iterator

from nsysalign.diagnose import thresholds, words
from nsysalign.diagnose.facts import Facts
from nsysalign.diagnose.finding import Finding, evidence
from nsysalign.diagnose.queued import waits

DEPENDENCY = "queued-dependency"
CONTENTION = "queued-contention"
FULL_QUEUE = "full-queue"
EARLIER_WORK = "earlier-work"


def dependency(facts: Facts) -> Iterator[Finding]:
    """The interval's work is ordered behind work of another stream."""
    for case, severity, ns, stream, inferred in waits(
        facts, "dependency", "dependency-inferred", "default-stream-order", "host-function"
    ):
        at = case.row
        behind = f"stream {stream}" if stream >= 0 else "other work"
        yield Finding(
            DEPENDENCY,
            severity,
            case.label,
            f"{words.subject(case.label)} waits for another stream: for {words.of(ns, facts.elapsed[at])} its work was issued but ordered behind "
            f"{behind}.",
            evidence(
                waiting_ns=ns,
                waiting_share=ns / max(facts.elapsed[at], 1),
                stream_waited_for=stream if stream >= 0 else None,
                kernel_ns=facts.kernel_upper[at],
                the_wait="inferred from the order of calls" if inferred else None,
                seen_in=case.frequency,
            ),
            "Wait before the start event instead of after it:   torch.cuda.current_stream().wait_stream(other); start.record()",
            case.site,
            case.positions,
            float(ns),
        )


def contention(facts: Facts) -> Iterator[Finding]:
    """The interval's work is issued, but another stream keeps the device (or the copy engine) busy."""
    for case, severity, ns, stream, _ in waits(facts, "contention"):
        at = case.row
        yield Finding(
            CONTENTION,
            severity,
            case.label,
            f"{words.subject(case.label)} shares the GPU: for {words.of(ns, facts.elapsed[at])} its work was issued but could not start while stream "
            f"{stream} kept the device busy.",
            evidence(
                waiting_ns=ns,
                waiting_share=ns / max(facts.elapsed[at], 1),
                rival_stream=stream,
                kernel_ns=facts.kernel_upper[at],
                seen_in=case.frequency,
            ),
            "Let the other streams finish first:   torch.cuda.synchronize(); start.record()",
            case.site,
            case.positions,
            float(ns),
        )


def full_queue(facts: Facts) -> Iterator[Finding]:
    """The host blocks in a launch because the stream's queue is full (host timers)."""
    for case, severity, ns, stream, _ in waits(facts, "full-queue"):
        at = case.row
        yield Finding(
            FULL_QUEUE,
            severity,
            case.label,
            f"{words.subject(case.label)} fills the launch queue: for {words.of(ns, facts.elapsed[at])} the host was blocked in a launch until the queue "
            "had room.",
            evidence(
                blocked_ns=ns, stream=stream, queue_holds_about=thresholds.QUEUE_DEPTH, seen_in=case.frequency
            ),
            "Time fewer launches at once, or capture them:   start.record(); graph.replay(); end.record()",
            case.site,
            case.positions,
            float(ns),
        )


def earlier_work(facts: Facts) -> Iterator[Finding]:
    """A host timer that waits for work enqueued before it began."""
    for case, severity, ns, _, _ in waits(facts, "earlier-work"):
        at = case.row
        yield Finding(
            EARLIER_WORK,
            severity,
            case.label,
            f"{words.subject(case.label)} waits for earlier work: for {words.of(ns, facts.elapsed[at])} it waited for what had been launched before "
            "the first reading.",
            evidence(
                waiting_ns=ns,
                waiting_share=ns / max(facts.elapsed[at], 1),
                kernel_ns=facts.kernel_only[at],
                seen_in=case.frequency,
            ),
            "Synchronise before the first reading as well:   torch.cuda.synchronize(); t0 = time.perf_counter()",
            case.site,
            case.positions,
            float(ns),
        )
