"""`analysis.json`: the analysis as one document (docs/design.md, section 6), for other programs: it
is not read back.

Segments and the timeline are not in it; they are in `analysis.db`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from nsysalign import frames, registry
from nsysalign.explain.finding import statuses
from nsysalign.files import replacing
from nsysalign.model import CAUSES, Analysis
from nsysalign.parts import parts_matrices, positions
from nsysalign.store.objects import plain, records, to_json

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
    parts = parts_matrices(analysis, tuple(_BOUNDS.values()))
    before, mark, after = to_json(_but_intervals(analysis, parts[0])).partition('"intervals":[')
    yield (before + mark).encode()
    for number, lot in enumerate(_intervals(analysis, parts)):
        yield ("," * bool(number) + to_json(lot)[1:-1]).encode()
    yield after.encode()


def _but_intervals(analysis: Analysis, parts: np.ndarray) -> dict[str, Any]:
    """The document with an empty list of intervals; `parts`: ns by interval and cause."""
    labels, label_of = records(analysis.labels), analysis.intervals["label"].to_numpy()
    for label in labels:
        label["elapsed"] = {name: label.pop(name) for name in _ELAPSED}
        own = parts[label_of == label["label"]]
        means = own.sum(axis=0) / max(len(own), 1)
        label["parts_mean_ns"] = dict(zip(CAUSES, means.tolist(), strict=True))
    unprofiled = records(analysis.unprofiled)
    by_interval: dict[int, dict[str, int]] = {}
    for part in records(analysis.unprofiled_parts):
        by_interval.setdefault(part["interval"], {})[part["cause"]] = part["ns"]
    for prediction in unprofiled:
        prediction["parts_ns"] = by_interval.get(prediction["interval"], {})
    long = {name for addon in registry.addons().values() for name in addon.long}
    extra = {n: t for n, t in analysis.extra.items() if n not in long and not t.empty}
    return {
        "format": FORMAT,
        "version": VERSION,
        "trace": plain(vars(analysis.trace)),
        "notes": plain(analysis.notes),
        "known": plain(vars(analysis.known)),
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


def _intervals(analysis: Analysis, parts: list[np.ndarray]) -> Iterator[list[dict[str, Any]]]:
    """The objects of the intervals, some hundred at a time."""
    intervals = analysis.intervals
    details, others = (_rows_of(intervals, t) for t in (analysis.details, analysis.other_streams))
    for first in range(0, len(intervals), _AT_ONCE):
        lot = records(intervals.iloc[first : first + _AT_ONCE])
        inside, beside = (rows(first, first + len(lot)) for rows in (details, others))
        for key, matrix in zip(_BOUNDS, parts, strict=True):
            some = matrix[first : first + len(lot)].tolist()
            for interval, row in zip(lot, some, strict=True):
                interval[key] = dict(zip(CAUSES, row, strict=True))
        for interval in lot:
            number = interval["interval"]
            interval["details"] = inside.get(number, [])
            other = {str(o["stream"]): o["ns"] for o in beside.get(number, ())}
            interval["other_streams_ns"] = other
        yield lot


def _rows_of(
    intervals: pd.DataFrame, table: pd.DataFrame
) -> Callable[[int, int], dict[int, list[dict[str, Any]]]]:
    """Function of two positions: the rows of the intervals in between, by interval."""
    owner = positions(intervals, table)
    order = np.argsort(owner, kind="stable")
    owner = owner[order]

    def rows(first: int, last: int) -> dict[int, list[dict[str, Any]]]:
        some = table.iloc[order[np.searchsorted(owner, first) : np.searchsorted(owner, last)]]
        found: dict[int, list[dict[str, Any]]] = {}
        for row in records(some):
            found.setdefault(row.pop("interval"), []).append(row)
        return found

    return rows
