"""The tables of an nsys export, read-only and by declared names, as narrow integer columns."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from nsysalign import untrusted
from nsysalign.errors import TraceError
from nsysalign.frames import narrow
from nsysalign.intervals import INT32, index_type
from nsysalign.trace import schema
from nsysalign.trace.schema import Table

if TYPE_CHECKING:
    from nsysalign.trace.cupti import Recording

#: How a file of `trace.cupti` begins.
RECORDING = b"H\0\0\0\1\0\0\0"
#: How the product's version begins in traces of our own recorder, whatever file they are in: their clock is
#: CLOCK_MONOTONIC.
RECORDED_BY = "nsysalign, CUPTI "
AGAIN = "nsys export --type sqlite REPORT.nsys-rep"
Columns = dict[str, np.ndarray]
#: Bytes: C++ kernels have names of some kilobytes; the rest of a longer one is cut.
LONGEST_NAME = 16 << 10
#: Larger files are read at Arrow speed, where it is installed: three times as fast.
_WORTH_BYTES = 1 << 20
_BATCH_ROWS = 1 << 16
#: No row of an nsys table is shorter; more rows than that are pages that point at each other.
_BYTES_PER_ROW = 8


@contextmanager
def opened(path: Path) -> Iterator[Source | Recording]:
    """A guarded view of an export (`nsysalign.untrusted`), or a recording of our own; TraceError says
    what the file is instead."""
    head = b""
    with suppress(OSError):  # what is no file, or cannot be read, is named below
        head = untrusted.contents(path, len(RECORDING))
    if head == RECORDING:
        from nsysalign.trace.cupti import Recording

        yield Recording(path)
        return
    with untrusted.opened(
        path, TraceError, expected="an nsys SQLite export", again=AGAIN, longest_text=LONGEST_NAME
    ) as connection:
        yield Source(connection, path)


def lost_its_end(text: str) -> bool:
    """Whether a text was too long and cut."""
    return text.endswith("…") and len(text.encode("utf-8", "replace")) > LONGEST_NAME - 4


class Source:
    """One open export; `tables`: the columns of each of its tables.  One of ours without rows counts
    as absent: whether nsys writes it depends on an option (`--lazy`)."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.connection, self.path = connection, path
        tables, not_tables = untrusted.tables(connection)
        for name in sorted(schema.NAMES & not_tables.keys()):
            raise TraceError(
                f"{name} {not_tables[name]}, where nsys export writes a plain table: this file was made by something else",
                f"export the report again: {AGAIN}",
            )
        empty = [name for name in schema.NAMES & tables.keys() if not self._has_rows(name)]
        self.tables = {name: tables[name] for name in tables if name not in empty}

    def _has_rows(self, table: str) -> bool:
        return bool(self.connection.execute(f'select 1 from "{table}" limit 1').fetchall())

    def has(self, table: str, *columns: str) -> bool:
        """Whether it has the table, with these columns."""
        return table in self.tables and {*columns} <= {*self.tables[table]}

    def column(self, table: Table, name: str) -> str | None:
        """nsys's name of one of our columns, as this export has it; None where it has none."""
        (field,) = (f for f in table.fields if f.name == name)
        return next((c for c in field.candidates if self.has(table.name, c)), None)

    def columns_of(self, table: Table, where: str = "") -> Columns:
        """All rows, in the order of their numbers (`row`): a column that this version does not have
        holds its default; a missing needed one is a TraceError.  Each is as narrow as its values
        allow (`narrow`).  Without rows where the table is absent."""
        if table.name not in self.tables:
            return {
                name: np.empty(0, np.int64) for name in ("row", *(f.name for f in table.fields))
            }
        values, absent = {}, {}
        for field in table.fields:
            if (column := self.column(table, field.name)) is not None:
                default = -1 if field.default is None else field.default
                values[field.name] = f'coalesce("{column}", {default})'
            elif field.default is None:
                raise TraceError(
                    f"{table.name} has no column {' or '.join(field.candidates)}: not an nsys export this version knows",
                    AGAIN,
                )
            else:
                absent[field.name] = field.default
        conditions = " and ".join(filter(None, (table.where, where)))
        # an index with all the columns would have another order
        rows = f'from "{table.name}" not indexed' + (f" where {conditions}" if conditions else "")
        columns: Columns | None = None
        if self.path.stat().st_size >= _WORTH_BYTES and not conditions:
            try:
                columns = self._at_arrow_speed(values, rows)
            except Exception:  # it is not installed, or stumbles: the other way says over what
                columns = None
        if columns is None:
            all_values = {"row": "rowid", **values}
            sql = f"select {', '.join(all_values.values())} {rows}"
            columns = self._gathered([*all_values], self._batches(table.name, sql, len(all_values)))
        count = len(columns["row"])
        return columns | {n: np.broadcast_to(np.int64(v), count) for n, v in absent.items()}

    def _at_arrow_speed(self, values: Mapping[str, str], rows: str) -> Columns:
        """All of a table, of which no value is read in vain: not those of a column that holds only
        one, and no numbers of rows that have no gaps."""
        constant = self._of_one_value(values, rows)
        read = {name: sql for name, sql in values.items() if name not in constant} or dict(values)
        sql = f"select {', '.join(read.values())} {rows}"
        columns = self._gathered([*read], _arrow_batches(self.path, sql))
        count = len(columns[next(iter(read))])
        columns |= {
            name: np.broadcast_to(np.int64(value), count) for name, value in constant.items()
        }
        ends = f"select (select min(rowid) {rows}), (select max(rowid) {rows})"
        first, last = self.connection.execute(ends).fetchone()
        if count and last - first + 1 == count:
            return {"row": np.arange(first, last + 1, dtype=index_type(last))} | columns
        return self._gathered(["row"], _arrow_batches(self.path, f"select rowid {rows}")) | columns

    def _of_one_value(self, values: Mapping[str, str], rows: str) -> dict[str, int]:
        """The columns that hold the same number in every row; what differs in one row is not looked
        at in those behind it."""
        constant: dict[str, int | None] = dict.fromkeys(n for n in values if not n.endswith("_ns"))
        row, differs = -1 << 63, ""  # numbers of rows may be negative
        while constant:
            sql = f"select rowid, {', '.join(values[name] for name in constant)} {rows} where rowid > {row}{differs} limit 1"
            first = self.connection.execute(sql).fetchone()
            if first is None:
                break
            row, *now = first
            known = zip(constant.items(), now, strict=True)
            constant = {n: v for (n, old), v in known if type(v) is int and old in (None, v)}
            differs = (
                f" and ({' or '.join(f'{values[n]} is not {v}' for n, v in constant.items())})"
            )
        return {name: value for name, value in constant.items() if value is not None}

    def _gathered(self, names: Sequence[str], batches: Iterable[Iterable[np.ndarray]]) -> Columns:
        """Columns that grow in place while they are read, never wider than their values need."""
        columns = {n: np.empty(0, np.int64 if n.endswith("_ns") else np.int32) for n in names}
        left = self.path.stat().st_size // _BYTES_PER_ROW
        for batch in batches:
            for name, part in zip(names, batch, strict=True):
                values = columns[name]
                if part.min() < INT32.min or part.max() > INT32.max:
                    values = columns[name] = values.astype(np.int64, copy=False)
                values.resize(len(values) + len(part), refcheck=False)
                values[-len(part) :] = part
            left -= len(part)
            if left < 0:
                raise sqlite3.DatabaseError("it holds more rows than a file of its size can")
        return {name: narrow(columns.pop(name), name) for name in names}

    def _batches(self, table: str, sql: str, count: int) -> Iterator[np.ndarray]:
        values = chain.from_iterable(self.connection.execute(sql))
        while True:
            try:
                batch = np.fromiter(islice(values, count * _BATCH_ROWS), np.int64)
            except (ValueError, TypeError, OverflowError) as error:
                raise TraceError(
                    f"{table}: a column of numbers holds something else ({error})",
                    "export the report again",
                ) from error
            if not len(batch):
                return
            yield batch.reshape(-1, count).T

    def read(self, table: Table, where: str = "") -> pd.DataFrame:
        """The same as int64 columns of a table."""
        columns = self.columns_of(table, where)
        wide = {name: values.astype(np.int64) for name, values in columns.items()}
        return pd.DataFrame(wide, copy=False)

    def texts(self, table: Table, column: str) -> dict[int, str]:
        """rowid -> text of the rows that carry the text inline."""
        if not self.has(table.name, column):
            return {}
        where = f" where {table.where}" if table.where else ""
        sql = f'select rowid, cast("{column}" as text) from "{table.name}" not indexed{where}'
        return {row: text for row, text in self.connection.execute(sql) if text is not None}

    def strings(self) -> dict[int, str]:
        """StringIds as a dict."""
        if not self.has("StringIds", "id", "value"):
            return {}
        # not `where value is not null`: SQLite believes a column that is declared so, damaged or not
        entries = self.connection.execute("select id, cast(value as text) from StringIds")
        return {number: text for number, text in entries if text is not None}

    def rows(self, table: str, *columns: str) -> list[tuple]:
        """Columns of a small table as they are, [] where it or one of them is absent."""
        if not self.has(table, *columns):
            return []
        return untrusted.rows(self.connection, table, columns)


def _arrow_batches(path: Path, sql: str) -> Iterator[list[np.ndarray]]:
    """Batches of integer columns at Arrow speed, each good until the next, from a file at which
    `untrusted.opened` has looked; raises whatever it stumbles over."""
    import adbc_driver_manager as adbc
    import adbc_driver_sqlite
    import nanoarrow

    uri = path.resolve().as_uri() + "?mode=ro&immutable=1"
    with adbc_driver_sqlite.connect(uri) as database, adbc.AdbcConnection(database) as connection:
        for pragma in ("query_only = on", "trusted_schema = off", "cell_size_check = on"):
            with adbc.AdbcStatement(connection) as statement:
                statement.set_sql_query(f"pragma {pragma}")
                statement.execute_update()
        with adbc.AdbcStatement(connection) as statement:
            statement.set_options(**{"adbc.sqlite.query.batch_rows": str(_BATCH_ROWS)})
            statement.set_sql_query(sql)
            with nanoarrow.c_array_stream(statement.execute_query()[0]) as stream:
                for batch in filter(len, stream):  # what has no rows has no types either
                    columns = [batch.child(n) for n in range(batch.n_children)]
                    if any(c.schema.format != "l" or c.view().null_count for c in columns):
                        raise ValueError("something else than whole numbers")
                    yield [np.asarray(c.view().buffer(1))[: len(c)] for c in columns]


def taken(columns: Mapping[str, np.ndarray], rows: np.ndarray) -> Columns:
    """The rows of a table that a mask or positions select; a column of one value still takes no
    memory."""
    count = int(rows.sum()) if rows.dtype == bool else len(rows)
    return {
        name: values[rows] if any(values.strides) else np.broadcast_to(values[:1], count)
        for name, values in columns.items()
    }
