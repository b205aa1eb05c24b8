"""What do marks inside kernels show?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True)
class Place:
    """The label in whose intervals marked kernels ran, or their name."""

    label: str
    site: str
    intervals: np.ndarray

    def finding(self, severity: str, title: str, advice: str, **values: Any) -> Finding:
        return Finding(
            severity,
            self.label,
            title,
            values,
            Advice(advice),
            self.site,
            self.intervals,
            about_row=False,
        )


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
            ran.label, ran.site, ran.intervals,
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
    """The label of the interval in which most of these launches ran; the kernel's name if they ran
    in none."""
    at = group["interval"].to_numpy()
    at = at[at >= 0]
    codes = facts.label[at]
    if not len(codes):
        return Place(words.kernel(name), "", np.empty(0, np.int64))
    code = int(np.bincount(codes).argmax())
    label = facts.labels[code]
    return Place(label.name, label.site, np.unique(at[codes == code]))


def tail(facts: Facts) -> Iterator[Finding]:
    """A kernel's last blocks: SMs that have finished wait for the others.

    One finding per kernel that was marked: SM time after the SMs' last blocks, and of SMs that got
    no block.
    """
    for kernel in kernels(facts):
        after, none = kernel.parts.get("after", 0), kernel.parts.get("none", 0)
        share = (after + none) / kernel.whole_ns
        if share < SM_SAY_SHARE or kernel.spans.empty:
            continue
        last = np.sort(kernel.spans["last_ns"].to_numpy())
        half = int(last[(len(last) - 1) // 2])
        late = int((last > half + 0.1 * (last[-1] - half)).sum()) if last[-1] > half else 0
        slowest = kernel.spans.loc[kernel.spans["last_ns"].idxmax()]
        what = (
            f"{words.plural(kernel.sms - len(last), 'SM')} of {kernel.sms} got no block"
            if none > after
            else f"half of the SMs were done {words.span(int(last[-1]) - half)} before the last of "
            f"{words.plural(late, 'other')}"
        )
        yield kernel.finding(
            "warning" if share >= WARN_SHARE else "info",
            f"{kernel.name}: {words.percent(share)} of its SM time is after the SMs' last blocks: "
            f"{what} ({words.span(kernel.duration_ns)}, {kernel.blocks:,} blocks on {kernel.sms} "
            "SMs).",
            _FEW if kernel.blocks < kernel.sms else _TAIL_ADVICE,
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
        )


def sm_imbalance(facts: Facts) -> Iterator[Finding]:
    """SMs with as many blocks as others that take much longer for them.

    One finding per kernel that was marked: how long its SMs were busy, the longest against the
    median.
    """
    for kernel in kernels(facts):
        spans = kernel.spans
        if len(spans) < FEWEST_SMS:
            continue
        busy, blocks = spans["busy_ns"].to_numpy(), spans["blocks"].to_numpy()
        median = float(np.median(busy))
        worst = int(busy.argmax())
        factor = busy[worst] / max(median, 1.0)
        if factor < SM_BUSY_FACTOR or (busy[worst] - median) < SM_SAY_SHARE * kernel.duration_ns:
            continue
        dealt = blocks[worst] > np.median(blocks)
        why = (
            f"it got {blocks[worst]:,} blocks, half of them {int(np.median(blocks)):,} or fewer"
            if dealt
            else f"with {words.plural(int(blocks[worst]), 'block')}, no more than others: its "
            "blocks have more to do"
        )
        yield kernel.finding(
            "warning" if factor >= SM_BUSY_WARN_FACTOR else "info",
            f"{kernel.name}: SM {int(spans['sm'].iloc[worst])} is busy for "
            f"{words.span(int(busy[worst]))}, {words.times(factor)} as long as the median SM; "
            f"{why}.",
            _DEALT if dealt else _UNEQUAL,
            kernel=kernel.name,
            launch=kernel.number,
            duration_ns=kernel.duration_ns,
            busiest_sm=int(spans["sm"].iloc[worst]),
            busiest_ns=int(busy[worst]),
            median_busy_ns=median,
            least_busy_ns=int(busy.min()),
            blocks_of_busiest=int(blocks[worst]),
            blocks_of_median_sm=float(np.median(blocks)),
        )


def mark_perturbed(facts: Facts) -> Iterator[Finding]:
    """Marks that change the kernel they are meant to explain.  One finding per kernel that takes
    longer with its marks, spills, or leaves room for fewer warps.  If there was no run without
    marks, a note says so instead.
    """
    table = facts.analysis.marked_kernels
    for row in facts.analysis.mark_changes.itertuples(index=False):
        if not row.plain_count:
            continue
        fewer = 0 <= row.marked_warps_per_sm < row.plain_warps_per_sm
        spills = row.marked_local_bytes > row.plain_local_bytes >= 0
        if np.isnan(row.change) or not (abs(row.change) >= MARKS_SAY_SHARE or fewer or spills):
            continue
        ran = place(facts, table[table["name"] == row.name], row.name)
        said = [
            f"{words.span(row.marked_ns)} with, {words.span(row.plain_ns)} without "
            f"({100 * row.change:+.1f} %)"
        ]
        if row.marked_registers != row.plain_registers:
            said.append(f"{row.plain_registers} -> {row.marked_registers} registers")
        if spills:
            said.append(
                f"{row.plain_local_bytes} -> {row.marked_local_bytes} bytes of local memory per "
                "thread"
            )
        if fewer:
            said.append(f"{row.plain_warps_per_sm} -> {row.marked_warps_per_sm} warps fit on an SM")
        yield ran.finding(
            "warning" if abs(row.change) >= MARKS_WARN_SHARE or fewer else "info",
            f"{words.kernel(row.name)}: its marks change it: {', '.join(said)}.",
            _MARK_PERTURBED_ADVICE,
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
        )


def marks_dropped(facts: Facts) -> Iterator[Finding]:
    """Marks or counts that found no room in their buffer.

    One finding per buffer.
    """
    table = facts.analysis.marked_kernels
    for buffer in facts.analysis.calibration.get("marks", ()):
        if not isinstance(buffer, Mapping) or not (
            buffer.get("dropped") or buffer.get("counts_dropped")
        ):
            continue
        dropped, written, counts = (
            int(buffer.get(k, 0)) for k in ("dropped", "written", "counts_dropped")
        )
        mine = table[(table["pid"] == buffer.get("pid")) & ~table["complete"]]
        ran = place(facts, mine, "marks")
        size = max(int(buffer.get("capacity", 1)), 1)
        mib = max(1, math.ceil(64 * 1.3 * (written + dropped) / 3_600_000))
        lost = [
            f"{dropped:,} of {written + dropped:,} marks" if dropped else "",
            f"{counts:,} counts" if counts else "",
        ]
        yield ran.finding(
            "warning",
            f"{' and '.join(x for x in lost if x)} found no room in the buffer: "
            f"{words.plural(len(mine), 'launch').replace('launchs', 'launches')} "
            "of marked kernels are incomplete.",
            f"A larger buffer, nsysalign.marks.buffer(mib={mib}), or fewer launches: the buffer "
            "keeps what comes first.",
            written=written,
            dropped=dropped,
            counts_dropped=counts,
            room_for=size,
            launches_not_whole=len(mine),
        )


RULES = (
    Rule("tail", tail),
    Rule("sm-imbalance", sm_imbalance),
    Rule("mark-perturbed", mark_perturbed),
    Rule("marks-dropped", marks_dropped),
)
