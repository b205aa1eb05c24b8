"""Reduces an analysis to what a comparison of ranks needs: one summary per process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.model import CAUSES, Analysis, pid_of
from nsysalign.parts import matrices
from nsysalign.ranks.results import LabelTimes, RankSummary

if TYPE_CHECKING:
    from nsysalign.trace.nccl import Shared


def summaries(analysis: Analysis, shared: Shared, source: str) -> tuple[RankSummary, ...]:
    """The processes of a trace that measured something or took part in collectives, ordered by device and pid.

    A trace in which no process did either becomes one empty rank, so that tables show that it measured nothing.
    """
    collectives = shared.collectives
    pids = pid_of(collectives["process"].to_numpy())
    seen = sorted({*analysis.measured["pid"].unique().tolist(), *np.unique(pids).tolist()})
    ranks = [_summary(analysis, shared, source, pid, pids == pid, len(seen)) for pid in seen or [0]]
    return tuple(sorted(ranks, key=lambda rank: (rank.device, rank.pid)))


def _summary(
    analysis: Analysis, shared: Shared, source: str, pid: int, own: np.ndarray, processes: int
) -> RankSummary:
    """`own`: which of the trace's collectives are those of the process."""
    collectives = shared.collectives[own].reset_index(drop=True)
    intervals = analysis.measured[analysis.measured["pid"] == pid].sort_values(
        ["start_ns", "interval"], ignore_index=True
    )
    mine = set(intervals["label"].tolist())
    order = [label for label in analysis.labels["label"].tolist() if label in mine]
    code = pd.Index(order).get_indexer(intervals["label"])
    parts = _parts(analysis, intervals["interval"].to_numpy())
    labels = tuple(
        _times(label, intervals[code == n], parts[code == n]) for n, label in enumerate(order)
    )
    windows = pd.DataFrame(
        {"label": code, "start_ns": intervals["start_ns"], "end_ns": intervals["end_ns"]}
    ).sort_values(["label", "start_ns", "end_ns"], ignore_index=True)
    devices = [
        d for d in (*intervals["device"].tolist(), *collectives["device"].tolist()) if d >= 0
    ]
    found = analysis.findings[analysis.findings["severity"].isin(["error", "warning"])]
    return RankSummary(
        source=source,
        pid=int(pid),
        device=int(min(devices, default=-1)),
        info=analysis.trace,
        host=shared.host,
        launcher_rank=shared.rank if processes == 1 else None,
        labels=labels,
        windows=frames.check(windows, frames.RANK_WINDOWS),
        collectives=collectives,
        unplaced=len(analysis.unaligned),
        warnings=tuple(
            f"{rule}: {label}"
            for rule, label in zip(found["rule"].tolist(), found["label"].tolist(), strict=True)
            if label in mine
        ),
    )


def _parts(analysis: Analysis, numbers: np.ndarray) -> np.ndarray:
    """int64 array (intervals, causes) in nanoseconds, in the order of `numbers` and CAUSES."""
    (matrix,) = matrices(pd.DataFrame({"interval": numbers}), analysis.parts, ["ns"])
    return matrix


def _times(label: str, intervals: pd.DataFrame, parts: np.ndarray) -> LabelTimes:
    elapsed, first = intervals["elapsed_ns"].to_numpy(np.int64), intervals.iloc[0]
    p05, median, p95 = np.percentile(elapsed, [5, 50, 95]).tolist()
    means = parts.mean(axis=0).tolist()
    return LabelTimes(
        label=label,
        kind=str(first["kind"]),
        site=str(first["site"]),
        library=bool(first["library"]),
        count=len(elapsed),
        median_ns=median,
        mean_ns=float(elapsed.mean()),
        min_ns=int(elapsed.min()),
        max_ns=int(elapsed.max()),
        p05_ns=p05,
        p95_ns=p95,
        parts_mean_ns={c: m for c, m, p in zip(CAUSES, means, parts.T, strict=True) if p.any()},
    )


def same_trace(ranks: Sequence[RankSummary]) -> list[tuple[int, int]]:
    """Pairs of positions whose traces are copies of one another: same session, same process, same windows."""
    seen: dict[tuple, int] = {}
    pairs = []
    for position, rank in enumerate(ranks):
        times = (rank.windows, rank.collectives)
        if not any(len(t) for t in times):
            continue
        key = (
            rank.info.session_start_utc_ns,
            rank.pid,
            rank.host,
            *((len(t), int(t["start_ns"].sum()), int(t["end_ns"].sum())) for t in times),
        )
        if key in seen:
            pairs.append((seen[key], position))
        seen.setdefault(key, position)
    return pairs
