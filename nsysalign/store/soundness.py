"""Whether a stored analysis is consistent: a file from someone else is shown only if its budgets add up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from nsysalign.errors import AnalysisError
from nsysalign.model import CAUSES, Analysis

if TYPE_CHECKING:
    import pandas as pd

#: Columns of dtype object that hold dicts.
_DICTS = {("findings", "evidence"), ("timeline", "detail")}
#: Numbers of the latency model, by situation.
_BY_SITUATION = ("latency_ns", "latency_std_ns", "scale_ns", "launch_latency_ns")
#: Columns of the intervals that hold tuples of texts.
_TUPLES = ("callers", "flags", "findings")


def refuse_unsound(analysis: Analysis, name: str) -> None:
    """Raises AnalysisError if numbers contradict each other or tables do not belong together."""
    for problem in _problems(analysis):
        raise AnalysisError(
            f"{name} is inconsistent: {problem}; it was damaged or edited",
            "make it again: nsysalign analyze TRACE",
        )


def _problems(analysis: Analysis) -> Iterator[str]:
    yield from _wrong_sums(analysis)
    numbers, labels = analysis.intervals["interval"], analysis.labels
    for table in ("parts", "segments", "details", "other_streams", "timeline"):
        if not getattr(analysis, table)["interval"].isin(numbers).all():
            yield f"{table} names an interval that is not there"
    if not labels["label"].is_unique or set(labels["label"]) != set(analysis.measured["label"]):
        yield "the labels are not those of the intervals"
    if not labels["row_interval"].isin(numbers).all():
        yield "a label's row is not among the intervals"
    if not _calibration(analysis.calibration):
        yield "calibration holds something other than names and values"
    for table, column in _DICTS:
        if not all(isinstance(value, dict) for value in getattr(analysis, table)[column]):
            yield f"{table}.{column} holds something other than names and values"
    for column in _TUPLES:
        if not all(_texts(value) for value in analysis.intervals[column]):
            yield f"intervals.{column} holds something other than texts"


def _wrong_sums(analysis: Analysis) -> Iterator[str]:
    intervals, parts, segments = analysis.intervals, analysis.parts, analysis.segments
    if not intervals["interval"].is_unique or (intervals["interval"] < 0).any():
        yield "two intervals have the same number"
    elapsed = intervals.set_index("interval")["elapsed_ns"]
    if not (intervals["end_ns"] - intervals["start_ns"]).equals(intervals["elapsed_ns"]):
        yield "a window does not have the length of its interval"
    if (parts["ns"] < 0).any() or not set(parts["cause"]) <= set(CAUSES):
        yield "a part is negative or has an unknown cause"
    if (
        not _sums(parts["interval"], parts["ns"])
        .reindex(elapsed.index, fill_value=0)
        .equals(elapsed)
    ):
        yield "the parts of an interval do not add up"
    if len(segments):
        covered = _sums(segments["interval"], segments["end_ns"] - segments["start_ns"])
        if not covered.equals(elapsed.reindex(covered.index, fill_value=-1)):
            yield "the pieces of an interval do not add up"


def _sums(numbers: pd.Series, values: pd.Series) -> pd.Series:
    return values.groupby(numbers.rename("interval")).sum().rename("elapsed_ns")


def _calibration(value: object) -> bool:
    """Whether it has the form that alignment writes: names and values, and the header facts of each process in the log."""
    if not isinstance(value, dict):
        return False
    processes = value.get("collected_with", [])
    listed = isinstance(processes, list | tuple) and all(isinstance(p, dict) for p in processes)
    tables = [value.get(name) or {} for name in _BY_SITUATION]
    return listed and all(
        isinstance(t, dict) and all(v is None or isinstance(v, int | float) for v in t.values())
        for t in tables
    )


def _texts(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(text, str) for text in value)
