"""What the page shows of the insides of kernels: the SM-time budget, phases, counters, and a strip
of SMs over time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from nsysalign.model import Analysis
from nsysalign.show.timeline_rows import packed
from nsysalign.text import safe_text

#: Limits on marks in the page, on kernels without a strip, and on counters of a kernel.
MOST_WARPS, MOST_PIECES, MOST_KERNELS, MOST_COUNTERS = 60_000, 250_000, 60, 40


def inside(analysis: Analysis) -> list[dict[str, Any]]:
    """Kernels whose marks or counts the analysis holds; [] if nothing was marked."""
    held = (analysis.marks["kernel"], analysis.path_counts["kernel"])
    shown = pd.concat(held).unique()[:MOST_KERNELS]
    kernels = analysis.marked_kernels.set_index("kernel", drop=False)
    warps, pieces = MOST_WARPS, MOST_PIECES
    out = []
    for number in shown.tolist():
        row, marks = kernels.loc[number], analysis.marks[analysis.marks["kernel"] == number]
        strip = _strip(marks, row) if len(marks) else None
        if strip and len(strip["sm"]) <= warps and len(strip["t"]) <= pieces:
            warps, pieces = warps - len(strip["sm"]), pieces - len(strip["t"])
            strip = {k: v if k == "names" else packed(np.array(v)) for k, v in strip.items()}
            out.append(_kernel(analysis, row) | {"strip": strip})
        else:
            out.append(_kernel(analysis, row) | {"strip": None})
    return out


def _kernel(analysis: Analysis, row: pd.Series) -> dict[str, Any]:
    number, intervals = int(row["kernel"]), analysis.intervals

    def rows(name: str, *columns: str) -> list[list[Any]]:
        """Its rows of a table, texts without control characters."""
        table = getattr(analysis, name)
        table = table.loc[table["kernel"] == number, [*columns]]
        return [
            [safe_text(v) if isinstance(v, str) else v for v in r] for r in table.values.tolist()
        ]

    paths = analysis.path_counts[analysis.path_counts["kernel"] == number].groupby("counter")
    sums = paths[["warps", "lanes"]].sum().assign(sms=paths["sm"].nunique()).head(MOST_COUNTERS)
    label = intervals.loc[intervals["interval"] == row["interval"], "name"]
    change = analysis.mark_changes[analysis.mark_changes["name"] == row["name"]]
    statistics = ("count", "total_ns", "min_ns", "median_ns", "max_ns")
    return {
        "name": safe_text(row["name"]) or f"grid {int(row['grid_id'])}",
        "kernel": number,
        "interval": safe_text(label.iloc[0]) if len(label) else "",
        "duration": int(row["end_ns"] - row["start_ns"]),
        "error": int(row["error_ns"]),
        "sms": int(row["sms"]),
        "blocks": int(row["marked_blocks"]),
        "warps": int(row["warps"]),
        "complete": bool(row["complete"]),
        "budget": rows("sm_time", "part", "phase", "ns"),
        "phases": sorted(rows("kernel_phases", "phase", *statistics), key=lambda r: -r[2]),
        "counters": [[safe_text(name), *map(int, counts)] for name, *counts in sums.itertuples()],
        "change": next(
            (
                {
                    "share": None if np.isnan(c.change) else c.change,
                    "ns": [c.plain_ns, c.marked_ns],
                    "registers": [c.plain_registers, c.marked_registers],
                    "local_bytes": [c.plain_local_bytes, c.marked_local_bytes],
                }
                for c in change[change["plain_count"] > 0].itertuples()
            ),
            None,
        ),
    }


def _strip(marks: pd.DataFrame, row: pd.Series) -> dict[str, Any]:
    """Every warp's run in columns (sm, block x, y, z, warp, begin, end, pieces of it), and the
    pieces of all of them one after the other (t: begin, p: number of the innermost range's name, 0
    none).  Times are ns after the kernel's start."""
    keys = ["sm", "block_x", "block_y", "block_z", "warp"]
    ordered = marks[marks["first_lane"]].sort_values([*keys, "t_ns"], kind="stable")
    names = {"": 0}
    columns: dict[str, Any] = {
        k: [] for k in ("sm", "x", "y", "z", "warp", "from", "to", "n", "t", "p")
    }
    stack: list[int] = []
    current: list[int] = []
    times = (ordered["t_ns"] - row["start_ns"]).clip(0, row["end_ns"] - row["start_ns"]).tolist()
    kinds, texts = ordered["kind"].tolist(), ordered["name"].tolist()
    for place, time, kind, name in zip(
        ordered[keys].values.tolist(), times, kinds, texts, strict=True
    ):
        if place != current or kind == "enter":
            current, stack = place, []
            for key, value in zip(columns, [*place, time, time, 0], strict=False):
                columns[key].append(value)
        columns["to"][-1] = max(columns["to"][-1], time)
        if kind == "begin":
            stack.append(names.setdefault(name, len(names)))
        elif kind == "end" and stack:
            stack.pop()
        else:
            continue
        columns["t"].append(time)
        columns["p"].append(stack[-1] if stack else 0)
        columns["n"][-1] += 1
    return columns | {"names": [safe_text(name) for name in names]}
