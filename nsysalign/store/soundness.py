"""Whether a stored analysis is consistent: a file from someone else is shown only if its budgets
add up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from nsysalign import registry
from nsysalign.errors import AnalysisError
from nsysalign.model import CAUSES, Analysis

if TYPE_CHECKING:
    import pandas as pd

#: Columns whose values are words of ours.
_WORDS = {
    ("findings", "severity"): ("error", "warning", "info"),
    ("intervals", "kind"): ("event", "host", "nvtx", "run"),
    ("labels", "kind"): ("event", "host", "nvtx"),
    **{(table, "cause"): CAUSES for table in ("parts", "segments", "details", "unprofiled_parts")},
}
#: Columns of dtype object that hold dicts; tuples of numbers.  The others hold tuples of texts.
_DICTS = {("findings", "evidence"), ("timeline", "detail")}
_NUMBERS = {("variants", "intervals")}
#: Numbers of the latency model, by situation.
_BY_SITUATION = ("latency_ns", "latency_std_ns", "scale_ns", "launch_latency_ns")
_LATEST_NS = 1 << 62


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
    for (name, column), words in _WORDS.items():
        if not set(getattr(analysis, name)[column]) <= {*words}:
            yield f"{name}.{column} holds an unknown word"
    for spec in registry.specs():
        for column, dtype, _ in spec.columns:
            if dtype != "object":
                continue
            kind = dict if (spec.name, column) in _DICTS else tuple
            within = int if (spec.name, column) in _NUMBERS else str
            for value in getattr(analysis, spec.name)[column]:
                if not isinstance(value, kind) or not all(isinstance(v, within) for v in value):
                    yield f"{spec.name}.{column} holds something other than declared"
    told = analysis.host_activity
    if set(told["label"]) != set(told.loc[told["view"] == "all", "label"]):
        yield "host_activity lacks what its shares are of"
    info = analysis.trace
    texts = (
        info.path,
        info.nsys_version or "",
        info.schema_version or "",
        info.driver_version or "",
    )
    lists = (info.devices, info.missing, info.notes, analysis.notes)
    began = info.session_start_utc_ns
    if not (
        all(isinstance(text, str) for text in texts)
        and all(isinstance(v, tuple) and all(isinstance(t, str) for t in v) for v in lists)
        and isinstance(info.failed_calls, tuple)
        and all([*map(type, call)] == [str, int, int] for call in info.failed_calls)
        and (info.recorded_ns is None or [*map(type, info.recorded_ns)] == [int, int])
        and (began is None or (type(began) is int and 0 <= began < _LATEST_NS))
    ):
        yield "what it says about the trace is not what was written"


def _wrong_sums(analysis: Analysis) -> Iterator[str]:
    intervals, parts, segments = analysis.intervals, analysis.parts, analysis.segments
    if not intervals["interval"].is_unique or (intervals["interval"] < 0).any():
        yield "two intervals have the same number"
    elapsed = intervals.set_index("interval")["elapsed_ns"]
    if not (intervals["end_ns"] - intervals["start_ns"]).equals(intervals["elapsed_ns"]):
        yield "a window does not have the length of its interval"
    if (parts["ns"] < 0).any():
        yield "a part is negative"
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
    bars = analysis.unprofiled[["predicted_ns", "lower_ns", "upper_ns"]].isna()
    if (bars.any(axis=1) != bars.all(axis=1)).any():
        yield "a prediction lacks an end of its error bar"


def _sums(numbers: pd.Series, values: pd.Series) -> pd.Series:
    return values.groupby(numbers.rename("interval")).sum().rename("elapsed_ns")


def _calibration(value: object) -> bool:
    """Whether it has the form that alignment writes: names and values, and the header facts of each
    process in the log."""
    if not isinstance(value, dict):
        return False
    processes = value.get("collected_with", [])
    listed = isinstance(processes, list | tuple) and all(isinstance(p, dict) for p in processes)
    tables = [value.get(name) or {} for name in _BY_SITUATION]
    return listed and all(
        isinstance(t, dict) and all(v is None or isinstance(v, int | float) for v in t.values())
        for t in tables
    )
