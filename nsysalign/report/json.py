"""`analysis.json`: the result as one document (design: section 6).

Segments and the timeline are not in it; they are in `analysis.db`. NaN does not exist in JSON: it
becomes null.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nsysalign import frames
from nsysalign.errors import AnalysisError
from nsysalign.model import CAUSES, Analysis, TraceInfo
from nsysalign.report import spelled
from nsysalign.report.files import replacing
from nsysalign.report.listed import listed, numbers
from nsysalign.report.rows import known_as, parts_matrices, positions
from nsysalign.untrusted import contents

FORMAT, VERSION = "nsysalign-analysis", 1
#: Intervals: their text stays in the processor's cache on its way to the file.
_AT_ONCE = 512
_BOUNDS = {"parts_ns": "ns", "parts_lower_ns": "lower_ns", "parts_upper_ns": "upper_ns"}
#: What `json.dumps` makes anew for every call with such options.
_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
#: "parts_ns" and its bounds: one row per interval, one column per cause.
_Budgets = Mapping[str, np.ndarray]
_ELAPSED = ("median_ns", "mean_ns", "std_ns", "min_ns", "max_ns", "p05_ns", "p95_ns")


def write(analysis: Analysis, path: str | os.PathLike[str]) -> None:
    """Write the document; the file appears whole or not at all."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        for piece in pieces(analysis):
            file.write(piece.encode("ascii"))


def dumps(analysis: Analysis) -> str:
    """The document as text.  ASCII only, so that no string of a trace can break an encoder."""
    return "".join(pieces(analysis))


def pieces(analysis: Analysis) -> Iterator[str]:
    """The text in pieces: `document`, whose intervals are spelled column by column instead of object by object."""
    budgets = _budgets(analysis)
    before, mark, after = _encode(_document(analysis, [], budgets)).partition('"intervals":[')
    yield before + mark
    for number, lot in enumerate(_spelled_intervals(analysis, budgets)):
        yield ("," if number else "") + lot
    yield after


def document(analysis: Analysis) -> dict[str, Any]:
    """The document as plain Python objects."""
    budgets = _budgets(analysis)
    return _document(analysis, _intervals(analysis, budgets), budgets)


def _document(analysis: Analysis, intervals: list[dict[str, Any]], budgets: _Budgets) -> dict[str, Any]:
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
        "kernels": records(analysis.kernels),
        "gaps": records(analysis.gaps),
        "findings": _findings(analysis),
        "confirmations": records(analysis.confirmations),
        "gpu_clocks": records(analysis.gpu_clocks),
        "baseline": _baseline(analysis),
        **_marks(analysis),
    }


def plain(value: Any) -> Any:
    """Any nest of mappings, sequences and numbers as what JSON knows; NaN, NA and infinity as None."""
    if isinstance(value, (str, bool)) or value is None:
        return value
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, (Iterable,)):
        return [plain(item) for item in value]
    return None if value != value else str(value)


def records(frame) -> list[dict[str, Any]]:  # a pandas DataFrame
    """A table as a list of objects."""
    lists = [column.rows(slice(None)) for column in listed(frame, plain).values()]
    return [dict(zip(frame.columns, row, strict=True)) for row in zip(*lists, strict=True)]


def _budgets(analysis: Analysis) -> _Budgets:
    return dict(zip(_BOUNDS, parts_matrices(analysis, tuple(_BOUNDS.values())), strict=True))


def _intervals(analysis: Analysis, budgets: _Budgets) -> list[dict[str, Any]]:
    intervals = records(analysis.intervals)
    for key, matrix in budgets.items():
        for interval, row in zip(intervals, matrix.tolist(), strict=True):
            interval[key] = dict(zip(CAUSES, row, strict=True))
    by_number = {interval["interval"]: interval for interval in intervals}
    for interval in intervals:
        interval["details"], interval["other_streams_ns"] = [], {}
    for detail in records(analysis.details):
        by_number[detail.pop("interval")]["details"].append(detail)
    for other in records(analysis.other_streams):
        by_number[other["interval"]]["other_streams_ns"][str(other["stream"])] = other["ns"]
    return intervals


def _spelled_intervals(analysis: Analysis, budgets: _Budgets) -> Iterator[str]:
    """The objects of `_intervals` as text, comma between them, some hundreds at a time."""
    spell = lambda value: _encode(plain(value))  # noqa: E731
    template, columns = spelled.template(listed(analysis.intervals, spell))
    for key, matrix in budgets.items():
        causes = zip(CAUSES, map(numbers, np.ascontiguousarray(matrix.T)), strict=True)
        budget, varying = spelled.template(dict(causes))
        template, columns = f'{template[:-1]},"{key}":{budget}}}', columns + varying
    template = template[:-1] + ',"details":[%s],"other_streams_ns":{%s}}'
    details, others = listed(analysis.details, spell), listed(analysis.other_streams, spell)
    del details["interval"]
    inside = (
        (analysis.details, *spelled.template(details)),
        (analysis.other_streams, '"%s":%s', [others["stream"], others["ns"]]),
    )
    nested = [
        spelled.Nested(positions(analysis.intervals, table), len(analysis.intervals), text, varying)
        for table, text, varying in inside
    ]
    for first in range(0, len(analysis.intervals), _AT_ONCE):
        rows = slice(first, first + _AT_ONCE)
        lists = [column.rows(rows) for column in columns]
        yield ",".join(map(template.__mod__, zip(*lists, *(n.texts(rows) for n in nested), strict=True)))


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
    """Findings, each with what a re-run said about it: nothing is confirmed that was not put to the test."""
    from nsysalign.report.confirmations import statuses

    return [
        {**finding, "confirmation": status._asdict()}
        for finding, status in zip(records(analysis.findings), statuses(analysis), strict=True)
    ]


def _baseline(analysis: Analysis) -> dict[str, Any] | None:
    """The run without nsys: labels side by side, and the replayed intervals with their budget; null where there was none."""
    if analysis.baseline.empty and analysis.unprofiled.empty:
        return None
    intervals = records(analysis.unprofiled)
    by_number = {interval["interval"]: interval for interval in intervals}
    for interval in intervals:
        interval["parts_ns"] = {}
    for part in records(analysis.unprofiled_parts):
        by_number[part["interval"]]["parts_ns"][part["cause"]] = part["ns"]
    return {"labels": records(analysis.baseline), "intervals": intervals}


def _marks(analysis: Analysis) -> dict[str, Any]:
    """What happened inside kernels, where anything was marked; the marks themselves are in `analysis.db`."""
    if analysis.marked_kernels.empty:
        return {}
    specs = (spec for spec in frames.MARKS_SPECS if spec is not frames.KERNEL_MARKS)
    return {spec.name: records(getattr(analysis, spec.name)) for spec in specs}


# --- reading ---


def load(path: str | os.PathLike[str]) -> Analysis:
    """The analysis back, without segments and timeline.  AnalysisError says what is wrong."""
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
            f'{path} is not an analysis (no "format": "{FORMAT}")', "nsysalign analyze TRACE --json OUT"
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
    info = {k: tuple(v) if isinstance(v, list) else v for k, v in document["trace"].items()}
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
    baseline = document.get("baseline") or {"labels": [], "intervals": []}
    scaled = [
        {"interval": i["interval"], "cause": cause, "ns": ns}
        for i in baseline["intervals"]
        for cause, ns in i["parts_ns"].items()
    ]
    return Analysis(
        trace=TraceInfo(**{name: info[name] for name in TraceInfo.__dataclass_fields__ if name in info}),
        intervals=frame(intervals, frames.INTERVALS),
        parts=frame(parts, frames.PARTS),
        segments=frames.empty(frames.SEGMENTS),
        details=frame(
            [{"interval": i["interval"], **d} for i in intervals for d in i["details"]], frames.DETAILS
        ),
        other_streams=frame(others, frames.OTHER_STREAMS),
        labels=frame(labels, frames.LABELS),
        unaligned=frame(document["unaligned"], frames.UNALIGNED),
        findings=frame(document["findings"], frames.FINDINGS),
        timeline=frames.empty(frames.TIMELINE),
        confirmations=frame(document.get("confirmations", []), frames.CONFIRMATIONS),
        kernels=frame(document.get("kernels", []), frames.KERNELS),
        gaps=frame(document.get("gaps", []), frames.GAPS),
        notes=tuple(document.get("notes", ())),
        calibration=document.get("calibration", {}),
        gpu_clocks=frame(document.get("gpu_clocks", []), frames.GPU_CLOCKS),
        baseline=frame(baseline["labels"], frames.BASELINE),
        unprofiled=frame(baseline["intervals"], frames.UNPROFILED),
        unprofiled_parts=frame(scaled, frames.UNPROFILED_PARTS),
        **{spec.name: frame(document.get(spec.name, []), spec) for spec in frames.MARKS_SPECS},
    )


def frame(rows: list[dict[str, Any]], spec: frames.Spec):  # -> pandas.DataFrame
    """Objects as a table with the declared columns."""
    import pandas as pd

    from nsysalign.report.restore import series

    table = pd.DataFrame({c.name: series([row[c.name] for row in rows], c.dtype) for c in spec.columns})
    return frames.check(table, spec)
