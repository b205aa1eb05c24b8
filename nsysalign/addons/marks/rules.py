"""What do marks inside kernels show?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from nsysalign.explain.facts import WARN_SHARE, Facts
from nsysalign.explain.finding import Advice, Finding
from nsysalign.explain.rules import Rule
from nsysalign.text import kernel_name, percent, plural, span

#: SM time after the last blocks is named from this share of the kernel on.
SM_SAY_SHARE = 0.10
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
    "Look at what the last SM's blocks do (the table marks, or the strip of SMs on the page): split "
    "the long ones, or issue them first."
)
_MARK_PERTURBED_ADVICE = (
    "Trust shares and order more than durations, or use fewer marks: outside the innermost loop, "
    "in one warp per block."
)


def finding(
    facts: Facts, of: pd.DataFrame, severity: str, title: str, advice: str, **values: Any
) -> Finding:
    """About the launches `of` a kernel: at the label in whose intervals most of them ran, else at
    its name."""
    ran_in = of["interval"].to_numpy()
    ran_in = ran_in[ran_in >= 0]
    label, site = kernel_name(str(of["name"].iloc[0])), ""
    if len(ran_in):
        codes = facts.label[ran_in]
        code = int(np.bincount(codes).argmax())
        label, site = facts.labels[code].name, facts.labels[code].site
        ran_in = np.unique(ran_in[codes == code])
    return Finding(severity, label, title, values, Advice(advice), site, ran_in, about_row=False)


def tail(facts: Facts) -> Iterator[Finding]:
    """A kernel's last blocks: SMs that have finished, or got no block, wait for the others.

    One finding per kernel and grid that was marked, about the lower-median launch of those that
    were seen completely.
    """
    table, time = facts.analysis.marked_kernels, facts.analysis.sm_time
    whole = table[table["complete"] & (table["row"] >= 0)]
    whole = whole.assign(ns=whole["end_ns"] - whole["start_ns"])
    for (full_name, _), group in whole.groupby(["name", "blocks"], sort=False):
        row = group.sort_values("ns", kind="stable").iloc[(len(group) - 1) // 2]
        name, sms, blocks = kernel_name(str(full_name)), int(row["sms"]), int(row["marked_blocks"])
        parts = time[time["kernel"] == row["kernel"]].groupby("part")["ns"].sum()
        after, none = int(parts.get("after", 0)), int(parts.get("none", 0))
        share = (after + none) / max(sms * int(row["ns"]), 1)
        spans = facts.analysis.sm_spans
        spans = spans[spans["kernel"] == row["kernel"]].sort_values("last_ns", kind="stable")
        if share < SM_SAY_SHARE or spans.empty:
            continue
        last, late = spans["last_ns"].to_numpy(), spans.iloc[-1]
        half = int(last[(len(last) - 1) // 2])
        uneven = len(last) > 1 and late["blocks"] <= spans["blocks"].median()
        if none > after:
            what = f"{plural(sms - len(last), 'SM')} of {sms} got no block"
        else:
            dealt = f"the last, SM {late['sm']} with {plural(int(late['blocks']), 'block')}"
            more = ", no more than others" if uneven else ""
            done = span(int(last[-1]) - half)
            what = f"half of the SMs were done {done} before {dealt}{more}"
        yield finding(
            facts,
            group,
            "warning" if share >= WARN_SHARE else "info",
            f"{name}: {percent(share)} of its SM time is after the SMs' last blocks: {what} "
            f"({span(int(row['ns']))}, {blocks:,} blocks on {sms} SMs).",
            _FEW if blocks < sms else _UNEQUAL if uneven else _TAIL_ADVICE,
            kernel=name,
            launch=row["kernel"],
            duration_ns=int(row["ns"]),
            share=share,
            sms_without_blocks=sms - len(last),
            half_of_the_sms_done_after_ns=half,
            last_sm_done_after_ns=int(last[-1]),
            blocks=blocks,
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
            f"{span(row.marked_ns)} with, {span(row.plain_ns)} without ({100 * row.change:+.1f} %)"
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
            f"{kernel_name(row.name)}: its marks change it: {', '.join(changed)}.",
            _MARK_PERTURBED_ADVICE,
            kernel=kernel_name(row.name),
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
    Rule("mark-perturbed", mark_perturbed),
)
