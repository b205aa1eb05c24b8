"""Launches of marked kernels, joined with the trace and on its clock: what `align` hands to `attribute`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from nsysalign.marks.dump import Dump


@dataclass(frozen=True)
class Marked:
    """The launches of one dump.  `launch`, `warp` and `first_lane`: of every row of `dump.warps`, which launch it belongs to,
    which run of a warp, and whether that warp's first lane is among its lanes; `order`: the marks sorted by warp, then in the
    order they were made.  The table's columns: grid_id, replay, first, last (timer stamps), pid, device, stream, name, row, start_ns, end_ns, error_ns, blocks, threads,
    registers, local_bytes, shared_bytes; -1 unknown.  `shift`, `rate`: trace time is timer + shift + rate * (timer - first)
    of its launch."""

    dump: Dump
    launches: pd.DataFrame
    launch: np.ndarray
    warp: np.ndarray
    first_lane: np.ndarray
    order: np.ndarray
    shift: np.ndarray
    rate: float
    tick_ns: int
    notes: tuple[str, ...]

    def relative(self, launch: np.ndarray, timer: np.ndarray) -> np.ndarray:
        """Timer stamps as ns after their launch's start_ns."""
        table = self.launches
        since = timer - table["first"].to_numpy()[launch]
        at_first = (table["first"].to_numpy() + self.shift - table["start_ns"].to_numpy())[launch]
        return since + np.rint(since * self.rate).astype(np.int64) + at_first

    @cached_property
    def first_heads(self) -> np.ndarray:
        """The earliest row of `dump.warps` of every run of a warp."""
        out = np.full(int(self.warp.max(initial=-1)) + 1, -1, np.int64)
        latest_first = np.argsort(-self.dump.warps["time"].astype(np.int64), kind="stable")
        out[self.warp[latest_first]] = latest_first
        return out

    def cycles(self, head: np.ndarray, clock: np.ndarray) -> np.ndarray:
        """SM cycles from the beginning of a warp (rows `head` of `dump.warps`) to its marks' `clock`, modulo 2**32.  They order
        a warp's marks within one tick of the timer, which is longer than a mark takes."""
        began = self.dump.warps["clock"][self.first_heads[self.warp[head]]]
        return clock.astype(np.uint32) - began.astype(np.uint32)
