"""Do the repetitions measure one thing?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from nsysalign.explain import thresholds, words
from nsysalign.explain.facts import Facts
from nsysalign.explain.finding import About, CouldNotLook, Finding
from nsysalign.explain.repetitions import Repetitions, repetitions, split
from nsysalign.explain.rules.launching import loads
from nsysalign.model import CAUSES

_KINDS_NAMED = 3


def warm_up(facts: Facts) -> Iterator[Finding | CouldNotLook]:
    """The first repetitions are much slower than the rest: warm-up is mixed with warm
    repetitions."""
    small = 0
    loaded = loads(facts)
    for r in repetitions(facts):
        if len(r.comparable) < 3:
            small += 1
            continue
        if not len(r.cold):
            continue
        slowest = int(r.cold[facts.elapsed[r.cold].argmax()])
        slow, warm = float(facts.elapsed[slowest]), float(np.median(facts.elapsed[r.warm]))
        if loaded[slowest] >= max(thresholds.LOAD_NS, thresholds.LOAD_SHARE * slow):
            continue  # module-load names the cause
        mean = float(facts.elapsed[r.positions].mean())
        which = (
            words.subject(str(facts.names[slowest]))
            if not _leads(facts, r)
            else "the first interval"
            if len(r.cold) == 1
            else f"the slowest of the first {len(r.cold)} intervals"
        )
        yield r.finding(
            "info",
            f"{r.who} warms up: {which} took {words.span(slow)}, {words.times(slow / max(warm, 1))} the median "
            f"of the later ones ({words.span(warm)}); the mean of all is {words.span(mean)}.",
            "Run it a few times before timing:   for _ in range(3): f(x)",
            interval=slowest,
            positions=r.cold,
            cold_intervals=len(r.cold),
            slowest_cold_ns=slow,
            times_as_long=slow / max(warm, 1),
            median_of_the_rest_ns=warm,
            mean_of_all_ns=mean,
        )
    if small:
        yield CouldNotLook(
            f"{words.plural(small, 'label')} with fewer than 3 comparable repetitions"
        )


def _leads(facts: Facts, r: Repetitions) -> bool:
    """Whether the cold intervals are the first ones of their processes: among different work they
    need not be."""
    for process in np.unique(facts.pid[r.cold]):
        first = r.positions[facts.pid[r.positions] == process]
        cold = r.cold[facts.pid[r.cold] == process]
        if (first[: len(cold)] != cold).any():
            return False
    return True


def mixed_work(facts: Facts) -> Iterator[Finding]:
    """Intervals of one label that hold different amounts of work: their statistics mix two
    questions."""
    for r in repetitions(facts):
        if not len(r.different):
            continue
        kinds = facts.kinds_of_work(r.label)
        if kinds and facts.kind[r.row] == "nvtx":
            # an operator called with several shapes: the table tells them apart, and nothing is
            # wrong
            continue
        evidence: dict[str, object]
        if kinds:
            named = "; ".join(f"{count:,} x {name}" for name, count in kinds[:_KINDS_NAMED])
            more = "; …" if len(kinds) > _KINDS_NAMED else ""
            held = f"{len(kinds)} kinds, which the table tells apart ({named}{more}); the spread is that of the most frequent one."
            evidence = {
                "kinds_of_work": len(kinds),
                "intervals_of_each": dict(kinds[:_KINDS_NAMED]),
            }
        else:
            usual = int(np.median(facts.operations[r.comparable]))
            counts = facts.operations[r.different]
            least, most = int(counts.min()), int(counts.max())
            others = (
                f"{least} to {most} operations" if least < most else words.plural(most, "operation")
            )
            total = len(r.positions)
            held = (
                f"{len(r.different)} of {total} intervals held {others}, the others about {usual}; statistics of spread leave "
                "them out."
            )
            evidence = {
                "intervals_with_other_work": len(r.different),
                "intervals": total,
                "operations_usually": usual,
                "operations_otherwise_at_least": least,
                "operations_otherwise_at_most": most,
            }
        yield r.finding(
            "info",
            f"{r.who} mixes different work: {held}",
            'Give each kind its own name:   with nsysalign.region("name"): ...',
            positions=r.different,
            **evidence,
        )


def overlapping(facts: Facts) -> Iterator[Finding]:
    """Intervals of one label and process that overlap: their sum counts time twice."""
    order, _ = facts.by_time
    order = order[facts.on_stream[order]]
    if len(order) < 2:
        return
    stream = facts.analysis.intervals["end_stream"].to_numpy()
    order = order[
        np.lexsort((facts.start[order], stream[order], facts.pid[order], facts.label[order]))
    ]
    start, end = facts.start[order], facts.end[order]
    same = np.zeros(len(order), dtype=bool)
    for key in (facts.label, facts.pid, stream):
        same[1:] |= key[order][1:] != key[order][:-1]
    group = np.cumsum(same)
    reach = (
        pd.Series(end)
        .groupby(group)
        .cummax()
        .groupby(group)
        .shift(1)
        .fillna(np.iinfo(np.int64).min)
        .to_numpy()
        .astype(np.int64)
    )
    twice = np.where(reach > start, np.minimum(reach, end) - start, 0)
    # neighbours that share a record touch; a placement error is not an overlap
    error = facts.analysis.intervals["error_ns"].to_numpy()[order]
    mask = np.zeros(facts.count, dtype=bool)
    mask[order] = twice > 2 * error + 1_000
    counted = np.zeros(facts.count, np.int64)
    counted[order] = twice
    for case in facts.cases(mask, at_least=0):
        mine = facts.repetitions(int(facts.label[case.row]))
        total, double = int(facts.elapsed[mine].sum()), int(counted[case.positions].sum())
        yield case.finding(
            "info",
            f"{case.who}: its intervals overlap; added up, {words.of(double, total)} would be counted twice.",
            "Use either the parts or the whole, not both:   total = first.elapsed_time(last)",
            about_row=False,
            sum_ns=total,
            counted_twice_ns=double,
            overlapping=len(case.positions),
        )


def variance(facts: Facts) -> Iterator[Finding | CouldNotLook]:
    """The warm repetitions do not measure one thing: they fall into two groups, spread widely, or
    some lie far off."""
    few = int((facts.label_count < 2).sum()) if len(facts.labels) else 0
    for r in repetitions(facts):
        order = r.warm[np.argsort(facts.elapsed[r.warm], kind="stable")]
        values = facts.elapsed[order]
        if len(values) < thresholds.SPREAD_SAMPLES:
            few += 1
            continue
        low, median, high = (float(p) for p in np.percentile(values, [25, 50, 75]))
        sigma = 1.4826 * float(np.median(np.abs(values - median)))
        limit = max(thresholds.OUTLIER_FACTOR * median, median + thresholds.OUTLIER_SIGMAS * sigma)
        lower, far = split(values), order[values > limit]
        if lower:
            fast, slow = (float(np.median(g)) for g in (values[:lower], values[lower:]))
            inside = [
                float(np.median(facts.kernel_upper[g])) for g in (order[:lower], order[lower:])
            ]
            where = "" if abs(inside[1] - inside[0]) > 0.5 * (slow - fast) else "not "
            what = (
                f"has two modes: {lower} intervals near {words.span(fast)}, {len(order) - lower} near {words.span(slow)} "
                f"(most of the difference is {where}in the kernels)"
            )
            advice = "Report both, or find what differs (clocks, cache, inputs):   print(analysis.intervals[['name', 'elapsed_ns', 'kernel_only_ns']])"
            shown = order[lower:]
            values_said = {
                "intervals_in_the_lower": lower,
                "intervals_in_the_upper": len(order) - lower,
                "lower_median_ns": fast,
                "upper_median_ns": slow,
                "kernel_in_the_lower_ns": inside[0],
                "kernel_in_the_upper_ns": inside[1],
            }
        elif high - low > thresholds.SPREAD_SHARE * median:
            parts = {
                c: np.subtract(*np.percentile(facts.part(c)[r.warm], [75, 25])) for c in CAUSES
            }
            worst = max(parts, key=parts.__getitem__)
            most = f", most in {worst.replace('_', ' ')}" if parts[worst] > 0 else ""
            what = (
                f"varies{most}: half of its intervals lie between {words.span(low)} and {words.span(high)}, the median is "
                f"{words.span(median)}"
            )
            advice = (
                "Report the median and the spread; with the host ahead, the spread is the GPU's:   torch.cuda._sleep(2_000_000); "
                "start.record()"
            )
            shown = r.warm
            values_said = {
                "intervals": len(values),
                "p25_ns": low,
                "median_ns": median,
                "p75_ns": high,
                "kernel_spread_ns": parts["kernel"],
            }
        elif len(far):
            worst = int(far[-1])
            usual = order[(len(order) - 1) // 2]
            extra = {c: int(facts.part(c)[worst] - facts.part(c)[usual]) for c in CAUSES}
            cause = max(extra, key=extra.__getitem__)
            what = (
                f"has {words.plural(len(far), 'outlier')} among {len(values)} warm intervals: "
                f"{words.subject(str(facts.names[worst]))} took {words.span(facts.elapsed[worst])} against a median of "
                f"{words.span(median)}, {words.span(extra[cause])} more in {cause.replace('_', ' ')} than the median interval"
            )
            advice = "Report the median and the number of outliers."
            shown = far
            values_said = {
                "outliers": len(far),
                "intervals": len(values),
                "slowest_ns": facts.elapsed[worst],
                "median_ns": median,
                "more_than_usual_ns": extra[cause],
                "mostly_in": cause,
            }
        else:
            continue
        yield r.finding("info", f"{r.who} {what}.", advice, positions=shown, **values_said)
    if few:
        yield CouldNotLook(
            f"{words.plural(few, 'label')} with fewer than {thresholds.SPREAD_SAMPLES} comparable warm repetitions",
        )


def samples(facts: Facts) -> Iterator[Finding]:
    """Too few repetitions to know the spread.

    Only for what the program measured: a range is not a measurement, and an inferred pair may not
    be one.
    """
    inferred = (facts.analysis.intervals["method"] == "inferred").to_numpy()
    told = facts.label[(facts.kind != "nvtx") & ~inferred]
    meant = np.bincount(told, minlength=len(facts.labels)) > 0
    few = (facts.label_count < thresholds.FEW_SAMPLES) & meant
    once = np.flatnonzero(few & (facts.label_count == 1))
    if len(once) > thresholds.MANY_ONCE:
        yield _together(facts, once)
        few[once] = False
    for code in np.flatnonzero(few).tolist():
        mine = facts.repetitions(code)
        low, high = int(facts.elapsed[mine].min()), int(facts.elapsed[mine].max())
        once, about = len(mine) == 1, About(*facts.about(code), mine)
        yield about.finding(
            "info",
            f"{about.who} was measured {'once' if once else f'{len(mine)} times'}: "
            + (
                f"it is not known whether {words.span(low)} is typical."
                if once
                else f"{words.span(low)} to {words.span(high)} is too little to estimate the spread."
            ),
            "Repeat it:   for _ in range(20): start.record(); f(x); end.record(); torch.cuda.synchronize()",
            about_row=False,
            runs=len(mine),
            min_ns=low,
            max_ns=None if once else high,
        )


def _together(facts: Facts, codes: np.ndarray) -> Finding:
    """One finding for many labels that were measured once each, under the name of the longest."""
    rows = np.flatnonzero(np.isin(facts.label, codes))
    longest = int(rows[facts.elapsed[rows].argmax()])
    about = About(*facts.about(int(facts.label[longest])), rows)
    return about.finding(
        "info",
        f"{about.who} and {words.plural(len(codes) - 1, 'other label')} were measured once each: "
        "so it is not known whether these times are typical.",
        "Repeat them:   for _ in range(20): start.record(); f(x); end.record(); torch.cuda.synchronize()",
        about_row=False,
        labels_measured_once=len(codes),
        intervals=1,
    )
