"""SMs with as many blocks as others that take much longer for them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsysalign.diagnose import thresholds, words
from nsysalign.diagnose.facts import Facts
from nsysalign.diagnose.finding import Finding, Rule, evidence
from nsysalign.diagnose.marked import kernels

NAME = "sm-imbalance"


def find(facts: Facts) -> Iterator[Finding]:
    """One finding per kernel that was marked: how long its SMs were busy, the longest against the median."""
    for kernel in kernels(facts):
        spans = kernel.spans
        if len(spans) < thresholds.FEW_SAMPLES:
            continue
        busy, blocks = spans["busy_ns"].to_numpy(), spans["blocks"].to_numpy()
        median = float(np.median(busy))
        worst = int(busy.argmax())
        factor = busy[worst] / max(median, 1.0)
        if (
            factor < thresholds.SM_BUSY_FACTOR
            or (busy[worst] - median) < thresholds.SM_SAY_SHARE * kernel.duration_ns
        ):
            continue
        dealt = blocks[worst] > np.median(blocks)
        why = (
            f"it got {blocks[worst]:,} blocks, half of them {int(np.median(blocks)):,} or fewer"
            if dealt
            else f"with {words.plural(int(blocks[worst]), 'block')}, no more than others: its blocks have more to do"
        )
        yield Finding(
            NAME,
            "warning" if factor >= thresholds.SM_BUSY_WARN_FACTOR else "info",
            kernel.label,
            f"{kernel.name}: SM {int(spans['sm'].iloc[worst])} is busy for {words.span(int(busy[worst]))}, "
            f"{words.times(factor)} as long as the median SM; {why}.",
            evidence(
                kernel=kernel.name,
                launch=kernel.number,
                duration_ns=kernel.duration_ns,
                busiest_sm=int(spans["sm"].iloc[worst]),
                busiest_ns=int(busy[worst]),
                median_busy_ns=median,
                least_busy_ns=int(busy.min()),
                blocks_of_busiest=int(blocks[worst]),
                blocks_of_median_sm=float(np.median(blocks)),
            ),
            _DEALT if dealt else _UNEQUAL,
            kernel.site,
            kernel.positions,
            0.0,
            about_row=False,
        )


_UNEQUAL = "Look at what its blocks do (the table marks, or the strip of SMs on the page): split the long ones, or start with them."
_DEALT = "Blocks do not fill the SMs evenly: choose a grid that is a multiple of the blocks that fit, or smaller blocks."

RULE = Rule(NAME, find)
