"""Does the GPU wait for the host to launch?"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from nsysalign.diagnose import thresholds, words
from nsysalign.diagnose.facts import ALLOCATION_CALLS, Case, Facts, Segments, rows_of
from nsysalign.diagnose.finding import CouldNotLook, Finding
from nsysalign.diagnose.rules.contents import drains

LOADS = r"^cu(da)?(LibraryLoad|ModuleLoad|Link)"


def run_ahead(facts: Facts, at: int) -> str:
    """A line of code that lets the host run ahead of interval `at`, or an alternative and the reason if a delay kernel cannot
    do that."""
    host_ns = facts.part("host", "api", "api_launch", "launch_latency", "profiler", "event")[at]
    if facts.operations[at] >= thresholds.QUEUE_DEPTH:
        return (
            f"Capture it once and time the replay (its {facts.operations[at]:,} operations do not fit in the launch queue, so a delay cannot "
            "hide them):   start.record(); graph.replay(); end.record()"
        )
    if facts.part("sync")[at] > 0:
        return (
            "Move the synchronisation out of the interval, then let the host run ahead:   "
            f"torch.cuda._sleep({delay_cycles(host_ns):_}); start.record()"
        )
    return (
        "Let the host run ahead before the start event, or time a CUDA graph:   "
        f"torch.cuda._sleep({delay_cycles(host_ns):_}); start.record()"
    )


def delay_cycles(host_ns: float) -> int:
    """Cycles of a delay that outlasts the host's part with a margin, in whole millions; never less than about 1 ms."""
    wanted = host_ns / 1e3 * thresholds.DELAY_CYCLES_PER_US * thresholds.DELAY_MARGIN
    return max(thresholds.DELAY_CYCLES, math.ceil(wanted / 1e6) * 1_000_000)


def launch_blocking(facts: Facts) -> Iterator[Finding | CouldNotLook]:
    """CUDA_LAUNCH_BLOCKING=1: every launch call returns only when its kernel has ended.

    host    [ launch k -------------) host [ launch k+1 -------
    GPU             [kernel k )                   [kernel k+1
                               ^ the rest of launch k, then host, then launch k+1: two launch calls in one gap
    """
    rows = facts.row[facts.row >= 0]
    rows = rows[
        facts.on_stream[rows] & (facts.operations[rows] > 1) & (facts.part("api_launch")[rows] > 0)
    ]
    if reason := facts.unread(np.isin(np.arange(facts.count), rows)):
        yield CouldNotLook(reason)
    segments = facts.segments(rows)
    at, run, launch = segments.at, segments.run, segments.of_cause("api_launch")
    if len(segments) < 3:
        return
    # gaps between two operations of one interval, right after a kernel; the last one before the end event launches nothing
    first = (
        np.flatnonzero((run[1:] >= 0) & segments.of_cause("kernel")[:-1] & (at[1:] == at[:-1])) + 1
    )
    closing = np.zeros(int(run.max(initial=-1)) + 2, dtype=bool)
    closing[run[np.append(at[1:] != at[:-1], True)]] = True
    first = first[~closing[run[first]]]
    calls = (
        np.unique(np.stack([run[launch], segments.ref_id[launch]]), axis=1)[0]
        if launch.any()
        else np.empty(0, np.int64)
    )
    distinct = np.bincount(calls, minlength=int(run.max(initial=0)) + 1)
    blocked = launch[first] & (distinct[run[first]] >= 2)
    gaps, hits = np.zeros(facts.count, np.int64), np.zeros(facts.count, np.int64)
    np.add.at(gaps, at[first], 1)
    np.add.at(hits, at[first], blocked)
    for case in facts.cases(
        (gaps >= thresholds.BLOCKING_KERNELS) & (hits >= thresholds.BLOCKING_SHARE * gaps),
        at_least=0,
    ):
        yield case.finding(
            "warning",
            f"{case.who} seems to run with CUDA_LAUNCH_BLOCKING: after {hits[case.row]} of {gaps[case.row]} kernels the host was still "
            "inside the call that had launched them.",
            "",  # there is nothing to measure differently
            facts.elapsed[case.row] - facts.work[case.row],
            positions=facts.repetitions(int(facts.label[case.row])),
            kernels_followed_by_their_own_launch_call=hits[case.row],
            gaps_between_kernels=gaps[case.row],
            elapsed_ns=facts.elapsed[case.row],
            kernel_ns=facts.kernel_upper[case.row],
        )


def host_gap(facts: Facts) -> Iterator[Finding | CouldNotLook]:
    """The GPU waits, idle, for the host to issue the next operation: launch-bound."""
    if any(m.startswith("CUPTI_ACTIVITY_KIND_RUNTIME") for m in facts.analysis.trace.missing):
        yield CouldNotLook("the trace has no CUDA API rows (record with -t cuda)")
        return
    host = facts.part("host") + np.maximum(facts.part("api") - facts.loading - facts.allocating, 0)
    call = facts.part("api_launch")
    _, drained = drains(facts)  # the gap after a costly synchronisation is its consequence
    gap = host + call - np.minimum(drained, host + call)
    mask = (
        facts.on_stream
        & (facts.operations > 0)
        & (host >= call)
        & (facts.share(gap) > thresholds.WARN_SHARE)
    )
    unknown = mask & ~facts.read & (facts.part("sync") > 0)  # what of it follows a synchronisation
    if reason := facts.unread(unknown):
        yield CouldNotLook(reason)
    mask &= ~unknown
    for case in facts.cases(mask):
        yield _host_gap_finding(facts, case, call, gap)


def _host_gap_finding(facts: Facts, case: Case, call: np.ndarray, gap: np.ndarray) -> Finding:
    at = case.row
    waited = facts.part("host")[at]
    inside_call = waited <= thresholds.WARN_SHARE * facts.elapsed[at]
    waited = gap[at] if inside_call else min(waited, gap[at])
    segments = facts.segments(np.array([at]))
    where, longest, then = _where(segments)
    name = case.who
    amount = words.of(waited, facts.elapsed[at])
    kernels = "kernel" if facts.operations[at] < thresholds.MANY_OPERATIONS else "kernels"
    lead = (
        f"{name} measures the host, not the {kernels}"
        if waited >= thresholds.MOSTLY_SHARE * facts.elapsed[at]
        else (f"{name} is launch-bound")
    )
    place = {
        "before": "for the launch that came after the first event",
        "between": "while the host was busy between two launches",
        "after": "for the host to record the end event",
        "many": f"for the host, before and between {facts.operations[at]:,} operations",
    }[where]
    did = rows_of(facts.details, at)
    did = did[
        did["cause"].isin(["host", "api", "api_launch", "profiler"]) & (did["detail"] != case.name)
    ].head(3)
    alone = not facts.others_worked[at]
    who = (
        "the GPU waited, idle,"
        if alone
        else "its stream waited, while other streams kept the GPU busy,"
    )
    return case.finding(
        "warning" if alone else "info",
        f"{lead}: for {amount} {who} {place}.",
        run_ahead(facts, at),
        waited,
        waiting_share=waited / max(facts.elapsed[at], 1),
        outside_CUDA_ns=facts.part("host")[at],
        launch_calls_ns=call[at],
        other_CUDA_calls_ns=facts.part("api")[at],
        kernel_ns=facts.kernel_upper[at],
        copies_in_the_interval_ns=facts.part("memcpy")[at],
        longest_gap_ns=longest or None,
        it_waited_for=then,
        host_was_in=", ".join(
            f"{d} {words.span(n)}" for d, n in zip(did["detail"], did["ns"], strict=True)
        ),
        seen_in=case.frequency,
    )


def _where(segments: Segments) -> tuple[str, int, str]:
    """Where most of the wait lies (before, between, after, many), the longest stretch, the operation it waited for."""
    if not len(segments):
        return "many", 0, ""
    run = segments.run
    blamed = segments.of_cause("host", "api", "api_launch")
    total = np.bincount(run[blamed], segments.ns[blamed], minlength=1)
    worst = int(total.argmax())
    rows = np.flatnonzero(run == worst)
    longest, after = int(total[worst]), int(rows[-1]) + 1
    then = (
        words.kernel(str(segments.details(np.array([after]))[0])) if after < len(segments) else ""
    )
    if longest < thresholds.ONE_GAP_SHARE * total.sum():
        return "many", longest, then
    if rows[0] == 0:
        return "before", longest, then
    return ("between" if then else "after"), longest, then


def many_kernels(facts: Facts) -> Iterator[Finding]:
    """Many short operations, launched one by one: launch calls and latencies cost more than the work."""
    call, latency = facts.part("api_launch"), facts.part("launch_latency")
    cost = call + latency
    mean = facts.work / np.maximum(facts.operations, 1)
    mask = (
        facts.on_stream
        & (facts.operations >= thresholds.MANY_OPERATIONS)
        & (facts.share(cost) > thresholds.WARN_SHARE)
    )
    for case in facts.cases(mask):
        at = case.row
        if one_call(facts, at):  # rule api-launch reports it
            continue
        count = int(facts.operations[at])
        yield case.finding(
            "warning",
            f"{case.who} pays for {count:,} launches: {words.of(cost[at], facts.elapsed[at])} go into launching operations "
            f"that run {words.span(mean[at])} each.",
            _advice(facts, at),
            cost[at],
            operations=count,
            launch_calls_ns=call[at],
            launch_latency_ns=latency[at],
            working_ns=facts.work[at],
            per_operation_ns=cost[at] / count,
            seen_in=case.frequency,
        )


def one_call(facts: Facts, at: int) -> bool:
    """Whether one call is most of what interval `at` pays for launching: code that is loaded, a copy that blocks."""
    segments = facts.segments(np.array([at]))
    inside = segments.of_cause("api_launch")
    longest = int(segments.ns[inside].max(initial=0))
    return bool(longest > thresholds.ONE_GAP_SHARE * facts.part("api_launch", "launch_latency")[at])


def _advice(facts: Facts, at: int) -> str:
    """A graph, and a delay if that helps; neither is possible around a synchronisation."""
    if facts.part("sync")[at] > 0:
        return run_ahead(facts, at)
    graph = (
        "Capture the work in a CUDA graph and time the replay:   with torch.cuda.graph(g): f()   "
        "start.record(); g.replay(); end.record()"
    )
    if facts.operations[at] >= thresholds.QUEUE_DEPTH:
        return graph
    delay = delay_cycles(facts.elapsed[at] - facts.work[at])
    return f"{graph}   torch.cuda._sleep({delay:_}); start.record()  # or without a graph: let the host run ahead"


def api_launch(facts: Facts) -> Iterator[Finding]:
    """The launch call itself is what the GPU waits for (few operations; many have a rule of their own)."""
    call = facts.part("api_launch")
    host = facts.part("host") + facts.part("api") - facts.loading - facts.allocating
    mask = (
        facts.on_stream
        & (facts.operations > 0)
        & (call > host)
        & (facts.share(call + host.clip(0)) > thresholds.WARN_SHARE)
    )
    for case in facts.cases(mask):
        at = case.row
        if facts.operations[at] >= thresholds.MANY_OPERATIONS and not one_call(facts, at):
            continue
        rows = rows_of(facts.detail_rows("api_launch"), at)
        name = str(rows["detail"].iloc[0]) if len(rows) else "the launch call"
        yield case.finding(
            "warning",
            f"{case.who} waits for its launch call: for {words.of(call[at], facts.elapsed[at])} the GPU idled while the host was "
            f"inside {name}.",
            run_ahead(facts, at),
            call[at],
            launch_calls_ns=call[at],
            other_host_ns=max(int(host[at]), 0),
            kernel_ns=facts.kernel_upper[at],
            operations=facts.operations[at],
            seen_in=case.frequency,
        )


def launch_latency(facts: Facts) -> Iterator[Finding]:
    """The host ran ahead, yet the fixed cost of events and launches is a large part of a short interval."""
    fixed = facts.part("launch_latency", "event")
    late = facts.part("host", "api", "api_launch", "sync")
    few = (facts.operations > 0) & (facts.operations < thresholds.MANY_OPERATIONS)
    mask = (
        (facts.kind == "event")
        & few
        & (facts.share(fixed) > thresholds.FIXED_COST_SAY_SHARE)
        & (facts.share(late) < thresholds.AHEAD_SHARE)
    )
    for case in facts.cases(mask):
        at = case.row
        yield case.finding(
            "info",
            f"{case.who} is short for an event pair: {words.of(fixed[at], facts.elapsed[at])} are the cost of the pair itself and launch "
            "latency, although the host had run ahead.",
            "Time several calls with one pair and divide:   start.record(); [f() for _ in range(20)]; end.record()",
            fixed[at],
            kernel_ns=facts.kernel_upper[at],
            launch_latency_ns=facts.part("launch_latency")[at],
            event_ns=facts.part("event")[at],
            seen_in=case.frequency,
        )


def allocation(facts: Facts) -> Iterator[Finding]:
    """Memory is allocated or freed inside the interval, and the GPU waits for it."""
    spent = facts.allocating
    said = (facts.share(spent) >= thresholds.ALLOCATION_SAY_SHARE) & (
        spent >= thresholds.ALLOCATION_SAY_NS
    )
    rows = facts.detail_rows("api", ALLOCATION_CALLS)
    for case in facts.cases((facts.on_stream | facts.is_host) & said):
        at = case.row
        mine = rows_of(rows, at)
        warn = spent[at] > thresholds.WARN_SHARE * facts.elapsed[at]
        yield case.finding(
            "warning" if warn else "info",
            f"{case.who} allocates inside: for {words.of(spent[at], facts.elapsed[at])} the GPU waited for {mine['detail'].iloc[0]}.",
            "Allocate before the start event, or run once so that torch's allocator keeps the memory:   out = torch.empty_like(x); "
            "f(x, out=out); torch.cuda.synchronize(); start.record()",
            spent[at],
            allocation_ns=spent[at],
            allocation_share=spent[at] / max(facts.elapsed[at], 1),
            calls=", ".join(
                f"{d} {words.span(n)}"
                for d, n in zip(mine["detail"].head(3), mine["ns"].head(3), strict=True)
            ),
            kernel_ns=facts.kernel_upper[at],
            seen_in=case.frequency,
        )


def loads(facts: Facts) -> np.ndarray:
    """Time in calls that load code, per interval."""
    return facts.detail_ns(facts.detail_rows("api", LOADS))


def module_load(facts: Facts) -> Iterator[Finding]:
    """Code is loaded, compiled or chosen inside the interval: the first call is not like the others."""
    spent = loads(facts)
    for case in facts.cases(spent >= thresholds.LOAD_NS, at_least=0):
        code = int(facts.label[case.row])
        row = int(facts.row[code])
        if row >= 0 and spent[row] > thresholds.WARN_SHARE * facts.elapsed[row]:
            yield _module_load_finding(facts, case, "warning", row, spent)
            continue
        # not the slowest interval: that one may be slow for another reason
        most = int(case.positions[spent[case.positions].argmax()])
        slow = facts.elapsed[most] >= thresholds.WARMUP_FACTOR * facts.median[code]
        if (slow and spent[most] > thresholds.LOAD_SHARE * facts.elapsed[most]) or case.count == 1:
            yield _module_load_finding(facts, case, "info", most, spent)


def _module_load_finding(
    facts: Facts, case: Case, severity: str, at: int, spent: np.ndarray
) -> Finding:
    median = facts.median[facts.label[at]]
    alone = case.count == 1 or severity == "warning"
    than = (
        ""
        if alone
        else f", {words.times(facts.elapsed[at] / max(median, 1))} the median of {words.span(median)}"
    )
    mine = facts.repetitions(int(facts.label[at]))
    first = at == int(mine[facts.pid[mine] == facts.pid[at]][0])
    where = (
        "its measurement"
        if case.count == 1
        else "its first interval"
        if first
        else words.subject(str(facts.names[at]))
    )
    return case.finding(
        severity,
        f"{case.who} loads code in {where}: that interval took "
        f"{words.span(facts.elapsed[at])}{than}; {words.span(spent[at])} of it was module loading alone.",
        "Run the code once before timing it:   f(x); torch.cuda.synchronize(); start.record()",
        spent[at],
        positions=case.positions
        if alone
        else np.array([at]),  # draw the interval that the title is about
        about_row=severity == "warning",
        module_loading_ns=spent[at],
        slow_run_ns=facts.elapsed[at],
        median_ns=None if alone else median,
        kernel_ns=facts.kernel_upper[at],
        loading_runs=f"{len(case.positions)} of {case.count}",
    )
