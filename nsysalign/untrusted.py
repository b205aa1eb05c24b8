"""Files from other people: opened so that nothing in them can run, write, hang or eat the memory.

Reading a pipe under a file's name would block for ever: `open_regular` and `contents` refuse it.
Traces and analyses are passed from one person to another.  An SQLite file can hold views, triggers,
virtual tables and computed columns, which run when a table is read, and pages that point at each
other.  Here

- the file is opened read-only and we never create a -wal, -shm or -journal next to it;
- only SELECT on ordinary tables, a few functions and one pragma are authorised; views cannot even
  be compiled;
- values have a maximum length, and what is read is counted: more rows or more text than fit into a
  file of this size cause an
error (a few pages that point at each other can produce a billion rows).

https://sqlite.org/security.html lists what SQLite offers for this, and why.
"""

from __future__ import annotations

import errno
import marshal
import os
import sqlite3
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from nsysalign.errors import NsysAlignError

#: Maximum length of values if only numbers are read, and of any text (nsys keeps NVTX texts of 1 MB
#: whole).
LONGEST_NUMBER, LONGEST_TEXT = 100_000, 16 << 20
#: Rows to fetch at once, so that the longest values fit into memory until they have been checked.
ROWS_AT_ONCE = 5_000
_LOCK_TIMEOUT_S = 2.0
_STEP = 20_000  # instructions of SQLite's virtual machine between two checks of their number
#: Instructions allowed for any file, and in addition per byte of the file (recordings and public
#: exports need 0.4 per byte at most, `test_real_traces_need_a_fraction_of_what_is_granted`).
_FREE, _PER_BYTE = 20_000_000, 6
#: Every text lies in the file, and is read three times at most; a short file may be read oftener.
_TEXT_FREE, _TEXT_PER_BYTE = 1 << 20, 3
#: The same for rows of integers and texts: an integer takes 0 to 8 bytes in the file, and 5 to 15
#: as weighed here.
_ROWS_FREE, _ROWS_PER_BYTE, _FEW_ROWS = 16 << 20, 20, 500
_WAL_MODE, _JOURNAL = b"\x02\x02", b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
_FUNCTIONS = {"coalesce", "count", "ifnull", "length", "max", "min", "substr", "typeof"}
_LIMITS = {
    "SQLITE_LIMIT_SQL_LENGTH": 1_000_000,
    "SQLITE_LIMIT_EXPR_DEPTH": 100,
    "SQLITE_LIMIT_ATTACHED": 0,
    "SQLITE_LIMIT_TRIGGER_DEPTH": 1,
    "SQLITE_LIMIT_WORKER_THREADS": 0,
}


def open_regular(path: Path) -> BinaryIO:
    """A regular file, opened to read its bytes.  Raises OSError for a pipe, a device or a
    folder."""
    flags = (
        os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    )  # a pipe may have no writer
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
    wal = _look(path, error, expected, again)
    # SQLite would create a -shm for a file in WAL mode unless it is declared immutable; it has been
    # checked that it is not being written.
    uri = f"{path.resolve().as_uri()}?mode=ro" + ("&immutable=1" if wal else "")
    connection = sqlite3.connect(uri, uri=True, timeout=_LOCK_TIMEOUT_S)
    size = path.stat().st_size
    work = _Work(size)
    try:
        _guard(connection)
        if longest_text is not None:
            connection.text_factory = Texts(size, longest_text)
        connection.set_progress_handler(work.step, _STEP)
        connection.execute("begin")  # one snapshot for everything that is read
        connection.execute("select 1 from sqlite_master limit 1").fetchone()
        yield connection
    except (
        sqlite3.DatabaseError,
        UnicodeDecodeError,
    ) as problem:  # the latter: a damaged name in a message
        said, then = _explain(problem, work, path.name, again)
        raise error(said, then) from problem
    finally:
        connection.close()


@contextmanager
def copying(
    source: Path, target: Path, error: type[NsysAlignError], again: str
) -> Iterator[sqlite3.Connection]:
    """A connection that writes `target`, an empty file, and reads `source`, attached under that
    name.

    Only for tables that `unlike_tables` has looked at: nothing else of the file is to be named in
    SQL.  Errors as in `opened`.
    """
    immutable = "&immutable=1" if _look(source, error, "an SQLite file", again) else ""
    connection = sqlite3.connect(target.resolve().as_uri(), uri=True, timeout=_LOCK_TIMEOUT_S)
    work = _Work(source.stat().st_size)
    try:
        for pragma in ("journal_mode = off", "secure_delete = on", "trusted_schema = off"):
            connection.execute(f"pragma {pragma}").fetchall()
        connection.execute(
            "attach ? as source", (f"{source.resolve().as_uri()}?mode=ro{immutable}",)
        )
        connection.execute("pragma cell_size_check = on")
        _longest(connection, LONGEST_TEXT)
        connection.set_progress_handler(work.step, _STEP)
        yield connection
        connection.commit()
    except (sqlite3.DatabaseError, UnicodeDecodeError) as problem:
        said, then = _explain(problem, work, source.name, again)
        raise error(said, then) from problem
    finally:
        connection.close()


def _guard(connection: sqlite3.Connection) -> None:
    """Disable everything on an open connection that reading tables does not need."""
    for name, value in _LIMITS.items():
        if hasattr(connection, "setlimit"):  # Python 3.11
            connection.setlimit(getattr(sqlite3, name), value)
    _longest(connection, LONGEST_NUMBER)
    for option, value in (("ENABLE_VIEW", False), ("ENABLE_TRIGGER", False), ("DEFENSIVE", True)):
        if hasattr(connection, "setconfig"):  # Python 3.12
            connection.setconfig(getattr(sqlite3, f"SQLITE_DBCONFIG_{option}"), value)
    for pragma in (
        "query_only = on",
        "trusted_schema = off",
        "cell_size_check = on",
        "mmap_size = 0",
    ):
        connection.execute(f"pragma {pragma}").fetchall()
    connection.set_authorizer(_authorize)


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


class Texts:
    """Decodes bytes of a file as text: never fails, truncates what is too long, and counts."""

    def __init__(self, size: int, longest: int) -> None:
        self.left = _TEXT_FREE + _TEXT_PER_BYTE * size
        self.longest = longest
        self.cut = 0  # how many were truncated

    def __call__(self, raw: bytes) -> str:
        self.left -= len(raw)
        if self.left < 0:
            raise sqlite3.DatabaseError("it holds more text than a file of its size can")
        if len(raw) > self.longest:
            self.cut += 1
            return raw[: self.longest].decode("utf-8", "ignore") + "…"
        return raw.decode("utf-8", "replace")


def rows(connection: sqlite3.Connection, sql: str, size: int) -> Iterator[tuple]:
    """Rows of a small query on a file of `size` bytes, without holding more than fits into the
    file."""
    left = _ROWS_FREE + _ROWS_PER_BYTE * size
    cursor = connection.execute(sql)
    while fetched := cursor.fetchmany(_FEW_ROWS):
        left -= len(
            marshal.dumps(fetched)
        )  # the quickest way to estimate the size of integers and texts together
        if left < 0:
            raise sqlite3.DatabaseError("it holds more than a file of its size can")
        yield from fetched


class _Work:
    """Counts SQLite's work, and notices if that is more than a file of this size can need."""

    def __init__(self, size: int) -> None:
        self.granted = _FREE + _PER_BYTE * size
        self.done = 0

    def step(self) -> bool:
        self.done += _STEP
        return self.exceeded

    @property
    def exceeded(self) -> bool:
        return self.done > self.granted


def _authorize(
    action: int, first: str | None, second: str | None, _: str | None, view: str | None
) -> int:
    if view is not None:  # the innermost view or trigger that requests it
        return sqlite3.SQLITE_DENY
    if action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_TRANSACTION):
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _FUNCTIONS:
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_PRAGMA and first == "table_xinfo":
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def _look(path: Path, error: type[NsysAlignError], expected: str, again: str) -> bool:
    """Whether SQLite would write next to the file (WAL mode).  Raises `error` if it is not an
    SQLite file, or is being written."""
    if path.is_dir():
        raise error(
            f"{path}: is a folder, where {expected} was expected",
            "nsysalign analyze RUN_DIR; in Python nsysalign.load(RUN_DIR), or analyze(its trace.sqlite, its events-*.jsonl)",
        )
    if not path.exists():
        raise error(f"{path}: no such file", again)
    try:
        with open_regular(path) as file:
            head = file.read(20)
        journal, wal = (path.with_name(path.name + end) for end in ("-journal", "-wal"))
        hot = _first(journal, len(_JOURNAL)) == _JOURNAL
        unwritten = _first(wal, 1)
    except OSError as problem:
        raise error(
            f"{path.name}: cannot be read ({problem.strerror})", "check its permissions"
        ) from problem
    if head[:16] != b"SQLite format 3\x00":
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
    return head[18:20] == _WAL_MODE or wal.exists()


def _first(path: Path, count: int) -> bytes:
    """The first bytes of a file that may be absent.  Raises OSError if it is not a regular file, on
    which SQLite would block."""
    try:
        with open_regular(path) as file:
            return file.read(count)
    except FileNotFoundError:
        return b""


def _explain(problem: Exception, work: _Work, name: str, again: str) -> tuple[str, str]:
    """What an SQLite error means here, and what to do."""
    text = str(problem)
    if work.exceeded:
        return (
            f"{name}: damaged SQLite file (reading it takes more steps than a file of its size can need)",
            again,
        )
    if "locked" in text or "busy" in text:
        return (
            f"{name}: is locked: another program is writing it",
            f"wait for it to end, or: {again}",
        )
    if "too big" in text:
        return (
            f"{name}: holds a text of more than {LONGEST_TEXT >> 20} MB, or one where a number belongs",
            again,
        )
    if "not authorized" in text or "prohibited" in text:
        return f"{name}: would have to run SQL of its own to be read ({text})", again
    return f"{name}: damaged SQLite file ({text})", f"export the report again: {again}"


def ordinary_tables(connection: sqlite3.Connection) -> set[str]:
    """Names of the tables that have rows of their own."""
    return {name for name, what in _kinds(connection).items() if what is None}


def unlike_tables(connection: sqlite3.Connection, names: Iterable[str]) -> dict[str, str]:
    """Those of `names` that exist but are not plain tables, with what they are or do instead."""
    kinds = _kinds(connection)
    found = {}
    for name in sorted(set(names) & kinds.keys()):
        if kinds[name] is not None:
            found[name] = f"is {kinds[name]}"
        elif computed := [c for c, is_computed in columns(connection, name).items() if is_computed]:
            found[name] = f"computes its column {computed[0]}"
        elif not has_rowid(connection, name):
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
        else None
        if str(text).startswith("CREATE TABLE ")
        else "a virtual table"
        for name, kind, text in connection.execute(sql).fetchall()
    }


def columns(connection: sqlite3.Connection, table: str) -> dict[str, bool]:
    """Column -> whether it is computed, of an ordinary table."""
    quoted = table.replace('"', '""')
    rows = connection.execute(f'pragma main.table_xinfo("{quoted}")').fetchall()
    return {name: hidden != 0 for _, name, _, _, _, _, hidden in rows}


def has_rowid(connection: sqlite3.Connection, table: str) -> bool:
    """Whether the rows of an ordinary table have SQLite's own number (`WITHOUT ROWID` tables have
    none)."""
    quoted = table.replace('"', '""')
    try:
        connection.execute(f'select rowid from "{quoted}" limit 0')
    except sqlite3.OperationalError:
        return False
    return True
