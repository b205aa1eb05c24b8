"""Answers besides the budgets: labels split by kind of work, and ranges on the host, in lines and as the page's data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nsysalign.model import Analysis
from nsysalign.parts import parts_matrix
from nsysalign.report import host_activity
from nsysalign.report.overview import of_devices
from nsysalign.report.rows import LabelRow, of_interval, unprofiled
from nsysalign.text import duration, percent, safe_text

if TYPE_CHECKING:
    import pandas as pd

#: Ranges that a terminal lists; rows of a table on the page.
MOST_LINES, MOST_ROWS = 6, 150
_NOTHING: dict[str, Any] = {"unprofiled_ns": None, "no_prediction": ""}
#: The parts of a range's host time, as named in both outputs.
SPLIT = {
    "launch_ns": "launch",
    "copy_ns": "copy",
    "sync_ns": "sync",
    "other_ns": "other calls",
    "outside_ns": "outside",
}


def told_apart(analysis: Analysis, rows: Sequence[LabelRow]) -> list[LabelRow]:
    """The rows, with one row per kind of work for a label that did different work: its own median would describe none of
    them."""
    if analysis.variants.empty:
        return list(rows)
    import pandas as pd

    matrix, intervals = parts_matrix(analysis), analysis.intervals
    place = pd.Index(intervals["interval"]).get_indexer(analysis.variants["row_interval"])
    predicted = unprofiled(analysis)
    several: dict[str, list[LabelRow]] = {}
    of_label = {row.label: row for row in rows}
    for v, at in zip(analysis.variants.itertuples(index=False), place.tolist(), strict=True):
        row = of_label.get(str(v.label))
        if row is None or at < 0:
            continue
        shown = of_interval(next(intervals.iloc[[at]].itertuples(index=False)), matrix[at])
        several.setdefault(row.label, []).append(
            replace(
                row,
                label=f"{row.label} [{v.variant}]",
                count=int(v.count),
                median_ns=float(v.median_ns),
                **shown,
                **predicted.get(int(v.row_interval), _NOTHING),
            )
        )
    return [each for row in rows for each in several.get(row.label, [row])]


def range_lines(analysis: Analysis) -> list[str]:
    """Ranges by their time on the host: that time, its parts, and the GPU time of their work."""
    table = analysis.host_ranges
    if table.empty:
        return []
    lines = ["NVTX ranges by their time on the host, each with all inside it:"]
    for r in table.head(MOST_LINES).itertuples(index=False):
        parts = sorted(((ns, word) for c, word in SPLIT.items() if (ns := getattr(r, c))), reverse=True)
        made_of = ", ".join(f"{word} {percent(ns / max(r.host_ns, 1))}" for ns, word in parts[:3])
        gpu = f"GPU {duration(r.gpu_ns)}" if r.with_work else "nothing on the GPU"
        lines.append(
            f"{duration(r.host_ns):>8}  {r.count:>7,} x {duration(r.median_ns):>8}  {gpu:<18}  {safe_text(r.label)}  ({made_of})"
        )
    if len(table) > MOST_LINES:
        lines.append(f"          … {len(table) - MOST_LINES:,} more in the report")
    return lines


def page_tables(analysis: Analysis) -> dict[str, Any]:
    """The page's tables of ranges, gaps and kinds of work."""
    labels = analysis.runs.set_index("interval")["label"]
    gaps = analysis.gaps[analysis.gaps["interval"].isin(of_devices(analysis)["interval"])]
    gaps = gaps.assign(run=labels.reindex(gaps["interval"]).to_numpy()).nlargest(20, "ns")
    variants = plain_rows(
        analysis.variants[
            ["label", "variant", "count", "row_interval", "median_ns", "min_ns", "max_ns"]
        ].head(MOST_ROWS)
    )
    predicted = unprofiled(analysis)
    host = host_activity.page_rows(analysis)
    return {
        "host": host,
        "ranges": plain_rows(analysis.host_ranges.head(MOST_ROWS)),
        "gaps": plain_rows(gaps[["run", "ns", "next", "call", "call_ns"]]),
        "variants": [row | predicted.get(row["row_interval"], _NOTHING) for row in variants],
        "more": {
            "ranges": max(0, len(analysis.host_ranges) - MOST_ROWS),
            "variants": max(0, len(analysis.variants) - MOST_ROWS),
            "gaps": 0,
            "host": max(0, host_activity.named(analysis) - len(host)),
        },
    }


def plain_rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as the page's data, with foreign text made plain."""
    return [
        {name: safe_text(value) if isinstance(value, str) else value for name, value in row.items()}
        for row in table.to_dict("records")
    ]
