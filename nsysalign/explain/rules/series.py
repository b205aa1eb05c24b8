"""Do the repetitions measure one thing?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nsysalign.explain import words
from nsysalign.explain.facts import (
    LOADS,
    WARN_SHARE,
    Facts,
    Interval,
    Label,
    each_label,
    remembered,
)
from nsysalign.explain.finding import Advice, CouldNotLook, Finding, Remark, Words
from nsysalign.model import CAUSES

#: Fewer repetitions than this give no idea of the spread; if more labels than MANY_ONCE were
#: measured once each, they share one finding.
FEW_SAMPLES, MANY_ONCE = 5, 5
#: A first repetition is warm-up when it takes this many times the median of the rest, and the run of
#: slow ones at the start is at most this share of all.
WARMUP_FACTOR, WARMUP_SHARE = 1.5, 0.3
#: Loading code is named from this time on, if it is at least this share of the slow interval:
#: otherwise something else made it slow.
LOAD_NS, LOAD_SHARE = 100_000, 0.05
#: Statistics of the spread need this many repetitions; half of them spread over more than this share
#: of the median: high variance.
SPREAD_SAMPLES, SPREAD_SHARE = 8, 0.15
#: Two modes: the gap between two groups is this many times their own spread and this share of the
#: median, and the smaller group holds this share of the repetitions.
MODE_GAP_FACTOR, MODE_GAP_SHARE, MODE_SIZE_SHARE = 4.0, 0.10, 0.2
#: An outlier lies above this many times the median, and this many (normal) standard deviations off.
OUTLIER_FACTOR, OUTLIER_SIGMAS = 1.5, 6.0
#: Different work under one label: operation counts that differ by more than this factor.
MIXED_FACTOR = 1.5
_KINDS_NAMED = 3

_LOADING = Advice(
    "Run the code once before timing it:   f(x); torch.cuda.synchronize(); start.record()",
    "Run the code once before the part that counts.",
    faster=Words(
        "Load the code when the program starts, not when the first result is needed",
        "CUDA_MODULE_LOADING=EAGER python SCRIPT.py",
    ),
)
_WARM_UP = Advice(
    "Run it a few times before timing:   for _ in range(3): f(x)", "Leave the first intervals out."
)
_OWN_NAMES = Advice('Give each kind its own name:   with nsysalign.region("name"): ...')
_SPREAD = Advice(
    "Report the median and the spread, or find what differs (clocks, caches, inputs):   "
    "print(analysis.intervals[['name', 'elapsed_ns', 'kernel_only_ns']])",
    "Report the median and the spread, or find what differs: clocks, caches, inputs.",
)
_REPEAT = "   for _ in range(20): start.record(); f(x); end.record(); torch.cuda.synchronize()"


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


@remembered
def repetitions(facts: Facts) -> list[Repetitions]:
    """One entry per label with at least two intervals."""
    table = facts.analysis.variants.sort_values("count", ascending=False, kind="stable")
    first = table.drop_duplicates("label")
    usual = dict(zip(first["label"], first["intervals"], strict=True))
    return [_repeated(label, usual) for label in facts.labels if label.count >= 2]


def _repeated(label: Label, usual: dict[str, tuple[int, ...]]) -> Repetitions:
    if label.name in usual:  # kinds of work differ in more than their number of operations
        same = np.isin(label.numbers, np.array(usual[label.name], dtype=np.int64))
    elif label.on_stream[0]:
        same = _same_work(label.operations)
    else:
        same = np.ones(label.count, dtype=bool)
    cold = np.zeros(label.count, dtype=bool)
    work, pid = label.ns("kernel", "graph", "memcpy", "memset"), label.column("pid")
    for process in np.unique(pid):  # every rank warms up by itself
        own = np.flatnonzero((pid == process) & same)
        slow = _slow_first(label.elapsed[own])
        cold[own[:slow]] = True
        if slow < len(own):
            warm = float(np.median(label.elapsed[own[slow:]]))
            before = np.flatnonzero((pid == process) & ~same)
            before = before[before < own[slow]]
            idle = label.elapsed[before] - work[before]
            cold[before[idle > WARMUP_FACTOR * warm]] = True
    return Repetitions(label, *map(np.flatnonzero, (same, ~same, cold, same & ~cold)))


def _slow_first(elapsed: np.ndarray) -> int:
    """How many of the first values are warm-up.  The very first may always be; several only up to a
    share of all: if most of the set is slow, that is two modes, not warm-up."""
    if len(elapsed) < 3:
        return 0
    most = max(1, WARMUP_SHARE * len(elapsed))
    is_slow = elapsed > WARMUP_FACTOR * float(np.median(elapsed[1:]))
    slow = int(np.argmin(is_slow)) if not is_slow.all() else 0
    if slow > most:  # the very first is one all the same if it stands out from the others
        slow = int(elapsed[0] > WARMUP_FACTOR * elapsed[1:slow].max())
    while slow < len(elapsed):
        # an upper mode that consists of just the next first ones is warm-up, too
        rest = np.argsort(elapsed[slow:], kind="stable")
        lower = lower_mode(elapsed[slow:][rest])
        upper = len(rest) - lower
        if not lower or rest[lower:].max() >= upper or slow + upper > most:
            break
        slow += upper
    return slow


def lower_mode(values: np.ndarray) -> int:
    """How many of the sorted values belong to the lower of two modes, 0 if there is only one.

    ||| ||            || ||||        the gap is wide against both groups' own spread
    """
    count = len(values)
    least = max(2, int(np.ceil(MODE_SIZE_SHARE * count)))
    if count < SPREAD_SAMPLES or count < 2 * least:
        return 0
    gaps = np.diff(values)[least - 1 : count - least]
    lower = least + int(gaps.argmax())
    gap = float(values[lower] - values[lower - 1])
    spreads = [np.subtract(*np.percentile(v, [75, 25])) for v in (values[:lower], values[lower:])]
    wide = gap > MODE_GAP_FACTOR * max(*spreads, 1.0)
    return lower if wide and gap > MODE_GAP_SHARE * float(np.median(values)) else 0


def _same_work(operations: np.ndarray) -> np.ndarray:
    """Whether an interval holds about as many operations as the most common interval of its
    label."""
    values, counts = np.unique(operations, return_counts=True)
    usual = int(values[counts.argmax()])
    if usual == 0:
        return operations == 0
    return (
        (operations <= MIXED_FACTOR * usual + 1 - 1e-9 * usual)
        & (operations >= usual / MIXED_FACTOR - 1 + 1e-9)
        & (operations > 0)
    )


@each_label
def module_load(label: Label) -> Finding | None:
    """Code is loaded, compiled or chosen inside the interval: the first call is not like the
    others."""
    spent, numbers = label.detail_ns("api", LOADS), label.numbers
    case = label.case(spent >= LOAD_NS, at_least=0)
    if case is None:
        return None
    row = label.row
    typical = bool((label.share(spent) > WARN_SHARE)[numbers == row.number].any())
    if not typical:  # not the slowest interval: that one may be slow for another reason
        row = Interval(label.facts, int(numbers[spent == spent.max()].min()))
        slow = row.elapsed >= WARMUP_FACTOR * label.median_ns
        if label.count > 1 and not (slow and spent.max() > LOAD_SHARE * row.elapsed):
            return None
    alone = label.count == 1 or typical
    if label.count == 1:
        where = "its measurement"
    elif row.number == int(numbers[label.column("pid") == row.column("pid")][0]):
        where = "its first interval"
    else:
        where = words.subject(row.name)
    (loading,) = spent[numbers == row.number].tolist()
    idle = "" if row.kind == "host" else " while its stream was idle"
    usual = "" if alone else f", where the median is {words.span(label.median_ns)}"
    return case.finding(
        "warning" if typical else "info",
        f"{label.who} loads code in {where}: for {row.of(loading)} it loaded modules{idle}{usual}.",
        _LOADING,
        spent,
        row=row,
        of=case.has if alone else numbers == row.number,  # draw the one that the title is about
        about_row=typical,
        loading_ns=loading,
        elapsed_ns=row.elapsed,
        median_ns=None if alone else label.median_ns,
        intervals_that_load=case.count,
        seen_in=None,
    )


def warm_up(facts: Facts) -> Iterator[Finding | CouldNotLook]:
    """The first repetitions are much slower than the rest: warm-up is mixed with warm
    repetitions."""
    small = 0
    for r in repetitions(facts):
        label = r.label
        if len(r.comparable) < 3:
            small += 1
            continue
        if not len(r.cold):
            continue
        worst = int(r.cold[label.elapsed[r.cold].argmax()])
        row = Interval(facts, int(label.numbers[worst]))
        warm = float(np.median(label.elapsed[r.warm]))
        if label.detail_ns("api", LOADS)[worst] >= max(LOAD_NS, LOAD_SHARE * row.elapsed):
            continue  # module-load names the cause
        which = words.subject(row.name)  # among different work they need not be the first
        if _leads(label.column("pid"), r.cold):
            which = "the first interval"
            if len(r.cold) > 1:
                which = f"the slowest of the first {len(r.cold)} intervals"
        mean, factor = float(label.elapsed.mean()), row.elapsed / max(warm, 1)
        yield label.finding(
            "info",
            f"{label.who} warms up: {which} took {words.span(row.elapsed)}, {words.times(factor)} the median "
            f"of the later ones ({words.span(warm)}); the mean of all is {words.span(mean)}.",
            _WARM_UP,
            row=row,
            of=r.cold,
            about_row=False,
            cold_intervals=len(r.cold),
            slowest_cold_ns=row.elapsed,
            times_as_long=factor,
            median_of_the_rest_ns=warm,
            mean_of_all_ns=mean,
        )
    if small:
        yield CouldNotLook(
            f"{words.plural(small, 'label')} with fewer than 3 comparable repetitions"
        )


def _leads(pid: np.ndarray, cold: np.ndarray) -> bool:
    """Whether the cold intervals are the first ones of their processes."""
    first = [
        np.flatnonzero(pid == process)[: (pid[cold] == process).sum()]
        for process in np.unique(pid[cold])
    ]
    return np.array_equal(np.sort(np.concatenate(first)), cold)


def mixed_work(facts: Facts) -> Iterator[Finding]:
    """Intervals of one label that hold different amounts of work: their statistics mix two
    questions."""
    variants = facts.analysis.variants
    for r in repetitions(facts):
        if not len(r.different):
            continue
        label, own = r.label, variants[variants["label"] == r.label.name]
        kinds = list(zip(own["variant"].tolist(), own["count"].tolist(), strict=True))
        if kinds and label.row.kind == "nvtx":
            # an operator called with several shapes: the table tells them apart, and nothing is
            # wrong
            continue
        if kinds:
            named = "; ".join(f"{count:,} x {name}" for name, count in kinds[:_KINDS_NAMED])
            more = "; …" if len(kinds) > _KINDS_NAMED else ""
            held = f"{len(kinds)} kinds, which the table tells apart ({named}{more}); the spread is that of the most frequent one."
            evidence = {
                "kinds_of_work": len(kinds),
                "intervals_of_each": dict(kinds[:_KINDS_NAMED]),
            }
        else:
            usual = int(np.median(label.operations[r.comparable]))
            counts = label.operations[r.different]
            least, most = int(counts.min()), int(counts.max())
            others = words.plural(most, "operation")
            if least < most:
                others = f"{least} to {most} operations"
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
        yield label.finding(
            "info",
            f"{label.who} mixes different work: {held}",
            _OWN_NAMES,
            of=r.different,
            about_row=False,
            **evidence,
        )


@each_label
def overlapping(label: Label) -> Remark | None:
    """Intervals of one label and process that overlap: their sum counts time twice."""
    twice, reach = 0, {}
    columns = ("pid", "end_stream", "start_ns", "end_ns", "error_ns", "kind")
    rows = zip(*(label.column(c).tolist() for c in columns), strict=True)
    for pid, stream, start, end, error, kind in rows:
        if kind == "host":
            continue
        before = reach.get((pid, stream), start)
        both = min(before, end) - start
        # neighbours that share a record touch; a placement error is not an overlap
        twice += both if both > 2 * error + 1_000 else 0
        reach[pid, stream] = max(before, end)
    if not twice:
        return None
    whole = words.of(twice, int(label.elapsed.sum()))
    return Remark(f"{label.who}: its intervals overlap; added up, {whole} would be counted twice")


def variance(facts: Facts) -> Iterator[Finding | CouldNotLook]:
    """The warm repetitions do not measure one thing: they fall into two groups, spread widely, or
    some lie far off."""
    few = sum(label.count < 2 for label in facts.labels)
    for r in repetitions(facts):
        label = r.label
        order = r.warm[np.argsort(label.elapsed[r.warm], kind="stable")]
        values = label.elapsed[order]
        if len(values) < SPREAD_SAMPLES:
            few += 1
            continue
        low, median, high = (float(p) for p in np.percentile(values, [25, 50, 75]))
        sigma = 1.4826 * float(np.median(np.abs(values - median)))
        limit = max(OUTLIER_FACTOR * median, median + OUTLIER_SIGMAS * sigma)
        if not (lower_mode(values) or high - low > SPREAD_SHARE * median or values[-1] > limit):
            continue
        # what the slowest quarter has more of than the faster half
        slow, fast = order[-max(1, len(order) // 4) :], order[: len(order) // 2]
        more = {c: float(label.ns(c)[slow].mean() - label.ns(c)[fast].mean()) for c in CAUSES}
        cause = max(more, key=more.__getitem__)
        kernel = label.column("kernel_only_ns")[r.warm]
        yield label.finding(
            "info",
            f"{label.who} varies, most in {cause.replace('_', ' ')}: half of its {len(values):,} warm intervals lie between "
            f"{words.span(low)} and {words.span(high)}, the median is {words.span(median)}, the slowest took {words.span(values[-1])}.",
            _SPREAD,
            of=r.warm,
            about_row=False,
            intervals=len(values),
            p25_ns=low,
            median_ns=median,
            p75_ns=high,
            slowest_ns=values[-1],
            kernel_spread_ns=np.subtract(*np.percentile(kernel, [75, 25])),
            mostly_in=cause,
        )
    if few:
        yield CouldNotLook(
            f"{words.plural(few, 'label')} with fewer than {SPREAD_SAMPLES} comparable warm repetitions",
        )


def samples(facts: Facts) -> Iterator[Finding]:
    """Too few repetitions to know the spread.

    Only for what the program measured: a range is not a measurement, and an inferred pair may not
    be one.
    """
    few = [
        label
        for label in facts.labels
        if label.count < FEW_SAMPLES
        and ((label.kind != "nvtx") & (label.column("method") != "inferred")).any()
    ]
    once = [label for label in few if label.count == 1]
    if len(once) > MANY_ONCE:  # one finding, under the name of the longest
        few = [label for label in few if label.count > 1]
        longest = max(once, key=lambda label: label.row.elapsed)
        yield Finding(
            "info",
            longest.name,
            f"{longest.who} and {words.plural(len(once) - 1, 'other label')} were measured once each: "
            "so it is not known whether these times are typical.",
            {"labels_measured_once": len(once), "intervals": 1},
            Advice(f"Repeat them:{_REPEAT}", "Repeat it."),
            longest.site,
            np.sort(np.concatenate([label.numbers for label in once])),
            about_row=False,
        )
    for label in few:
        low, high = int(label.elapsed.min()), int(label.elapsed.max())
        held = f"{words.span(low)} to {words.span(high)} is too little to estimate the spread."
        if label.count == 1:
            held = f"it is not known whether {words.span(low)} is typical."
        yield label.finding(
            "info",
            f"{label.who} was measured {'once' if label.count == 1 else f'{label.count} times'}: {held}",
            Advice(f"Repeat it:{_REPEAT}", "Repeat it."),
            about_row=False,
            runs=label.count,
            min_ns=low,
            max_ns=None if label.count == 1 else high,
        )
