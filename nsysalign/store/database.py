"""`analysis.db`: the one stored form of an analysis, documented inside (sqlite-utils, Datasette).

The tables have the names and columns of `registry.specs`; tuples and dicts are JSON text.
`documentation` says what every column means, `meta` holds everything that is not a table.
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsysalign import frames, registry, untrusted
from nsysalign.causes import CAUSES
from nsysalign.errors import AnalysisError
from nsysalign.files import replacing
from nsysalign.model import RECORDERS, Analysis, Known, TraceInfo
from nsysalign.store.objects import holds, listed, plain, table, to_json

if TYPE_CHECKING:
    import pandas as pd

VERSION = 6
_AGAIN = "make it again: nsysalign analyze TRACE"
_LISTED_AT_ONCE = 5_000  # a row as Python objects takes ten times its size
_SQL_TYPES = {"str": str, "object": str, "float64": float}  # else int


def write(analysis: Analysis, path: str | os.PathLike[str]) -> None:
    """Write the database; the file appears whole or not at all."""
    try:
        with replacing(path) as temporary, closing(sqlite3.connect(temporary)) as connection:
            # No other process sees the temporary file: a journal and syncs would only cost time.
            connection.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF")
            _write(analysis, connection)
            connection.commit()
    except sqlite3.OperationalError as error:  # a full disk, as of any other file
        raise OSError(errno.EIO, str(error), os.fspath(path)) from error


def _write(analysis: Analysis, connection: sqlite3.Connection) -> None:
    """Write everything into an empty database: a table per `registry.specs`, and what it consists of."""
    import sqlite_utils

    database = sqlite_utils.Database(connection, execute_plugins=False)
    for spec in registry.specs():
        _write_table(database, spec, getattr(analysis, spec.name))
    database.table("intervals").create_index(["label"])
    documentation = [
        {"table_name": spec.name, "column_name": column, "dtype": dtype, "meaning": meaning}
        for spec in registry.specs()
        for column, dtype, meaning in [("", "table", spec.meaning), *spec.columns]
    ]
    database.table("documentation").insert_all(documentation, pk=("table_name", "column_name"))
    about = {
        "format": "nsysalign-analysis",
        "version": VERSION,
        "trace": vars(analysis.trace),
        "notes": analysis.notes,
        "known": vars(analysis.known),
    }
    meta = [{"key": key, "value": to_json(value)} for key, value in about.items()]
    database.table("meta").insert_all(meta, pk="key")
    # what most queries want, without a pivot
    ns_of_causes = ", ".join(
        f"coalesce(sum(p.ns) filter (where p.cause = '{cause}'), 0) as {cause}_ns"
        for cause in CAUSES
    )
    database.create_view(
        "budgets",
        "select i.interval, i.name, i.label, i.kind, i.site, i.elapsed_ns, i.kernel_only_ns, i.error_ns, i.start_ns, "
        f"{ns_of_causes}, u.predicted_ns as unprofiled_ns, u.lower_ns as unprofiled_lower_ns, "
        "u.upper_ns as unprofiled_upper_ns from intervals i left join parts p using (interval) "
        "left join unprofiled u using (interval) group by i.interval",
    )


def _write_table(database: Any, spec: frames.Spec, rows: pd.DataFrame) -> None:
    """Create one table with its keys, links and indices, and insert its rows.

    database: of sqlite_utils
    """
    stored = database.table(spec.name)
    stored.create(
        {column.name: _SQL_TYPES.get(column.dtype, int) for column in spec.columns},
        pk=spec.key or None,
        foreign_keys=[(column, table, column) for column, table in spec.links.items()],
    )
    for column in spec.links:
        if column not in spec.key:  # SQLite makes an index of a key
            stored.create_index([column])
    places = ", ".join("?" * len(spec.columns))
    insert = f'INSERT INTO "{spec.name}" VALUES ({places})'
    as_stored = {"str": _encodable, "object": to_json}  # by type of column; else as it is
    for first in range(0, len(rows), _LISTED_AT_ONCE):
        batch = rows.iloc[first : first + _LISTED_AT_ONCE]
        lists = [
            listed(batch[column.name], as_stored.get(column.dtype, plain))
            for column in spec.columns
        ]
        database.conn.executemany(insert, zip(*lists, strict=True))


def _encodable(text: str | None) -> str:
    """Lone surrogates (undecodable bytes of a path) cannot be stored as UTF-8; an absent text is
    ''."""
    return (text or "").encode("utf-8", "replace").decode("utf-8")


def load(path: str | os.PathLike[str]) -> Analysis:
    """The whole analysis back.  Never creates or changes the file.  Raises AnalysisError, which
    says what is wrong."""
    path = Path(path)
    try:
        expected = "an analysis.db"
        with untrusted.opened(path, AnalysisError, expected=expected, again=_AGAIN) as connection:
            analysis = _load(connection, path)
        problem = _problem(analysis)
    except (
        LookupError,
        ValueError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise AnalysisError(f"{path} is not an analysis ({error})", _AGAIN) from error
    if problem:
        text = f"{path.name} is inconsistent: {problem}; it was damaged or edited"
        raise AnalysisError(text, _AGAIN)
    return analysis


def _load(connection: sqlite3.Connection, path: Path) -> Analysis:
    """Return the analysis in a database, which anybody may have made.  Raises AnalysisError if it is none of this
    version; other errors say that it is damaged."""
    columns_of, not_tables = untrusted.tables(connection)

    def rows(name: str, columns: list[str]) -> list[tuple]:
        """Return the rows of a table, which must have these columns."""
        if name in not_tables:
            raise AnalysisError(
                f"{path} is not an analysis ({name} {not_tables[name]}, and should be a table)",
                _AGAIN,
            )
        if missing := sorted({*columns} - {*columns_of.get(name, ())}):
            lack = f"no column {missing[0]}" if name in columns_of else "no table of that name"
            raise AnalysisError(
                f"{path} is not an analysis of this version ({name}: {lack})",
                "analyze it again: nsysalign analyze TRACE",
            )
        return untrusted.rows(connection, name, columns)

    meta = {key: json.loads(value) for key, value in rows("meta", ["key", "value"])}
    if meta.get("version") != VERSION:
        raise AnalysisError(
            f"{path} has version {meta.get('version')}, this nsysalign reads {VERSION}", _AGAIN
        )
    tables = {}
    for spec in registry.specs():
        is_stored = spec.name in columns_of or spec.name in not_tables
        if spec.name in registry.tables() and not is_stored:
            continue  # written where that add-on was not there
        tables[spec.name] = _table(rows(spec.name, spec.names), spec)
    return Analysis(
        trace=TraceInfo(**{name: _tuples(value) for name, value in meta["trace"].items()}),
        notes=tuple(meta["notes"]),
        known=Known(**meta["known"]),
        **Analysis.as_fields(tables),
    )


def _table(rows: list[tuple], spec: frames.Spec) -> pd.DataFrame:
    """Return stored rows as the table that was written; tuples and dicts are JSON text in them."""
    lists = [[*column] for column in zip(*rows, strict=True)] or [[] for _ in spec.names]
    for position, column in enumerate(spec.columns):
        if column.dtype == "object":
            lists[position] = [json.loads(text) for text in lists[position]]
    return table(lists, spec)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _problem(analysis: Analysis) -> str:
    """What is wrong with a file from someone else, '' if nothing: it is shown only if its budgets
    add up, its tables belong together, and everything is what it is declared to be."""
    numbers = analysis.intervals["interval"]
    if not numbers.is_unique or (numbers < 0).any():
        return "two intervals have the same number"
    if not _holds_what_was_written(analysis):
        return "what it says beside the tables is not what was written"
    return _wrong_sum(analysis) or _wrong_row(analysis)


def _wrong_sum(analysis: Analysis) -> str:
    """Which sum does not add up, '' for none."""
    intervals, parts, segments = analysis.intervals, analysis.parts, analysis.segments
    if not (intervals["end_ns"] - intervals["start_ns"]).equals(intervals["elapsed_ns"]):
        return "a window does not have the length of its interval"
    if (parts["ns"] < 0).any():
        return "a part is negative"
    elapsed = intervals.set_index("interval")["elapsed_ns"]
    of_parts = parts["ns"].groupby(parts["interval"]).sum().reindex(elapsed.index, fill_value=0)
    if (of_parts != elapsed).any():
        return "the parts of an interval do not add up"
    pieces = (segments["end_ns"] - segments["start_ns"]).groupby(segments["interval"]).sum()
    if (pieces != elapsed.reindex(pieces.index)).any():
        return "the pieces of an interval do not add up"
    return ""


def _wrong_row(analysis: Analysis) -> str:
    """Which row belongs to nothing, or holds what its table cannot, '' for none."""
    labels, activity = analysis.labels, analysis.host_activity
    bars = analysis.unprofiled[["predicted_ns", "lower_ns", "upper_ns"]].isna()
    if (bars.any(axis=1) != bars.all(axis=1)).any():
        return "a prediction lacks an end of its error bar"
    if not labels["label"].is_unique or {*labels["label"]} != {*analysis.measured["label"]}:
        return "the labels are not those of the intervals"
    if not labels["row_interval"].isin(analysis.intervals["interval"]).all():
        return "a label's row is not among the intervals"
    if not analysis.groups["typical"].isin(analysis.intervals["interval"]).all():
        return "a group's typical interval is not among the intervals"
    if {*activity["label"]} != {*activity.loc[activity["view"] == "all", "label"]}:
        return "host_activity lacks what its shares are of"
    for spec in frames.ANALYSIS_SPECS:
        table = getattr(analysis, spec.name)
        for column, target in spec.links.items():
            if not table[column].isin(getattr(analysis, target)[column]).all():
                return f"{spec.name} names a row of {target} that is not there"
        for column, words in spec.words.items():
            if not {*table[column]} <= {*words}:
                return f"{spec.name}.{column} holds an unknown word"
    return ""


def _holds_what_was_written(analysis: Analysis) -> bool:
    """Whether what stands beside the tables is of the types that were written."""
    info, known = analysis.trace, analysis.known
    texts = [info.path, known.torch, known.python]
    texts += [t for t in (info.nsys_version, info.schema_version, info.driver_version) if t]
    begin_ns = info.session_start_utc_ns or 0
    return (
        holds(texts, list, str)
        and info.recorder in RECORDERS
        and all(
            holds(v, tuple, str) for v in (info.devices, info.missing, info.notes, info.reasons)
        )
        and holds(analysis.notes, tuple, str)
        and type(begin_ns) is int
        and 0 <= begin_ns < 1 << 62
        and all([*map(type, call)] == [str, int, int] for call in info.failed_calls)
        and {type(known.calls_without_work), type(known.issuing_without_work)} == {int}
        and type(known.exit_status) is int
    )
