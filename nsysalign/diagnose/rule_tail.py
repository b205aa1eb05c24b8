"""A kernel's last blocks: SMs that are done wait for those that are not."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsysalign.diagnose import thresholds, words
from nsysalign.diagnose.facts import Facts
from nsysalign.diagnose.finding import Finding, Rule, evidence
from nsysalign.diagnose.marked import kernels

NAME = "tail"


def find(facts: Facts) -> Iterator[Finding]:
    """One finding per kernel that was marked: SM time after the SMs' last blocks, and of SMs that got none."""
    for kernel in kernels(facts):
        after, none = kernel.parts.get("after", 0), kernel.parts.get("none", 0)
        share = (after + none) / kernel.whole_ns
        if share < thresholds.SM_SAY_SHARE or kernel.spans.empty:
            continue
        last = np.sort(kernel.spans["last_ns"].to_numpy())
        half = int(last[(len(last) - 1) // 2])
        late = int((last > half + 0.1 * (last[-1] - half)).sum()) if last[-1] > half else 0
        slowest = kernel.spans.loc[kernel.spans["last_ns"].idxmax()]
        what = (
            f"{words.plural(kernel.sms - len(last), 'SM')} of {kernel.sms} got no block"
            if none > after
            else f"half of the SMs were done {words.span(int(last[-1]) - half)} before the last of {words.plural(late, 'other')}"
        )
        yield Finding(
            NAME,
            "warning" if share >= thresholds.WARN_SHARE else "info",
            kernel.label,
            f"{kernel.name}: {words.percent(share)} of its SM time is after the SMs' last blocks: {what} "
            f"({words.span(kernel.duration_ns)}, {kernel.blocks:,} blocks on {kernel.sms} SMs).",
            evidence(
                kernel=kernel.name,
                launch=kernel.number,
                launches=kernel.launches,
                duration_ns=kernel.duration_ns,
                share=share,
                after_ns=after,
                sms_without_blocks=kernel.sms - len(last),
                half_of_the_sms_done_after_ns=half,
                last_sm_done_after_ns=int(last[-1]),
                last_sm=int(slowest["sm"]),
                blocks=kernel.blocks,
            ),
            _FEW if kernel.blocks < kernel.sms else _ADVICE,
            kernel.site,
            kernel.positions,
            0.0,
            about_row=False,
        )


_ADVICE = (
    "Give the long blocks first, make blocks smaller, or let as many blocks as fit take their work from a queue "
    "(persistent blocks, stream-K)."
)
_FEW = "There are fewer blocks than SMs: split the work further (smaller tiles, split-K), or run something else beside it."

RULE = Rule(NAME, find)
