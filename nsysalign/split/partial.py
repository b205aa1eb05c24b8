"""Alignment and budgets as one portion of the answer: of the whole trace, or of a stretch of it.

Rows of several portions are concatenated: nothing in them depends on the number of portions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.issue import EVER
from nsysalign.model import (
    CAUSES,
    ORIGIN,
    OTHERS_RAN,
    OTHERS_WORKED,
    Alignment,
    EventLog,
    PartialResult,
    Trace,
    pid_of,
    tid_of,
)
from nsysalign.split import kernels, ranges, work
from nsysalign.split.budget import Budgets
from nsysalign.split.labels import name_intervals
from nsysalign.split.run_windows import is_part
from nsysalign.windows import is_unsure

DISTURBED, INTERVENED = "profiler-disturbed", "intervened"
#: Columns that windows and intervals have under the same name.
_SAME = (
    "kind",
    "elapsed_ns",
    "start_ns",
    "end_ns",
    "start_lower_ns",
    "start_upper_ns",
    "error_ns",
    "method",
    "clock_residual_ns",
    "site",
    "end_site",
    "callers",
    "library",
)
#: What else identifies a window until intervals have names and pictures.
_BESIDE = (
    "region",
    "remarks",
    "origin",
    "source",
    "process",
    "log_process",
    "open_ns",
    "close_ns",
    "close_end_ns",
    "thread",
    "end_lane",
)
#: Of a portion: tables with one row per interval; tables that refer to intervals by number.
_ARRAYS = ("total", "low", "high", "size")
_TABLES = ("details", "other_streams", "durations", "gaps", "cut")
_COMPUTED = ("kernel_only_ns", "kernel_only_upper_ns", "kernel_outside_ns", "operations")
#: What flags are decided by when the parts of a window have been put together.
_BEHIND_FLAGS = ("others_ns", "launched_ns", "waited_ns")


def partial_result(
    trace: Trace,
    alignment: Alignment,
    budgets: Budgets,
    log: EventLog | None,
    stretch: tuple[int, int] = EVER,
) -> PartialResult:
    """The results for all windows of an alignment, of a trace or of a stretch of it."""
    ran = kernels.Ran(trace, alignment)
    return PartialResult(
        rows=_rows(ran, budgets, log),
        total=budgets.total,
        low=budgets.low,
        high=budgets.high,
        details=budgets.details,
        other_streams=budgets.other_streams,
        size=budgets.size,
        unaligned=alignment.unaligned,
        notes=tuple(alignment.notes),
        alone=alignment.alone,
        durations=kernels.durations(ran),
        gaps=kernels.gaps(ran),
        on_host=ranges.on_host(trace, alignment, stretch),
        cut=budgets.cut,
    )


def parts_table(p: PartialResult) -> pd.DataFrame:
    """`frames.PARTS`: a row per interval and cause that occurs at all."""
    used = p.total.any(axis=0) | p.high.any(axis=0)
    interval, cause = np.nonzero(np.broadcast_to(used, p.total.shape))
    table = pd.DataFrame(
        {
            "interval": interval,
            "cause": np.array(CAUSES, dtype=object)[cause],
            "ns": p.total[interval, cause],
            "lower_ns": p.low[interval, cause],
            "upper_ns": p.high[interval, cause],
        }
    )
    return frames.check(table, frames.PARTS)


def intervals_table(p: PartialResult) -> pd.DataFrame:
    """`frames.INTERVALS`, named and without findings."""
    if p.rows.empty:
        return frames.empty(frames.INTERVALS)
    names, labels = name_intervals(p.rows)
    out = p.rows.assign(interval=np.arange(len(p.rows)), name=names, label=labels)
    out["findings"] = pd.Series([()] * len(out), dtype=object)
    return frames.check(out, frames.INTERVALS)


def together(portions: Sequence[PartialResult], *more: pd.DataFrame) -> PartialResult:
    """Portions of one trace as one: intervals in the order in which the log has them, whichever portion they are of.  `more`
    intervals that could not be placed."""
    rows = pd.concat([p.rows for p in portions], ignore_index=True)
    order = _as_in_the_whole(rows)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    first = np.cumsum([0, *(len(p.rows) for p in portions)])
    alone: Counter[str] = sum((Counter(p.alone) for p in portions), Counter())
    unaligned = pd.concat([*(p.unaligned for p in portions), *more], ignore_index=True)
    segments = [
        p.segments for p in portions if p.segments is not None
    ]  # for all of them, or for none
    return PartialResult(
        rows=rows.iloc[order].reset_index(drop=True),
        unaligned=unaligned.sort_values(["origin", "source"], kind="stable", ignore_index=True),
        notes=tuple(dict.fromkeys(note for p in portions for note in p.notes)),
        alone=alone,
        on_host=()
        if (rows["log_process"] >= 0).any()
        else tuple(part for p in portions for part in p.on_host),
        **{name: np.concatenate([getattr(p, name) for p in portions])[order] for name in _ARRAYS},
        **{
            name: _renumbered([getattr(p, name) for p in portions], first, place)
            for name in _TABLES
        },
        segments=_renumbered(segments, first, place) if segments else None,
    )


def _as_in_the_whole(rows: pd.DataFrame) -> np.ndarray:
    """Positions of the rows in the order in which a trace that is not cut has them."""
    origin, source, opened, thread, lane, process, device, stream = (
        rows[c].to_numpy()
        for c in (
            "origin",
            "source",
            "open_ns",
            "thread",
            "end_lane",
            "process",
            "device",
            "end_stream",
        )
    )
    # by the log; else pairs of records by thread and lane, ranges by their begin, runs by device, which comes before its streams
    pairs, ranges, runs = (origin == ORIGIN[what] for what in ("records", "range", "run"))
    doubtful = is_unsure(rows) & pairs
    kinds = [pairs, ranges, runs]
    first = np.select(kinds, [thread, 0, process], 0)
    then = np.select(kinds, [lane, opened, device], source)
    last = np.select(kinds, [opened, source, (stream >= 0) * (lane + 1)], 0)
    return np.lexsort(
        (lane, last, then, first, doubtful, np.where(doubtful, ORIGIN["range"], origin))
    )


def without_timed_regions(p: PartialResult) -> PartialResult:
    """Drops regions that hold timed readings: these already have their intervals, in whichever slice."""
    origin, region = p.rows["origin"].to_numpy(), p.rows["region"]
    timed = region[origin == ORIGIN["timer"]].unique().tolist()
    keep = ~((origin == ORIGIN["region"]) & region.isin(timed).to_numpy())
    if keep.all():
        return p
    place = np.where(keep, np.cumsum(keep) - 1, -1)

    def renumbered(table: pd.DataFrame) -> pd.DataFrame:
        number = place[table["interval"].to_numpy()]
        return table.assign(interval=number)[number >= 0].reset_index(drop=True)

    return replace(
        p,
        rows=p.rows[keep].reset_index(drop=True),
        **{name: getattr(p, name)[keep] for name in _ARRAYS},
        **{name: renumbered(getattr(p, name)) for name in _TABLES},
        segments=None if p.segments is None else renumbered(p.segments),
    )


def _renumbered(
    tables: Sequence[pd.DataFrame], first: np.ndarray, place: np.ndarray
) -> pd.DataFrame:
    """Tables with a column `interval`, one below the other: portion k's interval i is place[first[k] + i] of all."""
    number = np.concatenate(
        [place[begin + t["interval"].to_numpy()] for begin, t in zip(first, tables, strict=False)]
    )
    whole = pd.concat([t for t in tables if len(t)] or list(tables[:1]), ignore_index=True)
    order = np.argsort(number, kind="stable")
    return whole.assign(interval=number).iloc[order].reset_index(drop=True)


def _rows(ran: kernels.Ran, budgets: Budgets, log: EventLog | None) -> pd.DataFrame:
    """Columns of frames.INTERVALS that a window itself has, and those that identify it."""
    alignment = ran.alignment
    w, records, lanes = alignment.windows, alignment.records, alignment.lanes
    lane_stream = np.append(lanes["stream"].to_numpy(), -1)
    lane_device = np.append(lanes["device"].to_numpy(), -1)
    seq = np.append(records["seq"].to_numpy(), -1)
    out = pd.DataFrame(
        {
            "pid": pid_of(w["process"].to_numpy()),
            "tid": tid_of(w["thread"].to_numpy()),
            "start_record": seq[w["start"].to_numpy()],
            "end_record": seq[w["end"].to_numpy()],
            "device": lane_device[w["end_lane"].to_numpy()],
            "start_stream": lane_stream[w["start_lane"].to_numpy()],
            "end_stream": lane_stream[w["end_lane"].to_numpy()],
        }
    )
    for column in (*_SAME, *_BESIDE):
        out[column] = w[column].array.copy()
    for column in (*_COMPUTED, *_BEHIND_FLAGS):
        out[column] = budgets.columns[column].to_numpy()
    out["part"] = is_part(alignment)
    out = pd.concat([out, work.of_windows(ran)], axis=1)
    flags = [
        (
            *((DISTURBED,) if disturbed else ()),
            *((INTERVENED,) if intervened else ()),
            *((OTHERS_WORKED,) if others else (OTHERS_RAN,) if some else ()),
            *remarks,
            *synchronised,
        )
        for disturbed, intervened, others, some, remarks, synchronised in zip(
            budgets.columns["disturbed"].tolist(),
            _intervened(alignment, log),
            (budgets.columns["others_worked"] & ~out["part"]).tolist(),
            (budgets.columns["others_ran"] & ~out["part"]).tolist(),
            w["remarks"].tolist(),
            budgets.columns["synchronised"].tolist(),
            strict=True,
        )
    ]
    out["flags"] = pd.Series(flags, dtype=object)
    return out


def _intervened(alignment: Alignment, log: EventLog | None) -> list[bool]:
    """Whether `nsysalign confirm` did something before the start record, per window."""
    if log is None or not log.records["intervened"].any():
        return [False] * len(alignment.windows)
    mine = log.records[log.records["intervened"]]
    wanted = set(zip(mine["process"].tolist(), mine["seq"].tolist(), strict=True))
    seq = np.append(alignment.records["seq"].to_numpy(), -1)[alignment.windows["start"].to_numpy()]
    process = alignment.windows["log_process"].tolist()
    return [pair in wanted for pair in zip(process, seq.tolist(), strict=True)]
