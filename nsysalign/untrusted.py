"""Files from other people: opened so that nothing in them can run, write, hang or eat the memory.

An SQLite file can hold views, triggers, virtual tables and computed columns, which run when a table
is read, and pages that point at each other, which stand for a billion rows.  So it is opened
read-only, never with a -wal, -shm or -journal of ours beside it; only SELECT on plain tables, a few
functions and one pragma are authorised; and more work or text than a file of its size can need is
an error.  https://sqlite.org/security.html lists what SQLite offers for this, and why.

JSON Lines are read in bounded memory: a few kilobytes of gzip can unpack to gigabytes, and one line
can be as long as the file.
"""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import sqlite3
import stat
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from nsysalign.errors import EventLogError, NsysAlignError

#: Bytes of any value: nsys keeps NVTX texts of 1 MB whole.
_LONGEST_VALUE = 16 << 20
_LOCK_TIMEOUT_S = 2.0
_HEADER, _WAL_MODE = b"SQLite format 3\0", b"\2\2"
_JOURNAL = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
_FUNCTIONS = {"coalesce", "count", "ifnull", "length", "max", "min", "substr", "typeof"}
_READING = frozenset({sqlite3.SQLITE_READ, sqlite3.SQLITE_SELECT, sqlite3.SQLITE_TRANSACTION})
_PRAGMAS = ("query_only = on", "trusted_schema = off", "cell_size_check = on", "mmap_size = 0")
_LIMITS = {"LENGTH": _LONGEST_VALUE, "SQL_LENGTH": 1_000_000, "EXPR_DEPTH": 100, "ATTACHED": 0, "TRIGGER_DEPTH": 1}  # fmt: skip
#: No line of ours comes near this many characters; a longer one is passed over, up to a length that
#: holes left by a crash do not have.
LONGEST_LINE, LONGEST_HOLE = 1 << 20, 256 << 20
#: Limits on what a gzip file may unpack to, in characters: event logs compress to between a fifth
#: and a twentieth.
_FREE, _PER_BYTE, _MOST = 16 << 20, 100, 8 << 30
#: Each line counts as at least this many (none of ours is shorter): 4 MB of gzip can hold 4 billion
#: blank lines.
_LEAST_LINE = 64
#: Stands for a line that could not be read; it is not JSON.
UNUSABLE = "(not usable)\n"


def open_regular(path: Path) -> BinaryIO:
    """A regular file, opened to read its bytes.  Raises OSError for a pipe (which would block for
    ever), a device or a folder."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a file", str(path))
    return open(descriptor, "rb")


def contents(path: Path, size: int = -1) -> bytes:
    """The contents of a regular file, or its first bytes.  Raises OSError as `open_regular`
    does."""
    with open_regular(path) as file:
        return file.read(size)


@contextmanager
def opened(
    path: Path,
    error: type[NsysAlignError],
    *,
    expected: str,
    again: str,
    longest_text: int = _LONGEST_VALUE,
) -> Iterator[sqlite3.Connection]:
    """One consistent, guarded view of an SQLite file; the file and its folder stay as they are.

    Raises `error` if the file cannot be used: `expected` says what it should have been, `again` is
    the command that creates a good one.  SQLite's own errors inside the block are translated as
    well.  Longer texts (bytes) are cut.
    """
    uri = _uri(path, error, expected, again)
    connection = sqlite3.connect(uri, uri=True, timeout=_LOCK_TIMEOUT_S)
    with _translated(connection, path, error, again) as db:
        if hasattr(db, "setlimit"):  # Python 3.11
            for name, value in _LIMITS.items():
                db.setlimit(getattr(sqlite3, f"SQLITE_LIMIT_{name}"), value)
        if hasattr(db, "setconfig"):  # Python 3.12
            db.setconfig(sqlite3.SQLITE_DBCONFIG_ENABLE_VIEW, False)
            db.setconfig(sqlite3.SQLITE_DBCONFIG_ENABLE_TRIGGER, False)
            db.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)
        for pragma in _PRAGMAS:
            db.execute(f"pragma {pragma}").fetchall()
        db.set_authorizer(_authorize)

        def text(raw: bytes) -> str:
            if len(raw) > longest_text:
                return raw[:longest_text].decode("utf-8", "ignore") + "…"
            return raw.decode("utf-8", "replace")

        db.text_factory = text
        db.execute("begin")  # one snapshot for everything that is read
        db.execute("select 1 from sqlite_master limit 1").fetchone()
        yield db


@contextmanager
def copying(
    source: Path, target: Path, error: type[NsysAlignError], again: str
) -> Iterator[sqlite3.Connection]:
    """A connection that writes `target`, an empty file, and reads `source`, attached under that
    name: only its plain tables (`tables`) are to be named in SQL.  Errors as in `opened`."""
    uri = _uri(source, error, "an SQLite file", again)
    connection = sqlite3.connect(target.resolve().as_uri(), uri=True, timeout=_LOCK_TIMEOUT_S)
    with _translated(connection, source, error, again) as db:
        for pragma in ("journal_mode = off", "secure_delete = on", "trusted_schema = off"):
            db.execute(f"pragma {pragma}").fetchall()
        db.execute("attach ? as source", (uri,))
        db.execute("pragma cell_size_check = on")
        if hasattr(db, "setlimit"):
            db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE)
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
        state = "is empty" if not head else "is not an SQLite database"
        raise error(f"{path.name}: {state}; {expected} was expected", again)
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
    steps_left, step = 5_000_000 + 6 * path.stat().st_size, 20_000

    def count() -> bool:
        nonlocal steps_left
        steps_left -= step
        return steps_left < 0

    connection.set_progress_handler(count, step)
    try:
        yield connection
    # the latter: a damaged name in a message
    except (sqlite3.DatabaseError, UnicodeDecodeError) as problem:
        text, then = str(problem), again
        if "disk is full" in text:  # of the copy that is written meanwhile
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from problem
        if steps_left < 0:
            text = "damaged SQLite file (it holds more than a file of its size can)"
        elif "locked" in text or "busy" in text:
            text = "is locked: another program is writing it"
            then = f"wait for it to end, or: {again}"
        elif "too big" in text:
            text = f"holds a text of more than {_LONGEST_VALUE >> 20} MB, or one where a number belongs"
        elif "not authorized" in text or "prohibited" in text:
            text = f"would have to run SQL of its own to be read ({text})"
        else:
            text, then = f"damaged SQLite file ({text})", f"export the report again: {again}"
        raise error(f"{path.name}: {text}", then) from problem
    finally:
        connection.close()


def _authorize(
    action: int, first: str | None, second: str | None, _: str | None, view: str | None
) -> int:
    allowed = (
        action in _READING
        or (action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _FUNCTIONS)
        or (action == sqlite3.SQLITE_PRAGMA and first == "table_xinfo")
    )
    # `view`: the innermost view or trigger that requests it
    return sqlite3.SQLITE_OK if allowed and view is None else sqlite3.SQLITE_DENY


def tables(connection: sqlite3.Connection) -> tuple[dict[str, list[str]], dict[str, str]]:
    """The columns of every plain table, in their order; everything else that has a name and rows,
    with what it is or does."""
    plain: dict[str, list[str]] = {}
    not_tables: dict[str, str] = {}
    sql = "select name, type, sql from sqlite_master where type in ('table', 'view')"
    for name, kind, text in connection.execute(sql).fetchall():
        # SQLite stores the text in these words, however it was written, and refuses a schema whose
        # text does not match its type and name
        if kind == "view" or not str(text).startswith("CREATE TABLE "):
            not_tables[name] = "is a view" if kind == "view" else "is a virtual table"
            continue
        quoted = name.replace('"', '""')
        described = connection.execute(f'pragma main.table_xinfo("{quoted}")').fetchall()
        if computed := [row[1] for row in described if row[6]]:
            not_tables[name] = f"computes its column {computed[0]}"
            continue
        try:
            connection.execute(f'select rowid from "{quoted}" limit 0')
            plain[name] = [row[1] for row in described]
        except sqlite3.OperationalError:
            not_tables[name] = "has no row numbers"
    return plain, not_tables


def rows(connection: sqlite3.Connection, table: str, columns: Iterable[str]) -> list[tuple]:
    """Columns of a small table as they are, in the order of its rows' numbers; bytes, which nobody
    writes there, are None."""
    values = (f"""case typeof("{c}") when 'blob' then null else "{c}" end""" for c in columns)
    return connection.execute(
        f'select {", ".join(values)} from "{table}" order by rowid'
    ).fetchall()


def lines_of(path: Path) -> Iterator[str]:
    """Lines as text; `UNUSABLE` for one that is too long, and at the end of a truncated or damaged
    gzip file.  Raises EventLogError if the file cannot be opened, or unpacks to more than a log can
    hold.
    """
    text: dict[str, Any] = {"encoding": "utf-8-sig", "errors": "replace", "newline": "\n"}
    try:
        raw = open_regular(path)
    except OSError as error:
        raise EventLogError(
            f"{path.name}: cannot be read ({error.strerror or error})",
            "name the events-PID.jsonl of the run with --events",
        ) from error
    with raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        granted = min(_FREE + _PER_BYTE * path.stat().st_size, _MOST)
        unpacked = gzip.GzipFile(fileobj=raw) if packed else raw
        file = io.TextIOWrapper(unpacked, **text)
        left, passed = granted, 0  # `passed`: of a line that is too long
        try:
            for piece in iter(partial(file.readline, LONGEST_LINE), ""):
                left -= max(len(piece), _LEAST_LINE)
                if packed and left < 0:
                    raise EventLogError(
                        f"{path.name}: unpacks to more than {granted >> 20} MB, more than any event log of this size",
                        "if it is one, unpack it with gunzip and name the unpacked file",
                    )
                whole = len(piece) < LONGEST_LINE or piece.endswith("\n")
                if not passed and whole:
                    yield piece
                    continue
                passed += len(piece)
                if passed > LONGEST_HOLE:
                    raise EventLogError(
                        f"{path.name}: has a line of more than {LONGEST_HOLE >> 20} MB: this is no event log",
                        "name an events-PID.jsonl of nsysalign",
                    )
                if whole:
                    passed = 0
                    yield UNUSABLE
            if passed:
                yield UNUSABLE
        except (EOFError, zlib.error, gzip.BadGzipFile):
            yield UNUSABLE


def is_json(path: Path) -> bool:
    """Whether a file, packed by gzip or not, begins like JSON; False for one that cannot be read."""
    try:
        with open_regular(path) as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            head = (gzip.GzipFile(fileobj=raw) if packed else raw).read(1 << 10)
    except (OSError, EOFError, zlib.error):
        return False
    return head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[")


def json_or_none(line: str) -> Any:
    """The parsed line, None if it is not JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def is_natural(value: object) -> bool:
    """Whether it is a whole number that can be a time in nanoseconds, a position or a count."""
    return type(value) is int and 0 <= value < 1 << 62
