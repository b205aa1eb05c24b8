"""`analysis.json`: the result as one document (design: section 6).

Segments and the timeline are not in it; they are in `analysis.db`. NaN does not exist in JSON: it
becomes null.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from nsysalign import frames
from nsysalign.errors import AnalysisError
from nsysalign.model import CAUSES, Analysis, TraceInfo
from nsysalign.report.files import replacing
from nsysalign.report.rows import parts_matrix

FORMAT, VERSION = "nsysalign-analysis", 1
_TIGHT = (",", ":")
_AT_ONCE = 4096
_BOUNDS = {"parts_ns": "ns", "parts_lower_ns": "lower_ns", "parts_upper_ns": "upper_ns"}
_ELAPSED = ("median_ns", "mean_ns", "std_ns", "min_ns", "max_ns", "p05_ns", "p95_ns")


def write(analysis: Analysis, path: str | os.PathLike[str]) -> None:
    """Write the document; the file appears whole or not at all."""
    with replacing(path) as temporary, temporary.open("w", encoding="ascii", newline="") as file:
        for piece in pieces(analysis):
            file.write(piece)


def dumps(analysis: Analysis) -> str:
    """The document as text.  ASCII only, so that no string of a trace can break an encoder."""
    return "".join(pieces(analysis))


def pieces(analysis: Analysis) -> Iterator[str]:
    """The text in pieces: `document`, whose intervals are spelled column by column instead of object by object."""
    rest = json.dumps(_document(analysis, intervals=[]), allow_nan=False, separators=_TIGHT)
    before, mark, after = rest.partition('"intervals":[')
    yield before + mark
    for number, lot in enumerate(_spelled_intervals(analysis)):
        yield ("," if number else "") + lot
    yield after


def document(analysis: Analysis) -> dict[str, Any]:
    """The document as plain Python objects."""
    return _document(analysis, _intervals(analysis))


def _document(analysis: Analysis, intervals: list[dict[str, Any]]) -> dict[str, Any]:
    info = analysis.trace
    return {
        "format": FORMAT,
        "version": VERSION,
        "trace": plain({name: getattr(info, name) for name in TraceInfo.__dataclass_fields__}),
        "notes": plain(analysis.notes),
        "calibration": plain(analysis.calibration),
        "intervals": intervals,
        "unaligned": records(analysis.unaligned),
        "labels": _labels(analysis),
        "findings": _findings(analysis),
        "confirmations": records(analysis.confirmations),
        "gpu_clocks": records(analysis.gpu_clocks),
        "baseline": _baseline(analysis),
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


def columns(frame) -> dict[str, list[Any]]:  # a pandas DataFrame
    """A table as lists of plain values, column by column: nothing is looked up row by row."""
    lists: dict[str, list[Any]] = {}
    for name in frame.columns:
        column = frame[name]
        if column.dtype == object:
            lists[name] = [[] if value == () else plain(value) for value in column]
        elif column.dtype.kind == "f":
            lists[name] = [value if math.isfinite(value) else None for value in column.tolist()]
        elif str(column.dtype) == "Int64":
            lists[name] = column.astype(object).where(column.notna(), None).tolist()
        elif str(column.dtype) == "str":
            lists[name] = texts(column)
        else:
            lists[name] = column.tolist()
    return lists


def texts(column, change: Callable[[str], Any] = str, missing: Any = None) -> list[Any]:  # of dtype str
    """A column of texts as a list, `change` applied once to each that occurs: most occur often."""
    import pandas as pd

    codes, found = pd.factorize(column)
    changed = [*map(change, found.tolist()), missing]  # code -1 is NA
    return [changed[code] for code in codes.tolist()]


def records(frame) -> list[dict[str, Any]]:  # a pandas DataFrame
    """A table as a list of objects."""
    lists = columns(frame)
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]


def _intervals(analysis: Analysis) -> list[dict[str, Any]]:
    intervals = records(analysis.intervals)
    for key, column in _BOUNDS.items():
        for interval, row in zip(intervals, parts_matrix(analysis, column).tolist(), strict=True):
            interval[key] = dict(zip(CAUSES, row, strict=True))
    by_number = {interval["interval"]: interval for interval in intervals}
    for interval in intervals:
        interval["details"], interval["other_streams_ns"] = [], {}
    for detail in records(analysis.details):
        by_number[detail.pop("interval")]["details"].append(detail)
    for other in records(analysis.other_streams):
        by_number[other["interval"]]["other_streams_ns"][str(other["stream"])] = other["ns"]
    return intervals


def _spelled_intervals(analysis: Analysis) -> Iterator[str]:
    """The objects of `_intervals` as text, comma between them, some thousands at a time."""
    intervals = analysis.intervals
    numbers = intervals["interval"].to_numpy()
    names = [n for n in analysis.details.columns if n != "interval"]
    of = analysis.details["interval"].to_numpy()
    by_interval = np.argsort(of, kind="stable")
    first_detail, end_detail = (
        np.searchsorted(of[by_interval], numbers, side=side) for side in ("left", "right")
    )
    others: dict[int, dict[str, int]] = {}
    for other in records(analysis.other_streams):
        others.setdefault(other["interval"], {})[str(other["stream"])] = other["ns"]
    matrices = {key: parts_matrix(analysis, column) for key, column in _BOUNDS.items()}
    budget = "{" + ",".join(f'"{cause}":%d' for cause in CAUSES) + "}"
    tail = "".join(f',"{key}":{budget}' for key in matrices) + ',"details":[%s],"other_streams_ns":%s}'
    for first in range(0, len(intervals), _AT_ONCE):
        rows = slice(first, first + _AT_ONCE)
        parts = np.concatenate([m[rows] for m in matrices.values()], axis=1).tolist()
        begin, end = first_detail[rows], end_detail[rows]
        mine = np.concatenate([by_interval[a:b] for a, b in zip(begin, end, strict=True)])
        details = iter(_objects(analysis.details[names].iloc[mine]))
        yield ",".join(
            head[:-1]
            + tail
            % (*part, ",".join(islice(details, count)), json.dumps(others.get(number, {}), separators=_TIGHT))
            for number, count, head, part in zip(
                numbers[rows].tolist(),
                (end - begin).tolist(),
                _objects(intervals.iloc[rows]),
                parts,
                strict=True,
            )
        )


def _objects(frame) -> Iterator[str]:  # a pandas DataFrame
    """The rows of a table as JSON objects."""
    spelled = [_spelled(frame[name]) for name in frame.columns]
    template = "{" + ",".join(json.dumps(name) + ":%s" for name in frame.columns) + "}"
    return (template % row for row in zip(*spelled, strict=True))


def _spelled(column) -> list[str]:  # a column of one
    """The values of a column as JSON."""
    if str(column.dtype) == "str":
        return texts(column, json.dumps, "null")
    if column.dtype.kind == "i" and column.dtype != "Int64":
        return list(map(str, column.tolist()))
    (values,) = columns(column.to_frame()).values()
    return [
        "[]" if value == [] else json.dumps(value, allow_nan=False, separators=_TIGHT) for value in values
    ]


def _labels(analysis: Analysis) -> list[dict[str, Any]]:
    labels = records(analysis.labels)
    codes, _ = _factorize(analysis.intervals["label"], [label["label"] for label in labels])
    matrix = parts_matrix(analysis)
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


def _factorize(values, order: list[str]) -> tuple[np.ndarray, Any]:
    import pandas as pd

    index = pd.Index(order)
    return index.get_indexer(values), index


# --- reading ---


def load(path: str | os.PathLike[str]) -> Analysis:
    """The analysis back, without segments and timeline.  AnalysisError says what is wrong."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
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
        notes=tuple(document.get("notes", ())),
        calibration=document.get("calibration", {}),
        gpu_clocks=frame(document.get("gpu_clocks", []), frames.GPU_CLOCKS),
        baseline=frame(baseline["labels"], frames.BASELINE),
        unprofiled=frame(baseline["intervals"], frames.UNPROFILED),
        unprofiled_parts=frame(scaled, frames.UNPROFILED_PARTS),
    )


def frame(rows: list[dict[str, Any]], spec: frames.Spec):  # -> pandas.DataFrame
    """Objects as a table with the declared columns."""
    import pandas as pd

    from nsysalign.report.restore import series

    table = pd.DataFrame({c.name: series([row[c.name] for row in rows], c.dtype) for c in spec.columns})
    return frames.check(table, spec)
