"""Reduces an analysis to what a comparison of ranks needs: one summary per process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from nsysalign.addons.ranks.results import LabelTimes, RankSummary
from nsysalign.model import CAUSES, Analysis, pid_of
from nsysalign.parts import matrices

if TYPE_CHECKING:
    from nsysalign.trace.nccl import Shared


def summaries(analysis: Analysis, shared: Shared, source: str) -> tuple[RankSummary, ...]:
    """The processes of a trace that measured something or took part in collectives, ordered by
    device and pid.

    A trace in which no process did either becomes one empty rank, so that tables show that it
    measured nothing.
    """
    pids = pid_of(shared.collectives["process"].to_numpy())
    seen = sorted({*analysis.measured["pid"].unique().tolist(), *np.unique(pids).tolist()})
    ranks = []
    for pid in seen or [0]:
        collectives = shared.collectives[pids == pid].reset_index(drop=True)
        intervals = analysis.measured[analysis.measured["pid"] == pid]
        intervals = intervals.sort_values(["start_ns", "end_ns", "interval"], ignore_index=True)
        (parts,) = matrices(intervals[["interval"]], analysis.parts, ["ns"])
        own = set(intervals["label"])
        devices = [*intervals["device"].tolist(), *collectives["device"].tolist()]
        findings = analysis.findings[analysis.findings["severity"].isin(["error", "warning"])]
        ranks.append(
            RankSummary(
                source=source,
                pid=int(pid),
                device=min((int(d) for d in devices if d >= 0), default=-1),
                info=analysis.trace,
                host=shared.host,
                launcher_rank=shared.rank if len(seen) == 1 else None,
                labels=tuple(
                    _times(label, intervals, parts)
                    for label in analysis.labels["label"]
                    if label in own
                ),
                collectives=collectives,
                unplaced=len(analysis.unaligned),
                warnings=tuple(
                    f"{rule}: {label}"
                    for rule, label in zip(findings["rule"], findings["label"], strict=True)
                    if label in own
                ),
            )
        )
    return tuple(sorted(ranks, key=lambda rank: (rank.device, rank.pid)))


def _times(label: str, intervals: pd.DataFrame, parts: np.ndarray) -> LabelTimes:
    own = (intervals["label"] == label).to_numpy()
    intervals, parts = intervals[own], parts[own]
    first, means = intervals.iloc[0], parts.mean(axis=0).tolist()
    return LabelTimes(
        label=label,
        kind=str(first["kind"]),
        site=str(first["site"]),
        library=bool(first["library"]),
        windows=intervals[["start_ns", "end_ns"]].to_numpy(np.int64),
        parts_mean_ns={c: m for c, m, p in zip(CAUSES, means, parts.T, strict=True) if p.any()},
    )
