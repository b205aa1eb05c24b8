"""`plan`: the experiment that tests a label's cause, or the reason why there is none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from nsysalign.compare.experiment import FEWEST, Plan, Refusal, machine, rows_of
from nsysalign.compare.planners import PLANNERS, Question
from nsysalign.compare.spans import Spans
from nsysalign.model import Analysis
from nsysalign.text import microseconds


def plan(
    analysis: Analysis,
    label: str,
    intervention: str,
    spans: Spans,
    *,
    decorated: frozenset[str] = frozenset(),
    seed: int = 0,
) -> Plan | Refusal:
    """The experiment, or why there is none.  `decorated`: regions that are decorators (`@nsysalign.region`)."""
    rows = rows_of(analysis, label)
    reason = _no_start_record(analysis, label, rows)
    if not reason:
        made = PLANNERS[intervention](Question(analysis, label, rows, spans, decorated, seed))
        if isinstance(made, Plan):
            reason = _cannot_tell(made) or _cannot_place(analysis, made)
            if not reason:
                return replace(made, machine=machine(analysis))
        else:
            reason = made
    return Refusal(label, intervention, reason)


def _no_start_record(analysis: Analysis, label: str, rows: np.ndarray) -> str:
    if not len(rows):
        lost = analysis.unaligned[analysis.unaligned["label"] == label]
        if len(lost):
            return f"its intervals could not be placed: {lost['reason'].iloc[0]}"
        return "no interval has that label"
    i = analysis.intervals.iloc[rows]
    if (i["kind"] == "host").any():
        return "it is timed with the host's clock, so there is no start record to intervene at"
    if (i["kind"] == "nvtx").any() or (i["method"] == "inferred").any():
        return "without an event log it is not known which call made its start record"
    if (i["site"] == "").all():
        return "the event log does not say where its start record is made"
    if len(rows) < FEWEST:
        return f"{len(rows)} intervals: at least {FEWEST} are needed to see a spread"
    return ""


def _cannot_place(analysis: Analysis, made: Plan) -> str:
    """The intervention must lie outside every interval of the label itself."""
    i = analysis.intervals
    mine = i.iloc[rows_of(analysis, made.target)]
    ends = set(zip(mine["pid"].tolist(), mine["end_record"].tolist(), strict=True))
    if made.intervention != "warm" and ends & set(
        zip(mine["pid"].tolist(), mine["start_record"].tolist(), strict=True)
    ):
        return "its start record is also the end record of the interval before, so the change would lie inside that one"
    for _, lane in mine.groupby(["pid", "device", "start_stream"]):
        start, end = (lane[c].to_numpy() for c in ("start_ns", "end_ns"))
        if (start[1:] < np.maximum.accumulate(end)[:-1]).any():
            return "its intervals overlap, so a change before one would lie inside another"
    return ""


def _cannot_tell(made: Plan) -> str:
    low, high = made.predicted_bounds_ns
    if np.isnan(low) or high < made.before_bounds_ns[0] or low > made.before_bounds_ns[1]:
        return ""
    return (
        f"a test could not decide anything: {microseconds(made.before_ns)} measured, {microseconds(low)} to {microseconds(high)} predicted with the "
        f"change{' (the GPU works most of the time)' if made.intervention == 'delay' else ''}"
    )
