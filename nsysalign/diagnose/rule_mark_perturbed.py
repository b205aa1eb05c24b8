"""Marks that change the kernel which they are to explain."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsysalign.diagnose import thresholds, words
from nsysalign.diagnose.facts import Facts
from nsysalign.diagnose.finding import Finding, Rule, evidence
from nsysalign.diagnose.marked import place

NAME = "mark-perturbed"


def find(facts: Facts) -> Iterator[Finding]:
    """One finding per kernel that is longer with its marks, spills, or leaves room for fewer warps.  Where there was no run
    without marks, a note says so instead."""
    table = facts.analysis.marked_kernels
    for row in facts.analysis.mark_changes.itertuples(index=False):
        if not row.plain_count:
            continue
        fewer = 0 <= row.marked_warps_per_sm < row.plain_warps_per_sm
        spills = row.marked_local_bytes > row.plain_local_bytes >= 0
        if np.isnan(row.change) or not (abs(row.change) >= thresholds.MARKS_SAY_SHARE or fewer or spills):
            continue
        label, site, positions = place(facts, table[table["name"] == row.name], row.name)
        said = [
            f"{words.span(row.marked_ns)} with, {words.span(row.plain_ns)} without ({100 * row.change:+.1f} %)"
        ]
        if row.marked_registers != row.plain_registers:
            said.append(f"{row.plain_registers} -> {row.marked_registers} registers")
        if spills:
            said.append(
                f"{row.plain_local_bytes} -> {row.marked_local_bytes} bytes of local memory per thread"
            )
        if fewer:
            said.append(f"{row.plain_warps_per_sm} -> {row.marked_warps_per_sm} warps fit on an SM")
        yield Finding(
            NAME,
            "warning" if abs(row.change) >= thresholds.MARKS_WARN_SHARE or fewer else "info",
            label,
            f"{words.kernel(row.name)}: its marks change it: {', '.join(said)}.",
            evidence(
                kernel=words.kernel(row.name),
                with_marks_ns=row.marked_ns,
                without_marks_ns=row.plain_ns,
                change_share=row.change,
                registers_with=row.marked_registers,
                registers_without=row.plain_registers,
                local_bytes_with=row.marked_local_bytes,
                local_bytes_without=row.plain_local_bytes,
                warps_per_sm_with=row.marked_warps_per_sm,
                warps_per_sm_without=row.plain_warps_per_sm,
            ),
            _ADVICE,
            site,
            positions,
            0.0,
            about_row=False,
        )


_ADVICE = "Believe shares and order more than lengths, or make fewer marks: outside of the innermost loop, in one warp of a block."

RULE = Rule(NAME, find)
