"""The run as a whole in a sentence; its kernels and idle times in lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nsysalign.model import CAUSES, OPERATION_KINDS, Analysis
from nsysalign.parts import parts_matrix
from nsysalign.show.palette import LOOKS
from nsysalign.show.rows import LabelRow, of_interval
from nsysalign.show.verdict import Entry, staging
from nsysalign.text import (
    duration,
    middle,
    percent,
    plural,
    safe_text,
    short_name,
    told_apart,
)

if TYPE_CHECKING:
    import pandas as pd


#: The kind of interval that stands for a whole run; its labels are not the user's.
RUN = "run"
#: Causes that the sentence names, besides the work.
MOST_NAMED = 4
#: Where the intervals cover less of the run than this share, the sentence says that the rest was
#: not timed.
UNTIMED = 0.9
#: A note about a smaller share than this is not the first thing to say.
WORTH_SAYING = 0.01


def headline(
    analysis: Analysis, rows: Sequence[LabelRow], matrix: np.ndarray, loss: Entry | None = None
) -> dict[str, Any]:
    """{"text", "untimed", "parts": ns by cause, "elapsed", "of", "loss"}: of the run as a whole if the
    analysis has it, else of all intervals of the user's own code together.

    `rows`: the labels shown; `matrix`: parts of every interval by cause; `loss`: the finding that
    costs most.
    """
    intervals = analysis.intervals
    elapsed, kinds = intervals["elapsed_ns"].to_numpy(), intervals["kind"].to_numpy(dtype=object)
    own = set(row.label for row in rows if not row.library) or {row.label for row in rows}
    whole = np.flatnonzero(kinds == RUN)
    whole = whole[[elapsed[whole].argmax()]] if len(whole) else whole
    # If a trace was cut from a longer one, most of the run is unknown: its intervals say more.
    if len(whole) and own and matrix[whole[0], CAUSES.index("unknown")] > elapsed[whole[0]] / 2:
        whole = whole[:0]
    chosen = whole if len(whole) else np.flatnonzero(intervals["label"].isin(own).to_numpy())
    parts, total = matrix[chosen].sum(axis=0), int(elapsed[chosen].sum())
    count = int(np.isin(intervals["label"].to_numpy(dtype=object), list(own)).sum())
    counted = f"{plural(count, 'interval')} in {plural(len(own), 'label')}"
    if len(whole):
        of = _extent(analysis, int(intervals["start_ns"].iloc[whole[0]]), total)
        if len(of_devices(analysis)) > 1 and not count:  # the table has the others
            of = f"{safe_text(intervals['label'].iloc[whole[0]])}: {of}"
    else:
        of = f"{counted}, {duration(total)} under nsys"
    if loss and loss.finding.severity == "info" and loss.finding.loss_ns < WORTH_SAYING * total:
        loss = None
    staged = int(staging(analysis)[chosen].sum())
    text = "Nothing was measured."
    if total:
        shares = _shares(dict(zip(CAUSES, parts.tolist(), strict=True)), staged, total)
        text = f"{of}: {shares}."
    cover, untimed = "", False
    if len(whole) and count:
        cover, untimed = _coverage(analysis, own, int(whole[0]), counted)
    return {
        "text": text + cover,
        "untimed": untimed,
        "parts": {cause: int(ns) for cause, ns in zip(CAUSES, parts, strict=True)},
        "elapsed": total,
        "of": "the run" if len(whole) else "all intervals together",
        "loss": None
        if loss is None
        else {"ns": loss.finding.loss_ns, "title": safe_text(loss.finding.title)},
    }


def _extent(analysis: Analysis, start: int, elapsed: int) -> str:
    """When the GPU worked, and how much was recorded."""
    recorded = analysis.trace.recorded_ns
    span = f"{duration(elapsed)} from the first GPU work to the last, under nsys"
    if recorded is None or not recorded[0] <= start <= start + elapsed <= recorded[1]:
        return span
    whole, begin = recorded[1] - recorded[0], start - recorded[0]
    return (
        f"{duration(whole)} recorded, GPU work from {duration(begin)} to {duration(begin + elapsed)}; of these "
        f"{duration(elapsed)}"
    )


def _coverage(analysis: Analysis, own: set[str], run: int, counted: str) -> tuple[str, bool]:
    """How much of the run the user's intervals cover, and whether much was not timed: findings are
    not about the rest."""
    start, elapsed = (
        analysis.intervals[column].to_numpy() for column in ("start_ns", "elapsed_ns")
    )
    mine = np.flatnonzero(analysis.intervals["label"].isin(own).to_numpy())
    mine = mine[np.argsort(start[mine], kind="stable")]
    low, high = start[run], start[run] + elapsed[run]
    begin, end = (np.clip(at, low, high) for at in (start[mine], start[mine] + elapsed[mine]))
    before = np.concatenate(
        [[low], np.maximum.accumulate(end)[:-1]]
    )  # until when others cover it already
    covered, whole = int(np.maximum(end - np.maximum(begin, before), 0).sum()), int(elapsed[run])
    if not covered:  # all of them are in other processes
        return f" {counted}.", True
    untimed = covered < UNTIMED * whole
    rest = "; the rest was not timed" if untimed else ""
    verb = "covers" if counted.startswith("1 ") else "cover"
    share = percent(covered / max(whole, 1))
    return f" {counted} {verb} {duration(covered)} of it ({share}){rest}.", untimed


def _shares(parts: dict[str, int], staged: int, total: int) -> str:
    """Busy is when the device runs something: not while the host stages pageable memory for a
    copy."""
    busy = sum(parts[cause] for cause in OPERATION_KINDS) - staged
    named = {LOOKS[c].short: ns for c, ns in parts.items() if c not in OPERATION_KINDS}
    named["staging of copies"] = staged
    idle = sorted(((ns, c) for c, ns in named.items() if ns >= 0.01 * total), reverse=True)
    return ", ".join(
        [
            f"GPU busy {percent(busy / total)}",
            *(f"{name} {percent(ns / total)}" for ns, name in idle[:MOST_NAMED] if ns),
        ]
    )


#: Letters of a kernel's name in a line.
LONGEST = 40
#: Kernels and gaps that a terminal lists.
MOST_KERNELS, MOST_GAPS = 5, 3


def run_rows(analysis: Analysis) -> list[LabelRow]:
    """One row per run, devices and streams, as tables of labels have them."""
    runs = analysis.runs
    matrix = parts_matrix(analysis)[len(analysis.intervals) - len(runs) :]
    return [
        LabelRow(
            label=str(r.label),
            kind="run",
            count=1,
            site="",
            **of_interval(r, parts),
            **dict.fromkeys(("median_ns", "min_ns", "max_ns", "p05_ns", "p95_ns"), r.elapsed_ns),
            std_ns=float("nan"),
            library=False,
            findings=(),
            flagged=False,
            callers=(),
        )
        for r, parts in zip(runs.itertuples(index=False, name="Run"), matrix, strict=True)
    ]


def of_devices(analysis: Analysis) -> pd.DataFrame:
    """The runs of whole devices: each process's first one on a device (streams come behind it)."""
    return analysis.runs.drop_duplicates(["pid", "device"])


def kernel_lines(analysis: Analysis, width: int) -> list[str]:
    """The most expensive kernels of the longest run: share, total, count, median, name, and the
    idle time before them where `width` has room for it."""
    devices = of_devices(analysis)
    if devices.empty or analysis.kernels.empty:
        return []
    label = devices.sort_values("elapsed_ns")["label"].iloc[-1]
    rows = analysis.kernels[analysis.kernels["label"] == label]
    names = [safe_text(name) for name in rows["kernel"].head(MOST_KERNELS)]
    letters = max(10, min(LONGEST, width - 38))
    short = told_apart({name: middle(short_name(name), letters) for name in names}, letters)
    longest = max(map(len, short.values()))
    idle = width >= 38 + longest + len(", idle before 18.3 ms")
    lines = [
        f"{percent(k.share):>5}  {duration(k.total_ns):>8}  {k.count:>8,} x {duration(k.median_ns):>8}  "
        + f"{short[safe_text(k.kernel)]:{longest}}"
        + (f"  idle before {duration(k.idle_before_ns):>8}" if idle else "")
        for k in rows.head(MOST_KERNELS).itertuples(index=False)
    ]
    return lines + (
        [f"       … {len(rows) - MOST_KERNELS:,} more in the report"]
        if len(rows) > MOST_KERNELS
        else []
    )


def gap_lines(analysis: Analysis) -> list[str]:
    """The longest idle times of whole devices."""
    mine = analysis.gaps[analysis.gaps["interval"].isin(of_devices(analysis)["interval"])]
    return [
        f"idle for {duration(g.ns)} before {middle(short_name(safe_text(g.next)), LONGEST)}: "
        + (
            f"{duration(g.call_ns)} of it in {safe_text(g.call)}"
            if g.call_ns
            else safe_text(g.call) or "the host was not in a CUDA call"
        )
        for g in mine.nlargest(MOST_GAPS, "ns").itertuples(index=False)
    ]
