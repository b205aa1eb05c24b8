"""Reading columns out of an nsys export: read-only, by declared names, straight into integer
arrays."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign import untrusted
from nsysalign.errors import TraceError
from nsysalign.memory import together
from nsysalign.trace import fast, schema
from nsysalign.trace.gathered import Gathered
from nsysalign.trace.schema import Table

AGAIN = "nsys export --type sqlite REPORT.nsys-rep"
_CHUNK = untrusted.ROWS_AT_ONCE
_LATEST_NS, _LONGEST_NS = 1 << 62, 1 << 53  # 146 years, 104 days
_LONGEST_NAME = (
    16 << 10
)  # bytes: C++ kernels have names of some kilobytes; the rest of a longer one is cut
#: Tables with fewer rows are read before a second connection is open.
_WORTH_ROWS = 20_000
_HOLE_ROWS = 200
#: Conditions joined by `or`, each one level of an expression: untrusted.py allows 100 levels.
_RUNS_AT_ONCE = 50


def open_readonly(path: Path) -> AbstractContextManager[sqlite3.Connection]:
    """A guarded connection to an export (`nsysalign.untrusted`); TraceError says what the file is
    instead."""
    return untrusted.opened(
        path,
        TraceError,
        expected="an nsys SQLite export",
        again=AGAIN,
        longest_text=_LONGEST_NAME,
    )


def possible(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Rows whose times can be: what the profiler lost comes as start = end = 0, as end < start or
    as NULL (-1); a damaged time is so far away that a difference of two would not fit into int64,
    or lasts for months."""
    if len(start) and start.min() > 0 and end.max() < _LATEST_NS:  # as good as always
        lasted = end - start
        if lasted.min() >= 0 and lasted.max() < _LONGEST_NS:
            return np.ones(len(start), dtype=bool)
    lost = (end < start) | ((start == 0) & (end == 0)) | (start == -1) | (end == -1)
    lost |= (start <= -_LATEST_NS) | (end >= _LATEST_NS)
    return ~lost & (end - start < _LONGEST_NS)


def lost_its_end(text: str) -> bool:
    """Whether a text was too long and cut."""
    return text.endswith("…") and len(text.encode("utf-8", "replace")) > _LONGEST_NAME - 4


class Source:
    """The tables of one open export."""

    def __init__(self, connection: sqlite3.Connection, path: Path | None = None) -> None:
        self.connection = connection
        self.path = path  # lets big tables be read by a faster reader (fast.py)
        self.tables = untrusted.ordinary_tables(connection)
        self._columns: dict[str, dict[str, bool]] = {}
        for name, what in untrusted.unlike_tables(connection, schema.NAMES).items():
            raise TraceError(
                f"{name} {what}, where nsys export writes a plain table: this file was made by something else",
                f"export the report again: {AGAIN}",
            )

    def columns(self, table: str) -> set[str]:
        return set(self._declared(table))

    def plain_table(self, table: str) -> bool:
        """Whether a reader that knows only ordinary rowid tables may read it: it is there, its rows
        are numbered by SQLite, and no column is computed or takes the place of that number."""
        declared = self._declared(table)
        return (
            table in self.tables
            and not any(declared.values())
            and not {"rowid", "_rowid_", "oid"} & {name.lower() for name in declared}
            and untrusted.has_rowid(self.connection, table)
        )

    def _declared(self, table: str) -> dict[str, bool]:
        """Column -> whether it is computed; {} for a table that is absent."""
        if table not in self._columns:
            present = table in self.tables
            self._columns[table] = untrusted.columns(self.connection, table) if present else {}
        return self._columns[table]

    def read(self, table: Table) -> pd.DataFrame | None:
        """All rows as int64 columns plus `row` (rowid); None where the table is absent.

        Columns that this version does not have hold their default; a missing needed column is a
        TraceError.
        """
        (columns,) = self.columns_of(table)
        if columns is None:
            return None
        return pd.DataFrame(
            {name: values.astype(np.int64, copy=False) for name, values in columns.items()}
        )

    def read_rows(self, table: Table, rows: np.ndarray) -> pd.DataFrame:
        """The rows with these rowids, where they exist, in the order of their rowids."""
        wanted = np.unique(rows)
        plan = self._plan(table) if table.name in self.tables else None
        if plan is None or not len(wanted):
            return pd.DataFrame(
                {name: np.empty(0, np.int64) for name in ("row", *(f.name for f in table.fields))}
            )
        runs = [f"rowid between {first} and {last}" for first, last in _stretches(wanted)]
        also = f"{plan.where} and " if plan.where else ""
        parts = []
        for at in range(0, len(runs), _RUNS_AT_ONCE):
            some = f"{also}({' or '.join(runs[at : at + _RUNS_AT_ONCE])})"
            parts.append(self._whole(plan._replace(where=some), None))
        frame = pd.concat(map(pd.DataFrame, parts)).sort_values("row", ignore_index=True)
        return frame[frame["row"].isin(wanted)].reset_index(drop=True)

    def columns_of(self, *tables: Table) -> list[dict[str, np.ndarray] | None]:
        """The same of several tables as arrays, each as narrow as its values allow
        (`gathered.Gathered`): for the big ones, which are read side by side."""
        plans = [self._plan(table) if table.name in self.tables else None for table in tables]
        ahead = together(self._ahead, plans)
        return [
            None if plan is None else self._whole(plan, columns)
            for plan, columns in zip(plans, ahead, strict=True)
        ]

    def _ahead(self, plan: _Plan | None) -> dict[str, np.ndarray] | None:
        return (
            None if plan is None or self.path is None or not plan.fast else _fast(plan, self.path)
        )

    def row_numbers(self, table: Table) -> tuple[int, int]:
        """Least and greatest; (0, -1) where the table is absent or empty."""
        if table.name not in self.tables:
            return 0, -1
        first, last = (
            self._end(f'select {end}(rowid) from "{table.name}"') for end in ("min", "max")
        )
        return (0, -1) if first is None or last is None else (first, last)

    def column(self, table: Table, name: str) -> str | None:
        """nsys's name of one of our columns, as this export has it; None where it has none."""
        field = next(f for f in table.fields if f.name == name)
        return next((c for c in field.candidates if c in self.columns(table.name)), None)

    def _whole(self, plan: _Plan, columns: dict[str, np.ndarray] | None) -> dict[str, np.ndarray]:
        columns = columns or self._slow(plan)
        row, count = columns["row"], len(columns["row"])
        # whatever joins rows by their numbers would join wrong ones
        if (row[1:] <= row[:-1]).any():
            raise TraceError(f"{plan.table}: damaged SQLite file (rows out of order)", AGAIN)
        return columns | {
            name: np.broadcast_to(np.int64(v), count) for name, v in plan.constants.items()
        }

    def _plan(self, table: Table) -> _Plan:
        expressions: list[str] = []
        names: list[str] = []
        constants: dict[str, int] = {}
        for field in table.fields:
            column = self.column(table, field.name)
            if column is None:
                if field.default is None:
                    raise TraceError(
                        f"{table.name} has no column {' or '.join(field.candidates)}: not an nsys export this version knows",
                        AGAIN,
                    )
                constants[field.name] = field.default
            else:
                names.append(field.name)
                quoted = (
                    f'"{column}"'  # a needed column is hardly ever NULL, and each test takes time
                )
                expressions.append(
                    quoted if field.default is None else f"coalesce({quoted}, {field.default})"
                )
        path = None if table.where or not self.plain_table(table.name) else self.path
        if path is not None and fast.readable(path):
            first, last = self.row_numbers(table)
            quick = bool(names) and _WORTH_ROWS <= last - first + 1 <= fast.most_rows(path)
            return _Plan(table.name, table.where, names, expressions, constants, first, last, quick)
        return _Plan(table.name, table.where, names, expressions, constants, 0, -1, False)

    def _end(self, sql: str) -> int | None:
        """Least or greatest rowid: each by itself is a look at one page, both at once a look at
        all."""
        return self.connection.execute(sql).fetchone()[0]

    def _slow(self, plan: _Plan) -> dict[str, np.ndarray]:
        some = (f"coalesce({expression}, -1)" for expression in plan.expressions)
        cursor = self.connection.execute(plan.select("rowid", *some))
        into = [Gathered(), *(Gathered(wide=name.endswith("_ns")) for name in plan.names)]
        while rows := cursor.fetchmany(_CHUNK):
            try:
                batch = np.array(rows, dtype=np.int64)
            except (ValueError, TypeError, OverflowError) as error:
                raise TraceError(
                    f"{plan.table}: a column of numbers holds something else ({error})",
                    "export the report again",
                ) from error
            for column, values in zip(into, batch.T, strict=True):
                column.add(values)
        return dict(zip(["row", *plan.names], (column.column() for column in into), strict=True))

    def texts(self, table: str, column: str, where: str) -> dict[int, str]:
        """rowid -> text of the rows that carry the text inline."""
        if column not in self.columns(table):
            return {}
        plan = _Plan(table, f'"{column}" is not null and {where}', [], [], {}, 0, -1, False)
        with untrusted.long_values(self.connection):
            return dict(self.connection.execute(plan.select("rowid", f'cast("{column}" as text)')))

    def strings(self) -> dict[int, str]:
        """StringIds as a dict."""
        if not {"id", "value"} <= self.columns("StringIds"):
            return {}
        sql = "select id, cast(value as text) from StringIds where value is not null"
        with untrusted.long_values(self.connection):
            return dict(self.connection.execute(sql))

    def failures(self, table: str, name: str, status: str) -> list[tuple]:
        """(name's id, status, count) of the rows whose status is not 0, [] where the table or a
        column is absent."""
        if not {name, status} <= self.columns(table):
            return []
        sql = f'select "{name}", "{status}", count(*) from "{table}" where "{status}" != 0 group by 1, 2'
        with untrusted.long_values(self.connection):
            return self.connection.execute(sql).fetchall()

    def pairs(self, table: str, key: str, value: str) -> list[tuple]:
        """Two columns of a small table, [] where it or one of them is absent."""
        return self.rows(table, [key, value]) if {key, value} <= self.columns(table) else []

    def rows(self, table: str, names: Sequence[str]) -> list[tuple]:
        """Columns of a small table as they are; bytes, which nsys puts into none of them, are
        None."""
        if not names:
            return []
        values = ", ".join(
            f"""case typeof("{n}") when 'blob' then null else "{n}" end""" for n in names
        )
        with untrusted.long_values(self.connection):
            return self.connection.execute(f'select {values} from "{table}"').fetchall()


def _stretches(rows: np.ndarray) -> list[tuple[int, int]]:
    """(first, last) of runs of sorted numbers: reading over a small hole is cheaper than asking
    again."""
    first = np.flatnonzero(np.concatenate([[True], np.diff(rows) > _HOLE_ROWS]))
    last = np.append(first[1:], len(rows)) - 1
    return list(zip(rows[first].tolist(), rows[last].tolist(), strict=True))


class _Plan(NamedTuple):
    """What is to be read of one table."""

    table: str
    where: str
    names: list[str]  # our columns that the table has
    expressions: list[str]  # SQL for each
    constants: dict[str, int]  # the value of each that it has not
    first: int  # least and greatest row number, where they were looked at
    last: int
    fast: bool  # worth a second connection, and fit for it

    def select(self, *expressions: str) -> str:
        """A SELECT of some expressions, in the order of the rows' numbers."""
        # an index that holds all the columns would give the rows in its own order
        head = f'select {", ".join(expressions)} from "{self.table}" not indexed'
        return f"{head} where {self.where}" if self.where else head


def _fast(plan: _Plan, path: Path) -> dict[str, np.ndarray] | None:
    """Through fast.py; None where something in the table is no integer, or a needed one is
    missing."""
    expected = plan.last - plan.first + 1
    into = [Gathered(wide=name.endswith("_ns")) for name in plan.names]
    if not fast.gather(path, plan.select(*plan.expressions), into):
        return None
    columns = {name: one.column() for name, one in zip(plan.names, into, strict=True)}
    count = len(columns[plan.names[0]])
    if count == expected:  # no number is missing, and rows come in their order
        small = plan.first >= 0 and plan.last <= np.iinfo(np.int32).max
        kind = np.int32 if small else np.int64
        return {"row": np.arange(plan.first, plan.last + 1, dtype=kind)} | columns
    numbers = Gathered()
    if not fast.gather(path, plan.select("rowid"), [numbers]):
        return None
    row = numbers.column()
    return {"row": row} | columns if len(row) == count else None
