"""The SM clock differs between the repetitions of a label, and its kernels follow it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsysalign.diagnose import thresholds, words
from nsysalign.diagnose.clocks import MISSING, interval_clocks
from nsysalign.diagnose.facts import Facts
from nsysalign.diagnose.finding import CouldNotLook, Finding, Rule, evidence
from nsysalign.diagnose.repetitions import Repetitions, repetitions
from nsysalign.model import SLOWED_BITS

NAME = "clock-changed"


def find(facts: Facts) -> Iterator[Finding | CouldNotLook]:
    """One finding per label whose slow kernels are those at the lower clock."""
    clocks = interval_clocks(facts)
    if not len(facts.analysis.gpu_clocks):
        yield CouldNotLook(NAME, f"{MISSING}; throttled needs them, too")
        return
    if not clocks.known.any():
        yield CouldNotLook(NAME, "no interval lies between two samples of the GPU's clock")
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
        yield _finding(facts, r, at, fast, (low, high, slow, quick, correlation))


def _finding(facts: Facts, r: Repetitions, at: np.ndarray, fast: np.ndarray, numbers: tuple) -> Finding:
    low, high, slow, quick, correlation = numbers
    behind = int((~fast).sum())
    # at[] is in time: a clock that is low in the first runs only was still rising
    clocks = interval_clocks(facts)
    held = bool(
        ((clocks.reasons[at[~fast]] & SLOWED_BITS) != 0).any()
    )  # by power or heat: rule throttled says so
    ramp = bool((~fast[:behind]).mean() >= 0.9) and not held
    where = f"the first {behind} of {len(at)}" if ramp else f"{behind} of {len(at)}"
    return Finding(
        NAME,
        "warning" if slow >= (1 + thresholds.CLOCK_WARN_SHARE) * quick else "info",
        r.label,
        f"{words.subject(r.label)}: {where} intervals ran at an SM clock of {low:.0f} instead of {high:.0f} MHz"
        f"{' (it was still rising)' if ramp else ''}, and its kernels take {words.span(slow)} there, "
        f"{words.span(quick)} in the others.",
        evidence(
            low_clock_mhz=low,
            high_clock_mhz=high,
            intervals_at_the_low_clock=behind,
            intervals_at_the_high_clock=int(fast.sum()),
            kernel_at_the_low_clock_ns=slow,
            kernel_at_the_high_clock_ns=quick,
            kernel_if_it_followed_the_clock_alone_ns=quick * high / max(low, 1),
            correlation_of_kernel_with_clock_period=correlation,
            highest_temperature_celsius=_highest(clocks.temperature[at]),
            highest_power_w=_watts(clocks.power_mw[at]),
            confirmed=False,
        ),
        "Warm up until the clock is stable, and compare intervals at one clock only:   for _ in range(200): step()   "
        "# before the first start.record()"
        if ramp
        else "Compare intervals at one clock only, or lock it where you may:   sudo nvidia-smi --lock-gpu-clocks="
        f"{min(low, high):.0f}",
        r.site,
        at[~fast],
        float(slow - quick),
        about_row=False,
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


RULE = Rule(NAME, find)
