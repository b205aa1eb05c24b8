"""Tracks of the insides of kernels, for Perfetto."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pandas as pd

from nsysalign.model import Analysis
from nsysalign.show.perfetto import GROUPS, meta, nested_rows, piece
from nsysalign.text import safe_text

INSIDE = (7, "inside kernels")


def tracks(analysis: Analysis) -> Iterator[dict[str, Any]]:
    """A track for every place of a warp on an SM: its run, its ranges inside, its marks.  Only for
    kernels that ran in this trace: if marks had a run of their own, that run's export holds
    them."""
    kernels = analysis.marked_kernels
    shown = kernels[
        (kernels["error_ns"] >= 0) & kernels["kernel"].isin(analysis.marks["kernel"].unique())
    ]
    if shown.empty or (analysis.mark_changes["plain_count"] > 0).any():
        return
    pid, name = INSIDE
    yield meta("process_name", pid, 0, name=name)
    yield meta("process_sort_index", pid, 0, sort_index=len(GROUPS) + 1)
    names = dict(zip(shown["kernel"].tolist(), shown["name"].tolist(), strict=True))
    keys = ["kernel", "sm", "block_x", "block_y", "block_z", "warp"]
    mine = analysis.marks[analysis.marks["first_lane"] & analysis.marks["kernel"].isin(list(names))]
    runs = [
        (int(g["t_ns"].iloc[0]), int(g["t_ns"].iloc[-1]), key, g)
        for key, g in mine.groupby(keys, sort=False)
    ]
    runs.sort(key=lambda run: (run[2][1], run[0], -run[1]))
    tid = 0
    for sm, group in itertools.groupby(runs, key=lambda run: run[2][1]):
        here = list(group)
        rows = nested_rows([r[0] for r in here], [r[1] for r in here], nest=False)
        for row in range(max(rows) + 1):
            yield meta(
                "thread_name", pid, tid + row, name=f"SM {sm}" + (f" ({row + 1})" if row else "")
            )
            yield meta("thread_sort_index", pid, tid + row, sort_index=tid + row)
        for row, (start, end, key, marks) in zip(rows, here, strict=True):
            yield from _warp(pid, tid + row, start, end, safe_text(names[key[0]]), key, marks)
        tid += max(rows) + 1


def _warp(
    pid: int, tid: int, start: int, end: int, kernel: str, key: tuple[int, ...], marks: pd.DataFrame
) -> Iterator[dict[str, Any]]:
    _, sm, x, y, z, warp = (int(k) for k in key)
    yield piece(pid, tid, kernel, start, end, "warp", {"sm": sm, "block": [x, y, z], "warp": warp})
    open_ranges: list[tuple[str, int]] = []
    for at, kind, name in zip(*(marks[c].tolist() for c in ("t_ns", "kind", "name")), strict=True):
        if kind == "begin":
            open_ranges.append((name, at))
        elif kind == "end" and open_ranges:
            what, since = open_ranges.pop()
            yield piece(pid, tid, safe_text(what), since, at, "phase", {})
        elif kind == "mark":
            yield {
                "ph": "i", "s": "t", "cat": "mark", "name": safe_text(name), "pid": pid, "tid": tid, "ts": at / 1000,
                "args": {},
            }  # fmt: skip
