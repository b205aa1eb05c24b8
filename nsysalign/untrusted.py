"""Files from other people: opened so that nothing in them can run, write, hang or eat the memory.

Traces and analyses are passed from one person to another.  An SQLite file can hold views, triggers,
virtual tables and computed columns, which run when a table is read, and pages that point at each
other, which stand for a billion rows.  Here

- the file is opened read-only and we never create a -wal, -shm or -journal next to it;
- only SELECT on ordinary tables, a few functions and one pragma are authorised; views cannot even
  be compiled;
- values have a maximum length, and what is read is counted: more rows, more text or more work than
  a file of this size can need are an error.

https://sqlite.org/security.html lists what SQLite offers for this, and why.
"""

from __future__ import annotations

import errno
import marshal
import os
import sqlite3
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from nsysalign.errors import NsysAlignError

#: Maximum length of values if only numbers are read, and of any text (nsys keeps NVTX texts of 1 MB
#: whole).
LONGEST_NUMBER, LONGEST_TEXT = 100_000, 16 << 20
#: Rows to fetch at once, so that the longest values fit into memory until they have been checked.
ROWS_AT_ONCE, _FEW_ROWS = 5_000, 500
_LOCK_TIMEOUT_S = 2.0
_MB = 1 << 20
_HEADER, _WAL_MODE = b"SQLite format 3\0", b"\2\2"
_JOURNAL = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
_FUNCTIONS = {"coalesce", "count", "ifnull", "length", "max", "min", "substr", "typeof"}
_PRAGMAS = ("query_only = on", "trusted_schema = off", "cell_size_check = on", "mmap_size = 0")
_LIMITS = {
    "SQLITE_LIMIT_SQL_LENGTH": 1_000_000,
    "SQLITE_LIMIT_EXPR_DEPTH": 100,
    "SQLITE_LIMIT_ATTACHED": 0,
    "SQLITE_LIMIT_TRIGGER_DEPTH": 1,
    "SQLITE_LIMIT_WORKER_THREADS": 0,
}


def open_regular(path: Path) -> BinaryIO:
    """A regular file, opened to read its bytes.  Raises OSError for a pipe (which would block for
    ever), a device or a folder."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a file", str(path))
    return open(descriptor, "rb")


def contents(path: Path, most: int = -1) -> bytes:
    """The contents of a regular file, or its first bytes.  Raises OSError as `open_regular`
    does."""
    with open_regular(path) as file:
        return file.read(most)


@contextmanager
def opened(
    path: Path,
    error: type[NsysAlignError],
    *,
    expected: str,
    again: str,
    longest_text: int | None = None,
) -> Iterator[sqlite3.Connection]:
    """One consistent, guarded view of an SQLite file; the file and its folder stay as they are.

    Raises `error` if the file cannot be used: `expected` says what it should have been, `again` is
    the command that creates a good one.  SQLite's own errors inside the block are translated as
    well.  With `longest_text` (bytes) texts are counted, and cut, by the connection's
    `text_factory`; without it they must be UTF-8 and fetched by `rows`.  Values are short until
    `long_values` is entered.
    """
    uri = _uri(path, error, expected, again)
    with _translated(
        sqlite3.connect(uri, uri=True, timeout=_LOCK_TIMEOUT_S), path, error, again
    ) as db:
        if hasattr(db, "setlimit"):  # Python 3.11
            for name, value in _LIMITS.items():
                db.setlimit(getattr(sqlite3, name), value)
        _longest(db, LONGEST_NUMBER)
        if hasattr(db, "setconfig"):  # Python 3.12
            for option, on in (
                ("ENABLE_VIEW", False),
                ("ENABLE_TRIGGER", False),
                ("DEFENSIVE", True),
            ):
                db.setconfig(getattr(sqlite3, f"SQLITE_DBCONFIG_{option}"), on)
        for pragma in _PRAGMAS:
            db.execute(f"pragma {pragma}").fetchall()
        db.set_authorizer(_authorize)
        if longest_text is not None:
            db.text_factory = _texts(path.stat().st_size, longest_text)
        db.execute("begin")  # one snapshot for everything that is read
        db.execute("select 1 from sqlite_master limit 1").fetchone()
        yield db


@contextmanager
def copying(
    source: Path, target: Path, error: type[NsysAlignError], again: str
) -> Iterator[sqlite3.Connection]:
    """A connection that writes `target`, an empty file, and reads `source`, attached under that
    name.

    Only for tables that `unlike_tables` has looked at: nothing else of the file is to be named in
    SQL.  Errors as in `opened`.
    """
    uri = _uri(source, error, "an SQLite file", again)
    connection = sqlite3.connect(target.resolve().as_uri(), uri=True, timeout=_LOCK_TIMEOUT_S)
    with _translated(connection, source, error, again) as db:
        for pragma in ("journal_mode = off", "secure_delete = on", "trusted_schema = off"):
            db.execute(f"pragma {pragma}").fetchall()
        db.execute("attach ? as source", (uri,))
        db.execute("pragma cell_size_check = on")
        _longest(db, LONGEST_TEXT)
        yield db
        db.commit()


def _uri(path: Path, error: type[NsysAlignError], expected: str, again: str) -> str:
    """How SQLite is to open a file.  Raises `error` if it is not an SQLite file, or is being
    written."""
    if path.is_dir():
        raise error(
            f"{path}: is a folder, where {expected} was expected",
            "nsysalign analyze RUN_DIR; in Python nsysalign.load(RUN_DIR), or analyze(its trace.sqlite, its events-*.jsonl)",
        )
    if not path.exists():
        raise error(f"{path}: no such file", again)
    try:
        head = contents(path, 20)
        journal, wal = (path.with_name(path.name + end) for end in ("-journal", "-wal"))
        hot = journal.exists() and contents(journal, len(_JOURNAL)) == _JOURNAL
        unwritten = wal.exists() and contents(wal, 1)
    except OSError as problem:
        raise error(
            f"{path.name}: cannot be read ({problem.strerror})", "check its permissions"
        ) from problem
    if not head.startswith(_HEADER):
        what = "is empty" if not head else "is not an SQLite database"
        raise error(f"{path.name}: {what}; {expected} was expected", again)
    if hot:
        raise error(
            f"{path.name}: is being written, or its writer was stopped half-way ({journal.name} lies beside it)",
            f"wait for the writer to end, or make it again: {again}",
        )
    if unwritten:  # SQLite would read it whatever the file's mode
        raise error(
            f"{path.name}: another program has it open, and part of it is still in {wal.name}",
            f"close that program, or make it again: {again}",
        )
    # SQLite would create a -shm for a file in WAL mode unless it is declared immutable
    immutable = head[18:20] == _WAL_MODE or wal.exists()
    return f"{path.resolve().as_uri()}?mode=ro" + ("&immutable=1" if immutable else "")


@contextmanager
def _translated(
    connection: sqlite3.Connection, path: Path, error: type[NsysAlignError], again: str
) -> Iterator[sqlite3.Connection]:
    """The connection, closed at the end; what SQLite says of the file becomes an `error` of ours,
    and so does more work than a file of its size can need."""
    # instructions of SQLite's virtual machine: public exports need 0.4 per byte at most
    left, step = [20_000_000 + 6 * path.stat().st_size], 20_000

    def count() -> bool:
        left[0] -= step
        return left[0] < 0

    connection.set_progress_handler(count, step)
    try:
        yield connection
    # the latter: a damaged name in a message
    except (sqlite3.DatabaseError, UnicodeDecodeError) as problem:
        text, then = str(problem), again
        if left[0] < 0:
            text = (
                "damaged SQLite file (reading it takes more steps than a file of its size can need)"
            )
        elif "locked" in text or "busy" in text:
            text = "is locked: another program is writing it"
            then = f"wait for it to end, or: {again}"
        elif "too big" in text:
            text = (
                f"holds a text of more than {LONGEST_TEXT // _MB} MB, or one where a number belongs"
            )
        elif "not authorized" in text or "prohibited" in text:
            text = f"would have to run SQL of its own to be read ({text})"
        else:
            text, then = f"damaged SQLite file ({text})", f"export the report again: {again}"
        raise error(f"{path.name}: {text}", then) from problem
    finally:
        connection.close()


@contextmanager
def long_values(connection: sqlite3.Connection, longest: int = LONGEST_TEXT) -> Iterator[None]:
    """A context in which values may be as long as texts."""
    _longest(connection, longest)
    try:
        yield
    finally:
        _longest(connection, LONGEST_NUMBER)


def _longest(connection: sqlite3.Connection, length: int) -> None:
    if hasattr(connection, "setlimit"):
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, length)


def _texts(size: int, longest: int) -> Callable[[bytes], str]:
    """Decodes bytes of a file of this size as text: never fails, truncates what is too long, and
    counts.  Every text lies in the file, and is read three times at most; a short file may be read
    oftener."""
    left = [_MB + 3 * size]

    def text(raw: bytes) -> str:
        left[0] -= len(raw)
        if left[0] < 0:
            raise sqlite3.DatabaseError("it holds more text than a file of its size can")
        if len(raw) > longest:
            return raw[:longest].decode("utf-8", "ignore") + "…"
        return raw.decode("utf-8", "replace")

    return text


def rows(connection: sqlite3.Connection, sql: str, size: int) -> Iterator[tuple]:
    """Rows of a small query on a file of `size` bytes, without holding more than fits into the
    file."""
    left = 16 * _MB + 20 * size  # an integer takes 0 to 8 bytes in the file, and 5 to 15 as weighed
    cursor = connection.execute(sql)
    while fetched := cursor.fetchmany(_FEW_ROWS):
        left -= len(marshal.dumps(fetched))  # the quickest way to weigh integers and texts together
        if left < 0:
            raise sqlite3.DatabaseError("it holds more than a file of its size can")
        yield from fetched


def _authorize(
    action: int, first: str | None, second: str | None, _: str | None, view: str | None
) -> int:
    allowed = (
        action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_TRANSACTION)
        or (action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _FUNCTIONS)
        or (action == sqlite3.SQLITE_PRAGMA and first == "table_xinfo")
    )
    # `view`: the innermost view or trigger that requests it
    return sqlite3.SQLITE_OK if allowed and view is None else sqlite3.SQLITE_DENY


def ordinary_tables(connection: sqlite3.Connection) -> set[str]:
    """Names of the tables that have rows of their own."""
    return {name for name, what in _kinds(connection).items() if what is None}


def unlike_tables(connection: sqlite3.Connection, names: Iterable[str]) -> dict[str, str]:
    """Those of `names` that exist but are not plain tables, with what they are or do instead."""
    kinds = _kinds(connection)
    found = {}
    for name in sorted(set(names) & kinds.keys()):
        quoted = name.replace('"', '""')
        if kinds[name] is not None:
            found[name] = f"is {kinds[name]}"
        elif computed := [c for c, is_computed in columns(connection, name).items() if is_computed]:
            found[name] = f"computes its column {computed[0]}"
        else:
            try:
                connection.execute(f'select rowid from "{quoted}" limit 0')
            except sqlite3.OperationalError:
                found[name] = "has no row numbers"
    return found


def _kinds(connection: sqlite3.Connection) -> dict[str, str | None]:
    """Everything with a name and rows: None for a table, else what it is instead.

    SQLite stores the text of a table as `CREATE TABLE` and of a virtual one as `CREATE VIRTUAL
    TABLE`, however it was written, and refuses a schema whose text does not match its type and
    name.
    """
    sql = "select name, type, sql from sqlite_master where type in ('table', 'view')"
    return {
        name: "a view"
        if kind == "view"
        else (None if str(text).startswith("CREATE TABLE ") else "a virtual table")
        for name, kind, text in connection.execute(sql).fetchall()
    }


def columns(connection: sqlite3.Connection, table: str) -> dict[str, bool]:
    """Column -> whether it is computed, of an ordinary table."""
    quoted = table.replace('"', '""')
    described = connection.execute(f'pragma main.table_xinfo("{quoted}")').fetchall()
    return {name: hidden != 0 for _, name, _, _, _, _, hidden in described}
