"""Whether a stored analysis is consistent: a file from someone else is shown only if its budgets
add up and its tables belong together."""

from __future__ import annotations

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
#: Columns of dtype object: dicts, tuples of numbers; the others hold tuples of texts.
_OBJECTS: dict[tuple[str, str], tuple[type, type]] = {
    ("findings", "evidence"): (dict, str),
    ("timeline", "detail"): (dict, str),
    ("variants", "intervals"): (tuple, int),
}


def refuse_unsound(analysis: Analysis, name: str) -> None:
    """Raises AnalysisError if numbers contradict each other, tables do not belong together, or
    something is not what it is declared to be."""
    intervals, parts, segments = analysis.intervals, analysis.parts, analysis.segments
    labels, shares, numbers = analysis.labels, analysis.host_activity, intervals["interval"]
    if not numbers.is_unique or (numbers < 0).any():
        _refuse(name, "two intervals have the same number")
    elapsed = intervals.set_index("interval")["elapsed_ns"]
    of_parts = parts["ns"].groupby(parts["interval"]).sum().reindex(elapsed.index, fill_value=0)
    pieces = (segments["end_ns"] - segments["start_ns"]).groupby(segments["interval"]).sum()
    bars = analysis.unprofiled[["predicted_ns", "lower_ns", "upper_ns"]].isna()
    info, known = analysis.trace, analysis.known
    texts = [info.path, known.torch, known.python]
    texts += [t for t in (info.nsys_version, info.schema_version, info.driver_version) if t]
    begin_ns = info.session_start_utc_ns or 0
    of_runs = (known.idle, known.page_migrations, known.few_blocks, known.few_threads, known.set_up)
    for problem, holds in {
        "a window does not have the length of its interval": (
            (intervals["end_ns"] - intervals["start_ns"]).equals(intervals["elapsed_ns"])
        ),
        "a part is negative": (parts["ns"] >= 0).all(),
        "the parts of an interval do not add up": (of_parts == elapsed).all(),
        "the pieces of an interval do not add up": (pieces == elapsed.reindex(pieces.index)).all(),
        "a prediction lacks an end of its error bar": (bars.any(axis=1) == bars.all(axis=1)).all(),
        "the labels are not those of the intervals": (
            labels["label"].is_unique and {*labels["label"]} == {*analysis.measured["label"]}
        ),
        "a label's row is not among the intervals": labels["row_interval"].isin(numbers).all(),
        "host_activity lacks what its shares are of": (
            {*shares["label"]} == {*shares.loc[shares["view"] == "all", "label"]}
        ),
        "what it says about the trace is not what was written": (
            all(isinstance(text, str) for text in texts)
            and all(_holds(v, tuple, str) for v in (info.devices, info.missing, info.notes))
            and _holds(analysis.notes, tuple, str)
            and type(begin_ns) is int
            and 0 <= begin_ns < 1 << 62
            and all([*map(type, call)] == [str, int, int] for call in info.failed_calls)
        ),
        "what is known beside the tables is not what was written": (
            all(_holds(rows, list | tuple, dict) for rows in of_runs)
            and isinstance(known.calls_without_work, dict)
        ),
        **{
            f"{table} names an interval that is not there": (
                getattr(analysis, table)["interval"].isin(numbers).all()
            )
            for table in ("parts", "segments", "details", "other_streams", "timeline")
        },
        **{
            f"{table}.{column} holds an unknown word": {*getattr(analysis, table)[column]} <= {*of}
            for (table, column), of in _WORDS.items()
        },
        **{
            f"{spec.name}.{column} holds something other than declared": all(
                _holds(value, *_OBJECTS.get((spec.name, column), (tuple, str)))
                for value in getattr(analysis, spec.name)[column]
            )
            for spec in registry.specs()
            for column, dtype, _ in spec.columns
            if dtype == "object"
        },
    }.items():
        if not holds:
            _refuse(name, problem)


def _refuse(name: str, problem: str) -> None:
    raise AnalysisError(
        f"{name} is inconsistent: {problem}; it was damaged or edited",
        "make it again: nsysalign analyze TRACE",
    )


def _holds(value: object, kind: Any, within: Any) -> bool:
    return isinstance(value, kind) and all(isinstance(item, within) for item in value)
