"""What does measuring itself cost or hide?  The floor set by an empty pair, the profiler, unknown
time."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from nsysalign.explain import words
from nsysalign.explain.facts import SAY_SHARE, TYPICAL_SHARE, WARN_SHARE, Facts, Label, each_label
from nsysalign.explain.finding import Advice, CouldNotLook, Finding, Words
from nsysalign.explain.rules.launching import AHEAD_SHARE
from nsysalign.model import CAUSES, OPERATION_KINDS

#: An interval shorter than this many empty pairs is mostly (warning) or partly (info) the event
#: pair's own cost.
FLOOR_WARN_FACTOR, FLOOR_SAY_FACTOR = 2.0, 4.0
#: No event pair costs this much: if all intervals of a trace are longer, the comparison is not
#: needed.
FLOOR_RELEVANT_NS = 50_000

_HOST = ("host", "api", "sync", "api_launch")
_MANY_CALLS = "Measure many calls together and divide."
_CLOCK = Advice(
    "For host time, use a clock of the host:   t0 = time.perf_counter(); ...; t1 = time.perf_counter()",
    _MANY_CALLS,
    of_ranges=False,
    faster=Words(
        "Do that work in another thread or process, while the GPU is busy",
        "loader = DataLoader(data, num_workers=4)",
    ),
)
_EMPTY = Advice(anywhere=_MANY_CALLS, of_ranges=False)
_DIVIDE = Advice(
    "Time many calls with one pair, and divide:   start.record(); [f() for _ in range(100)]; end.record()",
    _MANY_CALLS,
    of_ranges=False,
)
_QUOTE = Advice(
    "Quote the time without nsys; the table of both runs has its predicted budget.  The profiler does not "
    "stretch the GPU's own work: let the host run ahead, or time a CUDA graph."
)
_RECORD_ALL = Advice(
    "Record the whole program from its start, including the CUDA API:   nsys profile -t cuda,nvtx ..."
)


def event_floor(facts: Facts) -> Iterator[Finding | CouldNotLook]:
    """Intervals about as short as an empty event pair of the same trace: they measure the pair."""
    event = facts.column("kind") == "event"
    if not event.any():
        return
    elapsed = facts.column("elapsed_ns")
    work, late = (
        sum(facts.parts[:, CAUSES.index(c)] for c in causes) for causes in (OPERATION_KINDS, _HOST)
    )
    nothing = event & (facts.column("operations") == 0) & (work == 0) & (facts.other_ns == 0)
    # a pair that waits for the host between its records is not empty
    waits = nothing & (elapsed >= FLOOR_RELEVANT_NS)
    empty = nothing & ~waits
    for label in facts.labels:
        if case := label.case(waits[label.numbers], at_least=TYPICAL_SHARE + 1e-9):
            row = case.row
            yield case.finding(
                "info",
                f"{label.who} contains no GPU work: for {row.of(row.ns(*_HOST))} the host did "
                "something else before it recorded the end event.",
                _CLOCK,
                label.ns(*_HOST),
                host_and_calls_ns=row.ns(*_HOST),
                elapsed_ns=row.elapsed,
            )
        if case := label.case(empty[label.numbers], at_least=TYPICAL_SHARE + 1e-9):
            yield case.finding(
                "info",
                f"{label.who} contains no GPU work: {words.span(case.row.elapsed)} is what an event pair itself costs here.",
                _EMPTY,
                elapsed_ns=case.row.elapsed,
            )
    if not empty.any():
        if not waits.any() and elapsed[event].min() < FLOOR_RELEVANT_NS:
            yield CouldNotLook(
                "this trace has no empty event pair to compare with (record one: start.record(); end.record())"
            )
        return
    # an empty pair behind queued work is cheaper than one on an idle stream: compare like with like
    ahead = late / np.maximum(elapsed, 1) < AHEAD_SHARE
    working = event & (work > 0) & (elapsed > 0)
    unknown = False
    for behind in (False, True):
        pairs, compared = empty & (ahead == behind), working & (ahead == behind)
        if not pairs.any():
            unknown |= bool(compared.any())
            continue
        floor = float(np.median(elapsed[pairs]))
        short = compared & (elapsed < FLOOR_SAY_FACTOR * floor)
        state = "behind queued work" if behind else "on an idle stream"
        for label in facts.labels:
            if case := label.case(short[label.numbers]):
                factor = case.row.elapsed / floor
                yield case.finding(
                    "warning" if factor < FLOOR_WARN_FACTOR else "info",
                    f"{label.who} is close to the shortest possible time: {words.span(case.row.elapsed)} is {words.times(factor)} an empty event pair "
                    f"({words.span(floor)} {state}).",
                    _DIVIDE,
                    elapsed_ns=case.row.elapsed,
                    empty_pair_ns=floor,
                    times_an_empty_pair=factor,
                    empty_pairs=int(pairs.sum()),
                    kernel_ns=case.row.kernel,
                )
    if unknown and elapsed[working].min() < FLOOR_RELEVANT_NS:
        state = "behind queued work" if empty[~ahead].any() else "on an idle stream"
        yield CouldNotLook(f"for intervals {state} (this trace has no empty event pair there)")


def inflation(facts: Facts) -> Iterator[Finding]:
    """Labels that take longer under nsys than without it: the budget shown is not the one without a
    profiler.  Only a run with --baseline can tell.
    """
    labels = {label.name: label for label in facts.labels}
    for row in facts.analysis.baseline.itertuples(index=False):
        label = labels.get(row.label)
        added = row.profiled_ns - row.baseline_ns
        # one of the two runs did not measure it, or there are too few intervals, or they vary too
        # much
        if label is None or math.isnan(added) or not row.low_ns > 0:
            continue
        share = added / row.profiled_ns
        if share < SAY_SHARE:
            continue
        predicted = None if math.isnan(row.predicted_ns) else row.predicted_ns
        yield label.finding(
            "warning" if share > WARN_SHARE else "info",
            f"{label.who} is {row.inflation:.2f} times as long under nsys: {words.span(row.profiled_ns)} "
            f"profiled, {words.span(row.baseline_ns)} without.",
            _QUOTE,
            under_nsys_ns=row.profiled_ns,
            without_nsys_ns=row.baseline_ns,
            difference_at_least_ns=row.low_ns,
            difference_at_most_ns=row.high_ns,
            profiler_share=share,
            predicted_without_nsys_ns=predicted,
            prediction_error_ns=None if predicted is None else row.predicted_ns - row.baseline_ns,
        )


@each_label
def unknown(label: Label) -> Finding | None:
    """Time that the trace cannot explain."""
    lost = label.ns("unknown")
    case = label.case(label.share(lost) >= SAY_SHARE)
    if case is None:
        return None
    row = case.row
    ns = row.ns("unknown")
    return case.finding(
        "warning" if ns > WARN_SHARE * row.elapsed else "info",
        f"{label.who}: the trace does not say what {row.of(ns)} were (calls missing, or a wait "
        "whose end is not recorded).",
        _RECORD_ALL,
        unknown_ns=ns,
        elapsed_ns=row.elapsed,
    )
