"""Does the GPU wait for the host to launch?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from nsysalign.explain import thresholds, words
from nsysalign.explain.facts import ALLOCATION_CALLS, Case, Facts, rows_of
from nsysalign.explain.finding import CouldNotLook, Finding
from nsysalign.explain.rules.contents import drains
from nsysalign.model import HIDDEN_BY_DELAY
from nsysalign.split.pieces import Segments

LOADS = r"^cu(da)?(LibraryLoad|ModuleLoad|Link)"
_BLAMED = ("host", "api", "api_launch")
_MOST = np.iinfo(np.int64).max


def _rows(cases: list[Case]) -> np.ndarray:
    """The intervals that cases quote."""
    return np.array([case.row for case in cases], np.int64)


def run_ahead(facts: Facts, at: int) -> str:
    """A line of code that lets the host run ahead of interval `at`, or an alternative and the
    reason if a delay kernel cannot do that."""
    host_ns = facts.part(*HIDDEN_BY_DELAY)[at]
    if facts.operations[at] >= thresholds.QUEUE_DEPTH and not facts.graphs[at]:
        return (
            f"Capture it once and time the replay (its {facts.operations[at]:,} operations do not fit in the launch queue, so a delay cannot "
            "hide them):   start.record(); graph.replay(); end.record()"
        )
    first = (
        "Move the synchronisation out of the interval, then let the host run ahead"
        if facts.part("sync")[at] > 0
        else "Let the host run ahead before the start event"
        + ("" if facts.graphs[at] else ", or time a CUDA graph")
    )
    return f"{first}:   torch.cuda._sleep({delay_cycles(host_ns):_}); start.record()"


def delay_cycles(host_ns: float) -> int:
    """Cycles of a delay that outlasts the host's part with a margin, in whole millions; never less
    than about 1 ms."""
    wanted = host_ns / 1e3 * thresholds.DELAY_CYCLES_PER_US * thresholds.DELAY_MARGIN
    return max(thresholds.DELAY_CYCLES, math.ceil(wanted / 1e6) * 1_000_000)


def launch_blocking(facts: Facts) -> Iterator[Finding]:
    """CUDA_LAUNCH_BLOCKING=1: every launch call returns only when its kernel has ended.

    host    [ launch k -------------) host [ launch k+1 -------
    GPU             [kernel k )                   [kernel k+1
                               ^ the rest of launch k, then host, then launch k+1: two launch calls
                               in one gap
    """
    rows = facts.row
    rows = rows[
        facts.on_stream[rows] & (facts.operations[rows] > 1) & (facts.part("api_launch")[rows] > 0)
    ]
    gaps, hits, rest = (np.zeros(facts.count, np.int64) for _ in range(3))
    for segments in facts.lots(rows):
        at, run, launch = segments.interval, segments.run, segments.of_cause("api_launch")
        # gaps between two operations of one interval, right after a kernel; the last one before
        # the end event launches nothing
        after = (run[1:] >= 0) & segments.of_cause("kernel")[:-1] & (at[1:] == at[:-1])
        first = np.flatnonzero(after) + 1
        closing = np.zeros(int(run.max(initial=-1)) + 2, dtype=bool)
        closing[run[np.append(at[1:] != at[:-1], True)]] = True
        first = first[~closing[run[first]]]
        low, high = np.full(len(closing), _MOST), np.full(len(closing), -_MOST)
        np.minimum.at(low, run[launch], segments.ref_id[launch])
        np.maximum.at(high, run[launch], segments.ref_id[launch])
        blocked = launch[first] & (high > low)[run[first]]  # two calls at least
        np.add.at(gaps, at[first], 1)
        np.add.at(hits, at[first], blocked)
        np.add.at(rest, at[first[blocked]], segments.ns[first[blocked]])
    for case in facts.cases(
        (gaps >= thresholds.BLOCKING_KERNELS) & (hits >= thresholds.BLOCKING_SHARE * gaps),
        at_least=0,
    ):
        yield case.finding(
            "warning",
            f"{case.who} seems to run with CUDA_LAUNCH_BLOCKING: after {hits[case.row]} of {gaps[case.row]} kernels the host was still "
            "inside the call that had launched them.",
            "",  # there is nothing to measure differently
            rest,
            positions=facts.repetitions(int(facts.label[case.row])),
            kernels_followed_by_their_own_launch_call=hits[case.row],
            gaps_between_kernels=gaps[case.row],
            still_in_these_calls_ns=rest[case.row],
        )


def host_gap(facts: Facts) -> Iterator[Finding | CouldNotLook]:
    """The GPU waits, idle, for the host to issue the next operation."""
    if any(m.startswith("CUPTI_ACTIVITY_KIND_RUNTIME") for m in facts.analysis.trace.missing):
        yield CouldNotLook("the trace has no CUDA API rows")
        return
    host = facts.part("host") + np.maximum(facts.part("api") - facts.loading - facts.allocating, 0)
    call = facts.part("api_launch")
    _, catching_up = drains(facts)  # what follows from a synchronisation has a rule of its own
    gap = host + call - np.minimum(catching_up, host + call)
    mask = (
        facts.on_stream
        & (facts.operations > 0)
        & (host >= call)
        & (facts.share(gap) > thresholds.WARN_SHARE)
    )
    own = np.minimum(facts.part("host"), gap)
    code = facts.share(own) > thresholds.WARN_SHARE
    cases = list(facts.cases(mask))
    found = {}
    for lot in facts.lots(_rows(cases)):
        for segments in lot.each():
            at = int(segments.interval[0])
            found[at] = _where(segments, bool(code[at]))
    for case in cases:
        at = case.row
        waited = int((own if code[at] else gap)[at])
        yield _host_gap(facts, case, gap, waited, found.get(at, _Wait("many", 0, "", 0)))


class _Wait(NamedTuple):
    """Where most of the wait lies (before, between, after, many), the longest stretch, the
    operation it waited for, and how much of that stretch the host spent in its own code, or in all
    of its own code and calls."""

    where: str
    longest: int
    then: str
    in_it: int


def _host_gap(facts: Facts, case: Case, gap: np.ndarray, waited: int, wait: _Wait) -> Finding:
    at = case.row
    outside = int(facts.part("host")[at])
    where, longest, then, in_it = wait
    if in_it <= thresholds.ONE_GAP_SHARE * waited:
        where = "many"
    lead = (
        f"measures the host, not the {'kernel' if facts.operations[at] < thresholds.MANY_OPERATIONS else 'kernels'}"
        if waited >= thresholds.MOSTLY_SHARE * facts.elapsed[at]
        else "waits for the host"
    )
    mostly = "for the host, most of it " if where != "many" and in_it < waited else ""
    place = {
        "before": "for the launch that came after the first event",
        "between": "while the host was busy between two launches",
        "after": "for the host to record the end event",
        "many": f"for the host, before and between {facts.operations[at]:,} operations",
    }[where]
    if facts.kind[at] == "nvtx" and where == "before":
        place = "for the first launch"
    place = mostly + place
    return case.finding(
        "info" if facts.others_worked[at] else "warning",
        f"{case.who} {lead}: for {words.of(waited, facts.elapsed[at])} {facts.idled(at)} {place}.",
        run_ahead(facts, at),
        gap,
        waiting_ns=waited,
        elapsed_ns=facts.elapsed[at],
        kernel_ns=facts.kernel_upper[at],
        copies_in_the_interval_ns=facts.part("memcpy")[at],
        outside_CUDA_ns=outside if outside != waited else None,
        launch_calls_ns=facts.part("api_launch")[at],
        other_CUDA_calls_ns=facts.part("api")[at],
        operations=facts.operations[at] if where == "many" else None,
        longest_gap_ns=longest or None,
        it_waited_for=then,
        seen_in=case.frequency,
    )


def _where(segments: Segments, code: bool) -> _Wait:
    """`code`: whether the host's own code alone is blamed, not its calls."""
    run = segments.run
    blamed, told = segments.of_cause(*_BLAMED), segments.of_cause(*(("host",) if code else _BLAMED))
    total = np.bincount(run[blamed], segments.ns[blamed], minlength=1)
    worst = int(total.argmax())
    rows = np.flatnonzero(run == worst)
    in_it = int(segments.ns[told & (run == worst)].sum())
    longest, after = int(total[worst]), int(rows[-1]) + 1
    then = words.kernel(str(segments.words(np.array([after]))[0])) if after < len(segments) else ""
    if longest < thresholds.ONE_GAP_SHARE * total.sum():
        return _Wait("many", longest, then, in_it)
    if rows[0] == 0:
        return _Wait("before", longest, then, in_it)
    return _Wait("between" if then else "after", longest, then, in_it)


def many_kernels(facts: Facts) -> Iterator[Finding]:
    """Many short operations, launched one by one: launch calls and latencies cost more than the
    work."""
    cost = facts.part("api_launch", "launch_latency")
    ran = facts.work - facts.staging
    mask = (
        facts.on_stream
        & (facts.operations >= thresholds.MANY_OPERATIONS)
        & (facts.share(cost) > thresholds.WARN_SHARE)
    )
    cases = list(facts.cases(mask))
    one = _by_one_call(facts, _rows(cases))
    for case in cases:
        at = case.row
        if one[at]:  # rule api-launch reports it
            continue
        count = int(facts.operations[at])
        yield case.finding(
            "warning",
            f"{case.who} pays for {count:,} launches: {words.of(cost[at], facts.elapsed[at])} go into launching operations "
            f"that run for {words.span(ran[at] / count)} each on average.",
            _graph(facts, at),
            cost,
            operations=count,
            launching_ns=cost[at],
            elapsed_ns=facts.elapsed[at],
            launching_each_ns=cost[at] / count,
            running_each_ns=ran[at] / count,
            seen_in=case.frequency,
        )


def _by_one_call(facts: Facts, positions: np.ndarray) -> np.ndarray:
    """Of these intervals, a mask: one call is most of what they pay for launching: code that is
    loaded, a copy that blocks."""
    longest = np.zeros(facts.count, np.int64)
    for segments in facts.lots(positions):
        inside = segments.of_cause("api_launch")
        np.maximum.at(longest, segments.interval[inside], segments.ns[inside])
    return longest > thresholds.ONE_GAP_SHARE * facts.part("api_launch", "launch_latency")


def _graph(facts: Facts, at: int) -> str:
    """A graph, where the work is not in one, and a delay if that helps; neither is possible around a
    synchronisation."""
    if facts.part("sync")[at] > 0 or facts.graphs[at]:
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
    """The launch call itself is what the GPU waits for (few operations; many have a rule of their
    own)."""
    call = facts.part("api_launch")
    host = facts.part("host") + facts.part("api") - facts.loading - facts.allocating
    mask = (
        facts.on_stream
        & (facts.operations > 0)
        & (call > host)
        & (facts.share(call + host.clip(0)) > thresholds.WARN_SHARE)
    )
    cases = list(facts.cases(mask))
    many = facts.operations >= thresholds.MANY_OPERATIONS
    rows = _rows(cases)
    skipped = many & ~_by_one_call(facts, rows[many[rows]])
    for case in cases:
        at = case.row
        if skipped[at]:
            continue
        rows = rows_of(facts.detail_rows("api_launch"), at)
        longest = rows.groupby("detail", sort=False)["ns"].sum().sort_values(ascending=False)
        name = str(longest.index[0]) if len(longest) and longest.index[0] else ""
        inside = int(longest.iloc[0]) if name else int(call[at])
        yield case.finding(
            "warning",
            f"{case.who} waits for {'its launch call' if facts.operations[at] == 1 else 'launch calls'}: for {words.of(inside, facts.elapsed[at])} {facts.idled(at)} "
            f"while the host was inside {name or 'the call'}.",
            run_ahead(facts, at),
            call,
            inside_the_call_ns=inside,
            call=name,
            elapsed_ns=facts.elapsed[at],
            kernel_ns=facts.kernel_upper[at],
            seen_in=case.frequency,
        )


def launch_latency(facts: Facts) -> Iterator[Finding]:
    """The host ran ahead, yet the fixed cost of events and launches is a large part of a short
    interval."""
    fixed = facts.part("launch_latency", "event")
    late = facts.part("host", "api", "api_launch", "sync")
    few = (facts.operations > 0) & (facts.operations < thresholds.MANY_OPERATIONS)
    mask = (
        facts.is_event
        & few
        & (facts.share(fixed) > thresholds.FIXED_COST_SAY_SHARE)
        & (facts.share(late) < thresholds.AHEAD_SHARE)
    )
    for case in facts.cases(mask):
        at = case.row
        yield case.finding(
            "info",
            f"{case.who} is too short for one pair of events: {words.of(fixed[at], facts.elapsed[at])} are the pair's own cost and "
            "launch latency, although the host had run ahead.",
            "Time several calls with one pair and divide:   start.record(); [f() for _ in range(20)]; end.record()",
            fixed,
            pair_and_latency_ns=fixed[at],
            elapsed_ns=facts.elapsed[at],
            kernel_ns=facts.kernel_upper[at],
            seen_in=case.frequency,
        )


def allocation(facts: Facts) -> Iterator[Finding]:
    """Memory is allocated or freed inside the interval, and the GPU waits for it."""
    spent = facts.allocating
    said = (facts.share(spent) >= thresholds.ALLOCATION_SAY_SHARE) & (
        spent >= thresholds.ALLOCATION_SAY_NS
    )
    rows = facts.detail_rows("api", ALLOCATION_CALLS)
    for case in facts.cases(said):
        at = case.row
        names = rows_of(rows, at)["detail"].unique()
        idle = "" if facts.is_host[at] else f", and {facts.idled(at).rstrip(',')}"
        yield case.finding(
            "warning" if spent[at] > thresholds.WARN_SHARE * facts.elapsed[at] else "info",
            f"{case.who} allocates or frees memory inside: for {words.of(spent[at], facts.elapsed[at])} the host was in "
            f"{' and '.join(names[:2])}{' and other such calls' if len(names) > 2 else ''}{idle}.",
            "Allocate before the start event, or run once so that torch's allocator keeps the memory:   out = torch.empty_like(x); "
            "f(x, out=out); torch.cuda.synchronize(); start.record()",
            spent,
            allocating_ns=spent[at],
            elapsed_ns=facts.elapsed[at],
            kernel_ns=facts.kernel_upper[at],
            seen_in=case.frequency,
        )


def loads(facts: Facts) -> np.ndarray:
    """Time in calls that load code, per interval."""
    return facts.detail_ns(facts.detail_rows("api", LOADS))


def module_load(facts: Facts) -> Iterator[Finding]:
    """Code is loaded, compiled or chosen inside the interval: the first call is not like the
    others."""
    spent = loads(facts)
    for case in facts.cases(spent >= thresholds.LOAD_NS, at_least=0):
        code = int(facts.label[case.row])
        row, median = int(facts.row[code]), facts.median[code]
        if typical := spent[row] > thresholds.WARN_SHARE * facts.elapsed[row]:
            at = row
        else:  # not the slowest interval: that one may be slow for another reason
            at = int(case.positions[spent[case.positions].argmax()])
            slow = facts.elapsed[at] >= thresholds.WARMUP_FACTOR * median
            if case.count > 1 and not (
                slow and spent[at] > thresholds.LOAD_SHARE * facts.elapsed[at]
            ):
                continue
        alone = case.count == 1 or typical
        mine = facts.repetitions(code)
        where = (
            "its measurement"
            if case.count == 1
            else "its first interval"
            if at == int(mine[facts.pid[mine] == facts.pid[at]][0])
            else words.subject(str(facts.names[at]))
        )
        idle = "" if facts.is_host[at] else " while its stream was idle"
        usual = "" if alone else f", where the median is {words.span(median)}"
        yield case.finding(
            "warning" if typical else "info",
            f"{case.who} loads code in {where}: for {words.of(spent[at], facts.elapsed[at])} it loaded "
            f"modules{idle}{usual}.",
            "Run the code once before timing it:   f(x); torch.cuda.synchronize(); start.record()",
            spent,
            interval=at,
            # draw the interval that the title is about
            positions=case.positions if alone else np.array([at]),
            about_row=bool(typical),
            loading_ns=spent[at],
            elapsed_ns=facts.elapsed[at],
            median_ns=None if alone else median,
            intervals_that_load=len(case.positions),
        )
