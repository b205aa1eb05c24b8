"""Is the work queued behind other work?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsysalign.explain import thresholds, words
from nsysalign.explain.facts import Case, Facts, rows_of
from nsysalign.explain.finding import Finding


def dependency(facts: Facts) -> Iterator[Finding]:
    """The interval's work is ordered behind work of another stream."""
    for case, severity, ns, stream, several, inferred in _waits(
        facts, "dependency", "dependency-inferred", "default-stream-order", "host-function"
    ):
        at = case.row
        behind = f"stream {stream}" if stream >= 0 else "other work"
        behind = "other streams" if several else behind
        yield case.finding(
            severity,
            f"{case.who} waits for another stream: for {words.of(ns[at], facts.elapsed[at])} its work was issued but ordered behind "
            f"{behind}.",
            "Wait before the start event instead of after it:   torch.cuda.current_stream().wait_stream(other); start.record()",
            ns,
            waiting_ns=ns[at],
            elapsed_ns=facts.elapsed[at],
            stream_waited_for=stream if stream >= 0 and not several else None,
            kernel_ns=facts.kernel_upper[at],
            the_wait="inferred from the order of calls" if inferred else None,
            seen_in=case.frequency,
        )


def contention(facts: Facts) -> Iterator[Finding]:
    """The interval's work has been issued, but another stream keeps the device (or the copy engine)
    busy."""
    for case, severity, ns, stream, several, _ in _waits(facts, "contention"):
        at = case.row
        yield case.finding(
            severity,
            f"{case.who} shares the GPU: for {words.of(ns[at], facts.elapsed[at])} its work was issued but could not start while "
            f"{'other streams' if several else f'stream {stream}'} kept the device busy.",
            "Let the other streams finish first:   torch.cuda.synchronize(); start.record()",
            ns,
            waiting_ns=ns[at],
            elapsed_ns=facts.elapsed[at],
            rival_stream=None if several else stream,
            kernel_ns=facts.kernel_upper[at],
            seen_in=case.frequency,
        )


def full_queue(facts: Facts) -> Iterator[Finding]:
    """The host blocks in a launch because the stream's queue is full (host timers)."""
    for case, severity, ns, *_ in _waits(facts, "full-queue"):
        at = case.row
        yield case.finding(
            severity,
            f"{case.who} fills the launch queue: for {words.of(ns[at], facts.elapsed[at])} the host was blocked in a launch until the queue "
            "had room.",
            "Time fewer launches at once, or capture them:   start.record(); graph.replay(); end.record()",
            blocked_ns=ns[at],
            elapsed_ns=facts.elapsed[at],
            queue_holds_about=thresholds.QUEUE_DEPTH,
            seen_in=case.frequency,
        )


def earlier_work(facts: Facts) -> Iterator[Finding]:
    """A host timer that waits for work enqueued before it began."""
    for case, severity, ns, *_ in _waits(facts, "earlier-work"):
        at = case.row
        yield case.finding(
            severity,
            f"{case.who} waits for earlier work: for {words.of(ns[at], facts.elapsed[at])} it waited for what had been launched before "
            "the first reading.",
            "Synchronise before the first reading as well:   torch.cuda.synchronize(); t0 = time.perf_counter()",
            waiting_ns=ns[at],
            elapsed_ns=facts.elapsed[at],
            kernel_ns=facts.kernel_only[at],
            seen_in=case.frequency,
        )


def _waits(facts: Facts, *kinds: str) -> Iterator[tuple[Case, str, np.ndarray, int, bool, bool]]:
    """(case, severity, ns waited per interval, stream waited for most, whether for several,
    inferred) of labels that wait like this."""
    rows = facts.detail_rows("queued", names=kinds)
    ns = facts.detail_ns(rows)
    for case in facts.cases(facts.share(ns) >= thresholds.SAY_SHARE):
        mine = rows_of(rows, case.row)
        warn = ns[case.row] > thresholds.WARN_SHARE * facts.elapsed[case.row]
        yield (
            case,
            "warning" if warn else "info",
            ns,
            int(mine["stream"].iloc[0]),
            mine["stream"].nunique() > 1,
            bool((mine["detail"] == "dependency-inferred").any()),
        )
