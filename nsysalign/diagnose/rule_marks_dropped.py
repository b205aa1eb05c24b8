"""Marks or counts that found no room in their buffer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from nsysalign.diagnose import words
from nsysalign.diagnose.facts import Facts
from nsysalign.diagnose.finding import Finding, Rule, evidence
from nsysalign.diagnose.marked import place

NAME = "marks-dropped"


def find(facts: Facts) -> Iterator[Finding]:
    """One finding per buffer."""
    table = facts.analysis.marked_kernels
    for buffer in facts.analysis.calibration.get("marks", ()):
        if not isinstance(buffer, Mapping) or not (buffer.get("dropped") or buffer.get("counts_dropped")):
            continue
        dropped, written, counts = (int(buffer.get(k, 0)) for k in ("dropped", "written", "counts_dropped"))
        mine = table[(table["pid"] == buffer.get("pid")) & ~table["complete"]]
        label, site, positions = (
            place(facts, mine, "marks") if len(mine) else ("marks", "", np.empty(0, np.int64))
        )
        size = max(int(buffer.get("capacity", 1)), 1)
        mib = max(1, math.ceil(64 * 1.3 * (written + dropped) / 3_600_000))
        lost = [
            f"{dropped:,} of {written + dropped:,} marks" if dropped else "",
            f"{counts:,} counts" if counts else "",
        ]
        yield Finding(
            NAME,
            "warning",
            label,
            f"{' and '.join(x for x in lost if x)} found no room in the buffer: {words.plural(len(mine), 'launch').replace('launchs', 'launches')} "
            "of marked kernels cannot be told whole.",
            evidence(
                written=written,
                dropped=dropped,
                counts_dropped=counts,
                room_for=size,
                launches_not_whole=len(mine),
            ),
            f"A larger buffer, nsysalign.marks.buffer(mib={mib}), or fewer launches: what comes first has room.",
            site,
            positions,
            0.0,
            about_row=False,
        )


RULE = Rule(NAME, find)
