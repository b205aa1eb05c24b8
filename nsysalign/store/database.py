"""`analysis.db`: the tables of the analysis in SQLite, documented inside (sqlite-utils, Datasette).

The tables have the names and columns of `frames.ANALYSIS_SPECS`; tuples and dicts are JSON text.
`documentation` says what every column means, `meta` holds everything that is not a table.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsysalign import frames, untrusted
from nsysalign.errors import AnalysisError
from nsysalign.files import replacing, write_text
from nsysalign.model import CAUSES, Analysis, TraceInfo
from nsysalign.store.objects import Listed, as_lists, plain, series, to_json, trace_info

if TYPE_CHECKING:
    import pandas as pd

VERSION = 1
_LONGEST_TEXT = 1 << 20  # of what is stored here: notes and evidence are a few kilobytes
_LISTED_AT_ONCE = 5_000
#: Rows per insert statement, and the number of values that SQLite before 3.32 allows in one.
_MOST_ROWS, _MOST_VARIABLES = 100, 999
#: The columns that identify a row, for tables that have such columns.
_KEYS = {
    "intervals": "interval",
    "parts": ("interval", "cause"),
    "other_streams": ("interval", "stream"),
    "labels": "label",
    "baseline": "label",
    "unprofiled": "interval",
    "unprofiled_parts": ("interval", "cause"),
    "marked_kernels": "kernel",
}
#: Tables that version 1 did not have from the beginning: a file without them is old, not broken.
_LATER = (
    frames.VARIANTS,
    frames.KERNELS,
    frames.GAPS,
    frames.HOST_RANGES,
    frames.HOST_ACTIVITY,
    frames.SOURCE_LINES,
    frames.GPU_CLOCKS,
    frames.CONFIRMATIONS,
    *frames.BASELINE_SPECS,
    *frames.MARKS_SPECS,
)
#: Tables whose `interval` is a row of `intervals`: Datasette makes links of them.
_OF_INTERVALS = (
    "parts",
    "segments",
    "details",
    "other_streams",
    "timeline",
    "unprofiled",
    "unprofiled_parts",
)
_SQL_TYPES = {
    "int8": int,
    "int64": int,
    "Int64": int,
    "bool": int,
    "float64": float,
    "str": str,
    "object": str,
}


def write(analysis: Analysis, path: str | os.PathLike[str]) -> None:
    """Write the database; the file appears whole or not at all."""
    import sqlite_utils

    with replacing(path) as temporary, closing(sqlite3.connect(temporary)) as connection:
        # No other process sees the temporary file, so a journal and syncs would only cost time.
        connection.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF")
        database = sqlite_utils.Database(connection, execute_plugins=False)
        for spec in frames.ANALYSIS_SPECS:
            database.table(spec.name).create(
                {c.name: _SQL_TYPES[c.dtype] for c in spec.columns},
                pk=_KEYS.get(spec.name),
                foreign_keys=[("interval", "intervals", "interval")]
                if spec.name in _OF_INTERVALS
                else None,
            )
            _insert(connection, spec, getattr(analysis, spec.name))
        _index(database)
        _document(database)
        _meta(database, analysis)
        _views(database)
        connection.commit()
    write_text(
        metadata_path(path),
        json.dumps({"databases": {Path(path).stem: metadata(analysis)}}, indent=1) + "\n",
    )


def metadata_path(path: str | os.PathLike[str]) -> Path:
    """Where Datasette's metadata goes: analysis.db -> analysis.metadata.json."""
    return Path(path).with_suffix(".metadata.json")


def metadata(analysis: Analysis) -> dict[str, Any]:
    """What Datasette shows in addition to the tables: `datasette analysis.db --metadata analysis.metadata.json`."""
    tables = {
        spec.name: {
            "description": spec.meaning,
            "columns": {column.name: column.meaning for column in spec.columns},
            **({"label_column": "name"} if spec.name == "intervals" else {}),
            **({"sort_desc": "elapsed_ns"} if spec.name == "intervals" else {}),
        }
        for spec in frames.ANALYSIS_SPECS
    }
    tables["budgets"] = {
        "description": "one row per interval, one column per cause: they add up to elapsed_ns; unprofiled_ns: predicted without nsys"
    }
    queries = {
        "labels_by_lost_time": {
            "title": "Where no kernel runs, label by label",
            "sql": "select label, count(*) as intervals, avg(elapsed_ns) / 1e3 as mean_us, avg(kernel_only_ns) / 1e3 as kernel_us, "
            "avg(elapsed_ns - kernel_only_ns) / 1e3 as without_kernel_us from intervals group by label order by 5 desc",
        },
        "pieces_of_interval": {
            "title": "The pieces of one interval, in order",
            "sql": "select (s.start_ns - i.start_ns) / 1e3 as at_us, (s.end_ns - s.start_ns) / 1e3 as us, s.cause, s.detail "
            "from segments s join intervals i using (interval) where i.name = :name order by s.start_ns",
        },
    }
    return {
        "title": "nsysalign: where the time of CUDA event intervals went",
        "description": f"{len(analysis.measured)} intervals in {len(analysis.labels)} labels; times are nanoseconds",
        "tables": tables,
        "queries": queries,
    }


def _views(database: Any) -> None:
    """`budgets`: what most queries want, without a pivot."""
    sums = ", ".join(
        f"coalesce(sum(p.ns) filter (where p.cause = '{cause}'), 0) as {cause}_ns"
        for cause in CAUSES
    )
    keys = "i.interval, i.name, i.label, i.kind, i.site, i.elapsed_ns, i.kernel_only_ns, i.error_ns, i.start_ns"
    database.create_view(
        "budgets",
        f"select {keys}, {sums}, u.predicted_ns as unprofiled_ns, u.lower_ns as unprofiled_lower_ns, "
        "u.upper_ns as unprofiled_upper_ns from intervals i left join parts p using (interval) "
        "left join unprofiled u using (interval) group by i.interval",
    )


def _insert(connection: sqlite3.Connection, spec: frames.Spec, frame: pd.DataFrame) -> None:
    """Rows in their order, many with each statement: SQLite spends more on beginning one than on a row."""
    if frame.empty:
        return
    storable = {"str": _encodable, "object": to_json}
    columns = as_lists(
        frame[spec.names], {c.name: storable.get(c.dtype, plain) for c in spec.columns}
    )
    marks: list[str] = []
    bound: list[Listed] = []
    for name, column in columns.items():
        literal = (
            _literal(column) if bound or name != spec.names[-1] else None
        )  # one at least is bound
        marks.append(literal or "?")
        bound += [column] if literal is None else []
    head = f'INSERT INTO "{spec.name}" ({", ".join(map(_quoted, spec.names))}) VALUES '
    row, width = f"({','.join(marks)})", len(bound)
    together = min(_MOST_ROWS, _MOST_VARIABLES // width)
    for first in range(
        0, len(frame), _LISTED_AT_ONCE
    ):  # a row as Python objects takes ten times its size
        lists = [column.rows(slice(first, first + _LISTED_AT_ONCE)) for column in bound]
        values: list[Any] = [None] * (width * len(lists[0]))
        for position, column_values in enumerate(lists):
            values[position::width] = column_values
        lots = [
            values[at : at + together * width] for at in range(0, len(values), together * width)
        ]
        rest = lots.pop() if lots and len(lots[-1]) < together * width else []
        connection.executemany(head + ",".join([row] * together), lots)
        if rest:
            connection.execute(head + ",".join([row] * (len(rest) // width)), rest)


def _literal(column: Listed) -> str | None:
    """The SQL of what every row of a column has, if it is a number or nothing; foreign text is never part of SQL."""
    if not column.constant:
        return None
    (value,) = column.values
    if isinstance(value, int):
        return str(int(value))
    return {None: "NULL", "": "''", "[]": "'[]'"}.get(value)


def _quoted(name: str) -> str:
    return f'"{name}"'


def _encodable(text: str | None) -> str | None:
    """Lone surrogates (undecodable bytes of a path) cannot be stored as UTF-8."""
    if text is None or text.isascii():
        return text
    return text.encode("utf-8", "replace").decode("utf-8")


def _index(database: Any) -> None:
    for name in ("segments", "details", "timeline"):
        database[name].create_index(["interval"])
    database["intervals"].create_index(["label"])


def _document(database: Any) -> None:
    rows = [
        {"table_name": spec.name, "column_name": column, "dtype": dtype, "meaning": meaning}
        for spec in frames.ANALYSIS_SPECS
        for column, dtype, meaning in [("", "table", spec.meaning), *spec.columns]
    ]
    database["documentation"].insert_all(rows, pk=("table_name", "column_name"))


def _meta(database: Any, analysis: Analysis) -> None:
    values = {
        "format": "nsysalign-analysis",
        "version": VERSION,
        "trace": {name: getattr(analysis.trace, name) for name in TraceInfo.__dataclass_fields__},
        "notes": analysis.notes,
        "calibration": analysis.calibration,
    }
    database["meta"].insert_all(
        [{"key": key, "value": to_json(value)} for key, value in values.items()],
        pk="key",
    )


# --- reading ---


def load(path: str | os.PathLike[str]) -> Analysis:
    """The whole analysis back.  Never creates or changes the file.  Raises AnalysisError, which says what is wrong."""
    again = "make one: nsysalign analyze TRACE"
    try:
        with untrusted.opened(
            Path(path), AnalysisError, expected="an analysis.db", again=again
        ) as connection:
            names = {"meta", *(spec.name for spec in frames.ANALYSIS_SPECS)}
            for name, what in untrusted.unlike_tables(connection, names).items():
                raise AnalysisError(
                    f"{path} is not an analysis ({name} {what}, and should be a table)", again
                )
            there, later = untrusted.ordinary_tables(connection), {spec.name for spec in _LATER}
            for name in sorted(names - there - later):
                raise AnalysisError(f"{path} is not an analysis (it has no table {name})", again)
            size = Path(path).stat().st_size
            with untrusted.long_values(connection, _LONGEST_TEXT):
                meta = {
                    key: json.loads(value)
                    for key, value in _rows(connection, "meta", ["key", "value"], size)
                }
                if meta.get("version") != VERSION:
                    raise AnalysisError(
                        f"{path} has version {meta.get('version')}, this nsysalign reads {VERSION}",
                        "make it again with this version: nsysalign analyze TRACE",
                    )
                read = {
                    spec.name: _read(connection, spec, size)
                    if spec.name in there
                    else frames.empty(spec)
                    for spec in frames.ANALYSIS_SPECS
                }
        return Analysis(
            trace=trace_info(meta["trace"]),
            notes=tuple(meta["notes"]),
            calibration=meta["calibration"],
            **read,
        )
    except (
        KeyError,
        ValueError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise AnalysisError(f"{path} is not an analysis ({error})", again) from error


def _rows(
    connection: sqlite3.Connection, table: str, names: Sequence[str], size: int
) -> Iterator[tuple]:
    listed = ", ".join(map(_quoted, names))
    return untrusted.rows(connection, f'SELECT {listed} FROM "{table}" ORDER BY rowid', size)


def _read(connection: sqlite3.Connection, spec: frames.Spec, size: int) -> pd.DataFrame:
    import pandas as pd

    described = connection.execute(f"SELECT * FROM {_quoted(spec.name)} LIMIT 0").description
    there = {name for name, *_ in described}
    names = [n for n in spec.names if n in there or (spec.name, n) not in frames.LATER_COLUMNS]
    rows = list(_rows(connection, spec.name, names, size))
    read = dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else {}
    instead = [[frames.LATER_COLUMNS.get((spec.name, name))] * len(rows) for name in spec.names]
    lists = [list(read.get(name, other)) for name, other in zip(spec.names, instead, strict=True)]
    for position, column in enumerate(spec.columns):
        if column.dtype == "object":
            lists[position] = [json.loads(value) for value in lists[position]]
    table = pd.DataFrame(
        {c.name: series(values, c.dtype) for c, values in zip(spec.columns, lists, strict=True)}
    )
    return frames.check(table, spec)
