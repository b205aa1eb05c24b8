"""Did the machine stay the same?  Throttling, clocks, a cold L2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nsysalign.explain import thresholds, words
from nsysalign.explain.facts import Facts
from nsysalign.explain.finding import CouldNotLook, Finding
from nsysalign.explain.repetitions import repetitions
from nsysalign.intervals import ragged
from nsysalign.model import CLOCK_REASONS, SLOWED_BITS

_ADVICE = (
    "Measure at a clock that the GPU can sustain, and report it:   sudo nvidia-smi --lock-gpu-clocks={:.0f}   "
    "# or pause between the intervals"
)
_ADVICE_HARDWARE = "Check the machine first (cooling, power supply):   nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER"
_NOT_MEMORY = ("spin_kernel",)  # torch.cuda._sleep: its length is the requested one
#: Samples further apart than this say nothing about what lies between them.
MOST_APART_NS = 250_000_000
#: Reasons for which the GPU could not run as fast as requested, and those of them that come from
#: the hardware.
SLOWED = {bit: text for bit, text in CLOCK_REASONS.items() if bit & SLOWED_BITS}
HARDWARE = 0x08 | 0x40 | 0x80
MISSING = "the run has no samples of the GPU's clock (`nsysalign run` records them)"


@dataclass(frozen=True)
class IntervalClocks:
    """Arrays over all intervals; where `known` is False the others mean nothing."""

    known: np.ndarray
    sm_mhz: np.ndarray  # float64, mean over the samples in and next to the window
    reasons: np.ndarray  # bits: those of the samples inside, else those that both neighbours share
    power_mw: np.ndarray  # highest of them, -1 unknown
    temperature: np.ndarray  # highest of them, -1 unknown


def interval_clocks(facts: Facts) -> IntervalClocks:
    """What the clock samples say about each interval, computed once per analysis.

    stretches   [--- 1980 ---]      [-- 1755 --]
    intervals      |a|         |b|    |c|               a: 1980; b: between the two, 1755..1980; c: 1755
    """
    return facts.remember("interval clocks", _interval_clocks)


def _interval_clocks(facts: Facts) -> IntervalClocks:
    count = facts.count
    known, sm = np.zeros(count, bool), np.zeros(count)
    reasons, power, temperature = np.zeros(count, np.int64), np.full(count, -1), np.full(count, -1)
    table = facts.analysis.gpu_clocks
    device = facts.analysis.intervals["device"].to_numpy()
    sampled = np.unique(table["device"].to_numpy())
    if (
        len(sampled) == 1
    ):  # a host interval names no device: if there is only one GPU, that is the one it used
        device = np.where(device < 0, sampled[0], device)
    for number in sampled.tolist():
        rows = table[table["device"].to_numpy() == number]
        start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
        at = np.flatnonzero(device == number)
        first = (
            np.searchsorted(start, facts.start[at], side="right") - 1
        )  # the last that began before
        last = np.searchsorted(end, facts.end[at], side="left")  # the first that ends after
        inside = (first >= 0) & (last < len(rows))
        at, first, last = at[inside], first[inside], last[inside]
        if not len(at):
            continue
        owner, row = ragged(first, last - first + 1)
        begin = np.flatnonzero(np.diff(owner, prepend=-1))
        gap = np.where(row > first[owner], start[row] - end[row - 1], 0)
        middle = (rows["sm_min_mhz"].to_numpy() + rows["sm_max_mhz"].to_numpy()) / 2
        sm[at] = np.add.reduceat(middle[row], begin) / (last - first + 1)
        bits = np.maximum(rows["reasons"].to_numpy(), 0)[row]
        touches = (start[row] < facts.end[at][owner]) & (end[row] >= facts.start[at][owner])
        within = np.bitwise_or.reduceat(np.where(touches, bits, 0), begin)
        shared = np.bitwise_and.reduceat(bits, begin)
        reasons[at] = np.where(np.logical_or.reduceat(touches, begin), within, shared)
        power[at] = np.maximum.reduceat(rows["power_mw"].to_numpy()[row], begin)
        temperature[at] = np.maximum.reduceat(rows["temperature_c"].to_numpy()[row], begin)
        known[at] = np.maximum.reduceat(gap, begin) <= MOST_APART_NS
    return IntervalClocks(known, sm, reasons, power, temperature)


def throttled(facts: Facts) -> Iterator[Finding]:
    """The GPU could not run as fast as requested: power cap, heat, or a hardware slowdown during
    the intervals.  One finding per label.  If there are no samples, clock-changed says so.
    """
    clocks = interval_clocks(facts)
    slowed = clocks.known & ((clocks.reasons & sum(SLOWED)) != 0)
    for case in facts.cases(slowed, at_least=thresholds.THROTTLED_SAY_SHARE):
        hit = case.positions
        code = int(facts.label[hit[0]])
        others = facts.repetitions(code)
        others = others[clocks.known[others] & ~slowed[others]]
        bits = int(np.bitwise_or.reduce(clocks.reasons[hit]))
        named = [
            (int(((clocks.reasons[hit] & bit) != 0).sum()), text)
            for bit, text in SLOWED.items()
            if bits & bit
        ]
        named.sort(reverse=True)
        share = len(hit) / max(len(hit) + len(others), 1)
        clock = float(np.median(clocks.sm_mhz[hit]))
        highest = int(facts.analysis.gpu_clocks["sm_max_mhz"].max())
        yield case.finding(
            "warning"
            if bits & HARDWARE
            or (
                share >= thresholds.TYPICAL_SHARE
                and _matters(facts, hit, others, clock / max(highest, 1))
            )
            else "info",
            f"{case.who}: the GPU was slowed down in {len(hit)} of {len(hit) + len(others)} intervals "
            f"({', '.join(text for _, text in named)}), to {clock:.0f} MHz; the highest SM clock of the whole run is "
            f"{highest} MHz.",
            _ADVICE_HARDWARE if bits & HARDWARE else _ADVICE.format(clock),
            facts.kernel_upper - int(np.median(facts.kernel_upper[others]))
            if len(others)
            else None,
            positions=hit,
            about_row=False,
            reasons={text: count for count, text in named},
            intervals_slowed_down=len(hit),
            intervals=len(hit) + len(others),
            sm_clock_mhz=clock,
            sm_clock_otherwise_mhz=float(np.median(clocks.sm_mhz[others])) if len(others) else None,
            highest_sm_clock_mhz=highest,
            kernel_slowed_down_ns=float(np.median(facts.kernel_upper[hit])),
            kernel_otherwise_ns=float(np.median(facts.kernel_upper[others]))
            if len(others)
            else None,
            highest_power_w=_watts(clocks.power_mw[hit]),
            highest_temperature_celsius=_highest(clocks.temperature[hit]),
        )


def _matters(facts: Facts, hit: np.ndarray, others: np.ndarray, clock_share: float) -> bool:
    """Whether the lower clock can have cost the label much: it is lower, kernels are a good part of
    the interval, and runs at the full clock, if any, are faster."""
    kernel = facts.kernel_upper
    if clock_share > 1 - thresholds.CLOCK_SHARE:
        return False
    if float(np.median(facts.share(kernel)[hit])) < thresholds.WARN_SHARE:
        return False
    if len(others) < 2:
        return True
    return float(np.median(kernel[hit])) >= (1 + thresholds.CLOCK_SAY_SHARE) * float(
        np.median(kernel[others])
    )


def clocks(facts: Facts) -> Iterator[Finding | CouldNotLook]:
    """The SM clock differs between the repetitions of a label, and its kernels follow it.

    One finding per label whose slow kernels are those at the lower clock.
    """
    clocks = interval_clocks(facts)
    if not len(facts.analysis.gpu_clocks):
        yield CouldNotLook(f"{MISSING}; the rule throttled needs them as well")
        return
    if not clocks.known.any():
        yield CouldNotLook("no interval lies between two samples of the GPU's clock")
        return
    work = facts.kernel_upper
    for r in repetitions(facts):
        at = r.comparable[clocks.known[r.comparable] & (work[r.comparable] > 0)]
        if len(at) < thresholds.SPREAD_SAMPLES:
            continue
        clock, kernel = clocks.sm_mhz[at], work[at].astype(float)
        fast = clock >= (1 - thresholds.CLOCK_SHARE) * np.percentile(clock, 95)
        if min(fast.sum(), (~fast).sum()) < 2:
            continue
        high, low = float(np.median(clock[fast])), float(np.median(clock[~fast]))
        quick, slow = float(np.median(kernel[fast])), float(np.median(kernel[~fast]))
        follows = slow / max(quick, 1) - 1 >= thresholds.CLOCK_FOLLOWS * (high / max(low, 1) - 1)
        correlation = _correlation(kernel, 1 / np.maximum(clock, 1))
        if not follows or slow < (1 + thresholds.CLOCK_SAY_SHARE) * quick:
            continue
        if correlation < thresholds.CLOCK_CORRELATION:
            continue
        behind = int((~fast).sum())
        # at[] is in time order: a clock that is low only in the first runs was still rising
        held = bool(
            ((clocks.reasons[at[~fast]] & SLOWED_BITS) != 0).any()
        )  # by power or heat: rule throttled reports that
        ramp = bool((~fast[:behind]).mean() >= 0.9) and not held
        where = f"the first {behind} of {len(at)}" if ramp else f"{behind} of {len(at)}"
        where = f"{behind} of {len(at)}" if ramp and not (~fast[:behind]).all() else where
        yield r.finding(
            "warning" if slow >= (1 + thresholds.CLOCK_WARN_SHARE) * quick else "info",
            f"{r.who}: {where} intervals ran at an SM clock of {low:.0f} instead of {high:.0f} MHz"
            f"{' (it was still rising)' if ramp else ''}, and its kernels take {words.span(slow)} there, "
            f"{words.span(quick)} in the others.",
            "Warm up until the clock is stable, and compare intervals at one clock only:   for _ in range(200): step()   "
            "# before the first start.record()"
            if ramp
            else "Compare intervals at one clock only, or lock it where you may:   sudo nvidia-smi --lock-gpu-clocks="
            f"{min(low, high):.0f}",
            work - int(quick),
            positions=at[~fast],
            low_clock_mhz=low,
            high_clock_mhz=high,
            intervals_at_the_low_clock=behind,
            intervals=len(at),
            kernel_at_the_low_clock_ns=slow,
            kernel_at_the_high_clock_ns=quick,
            correlation_of_kernel_with_clock_period=correlation,
            confirmed=False,
        )


def _correlation(x: np.ndarray, y: np.ndarray) -> float:
    if x.std() == 0 or y.std() == 0:
        return 0.0
    return float(np.corrcoef(x, y)[0, 1])


def _highest(values: np.ndarray) -> int | None:
    return int(values.max()) if len(values) and values.max() >= 0 else None


def _watts(values: np.ndarray) -> float | None:
    most = _highest(values)
    return None if most is None else most / 1e3


def cold_l2(facts: Facts) -> Iterator[Finding]:
    """The same kernels take longer in one label than in another: cold against warm L2 is the usual
    cause.

    Labels whose rows ran the same kernels, steadily, alone: the slower ones of each set.
    """
    calm = [
        r
        for r in repetitions(facts)
        if facts.on_stream[r.row] and len(r.warm) >= thresholds.FEW_SAMPLES and not len(r.different)
    ]
    calm = [
        r
        for r in calm
        if facts.kernel_only[r.row] > 0
        and not facts.other_ns[r.row]
        and not facts.part("queued", "graph")[r.row]
    ]
    sets: dict[tuple[str, ...], list] = {}
    kernels = _kernels(facts, np.array([r.row for r in calm], dtype=np.int64))
    for r in calm:
        low, median, high = np.percentile(facts.kernel_only[r.warm], [25, 50, 75])
        names = kernels.get(r.row, ())
        if names and high - low <= thresholds.COLD_SPREAD_SHARE * median:
            sets.setdefault(names, []).append((float(median), r))
    for group in sets.values():
        fastest, warm = min(group, key=lambda pair: pair[0])
        for median, r in group:
            factor = median / max(fastest, 1)
            if not thresholds.COLD_FACTOR < factor < thresholds.COLD_FACTOR_MAX:
                continue
            if np.percentile(facts.kernel_only[r.warm], 5) <= np.percentile(
                facts.kernel_only[warm.warm], 95
            ):
                continue
            yield r.finding(
                "info",
                f"{r.who} runs the same kernels as {words.subject(warm.label)}, {words.percent(factor - 1)} slower ({words.span(median)} "
                f"against {words.span(fastest)}): a cold L2, if shapes and clocks are the same.",
                "Decide which one you want and use it for all, e.g. always cold:   flush.zero_(); start.record()",
                positions=r.warm,
                kernel_here_ns=median,
                kernel_there_ns=fastest,
                slower_share=factor - 1,
                compared_with=warm.label,
            )


def _kernels(facts: Facts, rows: np.ndarray) -> dict[int, tuple[str, ...]]:
    """Names of the kernels of some intervals, in order of execution."""
    names: dict[int, dict[int, str]] = {}
    for segments in facts.lots(rows):
        kernels = np.flatnonzero(segments.of_cause("kernel"))
        columns = (segments.interval[kernels], segments.ref_id[kernels], segments.words(kernels))
        for at, ref, name in zip(*(c.tolist() for c in columns), strict=True):
            names.setdefault(at, {})[ref] = str(name)  # a kernel in two pieces counts once
    out = {at: tuple(by_ref.values()) for at, by_ref in names.items()}
    return {
        at: found
        for at, found in out.items()
        if not any(spin in name for name in found for spin in _NOT_MEMORY)
    }
