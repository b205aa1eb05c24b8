"""`analysis.json`: the analysis as one document (docs/design.md, section 6), for other programs: it
is not read back.

Segments and the timeline are not in it; they are in `analysis.db`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from nsysalign import frames, registry
from nsysalign.explain.finding import statuses
from nsysalign.files import replacing
from nsysalign.model import CAUSES, Analysis
from nsysalign.parts import matrices, positions
from nsysalign.store.objects import plain, records, to_json

FORMAT, VERSION = "nsysalign-analysis", 1
#: Intervals at once: a row as Python objects takes ten times its size.
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
    intervals = analysis.intervals
    parts = matrices(intervals, analysis.parts, tuple(_BOUNDS.values()))
    before, mark, after = to_json(_but_intervals(analysis, parts[0])).partition('"intervals":[')
    yield (before + mark).encode()
    further = []  # (table by the position of its interval, these positions)
    for table in (analysis.details, analysis.other_streams):
        owner = positions(intervals, table)
        order = np.argsort(owner, kind="stable")
        further.append((table.iloc[order], owner[order]))
    for first in range(0, len(intervals), _AT_ONCE):
        lot = records(intervals.iloc[first : first + _AT_ONCE])
        for place, interval in enumerate(lot):
            for key, matrix in zip(_BOUNDS, parts, strict=True):
                values = matrix[first + place].tolist()
                interval[key] = dict(zip(CAUSES, values, strict=True))
            interval["details"], interval["other_streams_ns"] = [], {}
        inside, beside = (
            records(table.iloc[np.searchsorted(owner, first) : np.searchsorted(owner, first + len(lot))])
            for table, owner in further
        )  # fmt: skip
        by_number = {interval["interval"]: interval for interval in lot}
        for detail in inside:
            by_number[detail.pop("interval")]["details"].append(detail)
        for other in beside:
            others = by_number[other["interval"]]["other_streams_ns"]
            others[str(other["stream"])] = other["ns"]
        yield ("," * bool(first) + to_json(lot)[1:-1]).encode()
    yield after.encode()


def _but_intervals(analysis: Analysis, parts: np.ndarray) -> dict[str, Any]:
    """The document with an empty list of intervals; `parts`: ns by interval and cause."""
    labels, label_of = records(analysis.labels), analysis.intervals["label"].to_numpy()
    for label in labels:
        label["elapsed"] = {name: label.pop(name) for name in _ELAPSED}
        own = parts[label_of == label["label"]]
        means = own.sum(axis=0) / max(len(own), 1)
        label["parts_mean_ns"] = dict(zip(CAUSES, means.tolist(), strict=True))
    unprofiled = {u["interval"]: u | {"parts_ns": {}} for u in records(analysis.unprofiled)}
    for part in records(analysis.unprofiled_parts):
        unprofiled[part["interval"]]["parts_ns"][part["cause"]] = part["ns"]
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
        "unprofiled": list(unprofiled.values()),
        "baseline": None if analysis.baseline.empty else {"labels": records(analysis.baseline)},
        **{name: records(table) for name, table in extra.items()},
    }
