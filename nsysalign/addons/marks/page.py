"""What the page shows of the insides of kernels: the SM-time budget, phases, counters, and a strip
of SMs over time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from nsysalign.model import Analysis
from nsysalign.show.pack import packed
from nsysalign.text import safe_text

#: Limits on marks in the page, and on kernels without a strip.
MOST_WARPS, MOST_PIECES, MOST_KERNELS = 60_000, 250_000, 60
#: Rows of counters per kernel: SMs by name are summed.
MOST_COUNTERS = 40


def inside(analysis: Analysis) -> list[dict[str, Any]]:
    """Kernels whose marks the analysis holds, the longest first; [] if nothing was marked."""
    table = analysis.marked_kernels
    if table.empty:
        return []
    held = pd.unique(analysis.marks["kernel"]).tolist()
    counted = (
        pd.concat([analysis.path_counts["kernel"], analysis.latencies["kernel"]]).unique().tolist()
    )
    rows = table.set_index("kernel", drop=False)
    only_counted = [k for k in counted if k not in held]
    shown = [k for k in [*held, *only_counted] if k in rows.index][:MOST_KERNELS]
    warps, pieces = MOST_WARPS, MOST_PIECES
    out = []
    for number in shown:
        row = rows.loc[number]
        strip = _strip(analysis.marks[analysis.marks["kernel"] == number], row)
        if strip is not None:
            size = len(strip["sm"]), len(strip["t"])
            if size[0] > warps or size[1] > pieces:
                strip = None
            else:
                warps, pieces = warps - size[0], pieces - size[1]
                strip = {
                    key: packed(np.array(value)) if key != "names" else value
                    for key, value in strip.items()
                }
        out.append(_kernel(analysis, row, strip))
    return out


def _kernel(analysis: Analysis, row: pd.Series, strip: dict[str, Any] | None) -> dict[str, Any]:
    number = int(row["kernel"])
    mine = {
        name: getattr(analysis, name)[getattr(analysis, name)["kernel"] == number]
        for name in ("kernel_phases", "sm_time", "sm_spans", "path_counts", "latencies")
    }
    sums = (
        mine["path_counts"]
        .groupby("counter", sort=True)[["warps", "lanes"]]
        .sum()
        .head(MOST_COUNTERS)
    )
    sms = mine["path_counts"].groupby("counter")["sm"].nunique()
    changes = analysis.mark_changes[analysis.mark_changes["name"] == row["name"]]
    label = ""
    if row["interval"] >= 0:
        names = analysis.intervals.loc[analysis.intervals["interval"] == row["interval"], "name"]
        label = safe_text(names.iloc[0]) if len(names) else ""
    return {
        "name": safe_text(row["name"]) or f"grid {int(row['grid_id'])}",
        "kernel": number,
        "interval": label,
        "duration": int(row["end_ns"] - row["start_ns"]),
        "error": int(row["error_ns"]),
        "sms": int(row["sms"]),
        "blocks": int(row["marked_blocks"]),
        "warps": int(row["warps"]),
        "marks": int(row["marks"]),
        "complete": bool(row["complete"]),
        "budget": [
            [r.part, safe_text(r.phase), int(r.ns)] for r in mine["sm_time"].itertuples(index=False)
        ],
        "phases": [
            [
                safe_text(r.phase),
                int(r.count),
                int(r.total_ns),
                int(r.min_ns),
                int(r.median_ns),
                int(r.max_ns),
            ]
            for r in mine["kernel_phases"]
            .sort_values("total_ns", ascending=False)
            .itertuples(index=False)
        ],
        "counters": [
            [safe_text(n), int(r.warps), int(r.lanes), int(sms[n])] for n, r in sums.iterrows()
        ],
        "latencies": [
            [safe_text(r.counter), int(r.bin), int(r.low), int(r.high), int(r.lanes), int(r.sum)]
            for r in mine["latencies"].itertuples(index=False)
        ],
        "change": _change(changes),
        "strip": strip,
    }


def _change(changes: pd.DataFrame) -> dict[str, Any] | None:
    if changes.empty or not int(changes["plain_count"].iloc[0]):
        return None
    row = changes.iloc[0]
    keys = ("ns", "registers", "local_bytes", "warps_per_sm", "count")
    return {"share": None if pd.isna(row["change"]) else float(row["change"])} | {
        k: [float(row[f"plain_{k}"]), float(row[f"marked_{k}"])] for k in keys
    }


def _strip(marks: pd.DataFrame, row: pd.Series) -> dict[str, Any] | None:
    """Every warp's run in columns (sm, block x, y, z, warp, begin, end, pieces of it), and the
    pieces of all of them one after the other (t: begin, p: number of the innermost range's name, 0
    none).  Times are ns after the kernel's start."""
    if marks.empty:
        return None
    origin, duration = int(row["start_ns"]), int(row["end_ns"] - row["start_ns"])
    keys = ["sm", "block_x", "block_y", "block_z", "warp"]
    whole = marks[marks["first_lane"]]
    names = [""]
    places: dict[str, int] = {"": 0}
    columns: dict[str, list[int]] = {
        k: [] for k in ("sm", "x", "y", "z", "warp", "from", "to", "n", "t", "p")
    }
    ordered = whole.sort_values([*keys, "t_ns"], kind="stable")
    rows = zip(*(ordered[c].tolist() for c in [*keys, "t_ns", "kind", "name"]), strict=True)
    stack: list[int] = []
    current: tuple[int, ...] | None = None
    for sm, x, y, z, warp, time, kind, name in rows:
        at = min(max(time - origin, 0), duration)
        if (sm, x, y, z, warp) != current or kind == "enter":
            current, stack = (sm, x, y, z, warp), []
            for key, value in zip(
                ("sm", "x", "y", "z", "warp", "from", "to", "n"),
                (sm, x, y, z, warp, at, at, 0),
                strict=True,
            ):
                columns[key].append(value)
        columns["to"][-1] = max(columns["to"][-1], at)
        if kind == "begin":
            place = places.setdefault(name, len(names))
            if place == len(names):
                names.append(safe_text(name))
            stack.append(place)
        elif kind == "end" and stack:
            stack.pop()
        else:
            continue
        columns["t"].append(at)
        columns["p"].append(stack[-1] if stack else 0)
        columns["n"][-1] += 1
    return columns | {"names": names}
