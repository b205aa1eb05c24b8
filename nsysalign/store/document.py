"""`analysis.json`: the result as one document (docs/design.md, section 6).

Segments and the timeline are not in it; they are in `analysis.db`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nsysalign import frames
from nsysalign.errors import AnalysisError
from nsysalign.files import replacing
from nsysalign.model import CAUSES, Analysis, TraceInfo
from nsysalign.parts import known_as, parts_matrices, positions
from nsysalign.store.objects import Records, encoded, frame, plain, records, trace_info
from nsysalign.untrusted import contents

if TYPE_CHECKING:
    import pandas as pd

FORMAT, VERSION = "nsysalign-analysis", 1
#: Intervals at once: their objects stay in the processor's cache until they are written.
_AT_ONCE = 512
_BOUNDS = {"parts_ns": "ns", "parts_lower_ns": "lower_ns", "parts_upper_ns": "upper_ns"}
#: "parts_ns" and its bounds: one row per interval, one column per cause.
_Budgets = Mapping[str, np.ndarray]
#: Tables that older files lack.
_LATER = (
    *(frames.VARIANTS, frames.KERNELS, frames.GAPS, frames.HOST_RANGES, frames.HOST_ACTIVITY),
    *(frames.CONFIRMATIONS, frames.GPU_CLOCKS),
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
    """The text of `document` in pieces: some hundred intervals are objects at a time."""
    budgets = _budgets(analysis)
    before, mark, after = encoded(_document(analysis, [], budgets)).partition(b'"intervals":[')
    yield before + mark
    for number, lot in enumerate(_intervals(analysis, budgets)):
        yield (b"," if number else b"") + encoded(lot)[1:-1]
    yield after


def document(analysis: Analysis) -> dict[str, Any]:
    """The document as plain Python objects."""
    budgets = _budgets(analysis)
    return _document(analysis, [i for lot in _intervals(analysis, budgets) for i in lot], budgets)


def _document(
    analysis: Analysis, intervals: list[dict[str, Any]], budgets: _Budgets
) -> dict[str, Any]:
    info = analysis.trace
    return {
        "format": FORMAT,
        "version": VERSION,
        "trace": plain({name: getattr(info, name) for name in TraceInfo.__dataclass_fields__}),
        "notes": plain(analysis.notes),
        "calibration": plain(analysis.calibration),
        "intervals": intervals,
        "unaligned": records(analysis.unaligned),
        "labels": _labels(analysis, budgets["parts_ns"]),
        **{spec.name: records(getattr(analysis, spec.name)) for spec in _LATER[:5]},
        "findings": _findings(analysis),
        "confirmations": records(analysis.confirmations),
        "gpu_clocks": records(analysis.gpu_clocks),
        "source_lines": dict(analysis.source_lines.itertuples(index=False)),
        "unprofiled": _unprofiled(analysis),
        "baseline": None if analysis.baseline.empty else {"labels": records(analysis.baseline)},
        **_marks(analysis),
    }


def _budgets(analysis: Analysis) -> _Budgets:
    return dict(zip(_BOUNDS, parts_matrices(analysis, tuple(_BOUNDS.values())), strict=True))


def _intervals(analysis: Analysis, budgets: _Budgets) -> Iterator[list[dict[str, Any]]]:
    """The objects of the intervals, some hundred at a time."""
    intervals, count = Records(analysis.intervals), len(analysis.intervals)
    details = _Inside(analysis.intervals, analysis.details)
    others = _Inside(analysis.intervals, analysis.other_streams)
    for first in range(0, count, _AT_ONCE):
        rows = slice(first, min(first + _AT_ONCE, count))
        lot = intervals.of(rows)
        for key, matrix in budgets.items():
            for interval, parts in zip(lot, matrix[rows].tolist(), strict=True):
                interval[key] = dict(zip(CAUSES, parts, strict=True))
        for interval, mine, streams in zip(lot, details.of(rows), others.of(rows), strict=True):
            interval["details"] = mine
            interval["other_streams_ns"] = {str(other["stream"]): other["ns"] for other in streams}
        yield lot


class _Inside:
    """The rows of a table by interval, in their order."""

    def __init__(self, intervals: pd.DataFrame, table: pd.DataFrame) -> None:
        owner = positions(intervals, table)
        self._records = Records(table.drop(columns="interval"))
        self._order = np.argsort(owner, kind="stable")[np.count_nonzero(owner < 0) :]
        self._end = np.cumsum(np.bincount(owner[owner >= 0], minlength=len(intervals)))

    def of(self, rows: slice) -> Iterator[list[dict[str, Any]]]:
        """Objects of some intervals that follow each other."""
        first = int(self._end[rows.start - 1]) if rows.start else 0
        ends = (self._end[rows] - first).tolist()
        mine = self._records.of(self._order[first : first + ends[-1]])
        return (mine[begin:end] for begin, end in pairwise([0, *ends]))


def _labels(analysis: Analysis, matrix: np.ndarray) -> list[dict[str, Any]]:
    labels = records(analysis.labels)
    codes = known_as(analysis.intervals["label"], [label["label"] for label in labels])
    sums = np.zeros((len(labels) + 1, len(CAUSES)), dtype=np.int64)
    np.add.at(sums, codes, matrix)  # code -1 (no such label) lands in the spare last row
    counts = np.bincount(codes[codes >= 0], minlength=len(labels))
    for number, label in enumerate(labels):
        label["elapsed"] = {name: label.pop(name) for name in _ELAPSED}
        means = sums[number] / max(int(counts[number]), 1)
        label["parts_mean_ns"] = dict(zip(CAUSES, means.tolist(), strict=True))
    return labels


def _findings(analysis: Analysis) -> list[dict[str, Any]]:
    """Findings, each with the result of a re-run: nothing counts as confirmed that was not tested."""
    from nsysalign.compare.confirmations import statuses

    return [
        {**finding, "confirmation": status._asdict()}
        for finding, status in zip(records(analysis.findings), statuses(analysis), strict=True)
    ]


def _unprofiled(analysis: Analysis) -> list[dict[str, Any]]:
    """What intervals would have measured without nsys, each with its budget, or why that is unknown."""
    intervals = records(analysis.unprofiled)
    by_number = {interval["interval"]: interval for interval in intervals}
    for interval in intervals:
        interval["parts_ns"] = {}
    for part in records(analysis.unprofiled_parts):
        by_number[part["interval"]]["parts_ns"][part["cause"]] = part["ns"]
    return intervals


def _marks(analysis: Analysis) -> dict[str, Any]:
    """What happened inside kernels, if anything was marked; the marks themselves are in `analysis.db`."""
    if analysis.marked_kernels.empty:
        return {}
    specs = (spec for spec in frames.MARKS_SPECS if spec is not frames.KERNEL_MARKS)
    return {spec.name: records(getattr(analysis, spec.name)) for spec in specs}


# --- reading ---


def load(path: str | os.PathLike[str]) -> Analysis:
    """The stored analysis, without segments and timeline.  Raises AnalysisError, which says what is wrong."""
    try:
        document = json.loads(contents(Path(path)).decode())
    except OSError as error:
        raise AnalysisError(
            f"{path}: {error.strerror or error}", "give the path of an analysis.json"
        ) from error
    except (ValueError, RecursionError) as error:
        raise AnalysisError(
            f"{path} is not JSON ({error})", "make it again: nsysalign analyze TRACE --json OUT"
        ) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise AnalysisError(
            f'{path} is not an analysis (no "format": "{FORMAT}")',
            "nsysalign analyze TRACE --json OUT",
        )
    if document.get("version") != VERSION:
        raise AnalysisError(
            f"{path} has version {document.get('version')}, this nsysalign reads {VERSION}",
            "make it again with this version: nsysalign analyze TRACE --json OUT",
        )
    try:
        return _analysis(document)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise AnalysisError(
            f"{path}: unexpected content ({error!r})", "nsysalign analyze TRACE --json OUT"
        ) from error


def _analysis(document: dict[str, Any]) -> Analysis:
    intervals = document["intervals"]
    parts = [
        {"interval": i["interval"], "cause": cause, "ns": ns, "lower_ns": lower, "upper_ns": upper}
        for i in intervals
        for cause in CAUSES
        if any(
            (
                ns := i["parts_ns"][cause],
                lower := i["parts_lower_ns"][cause],
                upper := i["parts_upper_ns"][cause],
            )
        )
    ]
    others = [
        {"interval": i["interval"], "stream": int(stream), "ns": ns}
        for i in intervals
        for stream, ns in i["other_streams_ns"].items()
    ]
    labels = [{**label, **label["elapsed"]} for label in document["labels"]]
    baseline = document.get("baseline") or {"labels": []}
    # Older files keep the predictions with the run without nsys.
    unprofiled = document.get("unprofiled", baseline.get("intervals", []))
    scaled = [
        {"interval": i["interval"], "cause": cause, "ns": ns}
        for i in unprofiled
        for cause, ns in i["parts_ns"].items()
    ]
    return Analysis(
        trace=trace_info(document["trace"]),
        intervals=frame(intervals, frames.INTERVALS),
        parts=frame(parts, frames.PARTS),
        segments=frames.empty(frames.SEGMENTS),
        details=frame(
            [{"interval": i["interval"], **d} for i in intervals for d in i["details"]],
            frames.DETAILS,
        ),
        other_streams=frame(others, frames.OTHER_STREAMS),
        labels=frame(labels, frames.LABELS),
        unaligned=frame(document["unaligned"], frames.UNALIGNED),
        findings=frame(document["findings"], frames.FINDINGS),
        timeline=frames.empty(frames.TIMELINE),
        notes=tuple(document.get("notes", ())),
        calibration=document.get("calibration", {}),
        source_lines=frame(
            [
                {"site": site, "text": text}
                for site, text in document.get("source_lines", {}).items()
            ],
            frames.SOURCE_LINES,
        ),
        baseline=frame(baseline["labels"], frames.BASELINE),
        unprofiled=frame(unprofiled, frames.UNPROFILED),
        unprofiled_parts=frame(scaled, frames.UNPROFILED_PARTS),
        **{
            spec.name: frame(document.get(spec.name, []), spec)
            for spec in (*_LATER, *frames.MARKS_SPECS)
        },
    )
