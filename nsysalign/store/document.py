"""The analysis as one JSON document for other programs (docs/design.md, section 6), without segments
and timeline.  It is not read back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from nsysalign import frames, registry
from nsysalign.causes import CAUSES
from nsysalign.explain.finding import statuses
from nsysalign.model import Analysis
from nsysalign.parts import parts_matrix, positions
from nsysalign.store.objects import plain, records, to_json

if TYPE_CHECKING:
    import numpy as np

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
    """The text of the document in pieces: some hundred intervals are objects at a time."""
    intervals = analysis.intervals
    parts = [parts_matrix(analysis, column) for column in _BOUNDS.values()]
    before, mark, after = to_json(_but_intervals(analysis, parts[0])).partition('"intervals":[')
    yield (before + mark).encode()
    tables = (analysis.details, analysis.other_streams)
    lots = [dict(iter(t.groupby(positions(intervals, t) // _AT_ONCE))) for t in tables]
    for first in range(0, len(intervals), _AT_ONCE):
        lot = records(intervals.iloc[first : first + _AT_ONCE])
        for row, interval in enumerate(lot, first):
            for key, matrix in zip(_BOUNDS, parts, strict=True):
                interval[key] = dict(zip(CAUSES, matrix[row].tolist(), strict=True))
            interval["details"], interval["other_streams_ns"] = [], {}
        numbered = {interval["interval"]: interval for interval in lot}
        inside, beside = (
            records(of_lot.get(first // _AT_ONCE, table[:0]))
            for of_lot, table in zip(lots, tables, strict=True)
        )
        for detail in inside:
            numbered[detail.pop("interval")]["details"].append(detail)
        for stream in beside:
            by_stream = numbered[stream["interval"]]["other_streams_ns"]
            by_stream[str(stream["stream"])] = stream["ns"]
        yield ("," * bool(first) + to_json(lot)[1:-1]).encode()
    yield after.encode()


def _but_intervals(analysis: Analysis, parts: np.ndarray) -> dict[str, Any]:
    """The document with an empty list of intervals; `parts`: ns by interval and cause."""
    labels, label_of = records(analysis.labels), analysis.intervals["label"].to_numpy()
    for label in labels:
        label["elapsed"] = {name: label.pop(name) for name in _ELAPSED}
        of_label = parts[label_of == label["label"]]
        means = of_label.sum(axis=0) / max(len(of_label), 1)
        label["parts_mean_ns"] = dict(zip(CAUSES, means.tolist(), strict=True))
    unprofiled = {u["interval"]: u | {"parts_ns": {}} for u in records(analysis.unprofiled)}
    for part in records(analysis.unprofiled_parts):
        unprofiled[part["interval"]]["parts_ns"][part["cause"]] = part["ns"]
    long = {name for addon in registry.addons().values() for name in addon.long}
    of_addons = {
        name: table
        for name, table in analysis.extra.items()
        if name in registry.tables() and name not in long and not table.empty
    }
    rows = [s for s in frames.ANALYSIS_SPECS if s not in _IN_OTHER_FORM | _LEFT_OUT]
    return {
        "format": "nsysalign-analysis",
        "version": 2,
        "trace": plain(vars(analysis.trace)),
        "notes": plain(analysis.notes),
        "known": plain(vars(analysis.known)),
        "intervals": [],
        "labels": labels,
        **{spec.name: records(getattr(analysis, spec.name)) for spec in rows},
        "findings": [  # nothing counts as confirmed that was not tested
            {**finding, "confirmation": status._asdict()}
            for finding, status in zip(records(analysis.findings), statuses(analysis), strict=True)
        ],
        "source_lines": dict(analysis.source_lines.itertuples(index=False)),
        "unprofiled": list(unprofiled.values()),
        "baseline": None if analysis.baseline.empty else {"labels": records(analysis.baseline)},
        **{name: records(table) for name, table in of_addons.items()},
    }
