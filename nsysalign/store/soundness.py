"""Whether a stored analysis is consistent: a file from someone else is shown only if its budgets
add up and its tables belong together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nsysalign import registry
from nsysalign.errors import AnalysisError
from nsysalign.model import CAUSES, Analysis

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


def refuse_unsound(analysis: Analysis, name: str) -> None:
    """Raises AnalysisError if numbers contradict each other or tables do not belong together."""
    for problem in (*_wrong_sums(analysis), *_strangers(analysis)):
        raise AnalysisError(
            f"{name} is inconsistent: {problem}; it was damaged or edited",
            "make it again: nsysalign analyze TRACE",
        )


def _wrong_sums(analysis: Analysis) -> Iterator[str]:
    intervals, parts, segments = analysis.intervals, analysis.parts, analysis.segments
    numbers = intervals["interval"]
    if not numbers.is_unique or (numbers < 0).any():
        yield "two intervals have the same number"
    elapsed = intervals.set_index("interval")["elapsed_ns"]
    if not (intervals["end_ns"] - intervals["start_ns"]).equals(intervals["elapsed_ns"]):
        yield "a window does not have the length of its interval"
    if (parts["ns"] < 0).any():
        yield "a part is negative"
    covered = parts["ns"].groupby(parts["interval"]).sum()
    if (covered.reindex(elapsed.index, fill_value=0) != elapsed).any():
        yield "the parts of an interval do not add up"
    covered = (segments["end_ns"] - segments["start_ns"]).groupby(segments["interval"]).sum()
    if (covered != elapsed.reindex(covered.index)).any():
        yield "the pieces of an interval do not add up"
    bars = analysis.unprofiled[["predicted_ns", "lower_ns", "upper_ns"]].isna()
    if (bars.any(axis=1) != bars.all(axis=1)).any():
        yield "a prediction lacks an end of its error bar"


def _strangers(analysis: Analysis) -> Iterator[str]:
    """What does not belong to the rest, or is not what it is declared to be."""
    numbers, labels = analysis.intervals["interval"], analysis.labels
    for table in ("parts", "segments", "details", "other_streams", "timeline"):
        if not getattr(analysis, table)["interval"].isin(numbers).all():
            yield f"{table} names an interval that is not there"
    if not labels["label"].is_unique or set(labels["label"]) != set(analysis.measured["label"]):
        yield "the labels are not those of the intervals"
    if not labels["row_interval"].isin(numbers).all():
        yield "a label's row is not among the intervals"
    shares = analysis.host_activity
    if set(shares["label"]) != set(shares.loc[shares["view"] == "all", "label"]):
        yield "host_activity lacks what its shares are of"
    for (name, column), words in _WORDS.items():
        if not set(getattr(analysis, name)[column]) <= {*words}:
            yield f"{name}.{column} holds an unknown word"
    for spec in registry.specs():
        for column in (column for column, dtype, _ in spec.columns if dtype == "object"):
            kind = dict if (spec.name, column) in _DICTS else tuple
            within = int if (spec.name, column) in _NUMBERS else str
            values = getattr(analysis, spec.name)[column]
            if not all(_holds(value, kind, within) for value in values):
                yield f"{spec.name}.{column} holds something other than declared"
    info, known = analysis.trace, analysis.known
    texts = (info.nsys_version, info.schema_version, info.driver_version)
    lists = (info.devices, info.missing, info.notes, analysis.notes)
    times = (info.session_start_utc_ns, *(info.recorded_ns or ()))
    if not (
        isinstance(info.path, str)
        and all(text is None or isinstance(text, str) for text in texts)
        and all(_holds(value, tuple, str) for value in lists)
        and all(time is None or (type(time) is int and 0 <= time < 1 << 62) for time in times)
        and all([*map(type, call)] == [str, int, int] for call in info.failed_calls)
    ):
        yield "what it says about the trace is not what was written"
    of_runs = (known.idle, known.page_migrations, known.few_blocks, known.few_threads, known.set_up)
    if not (
        all(_holds(rows, list | tuple, dict) for rows in of_runs)
        and isinstance(known.calls_without_work, dict)
        and _holds((known.torch, known.python), tuple, str)
    ):
        yield "what is known beside the tables is not what was written"


def _holds(value: object, kind: Any, within: Any) -> bool:
    return isinstance(value, kind) and all(isinstance(item, within) for item in value)
