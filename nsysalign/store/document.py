"""The analysis as one JSON document for other programs (docs/design.md, section 6), without segments
and timeline.  It is not read back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from nsysalign import frames, registry
from nsysalign.causes import CAUSES
from nsysalign.explain.finding import statuses
from nsysalign.model import Analysis
from nsysalign.parts import parts_matrix, positions
from nsysalign.store.objects import plain, records, to_json

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

#: Intervals at once: a row as Python objects takes ten times its size.
_AT_ONCE = 512
_BOUNDS = {"parts_ns": "ns", "parts_lower_ns": "lower_ns", "parts_upper_ns": "upper_ns"}
#: Tables that the document holds in another form, or not at all; all others are lists of their rows.
_IN_OTHER_FORM = {
    frames.INTERVALS, frames.PARTS, frames.DETAILS, frames.OTHER_STREAMS, frames.LABELS, frames.FINDINGS,
    frames.SOURCE_LINES, frames.BASELINE, frames.UNPROFILED, frames.UNPROFILED_PARTS,
}  # fmt: skip
_LEFT_OUT = {frames.SEGMENTS, frames.TIMELINE}
_ELAPSED = ("median_ns", "mean_ns", "std_ns", "min_ns", "max_ns", "p05_ns", "p95_ns")


def pieces(analysis: Analysis) -> Iterator[bytes]:
    """Yield the text of the document in pieces: _AT_ONCE intervals are objects at a time."""
    intervals = analysis.intervals
    matrices = {key: parts_matrix(analysis, column) for key, column in _BOUNDS.items()}
    head, opening, tail = to_json(_but_intervals(analysis, matrices["parts_ns"])).partition(
        '"intervals":['
    )
    yield (head + opening).encode()
    details = _by_batch(intervals, analysis.details)
    other_streams = _by_batch(intervals, analysis.other_streams)
    for first in range(0, len(intervals), _AT_ONCE):
        batch = records(intervals.iloc[first : first + _AT_ONCE])
        for row, interval in enumerate(batch, first):
            for key, matrix in matrices.items():
                interval[key] = dict(zip(CAUSES, matrix[row].tolist(), strict=True))
            interval["details"] = []
            interval["other_streams_ns"] = {}
        by_number = {interval["interval"]: interval for interval in batch}
        for detail in details(first // _AT_ONCE):
            by_number[detail.pop("interval")]["details"].append(detail)
        for stream in other_streams(first // _AT_ONCE):
            ns_of_stream = by_number[stream["interval"]]["other_streams_ns"]
            ns_of_stream[str(stream["stream"])] = stream["ns"]
        comma = "," if first else ""
        yield (comma + to_json(batch).removeprefix("[").removesuffix("]")).encode()
    yield tail.encode()


def _by_batch(
    intervals: pd.DataFrame, table: pd.DataFrame
) -> Callable[[int], list[dict[str, Any]]]:
    """Return a function: number of a batch of intervals -> the rows of a table that are of these intervals."""
    batch_of_row = positions(intervals, table) // _AT_ONCE
    tables = dict(iter(table.groupby(batch_of_row)))
    return lambda number: records(tables.get(number, table[:0]))


def _but_intervals(analysis: Analysis, parts: np.ndarray) -> dict[str, Any]:
    """Return the document with an empty list of intervals.

    parts: ns by cause, int64 (intervals, causes)
    """
    labels = records(analysis.labels)
    label_of_interval = analysis.intervals["label"].to_numpy()
    for label in labels:
        label["elapsed"] = {name: label.pop(name) for name in _ELAPSED}
        of_label = parts[label_of_interval == label["label"]]
        means = of_label.sum(axis=0) / max(len(of_label), 1)
        label["parts_mean_ns"] = dict(zip(CAUSES, means.tolist(), strict=True))
    unprofiled = {u["interval"]: u | {"parts_ns": {}} for u in records(analysis.unprofiled)}
    for part in records(analysis.unprofiled_parts):
        unprofiled[part["interval"]]["parts_ns"][part["cause"]] = part["ns"]
    too_long = {name for addon in registry.addons().values() for name in addon.long}
    of_addons = {
        name: table
        for name, table in analysis.extra.items()
        if name in registry.tables() and name not in too_long and not table.empty
    }
    as_rows = [s for s in frames.ANALYSIS_SPECS if s not in _IN_OTHER_FORM | _LEFT_OUT]
    return {
        "format": "nsysalign-analysis",
        "version": 6,
        "trace": plain(vars(analysis.trace)),
        "notes": plain(analysis.notes),
        "known": plain(vars(analysis.known)),
        "intervals": [],
        "labels": labels,
        **{spec.name: records(getattr(analysis, spec.name)) for spec in as_rows},
        "findings": [  # nothing counts as confirmed that was not tested
            {**finding, "confirmation": status._asdict()}
            for finding, status in zip(records(analysis.findings), statuses(analysis), strict=True)
        ],
        "source_lines": dict(analysis.source_lines.itertuples(index=False)),
        "unprofiled": list(unprofiled.values()),
        "baseline": None if analysis.baseline.empty else {"labels": records(analysis.baseline)},
        **{name: records(table) for name, table in of_addons.items()},
    }
