"""Intervals about as short as an empty event pair of the same trace: they measure the pair."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsysalign.diagnose import thresholds, words
from nsysalign.diagnose.facts import Facts
from nsysalign.diagnose.finding import CouldNotLook, Finding, Rule, evidence

NAME = "event-floor"


def find(facts: Facts) -> Iterator[Finding | CouldNotLook]:
    if not facts.is_event.any():
        return
    nothing = facts.is_event & (facts.operations == 0) & (facts.work == 0) & (facts.other_ns == 0)
    # what waits for the host between its records is no empty pair
    waits = nothing & (facts.elapsed >= thresholds.FLOOR_RELEVANT_NS)
    empty = nothing & ~waits
    ahead = facts.share(facts.part("host", "api", "api_launch", "sync")) < thresholds.AHEAD_SHARE
    yield from _waiting(facts, waits)
    if not empty.any():
        if not waits.any() and facts.elapsed[facts.is_event].min() < thresholds.FLOOR_RELEVANT_NS:
            yield CouldNotLook(
                NAME,
                "this trace has no empty event pair to compare with (record one: start.record(); end.record())",
            )
        return
    yield from _empty(facts, empty)
    # an empty pair behind queued work is cheaper than one on an idle stream: compare like with like
    working = facts.is_event & (facts.work > 0) & (facts.elapsed > 0)
    unknown = False
    for queued in (False, True):
        pairs, compared = empty & (ahead == queued), working & (ahead == queued)
        if not pairs.any():
            unknown |= bool(compared.any())
            continue
        floor = float(np.median(facts.elapsed[pairs]))
        yield from _short(
            facts,
            compared & (facts.elapsed < thresholds.FLOOR_SAY_FACTOR * floor),
            floor,
            int(pairs.sum()),
            queued,
        )
    if unknown and facts.elapsed[working].min() < thresholds.FLOOR_RELEVANT_NS:
        state = "behind queued work" if empty[~ahead].any() else "on an idle stream"
        yield CouldNotLook(NAME, f"for intervals {state} (this trace has no empty event pair there)")


def _waiting(facts: Facts, waits: np.ndarray) -> Iterator[Finding]:
    """Pairs with nothing between them but the host's own time: loading data, say."""
    for case in facts.cases(waits, at_least=thresholds.TYPICAL_SHARE + 1e-9):
        at = case.row
        host = facts.part("host", "api", "sync", "api_launch")[at]
        yield Finding(
            NAME,
            "info",
            case.label,
            f"{words.subject(case.label)} contains no GPU work: for {words.of(host, facts.elapsed[at])} the host did "
            "something else before it recorded the end event.",
            evidence(
                elapsed_ns=facts.elapsed[at],
                host_ns=facts.part("host")[at],
                CUDA_calls_ns=facts.part("api", "sync", "api_launch")[at],
                seen_in=case.frequency,
            ),
            "For host time, use a clock of the host:   t0 = time.perf_counter(); ...; t1 = time.perf_counter()",
            case.site,
            case.positions,
            float(facts.elapsed[at]),
        )


def _empty(facts: Facts, empty: np.ndarray) -> Iterator[Finding]:
    for case in facts.cases(empty, at_least=thresholds.TYPICAL_SHARE + 1e-9):
        at = case.row
        yield Finding(
            NAME,
            "info",
            case.label,
            f"{words.subject(case.label)} contains no GPU work: {words.span(facts.elapsed[at])} is what an event pair itself costs here.",
            evidence(
                elapsed_ns=facts.elapsed[at],
                host_ns=facts.part("host", "api")[at],
                event_ns=facts.part("event")[at],
                seen_in=case.frequency,
            ),
            "",
            case.site,
            case.positions,
            float(facts.elapsed[at]),
        )


def _short(facts: Facts, mask: np.ndarray, floor: float, pairs: int, queued: bool) -> Iterator[Finding]:
    for case in facts.cases(mask):
        at = case.row
        factor = facts.elapsed[at] / floor
        yield Finding(
            NAME,
            "warning" if factor < thresholds.FLOOR_WARN_FACTOR else "info",
            case.label,
            f"{words.subject(case.label)} is close to the shortest possible time: {words.span(facts.elapsed[at])} is {words.times(factor)} an empty event pair "
            f"({words.span(floor)} {'behind queued work' if queued else 'on an idle stream'}).",
            evidence(
                elapsed_ns=facts.elapsed[at],
                empty_pair_ns=floor,
                empty_pairs=pairs,
                kernel_ns=facts.kernel_upper[at],
                seen_in=case.frequency,
            ),
            "Time many calls with one pair, and divide:   start.record(); [f() for _ in range(100)]; end.record()",
            case.site,
            case.positions,
            float(min(floor, facts.elapsed[at])),
        )


RULE = Rule(NAME, find)
