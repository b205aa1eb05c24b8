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

_TAIL = (
    "Issue the long blocks first, make blocks smaller, or let as many blocks as fit take their "
    "work from a queue (persistent blocks, stream-K)."
)
_FEW = (
    "There are fewer blocks than SMs: split the work further (smaller tiles, split-K), or run "
    "something else beside it."
)
_PERTURBED = (
    "Trust shares and order more than durations, or use fewer marks: outside the innermost loop, "
    "in one warp per block."
)


def finding(
    facts: Facts, launches: pd.DataFrame, warns: bool, title: str, advice: str, **values: Any
) -> Finding:
    """About the launches `of` a kernel: at the label in whose intervals most of them ran, else at
    its name."""
    name, site, ran_in = (
        kernel_name(str(launches["name"].iloc[0])),
        "",
        launches["interval"].to_numpy(),
    )
    label, ran_in = name, ran_in[ran_in >= 0]
    if len(ran_in):
        codes = facts.label_of_interval[ran_in]
        code = int(np.bincount(codes).argmax())
        label, site = facts.labels[code].name, facts.labels[code].site
        ran_in = np.unique(ran_in[codes == code])
    severity = "warning" if warns else "info"
    values = {"kernel": name, **values}
    return Finding(
        severity, label, f"{name}: {title}", values, Advice(advice), site, ran_in, about_row=False
    )


def tail(facts: Facts) -> Iterator[Finding]:
    """A kernel's last blocks: SMs that have finished, or got no block, wait for the others.

    One finding per kernel and grid that was marked, about the lower-median launch of those that
    were seen completely.
    """
    table, time = facts.analysis.marked_kernels, facts.analysis.sm_time
    whole = table[table["complete"] & (table["row"] >= 0)]
    whole = whole.assign(ns=whole["end_ns"] - whole["start_ns"])
    for _, group in whole.groupby(["name", "blocks"], sort=False):
        row = group.sort_values("ns", kind="stable").iloc[(len(group) - 1) // 2]
        sms, blocks, ns = int(row["sms"]), int(row["marked_blocks"]), int(row["ns"])
        parts = time[time["kernel"] == row["kernel"]].groupby("part")["ns"].sum()
        after, without_block = int(parts.get("after", 0)), int(parts.get("none", 0))
        share = (after + without_block) / max(sms * ns, 1)
        spans = facts.analysis.sm_spans
        spans = spans[spans["kernel"] == row["kernel"]].sort_values("last_ns", kind="stable")
        if share < SM_SAY_SHARE or spans.empty:
            continue
        late, idle = spans.iloc[-1], sms - len(spans)
        half = int(spans["last_ns"].iloc[(len(spans) - 1) // 2])
        reason = f"{plural(idle, 'SM')} of {sms} got no block"
        if without_block <= after:
            dealt = f"the last, SM {late['sm']} with {plural(int(late['blocks']), 'block')}"
            reason = f"half of the SMs were done {span(int(late['last_ns']) - half)} before {dealt}"
        yield finding(
            facts,
            group,
            share >= WARN_SHARE,
            f"{percent(share)} of its SM time is after the SMs' last blocks: {reason} ({span(ns)}, "
            f"{blocks:,} blocks on {sms} SMs).",
            _FEW if blocks < sms else _TAIL,
            launch=row["kernel"],
            duration_ns=ns,
            share=share,
            sms_without_blocks=idle,
            half_of_the_sms_done_after_ns=half,
            last_sm_done_after_ns=int(late["last_ns"]),
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
        marked, plain = span(row.marked_ns), span(row.plain_ns)
        title = f"its marks change it: {marked} with, {plain} without ({100 * row.change:+.1f} %)"
        if row.marked_registers != row.plain_registers:
            title += f", {row.plain_registers} -> {row.marked_registers} registers"
        if spills:
            title += f", {row.plain_local_bytes} -> {row.marked_local_bytes} bytes of local memory"
            title += " per thread"
        yield finding(
            facts,
            table[table["name"] == row.name],
            abs(row.change) >= MARKS_WARN_SHARE,
            f"{title}.",
            _PERTURBED,
            with_marks_ns=row.marked_ns,
            without_marks_ns=row.plain_ns,
            change_share=row.change,
            registers_with=row.marked_registers,
            registers_without=row.plain_registers,
            local_bytes_with=row.marked_local_bytes,
            local_bytes_without=row.plain_local_bytes,
        )


RULES = (
    Rule("tail", tail, table="marked_kernels"),
    Rule("mark-perturbed", mark_perturbed, table="mark_changes"),
)
