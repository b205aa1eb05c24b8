"""Marked kernels as rules see them: for every kernel the median launch that was seen completely, and its label."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from nsysalign.diagnose import words
from nsysalign.diagnose.facts import Facts
from nsysalign.diagnose.finding import About


@dataclass(frozen=True)
class Place(About):
    """The label in whose intervals marked kernels ran, or their name."""

    of_row = False


@dataclass(frozen=True, kw_only=True)
class Kernel(Place):
    """One launch."""

    number: int
    name: str
    duration_ns: int
    sms: int
    blocks: int
    parts: dict[str, int]  # SM time by part
    spans: pd.DataFrame  # its rows of sm_spans
    launches: int

    @property
    def whole_ns(self) -> int:
        """SMs x duration."""
        return max(self.sms * self.duration_ns, 1)


def kernels(facts: Facts) -> Iterator[Kernel]:
    """For every kernel and grid, the lower-median launch of those that were seen completely."""
    analysis = facts.analysis
    table = analysis.marked_kernels
    whole = table[table["complete"] & (table["row"] >= 0)]
    for (name, _), group in whole.groupby(["name", "blocks"], sort=False):
        duration = (group["end_ns"] - group["start_ns"]).sort_values(kind="stable")
        row = group.loc[duration.index[(len(duration) - 1) // 2]]
        number = int(row["kernel"])
        ran = place(facts, group, str(name))
        of = analysis.sm_time[analysis.sm_time["kernel"] == number]
        yield Kernel(
            ran.label, ran.site, ran.positions,
            number=number,
            name=words.kernel(str(name)),
            duration_ns=int(row["end_ns"] - row["start_ns"]),
            sms=int(row["sms"]),
            blocks=int(row["marked_blocks"]),
            parts={str(k): int(v) for k, v in of.groupby("part")["ns"].sum().items()},
            spans=analysis.sm_spans[analysis.sm_spans["kernel"] == number],
            launches=len(group),
        )  # fmt: skip


def place(facts: Facts, group: pd.DataFrame, name: str) -> Place:
    """The label of the interval in which most of these launches ran; the kernel's name if they ran in none."""
    at = facts.position(group["interval"].to_numpy())
    at = at[at >= 0]
    codes = facts.label[at]
    codes = codes[codes < len(facts.labels)]
    if not len(codes):
        return Place(words.kernel(name), "")
    code = int(np.bincount(codes).argmax())
    return Place(*facts.about(code), np.unique(at[facts.label[at] == code]))
