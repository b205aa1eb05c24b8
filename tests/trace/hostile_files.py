"""Prepared SQLite files: each looks like an export, and does something when it is read."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

KERNEL, STRINGS = "CUPTI_ACTIVITY_KIND_KERNEL", "StringIds"
_NUMBERS = (
    "with recursive n(i) as (select 1 union all select i + 1 from n) select "
    "i as start, i + 1 as end, 7 as streamId, i as correlationId, 1 as deviceId from n"
)


def _columns(db: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in db.execute(f'pragma table_info("{table}")')]


def _instead(db: sqlite3.Connection, what: str) -> None:
    db.execute(f"drop table {KERNEL}")
    db.executescript(what)


def endless_view(db: sqlite3.Connection) -> None:
    """A view of rows without end."""
    _instead(db, f"create view {KERNEL} as {_NUMBERS}")


def virtual_table(db: sqlite3.Connection) -> None:
    _instead(
        db, f"create virtual table {KERNEL} using rtree(id, start, end, streamId, correlationId)"
    )


def computed_column(db: sqlite3.Connection) -> None:
    """Megabytes for every row that is looked at."""
    db.execute(f"alter table {STRINGS} rename to was")
    db.execute(f"create table {STRINGS} (id integer, value text as (hex(zeroblob(4000000 + id))))")
    db.execute(f"insert into {STRINGS} (id) select id from was")


def without_rowid(db: sqlite3.Connection) -> None:
    names = _columns(db, KERNEL)
    listed = ", ".join(f'"{n}" integer' for n in names)
    db.execute(f"alter table {KERNEL} rename to was")
    db.execute(f"create table {KERNEL} ({listed}, primary key (correlationId)) without rowid")
    db.execute(f"insert into {KERNEL} select * from was")


def long_name(db: sqlite3.Connection) -> None:
    db.execute(f"update {STRINGS} set value = value || hex(zeroblob(1000000))")


def too_long_name(db: sqlite3.Connection) -> None:
    db.execute(f"update {STRINGS} set value = hex(zeroblob(20000000)) where id = 7")


def bytes_for_numbers(db: sqlite3.Connection) -> None:
    db.execute(f"update {KERNEL} set start = zeroblob(30000000)")


def renamed_in_the_schema(db: sqlite3.Connection) -> None:
    """The catalogue says `table` beside the text of a view."""
    endless_view(db)
    db.execute("pragma writable_schema = on")
    db.execute(f"update sqlite_master set type = 'table' where name = '{KERNEL}'")


#: name -> (what is done to an export, what the error says; None where the analysis is the same)
PREPARED: dict[str, tuple[Callable[[sqlite3.Connection], None], str | None]] = {
    "endless view": (endless_view, "KERNEL is a view"),
    "virtual table": (virtual_table, "KERNEL is a virtual table"),
    "computed column": (computed_column, "StringIds computes its column value"),
    "without rowid": (without_rowid, "KERNEL has no row numbers"),
    "long name": (long_name, None),
    "too long name": (too_long_name, "a text of more than 16 MB"),
    "bytes for numbers": (bytes_for_numbers, "where a number belongs"),
    "renamed in the schema": (renamed_in_the_schema, "malformed database schema"),
}


def prepare(path: Path, change: Callable[[sqlite3.Connection], None]) -> None:
    with closing(sqlite3.connect(path)) as db:
        change(db)
        db.commit()


def multiply(path: Path, table: str, *, levels: int = 5, fan: int = 200) -> None:
    """Let the rows of a one-page table be read `fan ** levels` times: pages that all point at the
    same page.

    root -> page a, a, a, ... -> page b, b, b, ... -> the leaf with the rows
    """
    with closing(sqlite3.connect(path)) as db:
        (root,) = db.execute(
            "select rootpage from sqlite_master where name = ?", (table,)
        ).fetchone()
        (size,) = db.execute("pragma page_size").fetchone()
    data = bytearray(path.read_bytes())
    leaf = data[(root - 1) * size : root * size]
    assert leaf[0] == 0x0D, "the table does not fit on one page"
    pages = [leaf]
    for _ in range(levels):
        child = len(data) // size + len(pages)
        cells = [struct.pack(">IB", child, 1 + k % 120) for k in range(fan)]
        content = size - 5 * fan
        pointers = b"".join(struct.pack(">H", content + 5 * k) for k in range(fan))
        head = struct.pack(">BHHHBI", 5, 0, fan, content, 0, child)
        page = bytearray(size)
        page[: len(head) + len(pointers)] = head + pointers
        page[content:] = b"".join(cells)
        pages.append(page)
    data[(root - 1) * size : root * size] = pages.pop()
    for page in pages:
        data += page
    data[28:32] = struct.pack(">I", len(data) // size)
    path.write_bytes(data)
