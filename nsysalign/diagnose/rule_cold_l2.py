"""The same kernels take longer in one label than in another: cold against warm L2 is the usual cause (not confirmed)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsysalign.diagnose import thresholds, words
from nsysalign.diagnose.facts import Facts
from nsysalign.diagnose.finding import Finding, Rule, evidence
from nsysalign.diagnose.repetitions import repetitions

NAME = "cold-l2"
_NOT_MEMORY = ("spin_kernel",)  # torch.cuda._sleep: its length is what was asked for


def find(facts: Facts) -> Iterator[Finding]:
    """Labels whose rows ran the same kernels, steadily, alone: the slower ones of each set."""
    calm = [
        r
        for r in repetitions(facts)
        if r.row >= 0
        and facts.on_stream[r.row]
        and len(r.warm) >= thresholds.FEW_SAMPLES
        and not len(r.different)
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
            if np.percentile(facts.kernel_only[r.warm], 5) <= np.percentile(facts.kernel_only[warm.warm], 95):
                continue
            yield Finding(
                NAME,
                "info",
                r.label,
                f"{words.subject(r.label)} runs the same kernels as {words.subject(warm.label)}, {words.percent(factor - 1)} slower ({words.span(median)} "
                f"against {words.span(fastest)}): a cold L2, if shapes and clocks are the same.",
                evidence(
                    kernel_here_ns=median,
                    kernel_there_ns=fastest,
                    slower_share=factor - 1,
                    compared_with=warm.label,
                    confirmed=False,
                ),
                "Decide which one you want and use it for all, e.g. always cold:   flush.zero_(); start.record()",
                r.site,
                r.warm,
                median - fastest,
                about_row=False,
            )


def _kernels(facts: Facts, rows: np.ndarray) -> dict[int, tuple[str, ...]]:
    """Names of the kernels of some intervals, in order of execution."""
    segments = facts.segments(rows)
    kernels = np.flatnonzero(segments.of_cause("kernel"))
    names: dict[int, dict[int, str]] = {}
    for at, ref, name in zip(
        segments.at[kernels].tolist(),
        segments.ref_id[kernels].tolist(),
        segments.details(kernels).tolist(),
        strict=True,
    ):
        names.setdefault(at, {})[ref] = str(name)  # a kernel in two pieces counts once
    out = {at: tuple(by_ref.values()) for at, by_ref in names.items()}
    return {
        at: found
        for at, found in out.items()
        if not any(spin in name for name in found for spin in _NOT_MEMORY)
    }


RULE = Rule(NAME, find)
