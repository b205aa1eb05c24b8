"""Do the repetitions of a label measure one thing, on a machine that stays the same?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nsysalign.explain.facts import LOADS, TYPICAL_SHARE, WARN_SHARE, Facts, Interval, Label
from nsysalign.explain.finding import Findings, Remark
from nsysalign.model import CAUSES, CLOCK_REASONS, OPERATION_KINDS, SLOWED_BITS
from nsysalign.text import of, percent, plural, span, subject, times

#: A first repetition is warm-up when it takes this many times the median of the rest.
WARMUP_FACTOR = 1.5
#: Loading code is named from this time on, if it is at least this share of the slow interval:
#: otherwise something else made it slow.
LOAD_NS, LOAD_SHARE = 100_000, 0.05
#: Statistics of the spread need this many repetitions.
SPREAD_SAMPLES = 8
_KINDS_NAMED = 3
#: Two SM clocks, and kernels at them, are different from these shares on.
CLOCK_SHARE, CLOCK_SAY_SHARE = 0.03, 0.02


@dataclass(frozen=True)
class Repetitions:
    """The repetitions of one label as a set: positions among its intervals, in time.  `comparable`
    do the same work; `cold` are the slow first ones, those before them included whose work is
    another and that idle for long (what compiles, or captures a graph); `warm` are the comparable
    ones without them."""

    label: Label
    comparable: np.ndarray
    different: np.ndarray
    cold: np.ndarray
    warm: np.ndarray


def repetitions(facts: Facts) -> list[Repetitions]:
    """One entry per label with at least two intervals."""
    table = facts.analysis.variants.sort_values("count", ascending=False, kind="stable")
    first = table.drop_duplicates("label")
    usual = dict(zip(first["label"], first["intervals"], strict=True))
    out = []
    for label in facts.labels:
        if label.count < 2:
            continue
        same, operations = np.ones(label.count, dtype=bool), label.operations.astype(np.int64)
        if label.name in usual:  # kinds of work differ in more than their number of operations
            same = np.isin(label.numbers, np.array(usual[label.name], dtype=np.int64))
        elif label.on_stream[0]:  # about as many as the most common interval has
            values, counts = np.unique(operations, return_counts=True)
            most = int(values[counts.argmax()])
            # two thirds to three halves of it, give or take one
            same = (2 * most < 3 * (operations + 1)) & (2 * operations < 3 * most + 2)
            same &= (operations > 0) == (most > 0)
        cold, pid = np.zeros(label.count, dtype=bool), label.column("pid")
        idle = label.elapsed - label.ns(*OPERATION_KINDS)
        for process in np.unique(pid):  # every rank warms up by itself
            own = np.flatnonzero((pid == process) & same)
            slow = _slow_first(label.elapsed[own])
            cold[own[:slow]] = True
            if slow < len(own):
                warm = float(np.median(label.elapsed[own[slow:]]))
                before = np.flatnonzero((pid == process) & ~same)
                before = before[before < own[slow]]
                cold[before[idle[before] > WARMUP_FACTOR * warm]] = True
        out.append(Repetitions(label, *map(np.flatnonzero, (same, ~same, cold, same & ~cold))))
    return out


def _slow_first(elapsed: np.ndarray) -> int:
    """How many of the first values are warm-up.  The very first may always be; several only up to a
    share of all: if most of the set is slow, that is two modes, not warm-up."""
    if len(elapsed) < 3:
        return 0
    slow = int(np.argmin(elapsed > WARMUP_FACTOR * float(np.median(elapsed[1:]))))
    if slow > max(1, 0.3 * len(elapsed)):  # the first one if it stands out from the others
        slow = int(elapsed[0] > WARMUP_FACTOR * elapsed[1:slow].max())
    return slow


def module_load(label: Label) -> Findings:
    """Code is loaded, compiled or chosen inside the interval: the first call is not like the
    others."""
    spent = label.ns("api", named=LOADS)
    row = label.case(spent >= LOAD_NS, at_least=0)
    if row is None:
        return
    typical = row.at == label.row.at and spent[row.at] > WARN_SHARE * row.elapsed
    if not typical:  # not the slowest interval: that one may be slow for another reason
        row = Interval(label, int(spent.argmax()), row.has)
        slow = row.elapsed >= WARMUP_FACTOR * label.median_ns
        if label.count > 1 and not (slow and spent.max() > LOAD_SHARE * row.elapsed):
            return
    alone, where = label.count == 1 or typical, subject(row.name)
    if label.count == 1:
        where = "its measurement"
    elif row.at == (label.column("pid") == row.column("pid")).argmax():
        where = "its first interval"
    idle = "" if row.kind == "host" else " while its stream was idle"
    usual = "" if alone else f", where the median is {span(label.median_ns)}"
    yield row.finding(
        "warning" if typical else "info",
        f"{label.who} loads code in {where}: for {of(spent[row.at], row.elapsed)} it loaded modules{idle}{usual}.",
        "Run the code once before timing it:   f(x); torch.cuda.synchronize(); start.record()",
        "Load the code when the program starts, not when the first result is needed",
        "CUDA_MODULE_LOADING=EAGER python SCRIPT.py",
        loss=spent,
        of=row.has if alone else [row.at],  # draw the one that the title is about
        about_row=typical,
        loading_ns=spent[row.at],
        median_ns=None if alone else label.median_ns,
        seen_in=None,
    )


def warm_up(r: Repetitions) -> Findings:
    """The first repetitions are much slower than the rest: warm-up is mixed with warm
    repetitions."""
    label, elapsed = r.label, r.label.elapsed
    if len(r.comparable) < 3 or not len(r.cold):
        return
    worst = int(r.cold[elapsed[r.cold].argmax()])
    row = Interval(label, worst)
    if label.ns("api", named=LOADS)[worst] >= max(LOAD_NS, LOAD_SHARE * row.elapsed):
        return  # module-load names the cause
    which, pid = subject(row.name), label.column("pid")
    place, first = (np.arange(len(p)) - np.searchsorted(p, p) for p in (pid, pid[r.cold]))
    if (place[r.cold] == first).all():
        # among different work they need not be the first of their processes
        several = f"the slowest of the first {len(r.cold)} intervals"
        which = several if len(r.cold) > 1 else "the first interval"
    warm, mean = float(np.median(elapsed[r.warm])), float(elapsed.mean())
    factor = row.elapsed / max(warm, 1)
    yield label.finding(
        "info",
        f"{label.who} warms up: {which} took {span(row.elapsed)}, {times(factor)} the median "
        f"of the later ones ({span(warm)}); the mean of all is {span(mean)}.",
        "Run it a few times before timing:   for _ in range(3): f(x)",
        row=row.number,
        of=r.cold,
        cold_intervals=len(r.cold),
        slowest_cold_ns=row.elapsed,
        times_as_long=factor,
        median_of_the_rest_ns=warm,
        mean_of_all_ns=mean,
    )


def mixed_work(r: Repetitions) -> Findings:
    """Intervals of one label that hold different amounts of work: their statistics mix two
    questions."""
    label, variants = r.label, r.label.facts.analysis.variants
    own = variants[variants["label"] == label.name]
    # an operator called with several shapes: the table tells them apart, and nothing is wrong
    if not len(r.different) or (len(own) and label.row.kind == "nvtx"):
        return
    if len(own):
        kinds = dict(zip(own["variant"][:_KINDS_NAMED], own["count"].tolist(), strict=False))
        named = "; ".join(f"{count:,} x {name}" for name, count in kinds.items())
        more = "; …" if len(own) > _KINDS_NAMED else ""
        held = f"{len(own)} kinds, which the table tells apart ({named}{more}); the spread is that of the most frequent one."
        evidence = {"kinds_of_work": len(own), "intervals_of_each": kinds}
    else:
        usual = int(np.median(label.operations[r.comparable]))
        counts = label.operations[r.different]
        least, most = int(counts.min()), int(counts.max())
        others = f"{least} to {most} operations" if least < most else plural(most, "operation")
        held = (
            f"{len(r.different)} of {label.count} intervals held {others}, the others about {usual}; statistics of spread leave "
            "them out."
        )
        evidence = {
            "intervals_with_other_work": len(r.different),
            "intervals": label.count,
            "operations_usually": usual,
            "operations_otherwise_at_least": least,
            "operations_otherwise_at_most": most,
        }
    title = f"{label.who} mixes different work: {held}"
    yield label.finding(
        "info",
        title,
        'Give each kind its own name:   with nsysalign.region("name"): ...',
        of=r.different,
        **evidence,
    )


def variance(facts: Facts) -> Findings:
    """The warm repetitions do not measure one thing: they spread widely, or some lie far off."""
    few = sum(label.count < 2 for label in facts.labels)
    for r in facts.repetitions:
        label = r.label
        order = r.warm[np.argsort(label.elapsed[r.warm], kind="stable")]
        values = label.elapsed[order]
        if len(values) < SPREAD_SAMPLES:
            few += 1
            continue
        low, median, high = (float(p) for p in np.percentile(values, [25, 50, 75]))
        sigma = 1.4826 * float(np.median(np.abs(values - median)))
        limit = max(1.5 * median, median + 6.0 * sigma)
        if high - low <= 0.15 * median and values[-1] <= limit:
            continue
        # what the slowest quarter has more of than the faster half
        slow, fast = order[-max(1, len(order) // 4) :], order[: len(order) // 2]
        more, less = (facts.parts[label.numbers[some]].mean(axis=0) for some in (slow, fast))
        cause = CAUSES[int((more - less).argmax())]
        yield label.finding(
            "info",
            f"{label.who} varies, most in {cause.replace('_', ' ')}: half of its {len(values):,} warm intervals lie between "
            f"{span(low)} and {span(high)}, the median is {span(median)}, the slowest took {span(values[-1])}.",
            "Report the median and the spread, or find what differs (clocks, caches, inputs):   "
            "print(analysis.intervals[['name', 'elapsed_ns', 'kernel_only_ns']])",
            of=r.warm,
            intervals=len(values),
            p25_ns=low,
            median_ns=median,
            p75_ns=high,
            slowest_ns=values[-1],
        )
    if few:
        labels = plural(few, "label")
        yield Remark(
            f"high-variance was not checked: {labels} with fewer than {SPREAD_SAMPLES} comparable warm repetitions"
        )


class IntervalClocks(NamedTuple):
    """Arrays over all intervals; where `known` is False the others mean nothing."""

    known: np.ndarray
    sm_mhz: np.ndarray  # float64, mean over the samples in and next to the window
    reasons: np.ndarray  # bits: those of the samples inside, else those that both neighbours share


def interval_clocks(facts: Facts) -> IntervalClocks:
    """What the clock samples say about each interval.

    stretches   [--- 1980 ---]      [-- 1755 --]
    intervals      |a|         |b|    |c|               a: 1980; b: between the two, 1755..1980; c: 1755
    """
    table, device = facts.analysis.gpu_clocks, facts.column("device")
    begin, end = facts.column("start_ns"), facts.column("end_ns")
    clocks = IntervalClocks(*(np.zeros(facts.count, dtype) for dtype in (bool, float, np.int64)))
    sampled = np.unique(table["device"].to_numpy())
    if len(sampled) == 1:  # a host interval names no device: it used the only one
        device = np.where(device < 0, sampled[0], device)
    for number in sampled.tolist():
        rows = table[table["device"].to_numpy() == number]
        start, stop = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
        first = np.searchsorted(start, begin, side="right") - 1  # the last that began before
        last = np.searchsorted(stop, end, side="left")  # the first that ends after
        some = np.flatnonzero((device == number) & (first >= 0) & (last < len(rows)))
        first, last = first[some], last[some]
        low = first + (stop[first] < begin[some])  # the samples inside
        high = last - (start[last] >= end[some])
        outside = low > high
        low, high = np.where(outside, first, low), np.where(outside, last, high) + 1
        for bit in CLOCK_REASONS:
            before = np.cumsum([0, *(np.maximum(rows["reasons"].to_numpy(), 0) & bit > 0)])
            count = before[high] - before[low]
            clocks.reasons[some] |= bit * np.where(outside, count == high - low, count > 0)
        middle = (rows["sm_min_mhz"].to_numpy() + rows["sm_max_mhz"].to_numpy()) / 2
        before = np.cumsum([0, *middle])
        clocks.sm_mhz[some] = (before[last + 1] - before[first]) / (last - first + 1)
        apart = np.cumsum([0, *(start[1:] - stop[:-1] > 250_000_000)])
        clocks.known[some] = apart[last] == apart[first]
    return clocks


def throttled(label: Label) -> Findings:
    """The GPU could not run as fast as requested: power cap, heat, or a hardware slowdown during
    the intervals.  If there are no samples, clock-changed says so.
    """
    clocks, own = label.facts.clocks, label.numbers
    known = clocks.known[own]
    reasons = np.where(known, clocks.reasons[own], 0) & SLOWED_BITS
    slowed = reasons > 0
    row = label.case(slowed, at_least=0.05)
    if row is None:
        return
    others = known & ~slowed
    few, count = int(slowed.sum()), int(others.sum())
    seen = [(int((reasons & bit > 0).sum()), text) for bit, text in CLOCK_REASONS.items()]
    named = {text: often for often, text in sorted(seen, reverse=True) if often}
    hardware = bool((reasons & 0xC8).any())  # slowdown, heat or brake of the hardware itself
    clock = float(np.median(clocks.sm_mhz[own[slowed]]))
    highest = int(label.facts.analysis.gpu_clocks["sm_max_mhz"].max())
    slow = float(np.median(label.kernel[slowed]))
    quick = float(np.median(label.kernel[others])) if count else 0.0
    # the lower clock can have cost much: it is lower, kernels are a good part of the interval,
    # and runs at the full clock, if any, are faster
    matters = (
        few >= TYPICAL_SHARE * (few + count)
        and clock <= (1 - CLOCK_SHARE) * max(highest, 1)
        and np.median((label.kernel / label.whole)[slowed]) >= WARN_SHARE
        and (count < 2 or slow >= (1 + CLOCK_SAY_SHARE) * quick)
    )
    yield row.finding(
        "warning" if hardware or matters else "info",
        f"{label.who}: the GPU was slowed down in {few} of {few + count} intervals "
        f"({', '.join(named)}), to {clock:.0f} MHz; the highest SM clock of the whole run is "
        f"{highest} MHz.",
        "Check the machine first (cooling, power supply):   nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER"
        if hardware
        else f"Measure at a clock that the GPU can sustain, and report it:   sudo nvidia-smi --lock-gpu-clocks={clock:.0f}   "
        "# or pause between the intervals",
        loss=label.kernel - int(quick) if count else None,
        about_row=False,
        seen_in=None,
        reasons=named,
        intervals_slowed_down=few,
        intervals=few + count,
        sm_clock_mhz=clock,
        highest_sm_clock_mhz=highest,
    )


def clock_changed(facts: Facts) -> Findings:
    """The SM clock differs between the repetitions of a label, and its kernels follow it.

    One finding per label whose slow kernels are those at the lower clock.
    """
    clocks = facts.clocks
    if not clocks.known.any():
        why = "no interval lies between two samples of the GPU's clock"
        if not len(facts.analysis.gpu_clocks):
            why = "the run has no samples of the GPU's clock (`nsysalign run` records them); the rule throttled needs them as well"
        if facts.count:
            yield Remark(f"clock-changed was not checked: {why}")
        return
    for r in facts.repetitions:
        label = r.label
        known = clocks.known[label.numbers[r.comparable]] & (label.kernel[r.comparable] > 0)
        some = r.comparable[known]
        if len(some) < SPREAD_SAMPLES:
            continue
        clock, kernel = clocks.sm_mhz[label.numbers[some]], label.kernel[some].astype(float)
        fast = clock >= (1 - CLOCK_SHARE) * np.percentile(clock, 95)
        behind = int((~fast).sum())
        if min(len(some) - behind, behind) < 2:
            continue
        high, low = float(np.median(clock[fast])), float(np.median(clock[~fast]))
        quick, slow = float(np.median(kernel[fast])), float(np.median(kernel[~fast]))
        follows = slow / max(quick, 1) - 1 >= 0.3 * (high / max(low, 1) - 1)
        period = 1 / np.maximum(clock, 1)
        correlation = float(np.corrcoef(kernel, period)[0, 1]) if kernel.std() else 0.0
        grows = slow >= (1 + CLOCK_SAY_SHARE) * quick
        if not follows or not grows or correlation < 0.5:
            continue
        # in time, a clock that is low only in the first runs was still rising; if it was held by
        # power or heat, rule throttled reports that
        held = bool(((clocks.reasons[label.numbers[some[~fast]]] & SLOWED_BITS) != 0).any())
        ramp = bool((~fast[:behind]).mean() >= 0.9) and not held
        where = f"{behind} of {len(some)}"
        if ramp and (~fast[:behind]).all():
            where = f"the first {where}"
        yield label.finding(
            "warning" if slow >= (1 + 0.10) * quick else "info",
            f"{label.who}: {where} intervals ran at an SM clock of {low:.0f} instead of {high:.0f} MHz"
            f"{' (it was still rising)' if ramp else ''}, and its kernels take {span(slow)} there, "
            f"{span(quick)} in the others.",
            "Warm up until the clock is stable, and compare intervals at one clock only:   "
            "for _ in range(200): step()   # before the first start.record()"
            if ramp
            else "Compare intervals at one clock only, or lock it where you may:   "
            f"sudo nvidia-smi --lock-gpu-clocks={min(low, high):.0f}",
            loss=label.kernel - int(quick),
            of=some[~fast],
            low_clock_mhz=low,
            high_clock_mhz=high,
            intervals_at_the_low_clock=behind,
            intervals=len(some),
            kernel_at_the_low_clock_ns=slow,
            kernel_at_the_high_clock_ns=quick,
            correlation_of_kernel_with_clock_period=correlation,
        )


def cold_l2(facts: Facts) -> Findings:
    """The same kernels take longer in one label than in another: cold against warm L2 is the usual
    cause.

    Labels whose rows ran the same kernels, steadily, alone: the slower ones of each set.
    """
    sets: dict[tuple[str, ...], list[tuple[float, np.ndarray, Repetitions]]] = {}
    for r in facts.repetitions:
        row, kernel = r.label.row, r.label.column("kernel_only_ns")[r.warm]
        alone = not facts.other_ns[row.number] and not row.ns("queued", "graph")
        steady = len(r.warm) >= 5 and not len(r.different)
        if row.kind == "host" or not row.column("kernel_only_ns") or not alone or not steady:
            continue
        low, median, high = np.percentile(kernel, [25, 50, 75])
        if high - low > 0.06 * median:
            continue
        # a kernel in two pieces counts once
        names = tuple({s.ref: s.text for s in row.segments if s.cause == "kernel"}.values())
        # the length of torch.cuda._sleep is the requested one
        if names and not any("spin_kernel" in name for name in names):
            sets.setdefault(names, []).append((float(median), kernel, r))
    for group in sets.values():
        fastest, quick, warm = min(group, key=lambda each: each[0])
        for median, kernel, r in group:
            factor, who = median / max(fastest, 1), r.label.who
            apart = np.percentile(kernel, 5) > np.percentile(quick, 95)
            if 1.08 < factor < 1.6 and apart:
                yield r.label.finding(
                    "info",
                    f"{who} runs the same kernels as {warm.label.who}, {percent(factor - 1)} slower ({span(median)} "
                    f"against {span(fastest)}): a cold L2, if shapes and clocks are the same.",
                    "Decide which one you want and use it for all, e.g. always cold:   flush.zero_(); start.record()",
                    of=r.warm,
                    kernel_here_ns=median,
                    kernel_there_ns=fastest,
                    slower_share=factor - 1,
                    compared_with=warm.label.name,
                )
