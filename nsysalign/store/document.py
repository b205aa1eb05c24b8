"""`analysis.json`: the analysis as one document (docs/design.md, section 6), for other programs: it
is not read back.

Segments and the timeline are not in it; they are in `analysis.db`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from nsysalign import frames, registry
from nsysalign.explain.finding import statuses
from nsysalign.files import replacing
from nsysalign.model import CAUSES, Analysis, TraceInfo
from nsysalign.parts import known_as, parts_matrices, positions
from nsysalign.store.objects import encoded, plain, records

if TYPE_CHECKING:
    import pandas as pd

FORMAT, VERSION = "nsysalign-analysis", 1
#: Intervals at once: their objects stay in the processor's cache until they are written.
_AT_ONCE = 512
_BOUNDS = {"parts_ns": "ns", "parts_lower_ns": "lower_ns", "parts_upper_ns": "upper_ns"}
#: Tables that are lists of their rows.
_AS_ROWS = (
    *(frames.UNALIGNED, frames.VARIANTS, frames.KERNELS, frames.GAPS, frames.HOST_RANGES),
    *(frames.HOST_ACTIVITY, frames.GPU_CLOCKS),
)
_ELAPSED = ("median_ns", "mean_ns", "std_ns", "min_ns", "max_ns", "p05_ns", "p95_ns")


def write(analysis: Analysis, path: str | os.PathLike[str]) -> None:
    """Write the document; the file appears whole or not at all."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.writelines(pieces(analysis))


def dumps(analysis: Analysis) -> str:
    """The document as text."""
    return b"".join(pieces(analysis)).decode("ascii")


def pieces(analysis: Analysis) -> Iterator[bytes]:
    """The text of the document in pieces: some hundred intervals are objects at a time."""
    matrices = parts_matrices(analysis, tuple(_BOUNDS.values()))
    before, mark, after = encoded(_but_intervals(analysis, matrices[0])).partition(b'"intervals":[')
    yield before + mark
    for number, lot in enumerate(_intervals(analysis, matrices)):
        yield (b"," if number else b"") + encoded(lot)[1:-1]
    yield after


def _but_intervals(analysis: Analysis, parts: np.ndarray) -> dict[str, Any]:
    """The document with an empty list of intervals; `parts`: ns by interval and cause."""
    labels = records(analysis.labels)
    codes = known_as(analysis.intervals["label"], [label["label"] for label in labels])
    sums = np.zeros((len(labels) + 1, len(CAUSES)), dtype=np.int64)
    np.add.at(sums, codes, parts)  # code -1 (no such label) lands in the spare last row
    counts = np.bincount(codes[codes >= 0], minlength=len(labels))
    for number, label in enumerate(labels):
        label["elapsed"] = {name: label.pop(name) for name in _ELAPSED}
        means = sums[number] / max(int(counts[number]), 1)
        label["parts_mean_ns"] = dict(zip(CAUSES, means.tolist(), strict=True))

    unprofiled = records(analysis.unprofiled)
    of_interval: dict[int, dict[str, int]] = {}
    for part in records(analysis.unprofiled_parts):
        of_interval.setdefault(part["interval"], {})[part["cause"]] = part["ns"]
    for prediction in unprofiled:
        prediction["parts_ns"] = of_interval.get(prediction["interval"], {})

    long = {name for addon in registry.addons().values() for name in addon.long}
    extra = {n: t for n, t in analysis.extra.items() if n not in long and not t.empty}
    return {
        "format": FORMAT,
        "version": VERSION,
        "trace": plain(
            {name: getattr(analysis.trace, name) for name in TraceInfo.__dataclass_fields__}
        ),
        "notes": plain(analysis.notes),
        "calibration": plain(analysis.calibration),
        "intervals": [],
        "labels": labels,
        **{spec.name: records(getattr(analysis, spec.name)) for spec in _AS_ROWS},
        "findings": [  # nothing counts as confirmed that was not tested
            {**finding, "confirmation": status._asdict()}
            for finding, status in zip(records(analysis.findings), statuses(analysis), strict=True)
        ],
        "source_lines": dict(analysis.source_lines.itertuples(index=False)),
        "unprofiled": unprofiled,
        "baseline": None if analysis.baseline.empty else {"labels": records(analysis.baseline)},
        **{name: records(table) for name, table in extra.items()},
    }


def _intervals(analysis: Analysis, budgets: list[np.ndarray]) -> Iterator[list[dict[str, Any]]]:
    """The objects of the intervals, some hundred at a time."""
    intervals, count = analysis.intervals, len(analysis.intervals)
    details, detail_ends = _by_interval(intervals, analysis.details)
    others, other_ends = _by_interval(intervals, analysis.other_streams)
    for first in range(0, count, _AT_ONCE):
        last = min(first + _AT_ONCE, count)
        lot = records(intervals.iloc[first:last])
        for key, matrix in zip(_BOUNDS, budgets, strict=True):
            for interval, parts in zip(lot, matrix[first:last].tolist(), strict=True):
                interval[key] = dict(zip(CAUSES, parts, strict=True))
        inside = records(details.iloc[detail_ends[first] : detail_ends[last]])
        beside = records(others.iloc[other_ends[first] : other_ends[last]])
        for number, interval in enumerate(lot, first):
            a, b = detail_ends[number : number + 2] - detail_ends[first]
            interval["details"] = inside[a:b]
            a, b = other_ends[number : number + 2] - other_ends[first]
            interval["other_streams_ns"] = {str(o["stream"]): o["ns"] for o in beside[a:b]}
        yield lot


def _by_interval(intervals: pd.DataFrame, rows: pd.DataFrame) -> tuple[pd.DataFrame, np.ndarray]:
    """The rows of a table in the order of `intervals`, and where those of each begin (one more: the
    end)."""
    owner = positions(intervals, rows)
    order = np.argsort(owner, kind="stable")[np.count_nonzero(owner < 0) :]
    counts = np.bincount(owner[owner >= 0], minlength=len(intervals))
    return rows.drop(columns="interval").iloc[order], np.append(0, np.cumsum(counts))
