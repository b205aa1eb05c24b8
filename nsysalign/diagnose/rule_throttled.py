"""The GPU could not run as fast as it was asked to: power cap, heat, or a hardware slowdown, during the intervals."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsysalign.diagnose import thresholds, words
from nsysalign.diagnose.clocks import HARDWARE, SLOWED, interval_clocks
from nsysalign.diagnose.facts import Facts
from nsysalign.diagnose.finding import Finding, Rule, evidence

NAME = "throttled"


def find(facts: Facts) -> Iterator[Finding]:
    """One finding per label.  Where there are no samples, clock-changed says so."""
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
        power, heat = int(clocks.power_mw[hit].max()), int(clocks.temperature[hit].max())
        yield Finding(
            NAME,
            "warning"
            if bits & HARDWARE
            or (share >= thresholds.TYPICAL_SHARE and _matters(facts, hit, others, clock / max(highest, 1)))
            else "info",
            case.label,
            f"{words.subject(case.label)}: the GPU was slowed down in {len(hit)} of {len(hit) + len(others)} intervals "
            f"({', '.join(text for _, text in named)}), to {clock:.0f} MHz; the highest SM clock of the whole run is "
            f"{highest} MHz.",
            evidence(
                reasons={text: count for count, text in named},
                intervals_slowed_down=len(hit),
                intervals_not_slowed_down=len(others),
                sm_clock_mhz=clock,
                sm_clock_otherwise_mhz=float(np.median(clocks.sm_mhz[others])) if len(others) else None,
                highest_sm_clock_mhz=highest,
                kernel_slowed_down_ns=float(np.median(facts.kernel_upper[hit])),
                kernel_otherwise_ns=float(np.median(facts.kernel_upper[others])) if len(others) else None,
                highest_power_w=power / 1e3 if power >= 0 else None,
                highest_temperature_celsius=heat if heat >= 0 else None,
            ),
            _ADVICE_HARDWARE if bits & HARDWARE else _ADVICE.format(clock),
            case.site,
            hit,
            0.0,
            about_row=False,
        )


def _matters(facts: Facts, hit: np.ndarray, others: np.ndarray, clock_share: float) -> bool:
    """Whether the lower clock can have cost the label much: it is lower, kernels are a good part of the interval, and
    where runs at the full clock exist they are quicker."""
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


_ADVICE = (
    "Measure at a clock that the GPU can sustain, and report it:   sudo nvidia-smi --lock-gpu-clocks={:.0f}   "
    "# or pause between the intervals"
)
_ADVICE_HARDWARE = (
    "Check the machine first (cooling, power supply):   nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER"
)

RULE = Rule(NAME, find)
