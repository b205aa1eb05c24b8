"""Did the machine stay the same?  Throttling, clocks, a cold L2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nsysalign.explain import words
from nsysalign.explain.facts import TYPICAL_SHARE, WARN_SHARE, Facts, remembered
from nsysalign.explain.finding import Advice, CouldNotLook, Finding
from nsysalign.explain.rules.series import FEW_SAMPLES, SPREAD_SAMPLES, Repetitions, repetitions
from nsysalign.intervals import ragged
from nsysalign.model import CLOCK_REASONS, SLOWED_BITS

#: Two SM clocks are different from this share on; a kernel follows the clock when it grows by this
#: much of what the clock lost, in step with it (correlation with the clock's period), and by at
#: least the SAY share.
CLOCK_SHARE, CLOCK_FOLLOWS, CLOCK_CORRELATION = 0.03, 0.3, 0.5
CLOCK_SAY_SHARE, CLOCK_WARN_SHARE = 0.02, 0.10
#: Slowed down by power or heat in this share of a label's runs: worth mentioning.
THROTTLED_SAY_SHARE = 0.05
#: Samples further apart than this say nothing about what lies between them.
MOST_APART_NS = 250_000_000
#: The same kernels, slower by a factor in this range elsewhere: cold against warm L2 is the usual
#: cause; kernel times that can be compared spread over less than this share of their median.
COLD_FACTOR, COLD_FACTOR_MAX, COLD_SPREAD_SHARE = 1.08, 1.6, 0.06
_NOT_MEMORY = "spin_kernel"  # torch.cuda._sleep: its length is the requested one
#: Reasons for which the GPU could not run as fast as requested, and those of them that come from
#: the hardware.
SLOWED = {bit: text for bit, text in CLOCK_REASONS.items() if bit & SLOWED_BITS}
HARDWARE = 0x08 | 0x40 | 0x80

_SUSTAINED = (
    "Measure at a clock that the GPU can sustain, and report it:   sudo nvidia-smi --lock-gpu-clocks={:.0f}   "
    "# or pause between the intervals"
)
_MACHINE = Advice(
    "Check the machine first (cooling, power supply):   nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER"
)
_ONE_CLOCK = "Compare intervals at one clock only."
_RAMP = Advice(
    "Warm up until the clock is stable, and compare intervals at one clock only:   for _ in range(200): step()   "
    "# before the first start.record()",
    _ONE_CLOCK,
)
_LOCK = "Compare intervals at one clock only, or lock it where you may:   sudo nvidia-smi --lock-gpu-clocks={:.0f}"
_CACHE = Advice(
    "Decide which one you want and use it for all, e.g. always cold:   flush.zero_(); start.record()",
    "Decide which one you want, and make it so in all runs.",
)


@dataclass(frozen=True)
class IntervalClocks:
    """Arrays over all intervals; where `known` is False the others mean nothing."""

    known: np.ndarray
    sm_mhz: np.ndarray  # float64, mean over the samples in and next to the window
    reasons: np.ndarray  # bits: those of the samples inside, else those that both neighbours share
    power_mw: np.ndarray  # highest of them, -1 unknown
    temperature: np.ndarray  # highest of them, -1 unknown


@remembered
def interval_clocks(facts: Facts) -> IntervalClocks:
    """What the clock samples say about each interval.

    stretches   [--- 1980 ---]      [-- 1755 --]
    intervals      |a|         |b|    |c|               a: 1980; b: between the two, 1755..1980; c: 1755
    """
    count, table, device = facts.count, facts.analysis.gpu_clocks, facts.column("device")
    known, sm = np.zeros(count, bool), np.zeros(count)
    reasons, power, temperature = np.zeros(count, np.int64), np.full(count, -1), np.full(count, -1)
    sampled = np.unique(table["device"].to_numpy())
    if len(sampled) == 1:  # a host interval names no device: it used the only one
        device = np.where(device < 0, sampled[0], device)
    for number in sampled.tolist():
        rows = table[table["device"].to_numpy() == number]
        start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
        some = np.flatnonzero(device == number)
        from_ns, to_ns = facts.column("start_ns")[some], facts.column("end_ns")[some]
        first = np.searchsorted(start, from_ns, side="right") - 1  # the last that began before
        last = np.searchsorted(end, to_ns, side="left")  # the first that ends after
        inside = (first >= 0) & (last < len(rows))
        if not inside.any():
            continue
        some, first, last, from_ns, to_ns = (v[inside] for v in (some, first, last, from_ns, to_ns))
        owner, row = ragged(first, last - first + 1)
        begin = np.flatnonzero(np.diff(owner, prepend=-1))
        gap = np.where(row > first[owner], start[row] - end[row - 1], 0)
        middle = (rows["sm_min_mhz"].to_numpy() + rows["sm_max_mhz"].to_numpy()) / 2
        sm[some] = np.add.reduceat(middle[row], begin) / (last - first + 1)
        bits = np.maximum(rows["reasons"].to_numpy(), 0)[row]
        touches = (start[row] < to_ns[owner]) & (end[row] >= from_ns[owner])
        within = np.bitwise_or.reduceat(np.where(touches, bits, 0), begin)
        shared = np.bitwise_and.reduceat(bits, begin)
        reasons[some] = np.where(np.logical_or.reduceat(touches, begin), within, shared)
        power[some] = np.maximum.reduceat(rows["power_mw"].to_numpy()[row], begin)
        temperature[some] = np.maximum.reduceat(rows["temperature_c"].to_numpy()[row], begin)
        known[some] = np.maximum.reduceat(gap, begin) <= MOST_APART_NS
    return IntervalClocks(known, sm, reasons, power, temperature)


def throttled(facts: Facts) -> Iterator[Finding]:
    """The GPU could not run as fast as requested: power cap, heat, or a hardware slowdown during
    the intervals.  One finding per label.  If there are no samples, clock-changed says so.
    """
    clocks = interval_clocks(facts)
    all_slowed = clocks.known & ((clocks.reasons & sum(SLOWED)) != 0)
    for label in facts.labels:
        slowed = all_slowed[label.numbers]
        case = label.case(slowed, at_least=THROTTLED_SAY_SHARE)
        if case is None:
            continue
        others = clocks.known[label.numbers] & ~slowed
        hit, count = label.numbers[slowed], int(others.sum())
        bits = int(np.bitwise_or.reduce(clocks.reasons[hit]))
        named = sorted(
            (
                (int(((clocks.reasons[hit] & bit) != 0).sum()), text)
                for bit, text in SLOWED.items()
                if bits & bit
            ),
            reverse=True,
        )
        clock = float(np.median(clocks.sm_mhz[hit]))
        highest = int(facts.analysis.gpu_clocks["sm_max_mhz"].max())
        slow = float(np.median(label.kernel[slowed]))
        quick = float(np.median(label.kernel[others])) if count else None
        power, temperature = clocks.power_mw[hit].max(), clocks.temperature[hit].max()
        # the lower clock can have cost much: it is lower, kernels are a good part of the interval,
        # and runs at the full clock, if any, are faster
        matters = (
            case.count >= TYPICAL_SHARE * (case.count + count)
            and clock <= (1 - CLOCK_SHARE) * max(highest, 1)
            and np.median(label.share(label.kernel)[slowed]) >= WARN_SHARE
            and (count < 2 or slow >= (1 + CLOCK_SAY_SHARE) * quick)
        )
        yield label.finding(
            "warning" if bits & HARDWARE or matters else "info",
            f"{label.who}: the GPU was slowed down in {case.count} of {case.count + count} intervals "
            f"({', '.join(text for _, text in named)}), to {clock:.0f} MHz; the highest SM clock of the whole run is "
            f"{highest} MHz.",
            _MACHINE if bits & HARDWARE else Advice(_SUSTAINED.format(clock)),
            label.kernel - int(quick) if count else None,
            of=slowed,
            row=case.row,
            about_row=False,
            reasons={text: times for times, text in named},
            intervals_slowed_down=case.count,
            intervals=case.count + count,
            sm_clock_mhz=clock,
            sm_clock_otherwise_mhz=float(np.median(clocks.sm_mhz[label.numbers[others]])) if count else None,
            highest_sm_clock_mhz=highest,
            kernel_slowed_down_ns=slow,
            kernel_otherwise_ns=quick,
            highest_power_w=power / 1e3 if power >= 0 else None,
            highest_temperature_celsius=int(temperature) if temperature >= 0 else None,
        )  # fmt: skip


def clocks(facts: Facts) -> Iterator[Finding | CouldNotLook]:
    """The SM clock differs between the repetitions of a label, and its kernels follow it.

    One finding per label whose slow kernels are those at the lower clock.
    """
    clocks = interval_clocks(facts)
    if not len(facts.analysis.gpu_clocks):
        yield CouldNotLook(
            "the run has no samples of the GPU's clock (`nsysalign run` records them); the rule throttled needs them as well"
        )
        return
    if not clocks.known.any():
        yield CouldNotLook("no interval lies between two samples of the GPU's clock")
        return
    for r in repetitions(facts):
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
        follows = slow / max(quick, 1) - 1 >= CLOCK_FOLLOWS * (high / max(low, 1) - 1)
        correlation = _correlation(kernel, 1 / np.maximum(clock, 1))
        grows = slow >= (1 + CLOCK_SAY_SHARE) * quick
        if not follows or not grows or correlation < CLOCK_CORRELATION:
            continue
        # in time, a clock that is low only in the first runs was still rising; if it was held by
        # power or heat, rule throttled reports that
        held = bool(((clocks.reasons[label.numbers[some[~fast]]] & SLOWED_BITS) != 0).any())
        ramp = bool((~fast[:behind]).mean() >= 0.9) and not held
        where = f"{behind} of {len(some)}"
        if ramp and (~fast[:behind]).all():
            where = f"the first {where}"
        yield label.finding(
            "warning" if slow >= (1 + CLOCK_WARN_SHARE) * quick else "info",
            f"{label.who}: {where} intervals ran at an SM clock of {low:.0f} instead of {high:.0f} MHz"
            f"{' (it was still rising)' if ramp else ''}, and its kernels take {words.span(slow)} there, "
            f"{words.span(quick)} in the others.",
            _RAMP if ramp else Advice(_LOCK.format(min(low, high)), _ONE_CLOCK),
            label.kernel - int(quick),
            of=some[~fast],
            about_row=False,
            low_clock_mhz=low,
            high_clock_mhz=high,
            intervals_at_the_low_clock=behind,
            intervals=len(some),
            kernel_at_the_low_clock_ns=slow,
            kernel_at_the_high_clock_ns=quick,
            correlation_of_kernel_with_clock_period=correlation,
            confirmed=False,
        )


def _correlation(x: np.ndarray, y: np.ndarray) -> float:
    if x.std() == 0 or y.std() == 0:
        return 0.0
    return float(np.corrcoef(x, y)[0, 1])


def cold_l2(facts: Facts) -> Iterator[Finding]:
    """The same kernels take longer in one label than in another: cold against warm L2 is the usual
    cause.

    Labels whose rows ran the same kernels, steadily, alone: the slower ones of each set.
    """
    sets: dict[tuple[str, ...], list[tuple[float, Repetitions]]] = {}
    for r in repetitions(facts):
        row = r.label.row
        alone = not facts.other_ns[row.number] and not row.ns("queued", "graph")
        steady = len(r.warm) >= FEW_SAMPLES and not len(r.different)
        if row.kind == "host" or not row.column("kernel_only_ns") or not alone or not steady:
            continue
        low, median, high = np.percentile(_kernel(r), [25, 50, 75])
        if high - low > COLD_SPREAD_SHARE * median:
            continue
        # a kernel in two pieces counts once
        ran = {s.ref: s for s in row.segments if s.cause == "kernel"}
        names = tuple(row.words(ran.values()))
        if names and not any(_NOT_MEMORY in name for name in names):
            sets.setdefault(names, []).append((float(median), r))
    for group in sets.values():
        fastest, warm = min(group, key=lambda pair: pair[0])
        for median, r in group:
            factor = median / max(fastest, 1)
            apart = np.percentile(_kernel(r), 5) > np.percentile(_kernel(warm), 95)
            if not COLD_FACTOR < factor < COLD_FACTOR_MAX or not apart:
                continue
            yield r.label.finding(
                "info",
                f"{r.label.who} runs the same kernels as {words.subject(warm.label.name)}, {words.percent(factor - 1)} slower ({words.span(median)} "
                f"against {words.span(fastest)}): a cold L2, if shapes and clocks are the same.",
                _CACHE,
                of=r.warm,
                about_row=False,
                kernel_here_ns=median,
                kernel_there_ns=fastest,
                slower_share=factor - 1,
                compared_with=warm.label.name,
            )


def _kernel(r: Repetitions) -> np.ndarray:
    """Kernel time of the warm repetitions."""
    return r.label.column("kernel_only_ns")[r.warm]
