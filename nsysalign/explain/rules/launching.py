"""Does the GPU wait for the host to launch?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from nsysalign.explain import words
from nsysalign.explain.facts import (
    ALLOCATION_CALLS,
    LOADING_CALLS,
    WARN_SHARE,
    Facts,
    Interval,
    Label,
    Stretch,
    each_label,
)
from nsysalign.explain.finding import Advice, CouldNotLook, Finding, Words
from nsysalign.model import HIDDEN_BY_DELAY, LAUNCH_QUEUE, OPERATION_KINDS

#: If the wait for the host is at least this share of the interval, the interval measures the host.
MOSTLY_SHARE = 0.5
#: One stretch with this much of the wait is "the" gap; one of at least this length is host work of
#: its own, not the cost of launching, and sampled stacks can show it.
ONE_GAP_SHARE, LONG_GAP_NS = 0.6, 1_000_000
#: At least this many operations in one interval are "many": launching them one by one has a cost.
MANY_OPERATIONS = 10
#: Operations that run for longer than this are not small.
SMALL_NS = 20_000
#: A delay kernel must outlast the host's enqueueing by this factor, at about this many cycles per
#: microsecond; these many are long enough for ordinary intervals (about 1 ms; measured).
DELAY_MARGIN, DELAY_CYCLES_PER_US, DELAY_CYCLES = 3, 1_800, 2_000_000
#: Under CUDA_LAUNCH_BLOCKING nearly every kernel is followed by the rest of its own launch call.
BLOCKING_SHARE, BLOCKING_KERNELS = 0.8, 5
#: The host ran ahead of an interval if the GPU waits for it for less than this share; the event
#: pair's own cost and launch latencies are then named from this share on.
AHEAD_SHARE, FIXED_COST_SAY_SHARE = 0.10, 0.20
#: Allocation and free calls are named from this share and time on.
ALLOCATION_SAY_SHARE, ALLOCATION_SAY_NS = 0.01, 20_000

_BLAMED = ("host", "api", "api_launch")
_COMPILE = 'f = torch.compile(f, mode="reduce-overhead")'
_RUN_AHEAD = (
    "Queue a long kernel before the start event, so that the host runs ahead, or time a CUDA graph."
)
_MORE_WORK = "Give each launch more work: larger batches, "

_BLOCKING = Advice(faster=Words("Run without it", "env -u CUDA_LAUNCH_BLOCKING python SCRIPT.py"))
_GAP = Advice(
    anywhere=_RUN_AHEAD,
    of_ranges=False,
    faster=Words(
        "Launch less and earlier: fuse operations, replay them as a CUDA graph, move other work off this thread",
        _COMPILE,
    ),
    faster_in_graphs=Words(
        "Put more of the work into the CUDA graph that is replayed here, launch the rest earlier, and move other work off this thread"
    ),
    faster_with_sync=Words(
        "Launch less and earlier: fuse operations, move the synchronisation and other work out of this code",
        "f = torch.compile(f)",
    ),
)
_MANY = Advice(
    anywhere=_RUN_AHEAD,
    of_ranges=False,
    faster=Words("Fuse the small operations, or replay them as a CUDA graph", _COMPILE),
    faster_in_graphs=Words(
        "Put the small operations beside the CUDA graph that is replayed here into it, or fuse them"
    ),
    faster_with_sync=Words("Fuse the small operations", "f = torch.compile(f)"),
)
_CALL = Advice(
    anywhere=_RUN_AHEAD,
    of_ranges=False,
    faster=Words(
        "Move what that call waits for out of the loop, or replay the work as a CUDA graph, one call for all",
        _COMPILE,
    ),
    faster_in_graphs=Words(
        "Put more work into the CUDA graph that is replayed here, so that it is launched less often"
    ),
)
_LATENCY = Advice(
    "Time several calls with one pair and divide:   start.record(); [f() for _ in range(20)]; end.record()",
    "Measure several calls together and divide.",
    of_ranges=False,
    faster=Words(_MORE_WORK + "fused operations", _COMPILE),
    faster_in_graphs=Words(_MORE_WORK + "several steps in one CUDA graph"),
)
_ALLOCATION = Advice(
    "Allocate before the start event, or run once so that torch's allocator keeps the memory:   out = torch.empty_like(x); "
    "f(x, out=out); torch.cuda.synchronize(); start.record()",
    "Allocate before the start event.",
    of_ranges=False,
    faster=Words(
        "Allocate once and reuse the memory",
        "out = torch.empty_like(x)  # once;   f(x, out=out)  # in the loop",
    ),
)


def gpu_alone(row: Interval, graph: bool = False) -> str:
    """How to measure an interval's GPU time alone: a line of code that lets the host run ahead, or
    an alternative and the reason if a delay kernel cannot do that.  `graph`: a CUDA graph comes
    first, where the work is not in one (neither is possible around a synchronisation)."""
    graphs, waits = row.facts.graphs[row.number], row.ns("sync") > 0
    graph = graph and not waits and not graphs
    host_ns = row.ns(*HIDDEN_BY_DELAY)
    if graph:
        host_ns = row.elapsed - row.ns(*OPERATION_KINDS)
    wanted = host_ns / 1e3 * DELAY_CYCLES_PER_US * DELAY_MARGIN
    cycles = max(DELAY_CYCLES, math.ceil(wanted / 1e6) * 1_000_000)
    delay = f"torch.cuda._sleep({cycles:_}); start.record()"
    too_many = row.operations >= LAUNCH_QUEUE and not graphs
    if graph:
        first = (
            "Capture the work in a CUDA graph and time the replay:   with torch.cuda.graph(g): f()   "
            "start.record(); g.replay(); end.record()"
        )
        return (
            first
            if too_many
            else f"{first}   {delay}  # or without a graph: let the host run ahead"
        )
    if too_many:
        return (
            f"Capture it once and time the replay (its {row.operations:,} operations do not fit in the launch queue, so a delay cannot "
            "hide them):   start.record(); graph.replay(); end.record()"
        )
    if waits:
        return (
            f"Move the synchronisation out of the interval, then let the host run ahead:   {delay}"
        )
    return f"Let the host run ahead before the start event{'' if graphs else ', or time a CUDA graph'}:   {delay}"


@each_label
def launch_blocking(label: Label) -> Finding | None:
    """CUDA_LAUNCH_BLOCKING=1: every launch call returns only when its kernel has ended.

    host    [ launch k -------------) host [ launch k+1 -------
    GPU             [kernel k )                   [kernel k+1
                               ^ the rest of launch k, then host, then launch k+1: two launch calls
                               in one gap
    """
    row = label.row
    if row.kind == "host" or row.operations < 2 or not row.ns("api_launch"):
        return None
    gaps = [  # the last one before the end event launches nothing
        gap.pieces
        for gap in row.stretches
        if gap.before and gap.before.cause == "kernel" and gap.then
    ]
    blocked = [
        pieces
        for pieces in gaps
        if pieces[0].cause == "api_launch"
        and len({piece.ref for piece in pieces if piece.cause == "api_launch"}) > 1
    ]
    if len(gaps) < BLOCKING_KERNELS or len(blocked) < BLOCKING_SHARE * len(gaps):
        return None
    rest = sum(pieces[0].ns for pieces in blocked)
    return label.finding(
        "warning",
        f"{label.who} seems to run with CUDA_LAUNCH_BLOCKING: after {len(blocked)} of {len(gaps)} kernels the host was still "
        "inside the call that had launched them.",
        _BLOCKING,  # there is nothing to measure differently
        np.where(label.numbers == row.number, rest, 0),
        row=row,
        kernels_followed_by_their_own_launch_call=len(blocked),
        gaps_between_kernels=len(gaps),
        still_in_these_calls_ns=rest,
    )


def host_gap(facts: Facts) -> Iterator[Finding | CouldNotLook]:
    """The GPU waits, idle, for the host to issue the next operation."""
    if any(m.startswith("CUPTI_ACTIVITY_KIND_RUNTIME") for m in facts.analysis.trace.missing):
        yield CouldNotLook("the trace has no CUDA API rows")
        return
    yield from _host_gap(facts)


@each_label
def _host_gap(label: Label) -> Finding | None:
    other_calls = label.ns("api") - label.detail_ns("api", LOADING_CALLS)
    other_calls = other_calls - label.detail_ns("api", ALLOCATION_CALLS)
    host, call = label.ns("host") + other_calls.clip(0), label.ns("api_launch")
    # what follows from a synchronisation has a rule of its own
    catching_up = label.facts.synchronised[1][label.numbers]
    gap = host + call - np.minimum(catching_up, host + call)
    waits = label.on_stream & (label.operations > 0) & (host >= call)
    case = label.case(waits & (label.share(gap) > WARN_SHARE))
    if case is None:
        return None
    row = case.row
    whole, outside = case.value(gap), row.ns("host")
    own = min(outside, whole)
    code = own > WARN_SHARE * row.elapsed  # the host's own code alone is blamed, not its calls
    waited = own if code else whole
    stretches = row.stretches
    worst = max(stretches, key=lambda s: s.ns(_BLAMED), default=Stretch(None, [], None))
    longest, in_it = worst.ns(_BLAMED), worst.ns(("host",) if code else _BLAMED)
    then = words.kernel(row.words([worst.then])[0]) if worst.then else ""
    one = longest >= ONE_GAP_SHARE * sum(s.ns(_BLAMED) for s in stretches)
    one = one and in_it > ONE_GAP_SHARE * waited
    if not one:
        place = f"for the host, before and between {row.operations:,} operations"
    elif worst.before is None:
        place = "for the first launch" if row.kind == "nvtx" else "for the launch that came after the first event"  # fmt: skip
    elif then:
        place = "while the host was busy between two launches"
    else:
        place = "for the host to record the end event"
    if one and in_it < waited:
        place = "for the host, most of it " + place
    lead = "waits for the host"
    if waited >= MOSTLY_SHARE * row.elapsed:
        kernels = "kernel" if row.operations < MANY_OPERATIONS else "kernels"
        lead = f"measures the host, not the {kernels}"
    advice = replace(_GAP, measuring=gpu_alone(row))
    if longest >= max(MOSTLY_SHARE * waited, LONG_GAP_NS):
        # launching less does not help: that stretch has to go
        where = f"before it launches {then}" if then else "before it records the end event"
        look = Words(
            f"Look at what the host does {where}, {words.span(longest)} in one stretch: do it once, before the loop, or in another thread",
            "nsysalign run --sample-python SCRIPT.py  # names the functions",
        )
        advice = replace(advice, faster=look, faster_in_graphs=None, faster_with_sync=None)
    return case.finding(
        "info" if row.others_worked else "warning",
        f"{label.who} {lead}: for {row.of(waited)} {row.idled} {place}.",
        advice,
        gap,
        waiting_ns=waited,
        elapsed_ns=row.elapsed,
        kernel_ns=row.kernel,
        copies_in_the_interval_ns=row.ns("memcpy"),
        outside_CUDA_ns=outside if outside != waited else None,
        launch_calls_ns=row.ns("api_launch"),
        other_CUDA_calls_ns=row.ns("api"),
        operations=None if one else row.operations,
        longest_gap_ns=longest or None,
        it_waited_for=then,
    )


def _by_one_call(row: Interval) -> bool:
    """Whether one call is most of what an interval pays for launching: code that is loaded, a copy
    that blocks."""
    longest = max((s.ns for s in row.segments if s.cause == "api_launch"), default=0)
    return longest > ONE_GAP_SHARE * row.ns("api_launch", "launch_latency")


@each_label
def many_kernels(label: Label) -> Finding | None:
    """Many short operations, launched one by one: launch calls and latencies cost more than the
    work."""
    cost = label.ns("api_launch", "launch_latency")
    many = label.on_stream & (label.operations >= MANY_OPERATIONS)
    case = label.case(many & (label.share(cost) > WARN_SHARE))
    if case is None or _by_one_call(case.row):  # that is for rule api-launch
        return None
    row = case.row
    launching = row.ns("api_launch", "launch_latency")
    staging = sum(d.ns for d in row.details("memcpy", ("staging",)))
    ran = row.ns(*OPERATION_KINDS) - staging
    if ran > launching and ran / row.operations > SMALL_NS:  # these operations are not small
        return None
    return case.finding(
        "warning",
        f"{label.who} pays for {row.operations:,} launches: {row.of(launching)} go into launching operations "
        f"that run for {words.span(ran / row.operations)} each on average.",
        replace(_MANY, measuring=gpu_alone(row, graph=True)),
        cost,
        operations=row.operations,
        launching_ns=launching,
        elapsed_ns=row.elapsed,
        launching_each_ns=launching / row.operations,
        running_each_ns=ran / row.operations,
    )


@each_label
def api_launch(label: Label) -> Finding | None:
    """The launch call itself is what the GPU waits for (few operations; many have a rule of their
    own)."""
    call = label.ns("api_launch")
    host = label.ns("host", "api") - label.detail_ns("api", LOADING_CALLS)
    host = host - label.detail_ns("api", ALLOCATION_CALLS)
    waits = label.on_stream & (label.operations > 0) & (call > host)
    case = label.case(waits & (label.share(call + host.clip(0)) > WARN_SHARE))
    if case is None:
        return None
    row = case.row
    if row.operations >= MANY_OPERATIONS and not _by_one_call(row):
        return None
    by_name: dict[str, int] = {}
    for detail in row.details("api_launch"):
        by_name[detail.detail] = by_name.get(detail.detail, 0) + detail.ns
    name = max(by_name, key=by_name.__getitem__, default="")
    inside = by_name[name] if name else row.ns("api_launch")
    calls = "its launch call" if row.operations == 1 else "launch calls"
    return case.finding(
        "warning",
        f"{label.who} waits for {calls}: for {row.of(inside)} {row.idled} while the host was inside {name or 'the call'}.",
        replace(_CALL, measuring=gpu_alone(row)),
        call,
        inside_the_call_ns=inside,
        call=name,
        elapsed_ns=row.elapsed,
        kernel_ns=row.kernel,
    )


@each_label
def launch_latency(label: Label) -> Finding | None:
    """The host ran ahead, yet the fixed cost of events and launches is a large part of a short
    interval."""
    fixed = label.ns("launch_latency", "event")
    late = label.ns("host", "api", "api_launch", "sync")
    few = (label.operations > 0) & (label.operations < MANY_OPERATIONS) & (label.kind == "event")
    ahead = label.share(late) < AHEAD_SHARE
    case = label.case(few & ahead & (label.share(fixed) > FIXED_COST_SAY_SHARE))
    if case is None:
        return None
    row = case.row
    spent = row.ns("launch_latency", "event")
    return case.finding(
        "info",
        f"{label.who} is too short for one pair of events: {row.of(spent)} are the pair's own cost and "
        "launch latency, although the host had run ahead.",
        _LATENCY,
        fixed,
        pair_and_latency_ns=spent,
        elapsed_ns=row.elapsed,
        kernel_ns=row.kernel,
    )


@each_label
def allocation(label: Label) -> Finding | None:
    """Memory is allocated or freed inside the interval, and the GPU waits for it."""
    spent = label.detail_ns("api", ALLOCATION_CALLS)
    case = label.case((label.share(spent) >= ALLOCATION_SAY_SHARE) & (spent >= ALLOCATION_SAY_NS))
    if case is None:
        return None
    row = case.row
    calls = row.details("api", ALLOCATION_CALLS)
    ns = sum(call.ns for call in calls)
    names = list(dict.fromkeys(call.detail for call in calls))
    inside = f"{' and '.join(names[:2])}{' and other such calls' if len(names) > 2 else ''}"
    idle = "" if row.kind == "host" else f", and {row.idled.rstrip(',')}"
    return case.finding(
        "warning" if ns > WARN_SHARE * row.elapsed else "info",
        f"{label.who} allocates or frees memory inside: for {row.of(ns)} the host was in {inside}{idle}.",
        _ALLOCATION,
        spent,
        allocating_ns=ns,
        elapsed_ns=row.elapsed,
        kernel_ns=row.kernel,
    )
