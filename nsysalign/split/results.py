"""Budgets as the tables of an analysis; segments and surroundings of intervals, which are made for
some only."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.model import (
    CAUSES,
    OTHERS_RAN,
    OTHERS_WORKED,
    Alignment,
    Analysis,
    EventLog,
    Trace,
    pid_of,
    tid_of,
)
from nsysalign.split import variants
from nsysalign.split.budget import Budgets
from nsysalign.split.labels import name_intervals
from nsysalign.split.timeline import overview, timeline, whole_runs

DISTURBED, INTERVENED = "profiler-disturbed", "intervened"


@dataclass(frozen=True)
class SplitTrace:
    """A trace, where its intervals lie (rows of alignment.windows) and what they are made of.
    Intervals are given by their numbers (ascending)."""

    trace: Trace
    alignment: Alignment
    budgets: Budgets

    def timeline(self, which: np.ndarray, analysis: Analysis) -> pd.DataFrame:
        """`frames.TIMELINE` of some intervals, and of the run as a whole."""
        runs, windows = whole_runs(analysis), self.alignment.windows
        which = np.setdiff1d(which, runs)
        drawn = timeline(
            self.trace, self.alignment, windows.iloc[which].assign(interval=which), analysis
        )
        whole = overview(self.trace, windows.iloc[runs].assign(interval=runs))
        return pd.concat([part for part in (drawn, whole) if len(part)] or [drawn])

    def blocks(self, which: np.ndarray) -> np.ndarray:
        """Blocks of the grids of their kernels, -1 if that is not determined."""
        windows = self.alignment.windows.iloc[which].reset_index(drop=True)
        return variants.blocks(self.trace, replace(self.alignment, windows=windows))

    def calls(self, which: np.ndarray) -> np.ndarray:
        """About how many calls were made while each interval was open."""
        windows, made = self.alignment.windows, self.trace.calls["start_ns"].to_numpy()
        begin, end = (
            np.searchsorted(made, windows[c].to_numpy()[which]) for c in ("open_ns", "close_ns")
        )
        return end - begin


def parts_table(budgets: Budgets) -> pd.DataFrame:
    """`frames.PARTS`: a row per interval and cause that occurs at all."""
    used = budgets.total.any(axis=0) | budgets.high.any(axis=0)
    interval, cause = np.nonzero(np.broadcast_to(used, budgets.total.shape))
    table = pd.DataFrame(
        {
            "interval": interval,
            "cause": np.array(CAUSES, dtype=object)[cause],
            "ns": budgets.total[interval, cause],
            "lower_ns": budgets.low[interval, cause],
            "upper_ns": budgets.high[interval, cause],
        }
    )
    return frames.check(table, frames.PARTS)


def intervals_table(split: SplitTrace, log: EventLog | None) -> pd.DataFrame:
    """`frames.INTERVALS`, named and without findings."""
    w, records, lanes = split.alignment.windows, split.alignment.records, split.alignment.lanes
    if w.empty:
        return frames.empty(frames.INTERVALS)
    lane_stream, lane_device, seq = (
        np.append(column.to_numpy(), -1)
        for column in (lanes["stream"], lanes["device"], records["seq"])
    )
    columns = split.budgets.columns
    names, labels = name_intervals(w)
    out = w.drop(columns=["start", "end", "start_lane", "end_lane"]).assign(
        interval=np.arange(len(w)),
        name=names,
        label=labels,
        pid=pid_of(w["process"].to_numpy()),
        tid=tid_of(w["thread"].to_numpy()),
        start_record=seq[w["start"].to_numpy()],
        end_record=seq[w["end"].to_numpy()],
        device=lane_device[w["end_lane"].to_numpy()],
        start_stream=lane_stream[w["start_lane"].to_numpy()],
        end_stream=lane_stream[w["end_lane"].to_numpy()],
        **{c: columns[c].to_numpy() for c in frames.INTERVALS.names if c in columns},
    )
    flags = [
        (
            *((DISTURBED,) if disturbed else ()),
            *((INTERVENED,) if intervened else ()),
            *((OTHERS_WORKED,) if others else (OTHERS_RAN,) if some else ()),
            *remarks,
            *synchronised,
        )
        for disturbed, intervened, others, some, remarks, synchronised in zip(
            columns["disturbed"].tolist(),
            _intervened(split.alignment, log),
            columns["others_worked"].tolist(),
            columns["others_ran"].tolist(),
            w["remarks"].tolist(),
            columns["synchronised"].tolist(),
            strict=True,
        )
    ]
    out["flags"] = pd.Series(flags, dtype=object)
    out["findings"] = pd.Series([()] * len(out), dtype=object)
    return frames.check(out, frames.INTERVALS)


def _intervened(alignment: Alignment, log: EventLog | None) -> list[bool]:
    """Whether `nsysalign confirm` did something before the start record, per window."""
    if log is None or not log.records["intervened"].any():
        return [False] * len(alignment.windows)
    mine = log.records[log.records["intervened"]]
    wanted = set(zip(mine["process"].tolist(), mine["seq"].tolist(), strict=True))
    seq = np.append(alignment.records["seq"].to_numpy(), -1)[alignment.windows["start"].to_numpy()]
    process = alignment.windows["log_process"].tolist()
    return [pair in wanted for pair in zip(process, seq.tolist(), strict=True)]
