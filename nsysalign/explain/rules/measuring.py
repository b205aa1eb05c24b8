"""What does measuring itself cost or hide?  Host timers, the floor set by an empty pair, the
profiler, unknown time."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from nsysalign.explain import thresholds, words
from nsysalign.explain.facts import AFTER, BOTH, Facts, host_pattern, idle_share
from nsysalign.explain.finding import About, CouldNotLook, Finding
from nsysalign.explain.rules.validity import enqueues_only


def host_timer(facts: Facts) -> Iterator[Finding]:
    """A host timer of work that the GPU has finished when the clock is read: what it contains in
    addition to the GPU's work."""
    # the GPU's execution hides behind the launch's return and the synchronisation's: what was
    # issued inside counts
    gpu = facts.kernel_upper - facts.kernel_outside
    mask = (
        facts.is_host
        & (facts.kernel_only > 0)
        & (facts.elapsed - gpu > thresholds.WARN_SHARE * facts.elapsed)
        & ~enqueues_only(facts)
    )
    copied, queued = facts.part("memcpy", "memset"), facts.part("queued")
    rest = np.maximum(facts.elapsed - gpu - copied - queued, 0)
    lost = np.minimum(rest, facts.part("host", "api", "api_launch"))
    # the parts say what the host did: a kernel that ran beside its calls is none of them
    seen = facts.part("kernel", "graph")
    hidden = seen < (1 - thresholds.SAY_SHARE) * gpu
    for case in facts.cases(mask):
        at = case.row
        pattern = host_pattern(facts, case)
        alone = pattern != AFTER
        what = "launches and the kernels beside them"
        if pattern in (BOTH, AFTER):
            what = "launch, kernel and synchronisation"
        if not alone:
            what = f"earlier work, {what}"
        held = [
            (words.span(part[at]), text)
            for part, text in (
                (copied, "of copies that the host waited for"),
                (queued, "of earlier work"),
            )
            if part[at] >= thresholds.SAY_SHARE * facts.elapsed[at]
        ]
        beside = "".join(f", beside {ns} {text}" for ns, text in held)
        if hidden[at]:
            beside = f", {words.span(seen[at]) if seen[at] else 'none'} of it while the host waited for them{beside}"
        yield case.finding(
            "warning",
            f"{case.who} times {what} together: kernels ran for {words.of(gpu[at], facts.elapsed[at])}{beside}; for the "
            f"rest, the GPU waited for the host{'' if alone else _waits(idle_share(facts, case))}.",
            "For the GPU's time, use events and let the host run ahead:   torch.cuda._sleep(2_000_000); start.record(); f(); end.record()"
            if alone
            else "Synchronise before the first reading as well; for the GPU's time alone use events:   torch.cuda.synchronize(); "
            "t0 = time.perf_counter()",
            lost,
            synchronises=pattern,
            kernels_ran_ns=gpu[at],
            kernels_waited_for_ns=seen[at] if hidden[at] and seen[at] else None,
            elapsed_ns=facts.elapsed[at],
            launch_calls_ns=facts.part("api_launch")[at],
            synchronisation_ns=facts.part("sync")[at],
            outside_CUDA_ns=facts.part("host")[at],
            copies_waited_for_ns=copied[at] or None,
            earlier_work_ns=queued[at] or None,
            seen_in=case.frequency,
        )


def _waits(idle: float) -> str:
    """The timer synchronises only at its end: what that means for work launched before it."""
    if idle >= thresholds.TYPICAL_SHARE:
        return " (nothing excludes earlier work; here it had ended)"
    return " or for earlier work, which was still running"


def event_floor(facts: Facts) -> Iterator[Finding | CouldNotLook]:
    """Intervals about as short as an empty event pair of the same trace: they measure the pair."""
    if not facts.is_event.any():
        return
    nothing = facts.is_event & (facts.operations == 0) & (facts.work == 0) & (facts.other_ns == 0)
    # a pair that waits for the host between its records is not empty
    waits = nothing & (facts.elapsed >= thresholds.FLOOR_RELEVANT_NS)
    empty = nothing & ~waits
    ahead = facts.share(facts.part("host", "api", "api_launch", "sync")) < thresholds.AHEAD_SHARE
    yield from _waiting(facts, waits)
    if not empty.any():
        if not waits.any() and facts.elapsed[facts.is_event].min() < thresholds.FLOOR_RELEVANT_NS:
            yield CouldNotLook(
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
        yield CouldNotLook(f"for intervals {state} (this trace has no empty event pair there)")


def _waiting(facts: Facts, waits: np.ndarray) -> Iterator[Finding]:
    """Pairs with nothing between them but the host's own time, such as loading data."""
    for case in facts.cases(waits, at_least=thresholds.TYPICAL_SHARE + 1e-9):
        at = case.row
        host = facts.part("host", "api", "sync", "api_launch")[at]
        yield case.finding(
            "info",
            f"{case.who} contains no GPU work: for {words.of(host, facts.elapsed[at])} the host did "
            "something else before it recorded the end event.",
            "For host time, use a clock of the host:   t0 = time.perf_counter(); ...; t1 = time.perf_counter()",
            facts.part("host", "api", "sync", "api_launch"),
            host_and_calls_ns=host,
            elapsed_ns=facts.elapsed[at],
            seen_in=case.frequency,
        )


def _empty(facts: Facts, empty: np.ndarray) -> Iterator[Finding]:
    for case in facts.cases(empty, at_least=thresholds.TYPICAL_SHARE + 1e-9):
        at = case.row
        yield case.finding(
            "info",
            f"{case.who} contains no GPU work: {words.span(facts.elapsed[at])} is what an event pair itself costs here.",
            "",
            elapsed_ns=facts.elapsed[at],
            seen_in=case.frequency,
        )


def _short(
    facts: Facts, mask: np.ndarray, floor: float, pairs: int, queued: bool
) -> Iterator[Finding]:
    for case in facts.cases(mask):
        at = case.row
        factor = facts.elapsed[at] / floor
        yield case.finding(
            "warning" if factor < thresholds.FLOOR_WARN_FACTOR else "info",
            f"{case.who} is close to the shortest possible time: {words.span(facts.elapsed[at])} is {words.times(factor)} an empty event pair "
            f"({words.span(floor)} {'behind queued work' if queued else 'on an idle stream'}).",
            "Time many calls with one pair, and divide:   start.record(); [f() for _ in range(100)]; end.record()",
            elapsed_ns=facts.elapsed[at],
            empty_pair_ns=floor,
            times_an_empty_pair=factor,
            empty_pairs=pairs,
            kernel_ns=facts.kernel_upper[at],
            seen_in=case.frequency,
        )


def inflation(facts: Facts) -> Iterator[Finding]:
    """Labels that take longer under nsys than without it: the budget shown is not the one without a
    profiler.  Only a run with --baseline can tell.
    """
    code_of = {label: code for code, label in enumerate(facts.labels.tolist())}
    for row in facts.analysis.baseline.itertuples(index=False):
        code = code_of.get(row.label)
        added = row.profiled_ns - row.baseline_ns
        # one of the two runs did not measure it, or there are too few intervals, or they vary too
        # much
        if code is None or math.isnan(added) or not row.low_ns > 0:
            continue
        share = added / row.profiled_ns
        if share < thresholds.SAY_SHARE:
            continue
        predicted = None if math.isnan(row.predicted_ns) else row.predicted_ns
        yield About(row.label, row.site, facts.repetitions(code)).finding(
            "warning" if share > thresholds.WARN_SHARE else "info",
            f"{words.subject(row.label)} is {row.inflation:.2f} times as long under nsys: {words.span(row.profiled_ns)} "
            f"profiled, {words.span(row.baseline_ns)} without.",
            "Quote the time without nsys; the table of both runs has its predicted budget.  The profiler does not "
            "stretch the GPU's own work: let the host run ahead, or time a CUDA graph.",
            under_nsys_ns=row.profiled_ns,
            without_nsys_ns=row.baseline_ns,
            difference_at_least_ns=row.low_ns,
            difference_at_most_ns=row.high_ns,
            profiler_share=share,
            predicted_without_nsys_ns=predicted,
            prediction_error_ns=None if predicted is None else row.predicted_ns - row.baseline_ns,
        )


def profiler(facts: Facts) -> Iterator[Finding]:
    """Intervals that the profiler itself disturbed."""
    own = facts.part("profiler")
    for case in facts.cases(facts.flagged("profiler-disturbed") | (own > 0), at_least=0):
        at = case.row
        mine = facts.repetitions(int(facts.label[at]))
        calm = mine[~np.isin(mine, case.positions)]
        slow, usual = (
            float(np.median(facts.elapsed[g])) if len(g) else 0.0 for g in (case.positions, calm)
        )
        part = own[at] / max(facts.elapsed[at], 1)
        often = len(case.positions) >= thresholds.TYPICAL_SHARE * case.count
        if not often and part < thresholds.SAY_SHARE and slow < thresholds.DISTURBED_FACTOR * usual:
            continue  # the note that counts them is enough
        warn = often and part > thresholds.WARN_SHARE
        yield case.finding(
            "warning" if warn else "info",
            f"{case.who}: the profiler was busy with its own work during {len(case.positions)} of {words.plural(case.count, 'interval')}.",
            _advice(facts, case.label),
            about_row=bool(warn),
            disturbed=len(case.positions),
            intervals=case.count,
            median_disturbed_ns=slow,
            median_of_the_others_ns=usual or None,
            profiler_in_the_interval_ns=int(own[at]) or None,
        )


def _advice(facts: Facts, label: str) -> str:
    """Measure without nsys; if that was done, its result."""
    table = facts.analysis.baseline
    row = table[(table["label"] == label) & table["inflation"].notna()]
    if row.empty:
        return "Measure it without nsys as well:   nsysalign run --baseline SCRIPT"
    without, times = (float(row[c].iloc[0]) for c in ("baseline_ns", "inflation"))
    return f"Quote the time without nsys: {words.span(without)} (under nsys {times:.2f} times as much)."


def unknown(facts: Facts) -> Iterator[Finding]:
    """Time that the trace cannot explain."""
    lost = facts.part("unknown")
    for case in facts.cases(facts.share(lost) >= thresholds.SAY_SHARE):
        at = case.row
        warn = lost[at] > thresholds.WARN_SHARE * facts.elapsed[at]
        yield case.finding(
            "warning" if warn else "info",
            f"{case.who}: the trace does not say what {words.of(lost[at], facts.elapsed[at])} were (calls missing, or a wait "
            "whose end is not recorded).",
            "Record the whole program from its start, including the CUDA API:   nsys profile -t cuda,nvtx ...",
            unknown_ns=lost[at],
            elapsed_ns=facts.elapsed[at],
            seen_in=case.frequency,
        )
