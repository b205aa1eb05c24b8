"""What do marks inside kernels show?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nsysalign.explain import words
from nsysalign.explain.facts import WARN_SHARE, Facts
from nsysalign.explain.finding import Advice, Finding
from nsysalign.explain.rules import Rule

#: SM time after the last blocks, and an SM's longer work, are named from this share of the kernel
#: on; an SM that is busy this many times as long as the median one of at least FEWEST_SMS.
SM_SAY_SHARE, SM_BUSY_FACTOR, SM_BUSY_WARN_FACTOR, FEWEST_SMS = 0.10, 1.2, 1.5, 5
#: How much marks may change a kernel before that is mentioned, and before it is a warning.
MARKS_SAY_SHARE, MARKS_WARN_SHARE = 0.02, 0.05

_TAIL_ADVICE = (
    "Issue the long blocks first, make blocks smaller, or let as many blocks as fit take their "
    "work from a queue (persistent blocks, stream-K)."
)
_FEW = (
    "There are fewer blocks than SMs: split the work further (smaller tiles, split-K), or run "
    "something else beside it."
)
_UNEQUAL = (
    "Look at what its blocks do (the table marks, or the strip of SMs on the page): split the long "
    "ones, or issue them first."
)
_DEALT = (
    "Blocks do not fill the SMs evenly: choose a grid that is a multiple of the blocks that fit, "
    "or smaller blocks."
)
_MARK_PERTURBED_ADVICE = (
    "Trust shares and order more than durations, or use fewer marks: outside the innermost loop, "
    "in one warp per block."
)


class Typical(NamedTuple):
    """Of a kernel and grid the lower-median launch of those that were seen completely, and all of
    these."""

    row: Any  # of marked_kernels
    name: str
    duration_ns: int
    spans: pd.DataFrame  # its rows of sm_spans
    launches: pd.DataFrame


def typical(facts: Facts) -> Iterator[Typical]:
    """One for every kernel and grid."""
    table, spans = facts.analysis.marked_kernels, facts.analysis.sm_spans
    whole = table[table["complete"] & (table["row"] >= 0)]
    whole = whole.assign(ns=whole["end_ns"] - whole["start_ns"])
    for (name, _), group in whole.groupby(["name", "blocks"], sort=False):
        row = group.sort_values("ns", kind="stable").iloc[(len(group) - 1) // 2]
        of = spans[spans["kernel"] == row["kernel"]]
        yield Typical(row, words.kernel(str(name)), int(row["ns"]), of, group)


def finding(
    facts: Facts, of: pd.DataFrame, severity: str, title: str, advice: str, **values: Any
) -> Finding:
    """About the launches `of` a kernel: at the label in whose intervals most of them ran, else at
    its name."""
    ran_in = of["interval"].to_numpy()
    ran_in = ran_in[ran_in >= 0]
    label, site = words.kernel(str(of["name"].iloc[0])), ""
    if len(ran_in):
        codes = facts.label[ran_in]
        code = int(np.bincount(codes).argmax())
        label, site = facts.labels[code].name, facts.labels[code].site
        ran_in = np.unique(ran_in[codes == code])
    return Finding(severity, label, title, values, Advice(advice), site, ran_in, about_row=False)


def tail(facts: Facts) -> Iterator[Finding]:
    """A kernel's last blocks: SMs that have finished wait for the others.

    One finding per kernel that was marked: SM time after the SMs' last blocks, and of SMs that got
    no block.
    """
    for kernel in typical(facts):
        table = facts.analysis.sm_time
        parts = table[table["kernel"] == kernel.row["kernel"]].groupby("part")["ns"].sum()
        sms, blocks = int(kernel.row["sms"]), int(kernel.row["marked_blocks"])
        after, none = int(parts.get("after", 0)), int(parts.get("none", 0))
        share = (after + none) / max(sms * kernel.duration_ns, 1)
        if share < SM_SAY_SHARE or kernel.spans.empty:
            continue
        last = np.sort(kernel.spans["last_ns"].to_numpy())
        half = int(last[(len(last) - 1) // 2])
        late = int((last > half + 0.1 * (last[-1] - half)).sum()) if last[-1] > half else 0
        what = (
            f"{words.plural(sms - len(last), 'SM')} of {sms} got no block"
            if none > after
            else f"half of the SMs were done {words.span(int(last[-1]) - half)} before the last of "
            f"{words.plural(late, 'other')}"
        )
        yield finding(
            facts,
            kernel.launches,
            "warning" if share >= WARN_SHARE else "info",
            f"{kernel.name}: {words.percent(share)} of its SM time is after the SMs' last blocks: "
            f"{what} ({words.span(kernel.duration_ns)}, {blocks:,} blocks on {sms} SMs).",
            _FEW if blocks < sms else _TAIL_ADVICE,
            kernel=kernel.name,
            launch=kernel.row["kernel"],
            duration_ns=kernel.duration_ns,
            share=share,
            sms_without_blocks=sms - len(last),
            half_of_the_sms_done_after_ns=half,
            last_sm_done_after_ns=int(last[-1]),
            blocks=blocks,
        )


def sm_imbalance(facts: Facts) -> Iterator[Finding]:
    """SMs with as many blocks as others that take much longer for them.

    One finding per kernel that was marked: how long its SMs were busy, the longest against the
    median.
    """
    for kernel in typical(facts):
        busy, blocks = (kernel.spans[c].to_numpy() for c in ("busy_ns", "blocks"))
        if len(busy) < FEWEST_SMS:
            continue
        median, worst = float(np.median(busy)), int(busy.argmax())
        factor = busy[worst] / max(median, 1.0)
        if factor < SM_BUSY_FACTOR or (busy[worst] - median) < SM_SAY_SHARE * kernel.duration_ns:
            continue
        sm, dealt = int(kernel.spans["sm"].iloc[worst]), blocks[worst] > np.median(blocks)
        why = (
            f"it got {blocks[worst]:,} blocks, half of them {int(np.median(blocks)):,} or fewer"
            if dealt
            else f"with {words.plural(int(blocks[worst]), 'block')}, no more than others: its "
            "blocks have more to do"
        )
        yield finding(
            facts,
            kernel.launches,
            "warning" if factor >= SM_BUSY_WARN_FACTOR else "info",
            f"{kernel.name}: SM {sm} is busy for {words.span(int(busy[worst]))}, "
            f"{words.times(factor)} as long as the median SM; {why}.",
            _DEALT if dealt else _UNEQUAL,
            kernel=kernel.name,
            launch=kernel.row["kernel"],
            duration_ns=kernel.duration_ns,
            busiest_sm=sm,
            busiest_ns=int(busy[worst]),
            median_busy_ns=median,
            blocks_of_busiest=int(blocks[worst]),
        )


def mark_perturbed(facts: Facts) -> Iterator[Finding]:
    """Marks that change the kernel they are meant to explain.  One finding per kernel that takes
    longer with its marks, or spills.  If there was no run without marks, a note says so instead.
    """
    table = facts.analysis.marked_kernels
    for row in facts.analysis.mark_changes.itertuples(index=False):
        spills = row.marked_local_bytes > row.plain_local_bytes >= 0
        if np.isnan(row.change) or not (abs(row.change) >= MARKS_SAY_SHARE or spills):
            continue
        changed = [
            f"{words.span(row.marked_ns)} with, {words.span(row.plain_ns)} without "
            f"({100 * row.change:+.1f} %)"
        ]
        if row.marked_registers != row.plain_registers:
            changed.append(f"{row.plain_registers} -> {row.marked_registers} registers")
        if spills:
            changed.append(
                f"{row.plain_local_bytes} -> {row.marked_local_bytes} bytes of local memory per "
                "thread"
            )
        yield finding(
            facts,
            table[table["name"] == row.name],
            "warning" if abs(row.change) >= MARKS_WARN_SHARE else "info",
            f"{words.kernel(row.name)}: its marks change it: {', '.join(changed)}.",
            _MARK_PERTURBED_ADVICE,
            kernel=words.kernel(row.name),
            with_marks_ns=row.marked_ns,
            without_marks_ns=row.plain_ns,
            change_share=row.change,
            registers_with=row.marked_registers,
            registers_without=row.plain_registers,
            local_bytes_with=row.marked_local_bytes,
            local_bytes_without=row.plain_local_bytes,
        )


RULES = (
    Rule("tail", tail),
    Rule("sm-imbalance", sm_imbalance),
    Rule("mark-perturbed", mark_perturbed),
)
