"""Judges `checks OUT join` run under nsys: python scripts/marks/judge_join.py FOLDER TRACE.sqlite; JSON lines.

FOLDER has join.nsam and join.truth (each block's first and last stamp and its SM, taken beside the marks).  Says whether every
launch is joined, how many marks lie outside of their kernels by more than the bar, also where a kernel's own row was kept from
the join (then the clock alone places it), whether SM time adds up, and how far each SM's ramp and tail are from the truth.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from nsysalign.marks import dump
from nsysalign.marks.join import join
from nsysalign.marks.joined import Marked
from nsysalign.marks.sm_time import inside
from nsysalign.trace.launches import read_launches


def truths(path: Path) -> dict[int, pd.DataFrame]:
    """Grid id -> begin, end (timer stamps), sm of every block."""
    words, out, at = np.fromfile(path, np.uint64).astype(np.int64), {}, 0
    while at < len(words):
        count = int(words[at])
        blocks = words[at + 1 : at + 1 + 4 * count].reshape(count, 4)
        out[int(blocks[0, 3])] = pd.DataFrame(blocks[:, :3], columns=["begin", "end", "sm"])
        at += 1 + 4 * count
    return out


def edges(marked: Marked, spans: pd.DataFrame, truth: dict[int, pd.DataFrame]) -> dict[str, object]:
    """How far the first and last block of each SM are from the stamps taken beside the marks, ns."""
    first, last = [], []
    for launch, grid in enumerate(marked.launches["grid_id"].tolist()):
        if grid not in truth:
            continue
        of_sm = truth[grid].groupby("sm").agg(begin=("begin", "min"), end=("end", "max"))
        mine = spans[spans["kernel"] == launch].set_index("sm")
        assert mine.index.sort_values().equals(of_sm.index.astype(mine.index.dtype)), (
            f"grid {grid}: other SMs"
        )
        of_sm = of_sm.loc[mine.index]
        launches = np.full(len(of_sm), launch)
        first.append(mine["first_ns"] - marked.relative(launches, of_sm["begin"].to_numpy()))
        last.append(marked.relative(launches, of_sm["end"].to_numpy()) - mine["last_ns"])
    said = {}
    for name, parts in (("first_block_ns", first), ("last_block_ns", last)):
        said[name] = np.percentile(np.concatenate(parts), [0, 50, 99, 100]).tolist()
    return {"kernels_with_truth": len(first), **said}


def outside(
    read: dump.Dump, marked: Marked, rows: pd.DataFrame, kept: np.ndarray
) -> dict[str, object]:
    """Of the launches `kept` from the fit: how many of their marks lie outside of their rows by more than the bar."""
    table = marked.launches
    by_grid = rows.drop_duplicates("grid_id").set_index("grid_id")
    mine = np.isin(table["grid_id"], kept)
    row = by_grid.reindex(table["grid_id"])
    launch = marked.launch[read.of]
    asked = mine[launch]
    # on the trace's clock; `relative` counts from where the clock puts the launch
    time = marked.relative(launch, read.time) + table["start_ns"].to_numpy()[launch]
    bar = table["error_ns"].to_numpy()[launch]
    early, late = (
        time < row["start_ns"].to_numpy()[launch] - bar,
        time > row["end_ns"].to_numpy()[launch] + bar,
    )
    wrong = (early | late) & asked
    return {
        "kept_from_the_fit": int(mine.sum()), "their_marks": int(asked.sum()), "outside_their_bar": int(wrong.sum()),
        "launches_outside": len(np.unique(launch[wrong])), "bar_median_ns": float(np.median(bar[asked])),
    }  # fmt: skip


def main() -> None:
    folder, trace = Path(sys.argv[1]), Path(sys.argv[2])
    read = dump.read(folder / "join.nsam")
    rows = read_launches(trace, [read.pid])
    marked = join(read, rows)
    table, found = marked.launches, inside(marked)
    whole = np.bincount(found.sm_time["kernel"], weights=found.sm_time["ns"], minlength=len(table))
    wanted = read.sms * (table["end_ns"] - table["start_ns"]).to_numpy()
    said = {
        "launches": len(table), "joined": int((table["row"] >= 0).sum()), "marks": read.written, "dropped": read.dropped,
        "outside_marks": int(found.kernels["outside"].sum()), "complete": int(found.kernels["complete"].sum()),
        "bar_median_ns": float(table["error_ns"].median()), "bar_most_ns": int(table["error_ns"].max()), "rate": marked.rate,
        "adds_up": bool((whole.astype(np.int64) == wanted).all()), "most_blocks": int(table["blocks"].max()), "notes": list(marked.notes),
    }  # fmt: skip
    print(json.dumps(said), flush=True)
    print(json.dumps(edges(marked, found.sm_spans, truths(folder / "join.truth"))), flush=True)
    grids = np.unique(table["grid_id"])
    for kept in (grids[::2], grids[1::2]):  # each half once
        rest = join(read, rows[~rows["grid_id"].isin(kept)])
        print(json.dumps(outside(read, rest, rows, kept)), flush=True)


if __name__ == "__main__":
    main()
